"""The default: the Lagrangian bound, CP-SAT on what it leaves, and the search by tree moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.solvers.sharding.tactics import work
from placeopt.solving.base import SearchSolver
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from placeopt.sharding.problem import ShardingProblem, ShardingSolution
    from placeopt.solving.bound import BoundTracker
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class ShardingPortfolio(SearchSolver):
    """Tactics that share what they find."""

    name: ClassVar[str] = "sharding-portfolio"
    endless: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = ("sharding",)

    def search(self, problem: ShardingProblem, tracker: Tracker[ShardingSolution]) -> None:
        """Improve choice and bound until the budget is spent or they meet."""
        if PluginTracker.whole_of(tracker) is tracker:
            work(problem, tracker)
        else:  # of a class derived from this one: what ours proves is run as ours
            run_part(tracker, ShardingPortfolio(), initial=tracker.solution)

    def proves_objective(self, name: str) -> bool:
        """Whether it proves bounds on the objective."""
        return name == "cost"

    def prove(self, problem: ShardingProblem, tracker: BoundTracker) -> None:
        """Raise the bound; a better choice helps to, so that one is looked for as well."""
        work(problem, tracker, tracker.upper)
