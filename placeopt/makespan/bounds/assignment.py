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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.exact_program import IntegerProgram

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.relaxation import Relaxation

LARGEST = 60_000
"""Edges times classes beyond which the LP is left out."""


def assignment_bound(relaxation: Relaxation, heads: HeadsTails, known: int, end: float) -> int:
    """Return the certified LP bound, or `known` where the LP is skipped or not solved until `end` (`perf_counter`)."""
    classes = relaxation.compute.shape[1]
    if classes == 1 or (len(relaxation.source) + relaxation.num_ops) * classes > LARGEST:
        return known
    unit = float(max(1, known))
    lp = IntegerProgram()
    makespan = lp.variable(known, relaxation.serial, unit, cost=1)
    item, _, resident = relaxation.items
    program = _Program(lp, relaxation, heads, item, _shares(lp, relaxation, item), makespan, unit)
    program.edges(program.starts())
    program.loads()
    program.memory(resident)
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


@dataclass(frozen=True, eq=False)
class _Program:
    """The LP of the module text; each method adds a family of rows."""

    lp: IntegerProgram
    relaxation: Relaxation
    heads: HeadsTails
    item: NDArray[np.int64]  # (num_ops,)
    share: list[dict[int, int]]  # variable x of each item and class
    makespan: int  # variable T
    unit: float  # ticks, the scale of times

    def starts(self) -> list[int]:
        """Variables S with their heads and tails."""
        result = []
        for v in range(self.relaxation.num_ops):
            start = self.lp.variable(0, self.relaxation.serial, self.unit)
            result.append(start)
            x = self.share[self.item[v]]
            self.lp.row([(1, start), *((-int(self.heads.head[v, d]), column) for d, column in x.items())], 0, self.unit)
            after = [(-int(self.relaxation.compute[v, d] + self.heads.tail[v, d]), column) for d, column in x.items()]
            self.lp.row([(1, self.makespan), (-1, start), *after], 0, self.unit)
        return result

    def edges(self, starts: list[int]) -> None:
        """Precedence with the communication that leaves a class."""
        pairs = zip(self.relaxation.source.tolist(), self.relaxation.target.tolist(), strict=True)
        leave = _cheapest_exit(self.relaxation)
        moved: dict[tuple[int, int, int], int] = {}
        for at, (u, v) in enumerate(pairs):
            i, j = int(self.item[u]), int(self.item[v])
            terms = [(1, starts[v]), (-1, starts[u])]
            terms += [(-int(self.relaxation.compute[u, d]), column) for d, column in self.share[i].items()]
            if i != j:
                for d, column in self.share[i].items():
                    cost = int(leave[at, d])
                    if cost <= 0:
                        continue
                    if (i, j, d) not in moved:
                        y = self.lp.variable(0, 1)
                        moved[i, j, d] = y
                        other = [(1, self.share[j][d])] if d in self.share[j] else []
                        self.lp.row([(1, y), (-1, column), *other], 0)
                    terms.append((-cost, moved[i, j, d]))
            self.lp.row(terms, 0, self.unit)

    def loads(self) -> None:
        """Work of threshold sets on each class."""
        head, tail = self.heads.minima()
        levels = [
            np.unique(x[np.argsort(x)[np.linspace(0, len(x) - 1, 6).astype(int)]]).tolist() for x in (head, tail)
        ]
        for a in levels[0]:
            for b in levels[1]:
                inside = np.flatnonzero((head >= a) & (tail >= b))
                if not len(inside):
                    continue
                for d, size in enumerate(self.relaxation.class_size.tolist()):
                    work: dict[int, int] = {}
                    for v in inside.tolist():
                        if d in self.share[self.item[v]]:
                            column = self.share[self.item[v]][d]
                            work[column] = work.get(column, 0) + int(self.relaxation.compute[v, d])
                    terms = [(size, self.makespan), *((-ticks, column) for column, ticks in work.items())]
                    self.lp.row(terms, size * (a + b), self.unit)

    def memory(self, resident: NDArray[np.int64]) -> None:
        """Bytes of each class."""
        problem = self.relaxation.problem
        for d in range(len(self.relaxation.class_size)):
            room = sum(int(x) for x in problem.capacity[self.relaxation.class_of == d].tolist())
            if room >= UNLIMITED or room >= int(resident.sum()):
                continue
            terms = [(-int(resident[i]), columns[d]) for i, columns in enumerate(self.share) if d in columns]
            self.lp.row(terms, -room, float(max(1, room)))


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
