"""The default: the Lagrangian bound and the search by tree moves, side by side against the
clock.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.sharding.evaluate import total_cost
from placeopt.sharding.problem import ShardingSolution
from placeopt.sharding.two_sided import TwoSided
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.sharding.problem import ShardingProblem
    from placeopt.solving.tracker import Tracker

TURN_SECONDS = 2.0
"""CP-SAT's deterministic seconds per turn."""

METHOD = "lagrangian"


@dataclass(frozen=True)
class ShardingPortfolio(SearchSolver):
    """Bound and search in slices; what each finds serves the other."""

    name: ClassVar[str] = "sharding-portfolio"
    endless: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = ("sharding",)
    slice_seconds: float = option(
        2.0, above=0.0, high=60.0, meaning="seconds between exchanges of bound and search"
    )

    def search(self, problem: ShardingProblem, tracker: Tracker[ShardingSolution]) -> None:
        """Improve both until the budget is spent or they meet."""
        sides = TwoSided(problem, tracker.rng())
        tracker.count(1)
        sides.start(None if tracker.solution is None else tracker.solution.strategy)
        self._report(sides, tracker)
        if tracker.budget.seconds is None:
            self._take_turns(sides, tracker)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="placeopt") as pool:
            proved = tracker.elapsed
            while not tracker.stop() and not sides.trivial:
                left = tracker.seconds_left - 2 * sides.certify_seconds
                sides.side_by_side(
                    min(self.slice_seconds, 0.1 + tracker.elapsed / 5, max(0.0, left)), pool
                )
                last = tracker.seconds_left <= 2 * sides.certify_seconds + 0.01
                if last or tracker.elapsed - proved > 10 * sides.certify_seconds:
                    sides.certify()
                    proved = tracker.elapsed
                    if not last:
                        sides.finish(tracker.seconds_left / 2)
                self._report(sides, tracker)
                if last:
                    tracker.stop()
                    return

    def _take_turns(self, sides: TwoSided, tracker: Tracker[ShardingSolution]) -> None:
        while not tracker.stop() and not sides.trivial:
            sides.turn(tracker.evaluations_left)
            sides.certify()
            sides.finish(TURN_SECONDS, deterministic=True)
            self._report(sides, tracker)

    def _report(self, sides: TwoSided, tracker: Tracker[ShardingSolution]) -> None:
        """Tell the tracker of moves, the best choice and the bound."""
        tracker.count(min(sides.moves, tracker.evaluations_left))
        sides.moves = 0
        solution = ShardingSolution(sides.solution())
        tracker.offer(total_cost(problem=sides.problem, solution=solution), solution)
        tracker.raise_bound(sides.bound, METHOD)
