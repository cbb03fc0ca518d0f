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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import NO_VALUE, Flags, Ints
from placeopt.model.compiled import entry, inlined, inner_kernel, row_of, uncounted_kernel
from placeopt.model.ideals import Lattice, contains, cross, put_back

UNKNOWN, ONE, SEVERAL = range(3)
"""How many slots hold the classes that cross the border of an ideal."""

FREE, TOGETHER, APART, UNRELATED = range(4)
"""Whether two nodes share a slot: as is best, always, never, or never and there is no edge."""

POOL, SLOT = range(2)
"""Last step of a state: an op of the pool, a slot, or a slot that stays empty."""

VALUES, REST, LABELS = range(3)
"""What a walk through the steps finds: `SlotTables.value`, `rest` or `labels`."""


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
    touch_role: Ints  # 1 producer, 0 consumer
    edge_ptr: Ints  # (N + 1,) pairs of nodes, edges above all, by the one that comes first
    edge_head: Ints  # (E,) the other one
    edge_rule: NDArray[np.int8]  # (E,) FREE, TOGETHER, APART, or UNRELATED
    group: Ints  # (N,) colocation class
    group_size: Ints  # (classes,) nodes
    # (N,) the node that this one follows into the pool, itself where it follows none
    leader: Ints
    follower_ptr: Ints  # (N + 1,)
    follower: Ints
    # sides, before and behind, on which a slot may part classes: 0 with one slot, 1 with two, else
    # 2
    most_open: int
    step: int  # bytes
    steps: int
    between_ptr: Ints  # (N + 1,) what was left out before or behind a node
    between: Ints  # slots that hold a node before and one behind hold it, too
    between_behind: Flags  # whether the node is behind it
    between_time: Ints  # (B,) ticks on an accelerator, -1 where it cannot run
    between_resident: Ints  # (B,) bytes


class Flow(NamedTuple):
    """A flow in whole numbers, and what it costs at least."""

    node: Ints  # (N,)
    edge: Ints  # (E,)
    low: Ints  # (I,) every node of an ideal at its fastest
    dead: Flags  # (I,) ideals that no placement below a known value passes
    limit: int  # costs from here on do not matter
    most: int = NO_VALUE  # the same in ticks


class Labels(NamedTuple):
    """Placements of the nodes of an ideal, each better in something than every other one: when the
    nodes are ready that others wait for, or what it leaves to the rest (L labels, at most W nodes
    with an edge that leaves an ideal, B in all ideals).
    """

    border_ptr: Ints  # (I + 1,)
    border: Ints  # (B,) nodes with an edge that leaves the ideal
    leaves: Ints  # (B,) flow on these edges
    tail: Ints  # (B,) ticks that the rest takes after the node at least
    gone: Ints  # (I,) flow that ends inside
    ends: Ints  # (N,) flow that ends at a node
    ptr: Ints  # (I + 1,) labels of an ideal
    time: Ints  # (L, W) ticks when the border is ready
    last: Ints  # (L,) ticks when all of the ideal is
    ended: Ints  # (L,) flow that ended, each times its ticks
    state: Ints  # (L,)
    used: Ints  # (L,) slots
    came: Ints  # (L,) 2 times the label before, + SLOT or POOL
    counts: Ints  # (2,) labels so far; those that were merged
    width: int  # labels of an ideal at most


def no_labels() -> Labels:
    """Return arrays without any."""
    none, table = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    border = none, none, none, none
    return Labels(*border, none, none, none, table, none, none, none, none, none, none, 0)


class SlotTables(NamedTuple):
    """State of the program (I ideals, S slots)."""

    # (I, K, S + 1) where K counts holders (UNKNOWN without them) times steps times steps
    value: Ints
    # (I, K, S + 1) where the value comes from: (ideal K + state) 2 + SLOT or POOL
    back: Ints
    # (I, S + 1) what else placements that pass an ideal cost at least, with so many slots left
    rest: Ints
    # (I, 2) first and last class with nodes inside and outside, -1 without one
    crossing: Ints
    num_crossing: Ints  # (I,)
    live: NDArray[np.int16]  # (I, K) states that can be reached
    num_live: Ints  # (I,)
    labels: Labels


class _Way(NamedTuple):
    """The way down from I to I': the slot S = I - I', a node per depth."""

    within: Ints  # (classes,) nodes inside I
    chosen: Ints  # (classes,) nodes inside S
    inside: Ints  # (m,) consumers inside S
    holds: Flags  # (m,) producer inside S
    before: Ints  # (B,) nodes of S before what was left out
    behind_it: Ints  # (B,) nodes of S behind it
    ahead: Ints  # (N + 2,) classes of S with nodes inside I', at each depth as all below
    behind: Ints  # classes of S with nodes outside I
    at: Ints  # ideal
    edge: Ints  # next child to try
    taken: Ints  # node removed last
    compute: Ints  # ticks of S
    moved: Ints  # ticks of the tensors that cross its border
    used: Ints  # bytes
    visits: Ints  # flow that visits S
    place: Ints  # (N + 2,) where the node is in the border of the ideal below
    enters: Ints  # whether a node of that border has an edge into S, by place
    ready: Ints  # (N + 2,) ticks when a node may begin
    when: Ints  # (N + 2,) ticks when it ends


@inner_kernel
def _way(nodes: int, tensors: int, classes: int, between: int) -> _Way:
    """Return a way that has not begun."""
    d = nodes + 2
    within, chosen = np.zeros((2, classes), np.int64)
    before, behind_it = np.zeros((2, between), np.int64)
    ahead, behind, at, edge, compute, moved, used, visits = np.zeros((8, d), np.int64)
    place, enters, ready, when = np.zeros((4, d), np.int64)
    return _Way(
        within,
        chosen,
        np.zeros(tensors, np.int64),
        np.zeros(tensors, np.bool_),
        before,
        behind_it,
        ahead,
        behind,
        at,
        edge,
        np.full(d, nodes),
        compute,
        moved,
        used,
        visits,
        place,
        enters,
        ready,
        when,
    )


@inlined
def _lower(
    tables: SlotTables, ideal: int, to: int, below: int, state: int, s: int, cost: int, step: int
) -> None:
    """Enter a value that is lower than what stands there."""
    tables.value[ideal, to, s] = cost
    tables.back[ideal, to, s] = (below * tables.value.shape[1] + state) * 2 + step


@inlined
def _without(lattice: Lattice, ideal: int, node: int) -> int:
    """Return the ideal without a maximal node, -1 where the node is not maximal."""
    for c in row_of(lattice.child_ptr, ideal):
        if lattice.child_node[c] == node:
            return int(lattice.child_ideal[c])
    return -1


@inlined
def _copy_label(labels: Labels, here: int, there: int, border: int) -> None:
    """Write a label over another one."""
    for i in range(border):
        labels.time[there, i] = labels.time[here, i]
    labels.last[there], labels.ended[there] = labels.last[here], labels.ended[here]
    labels.state[there], labels.used[there] = labels.state[here], labels.used[here]
    labels.came[there] = labels.came[here]


@inlined
def _merge_label(labels: Labels, ideal: int, number: int, border: int) -> None:
    """Merge a label with the nearest one of the ideal: to what both are no better than."""
    nearest, least = np.int64(0), np.int64(NO_VALUE)
    for other in range(labels.ptr[ideal], labels.counts[0]):
        far = abs(labels.last[other] - labels.last[number])
        for i in range(border):
            far = max(far, abs(labels.time[other, i] - labels.time[number, i]))
        if far < least:
            nearest, least = np.int64(other), far
    for i in range(border):
        labels.time[nearest, i] = min(labels.time[nearest, i], labels.time[number, i])
    labels.last[nearest] = min(labels.last[nearest], labels.last[number])
    labels.ended[nearest] = min(labels.ended[nearest], labels.ended[number])
    labels.used[nearest] = min(labels.used[nearest], labels.used[number])
    if labels.state[nearest] != labels.state[number]:
        labels.state[nearest] = 0  # where nothing is known
    labels.counts[1] += 1


@inlined
def _may_end(flow: Flow, tables: SlotTables, ideal: int, number: int) -> bool:
    """Whether the rest may end below the limit, by the flow and by each node of the border."""
    labels = tables.labels
    first, last = labels.border_ptr[ideal], labels.border_ptr[ideal + 1]
    rest = tables.rest[ideal, tables.rest.shape[1] - 1 - labels.used[number]]
    if rest == NO_VALUE or labels.last[number] >= flow.most:
        return False
    total = labels.ended[number] + rest
    for i in range(last - first):
        ready = labels.time[number, i]
        if ready + labels.tail[first + i] >= flow.most:
            return False
        total += labels.leaves[first + i] * ready
    return bool(total < flow.limit)


@inlined
def _add_label(flow: Flow, tables: SlotTables, ideal: int, number: int) -> None:
    """Keep a label that stands behind all others, if the rest may end below the limit and no other
    of the ideal is as good; those that are no better go.
    """
    labels = tables.labels
    if not _may_end(flow, tables, ideal, number):
        return
    border = labels.border_ptr[ideal + 1] - labels.border_ptr[ideal]
    other = labels.ptr[ideal]
    while other < labels.counts[0]:
        better = worse = labels.state[other] == labels.state[number]
        better = better and labels.used[other] <= labels.used[number]
        worse = worse and labels.used[other] >= labels.used[number]
        better = better and labels.last[other] <= labels.last[number]
        worse = worse and labels.last[other] >= labels.last[number]
        for i in range(border):
            better = better and labels.time[other, i] <= labels.time[number, i]
            worse = worse and labels.time[other, i] >= labels.time[number, i]
        if better:
            return
        if worse:
            labels.counts[0] -= 1
            _copy_label(labels, labels.counts[0], other, border)
        else:
            other += 1
    if labels.counts[0] - labels.ptr[ideal] == labels.width:
        _merge_label(labels, ideal, number, border)
    else:
        _copy_label(labels, number, labels.counts[0], border)
        labels.counts[0] += 1


@inlined
def _pass_on(a: FlowArrays, way: _Way, node: int, ticks: int) -> None:
    """Note when a node ends, and let those behind it begin no earlier."""
    way.when[node] = ticks
    for e in row_of(a.edge_ptr, node):
        way.ready[a.edge_head[e]] = max(way.ready[a.edge_head[e]], ticks)


@inlined
def _label_by_pool(
    a: FlowArrays,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    ideal: int,
    below: int,
    leader: int,
) -> None:
    """Go from every label of the ideal below to this one by a step of the pool, where each node
    begins when all before it are ready.
    """
    labels, first, last = tables.labels, a.follower_ptr[leader], a.follower_ptr[leader + 1]
    kept = last - first + 1 == a.group_size[a.group[leader]]
    for label in row_of(labels.ptr, below):
        number = labels.counts[0]
        labels.last[number], labels.ended[number] = labels.last[label], labels.ended[label]
        for i in range(first - 1, last):  # the node itself, then its followers
            way.ready[a.follower[i] if i >= first else leader] = 0
        for i in range(labels.border_ptr[below + 1] - labels.border_ptr[below]):
            _pass_on(a, way, labels.border[labels.border_ptr[below] + i], labels.time[label, i])
        for i in range(first - 1, last):
            v = a.follower[i] if i >= first else leader
            _pass_on(a, way, v, way.ready[v] + a.pool_time[v])
            labels.last[number] = max(labels.last[number], way.when[v])
            labels.ended[number] += labels.ends[v] * way.when[v]
        for i in range(labels.border_ptr[ideal + 1] - labels.border_ptr[ideal]):
            labels.time[number, i] = way.when[labels.border[labels.border_ptr[ideal] + i]]
        labels.state[number] = labels.state[label] if kept else 0
        labels.used[number], labels.came[number] = labels.used[label], 2 * label + POOL
        _add_label(flow, tables, ideal, number)


@inlined
def _pool_steps(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    ideal: int,
    room: int,
    mode: int,
) -> None:
    """Let a maximal node of the ideal run in the pool, with the nodes that follow it there."""
    for e in row_of(lattice.child_ptr, ideal):
        v = a.leader[lattice.child_node[e]]
        first, last = a.follower_ptr[v], a.follower_ptr[v + 1]
        if a.pool_time[v] < 0 or (last > first and lattice.child_node[e] != a.follower[last - 1]):
            continue
        cost, below = np.int64(0), np.int64(ideal)
        for i in range(last, first - 1, -1):  # the followers from behind, then the node itself
            node = a.follower[i - 1] if i > first else v
            cost += flow.node[node] * a.pool_time[node]
            below = _without(lattice, below, node)
            if below < 0:
                break
        if below < 0:
            continue
        if mode == REST:
            _lower_rest(tables, ideal, below, cost, 0)
        elif mode == LABELS:
            _label_by_pool(a, flow, tables, way, ideal, below, v)
        else:
            kept = last - first + 1 == a.group_size[a.group[v]]  # then the same classes cross
            _extend_by_pool(tables, ideal, below, kept, cost, room)


@inlined
def _lower_rest(tables: SlotTables, ideal: int, below: int, cost: int, slots: int) -> None:
    """Go back from an ideal to one below by a step that takes so many slots."""
    for left in range(tables.rest.shape[1] - slots):
        total = tables.rest[ideal, left] + cost
        if total < tables.rest[below, left + slots]:
            tables.rest[below, left + slots] = total


@inlined
def _extend_by_pool(
    tables: SlotTables, ideal: int, below: int, kept: bool, cost: int, room: int
) -> None:
    """Go from every state of the ideal below to this one by a step of the pool."""
    for i in range(tables.num_live[below]):
        state = np.int64(tables.live[below, i])
        to = state if kept else np.int64(0)
        for s in range(tables.value.shape[2]):
            total = tables.value[below, state, s] + cost
            if total < min(tables.value[ideal, to, s], room):
                _lower(tables, ideal, to, below, state, s, total, POOL)


@inlined
def _cross(a: FlowArrays, lattice: Lattice, tables: SlotTables, way: _Way, ideal: int) -> None:
    """Note which classes have nodes on both sides of the border of an ideal."""
    for g in range(len(way.within)):
        way.within[g] = 0
    tables.crossing[ideal, 0] = tables.crossing[ideal, 1] = -1
    tables.num_crossing[ideal] = 0
    for v in range(len(a.resident)):
        if contains(lattice.bits, ideal, v):
            way.within[a.group[v]] += 1
    for g in range(len(way.within)):
        if 0 < way.within[g] < a.group_size[g]:
            if tables.num_crossing[ideal] == 0:
                tables.crossing[ideal, 0] = g
            tables.crossing[ideal, 1] = g
            tables.num_crossing[ideal] += 1


@inlined
def _put_back(a: FlowArrays, way: _Way, node: int) -> None:
    """Take a node out of the slot again."""
    way.chosen[a.group[node]] -= 1
    put_back(a, node, way.inside, way.holds)
    for e in row_of(a.between_ptr, node):
        if a.between_behind[e]:
            way.behind_it[a.between[e]] -= 1
        else:
            way.before[a.between[e]] -= 1


@inlined
def _drawn_in(a: FlowArrays, way: _Way, node: int) -> tuple[int, int]:
    """Return ticks and bytes of what was left out between this node and the slot, whose nodes come
    in from behind. The ticks are -1 where it cannot run there.
    """
    ticks, size = 0, 0
    for e in row_of(a.between_ptr, node):
        b = a.between[e]
        if not a.between_behind[e] and way.before[b] == 0 and way.behind_it[b] > 0:
            size += a.between_resident[b]
            ticks = -1 if min(ticks, a.between_time[b]) < 0 else ticks + a.between_time[b]
    return ticks, size


@inlined
def _may_take(
    a: FlowArrays, lattice: Lattice, flow: Flow, way: _Way, depth: int, node: int, room: int
) -> bool:
    """Whether a slot with this node too can lead to a cost below the limit; what it computes and
    takes, who visits it, and which classes it leaves behind.
    """
    if node > way.taken[depth] or a.slot_time[node] < 0:
        return False
    ticks, size = _drawn_in(a, way, node)
    if ticks < 0 or way.used[depth] + a.resident[node] + size > a.capacity:
        return False
    d, g, below = depth + 1, a.group[node], lattice.child_ideal[way.edge[depth] - 1]
    way.visits[d] = way.visits[depth] + flow.node[node]
    for e in row_of(a.edge_ptr, node):
        other, rule = a.edge_head[e], a.edge_rule[e]
        # in the slot, whose nodes come in from behind
        inside = contains(lattice.bits, way.at[0], other) and not contains(
            lattice.bits, below, other
        )
        if rule >= APART if inside else rule == TOGETHER:
            return False
        if inside:
            way.visits[d] -= flow.edge[e]
    way.compute[d] = way.compute[depth] + a.slot_time[node] + ticks
    way.used[d] = way.used[depth] + a.resident[node] + size
    if way.visits[d] * way.compute[d] + flow.low[below] >= room:  # grows with the slot
        return False
    opens = way.chosen[g] == 0 and way.within[g] < a.group_size[g]
    way.behind[d] = way.behind[depth] + (1 if opens else 0)
    return a.most_open > 0 or way.behind[d] == 0  # it stays so


@inlined
def _take(a: FlowArrays, way: _Way, depth: int, node: int) -> None:
    """Put a node into the slot."""
    d, g = depth + 1, a.group[node]
    way.ahead[d] = way.ahead[depth] + (1 if way.chosen[g] == 0 and way.within[g] > 1 else 0)
    way.ahead[d] -= 1 if way.chosen[g] > 0 and way.chosen[g] + 1 == way.within[g] else 0
    way.chosen[g] += 1
    way.moved[d] = way.moved[depth]
    for e in row_of(a.touch_ptr, node):
        t = a.touch_tensor[e]
        before, after = cross(a.touch_role[e] == 1, t, a.size[t], way.inside, way.holds)
        if before != after:
            way.moved[d] += a.io_time[t] if after else -a.io_time[t]
    for e in row_of(a.between_ptr, node):
        if a.between_behind[e]:
            way.behind_it[a.between[e]] += 1
        else:
            way.before[a.between[e]] += 1


@inlined
def _fits(
    a: FlowArrays, tables: SlotTables, way: _Way, below: int, state: int, d: int, two_slots: bool
) -> bool:
    """Whether the slot fits beside what holds the classes that it shares with the ideal below."""
    if way.ahead[d] == 0:
        return True
    first, final = tables.crossing[below, 0], tables.crossing[below, 1]
    holders, first_step = state // (a.steps * a.steps), state // a.steps % a.steps
    one = two_slots and holders == ONE
    held = first_step if one or (first >= 0 and way.chosen[first] > 0) else 0
    if one or (final >= 0 and way.chosen[final] > 0):
        held = max(held, state % a.steps)
    if held * a.step + way.used[d] > a.capacity:
        return False
    if one:
        return way.ahead[d] == tables.num_crossing[below]
    return not (two_slots and holders == SEVERAL and way.ahead[d] == tables.num_crossing[below])


@inlined
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


@inlined
def _state_after(
    a: FlowArrays, tables: SlotTables, way: _Way, below: int, state: int, d: int, two_slots: bool
) -> int:
    """Return the state of the ideal after the slot, from a state of the ideal below."""
    low, high = tables.crossing[way.at[0], 0], tables.crossing[way.at[0], 1]
    first, final = tables.crossing[below, 0], tables.crossing[below, 1]
    holders, steps = state // (a.steps * a.steps), a.steps
    first_step, last_step, here = state // steps % steps, state % steps, way.used[d] // a.step
    at_low = max(first_step, last_step) if two_slots and holders == ONE else 0
    at_high = at_low
    if low == final:
        at_low = last_step
    if low == first:
        at_low = first_step
    if low >= 0 and way.chosen[low] > 0:
        at_low = here
    if high == first:
        at_high = first_step
    if high == final:
        at_high = last_step
    if high >= 0 and way.chosen[high] > 0:
        at_high = here
    to = at_low * steps + at_high
    if two_slots:
        count, before = tables.num_crossing[way.at[0]], tables.num_crossing[below]
        to += steps * steps * _holders_after(holders, way.behind[d], count, before)
    return to


@inlined
def _extend_by_slot(
    a: FlowArrays, tables: SlotTables, way: _Way, below: int, d: int, room: int
) -> None:
    """Go from every state of the ideal below to the one on top of the way by the slot between."""
    value, ideal, slots = tables.value, way.at[0], tables.value.shape[2] - 1
    two_slots = value.shape[1] > a.steps * a.steps  # on every accelerator
    cost = way.visits[d] * (way.compute[d] + way.moved[d])
    for i in range(tables.num_live[below]):
        state = np.int64(tables.live[below, i])
        if value[below, state, slots - 1] + cost >= room:  # the last column is the least
            continue
        if not _fits(a, tables, way, below, state, d, two_slots):
            continue
        to = _state_after(a, tables, way, below, state, d, two_slots)
        better = 0  # for most slots nowhere: then nothing is written
        for s in range(slots):
            better += 1 if value[below, state, s] + cost < value[ideal, to, s + 1] else 0
        for s in range(slots if better > 0 else 0):
            total = value[below, state, s] + cost
            if total < value[ideal, to, s + 1]:
                _lower(tables, ideal, to, below, state, s + 1, total, SLOT)


@inlined
def _label_by_slot(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    below: int,
    d: int,
) -> None:
    """Go from every label of the ideal below to the one on top of the way by the slot between,
    which begins when all that enters it is ready.
    """
    labels, ideal, slots = tables.labels, way.at[0], tables.value.shape[2] - 1
    two_slots = tables.value.shape[1] > a.steps * a.steps
    first, last = labels.border_ptr[below], labels.border_ptr[below + 1]
    for i in range(last - first if labels.ptr[below] < labels.ptr[below + 1] else 0):
        u = labels.border[first + i]
        way.place[u], way.enters[i] = i, 0
        for e in row_of(a.edge_ptr, u):
            v = a.edge_head[e]
            if contains(lattice.bits, ideal, v) and not contains(lattice.bits, below, v):
                way.enters[i] = 1
    for label in row_of(labels.ptr, below):
        state = labels.state[label]
        if labels.used[label] == slots or not _fits(a, tables, way, below, state, d, two_slots):
            continue
        end, number = np.int64(0), labels.counts[0]
        for i in range(last - first):
            if way.enters[i] == 1:
                end = max(end, labels.time[label, i])
        end += way.compute[d] + way.moved[d]
        for i in range(labels.border_ptr[ideal + 1] - labels.border_ptr[ideal]):
            v = labels.border[labels.border_ptr[ideal] + i]
            known = contains(lattice.bits, below, v)
            labels.time[number, i] = labels.time[label, way.place[v]] if known else end
        labels.last[number] = max(labels.last[label], end)
        labels.ended[number] = labels.ended[label]
        labels.ended[number] += (labels.gone[ideal] - labels.gone[below]) * end
        labels.state[number] = _state_after(a, tables, way, below, state, d, two_slots)
        labels.used[number], labels.came[number] = labels.used[label] + 1, 2 * label + SLOT
        _add_label(flow, tables, ideal, number)


@inlined
def _slot_steps(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    ideal: int,
    room: int,
    mode: int,
) -> None:
    """Let every set of nodes on the way down from the ideal be a slot."""
    depth = 0
    way.at[0], way.edge[0] = ideal, lattice.child_ptr[ideal]
    while depth >= 0:
        if way.edge[depth] == lattice.child_ptr[way.at[depth] + 1]:
            if depth > 0:
                _put_back(a, way, way.taken[depth])
            depth -= 1
            continue
        node = lattice.child_node[way.edge[depth]]
        below = np.int64(lattice.child_ideal[way.edge[depth]])
        way.edge[depth] += 1
        if not _may_take(a, lattice, flow, way, depth, node, room):
            continue
        _take(a, way, depth, node)
        depth += 1
        parts = (1 if way.ahead[depth] > 0 else 0) + (1 if way.behind[depth] > 0 else 0)
        if parts > a.most_open:
            pass
        elif mode == REST:
            cost = way.visits[depth] * (way.compute[depth] + way.moved[depth])
            _lower_rest(tables, ideal, below, cost, 1)
        elif mode == LABELS:
            _label_by_slot(a, lattice, flow, tables, way, below, depth)
        else:
            _extend_by_slot(a, tables, way, below, depth, room)
        way.taken[depth], way.at[depth] = node, below
        way.edge[depth] = lattice.child_ptr[below]


@uncounted_kernel
def _fill(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    first: int,
    last: int,
) -> None:
    """Fill the rows, with what the way needs at hand."""
    states, slots = tables.value.shape[1], tables.value.shape[2] - 1
    for ideal in range(first, last):
        for i in range(states):
            for s in range(slots + 1):
                # the empty one for any number of slots, so that a slot may stay empty at no cost
                tables.value[ideal, i, s] = 0 if ideal == 0 and i == 0 else NO_VALUE
        _cross(a, lattice, tables, way, ideal)
        if ideal > 0 and not flow.dead[ideal]:
            room = flow.limit - (flow.low[-1] - flow.low[ideal])  # what this prefix may cost
            _pool_steps(a, lattice, flow, tables, way, ideal, room, VALUES)
            _slot_steps(a, lattice, flow, tables, way, ideal, room, VALUES)
        tables.num_live[ideal] = 0
        for i in range(states):
            if tables.value[ideal, i, slots] < NO_VALUE:
                tables.live[ideal, tables.num_live[ideal]] = i
                tables.num_live[ideal] += 1


@entry
def fill_rows(
    a: FlowArrays, lattice: Lattice, flow: Flow, tables: SlotTables, first: int, last: int
) -> None:
    """Fill the rows `first`..`last`-1 of the tables as far as they can lead to a cost below the
    limit.
    """
    way = _way(len(a.resident), len(a.io_time), len(a.group_size), len(a.between_time))
    _fill(a, lattice, flow, tables, way, first, last)


@uncounted_kernel
def _go_back(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    first: int,
    last: int,
) -> None:
    """Find what is dead among the rows, with what the way needs at hand."""
    slots = tables.rest.shape[1] - 1
    for ideal in range(last - 1, first - 1, -1):
        for s in range(slots + 1 if ideal == len(tables.rest) - 1 else 0):
            tables.rest[ideal, s] = 0
        flow.dead[ideal] = True
        for i in range(tables.num_live[ideal]):
            for s in range(slots + 1):
                left = flow.limit - tables.value[ideal, tables.live[ideal, i], s]
                if tables.rest[ideal, slots - s] < left:
                    flow.dead[ideal] = False
        if ideal > 0 and not flow.dead[ideal]:
            _cross(a, lattice, tables, way, ideal)
            room = flow.limit - tables.rest[ideal, slots]
            _pool_steps(a, lattice, flow, tables, way, ideal, room, REST)
            _slot_steps(a, lattice, flow, tables, way, ideal, room, REST)


@entry
def find_dead(
    a: FlowArrays, lattice: Lattice, flow: Flow, tables: SlotTables, first: int, last: int
) -> None:
    """Go back through the rows `last` - 1..`first` of tables that are filled, and note which ideals
    no placement below the limit passes.

    What comes after an ideal forgets memory and classes, which relaxes it.
    """
    way = _way(len(a.resident), len(a.io_time), len(a.group_size), len(a.between_time))
    _go_back(a, lattice, flow, tables, way, first, last)


@uncounted_kernel
def _label(
    a: FlowArrays,
    lattice: Lattice,
    flow: Flow,
    tables: SlotTables,
    way: _Way,
    first: int,
    last: int,
) -> None:
    """Label the rows, with what the way needs at hand."""
    labels, slots = tables.labels, tables.rest.shape[1] - 1
    for ideal in range(first, last):
        labels.ptr[ideal] = labels.counts[0]
        if ideal == 0:
            labels.last[0] = labels.ended[0] = labels.state[0] = labels.used[0] = 0
            labels.counts[0] = 1
        elif not flow.dead[ideal]:
            _cross(a, lattice, tables, way, ideal)
            room = flow.limit - tables.rest[ideal, slots]
            _pool_steps(a, lattice, flow, tables, way, ideal, room, LABELS)
            _slot_steps(a, lattice, flow, tables, way, ideal, room, LABELS)
        labels.ptr[ideal + 1] = labels.counts[0]


@entry
def label_rows(
    a: FlowArrays, lattice: Lattice, flow: Flow, tables: SlotTables, first: int, last: int
) -> None:
    """Label the ideals `first`..`last`-1 with the placements that may end below the limit: all but
    those that another one makes worthless, at most `Labels.width` of them. Where there are more,
    some are merged to one that is no worse than either.
    """
    way = _way(len(a.resident), len(a.io_time), len(a.group_size), len(a.between_time))
    _label(a, lattice, flow, tables, way, first, last)
