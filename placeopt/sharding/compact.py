"""The arrays that kernels work on: what is left of a problem once strategies are removed and nodes
are decided.

`condense` is the one place that rebuilds them: it drops removed strategies, decides nodes with one
strategy left (their edge costs move to the neighbours, their usage out of the capacity), adds up
parallel edges, subtracts the smallest usage of a node from the capacity, and keeps of the time
points those that can bind: a time point is dropped if no choice can pass its capacity, or if
everything live there is live at a neighbouring one with no more capacity (intervals are contiguous,
so nothing else can dominate it).

Costs are clamped so that sums stay below 2^62 in 64 bits. A clamped problem is a relaxation: its
bounds hold for the problem itself, and where a choice costs less than the clamp its cost is the
true one. Where costs above the clamp have to be told apart, all are counted in a larger unit,
rounded down: a relaxation, too.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, place_in, pointers, row_numbers, stable_order
from placeopt.model.compiled import entry, inlined, pasted, row_of
from placeopt.model.errors import InputError
from placeopt.sharding.evaluate import exact_sum
from placeopt.sharding.problem import ShardingProblem, starts_of

MAX_TOTAL = 2**62


class Compact(NamedTuple):
    """A sharding problem for kernels; n nodes, S strategies, m edges, T time points. All arrays are
    int64.

    Trees that hang on the rest of the graph come first, children before parents: each node below
    `core` has one neighbour after it, its parent. The others, in the order of the problem, are the
    core.
    """

    node_ptr: Ints  # (n + 1,)
    cost: Ints  # (S,)
    usage: Ints  # (S,) above the smallest usage of the node
    first: Ints  # (n,) first time point at which the node is live
    last: Ints  # (n,) the one after the last; equal to first: never live
    edge: Ints  # (m, 2) nodes, the smaller first, no pair twice, in rising order
    edge_ptr: Ints  # (m + 1,)
    table: Ints  # row-major by the strategies of the smaller and of the larger node
    adj_ptr: Ints  # (n + 1,)
    adj_edge: Ints  # (2 m,) edges of a node, by rising neighbour
    adj_node: Ints  # (2 m,) the neighbours
    capacity: Ints  # (T,)
    core: int  # nodes that belong to trees which hang on the others

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_ptr) - 1

    @property
    def num_choices(self) -> Ints:
        """Number of strategies of each node."""
        return np.diff(self.node_ptr)

    @property
    def most_usage(self) -> Ints:
        """Largest usage of each node."""
        return np.maximum.reduceat(self.usage, self.node_ptr[:-1])


class Scale(NamedTuple):
    """How costs are counted: in a unit, rounded down; and those that stand for "forbidden" as
    `clamp`, which is more than all others of a choice together, too.
    """

    unit: int = 1
    forbidden: int = MAX_TOTAL**2  # above all sums
    clamp: int = MAX_TOTAL**2

    def counted(self, value: int) -> int:
        """Return a cost as it is counted, rounded up: less cost those choices that do here."""
        count, rest = divmod(-(-value // self.unit), self.forbidden)
        return count * self.clamp + min(rest, self.clamp)

    def meant(self, counted: int) -> int:
        """Return what a choice costs at least that is counted as so much or more."""
        count, rest = divmod(counted, self.clamp)
        return self.unit * (count * self.forbidden + rest)


UNSCALED = Scale()


class Condensed(NamedTuple):
    """What `condense` made, and how a choice of it becomes a choice of what it was made from.

    `fixed` has the decided strategy of every old node, -1 for those that remain; `node` the old
    nodes that remain, `strategy` the old strategy (within its node) of every new one, and `time`
    the old time points that remain.
    """

    compact: Compact
    offset: int  # cost of the decided nodes and of the edges between them
    fixed: Ints  # (old n,)
    node: Ints  # (n,)
    strategy: Ints  # (S,)
    time: Ints  # (T,)
    scale: Scale = UNSCALED

    def counted(self, value: int) -> int:
        """Return the cost of a choice of the old problem, rounded up, as it is counted here:
        without the offset.
        """
        return max(0, self.scale.counted(value) - self.offset)

    def expand(self, choice: Ints) -> Ints:
        """Return the choice of the old problem."""
        found = self.fixed.copy()
        found[self.node] = self.strategy[self.compact.node_ptr[:-1] + choice]
        return found

    def contract(self, choice: Ints) -> Ints | None:
        """Return a choice of the old problem as one of this, None where it uses what was
        removed.
        """
        decided = self.fixed >= 0
        if (choice[decided] != self.fixed[decided]).any():
            return None
        compact = self.compact
        node = np.repeat(np.arange(compact.num_nodes), compact.num_choices)
        hit = np.flatnonzero(self.strategy == choice[self.node][node])
        found = np.full(compact.num_nodes, -1, np.int64)
        found[node[hit]] = hit - compact.node_ptr[node[hit]]
        return None if (found < 0).any() else found


class _Target(NamedTuple):
    """What `_fill` adds to."""

    node_ptr: Ints
    strategy: Ints
    edge: Ints
    edge_ptr: Ints
    cost: Ints
    table: Ints


class Draft(NamedTuple):
    """Nodes and edges before they are condensed: edges in any order and direction, perhaps
    parallel.
    """

    node_ptr: Ints
    cost: Ints
    usage: Ints
    first: Ints
    last: Ints
    edge: Ints
    edge_ptr: Ints
    table: Ints
    capacity: Ints


def most_cost(problem: ShardingProblem) -> int:
    """Return what costs are clamped at: so many of them, one per node and edge, fit into 64
    bits.
    """
    return MAX_TOTAL // (problem.num_nodes + problem.num_edges + 1)


def without_unavoidable(problem: ShardingProblem) -> tuple[ShardingProblem, int]:
    """Return a problem without the least costs of nodes and edges that would be clamped, and the
    sum of these; the problem itself unless nothing else would be.
    """
    most, paid, least = most_cost(problem), 0, []
    parts = ((problem.cost, problem.node_ptr), (problem.edge_cost, problem.edge_ptr))
    for costs, starts in parts:
        smallest = np.minimum.reduceat(costs, starts[:-1]) if len(costs) else costs
        least.append(np.where(smallest > most, smallest, 0))
        paid += exact_sum(least[-1])
    if not paid:
        return problem, 0
    left = [
        costs - np.repeat(some, np.diff(starts))
        for some, (costs, starts) in zip(least, parts, strict=True)
    ]
    if max(costs.max(initial=0) for costs in left) > most:
        return problem, 0
    return replace(problem, cost=left[0], edge_cost=left[1]), paid


def cost_scale(problem: ShardingProblem) -> Scale:
    """Return the unit in which every choice costs no more than costs are clamped at; 1 where all
    that are clamped cost the same, more than all others may together: that stands for "forbidden".
    """
    most, total, rest = most_cost(problem), 0, 0
    parts = ((problem.cost, problem.node_ptr), (problem.edge_cost, problem.edge_ptr))
    for costs, starts in parts:
        if len(costs):
            total += exact_sum(np.maximum.reduceat(costs, starts[:-1]))
            kept = np.where(costs <= most, costs, 0)
            rest += exact_sum(np.maximum.reduceat(kept, starts[:-1]))
    clamped = np.concatenate([costs[costs > most] for costs, _ in parts])
    if not clamped.size:
        return UNSCALED
    if rest < clamped.min() == clamped.max():
        return Scale(forbidden=int(clamped[0]), clamp=rest + 1) if rest < most else UNSCALED
    return Scale(1 + total // most)


def usage_unit(problem: ShardingProblem) -> int:
    """Return the unit in which a draft counts usage: 1, or more where sums up to a limit would not
    fit into 64 bits.
    """
    if not problem.limited:
        return 1
    return (
        1
        + problem.num_nodes
        * min(problem.usage_limit, int(problem.usage.max(initial=0)))
        // MAX_TOTAL
    )


def times_of(problem: ShardingProblem) -> Ints:
    """Return the time points of a draft: those at which a node begins that is live at all, if there
    is a limit.
    """
    return np.unique(problem.interval[_live(problem), 0])


def _live(problem: ShardingProblem) -> Flags:
    live: Flags = problem.interval[:, 1] > problem.interval[:, 0]
    return live & problem.limited


def draft_of(problem: ShardingProblem, scale: Scale = UNSCALED) -> tuple[Draft, Flags]:
    """Return a problem as a draft and which strategies fit into the limit by themselves.

    Costs are counted by `scale`, and clamped. Every choice that fits the draft fits
    the problem; the reverse holds only if `usage_unit` is 1: otherwise usages above the smallest of
    their node are rounded up, and bounds of the draft say nothing about the problem.
    """
    unit, clamp = scale.unit, min(scale.clamp, most_cost(problem))
    sizes = problem.num_choices
    live = _live(problem)
    fits = ~np.repeat(live, sizes) | (problem.usage <= problem.usage_limit)
    usage = np.where(fits & np.repeat(live, sizes), problem.usage, 0)
    time = times_of(problem)
    first = np.searchsorted(time, problem.interval[:, 0])
    last = np.where(live, np.searchsorted(time, problem.interval[:, 1]), first)
    capacity = np.full(len(time), problem.usage_limit, np.int64)
    if (step := usage_unit(problem)) > 1:
        least = np.minimum.reduceat(np.where(fits, usage, MAX_TOTAL), problem.node_ptr[:-1])
        taken = over_time(first, last, least.astype(object), len(time))
        capacity = ((problem.usage_limit - taken) // step).astype(np.int64)
        usage = np.maximum(0, -((np.repeat(least, sizes) - usage) // step))
    draft = Draft(
        problem.node_ptr,
        np.minimum(problem.cost // unit, clamp),
        usage,
        first,
        last,
        problem.edge,
        problem.edge_ptr,
        np.minimum(problem.edge_cost // unit if unit > 1 else problem.edge_cost, clamp),
        capacity,
    )
    return draft, fits


def condense(draft: Draft, alive: Flags) -> Condensed:
    """Return the draft without the strategies that are not `alive`.

    Raises
    ------
    InputError
        If a node keeps no strategy: there is no choice then.
    """
    sizes = np.add.reduceat(alive.astype(np.int64), draft.node_ptr[:-1])
    if (sizes == 0).any():
        v = int(np.argmin(sizes))
        count = int(draft.node_ptr[v + 1] - draft.node_ptr[v])
        raise InputError(
            f"sharding: node {v}: expected a strategy that fits into the limit, received {count} "
            "that do not; raise the limit or give it a smaller one"
        )
    old_node = row_numbers(draft.node_ptr)
    within = np.arange(len(alive)) - draft.node_ptr[old_node]
    single = sizes == 1
    fixed = np.full(len(sizes), -1, np.int64)
    decided = alive & single[old_node]
    fixed[old_node[decided]] = within[decided]
    node, core = _trees_first(draft.edge, np.flatnonzero(~single), len(sizes))
    node_ptr = starts_of(sizes[node])
    new_node = place_in(node, len(sizes))
    kept = np.flatnonzero(alive & ~single[old_node])
    kept = kept[stable_order(new_node[old_node[kept]])]
    strategy = within[kept]

    cost = draft.cost[kept]
    offset = int(draft.cost[decided].sum())
    order, pairs = _ordered_pairs(draft, new_node)
    edge, edge_ptr = _merged_edges(pairs, np.diff(node_ptr))
    table = np.zeros(int(edge_ptr[-1]), np.int64)
    target = _Target(node_ptr, strategy, edge, edge_ptr, cost, table)
    offset += int(_fill(draft, new_node, fixed, order, target))

    usage, capacity, first, last, time = _times(draft, decided, kept, node, node_ptr)
    parts = node_ptr, cost, usage, first, last, edge, edge_ptr, table
    compact = Compact(*parts, *adjacency(len(node), edge), capacity, core)
    return Condensed(compact, offset, fixed, node, strategy, time)


def costs_of(compact: Compact, choice: Ints) -> tuple[Ints, Ints]:
    """Return what a choice costs at every node and on every edge."""
    low, high = compact.edge.T
    pairs = compact.edge_ptr[:-1] + choice[low] * compact.num_choices[high] + choice[high]
    return compact.cost[compact.node_ptr[:-1] + choice], compact.table[pairs]


def cost_of(compact: Compact, choice: Ints) -> int:
    """Return what a choice costs, nodes and edges that were decided before left out."""
    return sum(int(part.sum()) for part in costs_of(compact, choice))


def usage_of(compact: Compact, choice: Ints) -> Ints:
    """Return what a choice uses at every time point."""
    amounts = compact.usage[compact.node_ptr[:-1] + choice]
    return over_time(compact.first, compact.last, amounts, len(compact.capacity))


@pasted
def size_of(c, v):
    """Return the number of strategies of a node."""
    return c.node_ptr[v + 1] - c.node_ptr[v]


@inlined
def table_row(c, v, w, e, x):
    """Return where the table of an edge from v to w has the row of x, the distance between its
    entries, and their number.
    """
    columns = size_of(c, w)
    if v < w:
        return c.edge_ptr[e] + x * columns, 1, columns
    return c.edge_ptr[e] + x, size_of(c, v), columns


def unchanged(compact: Compact) -> Condensed:
    """Return a compact problem as what remains of itself."""
    sizes = compact.num_choices
    fixed = np.full(compact.num_nodes, -1, np.int64)
    strategy = np.arange(len(compact.cost)) - np.repeat(compact.node_ptr[:-1], sizes)
    times = np.arange(len(compact.capacity))
    return Condensed(compact, 0, fixed, np.arange(compact.num_nodes), strategy, times)


def as_draft(compact: Compact) -> Draft:
    """Return a compact problem as a draft."""
    return Draft(*(getattr(compact, name) for name in Draft._fields))


def _trees_first(edge: Ints, node: Ints, count: int) -> tuple[Ints, int]:
    """Return nodes, of `count` old ones, with the trees that hang on the rest first, and how many
    those are.
    """
    ends = np.sort(place_in(node, count)[edge].reshape(-1, 2), axis=1)
    keys = np.unique(ends[ends[:, 0] >= 0] @ np.array([len(node), 1], np.int64))
    pointer, _, neighbour = adjacency(
        len(node), np.column_stack(np.divmod(keys, max(1, len(node))))
    )
    order, core = _peel(pointer, neighbour)
    return node[order], int(core)


@entry
def _peel(pointer, neighbour):
    """Return the nodes in the order in which they become leaves, then those that never do; and the
    number of the former.
    """
    n = len(pointer) - 1
    degree, order = np.empty((2, n), np.int64)
    peeled = np.zeros(n, np.bool_)
    count = done = 0
    for v in range(n):
        degree[v] = pointer[v + 1] - pointer[v]
        if degree[v] == 1:
            order[count] = v
            count += 1
    while done < count:
        v = order[done]
        if degree[v] == 0:  # the last node of a tree stays
            count -= 1
            order[done] = order[count]
            continue
        peeled[v] = True
        done += 1
        for i in row_of(pointer, v):
            w = neighbour[i]
            if not peeled[w]:
                degree[w] -= 1
                if degree[w] == 1:
                    order[count] = w
                    count += 1
    for v in range(n):
        if not peeled[v]:
            order[count] = v
            count += 1
    return order, done


def _ordered_pairs(draft: Draft, new_node: Ints) -> tuple[Ints, Ints]:
    """Return the old edges in an order that puts parallel ones together, and the new pairs of those
    that remain.
    """
    ends = new_node[draft.edge].reshape(-1, 2)
    low, high = ends.min(axis=1), ends.max(axis=1)
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    remain = low >= 0
    return order, np.column_stack([low[remain], high[remain]])


def _merged_edges(pairs: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Return every pair once, and where its table begins."""
    new = np.ones(len(pairs), np.bool_)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    edge = np.ascontiguousarray(pairs[new])
    return edge, starts_of(sizes[edge[:, 0]] * sizes[edge[:, 1]])


@entry
def _fill(draft, new_node, fixed, order, target):
    """Add the tables of the old edges to the new ones; those of decided nodes to costs. Return what
    is decided wholly.
    """
    offset = 0
    e = -1
    node_ptr, strategy, edge = target.node_ptr, target.strategy, target.edge
    cost, table = target.cost, target.table
    for old in order:
        u, v = draft.edge[old, 0], draft.edge[old, 1]
        start = draft.edge_ptr[old]
        width = size_of(draft, v)
        a, b = new_node[u], new_node[v]
        if a < 0 and b < 0:
            offset += draft.table[start + fixed[u] * width + fixed[v]]
        elif a < 0:
            for y in row_of(node_ptr, b):
                cost[y] += draft.table[start + fixed[u] * width + strategy[y]]
        elif b < 0:
            for x in row_of(node_ptr, a):
                cost[x] += draft.table[start + strategy[x] * width + fixed[v]]
        else:
            low, high = min(a, b), max(a, b)
            if e < 0 or edge[e, 0] != low or edge[e, 1] != high:
                e += 1
            at = target.edge_ptr[e]
            for x in row_of(node_ptr, low):
                for y in row_of(node_ptr, high):
                    if a < b:
                        table[at] += draft.table[start + strategy[x] * width + strategy[y]]
                    else:
                        table[at] += draft.table[start + strategy[y] * width + strategy[x]]
                    at += 1
    return offset


def _times(
    draft: Draft, decided: Flags, kept: Ints, node: Ints, node_ptr: Ints
) -> tuple[Ints, ...]:
    """Return usages, capacities, the time points of nodes that remain, and which time points
    remain: those that can bind.
    """
    count = len(draft.capacity)
    choices = np.diff(node_ptr)
    usage = draft.usage[kept]
    least = np.minimum.reduceat(usage, node_ptr[:-1]) if len(node) else usage
    usage = usage - np.repeat(least, choices)
    most = np.maximum.reduceat(usage, node_ptr[:-1]) if len(node) else usage
    single = np.setdiff1d(np.arange(len(draft.first)), node)
    taken = over_time(draft.first[single], draft.last[single], draft.usage[decided], count)
    taken += over_time(draft.first[node], draft.last[node], least, count)
    capacity = draft.capacity - taken
    first, last = draft.first[node], np.where(most > 0, draft.last[node], draft.first[node])
    binding = over_time(first, last, most, count) > capacity
    live = last > first
    starts, ends = np.zeros((2, count + 1), np.bool_)
    starts[first[live]] = True
    ends[last[live]] = True
    keep = _undominated(binding, starts, ends, capacity)
    rank = starts_of(keep)
    usage = np.where(np.repeat(live, choices), usage, 0)
    return usage, capacity[keep], rank[first], rank[np.maximum(first, last)], np.flatnonzero(keep)


def over_time(first: Ints, last: Ints, amount: Ints, count: int) -> Ints:
    """Return the sum of amounts at `count` time points, each during first .. last - 1."""
    change = np.zeros(count + 1, amount.dtype)
    np.add.at(change, first, amount)
    np.subtract.at(change, last, amount)
    return np.cumsum(change)[:count]


@entry
def _undominated(binding, starts, ends, capacity):
    """Return which time points have to be kept: neighbours that are kept never dominate each other.

    Going up from t to s, the live nodes of t are all live at s if none ends on the way; and the
    reverse if none starts.
    """
    count = len(capacity)
    keep = np.zeros(count, np.bool_)
    stack = np.empty(count, np.int64)
    size = 0
    for t in range(count):
        if not binding[t]:
            continue
        drop = False
        while size > 0:
            s = stack[size - 1]
            ended = started = False
            for i in range(s + 1, t + 1):
                ended |= ends[i]
                started |= starts[i]
            if not started and capacity[s] <= capacity[t]:
                drop = True
                break
            if not ended and capacity[t] <= capacity[s]:
                size -= 1
                continue
            break
        if not drop:
            stack[size] = t
            size += 1
    for i in range(size):
        keep[stack[i]] = True
    return keep


def adjacency(n: int, edge: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the edges of every node by rising neighbour."""
    m = len(edge)
    node = np.concatenate([edge[:, 0], edge[:, 1]])
    other = np.concatenate([edge[:, 1], edge[:, 0]])
    order = np.lexsort((other, node))
    pointer = pointers(node[order], n)
    number = np.tile(np.arange(m), 2)
    return pointer, np.ascontiguousarray(number[order]), np.ascontiguousarray(other[order])
