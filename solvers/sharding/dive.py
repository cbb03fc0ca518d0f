"""Dives: choices that the bound's messages lead to when they are told what has been decided.

Round by round the surest nodes of the core get the strategy that the messages like best: those
whose next best one is the most dearer, no two neighbours in a round, and nothing that has no room
left; half of the nodes at most, so that all rounds together take about twice the time of the first.
What that leaves is a smaller problem, whose messages go on from where they were (`Dual.begin_at`);
what no longer has room is left out of it. Once all nodes of the core are decided, trees follow.

References
----------
T. Berthold, "Primal Heuristics for Mixed Integer Programs", 2006 (diving).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.compiled import entry
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import as_draft, condense, unchanged
from placeopt.sharding.decode import least_room, room_of, take
from placeopt.sharding.reduction import composed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Ints
    from placeopt.sharding.bounds.lagrangian import State
    from placeopt.sharding.compact import Condensed

STEPS = 6
"""Steps of the bound in a round: what it takes before a choice is decoded, too."""


def dive(state: State, upper: float, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield None after each round, and at last a choice of the problem of `state` that fits.

    Parameters
    ----------
    state : of the bound. upper : cost at which costs are clamped.
    """
    whole = unchanged(state.compact)
    last: Condensed = whole
    while last.compact.num_nodes:
        compact = last.compact
        dual = Dual(compact)
        dual.begin_at(state, last)
        dual.aim(upper)
        for _ in range(STEPS):
            dual.step()
        state = dual.state()
        alive = surest(compact, beliefs(dual.factors), rng.random(compact.num_nodes))
        last = condense(as_draft(compact), alive)
        whole = composed(whole, last)
        yield None
    yield whole.expand(np.zeros(0, np.int64))


@entry
def beliefs(f):
    """Return what the strategies of nodes cost by messages and prices; of trees, what hangs on
    them.
    """
    belief = f.base.copy()
    for e in range(len(f.edge)):
        u, v = f.edge[e, 0], f.edge[e, 1]
        if u < f.core:
            continue
        for x in range(f.node_ptr[u + 1] - f.node_ptr[u]):
            belief[f.node_ptr[u] + x] += f.to_low[f.low_ptr[e] + x]
        for y in range(f.node_ptr[v + 1] - f.node_ptr[v]):
            belief[f.node_ptr[v] + y] += f.to_high[f.high_ptr[e] + y]
    return belief


@entry
def surest(c, belief, shares):
    """Return which strategies stay once the surest nodes are decided.

    Parameters
    ----------
    shares : of how sure a node is, what counts.
    """
    n = len(c.node_ptr) - 1
    best = np.zeros(n, np.int64)
    margin = np.full(n, -np.inf)
    for v in range(c.core, n):
        start = c.node_ptr[v]
        least = second = np.inf
        for x in range(start, c.node_ptr[v + 1]):
            if belief[x] < least:
                least, second, best[v] = belief[x], least, x - start
            elif belief[x] < second:
                second = belief[x]
        margin[v] = (second - least) * shares[v]
    least_free, added = room_of(c.capacity)
    alive = np.ones(len(c.cost), np.bool_)
    decided = np.zeros(n, np.bool_)
    left = (n - c.core + 1) // 2
    for v in np.argsort(-margin):
        if left == 0 or v < c.core:
            break
        near = False
        for i in range(c.adj_ptr[v], c.adj_ptr[v + 1]):
            near |= decided[c.adj_node[i]]
        x = c.node_ptr[v] + best[v]
        if near or c.usage[x] > least_room(least_free, added, c.first[v], c.last[v]):
            continue
        take(least_free, added, c.first[v], c.last[v], c.usage[x])
        alive[c.node_ptr[v] : c.node_ptr[v + 1]] = False
        alive[x] = decided[v] = True
        left -= 1
    for v in range(n):
        room = least_room(least_free, added, c.first[v], c.last[v])
        for x in range(c.node_ptr[v], c.node_ptr[v + 1]):
            alive[x] &= decided[v] or c.usage[x] <= room
    return alive
