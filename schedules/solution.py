"""PipelineSchedule: a start for every block of every micro-batch, and the pattern that repeats.

Two definitions of the bubble are in use. `bubble_period` = 1 - (largest work of a device) / period
is that of the steady state; `bubble_wall` of device d = 1 - work_d * n / makespan counts warm-up
and cool-down, and `bubble_span` of device d does so between the device's own first start and last
end (the definition under which a staggered "zero bubble" schedule has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np

from placeopt.model.arrays import ArrayHolder, Ints, as_array, check_count, frozen, int_array
from placeopt.model.errors import InputError
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.evaluate import makespan, memory_profile, peak_memory
from placeopt.schedules.problem import PipelineProblem


@dataclass(frozen=True, eq=False)
class Repetend(ArrayHolder):
    """A pattern that repeats every `period` ticks and starts `size` micro-batches each time.

    Block b of micro-batch j starts at start[j % size, b] + period * (j // size).
    """

    period: int  # ticks
    start: Ints  # (size, num_blocks) ticks, smallest is 0

    def __post_init__(self) -> None:
        start = as_array(self.start, "repetend: start")
        start = int_array(start, start.shape, "repetend: start")
        if start.ndim != 2 or not start.size:
            raise InputError(
                "repetend: expected starts of shape (micro-batches, blocks), received "
                f"{start.shape}"
            )
        check_count("repetend: period", self.period)
        object.__setattr__(self, "period", int(self.period))
        object.__setattr__(self, "start", frozen(start - start.min()))

    @property
    def size(self) -> int:
        """Micro-batches per repetition, K."""
        return int(self.start.shape[0])

    @property
    def per_micro_batch(self) -> Fraction:
        """Ticks per micro-batch: K of them begin every `period` ticks."""
        return Fraction(self.period, self.size)

    @property
    def index(self) -> Ints:
        """Tessel's index: how many repetitions after its micro-batch began each block runs."""
        return self.start // self.period

    def in_ticks(self, unit: int) -> Repetend:
        """Return the pattern of a problem in units of so many ticks, in ticks."""
        return Repetend(self.period * unit, self.start * unit)

    def latency(self, span: Ints) -> int:
        """Ticks that one micro-batch spends in the pipeline (the slowest of the pattern)."""
        return int(((self.start + span).max(axis=1) - self.start.min(axis=1)).max())

    def unroll(self, num_micro_batches: int) -> Ints:
        """Return the starts of the first micro-batches, shape (num_micro_batches, num_blocks)."""
        turn, member = np.divmod(np.arange(num_micro_batches), self.size)
        return self.start[member] + (turn * self.period)[:, None]


@dataclass(frozen=True, eq=False)
class PipelineSchedule(ArrayHolder):
    """A finite schedule of n micro-batches and the pattern that it repeats.

    Its value is the period per micro-batch of that pattern, an exact fraction, which the judge
    takes from the pattern and never from here (`placeopt.schedules.judge`).

    Attributes
    ----------
    repetend : the pattern; None where only the whole schedule repeats, once every device is done
    with it.
    makespan_bound : ticks; no schedule of as many micro-batches is shorter. At least what the quick
    bounds prove.
    size_bound : ticks per micro-batch; no pattern of as many micro-batches as this one's has a
    shorter period. 0 where
        nothing is proved beyond the bounds that hold for all patterns.
    claims : fields that say what is proved; they are not taken over from solvers of other packages.
    """

    problem: PipelineProblem
    start: Ints  # (num_micro_batches, num_blocks) ticks
    repetend: Repetend | None = None
    makespan_bound: int = 0
    size_bound: Fraction = Fraction(0)

    claims: ClassVar[tuple[str, ...]] = ("makespan_bound", "size_bound")

    def __post_init__(self) -> None:
        start = as_array(self.start, "start")
        if start.ndim != 2 or start.shape[1] != self.problem.num_blocks or not len(start):
            raise InputError(
                f"start: expected shape (micro-batches, {self.problem.num_blocks}), received "
                f"{start.shape}"
            )
        object.__setattr__(self, "start", int_array(start, start.shape, "start"))
        if self.repetend is not None and self.repetend.start.shape[1] != self.problem.num_blocks:
            raise InputError(
                f"repetend: expected {self.problem.num_blocks} blocks, "
                f"received {self.repetend.start.shape[1]}"
            )
        simple = makespan_bound(self.problem, len(start))
        object.__setattr__(self, "makespan_bound", max(self.makespan_bound, simple))

    def __repr__(self) -> str:
        return (
            f"<PipelineSchedule of '{self.problem.name}': {self.micro_batches} micro-batches, "
            f"{self.makespan} ticks>"
        )

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches, n."""
        return int(self.start.shape[0])

    @cached_property
    def pattern(self) -> Repetend:
        """What repeats: the repetend, or the whole schedule as a pattern of n micro-batches."""
        return relaunch(self.problem, self.start) if self.repetend is None else self.repetend

    @property
    def period(self) -> Fraction:
        """Ticks per micro-batch in the steady state."""
        return self.pattern.per_micro_batch

    @property
    def period_status(self) -> str:
        """What is proved of the period among patterns of its own size: "optimal for K = 1", or
        "feasible".
        """
        return (
            f"optimal for K = {self.pattern.size}" if self.period == self.size_bound else "feasible"
        )

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
        """Idle share of each device between its first start and its last end (0 for an unused
        device).
        """
        reach = device_reach(self.problem, self.start)
        return [idle / max(1, ticks) for idle, ticks in zip(self.idle_ticks, reach, strict=True)]

    @property
    def idle_ticks(self) -> list[int]:
        """Idle ticks of each device between its first start and its last end."""
        reach = device_reach(self.problem, self.start)
        return [
            ticks - int(work) * self.micro_batches
            for ticks, work in zip(reach, self.problem.work, strict=True)
        ]

    @property
    def throughput(self) -> float:
        """Micro-batches per second over the whole schedule."""
        return self.micro_batches / (self.makespan * self.problem.tick_seconds)

    def memory_profile(self, device: int) -> Ints:
        """Return (time, memory held from then on) rows of one device."""
        return memory_profile(self.problem, self.start, device)

    def device_order(self, device: int) -> list[tuple[int, int]]:
        """Return the (micro-batch, block) pairs that run on `device`, in order."""
        return order_on(self.problem, self.start, device)


def order_on(problem: PipelineProblem, start: Ints, device: int) -> list[tuple[int, int]]:
    """Return the (micro-batch, block) pairs that run on a device, in order of their starts."""
    blocks = problem.on_device[device]
    runs = sorted((int(start[j, i]), j, i) for j in range(len(start)) for i in blocks)
    return [(j, i) for _, j, i in runs]


def relaunch(problem: PipelineProblem, start: Ints) -> Repetend:
    """Return a finite schedule as a pattern of all its micro-batches.

    It begins again as soon as every device is done with it; memory is back to zero by then.
    """
    return Repetend(max(device_reach(problem, start)), start)


def device_reach(problem: PipelineProblem, start: Ints) -> list[int]:
    """Return the ticks of each device from its first start to its last end, 0 for an unused one."""
    return [
        int((start[:, here] + problem.span[here]).max() - start[:, here].min()) if here else 0
        for here in map(list, problem.on_device)
    ]
