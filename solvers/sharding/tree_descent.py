"""Descent by tree moves from the choice of the least usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.sharding.compact import condense, draft_of
from placeopt.sharding.decode import least_usage
from placeopt.sharding.evaluate import total_cost
from placeopt.sharding.problem import ShardingSolution
from placeopt.solvers.sharding.tree_search import TreeSearch
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.sharding.problem import ShardingProblem
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class TreeDescent(SearchSolver):
    """Attempts of the search by tree moves, without prices, until they bring nothing."""

    name: ClassVar[str] = "tree-descent"
    kernels: ClassVar[tuple[str, ...]] = ("sharding",)
    patience: int = option(2, low=1, meaning="attempts without an improvement after which it ends")

    def search(self, problem: ShardingProblem, tracker: Tracker[ShardingSolution]) -> None:
        """Improve the initial solution, or the one of the least usage."""
        condensed = condense(*draft_of(problem))
        compact = condensed.compact
        start = None if tracker.solution is None else condensed.contract(tracker.solution.strategy)
        if start is None:
            start = least_usage(compact)

        def offer(choice: Ints) -> None:
            solution = ShardingSolution(condensed.expand(choice))
            tracker.offer(total_cost(problem, solution), solution)

        tracker.count(1)
        offer(start)
        if not compact.num_nodes:
            return
        search = TreeSearch(compact, start, tracker.rng())
        idle = 0
        while idle < self.patience and not tracker.stop():
            before, attempt = search.best_cost, search.attempts
            while search.attempts == attempt and not tracker.stop():
                tracker.count(min(search.round(tracker.evaluations_left), tracker.evaluations_left))
            offer(search.best)
            idle = idle + 1 if search.best_cost == before else 0
