"""Lower bounds on the period of any placement, contiguity ignored; each is proved in its module."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from placeopt.model.problem import PlacementProblem

METHODS = ("load", "op", "pigeonhole", "area", "columns")
"""Names of the bounds, cheapest first."""

_AREA_NODES = 20_000  # above this the linear program of `area` is not tried
_CONTRACT_SECONDS = (
    8e-6  # per op, edge and a hundredth of an op on a device: what contracting takes, about
)
_MILLISECONDS = 0.5  # seconds that contracting may take where there is no time
_COLUMN_SECONDS = 2.0  # with less time than this `columns` is not tried


def period_bounds(
    problem: PlacementProblem,
    seconds: float,
    methods: Sequence[str] = METHODS,
    upper: int | None = None,
) -> Iterator[tuple[str, int]]:
    """Yield (method, ticks) one after the other; without time only those that take milliseconds.

    Parameters
    ----------
    upper : period of a known placement in ticks, which `columns` may prove to be the best.

    Raises
    ------
    InfeasibleProblemError
        If ops that must share a device have no device in common.
    """
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.period.bounds.area import area
    from placeopt.period.bounds.combinatorial import largest_op, pigeonhole
    from placeopt.period.bounds.prices import column_bound
    from placeopt.period.contracted import contract

    end, best = time.perf_counter() + seconds, 0
    needed = _CONTRACT_SECONDS * (
        problem.num_ops * (1 + problem.num_devices / 100) + problem.num_edges
    )
    if seconds < needed and needed > _MILLISECONDS:
        if "load" in methods:
            yield "load", Analysis(problem, seconds=0.0).run("load")
        return
    model = contract(problem, contiguity="none")
    bounds: dict[str, Callable[[float], int]] = {
        "load": lambda left: Analysis(problem, seconds=max(0.0, left)).run("load"),
        "op": lambda _: largest_op(model),
        "pigeonhole": lambda _: pigeonhole(model, best),
        "area": lambda left: area(model, left),
        "columns": lambda left: column_bound(problem, best, upper, left),
    }
    least = {
        "area": 0.0 if model.num_nodes <= _AREA_NODES else math.inf,
        "columns": max(_COLUMN_SECONDS, 3 * needed) if problem.num_devices > 1 else math.inf,
    }
    for method in METHODS:
        left = end - time.perf_counter()
        if method in methods and left > least.get(method, -math.inf):
            value = bounds[method](left)
            best = max(best, value)
            yield method, value
