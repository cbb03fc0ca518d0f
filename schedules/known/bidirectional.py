"""Chimera and DualPipe: two pipelines in opposite directions share the devices.

The problem holds both directions (shape X), so one of its micro-batches is two of the model: N =
2n. With D stages of times f, b (whole) or f, i, w:
  Chimera   each device idles (D - 2) b for b = f or b = 2f and N = D: a share of (D - 2)/(2N + D -
            2) for b = f and (D - 2)/(3N/2 + D - 2) for b = 2f  (Li and Hoefler, SC 2021)
  DualPipe  the first device idles (D/2 - 1)(f + i - w) for i <= f, and no device holds more than D
            + 1 micro-batches. The technical report of DeepSeek-V3 (2024) has (D/2 - 1)(f&b + b -
            3w), b = i + w, where f&b is a pair that runs overlapped and delivers both results at
            its end; run one after the other, as here, the first result goes on at once, and the
            idle time is smaller.

References
----------
.. [1] S. Li, T. Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
Bidirectional Pipelines", SC 2021.
.. [2] DeepSeek-AI, "DeepSeek-V3 Technical Report",
arXiv:2412.19437, 2024 (DualPipe).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from placeopt.schedules.known import KnownSchedule
from placeopt.schedules.known.chains import Chain, Instance
from placeopt.schedules.problem import PipelineProblem


@dataclass(frozen=True)
class _TwoDirections(KnownSchedule):
    shape = "two chains over the same devices in opposite directions (shape X)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        if len(chains) != 2:
            raise self.refuse(problem, f"has {len(chains)} independent chain(s)")
        down, up = chains
        if (
            down.device != up.device[::-1]
            or len(set(down.device)) != down.num_stages
            or down.num_stages % 2
        ):
            raise self.refuse(problem, "has its stages elsewhere, or an odd number of them")


@dataclass(frozen=True)
class Chimera(_TwoDirections):
    """Chimera: units of D micro-batches, half of them in each direction, one unit after the
    other.
    """

    def unit(self, problem: PipelineProblem) -> int:
        """D/2 micro-batches of each direction."""
        return sum(map(bool, problem.on_device)) // 2

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Merge both directions in the order of their times with f = b = 1; a unit follows every 2D
        units of time.
        """
        stages = chains[0].num_stages
        runs: list[tuple[int, list[Instance]]] = []
        for chain, j in itertools.product(chains, range(micro_batches)):
            stage = chain.device.index(device)
            unit, inside = divmod(j, stages // 2)
            # Stage s of one direction and S - 1 - s of the other are of opposite parity: no two
            # meet.
            base = 2 * stages * unit + 2 * inside
            runs.append((base + stage, [(j, chain.forward[stage])]))
            runs.append((base + 2 * stages - 1 - stage, chain.whole_backward(j, stage)))
        runs.sort(key=lambda run: run[0])
        return [instance for _, piece in runs for instance in piece]


@dataclass(frozen=True)
class DualPipe(_TwoDirections):
    """DualPipe: both directions at once, backward passes split where it helps (DeepSeek-V3)."""

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Two directions with split backward passes."""
        super().check(problem, chains)
        if not all(chain.split for chain in chains):
            raise self.refuse(problem, "has whole backward passes (use split=1)")

    def orders(
        self, problem: PipelineProblem, chains: list[Chain], micro_batches: int
    ) -> list[list[Instance]]:
        """Refuse fewer micro-batches than stages."""
        stages = chains[0].num_stages
        if micro_batches < stages:
            raise self.refuse(
                problem, f"has {micro_batches} micro-batches; it needs at least {stages}"
            )
        return super().orders(problem, chains, micro_batches)

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Eight phases per device; the second half of the devices mirrors the first."""
        nearest = sorted(chains, key=lambda chain: chain.device.index(device))
        return _DualPipeDevice(nearest, device, micro_batches).run()


class _DualPipeDevice:
    """Orders one device; phase 0 is the direction that enters at the nearer end."""

    def __init__(self, chains: list[Chain], device: int, micro_batches: int) -> None:
        self.chains, self.micro_batches = chains, micro_batches
        self.stage = [chain.device.index(device) for chain in chains]
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.order: list[Instance] = []
        self.late: list[Instance] = []  # W's that wait for a gap

    def forward(self, phase: int) -> None:
        self.order.append((self.forwards[phase], self.chains[phase].forward[self.stage[phase]]))
        self.forwards[phase] += 1

    def backward(self, phase: int, *, split: bool) -> None:
        whole = self.chains[phase].whole_backward(self.backwards[phase], self.stage[phase])
        self.backwards[phase] += 1
        self.order += whole[:1] if split else whole
        if split:
            self.late += whole[1:]

    def alternate(self, times: int, *passes: str) -> None:
        """Run passes in turn: F, B or I with its phase, and W for the one that waits longest."""
        for name in passes * times:
            if name == "W":
                self.order.append(self.late.pop(0))
            elif name[0] == "F":
                self.forward(int(name[1]))
            else:
                self.backward(int(name[1]), split=name[0] == "I")

    def run(self) -> list[Instance]:
        half, half_rank = self.chains[0].num_stages // 2, self.stage[0]
        far = half - half_rank - 1  # devices between this one and the middle
        self.alternate(2 * far, "F0")
        self.alternate(half_rank + 1, "F0", "F1")
        self.alternate(far, "I1", "W", "F1")
        self.alternate(self.micro_batches - 2 * half + half_rank + 1, "F0", "B1", "F1", "B0")
        self.alternate(far, "B1", "F1", "B0")
        for step in range(2 * (half_rank + 1)):  # both directions in turn, the second half split
            self.backward(1 - step % 2, split=step > half_rank)
        self.alternate(far, "W", "I0")
        self.alternate(half_rank + 1, "W")
        return self.order
