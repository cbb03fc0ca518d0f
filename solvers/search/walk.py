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
    indegree: Ints  # (n,) input edges
    edge_ptr: Ints  # (n + 1,)
    edge_op: Ints  # (edges,)
    edge_tensor: Ints  # (edges,)
    pred_ptr: Ints  # (n + 1,)
    pred_op: Ints  # (edges,)
    pred_tensor: Ints  # (edges,)
    transfer: Ints  # (m, classes) ticks
    link_class: Ints  # (k, k)
    weight: Ints  # (m,) mean ticks of a tensor between devices
    order: Ints  # (n,) a topological order
    unit: Ints  # (n,) unit of each op
    unit_ptr: Ints  # (u + 1,)
    unit_op: Ints  # (n,)
    allowed: NDArray[np.bool_]  # (u, k)
    unit_bytes: Ints  # (u,)
    capacity: Ints  # (k,)
    checkpoints: int


class Walk(NamedTuple):
    """State of one walk and its scratch memory (c checkpoints, each with two copies)."""

    random: Ints  # (3,) generator state
    device: Ints  # (n,) current, with the proposal applied while it is evaluated
    rank: Ints  # (n,)
    home: Ints  # (u,) device of each unit
    used: Ints  # (k,) bytes
    load: Ints  # (k,) ticks of the ops there
    start: Ints  # (n,) of the current placement
    finish: Ints  # (n,)
    before: Ints  # (n,) op that ran before on the same device, -1 for none
    best_device: Ints  # (n,)
    best_rank: Ints  # (n,)
    value: Ints  # (3,) current value, best value, checkpoint that the last replay started from
    # proposal
    unit_list: Ints  # (u,) units that move
    unit_to: Ints  # (u,) their new devices
    unit_mark: Ints  # (u,) stamp
    op_list: Ints  # (2,) ops whose rank changes
    op_rank: Ints  # (2,) their new ranks
    stamp: Ints  # (1,)
    visit: Ints  # (n,) stamp
    queue: Ints  # (n,) ops to visit
    tail: Ints  # (n,) longest path from the start of the op to the end, under `device`
    # simulation
    pending: Ints  # (n,)
    ready: Ints  # (n,)
    new_start: Ints  # (n,)
    new_finish: Ints  # (n,)
    new_before: Ints  # (n,)
    heap_key: Ints  # (k, n)
    heap_op: Ints  # (k, n)
    later_key: Ints  # (k, n)
    later_op: Ints  # (k, n)
    size: Ints  # (k,)
    later_size: Ints  # (k,)
    running: Ints  # (k,)
    next_time: Ints  # (k,)
    begun: Ints  # (k,) ticks of ops started
    last: Ints  # (k,) op started last
    touched: Ints  # (k,)
    is_touched: NDArray[np.bool_]  # (k,)
    # checkpoints
    saved_clock: Ints  # (c, 2, 2) time, number of ops done
    saved_device: Ints  # (c, 2, 6, k) size, later size, running, next time, begun, last
    saved_op: Ints  # (c, 2, 4, n) pending, ready, keys and ops of all heaps
    side: Ints  # (c,) which copy belongs to the current placement
    valid: NDArray[np.bool_]  # (c, 2)


def make_walk(g: Graph, random: Ints, device: Ints, rank: Ints) -> Walk:
    """Allocate a walk at (device, rank); `anneal_kernels.settle` evaluates it."""
    n, k = g.compute.shape
    u, c = len(g.unit_bytes), g.checkpoints

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    def heap() -> Ints:
        # Not cleared: only the part that is used becomes resident memory.
        return np.empty((k, n), dtype=np.int64)

    return Walk(
        random=random.copy(), device=device.copy(), rank=rank.copy(), home=ints(u), used=ints(k), load=ints(k),
        start=ints(n), finish=ints(n), before=ints(n), best_device=device.copy(), best_rank=rank.copy(),
        value=np.full(3, NEVER), unit_list=ints(u), unit_to=ints(u), unit_mark=ints(u), op_list=ints(2),
        op_rank=ints(2), stamp=ints(1), visit=ints(n), queue=ints(n), tail=ints(n), pending=ints(n), ready=ints(n),
        new_start=ints(n), new_finish=ints(n), new_before=ints(n), heap_key=heap(), heap_op=heap(),
        later_key=heap(), later_op=heap(), size=ints(k), later_size=ints(k), running=ints(k), next_time=ints(k),
        begun=ints(k), last=ints(k), touched=ints(k), is_touched=np.zeros(k, dtype=np.bool_),
        saved_clock=ints(c, 2, 2), saved_device=ints(c, 2, 6, k),
        saved_op=np.empty((c, 2, 4, n), dtype=np.int64), side=ints(c), valid=np.zeros((c, 2), dtype=np.bool_),
    )  # fmt: skip
