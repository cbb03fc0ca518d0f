"""Lower bounds on the period of any placement, contiguity ignored; each is proved in its module."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    for method in METHODS:
        left = end - time.perf_counter()
        if method not in methods:
            continue
        if method == "load":
            value = Analysis(problem, seconds=max(0.0, left)).run("load")
        elif method == "op":
            value = largest_op(model)
        elif method == "pigeonhole":
            value = pigeonhole(model, best)
        elif method == "area" and left > 0 and model.num_nodes <= _AREA_NODES:
            value = area(model, left)
        elif (
            method == "columns"
            and left > max(_COLUMN_SECONDS, 3 * needed)
            and problem.num_devices > 1
        ):
            value = column_bound(problem, best, upper, left)
        else:
            continue
        best = max(best, value)
        yield method, value
