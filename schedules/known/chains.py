"""View a pipeline problem as chains of stages: what the known schedules and PyTorch's runtime
understand.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import InputError
from placeopt.plans.step_schedules import BACKWARD, FORWARD, WEIGHT, Step
from placeopt.schedules.evaluate import compact
from placeopt.schedules.problem import PipelineProblem

Instance = tuple[int, int]
"""(micro-batch, block)."""


@dataclass(frozen=True)
class Chain:
    """Stages 0..S-1, each a forward block and its backward block(s) on one device.

    Attributes
    ----------
    device : device of each stage.
    forward, backward : F block and B or I block of each stage.
    weight : W block of each stage, -1 where the backward pass is not split.
    """

    device: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """Number of stages, S."""
        return len(self.forward)

    @property
    def split(self) -> bool:
        """Whether the backward pass is split into I and W."""
        return all(block >= 0 for block in self.weight)

    def whole_backward(self, micro_batch: int, stage: int) -> list[Instance]:
        """Return the backward pass of a stage as one piece: B, or I directly followed by W."""
        found = [(micro_batch, self.backward[stage])]
        if self.weight[stage] >= 0:
            found.append((micro_batch, self.weight[stage]))
        return found

    def instances(self, steps: Sequence[Step]) -> list[Instance]:
        """Return passes of stages as blocks of micro-batches; where none is a W of its own, each
        backward pass is whole.
        """
        blocks = {FORWARD: self.forward, BACKWARD: self.backward, WEIGHT: self.weight}
        apart = any(step.kind == WEIGHT for step in steps)
        found: list[Instance] = []
        for stage, j, kind in steps:
            if kind == BACKWARD and not apart:
                found += self.whole_backward(j, stage)
            else:
                found.append((j, blocks[kind][stage]))
        return found


def chains_of(problem: PipelineProblem) -> list[Chain]:
    """Return the chains of `problem`, one per independent part.

    Raises
    ------
    InputError
        With the reason, if the blocks do not form chains of stages on single devices.
    """
    for i, name in enumerate(problem.block_names):
        if len(problem.devices_of(i)) != 1:
            raise InputError(
                f"block '{name}' of '{problem.name}' runs on {len(problem.devices_of(i))} devices "
                "at once; expected stages on one device each"
            )
        if problem.kind[i] == "other":
            raise InputError(
                f"block '{name}' of '{problem.name}' is of kind 'other'; expected F, B, I or W"
            )
    return [_chain(problem, part) for part in _parts(problem)]


def _parts(problem: PipelineProblem) -> list[list[int]]:
    """Weakly connected components in topological order of their blocks."""
    order = problem.topological_order.tolist()
    parts = sorted(nx.weakly_connected_components(problem.graph()), key=min)
    return [[block for block in order if block in part] for part in parts]


def _chain(problem: PipelineProblem, part: list[int]) -> Chain:
    forward, backward, weights = (
        [i for i in part if problem.kind[i] in kinds] for kinds in (("F",), ("B", "I"), ("W",))
    )
    if len(backward) != len(forward):
        raise InputError(
            f"'{problem.name}': expected a backward block for each of the {len(forward)} forward "
            f"blocks, received {len(backward)} (a forward-only pipeline has no such schedule)"
        )
    edges = {(u, v) for u, v, _ in problem.edges}
    for u, v in itertools.pairwise(forward + backward):
        if (u, v) not in edges:
            raise InputError(
                f"'{problem.name}' branches: '{problem.block_names[v]}' does not follow "
                f"'{problem.block_names[u]}'; expected one chain of stages"
            )
    backward = backward[::-1]
    for first, second in zip(forward, backward, strict=True):
        if problem.home_of(first) != problem.home_of(second):
            raise InputError(
                f"'{problem.name}': '{problem.block_names[second]}' runs on another device than "
                f"its forward block '{problem.block_names[first]}'"
            )
    device = tuple(problem.home_of(i) for i in forward)
    return Chain(
        device, tuple(forward), tuple(backward), _weight_blocks(problem, backward, weights)
    )


def _weight_blocks(
    problem: PipelineProblem, backward: list[int], weights: list[int]
) -> tuple[int, ...]:
    """Return the W block of every backward block, on its device; -1 where it has none, as an I
    without weights of its own. Refuse others.
    """
    found = []
    for block in backward:
        after, home = problem.successors[block], problem.home_of(block)
        mine = [w for w in weights if w in after and problem.home_of(w) == home]
        if len(mine) > (problem.kind[block] == "I"):
            raise InputError(
                f"'{problem.name}': '{problem.block_names[block]}' has {len(mine)} W blocks on its "
                "device; expected at most one for an I, none for a B"
            )
        found.append(mine[0] if mine else -1)
    lost = sorted(set(weights) - set(found))
    if lost:
        raise InputError(
            f"'{problem.name}': '{problem.block_names[lost[0]]}' belongs to no I block on its "
            "device"
        )
    return tuple(found)


def starts_of_orders(
    problem: PipelineProblem, orders: list[list[Instance]], micro_batches: int
) -> Ints:
    """Run every device's instances strictly in the given order, each as early as possible.

    For blocks on one device each. Return starts of shape (micro_batches, num_blocks).

    Raises
    ------
    InputError
        If the orders wait for each other in a circle or miss an instance.
    """
    wanted = np.full((micro_batches, problem.num_blocks), -1, np.int64)
    waits = [[u for u, _ in problem.predecessors_of(i)] for i in range(problem.num_blocks)]
    queues, turn = [deque(order) for order in orders], itertools.count()

    def run(d: int) -> bool:
        """Let the next instance of a device have its turn, unless it has to wait."""
        j, i = queues[d][0]
        if any(wanted[j, u] < 0 for u in waits[i]):
            return False
        wanted[j, i] = next(turn)
        queues[d].popleft()
        return True

    moved = True
    while moved:
        moved = False
        for d, queue in enumerate(queues):
            while queue and run(d):
                moved = True
    if any(queues) or (wanted < 0).any():
        raise InputError(f"'{problem.name}': the device orders wait for each other or miss a block")
    return compact(problem, wanted)
