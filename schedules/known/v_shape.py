"""ZB-V, V-Half and V-Min: two stages per device in a V, split backward passes.

Device d holds stages d and 2D - 1 - d, so the last stage turns around on the device that the first
one began on, and the memory of the two stages balances over the devices. V-Half and V-Min repeat a
*building block*: the times of the six passes of one micro-batch, every six units of time (Qi et
al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024); its lifespan decides the
memory. ZB-V has a handcrafted order (Qi et al., ICLR 2024). With f = i = w = 1 for each of the 2D
stages, in units of time and of one stage's activations:
  ZB-V     no idle time between a device's first start and last end (n >= 2D), memory 2D;
  V-Half   memory 2 floor((D + 2)/2), idle time about 3D: 3D - 4 for odd D, 3D - 6 for even D >= 6;
  V-Min    memory 2 floor((D + 4)/3), idle time about 4D: 4D - 5 for D = 1 modulo 3, else 4D - 7 (D
           >= 3).

References
----------
.. [1] P. Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024 (V-Half, V-Min,
building blocks).
.. [2] P. Qi et al., "Zero Bubble (Almost) Pipeline Parallelism", ICLR 2024
(ZB-V).
"""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.model.arrays import Ints
from placeopt.schedules.completion import affordable_passes, justify
from placeopt.schedules.evaluate import peak_memory
from placeopt.schedules.known import KnownSchedule, one_chain, waves_of
from placeopt.schedules.known.chains import Chain, Instance
from placeopt.schedules.problem import PipelineProblem

Offsets = tuple[list[int], list[int], list[int], list[int]]
"""Times of F0, F1, I1 and I0 on each device, in units of one pass."""


@dataclass(frozen=True)
class _VShape(KnownSchedule):
    shape = "one chain down and up the devices with split backward (shape wave with split=1)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        chain = one_chain(self, problem, chains)
        if waves_of(chain) != 1:
            raise self.refuse(problem, "has its stages elsewhere")
        if not chain.split:
            raise self.refuse(problem, "has whole backward passes")


@dataclass(frozen=True)
class ZeroBubbleV(_VShape):
    """ZB-V: no bubble at equal times, with the memory of 1F1B."""

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Fill, turn around, alternate between the two stages, drain with the W's that are left."""
        chain = chains[0]
        count, rank = chain.num_stages // 2, chain.device.index(device)
        queue = _Queue(chain, (rank, 2 * count - 1 - rank), micro_batches)
        queue.run("F0", 2 * (count - rank) - 1)
        queue.alternate(rank, "F1", "F0")
        queue.alternate(count - rank, "F1", "I1", "W1")
        while queue.left("F0") or queue.count["F1"] < queue.count["F0"]:
            queue.alternate(1, "F0", "I0", "W0", "F1", "I1", "W1")
        queue.alternate(rank, "I0", "I1")
        queue.alternate(count - rank, "I0", "W0")
        for name in ("I1", "I0", "W1", "W0"):
            queue.run(name, micro_batches)
        return queue.order


class _Queue:
    """The passes of one device: `run` appends the next micro-batch of a pass, if any may still run
    here.

    Attributes
    ----------
    count : micro-batches whose pass has been ordered, by pass.
    """

    def __init__(self, chain: Chain, stages: tuple[int, int], micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.order: list[Instance] = []
        self.block: dict[str, int] = {}
        for half, stage in enumerate(stages):
            self.block |= {
                f"F{half}": chain.forward[stage],
                f"I{half}": chain.backward[stage],
                f"W{half}": chain.weight[stage],
            }
        self.count = dict.fromkeys(self.block, 0)

    def left(self, name: str) -> bool:
        """Whether a micro-batch is left for the pass `name`."""
        return self.count[name] < self.micro_batches

    def alternate(self, times: int, *names: str) -> None:
        """Run the passes `names` in turn."""
        for name in names * times:
            self.run(name)

    def run(self, name: str, times: int = 1) -> None:
        before = {"I0": "F0", "I1": "F1", "W0": "I0", "W1": "I1"}.get(name)
        for _ in range(times):
            if not self.left(name) or (
                before is not None and self.count[name] >= self.count[before]
            ):
                return
            self.order.append((self.count[name], self.block[name]))
            self.count[name] += 1


@dataclass(frozen=True)
class _BuildingBlock(_VShape):
    """Repeats a building block every six units and closes the gaps."""

    def offsets(self, count: int) -> Offsets:
        """Return the times of F0, F1, I1 and I0 on each device, in units of one pass."""
        raise NotImplementedError

    def squeezed(self, problem: PipelineProblem, start: Ints, seconds: float) -> Ints:
        """Squeeze warm-up and cool-down without raising the peak; what is to show the pattern of a
        longer schedule as often as that.
        """
        longer = problem.replace(micro_batches=max(problem.micro_batches, len(start)))
        passes = affordable_passes(longer, seconds)
        peak = max(peak_memory(problem, start))
        return justify(problem.with_capacity(peak or None), start, rounds=int(min(4, passes / 2)))

    def order(self, chains: list[Chain], device: int, micro_batches: int) -> list[Instance]:
        """Order of the repeated building block; each W takes the first free unit after its I."""
        chain = chains[0]
        count, first = chain.num_stages // 2, chain.device.index(device)
        second = 2 * count - 1 - first
        # Units between two micro-batches: each device runs six passes for each
        interval = 6
        times = [at[first] for at in self.offsets(count)]
        used = {at % interval for at in times}
        blocks = [
            chain.forward[first],
            chain.forward[second],
            chain.backward[second],
            chain.backward[first],
        ]
        for at, stage in ((times[2], second), (times[3], first)):
            w = next(w for w in range(at + 1, at + interval + 1) if w % interval not in used)
            used.add(w % interval)
            times.append(w)
            blocks.append(chain.weight[stage])
        runs = sorted(
            (at + interval * j, j, block)
            for j in range(micro_batches)
            for at, block in zip(times, blocks, strict=True)
        )
        return [(j, block) for _, j, block in runs]


def _chain_of_offsets(
    count: int, steps: tuple[int, int, int, int], turns: tuple[int, int, int]
) -> Offsets:
    """Return F0, F1, I1, I0 times: `steps` per device within a pass, `turns` between two passes."""
    down = [steps[0] * d for d in range(count)]
    up = [down[-1] + turns[0] + steps[1] * (count - 1 - d) for d in range(count)]
    back = [up[0] + turns[1] + steps[2] * d for d in range(count)]
    home = [back[-1] + turns[2] + steps[3] * (count - 1 - d) for d in range(count)]
    return down, up, back, home


@dataclass(frozen=True)
class VMin(_BuildingBlock):
    """V-Min: passes follow each other at once, a third of the memory of 1F1B."""

    def offsets(self, count: int) -> Offsets:
        """One unit per device in every pass; a multiple of three devices needs a pause for the six
        to fit.
        """
        return _chain_of_offsets(count, (1, 1, 1, 1), (1, 1, 1) if count % 3 else (1, 3, 1))


@dataclass(frozen=True)
class VHalf(_BuildingBlock):
    """V-Half: half the memory of 1F1B, room for uneven times."""

    def offsets(self, count: int) -> Offsets:
        """Two units per device outwards (F0 and I1), one unit back (F1 and I0); the turns avoid
        collisions.
        """
        return _chain_of_offsets(count, (2, 1, 2, 1), (2, 1, 1) if count % 2 else (4, 1, 5))
