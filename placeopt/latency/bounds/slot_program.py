"""The dynamic program over ideals that prices placements in slots under a flow, as kernels (see
`placeopt.latency.bounds.flow`).

f[s][I] = min( min over maximal v of I of  f[s][I - v] + phi_v compute[v, pool],
min over ideals I' inside I of  f[s - 1][I'] + phi(I - I') duration(I - I') )

Classes of colocation cross the border of an ideal where they have nodes on both sides. The state
also says what is known of the slots that hold them: in steps of `step` bytes, what one of these
slots takes at least, beside which the rest of its class has to fit on the same accelerator; and,
where an accelerator has two slots, whether one slot holds all crossing classes (then who takes one
of them later takes all) or several do (then nobody can take all).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import NO_VALUE, Flags, Ints
from placeopt.model.compiled import entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.ideals import LatticeArrays

UNKNOWN, ONE, SEVERAL = range(3)
"""How many slots hold the classes that cross the border of an ideal."""

POOL, SLOT = range(2)
"""Last step of a state: an op of the pool, a slot, or a slot that stays empty."""


class FlowArrays(NamedTuple):
    """What the kernel reads (N nodes, m tensors, E order edges)."""

    slot_time: Ints  # (N,) ticks on an accelerator, -1 where it cannot run
    pool_time: Ints  # (N,) ticks in the pool, -1 where it cannot run
    resident: Ints  # (N,) bytes
    capacity: int
    io_time: Ints  # (m,) ticks
    size: Ints  # (m,) consumers
    touch_ptr: Ints  # (N + 1,) tensors that touch a node
    touch_tensor: Ints
    touch_producer: Flags
    edge_ptr: Ints  # (N + 1,) edges by their tail
    edge_head: Ints  # (E,)
    group: Ints  # (N,) colocation class
    group_size: Ints  # (classes,) nodes
    leader: NDArray[
        np.int64
    ]  # (N,) the node that this one follows into the pool, itself where it follows none
    follower_ptr: Ints  # (N + 1,)
    follower: Ints
    # sides, before and behind, on which a slot may part classes: 0 with one slot, 1 with two, else
    # 2
    most_open: int
    step: int  # bytes
    steps: int


class Flow(NamedTuple):
    """A flow in whole numbers, and what it costs at least."""

    node: Ints  # (N,)
    edge: Ints  # (E,)
    low: Ints  # (I,) every node of an ideal at its fastest
    limit: int  # costs from here on do not matter


class SlotTables(NamedTuple):
    """State of the program (I ideals, S slots)."""

    # (I, K, S + 1) where K counts holders (UNKNOWN without them) times steps times steps
    value: Ints
    # (I, K, S + 1) where the value comes from: (ideal K + state) 2 + SLOT or POOL
    back: Ints
    crossing: NDArray[
        np.int64
    ]  # (I, 2) first and last class with nodes inside and outside, -1 without one
    num_crossing: Ints  # (I,)
    live: NDArray[np.int16]  # (I, K) states that can be reached
    num_live: Ints  # (I,)


@entry
def _pool_steps(
    a: FlowArrays, lattice: LatticeArrays, flow: Flow, tables: SlotTables, ideal: int, room: int
) -> None:
    """Let a maximal node of the ideal run in the pool, with the nodes that follow it there."""
    value, states = tables.value, tables.value.shape[1]
    for e in range(lattice.child_ptr[ideal], lattice.child_ptr[ideal + 1]):
        v = a.leader[lattice.child_node[e]]
        first, last = a.follower_ptr[v], a.follower_ptr[v + 1]
        if a.pool_time[v] < 0 or (last > first and lattice.child_node[e] != a.follower[last - 1]):
            continue
        cost, below = np.int64(0), np.int64(ideal)
        for i in range(last, first - 1, -1):  # the followers from behind, then the node itself
            node, under = a.follower[i - 1] if i > first else v, np.int64(-1)
            cost += flow.node[node] * a.pool_time[node]
            for c in range(lattice.child_ptr[below], lattice.child_ptr[below + 1]):
                if lattice.child_node[c] == node:
                    under = np.int64(lattice.child_ideal[c])
            below = under
            if below < 0:
                break
        if below < 0:
            continue
        kept = last - first + 1 == a.group_size[a.group[v]]  # then the same classes cross
        for i in range(tables.num_live[below]):
            b = np.int64(tables.live[below, i])
            to, back = b if kept else 0, (below * states + b) * 2 + POOL
            for s in range(value.shape[2]):
                total = value[below, b, s] + cost
                if total < min(value[ideal, to, s], room):
                    value[ideal, to, s], tables.back[ideal, to, s] = total, back


@entry
def _holders_after(holders: int, behind: int, count: int, before: int) -> int:
    """How many slots hold the `count` crossing classes after a slot with `behind` of them; `before`
    crossed before it.
    """
    if behind == count:
        return ONE
    if behind > 0:
        return SEVERAL
    if holders == ONE or count == 1:
        return ONE
    return holders if count == before else UNKNOWN


@entry
def fill_rows(
    a: FlowArrays, lattice: LatticeArrays, flow: Flow, tables: SlotTables, first: int, last: int
) -> None:
    """Fill the rows `first`..`last`-1 of the tables as far as they can lead to a cost below the
    limit.

    The way down from I to I' is one function on purpose: numba counts a reference to every array of
    a record at each call.
    """
    n, m, slots = len(a.resident), len(a.io_time), tables.value.shape[2] - 1
    value, states, steps = tables.value, tables.value.shape[1], a.steps
    two_slots = states > steps * steps  # on every accelerator
    within = np.zeros(len(a.group_size), np.int64)  # nodes of a class inside I
    chosen = np.zeros(len(a.group_size), np.int64)  # nodes of a class inside S
    ahead = np.zeros(n + 2, np.int64)  # classes of S with nodes inside I'
    behind = np.zeros(n + 2, np.int64)  # classes of S with nodes outside I
    inside = np.zeros(m, np.int64)  # consumers inside S = I - I'
    holds = np.zeros(m, np.bool_)  # producer inside S
    at = np.zeros(n + 2, np.int64)  # ideal at each depth
    edge = np.zeros(n + 2, np.int64)  # next child to try
    taken = np.full(n + 2, n, np.int64)  # node removed last
    compute = np.zeros(n + 2, np.int64)  # ticks of S
    moved = np.zeros(n + 2, np.int64)  # ticks of the tensors that cross its border
    used = np.zeros(n + 2, np.int64)  # bytes
    visits = np.zeros(n + 2, np.int64)  # flow that visits S
    for ideal in range(first, last):
        bits = lattice.bits[ideal]
        value[ideal] = NO_VALUE
        tables.crossing[ideal], tables.num_crossing[ideal] = -1, 0
        if ideal == 0:
            value[ideal, 0] = 0  # for any number of slots, so that a slot may stay empty at no cost
            tables.live[ideal, 0], tables.num_live[ideal] = 0, 1
            continue
        within[:] = 0
        for v in range(n):
            if bits[v >> 6] >> np.uint64(v & 63) & np.uint64(1):
                within[a.group[v]] += 1
        low, high, count = np.int64(-1), np.int64(-1), np.int64(0)
        for g in range(len(within)):
            if 0 < within[g] < a.group_size[g]:
                low = np.int64(g) if low < 0 else low
                high = np.int64(g)
                count += 1
        tables.crossing[ideal, 0], tables.crossing[ideal, 1], tables.num_crossing[ideal] = (
            low,
            high,
            count,
        )
        room = flow.limit - (flow.low[-1] - flow.low[ideal])  # what this prefix may cost
        _pool_steps(a, lattice, flow, tables, ideal, room)
        depth = 0
        at[0], edge[0] = ideal, lattice.child_ptr[ideal]
        while depth >= 0:
            if edge[depth] == lattice.child_ptr[at[depth] + 1]:
                if depth > 0:  # put the node back
                    chosen[a.group[taken[depth]]] -= 1
                    for e in range(a.touch_ptr[taken[depth]], a.touch_ptr[taken[depth] + 1]):
                        if a.touch_producer[e]:
                            holds[a.touch_tensor[e]] = False
                        else:
                            inside[a.touch_tensor[e]] -= 1
                depth -= 1
                continue
            j, below = lattice.child_node[edge[depth]], np.int64(lattice.child_ideal[edge[depth]])
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
            g = a.group[j]
            behind[d] = behind[depth] + (1 if chosen[g] == 0 and within[g] < a.group_size[g] else 0)
            if a.most_open == 0 and behind[d] > 0:  # it stays so
                continue
            ahead[d] = ahead[depth] + (1 if chosen[g] == 0 and within[g] > 1 else 0)
            ahead[d] -= 1 if chosen[g] > 0 and chosen[g] + 1 == within[g] else 0
            chosen[g] += 1
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
            parts = (1 if ahead[d] > 0 else 0) + (1 if behind[d] > 0 else 0)
            before_it, here = tables.num_crossing[below], used[d] // a.step
            first, final = tables.crossing[below, 0], tables.crossing[below, 1]
            opens_low, opens_high = low >= 0 and chosen[low] > 0, high >= 0 and chosen[high] > 0
            for i in range(tables.num_live[below] if parts <= a.most_open else 0):  # close it
                k = np.int64(tables.live[below, i])
                if value[below, k, slots - 1] + cost >= room:  # the last column is the least
                    continue
                holders, first_step, last_step = k // (steps * steps), k // steps % steps, k % steps
                one = two_slots and holders == ONE
                if ahead[d] > 0:
                    held = first_step if one or (first >= 0 and chosen[first] > 0) else 0
                    held = max(held, last_step if one or (final >= 0 and chosen[final] > 0) else 0)
                    if held * a.step + used[d] > a.capacity:
                        continue
                    if two_slots and (
                        ahead[d] < before_it
                        if one
                        else holders == SEVERAL and ahead[d] == before_it
                    ):
                        continue
                most = max(first_step, last_step) if one else 0
                at_low = (
                    here
                    if opens_low
                    else (first_step if low == first else (last_step if low == final else most))
                )
                at_high = (
                    here
                    if opens_high
                    else (last_step if high == final else (first_step if high == first else most))
                )
                to = at_low * steps + at_high
                if two_slots:
                    to += steps * steps * _holders_after(holders, behind[d], count, before_it)
                better = 0  # for most slots nowhere: then nothing is written
                for s in range(slots):
                    better += 1 if value[below, k, s] + cost < value[ideal, to, s + 1] else 0
                for s in range(slots if better > 0 else 0):
                    if value[below, k, s] + cost < value[ideal, to, s + 1]:
                        value[ideal, to, s + 1] = value[below, k, s] + cost
                        tables.back[ideal, to, s + 1] = (below * states + k) * 2 + SLOT
            taken[d], at[d], edge[d] = j, below, lattice.child_ptr[below]
            depth = d
        tables.num_live[ideal] = 0
        for i in range(states):
            if value[ideal, i, slots] < NO_VALUE:
                tables.live[ideal, tables.num_live[ideal]] = i
                tables.num_live[ideal] += 1


@entry
def ideal_sums(lattice: LatticeArrays, amount: Ints) -> Ints:
    """Sum of `amount` (N,) over each ideal."""
    total = np.zeros(len(lattice.child_ptr) - 1, np.int64)
    for ideal in range(1, len(total)):
        e = lattice.child_ptr[ideal]
        total[ideal] = total[lattice.child_ideal[e]] + amount[lattice.child_node[e]]
    return total
