"""1F1B+: one forward, one backward on placements whose tensor-parallel blocks occupy several
devices at once.

Tessel compares with 1F1B on its own placements by running the blocks of single devices in the order
of 1F1B, and every shared block where the micro-batch passes it. Here, for shapes such as M, NN and
K:

1. the shared blocks are left out, what waits for them waits for their spans instead;
2. the rest runs by 1F1B: backward passes first, the oldest micro-batch first, and a device admits
   as many micro-batches as there are stages from its own to the end of its chain;
3. a shared block takes its place in the order just before the first block that waits for it, or
   where none does just after the last one that it waits for, and everything starts as early as this
   order allows.

So what a searched schedule gains over this one is the schedule's gain; what this one gains over
1F1B on a plain pipeline is the placement's. On a plain pipeline (V) both are the same.

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA 2024
   (section 6, the baseline 1F1B+).
.. [2] D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (1F1B).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import Refused
from placeopt.schedules.evaluate import compact, dispatch
from placeopt.schedules.known import KnownSchedule
from placeopt.schedules.known.chains import Chain
from placeopt.schedules.problem import Block, PipelineProblem

Waits = dict[int, int]
"""Block to the ticks between its end and another block's start."""


@dataclass(frozen=True)
class OneForwardOneBackwardPlus(KnownSchedule):
    """1F1B of the blocks on single devices, shared blocks where the micro-batch passes them."""

    shape = "one stage per device, with blocks that several devices share (shapes V, M, NN, K)"

    def check(self, problem: PipelineProblem, chains: list[Chain]) -> None:
        """Nothing: chains are not asked for."""

    def starts(self, problem: PipelineProblem, micro_batches: int) -> Ints:
        """Return the starts, shape (micro_batches, num_blocks), whatever the memory limit says."""
        own = [i for i in range(problem.num_blocks) if len(problem.devices_of(i)) == 1]
        self._check_stages(problem, own)
        waits = bridged(problem, set(own))
        rest = reduced(problem, own, waits, stages_left(problem, own, waits))
        kept = dispatch(rest, ranks(rest, micro_batches))
        if kept is None:
            raise self.refuse(problem, "admits too few micro-batches to go on")
        wanted = np.zeros((micro_batches, problem.num_blocks), np.int64)
        wanted[:, own] = kept
        return compact(problem, with_shared(problem, set(own), wanted))

    def _check_stages(self, problem: PipelineProblem, own: list[int]) -> None:
        """Refuse devices without exactly one forward block and a backward pass of their own."""
        for d, name in enumerate(problem.device_names):
            kinds = sorted(problem.kind[i] for i in own if problem.home_of(i) == d)
            if kinds not in (["B", "F"], ["F", "I", "W"], ["F", "I"]):
                raise Refused(
                    f"{self.name} is made for {self.shape}; '{name}' of '{problem.name}' has "
                    f"{', '.join(kinds) or 'no blocks'} of its own"
                )


def bridged(problem: PipelineProblem, own: set[int]) -> list[Waits]:
    """Return what every block waits for among the blocks of single devices, through shared blocks
    and their spans.
    """
    waits: list[Waits] = [{} for _ in range(problem.num_blocks)]
    for i in problem.topological_order.tolist():
        for u, lag in problem.predecessors_of(i):
            through = (
                {u: lag}
                if u in own
                else {v: x + int(problem.span[u]) + lag for v, x in waits[u].items()}
            )
            for v, ticks in through.items():
                waits[i][v] = max(ticks, waits[i].get(v, 0))
    return waits


def stages_left(problem: PipelineProblem, own: list[int], waits: list[Waits]) -> list[int]:
    """Return for every device how many stages there are from its own to the end of its chain."""
    left = {i: 1 for i in own if problem.kind[i] == "F"}
    for i in reversed([i for i in problem.topological_order.tolist() if i in left]):
        for u in waits[i]:
            if u in left:
                left[u] = max(left[u], left[i] + 1)
    found = [1] * problem.num_devices
    for i, stages in left.items():
        found[problem.home_of(i)] = stages
    return found


def reduced(
    problem: PipelineProblem, own: list[int], waits: list[Waits], admitted: list[int]
) -> PipelineProblem:
    """Return the problem of the blocks on single devices, its memory counting micro-batches."""
    last = {problem.home_of(i): i for i in own if problem.kind[i] in ("B", "I")}
    last |= {problem.home_of(i): i for i in own if problem.kind[i] == "W"}
    blocks = []
    for i in own:
        device = problem.home_of(i)
        change = (problem.kind[i] == "F") - (last[device] == i)
        after = tuple((problem.block_names[u], lag) for u, lag in waits[i].items())
        blocks.append(
            Block(
                problem.block_names[i],
                problem.kind[i],
                (device,),
                int(problem.span[i]),
                (int(change),),
                after,
            )
        )
    return PipelineProblem.from_blocks(
        f"{problem.name} without shared blocks", blocks, problem.device_names, capacity=admitted
    )


def ranks(problem: PipelineProblem, micro_batches: int) -> Ints:
    """Return the priorities of 1F1B: backward passes first, then the oldest micro-batch."""
    turn = np.arange(micro_batches, dtype=np.int64)[:, None]
    return problem.forward * micro_batches + turn


def with_shared(problem: PipelineProblem, own: set[int], start: Ints) -> Ints:
    """Return the starts with a time for every shared block; only the order counts."""
    wanted = start.copy()
    shared = [i for i in problem.topological_order.tolist() if i not in own]
    timed = set(own)
    for i in reversed(shared):
        ready = [v for v in problem.successors[i] if v in timed]
        if ready:
            wanted[:, i] = wanted[:, ready].min(axis=1)
            timed.add(i)
    for i in shared:
        if i not in timed:
            before = [u for u, _ in problem.predecessors_of(i)]
            wanted[:, i] = (wanted[:, before] + problem.span[before]).max(axis=1)
    return wanted
