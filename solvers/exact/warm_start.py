"""Warm starts of the exact makespan solvers: the best of the fast heuristics, as long as time allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.makespan.evaluate import INFEASIBLE, best_queue
from placeopt.makespan.judge import placement_violations
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

HEURISTICS = ("etf", "single-device", "edge-zeroing", "heft", "critical-path", "dsc")
"""Tried in this order: the first always gives something, the next ones win where communication is dear."""


def warm_start(
    problem: PlacementProblem, tracker: Tracker[Placement], *, seed: int, initial: Placement | None = None
) -> None:
    """Offer `initial` and the placements of the heuristics to the tracker until its time is up.

    Raises
    ------
    InputError
        If `initial` breaks a constraint of the problem.
    """
    if initial is not None:
        offer_initial(problem, tracker, initial)
    for name in HEURISTICS:
        if tracker.stop():
            return
        seconds = None if tracker.budget.seconds is None else tracker.seconds_left / 4
        result = make_solver(name).solve(problem, Budget(seconds=seconds, evaluations=50), seed=seed)
        if result.solution is not None and result.objective is not None:
            tracker.offer(result.objective, result.solution)


def offer_initial(problem: PlacementProblem, tracker: Tracker[Placement], placement: Placement) -> None:
    """Offer the placement that the caller handed over.

    Raises
    ------
    InputError
        If it breaks a constraint of the problem.
    """
    violations = placement_violations(problem, placement)
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise InputError(f"initial placement: {violations[0]}{more}; give a valid one or none")
    offer(problem, tracker, placement)


def offer(problem: PlacementProblem, tracker: Tracker[Placement], placement: Placement) -> bool:
    """Evaluate a placement under its best execution and offer it; return whether it became the incumbent."""
    if placement_violations(problem, placement):
        return False
    value, _ = best_queue(problem, placement)
    return value != INFEASIBLE and tracker.offer(value, placement)
