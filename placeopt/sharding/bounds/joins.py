"""Joins: the bound of a problem in which some nodes are one.

Messages bound every cycle of the graph as if it were open. Where two nodes become one, whose
strategies are the pairs of theirs, each cycle over a neighbour of both is none any more (the edges
to it are one), so that the messages bound what lies on it exactly: a step towards a junction tree.
A few nodes that hundreds read, as masks, positions or shared weights are, are worth most: a graph
that is a chain but for them becomes one.

The joined node stands in the place of the first of its nodes, with its usage; the others, with
theirs, hang on it as leaves, and one strategy of theirs goes with each of its own. Whatever a
choice costs, it costs as before.

Joined are, time and again, the two that close the most cycles for each entry by which the tables
grow: merging two nodes with c common neighbours takes c - 1 cycles away, and c where they have an
edge.

References
----------
D. Sontag, T. Meltzer, A. Globerson, T. Jaakkola, Y. Weiss, "Tightening LP Relaxations for MAP using
Message Passing", UAI 2008. S. L. Lauritzen, D. J. Spiegelhalter, "Local Computations with
Probabilities on Graphical Structures", JRSS B 50(2), 1988 (junction trees).
"""

from __future__ import annotations

import heapq
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.sharding.bounds.exact_pass import survivors
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import Draft, as_draft, condense
from placeopt.sharding.problem import starts_of

if TYPE_CHECKING:
    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.sharding.compact import Compact

MOST_PAIRS = 20_000_000
"""Most pairs of strategies of a problem with joined nodes: its tables, in six copies, take a
gigabyte."""


GROWTH = 8
"""So many times as many pairs come in a round as in the one before, of which the last has most of
the time then. `solve` with 6 s left gaps of 9.1, 1.4, 5.9 and 17.8 % on four drawn kinds with 8, of
8.9, 2.2, 6.3 and 20.8 % with 4, of 11.4, 1.9, 6.1 and 21.6 % with 2."""

GAINED = 0.01
"""A round ends once the later half of its steps gained less than this part of the gap."""


class Proof(NamedTuple):
    """A bound, and which strategies a better choice can use."""

    bound: int
    alive: Flags


class Joins:
    """A bound that rises step by step, of a problem some of whose nodes are joined.

    Attributes
    ----------
    empty : whether there is nothing to join.

    Parameters
    ----------
    below : cost of a known choice. prices : of usage by time point, to begin at. room : pairs of
    strategies that may come.
    """

    def __init__(self, compact: Compact, below: int, prices: Floats, room: int) -> None:
        groups = groups_of(compact, min(room, MOST_PAIRS - len(compact.table)))
        self.empty = not groups
        if groups:
            draft, old = joined(compact, groups, below)
            condensed = condense(draft, np.ones(len(draft.cost), np.bool_))
            self._offset = condensed.offset
            starts = draft.node_ptr[condensed.node]
            sizes = condensed.compact.num_choices
            self._old = old[np.repeat(starts, sizes) + condensed.strategy]
            self._open = np.isin(np.arange(len(compact.cost)), self._old)
            self._prices, self._time = prices.copy(), condensed.time
            self.dual = Dual(condensed.compact, prices[condensed.time])
            self.dual.aim(max(1, below - self._offset))

    @property
    def bound(self) -> float:
        """The best bound, in floats."""
        return self.dual.bound + self._offset

    @property
    def prices(self) -> Floats:
        """The best prices of usage by time point."""
        prices = self._prices.copy()
        prices[self._time] = self.dual.prices
        return prices

    def step(self) -> None:
        """Improve prices and messages by one step."""
        self.dual.step()

    def prove(self, upper: int) -> Proof:
        """Prove the bound exactly.

        Parameters
        ----------
        upper : cost of a known choice, at most `below`.
        """
        found, witness, clamped = self.dual.certify()
        used, _ = survivors(clamped, witness, found, max(1, upper - self._offset))
        alive = ~self._open
        alive[self._old[used]] = True
        return Proof(found.bound + self._offset, alive)


class _Groups:
    """Groups of nodes of the core, each named by one of its nodes; one of each node at first."""

    def __init__(self, compact: Compact) -> None:
        c = compact
        self.size = dict(enumerate(c.num_choices.tolist()))
        self.near = {
            v: set(c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]].tolist())
            for v in range(c.core, c.num_nodes)
        }
        # strategies of all neighbours
        self.around = {v: sum(self.size[w] for w in near) for v, near in self.near.items()}
        self.members = {v: [v] for v in self.near}

    def pairs(self) -> set[tuple[int, int]]:
        """Return the pairs with a neighbour in common that has no more neighbours than either."""
        found: set[tuple[int, int]] = set()
        for near in self.near.values():
            larger = (v for v in near if len(self.near.get(v, ())) >= len(near))
            found.update(combinations(sorted(larger), 2))
        return found

    def pairs_of(self, u: int) -> list[tuple[int, int]]:
        """Return those of one group."""
        near = self.near[u]
        less = (x for x in near if len(self.near.get(x, near)) < len(near))
        others = {w for x in less for w in self.near[x]} | near
        return sorted((min(u, w), max(u, w)) for w in others & self.near.keys() if w != u)

    def worth(self, u: int, v: int) -> tuple[float, int]:
        """Return how many cycles go for each pair of strategies that comes if two groups become
        one, and how many pairs come.
        """
        size, both = self.size, self.near[u] & self.near[v]
        linked = v in self.near[u]
        first, second = self.around[u] - linked * size[v], self.around[v] - linked * size[u]
        wide = first + second - sum(size[w] for w in both) + size[v]
        more = size[u] * size[v] * wide - size[u] * first - size[v] * second
        return (len(both) - (not linked)) / max(1, more), more

    def join(self, u: int, v: int) -> None:
        """Make two groups one, named by the first."""
        near, size = self.near, self.size
        old, other, after = near[u], near.pop(v), size[u] * size[v]
        near[u] = (old | other) - {u, v}
        for w in near[u] & near.keys():
            self.around[w] += after - (w in old) * size[u] - (w in other) * size[v]
            near[w].discard(v)
            near[w].add(u)
        size[u] = after
        self.around[u] = sum(size[w] for w in near[u])
        self.members[u] += self.members.pop(v)


def groups_of(compact: Compact, room: int) -> list[list[int]]:
    """Return which nodes to join so that at most `room` pairs of strategies come."""
    groups = _Groups(compact)
    heap: list[tuple[float, int, int]] = []

    def push(u: int, v: int) -> None:
        worth, more = groups.worth(u, v)
        if worth > 0 and more <= room:
            heapq.heappush(heap, (-worth, u, v))

    for u, v in sorted(groups.pairs()):
        push(u, v)
    while heap:
        negative, u, v = heapq.heappop(heap)
        if u not in groups.near or v not in groups.near:
            continue
        worth, more = groups.worth(u, v)
        if worth < -negative or more > room:  # neighbours were joined since
            push(u, v)
            continue
        room -= more
        groups.join(u, v)
        for pair in groups.pairs_of(u):
            push(*pair)
    return [sorted(nodes) for nodes in groups.members.values() if len(nodes) > 1]


def joined(compact: Compact, groups: list[list[int]], most: int) -> tuple[Draft, Ints]:
    """Return a problem with nodes joined, costs at most `most`, and which strategy of `compact`
    each of its strategies is.
    """
    c, sizes = compact, compact.num_choices
    leader = np.arange(c.num_nodes)
    chosen: dict[int, Ints] = {}  # strategies of the nodes of a group by that of the group
    for nodes in groups:
        leader[nodes] = nodes[0]
        shape = tuple(sizes[nodes].tolist())
        chosen.update(zip(nodes, np.indices(shape).reshape(len(nodes), -1), strict=True))
    old = np.concatenate(
        [
            c.node_ptr[v] + (chosen[v] if v in chosen and leader[v] == v else np.arange(size))
            for v, size in enumerate(sizes.tolist())
        ]
    )
    new_sizes = sizes.copy()
    new_sizes[[nodes[0] for nodes in groups]] = [np.prod(sizes[nodes]) for nodes in groups]
    node_ptr, cost = starts_of(new_sizes), np.minimum(c.cost, most)[old]
    edges, tables = [], []
    for e, (u, v) in enumerate(c.edge.tolist()):
        a, b = int(leader[u]), int(leader[v])
        table: Ints = c.table[c.edge_ptr[e] : c.edge_ptr[e + 1]].reshape(sizes[u], sizes[v])
        if a == b:
            inner = np.minimum(table[chosen[u], chosen[v]], most)
            cost[node_ptr[a] : node_ptr[a + 1]] += inner
        else:
            table = table[chosen[u]] if u in chosen else table
            edges.append((a, b))
            tables.append((table[:, chosen[v]] if v in chosen else table).ravel())
    for v, strategy in chosen.items():
        if leader[v] != v:
            edges.append((int(leader[v]), v))
            tables.append(np.where(np.arange(sizes[v]) == strategy[:, None], 0, most).ravel())
    draft = as_draft(c)._replace(
        node_ptr=node_ptr,
        cost=cost,
        usage=c.usage[old],
        edge=np.array(edges, np.int64).reshape(-1, 2),
        edge_ptr=starts_of([len(table) for table in tables]),
        table=np.minimum(np.concatenate(tables), most),
    )
    return draft, old
