"""PipelineSchedule: a start for every block of every micro-batch, and what it is worth.

Two definitions of the bubble are in use. `bubble_period` = 1 - (largest work of a device) / period is that of
the steady state; `bubble_wall` of device d = 1 - work_d * n / makespan counts warm-up and cool-down, and
`bubble_span` of device d does so between the device's own first start and last end (the definition under
which a staggered "zero bubble" schedule has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import frozen, int_array
from placeopt.model.errors import InputError
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.evaluate import makespan, memory_profile, peak_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.schedules.problem import PipelineProblem


@dataclass(frozen=True, eq=False)
class Repetend:
    """A pattern that repeats every `period` ticks and starts `size` micro-batches each time.

    Block b of micro-batch j starts at start[j % size, b] + period * (j // size).
    """

    period: int  # ticks
    start: NDArray[np.int64]  # (size, num_blocks) ticks, smallest is 0

    def __post_init__(self) -> None:
        start = np.asarray(self.start, dtype=np.int64)
        object.__setattr__(self, "start", frozen(start - start.min()))

    @property
    def size(self) -> int:
        """Micro-batches per repetition, K."""
        return int(self.start.shape[0])

    @property
    def per_micro_batch(self) -> Fraction:
        """Ticks between two micro-batches on average."""
        return Fraction(self.period, self.size)

    @property
    def index(self) -> NDArray[np.int64]:
        """Tessel's view: how many repetitions after its micro-batch began each block runs."""
        return self.start // self.period

    def latency(self, span: NDArray[np.int64]) -> int:
        """Ticks that one micro-batch spends in the pipeline (the slowest of the pattern)."""
        return int(((self.start + span).max(axis=1) - self.start.min(axis=1)).max())

    def unroll(self, num_micro_batches: int) -> NDArray[np.int64]:
        """Return the starts of the first micro-batches, shape (num_micro_batches, num_blocks)."""
        turn, member = np.divmod(np.arange(num_micro_batches), self.size)
        return self.start[member] + (turn * self.period)[:, None]


@dataclass(frozen=True, eq=False)
class PipelineSchedule:
    """A finite schedule of n micro-batches; its value is always recomputed from `start`.

    Attributes
    ----------
    period : ticks between two micro-batches in the steady state.
    period_bound : ticks; a proven lower bound on `period` (for repetends of this size, or for all).
    period_status : "optimal", "feasible", or "unknown" where the schedule has no steady state.
    repetend : the repeating pattern, where there is one.
    """

    problem: PipelineProblem
    start: NDArray[np.int64]  # (num_micro_batches, num_blocks) ticks
    solver: str
    period: Fraction
    period_bound: Fraction
    period_status: str = "feasible"
    bound_method: str = "load"
    repetend: Repetend | None = None
    runtime: float = 0.0
    candidates: int = 0  # what was tried: index assignments (tessel), periods (repetend), models (time-optimal)
    makespan_bound: int = 0  # ticks; proven lower bound on the makespan of this number of micro-batches

    def __post_init__(self) -> None:
        start = np.asarray(self.start)
        if start.ndim != 2 or start.shape[1] != self.problem.num_blocks or not len(start):
            raise InputError(f"start: expected shape (micro-batches, {self.problem.num_blocks}), received {start.shape}")
        object.__setattr__(self, "start", int_array(start, start.shape, "start"))
        simple = makespan_bound(self.problem, len(start))
        object.__setattr__(self, "makespan_bound", max(self.makespan_bound, simple))

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches, n."""
        return int(self.start.shape[0])

    @cached_property
    def makespan(self) -> int:
        """Ticks from the first start to the last end."""
        return makespan(self.problem, self.start)

    @cached_property
    def peak_memory(self) -> list[int]:
        """Most memory held by each device."""
        return peak_memory(self.problem, self.start)

    @property
    def bubble_period(self) -> float:
        """Idle share of the busiest device in the steady state."""
        return float(1 - Fraction(int(self.problem.work.max())) / self.period)

    @property
    def bubble_wall(self) -> list[float]:
        """Idle share of each device between time 0 and the makespan."""
        return [1 - int(work) * self.micro_batches / self.makespan for work in self.problem.work]

    @property
    def bubble_span(self) -> list[float]:
        """Idle share of each device between its first start and its last end (0 for an unused device)."""
        return [idle / max(1, idle + int(work) * self.micro_batches)
                for idle, work in zip(self.idle_ticks, self.problem.work, strict=True)]  # fmt: skip

    @property
    def idle_ticks(self) -> list[int]:
        """Idle ticks of each device between its first start and its last end."""
        idle = []
        for d, blocks in enumerate(self.problem.on_device):
            mine = self.start[:, list(blocks)]
            reach = int((mine + self.problem.span[list(blocks)]).max() - mine.min()) if blocks else 0
            idle.append(reach - int(self.problem.work[d]) * self.micro_batches)
        return idle

    @property
    def throughput(self) -> float:
        """Micro-batches per second over the whole schedule."""
        return self.micro_batches / (self.makespan * self.problem.tick_seconds)

    def memory_profile(self, device: int) -> NDArray[np.int64]:
        """Return (time, memory held from then on) rows of one device."""
        return memory_profile(self.problem, self.start, device)

    def device_order(self, device: int) -> list[tuple[int, int]]:
        """Return the (micro-batch, block) pairs that run on `device`, in order."""
        found = [
            (int(self.start[j, i]), j, i) for j in range(self.micro_batches) for i in self.problem.on_device[device]
        ]
        return [(j, i) for _, j, i in sorted(found)]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the `schedule` command."""
        return {
            "problem": self.problem.name,
            "solver": self.solver,
            "objective": "period",
            "period": plain(self.period),
            "period_bound": plain(self.period_bound),
            "period_status": self.period_status,
            "bound_method": self.bound_method,
            "makespan": self.makespan,
            "makespan_bound": self.makespan_bound,
            "micro_batches": self.micro_batches,
            "peak_memory": self.peak_memory,
            "bubble_period": self.bubble_period,
            "bubble_wall": self.bubble_wall,
            "bubble_span": self.bubble_span,
            "throughput": self.throughput,
            "seconds": float(self.period) * self.problem.tick_seconds,
            "repetend_size": self.repetend.size if self.repetend else None,
            "latency": self.repetend.latency(self.problem.span) if self.repetend else None,
            "candidates": self.candidates,
            "runtime": self.runtime,
        }


def plain(value: Fraction) -> int | float:
    """Return a whole number of ticks as int, anything else as float."""
    return int(value) if value.denominator == 1 else float(value)


def relaunch_period(problem: PipelineProblem, start: NDArray[np.int64]) -> Fraction:
    """Period of a finite schedule that is repeated as it is, as early as every device is done with it.

    Per micro-batch: the largest span of a device between its first start and last end, over n.
    """
    reach = max(
        int((start[:, list(blocks)] + problem.span[list(blocks)]).max() - start[:, list(blocks)].min())
        for blocks in problem.on_device
        if blocks
    )
    return Fraction(reach, start.shape[0])
