"""Time-indexed LP on a coarse grid: refute a horizon by work, windows and precedence together.

Relaxation. Cut [0, T] into G intervals of width w = ceil(T / G). In a schedule of length at most T let
f[v, g] be the share of op v's running time that lies in interval g, and F[v, g] the sum up to g. Op v
runs inside [head, T - tail], so f vanishes elsewhere and f[v, g] p_v is at most what of the window lies
in g; the devices work at most sum_D s_D y_D w in an interval (class weights y as in the load bound,
energies min_D y_D p[v, D] scaled by f, which holds because an op's running time is split in the same
shares whatever its device); and for an edge (u, v) nothing of v happens before u is complete: F[v, g] <=
F[u, g]. If not all ops can be completed, T is refuted. The LP maximises a common share theta of all ops;
its certified upper bound being below 1 is the proof.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from placeopt.makespan.bounds.energy import search_horizon
from placeopt.makespan.bounds.head_tail import class_energy, fits
from placeopt.model.exact_program import IntegerProgram

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.evidence import Evidence
    from placeopt.makespan.bounds.relaxation import Relaxation

INTERVALS = 32
LARGEST = 1_500
"""Ops beyond which the LP is left out."""

ONE = 1 << 20
"""Scale of theta: the LP's optimum is a share, its certified bound an integer multiple of 1 / ONE."""


def time_indexed_bound(evidence: Evidence, end: float) -> int:
    """Return the best refuted horizon + 1, or `known`; stops at `end`, in seconds of `time.perf_counter`."""
    relaxation, heads, weights, known = evidence.relaxation, evidence.heads, evidence.weights, evidence.known
    if relaxation.num_ops > LARGEST or known < 1 or not fits(relaxation, weights * INTERVALS):
        return known

    def refuted(horizon: int) -> bool:
        left = end - time.perf_counter()
        return left > 0 and refutes(relaxation, heads, weights, horizon, left)

    # multiples of a thousandth of the bound: the last digits of a coarse grid are not worth an LP each
    coarse = max(1, known // 1000)
    most = (evidence.limit - known) // coarse + 2
    found = search_horizon(lambda step: refuted(known + (step - 1) * coarse), 1, most)
    return known if found == 1 else known + (found - 2) * coarse + 1


def refutes(
    relaxation: Relaxation, heads: HeadsTails, weights: NDArray[np.int64], horizon: int, seconds: float
) -> bool:
    """Whether the LP proves that no schedule of length at most `horizon` exists."""
    end = time.perf_counter() + seconds
    if int(heads.through().max()) > horizon:
        return True
    lp = IntegerProgram()
    theta = lp.variable(0, ONE, ONE, cost=-1)
    grid = Grid(horizon, max(1, -(-horizon // INTERVALS)))
    head, tail = heads.minima()
    columns, added = [], []
    for v, length in enumerate(relaxation.min_compute.tolist()):
        mine, steps = _progress(lp, grid, int(head[v]), horizon - int(tail[v]), length)
        lp.row([(1, max(mine.values())), (-1, theta)], 0, ONE, equal=True)
        columns.append(mine)
        added.append(steps)
    _capacity(lp, grid, added, class_energy(relaxation.compute, weights), int((relaxation.class_size * weights).sum()))
    _precedence(lp, relaxation, columns, theta)
    value = lp.value(float(ONE), end - time.perf_counter())
    return value is not None and value > -ONE


class Grid(NamedTuple):
    """Intervals of one horizon."""

    horizon: int
    width: int  # ticks of an interval

    def interval(self, moment: int) -> int:
        """Return the interval of a moment; the horizon itself belongs to the last one."""
        return min(moment // self.width, INTERVALS - 1)


Step = list[tuple[int, int]]
"""What an op gains in one interval: (coefficient, variable)."""


def _progress(lp: IntegerProgram, grid: Grid, begin: int, finish: int, length: int) -> tuple[dict[int, int], dict[int, Step]]:
    """Variables F[v, g] of an op that runs inside [begin, finish), and its steps f[v, g], by interval."""
    mine: dict[int, int] = {}
    steps: dict[int, Step] = {}
    before = -1
    for g in range(grid.interval(begin), grid.interval(max(begin, finish - 1)) + 1):
        inside = min(finish, (g + 1) * grid.width) - max(begin, g * grid.width)
        # an op without running time takes no room anywhere in its window
        most = ONE if length == 0 else min(ONE, -(-ONE * inside // length))
        mine[g] = lp.variable(0, ONE if before >= 0 else max(0, most), ONE)
        steps[g] = [(1, mine[g])] if before < 0 else [(1, mine[g]), (-1, before)]
        if before >= 0:
            lp.row(steps[g], 0, ONE)
            if most < ONE:
                lp.row([(-c, x) for c, x in steps[g]], -max(0, most), ONE)
        before = mine[g]
    return mine, steps


def _capacity(lp: IntegerProgram, grid: Grid, added: list[dict[int, Step]], energy: NDArray[np.int64], width: int) -> None:
    """In an interval the devices offer `width` units of energy a tick."""
    used: list[Step] = [[] for _ in range(INTERVALS)]
    for need, steps in zip(energy.tolist(), added, strict=True):
        for g, step in steps.items():
            if need:
                used[g] += [(-c * need, x) for c, x in step]
    offer = width * grid.width
    for terms in used:
        if terms:
            lp.row(terms, -offer * ONE, float(offer) * ONE)


def _precedence(lp: IntegerProgram, relaxation: Relaxation, columns: list[dict[int, int]], theta: int) -> None:
    """Nothing of an op happens before its predecessors are complete."""
    for u, v in zip(relaxation.source.tolist(), relaxation.target.tolist(), strict=True):
        for g in range(min(columns[v]), max(columns[u])):
            if g in columns[u]:
                lp.row([(1, columns[u][g]), (-1, columns[v].get(g, theta))], 0, ONE)
