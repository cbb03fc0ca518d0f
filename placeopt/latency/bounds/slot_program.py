"""The dynamic program over ideals that prices placements in slots under a flow, as kernels (see `placeopt.latency.bounds.flow`).

f[s][I] = min( min over maximal v of I of  f[s][I - v] + phi_v compute[v, pool],
min over ideals I' inside I of  f[s - 1][I'] + phi(I - I') duration(I - I') )
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np

from placeopt.model.arrays import NO_VALUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.ideals import LatticeArrays

POOL, SLOT, UNUSED = range(3)
"""Last step of a state: an op of the pool, a slot, or a slot that stays empty."""


class FlowArrays(NamedTuple):
    """What the kernel reads (N nodes, m tensors, E order edges)."""

    slot_time: NDArray[np.int64]  # (N,) ticks on an accelerator, -1 where it cannot run
    pool_time: NDArray[np.int64]  # (N,) ticks in the pool, -1 where it cannot run
    resident: NDArray[np.int64]  # (N,) bytes
    capacity: int
    io_time: NDArray[np.int64]  # (m,) ticks
    size: NDArray[np.int64]  # (m,) consumers
    touch_ptr: NDArray[np.int64]  # (N + 1,) tensors that touch a node
    touch_tensor: NDArray[np.int64]
    touch_producer: NDArray[np.bool_]
    edge_ptr: NDArray[np.int64]  # (N + 1,) edges by their tail
    edge_head: NDArray[np.int64]  # (E,)


class Flow(NamedTuple):
    """A flow in whole numbers, and what it costs at least."""

    node: NDArray[np.int64]  # (N,)
    edge: NDArray[np.int64]  # (E,)
    low: NDArray[np.int64]  # (I,) every node of an ideal at its fastest
    limit: int  # costs from here on do not matter


class SlotTables(NamedTuple):
    """State of the program (I ideals, S slots)."""

    value: NDArray[np.int64]  # (I, S + 1)
    back_ideal: NDArray[np.int32]  # (I, S + 1)
    back_choice: NDArray[np.int8]  # (I, S + 1)


@numba.njit(cache=True, nogil=True)
def _pool_steps(a: FlowArrays, lattice: LatticeArrays, flow: Flow, tables: SlotTables, ideal: int, room: int) -> None:
    """Let a maximal node of the ideal run in the pool."""
    row = tables.value[ideal]
    for e in range(lattice.child_ptr[ideal], lattice.child_ptr[ideal + 1]):
        v, below = lattice.child_node[e], lattice.child_ideal[e]
        if a.pool_time[v] < 0:
            continue
        cost = flow.node[v] * a.pool_time[v]
        for s in range(len(row)):
            if tables.value[below, s] < NO_VALUE and tables.value[below, s] + cost < min(row[s], room):
                row[s] = tables.value[below, s] + cost
                tables.back_ideal[ideal, s] = below
                tables.back_choice[ideal, s] = POOL


@numba.njit(cache=True, nogil=True)
def _leave_unused(tables: SlotTables, ideal: int) -> None:
    """Let a slot stay empty where that is better."""
    row = tables.value[ideal]
    for s in range(len(row) - 1):
        if row[s] < row[s + 1]:
            row[s + 1] = row[s]
            tables.back_ideal[ideal, s + 1] = ideal
            tables.back_choice[ideal, s + 1] = UNUSED


@numba.njit(cache=True, nogil=True)
def fill_rows(a: FlowArrays, lattice: LatticeArrays, flow: Flow, tables: SlotTables, first: int, last: int) -> None:
    """Fill the rows `first`..`last`-1 of the tables as far as they can lead to a cost below the limit.

    The way down from I to I' is one function on purpose: numba counts a reference to every array of a record at each call.
    """
    n, m, slots = len(a.resident), len(a.io_time), tables.value.shape[1] - 1
    inside = np.zeros(m, dtype=np.int64)  # consumers inside S = I - I'
    holds = np.zeros(m, dtype=np.bool_)  # producer inside S
    at = np.zeros(n + 2, dtype=np.int64)  # ideal at each depth
    edge = np.zeros(n + 2, dtype=np.int64)  # next child to try
    taken = np.full(n + 2, n, dtype=np.int64)  # node removed last
    compute = np.zeros(n + 2, dtype=np.int64)  # ticks of S
    moved = np.zeros(n + 2, dtype=np.int64)  # ticks of the tensors that cross its border
    used = np.zeros(n + 2, dtype=np.int64)  # bytes
    visits = np.zeros(n + 2, dtype=np.int64)  # flow that visits S
    for ideal in range(first, last):
        row, bits = tables.value[ideal], lattice.bits[ideal]
        row[:] = 0 if ideal == 0 else NO_VALUE
        if ideal == 0:
            continue
        room = flow.limit - (flow.low[-1] - flow.low[ideal])  # what this prefix may cost
        _pool_steps(a, lattice, flow, tables, ideal, room)
        depth = 0
        at[0], edge[0] = ideal, lattice.child_ptr[ideal]
        while depth >= 0:
            if edge[depth] == lattice.child_ptr[at[depth] + 1]:
                if depth > 0:  # put the node back
                    for e in range(a.touch_ptr[taken[depth]], a.touch_ptr[taken[depth] + 1]):
                        if a.touch_producer[e]:
                            holds[a.touch_tensor[e]] = False
                        else:
                            inside[a.touch_tensor[e]] -= 1
                depth -= 1
                continue
            j, below = lattice.child_node[edge[depth]], lattice.child_ideal[edge[depth]]
            edge[depth] += 1
            if j > taken[depth] or a.slot_time[j] < 0 or used[depth] + a.resident[j] > a.capacity:
                continue
            d = depth + 1
            visits[d] = visits[depth] + flow.node[j]
            for e in range(a.edge_ptr[j], a.edge_ptr[j + 1]):
                c = a.edge_head[e]
                if bits[c >> 6] >> np.uint64(c & 63) & np.uint64(1):  # then c is in the slot
                    visits[d] -= flow.edge[e]
            compute[d] = compute[depth] + a.slot_time[j]
            if visits[d] * compute[d] + flow.low[below] >= room:  # grows with the slot
                continue
            used[d], moved[d] = used[depth] + a.resident[j], moved[depth]
            for e in range(a.touch_ptr[j], a.touch_ptr[j + 1]):
                t = a.touch_tensor[e]
                if a.touch_producer[e]:
                    before, after = inside[t] > 0, inside[t] < a.size[t]
                    holds[t] = True
                else:
                    before = inside[t] < a.size[t] if holds[t] else inside[t] > 0
                    after = inside[t] + 1 < a.size[t] if holds[t] else True
                    inside[t] += 1
                if before != after:
                    moved[d] += a.io_time[t] if after else -a.io_time[t]
            cost = visits[d] * (compute[d] + moved[d])
            for s in range(slots):  # close the slot
                if tables.value[below, s] < NO_VALUE and tables.value[below, s] + cost < min(row[s + 1], room):
                    row[s + 1] = tables.value[below, s] + cost
                    tables.back_ideal[ideal, s + 1] = below
                    tables.back_choice[ideal, s + 1] = SLOT
            taken[d], at[d], edge[d] = j, below, lattice.child_ptr[below]
            depth = d
        _leave_unused(tables, ideal)


@numba.njit(cache=True, nogil=True)
def ideal_sums(lattice: LatticeArrays, amount: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of `amount` (N,) over each ideal."""
    total = np.zeros(len(lattice.child_ptr) - 1, dtype=np.int64)
    for ideal in range(1, len(total)):
        e = lattice.child_ptr[ideal]
        total[ideal] = total[lattice.child_ideal[e]] + amount[lattice.child_node[e]]
    return total
