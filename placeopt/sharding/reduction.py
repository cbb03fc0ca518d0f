"""Exact reductions of a compact problem, for choices that cost less than a given sum.

Where nothing that costs `most` or more is looked for, `reduce` removes, until nothing changes,

- strategies that are part of no choice below `most`: with some neighbour, every pair costs as much
  (arc consistency);
- strategies and pairs without room: usages are counted above the smallest of each node, so that a
  strategy passes the capacity if its own usage does, with the least that each neighbour then uses,
  whatever all others choose. What remains may use more at least, and leave others less room;
- strategies that another one of the node replaces at no higher cost, whatever the neighbours
  choose, and with no more usage: c(x') - c(x) + sum_e max_y [T_e(x', y) - T_e(x, y)] <= 0, over the
  y that x can be paired with (Goldstein);
- edges of followers: where each strategy of u leaves only one of v, the other edges of v are moved
  to u, and v hangs on u as a leaf. Edges that become parallel add up, so that cycles close and the
  core shrinks.

No node goes away but those with one strategy left, so that choices of what remains are choices of
what was there. Every choice of less than `most` has one among them that costs no more; a bound of
what remains, and `most` where nothing remains, bound all choices by the smaller of it and `most`.

References
----------
A. K. Mackworth, "Consistency in networks of relations", Artificial Intelligence 8, 1977.
R. F. Goldstein, "Efficient rotamer elimination applied to protein side-chains and related spin
glasses", Biophysical Journal 66, 1994.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.sharding.compact import (
    Compact,
    Condensed,
    Draft,
    as_draft,
    condense,
    size_of,
    table_row,
    unchanged,
)
from placeopt.sharding.problem import starts_of

ROUNDS = 12
"""Most rounds of all reductions."""

MOST_WORK = 200_000_000
"""Most comparisons of a look for strategies that others replace; nodes that would need more than a
hundredth are left out."""

MOST_GROWTH = 2
"""A node follows one with at most so many times its strategies: the tables that move grow by as
much."""


class Following(NamedTuple):
    """Whom the nodes follow: every node's root, and its strategy by that of its root."""

    leader: Ints  # (n,) -1: nobody
    link: Ints  # (n,) the edge to the leader
    root: Ints  # (n,)
    map_ptr: Ints  # (n + 1,)
    maps: Ints


def reduce(
    condensed: Condensed, most: int, late: Callable[[], bool] = lambda: False
) -> Condensed | None:
    """Return what remains of a problem for choices of less than `most`, None if nothing does.

    Parameters
    ----------
    condensed : its tables are written to: keep no use of them.
    most : counted without the offset of `condensed`. late : once it says so, no more is removed.
    """
    for _ in range(ROUNDS):
        compact = condensed.compact
        if compact.num_nodes == 0 or late():
            return condensed
        alive = compact.cost < most
        if not consistent(compact, alive, most):
            return None
        if not late():
            without_room(compact, alive, most, least_of_spans(compact.capacity))
        if not consistent(compact, alive, most):
            return None
        # What replaces a strategy goes with all that goes with it: what is left stays consistent.
        replaced(compact, alive, most, MOST_WORK)
        smaller = unchanged(compact) if alive.all() else condense(as_draft(compact), alive)
        draft = followers_moved(smaller.compact, most)
        before = len(compact.cost)
        condensed = composed(condensed, smaller)
        del compact, smaller  # the tables are what takes room
        if draft is None and len(condensed.compact.cost) > 0.99 * before:
            break
        if draft is not None:
            again = condense(draft, np.ones(len(draft.cost), np.bool_))
            condensed = composed(condensed, again)
            del draft, again
    return condensed


def what_survives(compact: Compact, alive: Flags, pairs: Flags, upper: int) -> Condensed | None:
    """Return what the reductions leave of the strategies and pairs that survive, None if no choice
    of less than `upper`.
    """
    raised = compact._replace(
        cost=np.where(alive, compact.cost, upper), table=np.where(pairs, compact.table, upper)
    )
    rest = reduce(unchanged(raised), upper)
    if rest is None or rest.compact.capacity.min(initial=0) < 0 or rest.offset >= upper:
        return None
    return rest


def composed(outer: Condensed, inner: Condensed) -> Condensed:
    """Return two condensations, the second made of what the first left, as one."""
    starts = outer.compact.node_ptr[:-1]
    fixed = outer.fixed.copy()
    decided = inner.fixed >= 0
    fixed[outer.node[decided]] = outer.strategy[starts[decided] + inner.fixed[decided]]
    old = np.repeat(starts[inner.node], inner.compact.num_choices) + inner.strategy
    offset, node, time = outer.offset + inner.offset, outer.node[inner.node], outer.time[inner.time]
    strategy = outer.strategy[old]
    return Condensed(inner.compact, offset, fixed, node, strategy, time, outer.scale)


@entry
def consistent(c, alive, most):
    """Remove from `alive` what has a neighbour with which every pair costs `most` or more; return
    whether any choice is left.
    """
    n = len(c.node_ptr) - 1
    for v in range(n):
        if not alive[c.node_ptr[v] : c.node_ptr[v + 1]].any():
            return False
    queue = np.arange(n)
    waiting = np.ones(n, np.bool_)
    head, count = 0, n
    while count > 0:
        v = queue[head]
        head = (head + 1) % n
        count -= 1
        waiting[v] = False
        for i in row_of(c.adj_ptr, v):
            w = c.adj_node[i]
            left, changed = 0, False
            for z in range(size_of(c, w)):
                if not alive[c.node_ptr[w] + z]:
                    continue
                supported = False
                at, step, size = table_row(c, w, v, c.adj_edge[i], z)
                for x in range(size):
                    if alive[c.node_ptr[v] + x] and c.table[at + x * step] < most:
                        supported = True
                        break
                left += supported
                if not supported:
                    alive[c.node_ptr[w] + z] = False
                    changed = True
            if left == 0:
                return False
            if changed and not waiting[w]:
                waiting[w] = True
                queue[(head + count) % n] = w
                count += 1
    return True


def least_of_spans(capacity: Ints) -> Ints:
    """Return the smallest capacity of the 2^k time points from each on: (k, T)."""
    rows = [capacity]
    while 2 ** len(rows) <= len(capacity):
        half = 2 ** (len(rows) - 1)
        later = np.minimum(rows[-1][:-half], rows[-1][half:])
        rows.append(np.concatenate([later, rows[-1][-half:]]))
    return np.stack(rows)


@inner_kernel
def _least_between(spans, first, last):
    """Return the smallest capacity of the time points first .. last - 1, of which there is one."""
    k = 0
    while 2 << k <= last - first:
        k += 1
    return min(spans[k, first], spans[k, last - (1 << k)])


@entry
def without_room(c, alive, most, spans):
    """Remove from `alive` the strategies, and raise to `most` the pairs, that pass the capacity
    whatever the others choose.
    """
    for e in range(len(c.edge)):
        u, v = c.edge[e, 0], c.edge[e, 1]
        first, last = max(c.first[u], c.first[v]), min(c.last[u], c.last[v])
        if first < last:
            room = _least_between(spans, first, last)
            at = c.edge_ptr[e]
            for x in row_of(c.node_ptr, u):
                for y in row_of(c.node_ptr, v):
                    if c.usage[x] + c.usage[y] > room:
                        c.table[at] = max(c.table[at], most)
                    at += 1
    for v in range(len(c.node_ptr) - 1):
        _star(c, alive, most, spans, v)


@inner_kernel
def _star(c, alive, most, spans, v):
    """Remove the strategies of v that, with the least that each neighbour then uses, pass the
    capacity.
    """
    degree = c.adj_ptr[v + 1] - c.adj_ptr[v]
    star = np.empty(degree + 1, np.int64)  # nodes that are live at all
    star[0] = v
    star[1:] = c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]]
    times = np.unique(np.concatenate((c.first[star], c.last[star])))
    if len(times) < 2:
        return
    room = np.empty(len(times) - 1, np.int64)
    for i in range(len(room)):
        room[i] = _least_between(spans, times[i], times[i + 1])
    begin, end = np.searchsorted(times, c.first[star]), np.searchsorted(times, c.last[star])
    for x in row_of(c.node_ptr, v):
        change = np.zeros(len(times), np.int64)
        change[begin[0]] += c.usage[x]
        change[end[0]] -= c.usage[x]
        for i in range(degree if alive[x] else 0):
            if begin[i + 1] < end[i + 1]:
                least = _least_with(c, alive, most, v, x - c.node_ptr[v], c.adj_ptr[v] + i)
                change[begin[i + 1]] += least
                change[end[i + 1]] -= least
        used = np.cumsum(change)
        for i in range(len(room)):
            if used[i] > room[i]:
                alive[x] = False


@inner_kernel
def _least_with(c, alive, most, v, x, i):
    """Return the least that the i-th neighbour uses where v has its strategy x; 0 if no strategy
    goes with it.
    """
    w = c.adj_node[i]
    at, step, columns = table_row(c, v, w, c.adj_edge[i], x)
    least = -1
    for y in range(columns):
        usage = c.usage[c.node_ptr[w] + y]
        if alive[c.node_ptr[w] + y] and c.table[at + y * step] < most:
            least = usage if least < 0 else min(least, usage)
            if least == 0:
                break
    return max(least, 0)


@entry
def replaced(c, alive, most, work):
    """Remove from `alive` the strategies that another one of their node replaces whatever the
    neighbours choose.
    """
    left = work
    for v in range(len(c.node_ptr) - 1):
        start, stop = c.node_ptr[v], c.node_ptr[v + 1]
        width = 0
        for i in row_of(c.adj_ptr, v):
            w = c.adj_node[i]
            width += size_of(c, w)
        needed = (stop - start) ** 2 * width
        if needed > work // 100 or needed > left:
            continue
        left -= needed
        for x in range(start, stop):
            for other in range(start, stop):
                if not alive[x]:
                    break
                if other != x and alive[other] and c.usage[other] <= c.usage[x]:
                    alive[x] = not _replaces(c, alive, most, v, other - start, x - start)


@inner_kernel
def _replaces(c, alive, most, v, other, x):
    """Whether a strategy of v costs no more than x whatever the neighbours choose."""
    start = c.node_ptr[v]
    total = c.cost[start + other] - c.cost[start + x]
    for i in row_of(c.adj_ptr, v):
        w, e = c.adj_node[i], c.adj_edge[i]
        at, step, columns = table_row(c, v, w, e, x)
        to = table_row(c, v, w, e, other)[0]
        worst = -most
        for z in range(columns):
            if alive[c.node_ptr[w] + z]:
                old, new = c.table[at + z * step], c.table[to + z * step]
                if old >= most:
                    continue
                if new >= most:
                    return False
                worst = max(worst, new - old)
        total += worst
    return total <= 0


def followers_moved(compact: Compact, most: int) -> Draft | None:
    """Return the problem with the edges of followers moved to those that they follow, None if there
    are none.
    """
    leader, link = _leaders(compact, most, MOST_GROWTH)
    if (leader < 0).all():
        return None
    sizes = compact.num_choices
    order = np.lexsort((np.arange(len(sizes)), -sizes))  # leaders before followers
    root = np.arange(len(sizes))
    for v in order[leader[order] >= 0].tolist():
        root[v] = root[leader[v]]
        if sizes[root[v]] > MOST_GROWTH * sizes[v]:
            root[v], leader[v], link[v] = v, -1, -1
    # some follower is left: the first in order follows a node that follows nobody
    map_ptr = starts_of(sizes[root])
    following = Following(leader, link, root, map_ptr, np.zeros(int(map_ptr[-1]), np.int64))
    _fill_maps(compact, order, following, most)
    is_link = np.zeros(len(compact.edge), np.bool_)
    is_link[link[link >= 0]] = True
    edge = root[compact.edge]
    follower = np.full(len(compact.edge), -1, np.int64)
    follower[link[link >= 0]] = np.flatnonzero(link >= 0)
    edge[is_link] = np.column_stack([root[follower[is_link]], follower[is_link]])
    kept = edge[:, 0] != edge[:, 1]
    lengths = np.where(kept, sizes[edge[:, 0]] * sizes[edge[:, 1]], 0)
    edge_ptr = starts_of(lengths)
    cost, table = compact.cost.copy(), np.zeros(int(edge_ptr[-1]), np.int64)
    _move_tables(compact, edge, edge_ptr, follower, following, most, cost, table)
    pointers = np.concatenate([edge_ptr[:-1][kept], edge_ptr[-1:]])
    return as_draft(compact)._replace(
        cost=cost, edge=np.ascontiguousarray(edge[kept]), edge_ptr=pointers, table=table
    )


@entry
def _leaders(c, most, growth):
    """Return for each node of the core one that decides it, with no fewer strategies, and the edge
    between them; or -1.

    Among nodes with as many strategies the first leads, so that nobody leads their own leader.
    """
    n = len(c.node_ptr) - 1
    leader, link = np.full((2, n), -1, np.int64)
    for e in range(len(c.edge)):
        u, v = c.edge[e, 0], c.edge[e, 1]
        if u < c.core:
            continue
        rows, columns = size_of(c, u), size_of(c, v)
        one = True  # one strategy of the smaller set for each of the larger
        down = rows >= columns
        for i in range(max(rows, columns)):
            count = 0
            for j in range(min(rows, columns)):
                at = i * columns + j if down else j * columns + i
                count += c.table[c.edge_ptr[e] + at] < most
            if count != 1:
                one = False
                break
        if one:
            a, b = (u, v) if down else (v, u)  # a decides b
            wide, narrow = max(rows, columns), min(rows, columns)
            if wide <= growth * narrow and (leader[b] < 0 or wide < size_of(c, leader[b])):
                leader[b], link[b] = a, e
    return leader, link


@entry
def _fill_maps(c, order, following, most):
    """Write for every node its strategy by that of its root."""
    leader, link, _, map_ptr, maps = following
    for v in order:
        at = map_ptr[v]
        for y in range(map_ptr[v + 1] - at):
            maps[at + y] = y
        if leader[v] < 0:
            continue
        u = leader[v]
        for y in range(map_ptr[v + 1] - at):
            row, step, size = table_row(c, u, v, link[v], maps[map_ptr[u] + y])
            for z in range(size):
                if c.table[row + z * step] < most:
                    maps[at + y] = z


@entry
def _move_tables(c, edge, edge_ptr, follower, following, most, cost, table):
    """Write the tables between roots, those of followers with their roots, and costs of what has
    become one node.
    """
    _, _, root, map_ptr, maps = following
    for e in range(len(edge)):
        u, v = c.edge[e, 0], c.edge[e, 1]
        a, b = root[u], root[v]
        columns = size_of(c, v)
        wide = size_of(c, edge[e, 1])
        old, at = c.edge_ptr[e], edge_ptr[e]
        if follower[e] >= 0:
            w = follower[e]
            for x in range(size_of(c, a)):
                for z in range(wide):
                    table[at + x * wide + z] = most
                pair = maps[map_ptr[u] + x] * columns + maps[map_ptr[v] + x]
                table[at + x * wide + maps[map_ptr[w] + x]] = c.table[old + pair]
        elif a == b:
            for x in range(size_of(c, a)):
                cost[c.node_ptr[a] + x] += c.table[
                    old + maps[map_ptr[u] + x] * columns + maps[map_ptr[v] + x]
                ]
        else:
            for x in range(size_of(c, a)):
                for y in range(wide):
                    pair = maps[map_ptr[u] + x] * columns + maps[map_ptr[v] + y]
                    table[at + x * wide + y] = c.table[old + pair]
