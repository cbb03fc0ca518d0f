"""Lower bounds: no schedule is shorter, whatever the solver (one file per bound, each with its
proof).

`bound` runs them cheapest first under a time budget and says which one won.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from placeopt.model.bound import BoundReport, check_methods
from placeopt.model.problem import PlacementProblem

METHODS = (
    "critical-path",
    "load",
    "communication",
    "fork-join",
    "head-tail",
    "energy",
    "destructive",
    "congestion",
    "segments",
    "front",
)
"""Bounds on the makespan, cheapest first."""


def bound(
    problem: PlacementProblem,
    seconds: float = 10.0,
    methods: Sequence[str] | None = None,
    upper: int | None = None,
) -> BoundReport:
    """Return the best lower bound on the makespan of `problem` that can be proved in about
    `seconds`.

    Each runs as time allows, by an estimate of its work, and stops at the end of the time; 0
    seconds allow about a tenth of a second. `BoundReport.infeasible` says why the problem has no
    solution, where that is proved.

    Parameters
    ----------
    methods : names out of `METHODS` to run; None for all that the time allows.
    upper : value of a known solution in ticks: the search for bounds ends once it is reached.

    Raises
    ------
    InputError
        If a method is unknown.
    """
    started = time.perf_counter()
    chosen = METHODS if methods is None else tuple(methods)
    check_methods("the makespan", chosen, METHODS)
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.model.feasibility import impossible_reason

    reason = impossible_reason(problem)
    if not reason:
        analysis = Analysis(problem, seconds=seconds, upper=upper)
        analysis.run_all(chosen, optional=methods is None)
        value, method = analysis.best()
        if value < analysis.most:
            return BoundReport(value, method, dict(analysis.bounds), time.perf_counter() - started)
        reason = f"no schedule of any length keeps to the constraints together ({method})"
    return BoundReport.of({}, started, reason)


__all__ = ["METHODS", "BoundReport", "bound"]
