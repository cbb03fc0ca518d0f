"""Assignment LP: which class of devices runs what, with precedence, communication, load and memory.

Relaxation. x[i, D] is the share of item i on class D (summing to 1), S_v the start of op v, T the
makespan. Every schedule satisfies S_v >= sum_D head[v, D] x[v, D], T >= S_v + sum_D (p + tail)[v, D] x[v,
D], and for an edge (u, v) S_v >= S_u + sum_D p[u, D] x[u, D] + sum_D c[u, v, D] y[u, v, D] with y[u, v,
D] >= x[u, D] - x[v, D]: if u is on D and v is not, the tensor travels over a link no cheaper than the
cheapest one out of D. The ops of S = {head >= a, tail >= b} on D need s_D (T - a - b) >= sum_S p[v, D]
x[v, D], and memory sum_i r_i x[i, D] <= M_D. All are linear, so the LP's optimum bounds T; it is
certified by `placeopt.model.exact_program`. With one class of devices it is no better than the path and the
load, and is skipped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.exact_program import IntegerProgram

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.load import LoadBound
    from placeopt.makespan.bounds.relaxation import Relaxation

LARGEST = 60_000
"""Edges times classes beyond which the LP is left out."""


def assignment_bound(
    relaxation: Relaxation, heads: HeadsTails, load: LoadBound, known: int, end: float
) -> int:
    """Return the certified LP bound, or `known` where the LP is skipped or not solved until `end` (`perf_counter`)."""
    classes = relaxation.compute.shape[1]
    if classes == 1 or (len(relaxation.source) + relaxation.num_ops) * classes > LARGEST:
        return known
    unit = float(max(1, known))
    horizon = relaxation.serial
    lp = IntegerProgram()
    makespan = lp.variable(known, horizon, unit, cost=1)
    item, _, resident = relaxation.items
    share = _shares(lp, relaxation, item)
    starts = _starts(lp, relaxation, heads, item, share, makespan, horizon, unit)
    _edges(lp, relaxation, item, share, starts, unit)
    _loads(lp, relaxation, heads, item, share, makespan, unit)
    _memory(lp, relaxation, resident, share)
    value = lp.value(unit, end - time.perf_counter())
    return known if value is None else max(known, value)


def _shares(lp: IntegerProgram, relaxation: Relaxation, item: NDArray[np.int64]) -> list[dict[int, int]]:
    """Variables x[item, class]."""
    possible = np.ones((int(item.max()) + 1, relaxation.compute.shape[1]), dtype=np.bool_)
    np.logical_and.at(possible, item, relaxation.compute >= 0)
    result = []
    for row in possible:
        columns = {int(d): lp.variable(0, 1) for d in np.flatnonzero(row)}
        lp.row([(1, column) for column in columns.values()], 1, equal=True)
        result.append(columns)
    return result


def _starts(
    lp: IntegerProgram,
    relaxation: Relaxation,
    heads: HeadsTails,
    item: NDArray[np.int64],
    share: list[dict[int, int]],
    makespan: int,
    horizon: int,
    unit: float,
) -> list[int]:
    """Variables S with their heads and tails."""
    result = []
    for v in range(relaxation.num_ops):
        start = lp.variable(0, horizon, unit)
        result.append(start)
        x = share[item[v]]
        lp.row([(1, start), *((-int(heads.head[v, d]), column) for d, column in x.items())], 0, unit)
        after = [(-int(relaxation.compute[v, d] + heads.tail[v, d]), column) for d, column in x.items()]
        lp.row([(1, makespan), (-1, start), *after], 0, unit)
    return result


def _edges(
    lp: IntegerProgram,
    relaxation: Relaxation,
    item: NDArray[np.int64],
    share: list[dict[int, int]],
    starts: list[int],
    unit: float,
) -> None:
    """Precedence with the communication that leaves a class."""
    pairs = zip(relaxation.source.tolist(), relaxation.target.tolist(), strict=True)
    leave = _cheapest_exit(relaxation)
    moved: dict[tuple[int, int, int], int] = {}
    for at, (u, v) in enumerate(pairs):
        i, j = int(item[u]), int(item[v])
        terms = [(1, starts[v]), (-1, starts[u])]
        terms += [(-int(relaxation.compute[u, d]), column) for d, column in share[i].items()]
        if i != j:
            for d, column in share[i].items():
                cost = int(leave[at, d])
                if cost <= 0:
                    continue
                if (i, j, d) not in moved:
                    y = lp.variable(0, 1)
                    moved[i, j, d] = y
                    other = [(1, share[j][d])] if d in share[j] else []
                    lp.row([(1, y), (-1, column), *other], 0)
                terms.append((-cost, moved[i, j, d]))
        lp.row(terms, 0, unit)


def _cheapest_exit(relaxation: Relaxation) -> NDArray[np.int64]:
    """Cheapest transfer of each pair from a device of class D to a device of another class, int64[pairs, classes]."""
    problem = relaxation.problem
    classes = relaxation.compute.shape[1]
    links = []
    for d in range(classes):
        inside = relaxation.class_of == d
        links.append(np.unique(problem.link_class[np.ix_(inside, ~inside)]))
    tensor = problem.edge_tensor
    key = problem.consumer * problem.num_ops + problem.producer[tensor]
    at = np.searchsorted(relaxation.target * problem.num_ops + relaxation.source, key)
    result = np.zeros((len(relaxation.source), classes), dtype=np.int64)
    for d in range(classes):
        if links[d].size:
            np.maximum.at(result[:, d], at, problem.transfer[np.ix_(tensor, links[d])].min(axis=1))
    return result


def _loads(
    lp: IntegerProgram,
    relaxation: Relaxation,
    heads: HeadsTails,
    item: NDArray[np.int64],
    share: list[dict[int, int]],
    makespan: int,
    unit: float,
) -> None:
    """Work of threshold sets on each class."""
    head, tail = heads.minima()
    levels = [
        np.unique(x[np.argsort(x)[np.linspace(0, len(x) - 1, 6).astype(int)]]).tolist() for x in (head, tail)
    ]
    for a in levels[0]:
        for b in levels[1]:
            inside = np.flatnonzero((head >= a) & (tail >= b))
            if not len(inside):
                continue
            for d, size in enumerate(relaxation.class_size.tolist()):
                work: dict[int, int] = {}
                for v in inside.tolist():
                    if d in share[item[v]]:
                        column = share[item[v]][d]
                        work[column] = work.get(column, 0) + int(relaxation.compute[v, d])
                terms = [(size, makespan), *((-ticks, column) for column, ticks in work.items())]
                lp.row(terms, size * (a + b), unit)


def _memory(
    lp: IntegerProgram, relaxation: Relaxation, resident: NDArray[np.int64], share: list[dict[int, int]]
) -> None:
    problem = relaxation.problem
    for d in range(len(relaxation.class_size)):
        room = sum(int(x) for x in problem.capacity[relaxation.class_of == d].tolist())
        if room >= UNLIMITED or room >= int(resident.sum()):
            continue
        terms = [(-int(resident[i]), columns[d]) for i, columns in enumerate(share) if d in columns]
        lp.row(terms, -room, float(max(1, room)))
