"""Dives: choices that the bound's messages lead to when they are told what has been decided.

Round by round the surest nodes of the core get the strategy that the messages like best: those
whose next best one is the most dearer. Left out are strategies without room, and those for which an
edge to a neighbour that was decided in the same round asks more than a node is sure of. A round
decides half of the nodes at most, so that all rounds together take about twice the time of the
first. What that leaves is a smaller problem, whose messages go on from where they were
(`Dual.begin_at`). Once it consists of trees, messages are exact, and the choice is decoded: at the
prices, whatever room there is. How sure a node is counts in part only, which chance decides: dives
from the same messages differ.

References
----------
T. Berthold, "Primal Heuristics for Mixed Integer Programs", 2006 (diving).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.sharding.bounds.lagrangian import Dual, State
from placeopt.sharding.compact import MAX_TOTAL, as_draft, condense, size_of, table_row, unchanged
from placeopt.sharding.decode import decode, least_room, room_of, take
from placeopt.sharding.reduction import composed

LEAST_STEPS = 6
"""Steps of the bound before a choice is decoded from it, or a dive decides nodes."""


def dive(state: State, upper: float, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield None after each piece of work, and at last a choice of the problem of `state`.

    Parameters
    ----------
    state : of the bound. upper : cost at which costs are clamped.
    """
    given = state.compact
    clamp = MAX_TOTAL // (given.num_nodes + len(given.edge) + 1)  # what is ruled out adds up
    cost, table = np.minimum(given.cost, clamp), np.minimum(given.table, clamp)
    whole = last = unchanged(given._replace(cost=cost, table=table))
    while last.compact.num_nodes:
        compact = last.compact
        dual = Dual(compact)
        dual.begin_at(state, last)
        dual.aim(upper)
        for _ in range(LEAST_STEPS):
            yield None
            dual.step()
        open_nodes = np.unique(compact.edge[compact.edge[:, 0] >= compact.core])
        if not len(open_nodes):
            most = compact._replace(capacity=np.full(len(compact.capacity), MAX_TOTAL))
            yield whole.expand(decode(dual.factors, most, dual.width))
            return
        yield None
        state = dual.state()
        shares = rng.random(len(open_nodes))
        alive = surest(compact, open_nodes, beliefs(dual.factors), shares)
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
        for x in range(size_of(f, u)):
            belief[f.node_ptr[u] + x] += f.to_low[f.low_ptr[e] + x]
        for y in range(size_of(f, v)):
            belief[f.node_ptr[v] + y] += f.to_high[f.high_ptr[e] + y]
    return belief


@entry
def surest(c, nodes, belief, shares):
    """Return which strategies stay once half of some nodes, the surest, are decided.

    Parameters
    ----------
    shares : part that counts of how sure each node is.
    """
    node_ptr = c.node_ptr
    best, margin = np.zeros(len(node_ptr) - 1, np.int64), np.empty(len(nodes))
    for i in range(len(nodes)):
        start = node_ptr[nodes[i]]
        least = second = np.inf
        for x in range(start, node_ptr[nodes[i] + 1]):
            if belief[x] < least:
                least, second, best[nodes[i]] = belief[x], least, x - start
            elif belief[x] < second:
                second = belief[x]
        margin[i] = (second - least) * shares[i]
    least_free, added = room_of(c.capacity)
    alive = np.ones(len(c.cost), np.bool_)
    decided = np.zeros(len(best), np.bool_)
    for i in np.argsort(-margin, kind="mergesort")[: (len(nodes) + 1) // 2]:
        v = nodes[i]
        x = node_ptr[v] + best[v]
        room = least_room(least_free, added, c.first[v], c.last[v])
        if c.usage[x] <= room and _asked(c, best, decided, v) <= margin[i]:
            take(least_free, added, c.first[v], c.last[v], c.usage[x])
            alive[node_ptr[v] : node_ptr[v + 1]] = False
            alive[x] = decided[v] = True
    for v in range(len(best)):
        room = least_room(least_free, added, c.first[v], c.last[v])
        for x in row_of(node_ptr, v):
            alive[x] &= decided[v] or c.usage[x] <= room
    return alive


@inner_kernel
def _asked(c, best, decided, v):
    """Return the most that an edge to a decided neighbour costs more than with another strategy of
    v.
    """
    most = 0
    for i in row_of(c.adj_ptr, v):
        w = c.adj_node[i]
        if decided[w]:
            at, step, size = table_row(c, w, v, c.adj_edge[i], best[w])
            least = c.table[at]
            for y in range(size):
                least = min(least, c.table[at + y * step])
            most = max(most, c.table[at + best[v] * step] - least)
    return most
