"""The memory of a simulated-annealing walk: the graph as it reads it, its state, its checkpoints;
and the step to an op nearby that walks and populations share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.makespan.simulator import ProblemArrays, Workspace, make_workspace
from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, uncounted_kernel
from placeopt.model.exchanges import FEW
from placeopt.model.projection import Edges, Units
from placeopt.model.random_bits import below

NEVER = 2**63 - 1
"""A time that never comes; the value of a walk that has none yet."""


class WalkGraph(NamedTuple):
    """The problem as the walk and the moves of populations read it (n ops, k devices, m
    tensors).
    """

    compute: Ints  # (n, k) ticks
    successors: Edges
    predecessors: Edges
    transfer: Ints  # (m, classes) ticks
    link_class: Ints  # (k, k)
    weight: Ints  # (m,) mean ticks of a tensor between devices
    units: Units  # ops that share a device


class Leg(NamedTuple):
    """A stretch of a walk: the temperature falls from `hot` to `cold` ticks by a constant factor
    per step.
    """

    steps: int
    hot: float
    cold: float
    target: int  # stop once the best value is at most this
    chance: Floats  # (len(MOVES),) cumulative probability of each move
    acceptance: int  # METROPOLIS, ...


class Execution(NamedTuple):
    """The simulator's view of the problem, and its scratch memory; apart from the state of a walk,
    which pieces of the walk are called with.
    """

    arrays: ProblemArrays
    memory: Workspace


class WalkState(NamedTuple):
    """State of one walk and its scratch memory."""

    random: Ints  # (3,) generator state
    device: Ints  # (n,) current, with the proposal applied while it is evaluated
    sequence: Ints  # (n,) ops in the order in which they are scheduled, a topological order
    position: Ints  # (n,) place of each op in `sequence`
    home: Ints  # (u,) device of each unit
    used: Ints  # (k,) bytes
    load: Ints  # (k,) ticks of the ops there
    start: Ints  # (n,) of the current placement
    finish: Ints  # (n,)
    before: Ints  # (n,) op that ran before on the same device, -1 for none
    tail: Ints  # (n,) longest path from the start of the op to the end
    held: Ints  # (k,) ops on each device
    table: Ints  # (k, n) ops of each device by start
    best_device: Ints  # (n,)
    best_sequence: Ints  # (n,)
    value: Ints  # (2,) current value, NEVER until it is evaluated, and best value
    # proposal
    unit_list: Ints  # (u,) units that move
    unit_to: Ints  # (u,) their new devices
    unit_mark: Ints  # (u,) stamp
    stamp: Ints  # (1,)
    visit: Ints  # (n,) stamp
    queue: Ints  # (n,) ops to visit
    # schedule of the proposal
    new_start: Ints  # (n,)
    new_finish: Ints  # (n,)
    new_tail: Ints  # (n,)
    new_held: Ints  # (k,)
    new_table: Ints  # (k, n)
    gap: Ints  # (2, k) of each device, before its last op: longest idle gap, end of the last one


@entry
def new_execution(arrays):  # type: ignore[no-untyped-def]
    """Return what executes placements of a problem."""
    return Execution(arrays, make_workspace(arrays))


def make_state(g: WalkGraph, random: Ints, device: Ints, sequence: Ints) -> WalkState:
    """Allocate a walk at (device, sequence); `walk_kernels.anneal` evaluates it."""
    n, k = g.compute.shape
    u = len(g.units.bytes)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    def table() -> Ints:
        # Not cleared: only the part that is used becomes resident memory.
        return np.empty((k, n), np.int64)

    return WalkState(
        random=random.copy(),
        device=device.copy(),
        sequence=sequence.copy(),
        position=ints(n),
        home=ints(u),
        used=ints(k),
        load=ints(k),
        start=ints(n),
        finish=ints(n),
        before=ints(n),
        tail=ints(n),
        held=ints(k),
        table=table(),
        best_device=device.copy(),
        best_sequence=sequence.copy(),
        value=np.full(2, NEVER),
        unit_list=ints(u),
        unit_to=ints(u),
        unit_mark=ints(u),
        stamp=ints(1),
        visit=ints(n),
        queue=ints(max(n, FEW)),
        new_start=ints(n),
        new_finish=ints(n),
        new_tail=ints(n),
        new_held=ints(k),
        new_table=table(),
        gap=ints(2, k),
    )


@uncounted_kernel
def random_neighbour(g, s, op):  # type: ignore[no-untyped-def]
    """Return a random op that shares a tensor with `op`, -1 if there is none."""
    ins, outs = g.predecessors, g.successors
    first, count = ins.pointer[op], ins.pointer[op + 1] - ins.pointer[op]
    total = count + outs.pointer[op + 1] - outs.pointer[op]
    if total == 0:
        return -1
    pick = below(s, total)
    return ins.op[first + pick] if pick < count else outs.op[outs.pointer[op] + pick - count]
