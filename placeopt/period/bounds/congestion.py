"""Congestion: a flow between all nodes has to leave every device, through tensors that it pays for.

Proof. Let node u have q_u units, Q in all, and k be the number of devices. In each of R rounds
every u sends q_u q_v units to every v, along nodes of which each shares a tensor with the next. Let
w_t be the least that a device pays for tensor t if some of the nodes that touch it are there and
some are not, and C be no less than the units through t in all rounds divided by w_t, for every t.
Now let a device have x units. Between its nodes and the others pass 2 R x (Q - x) units, each
through a tensor that touches both, so these tensors cost the device at least 2 R x (Q - x) / C. As
node u takes at least q_u / s ticks wherever it runs, the load is at least

    h(x) = x / s + 2 R x (Q - x) / C.

Some device has x >= Q / k, and h is concave: on [Q / k, Q] it is no less than at one of the ends.
So the period is at least min(h(Q / k), Q / s).

Any flow proves something. Rounds take shortest paths, with lengths that grow exponentially with the
congestion so far (multiplicative weights); these and all else that is no count of units are in
floating point. Of a graph in several parts the one with the most work counts, as what is left out
only lowers the period; tensors that cost nothing somewhere join nothing.

References
----------
T. Leighton, S. Rao, "Multicommodity max-flow min-cut theorems and their use in designing
approximation algorithms", Journal of the ACM 46(6), 1999 (cuts and uniform flows).
N. Garg, J. Koenemann, "Faster and simpler algorithms for multicommodity flow and other fractional
packing problems", SIAM Journal on Computing 37(2), 2007 (lengths).
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scipy.sparse import csr_matrix

    from placeopt.model.arrays import Floats, Ints
    from placeopt.period.contracted import ContractedProblem

UNITS = 2**22
"""Units of all nodes, about: their rounding costs a share of a millionth a node, and the units of a
thousand rounds stay below 2^63."""

STEPS = 16
"""Of a round, each with lengths of its own, for a part of the nodes. With one step rounds converge
far more slowly; on twelve graphs 64 end no more than 1 % higher, in three times the time."""

SHORTEST = 1e-9
"""Least length, of at most one: sums of them in floating point tell it from nothing."""


def congestion_bounds(model: ContractedProblem) -> Iterator[int]:
    """Yield the best bound after every round; ends where the second half of the rounds, of eight or
    more, gained less than a thousandth. Yields nothing where no flow proves any.

    Lengths grow by up to e^4 in the first round, and by a factor e more in each that follows: with
    twice and four times as much, bounds on eleven graphs ended within 2 %.
    """
    ticks, weight = model.smallest_times, model.weight.min(axis=1, initial=np.iinfo(np.int64).max)
    graph, nodes, weight = _part_with_most_work(model, np.flatnonzero(weight > 0), ticks, weight)
    ticks, k = ticks[nodes].tolist(), model.problem.num_devices
    work = max(1, sum(ticks))
    units = np.array([UNITS * p // work for p in ticks], np.int64)
    if np.count_nonzero(units) < 2:
        return  # nothing is sent
    q, per_unit = int(units.sum()), Fraction(work, UNITS)
    used, found = np.zeros(len(weight), np.int64), list[int]()
    while len(found) < 8 or 1000 * found[-1] > 1001 * found[len(found) // 2]:
        for first in range(min(STEPS, len(units))):
            crowded = used / weight
            growth = (4.0 + len(found)) * (crowded / max(1e-300, crowded.max()) - 1.0)
            lengths = np.exp(growth) / weight
            more = _use(graph, units, np.arange(first, len(units), STEPS), lengths / lengths.max())
            if more is None:
                return
            used += more
        most = max(Fraction(u, w) for u, w in zip(used.tolist(), weight.tolist(), strict=True))
        x, rounds = Fraction(q, k), len(found) + 1
        least = ceil(min(x * per_unit + 2 * rounds * x * (q - x) / most, q * per_unit))
        found.append(max(least, *found[-1:], 0))
        yield found[-1]


def round_seconds(model: ContractedProblem, *, each: float = 4e-7) -> float:
    """Return about how long a round takes; `each` is for a path of a pair of nodes, or of a node
    and a tensor: 2e-7 to 4e-7 on twelve graphs that were measured.
    """
    return each * model.num_nodes * (model.num_nodes + len(model.producer))


def _part_with_most_work(
    model: ContractedProblem, tensors: Ints, ticks: Ints, weight: Ints
) -> tuple[csr_matrix, Ints, Ints]:
    """Return the graph of nodes and tensors (nodes first; data: the number of the tensor), its
    nodes, and the weights of its tensors, of the connected part with the most work.
    """
    n, m = model.num_nodes, len(tensors)
    pins = [(model.producer[t], *model.readers(t)) for t in tensors.tolist()]
    node = np.array([v for row in pins for v in row], np.int64)
    hub = np.repeat(np.arange(m), [len(row) for row in pins])
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
    return coo_matrix((number, ends), (inside.sum(),) * 2).tocsr(), nodes, weight[tensors[hubs]]


def _use(graph: csr_matrix, units: Ints, sources: Ints, lengths: Floats) -> Ints | None:
    """Return the units through every tensor if those of some nodes take shortest paths to all; None
    if floating point cannot tell what comes before what on these.
    """
    weighted = graph.copy()
    weighted.data = np.maximum(lengths, SHORTEST)[graph.data.astype(np.int64) - 1]
    far, before = dijkstra(weighted, indices=sources, return_predecessors=True)
    onwards, row = np.zeros(far.shape, np.int64), np.arange(len(sources))
    onwards[:, : len(units)] = units
    for v in np.argsort(-far, axis=1, kind="stable")[:, :-1].T:
        onwards[row, before[row, v]] += onwards[row, v]
    if (onwards[row, sources] != units.sum()).any():
        return None
    return np.asarray(units[sources] @ onwards[:, len(units) :])
