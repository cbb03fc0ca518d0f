"""The memory of a simulated-annealing walk: the graph as it reads it, its state, its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEVER = 2**63 - 1


class Graph(NamedTuple):
    """The problem as the walk reads it (n ops, k devices, m tensors, u units that share a device)."""

    compute: Ints  # (n, k) ticks
    edge_ptr: Ints  # (n + 1,)
    edge_op: Ints  # (edges,)
    edge_tensor: Ints  # (edges,)
    pred_ptr: Ints  # (n + 1,)
    pred_op: Ints  # (edges,)
    pred_tensor: Ints  # (edges,)
    transfer: Ints  # (m, classes) ticks
    link_class: Ints  # (k, k)
    weight: Ints  # (m,) mean ticks of a tensor between devices
    unit: Ints  # (n,) unit of each op
    unit_ptr: Ints  # (u + 1,)
    unit_op: Ints  # (n,)
    allowed: NDArray[np.bool_]  # (u, k)
    unit_bytes: Ints  # (u,)
    capacity: Ints  # (k,)


class Walk(NamedTuple):
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
    value: Ints  # (2,) current value, best value
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


def make_walk(g: Graph, random: Ints, device: Ints, sequence: Ints) -> Walk:
    """Allocate a walk at (device, sequence); `anneal_kernels.settle` evaluates it."""
    n, k = g.compute.shape
    u = len(g.unit_bytes)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    def table() -> Ints:
        # Not cleared: only the part that is used becomes resident memory.
        return np.empty((k, n), dtype=np.int64)

    return Walk(
        random=random.copy(), device=device.copy(), sequence=sequence.copy(), position=ints(n), home=ints(u),
        used=ints(k), load=ints(k), start=ints(n), finish=ints(n), before=ints(n), tail=ints(n), held=ints(k),
        table=table(), best_device=device.copy(), best_sequence=sequence.copy(), value=np.full(2, NEVER),
        unit_list=ints(u), unit_to=ints(u), unit_mark=ints(u), stamp=ints(1), visit=ints(n), queue=ints(n),
        new_start=ints(n), new_finish=ints(n), new_tail=ints(n), new_held=ints(k), new_table=table(),
    )  # fmt: skip
