"""The default: the Lagrangian bound, CP-SAT on what it leaves, and the search by tree moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.solvers.sharding.tactics import work
from placeopt.solving.base import SearchSolver

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
        work(problem, tracker)

    def proves_objective(self, name: str) -> bool:
        """Whether it proves bounds on the objective."""
        return name == "cost"

    def prove(self, problem: ShardingProblem, tracker: BoundTracker) -> None:
        """Raise the bound; a better choice helps to, so that one is looked for as well."""
        work(problem, tracker, tracker.upper)
