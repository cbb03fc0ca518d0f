"""`cp-sat`: exact placement by constraint programming, anytime, with a proven lower bound."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from placeopt.model.errors import Refused
from placeopt.solvers.exact.placement_cp_sat import CpSatSettings
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

    Search = Callable[[CpSatSettings, PlacementProblem, Tracker[Placement]], None]


def _makespan() -> tuple[Search, Search]:
    from placeopt.solvers.exact.makespan_tactics import prove_makespan, search_makespan

    return search_makespan, prove_makespan


def _period() -> tuple[Search, Search]:
    from placeopt.solvers.exact.period_tactics import search_period

    return search_period, partial(search_period, prove=True)


def _latency() -> tuple[Search, Search]:
    from placeopt.solvers.exact.latency_tactics import search_latency

    return search_latency, partial(search_latency, prove=True)


SEARCHES = {"makespan": _makespan, "period": _period, "latency": _latency}
"""By objective: the search, and what runs those of its tactics that prove; both are functions of
(settings, problem, tracker)."""


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

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Search for the best placement and prove it."""
        if PluginTracker.whole_of(tracker) is tracker:
            self._search_of(problem)[0](self, problem, tracker)
        else:  # of a class derived from this one: what ours proves is run as ours
            own = CpSat(**{field.name: getattr(self, field.name) for field in fields(CpSat)})
            run_part(tracker, own, initial=tracker.solution)

    def proves_objective(self, name: str) -> bool:
        """Whether there are tactics that prove bounds on the objective."""
        return name in SEARCHES

    def prove(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Run only the tactics that prove; what they find on the way is offered, too."""
        self._search_of(problem)[1](self, problem, tracker)

    def _search_of(self, problem: PlacementProblem) -> tuple[Search, Search]:
        found = SEARCHES.get(problem.objective)
        if found is None:
            raise Refused(
                f"solver '{self.name}' takes the objectives {', '.join(SEARCHES)}, received "
                f"'{problem.objective}'"
            )
        return found()
