"""Lower bounds: no schedule is shorter, whatever the solver (one file per bound, each with its proof).

`bound` runs them cheapest first under a time budget and says which one won.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.model.problem import PlacementProblem

METHODS = (
    "critical-path",
    "load",
    "communication",
    "head-tail",
    "energy",
    "destructive",
    "front",
    "assignment-lp",
    "time-indexed-lp",
)
"""Bounds on the makespan, cheapest first."""


@dataclass(frozen=True)
class BoundReport:
    """What `bound` proved.

    Attributes
    ----------
    value : the best lower bound in ticks.
    method : the bound that proved it, the cheapest one among equals.
    bounds : ticks per method that was run.
    infeasible : why the problem has no placement at all, "" unless that is proved.
    """

    value: int
    method: str
    bounds: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    infeasible: str = ""


def bound(
    problem: PlacementProblem,
    seconds: float = 10.0,
    methods: Sequence[str] | None = None,
    upper: int | None = None,
) -> BoundReport:
    """Return the best lower bound on the objective of `problem` that can be proved in about `seconds`.

    The combinatorial bounds always run (they take milliseconds to a few seconds); the others as time allows.

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
    if problem.objective != "makespan":
        return _period_bound(problem, seconds, methods)
    chosen = METHODS if methods is None else tuple(methods)
    for name in chosen:
        if name not in METHODS:
            raise InputError(f"bound method '{name}' is not known; known: {', '.join(METHODS)}")
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.feasibility import infeasible_reason

    reason = infeasible_reason(problem)
    analysis = Analysis(problem, seconds=seconds, upper=upper)
    for name in METHODS:
        if name in chosen and not analysis.closed():
            analysis.run(name, optional=methods is None)
    value, method = analysis.best()
    return BoundReport(value, method, dict(analysis.bounds), time.perf_counter() - started, reason)


def _period_bound(problem: PlacementProblem, seconds: float, methods: Sequence[str] | None) -> BoundReport:
    """Bounds of the period and latency objectives: those of their own models, and the two that hold anyway.

    Ops on a path follow each other within one sample, and the busiest device of a pipeline carries at least
    the average load (a latency problem has an unlimited pool of CPUs, so only the path counts there).
    """
    import placeopt.period.evaluate
    from placeopt.makespan.bounds.analysis import Analysis

    started = time.perf_counter()
    analysis = Analysis(problem, seconds=seconds)
    name = "load" if problem.objective == "period" else "critical-path"
    found = {name: analysis.run(name)}
    own = getattr(placeopt.period.evaluate, "period_bounds", None)  # (problem, seconds) -> {method: ticks}
    if own is not None:
        found.update(own(problem, seconds))
    if methods is not None:
        for name in methods:
            if name not in found:
                raise InputError(
                    f"bound method '{name}' is not known for {problem.objective}; known: {', '.join(found)}"
                )
        found = {name: found[name] for name in methods}
    method = max(found, key=lambda name: found[name]) if found else "none"
    return BoundReport(found.get(method, 0), method, found, time.perf_counter() - started)


__all__ = ["METHODS", "Analysis", "BoundReport", "bound"]


def __getattr__(name: str) -> object:
    """Import the analysis (numba) on first use."""
    if name == "Analysis":
        from placeopt.makespan.bounds.analysis import Analysis

        return Analysis
    raise AttributeError(f"module 'placeopt.makespan.bounds' has no attribute {name!r}")
