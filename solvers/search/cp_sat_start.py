"""What the exact makespan solvers start from: the best of the fast heuristics, as long as time
allows, and combinatorial bounds.
"""

from __future__ import annotations

from typing import Any

from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.evaluate import best_queue
from placeopt.makespan.judge import placement_violations
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.tracker import PlacementTracker

HEURISTICS = ("etf", "single-device", "edge-zeroing", "heft", "few-hosts", "critical-path", "dsc")
"""Tried in this order, as far as they add something: the first always gives something, the next
ones win where communication is dear."""


def warm_start(problem: PlacementProblem, tracker: PlacementTracker) -> None:
    """Offer the placements of the heuristics to the tracker until its time is up, one at least."""
    for name in HEURISTICS:
        if tracker.stop_with_solution():
            return
        made: Any = make_solver(name)
        solver, seconds = made.within(problem, tracker.seconds_left), tracker.share(0.25).seconds
        if solver is None:
            continue
        result = run_part(tracker, solver, seconds=seconds, evaluations=50, adopt=False)
        if result is not None and result.solution is not None:
            tracker.offer(result.value, result.solution)


def offer(problem: PlacementProblem, tracker: PlacementTracker, placement: Placement) -> bool:
    """Evaluate a placement under its best execution and offer it; return whether it became the
    incumbent.
    """
    if placement_violations(problem, placement):
        return False
    value, _ = best_queue(problem, placement)
    return value != INFEASIBLE and tracker.offer(value, placement)


def analyse(problem: PlacementProblem, tracker: PlacementTracker, most: float = 10.0) -> Analysis:
    """Return the bounds of a problem, with a quarter of the time of a search, at most so many
    seconds; no clock decides anything where evaluations alone limit the search.
    """
    counted = tracker.budget.evaluations is not None and tracker.budget.seconds is None
    return Analysis(problem, min(most, tracker.seconds_left / 4), counted=counted)
