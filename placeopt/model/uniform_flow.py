"""Flows between all pairs of nodes, along tensors: what the congestion bounds have in common.

In each of R rounds every node u with q_u units sends q_u q_v units to every v, along nodes of which
each shares a tensor with the next, and q_u a to each of some *ends*, nodes without units of their
own. Rounds take shortest paths, with lengths that grow exponentially with the congestion so far
(multiplicative weights). Any flow proves something: units are counted, in whole numbers, and all
else may be in floating point. Of a graph in several parts the one with the most work counts;
tensors that cost nothing somewhere join nothing.

References
----------
T. Leighton, S. Rao, "Multicommodity max-flow min-cut theorems and their use in designing
approximation algorithms", Journal of the ACM 46(6), 1999 (cuts and uniform flows).
N. Garg, J. Koenemann, "Faster and simpler algorithms for multicommodity flow and other fractional
packing problems", SIAM Journal on Computing 37(2), 2007 (lengths).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import tee
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array, coo_matrix, csr_array, csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

from placeopt.model.arrays import Floats, Ints, positions, stable_order, together

UNITS = 2**22
"""Units of all nodes, about: their rounding costs a share of a millionth a node, and the units of a
thousand rounds stay below 2^63."""

MOST_SENT = 5000 * 40
"""Numbers of a flow that is written down: as many as other witnesses have ops in all their cases,
at most."""

STEPS = 8
"""Of a round, each with lengths of its own, for a part of the nodes. With one step rounds converge
far more slowly; on grids, FFT and fork-joins with 16 a bound takes 1 to 1.8 times as long, with 2
it ends lower."""

SHORTEST = 1e-9
"""Least length, of at most one: sums of them in floating point tell it from nothing."""


class Sent(NamedTuple):
    """What nodes send each other in all rounds, in full.

    Attributes
    ----------
    nodes : of the graph, as they were numbered before. pins : the nodes of each tensor, likewise.
    units : of every node of the graph. ends : sent to it besides.
    net : for a unit of each node (row), what comes out of a tensor at a node, less what goes into
    it there; column: number of the tensor, after the nodes, times that of both, plus the node.
    """

    nodes: Ints
    pins: list[Sequence[int]]
    units: Ints
    ends: Ints
    net: csr_array


class Flow(NamedTuple):
    """What so many rounds carry.

    Attributes
    ----------
    units : of all nodes, Q. ends : to all ends in a round, per unit of a node.
    per_unit : ticks of work of a unit, at least.
    most : the most units through a tensor in all rounds, divided by its weight, C.
    sent : in full, where that is kept.
    """

    units: int
    ends: int
    per_unit: Fraction
    rounds: int
    most: Fraction
    sent: Sent | None = None

    def words(self, count: int, pins: Iterable[Iterable[int]]) -> list[Any]:
        """Return a flow as a checker reads it (`proof_checker.flow_steps`).

        Parameters
        ----------
        count : nodes in all. pins : the nodes of all tensors, of others than those of the flow too.
        """
        assert self.sent is not None, "flows(kept=True)"
        nodes, units = self.sent.nodes.tolist(), self.sent.units
        rows = sorted({tuple(sorted(set(row))) for row in pins})
        place = positions(rows)
        hubs = [tuple(sorted(set(row))) for row in self.sent.pins]
        totals, size, sent = np.zeros((2, count), np.int64), len(nodes) + len(hubs), []
        totals[:, nodes] = units, self.sent.ends
        for u in np.flatnonzero(units):
            sums, of = [[0] * len(row) for row in rows], self.sent.net[[u]]
            for column, amount in together(of.indices, of.data):
                hub, v = hubs[column // size - len(nodes)], column % size
                sums[place[hub]][hub.index(nodes[v])] += amount
            sent.append(sums)
        return [*totals.tolist(), self.rounds, sent]


def best_of_flows(
    flows: Iterator[Flow], bound: Callable[[Flow], int], *, gain: float = 0.001
) -> Iterator[int]:
    """Yield the best bound after every round; ends where the second half of the rounds, of eight or
    more, gained less than a share of `gain`.
    """
    found = list[int]()
    for flow in flows:
        found.append(max(bound(flow), *found[-1:], 0))
        yield found[-1]
        if len(found) >= 8 and found[-1] <= (1.0 + gain) * found[len(found) // 2]:
            return


def flow_above(
    flows: Iterator[Flow],
    bound: Callable[[Flow], int],
    aim: int,
    end: float,
    *,
    gain: float = 0.001,
) -> tuple[int, Flow | None]:
    """Return the best bound, and its flow, once it reaches an aim, nothing is gained, or at `end`.

    Parameters
    ----------
    end : in seconds of `time.perf_counter`. gain : as for `best_of_flows`.
    """
    found, kept = tee(flows)
    best: tuple[int, Flow | None] = 0, None
    for value, flow in zip(best_of_flows(found, bound, gain=gain), kept, strict=False):
        best = (value, flow) if value > best[0] else best
        if value >= aim or time.perf_counter() > end:
            break
    return best


def flows(
    ticks: Ints,
    pins: Sequence[Sequence[int]],
    weight: Ints,
    ends: Sequence[int] = (),
    *,
    pull: int = 1,
    kept: bool = False,
) -> Iterator[Flow]:
    """Yield what the flow of one round, two, ... carries; nothing where no flow proves any bound.

    Lengths grow by up to e^4 in the first round, and by a factor e more in each that follows: with
    twice and four times as much, bounds on eleven graphs ended within 2 %.

    Parameters
    ----------
    ticks : least work of each node, or less. pins : the nodes of each tensor. weight : of each
    tensor, at least 0. ends : nodes without work that `pull` times as many units go to, together,
    as to all others. kept : whether to say in full what is sent.
    """
    graph, nodes, tensors = _part_with_most_work(ticks, pins, weight)
    weight = weight[tensors]
    there, rows = np.isin(nodes, ends), ticks[nodes].tolist()
    work = max(1, sum(rows))
    units = np.array([UNITS * p // work for p in rows], np.int64)
    senders = np.flatnonzero(units)
    if len(senders) < 2:
        return  # nothing is sent
    total, per_unit = int(units.sum()), Fraction(work, UNITS)
    demand = np.where(there, pull * total // max(1, int(there.sum())), units)
    used, rounds, sent = np.zeros(len(weight), np.int64), 0, None
    if kept:
        net = csr_array((len(nodes), graph.shape[0] ** 2), dtype=np.int64)
        sent = Sent(nodes, [pins[t] for t in tensors], units, np.where(there, demand, 0), net)
    while True:
        for first in range(min(STEPS, len(senders))):
            crowded = used / weight
            growth = (4.0 + rounds) * (crowded / max(1e-300, crowded.max()) - 1.0)
            lengths = np.exp(growth) / weight
            sources = senders[first::STEPS]
            tree = _use(graph, demand, sources, lengths / lengths.max())
            if tree is None:
                return
            used += units[sources] @ tree[0][:, len(units) :]
            if sent:
                more = _net(sources, *tree, len(nodes), sent.net.shape)
                sent = sent._replace(net=sent.net + more)
        rounds += 1
        most = max(Fraction(u, w) for u, w in together(used, weight))
        yield Flow(total, int(demand[there].sum()), per_unit, rounds, most, sent)


def _part_with_most_work(
    ticks: Ints, pins: Sequence[Sequence[int]], weight: Ints
) -> tuple[csr_matrix, Ints, Ints]:
    """Return the graph of nodes and tensors (nodes first; data: the number of the tensor), its
    nodes, and its tensors, of the connected part with the most work.
    """
    tensors = np.flatnonzero(weight > 0)
    n, m = len(ticks), len(tensors)
    rows = [pins[t] for t in tensors.tolist()]
    node = np.array([v for row in rows for v in row], np.int64)
    hub = np.repeat(np.arange(m), [len(row) for row in rows])
    joined = coo_matrix((np.ones(len(node)), (node, n + hub)), (n + m, n + m))
    part = connected_components(joined, directed=False)[1]
    largest = np.bincount(part[:n], weights=ticks, minlength=part.max() + 1).argmax()
    inside = part == largest
    nodes, hubs = np.flatnonzero(inside[:n]), np.flatnonzero(inside[n:])
    place = np.cumsum(inside) - 1
    here = inside[node]
    node, hub = place[node[here]], place[n + hub[here]]
    ends = np.concatenate([node, hub]), np.concatenate([hub, node])
    number = np.tile(hub - len(nodes) + 1.0, 2)
    return coo_matrix((number, ends), (inside.sum(),) * 2).tocsr(), nodes, tensors[hubs]


def _use(
    graph: csr_matrix, demand: Ints, sources: Ints, lengths: Floats
) -> tuple[Ints, Ints] | None:
    """Return how much comes to every node and tensor, for a unit of each source, if it takes
    shortest paths to all, and what is before these on the paths; None if floating point cannot tell
    what comes before what on these.
    """
    weighted = graph.copy()
    weighted.data = np.maximum(lengths, SHORTEST)[graph.data.astype(np.int64) - 1]
    far, before = dijkstra(weighted, indices=sources, return_predecessors=True)
    onwards, row = np.zeros(far.shape, np.int64), np.arange(len(sources))
    onwards[:, : len(demand)] = demand
    for v in stable_order(-far, axis=1)[:, :-1].T:
        onwards[row, before[row, v]] += onwards[row, v]
    if (onwards[row, sources] != demand.sum()).any():
        return None
    return onwards, before


def _net(
    sources: Ints, onwards: Ints, before: Ints, count: int, shape: tuple[int, int]
) -> csr_array:
    """Return what a unit of each source takes out of tensors at nodes; see `Sent`."""
    place = np.arange(before.shape[1])
    tensor, node = np.maximum(before, place), np.minimum(before, place)
    key = tensor.astype(np.int64) * len(place) + node
    amount, there = np.where(place < count, onwards, -onwards), before >= 0
    row = np.broadcast_to(sources[:, None], before.shape)
    return coo_array((amount[there], (row[there], key[there])), shape).tocsr()
