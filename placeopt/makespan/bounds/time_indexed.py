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
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.energy import search_horizon
from placeopt.makespan.bounds.head_tail import class_energy, fits
from placeopt.model.exact_program import IntegerProgram

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.relaxation import Relaxation

INTERVALS = 32
LARGEST = 1_500
"""Ops beyond which the LP is left out."""

ONE = 1 << 20
"""Scale of theta: the LP's optimum is a share, its certified bound an integer multiple of 1 / ONE."""


def time_indexed_bound(
    relaxation: Relaxation,
    heads: HeadsTails,
    weights: NDArray[np.int64],
    known: int,
    seconds: float,
    upper: int | None = None,
) -> int:
    """Return the best refuted horizon + 1, or `known`."""
    if relaxation.num_ops > LARGEST or known < 1 or not fits(relaxation, weights * INTERVALS):
        return known
    end = time.perf_counter() + seconds

    def refuted(horizon: int) -> bool:
        left = end - time.perf_counter()
        return left > 0 and refutes(relaxation, heads, weights, horizon, left)

    # multiples of a thousandth of the bound: the last digits of a coarse grid are not worth an LP each
    coarse = max(1, known // 1000)
    most = None if upper is None else (upper - known) // coarse + 2
    found = search_horizon(lambda step: refuted(known + (step - 1) * coarse), 1, most)
    return known if found == 1 else known + (found - 2) * coarse + 1


def refutes(
    relaxation: Relaxation, heads: HeadsTails, weights: NDArray[np.int64], horizon: int, seconds: float
) -> bool:
    """Whether the LP proves that no schedule of length at most `horizon` exists."""
    n = relaxation.num_ops
    width = -(-horizon // INTERVALS)
    head, tail = heads.minima()
    fastest = relaxation.min_compute
    if ((head + fastest + tail) > horizon).any():
        return True
    energy = class_energy(relaxation.compute, weights)
    lp = IntegerProgram()
    theta = lp.variable(0, ONE, ONE, cost=-1)
    columns: list[dict[int, int]] = []  # interval -> variable F[v, interval]
    used: list[list[tuple[int, int]]] = [[] for _ in range(INTERVALS)]
    for v in range(n):
        begin, finish = int(head[v]), horizon - int(tail[v])
        mine: dict[int, int] = {}
        before = -1
        for g in range(begin // width, max(begin, finish - 1) // width + 1):
            inside = min(finish, (g + 1) * width) - max(begin, g * width)
            # an op without running time takes no room anywhere in its window
            most = ONE if fastest[v] == 0 else min(ONE, -(-ONE * inside // int(fastest[v])))
            mine[g] = lp.variable(0, ONE if before >= 0 else max(0, most), ONE)
            step = [(1, mine[g])] if before < 0 else [(1, mine[g]), (-1, before)]
            if before >= 0:
                lp.row(step, 0, ONE)
                if most < ONE:
                    lp.row([(-c, x) for c, x in step], -max(0, most), ONE)
            used[g] += [(-c * int(energy[v]), x) for c, x in step if energy[v]]
            before = mine[g]
        lp.row([(1, before), (-1, theta)], 0, ONE, equal=True)
        columns.append(mine)
    offer = int((relaxation.class_size * weights).sum()) * width
    for terms in used:
        if terms:
            lp.row(terms, -offer * ONE, float(offer) * ONE)
    for u, v in zip(relaxation.source.tolist(), relaxation.target.tolist(), strict=True):
        for g in range(min(columns[v]), max(columns[u])):
            if g in columns[u]:
                lp.row([(1, columns[u][g]), (-1, columns[v].get(g, theta))], 0, ONE)
    value = lp.value(float(ONE), seconds)
    return value is not None and value > -ONE
