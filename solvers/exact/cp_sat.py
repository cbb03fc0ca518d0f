"""`cp-sat`: exact placement by constraint programming, anytime, with a proven lower bound."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.cp_sat import cp_solver
from placeopt.model.errors import Refused
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

SEARCHES = {
    "makespan": "placeopt.solvers.exact.makespan_cp_sat:search_makespan",
    "period": "placeopt.solvers.exact.period_cp_sat:search_period",
    "latency": "placeopt.solvers.exact.latency_cp_sat:search_latency",
}
"""By objective: the search, a function of (settings, problem, tracker)."""

WORK, WORK_A_CONFLICT = 5.0, 0.05
"""Deterministic CP-SAT time (about seconds) that a limit of evaluations alone allows: at first, and
for each of them."""


@dataclass(frozen=True)
class CpSat(SearchSolver):
    """Exact placement by CP-SAT, with a model per objective; an evaluation is a conflict of its
    search.

    With one worker a solve with an evaluation budget is reproducible to the last step.

    References
    ----------
    L. Perron, F. Didier, S. Gay, "The CP-SAT-LP solver", CP 2023.
    """

    num_workers: int = option(2, low=1, meaning="threads of CP-SAT")
    log: bool = option(False, meaning="print CP-SAT's own log")
    warm_start: bool = option(
        True, meaning="start from the best fast heuristic, not only from the initial solution"
    )
    windows: bool = option(
        True,
        meaning="re-optimise windows of the incumbent (makespan); without, all time goes to the "
        "proof",
    )

    name: ClassVar[str] = "cp-sat"
    watched_from: ClassVar[int] = 4000  # building the model takes its time
    kernels: ClassVar[tuple[str, ...]] = (
        "ranks",
        "lists",
        "lists-by-time",
        "clusterings",
        "bounds",
        "period-dp",
        "period-search",
        "period-columns",
    )

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Search for the best placement and prove it."""
        target = SEARCHES.get(problem.objective)
        if target is None:
            raise Refused(
                f"solver '{self.name}' takes the objectives {', '.join(SEARCHES)}, received "
                f"'{problem.objective}'"
            )
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(self, problem, tracker)


def configured(settings: CpSat, tracker: Tracker[Any], share: float = 1.0) -> Any:
    """Return a CP-SAT solver with limits, workers and seed from `share` of what is left of the
    tracker's budget.
    """
    limits: dict[str, Any] = {}
    if tracker.budget.evaluations is not None:
        conflicts = max(1, int(share * tracker.evaluations_left))
        limits = {
            "max_number_of_conflicts": conflicts,
            # some models have no conflicts for long
            "effort": WORK + WORK_A_CONFLICT * conflicts,
            # the same answer whatever the threads
            "interleave_search": settings.num_workers > 1,
        }
    return cp_solver(
        workers=settings.num_workers,
        seconds=share * tracker.seconds_left,
        seed=tracker.seed,
        log_search_progress=settings.log,
        symmetry_level=2,
        **limits,
    )
