"""`cp-sat`: exact placement by constraint programming, anytime, with a proven lower bound."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.cp_sat import cp_solver
from placeopt.model.errors import Refused
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

SEARCHES = {
    "makespan": "placeopt.solvers.exact.makespan_tactics:search_makespan",
    "period": "placeopt.solvers.exact.period_tactics:search_period",
    "latency": "placeopt.solvers.exact.latency_tactics:search_latency",
}
"""By objective: the search, a function of (settings, problem, tracker)."""

PROOFS = {
    "makespan": "placeopt.solvers.exact.makespan_tactics:prove_makespan",
    "period": "placeopt.solvers.exact.period_tactics:prove_period",
    "latency": "placeopt.solvers.exact.latency_tactics:prove_latency",
}
"""By objective: what runs the tactics of such a search that prove."""


@dataclass(frozen=True)
class CpSat(SearchSolver):
    """Exact placement by CP-SAT, with a model per objective; an evaluation is a conflict of its
    search.

    With one worker a solve with an evaluation budget is reproducible to the last step.

    Attributes
    ----------
    work_a_conflict : deterministic CP-SAT time (about seconds) that counts as an evaluation, like a
    conflict: some models have no conflicts for long.

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

    tactics: str = option(
        "all",
        meaning="tactics to use: all, or some names of the objective's joined by commas",
    )

    name: ClassVar[str] = "cp-sat"
    work_a_conflict: ClassVar[float] = 0.05
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
        if PluginTracker.whole_of(tracker) is tracker:
            self._call(SEARCHES, problem, tracker)
        else:  # of a class derived from this one: what ours proves is run as ours
            own = CpSat(**{field.name: getattr(self, field.name) for field in fields(CpSat)})
            run_part(tracker, own, initial=tracker.solution)

    def proves_objective(self, name: str) -> bool:
        """Whether there are tactics that prove bounds on the objective."""
        return name in PROOFS

    def prove(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Run only the tactics that prove; what they find on the way is offered, too."""
        self._call(PROOFS, problem, tracker)

    def _call(
        self, table: dict[str, str], problem: PlacementProblem, tracker: Tracker[Placement]
    ) -> None:
        target = table.get(problem.objective)
        if target is None:
            raise Refused(
                f"solver '{self.name}' takes the objectives {', '.join(table)}, received "
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
            "effort": settings.work_a_conflict * conflicts,
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


def ended_by_others(solver: Any, tracker: Tracker[Any]) -> AbstractContextManager[Any]:
    """Let those with whom the tracker exchanges end a run of CP-SAT, too."""
    if tracker.exchange is None:
        return nullcontext()
    return tracker.exchange.ending(solver.stop_search)


def evaluations_of(solver: Any, tracker: Tracker[Any]) -> int:
    """Return what a run of CP-SAT counts: its conflicts, or its work where evaluations are the
    limit and that is more.
    """
    if tracker.budget.evaluations is None:
        return max(1, int(solver.num_conflicts))
    work = int(solver.response_proto.deterministic_time / CpSat.work_a_conflict)
    return max(1, int(solver.num_conflicts), work)
