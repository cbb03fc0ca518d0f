"""`split-ideals`: the best pipeline of ideals with replicas, groups of devices or overlapped
transfers, proved.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5 and appendix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.errors import InfeasibleProblemError
from placeopt.solvers.exact.split_search import MAX_GROUPED_IDEALS, MAX_IDEALS, best_split
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.splits.objective import BOUNDS, split_period

if TYPE_CHECKING:
    from placeopt.solving.tracker import Tracker
    from placeopt.splits.problem import Split, SplitProblem


@dataclass(frozen=True)
class SplitIdeals(SearchSolver):
    """The program over all ideals, or over one topological order where there are too many."""

    name: ClassVar[str] = "split-ideals"
    kernels: ClassVar[tuple[str, ...]] = ("period-dp", "replicas")

    max_ideals: int = option(
        0,
        low=0,
        meaning=f"ideals up to which all are searched; 0: {MAX_IDEALS}, with groups "
        f"{MAX_GROUPED_IDEALS}",
    )

    def search(self, problem: SplitProblem, tracker: Tracker[Split]) -> None:
        """Raise the quick bounds, then search and prove."""
        for name, bound in BOUNDS.items():
            tracker.raise_bound(bound(problem), name)
        try:
            self._search(problem, tracker)
        except InfeasibleProblemError as error:
            tracker.infeasible(str(error))

    def _search(self, problem: SplitProblem, tracker: Tracker[Split]) -> None:
        """Take the best split along one topological order, then look for a better one among all
        ideals.
        """
        first = best_split(problem, max_ideals=1, stop=tracker.stop)
        if first.split is not None:
            tracker.offer(split_period(problem, first.split), first.split)
        tracker.count()
        if tracker.stop():
            return
        found = best_split(
            problem, max_ideals=self.max_ideals or None, upper=tracker.value, stop=tracker.stop
        )
        if found.split is not None:
            tracker.offer(split_period(problem, found.split), found.split)
        tracker.raise_bound(found.lower_bound, self.name)
        if found.complete and tracker.value is None:
            tracker.infeasible("no chain of stages fits the devices' memory and compatibility")
        elif found.complete:
            tracker.raise_bound(tracker.value, self.name)
        else:
            tracker.message = (
                "not all pipelines of ideals were searched: too many ideals, or too little time"
            )
        tracker.stop()
