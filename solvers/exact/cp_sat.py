"""`cp-sat`: exact placement by constraint programming, anytime, with a proven lower bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from placeopt.model.problem import PlacementProblem
from placeopt.solvers.exact.placement_cp_sat import CpSatSettings
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part
from placeopt.solving.tracker import PlacementTracker

Search = Callable[..., None]


def _makespan() -> Search:
    from placeopt.solvers.exact.makespan_tactics import search_makespan

    return search_makespan


def _period() -> Search:
    from placeopt.solvers.exact.period_tactics import search_period

    return search_period


def _latency() -> Search:
    from placeopt.solvers.exact.latency_tactics import search_latency

    return search_latency


SEARCHES = {"makespan": _makespan, "period": _period, "latency": _latency}
"""By objective: the search, of (settings, problem, tracker); with `prove` it runs those of its
tactics that prove."""


@dataclass(frozen=True)
class CpSat(CpSatSettings):
    """Exact placement by CP-SAT, with a model per objective; an evaluation is a conflict of its
    search.

    A solve with an evaluation budget is reproducible to the last step.

    References
    ----------
    L. Perron, F. Didier, S. Gay, "The CP-SAT-LP solver", CP 2023.
    """

    watched_from = 4000  # building the model takes its time
    kernels = (
        "ranks",
        "lists",
        "lists-by-time",
        "clusterings",
        "bounds",
        "period-dp",
        "period-search",
        "period-columns",
    )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Search for the best placement and prove it."""
        if PluginTracker.whole_of(tracker) is tracker:
            SEARCHES[problem.objective]()(self, problem, tracker)
        else:  # of a class derived from this one: what ours proves is run as ours
            own = CpSat(**{field.name: getattr(self, field.name) for field in fields(CpSat)})
            run_part(tracker, own, initial=tracker.solution)

    def proves_objective(self, name: str) -> bool:
        """Whether there are tactics that prove bounds on the objective."""
        return name in SEARCHES

    def prove(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Run only the tactics that prove; what they find on the way is offered, too."""
        SEARCHES[problem.objective]()(self, problem, tracker, prove=True)
