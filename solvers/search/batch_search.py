"""The frame of the searches on the batch evaluator: options that all have, a start, and the word at
the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.solvers.search.evaluator import BudgetedEvaluator, Measure
from placeopt.solvers.search.starting_points import check_start, starting_placements
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option

if TYPE_CHECKING:
    import numpy as np

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class MeasuringSearch(SearchSolver):
    """A search that can minimise a measurement of the caller instead of the problem's objective."""

    endless: ClassVar[bool] = True
    kernels: ClassVar[tuple[str, ...]] = (
        "ranks",
        "lists",
        "lists-by-time",
        "clusterings",
        "walks",
        "populations",
    )

    measure: Measure | None = option(
        None, meaning="callable: devices to seconds, instead of the problem's objective"
    )
    threads: int | None = option(
        None, meaning="threads, one per core by default; the result does not depend on it"
    )


@dataclass(frozen=True)
class BatchSearch(MeasuringSearch):
    """A search that improves the placements it starts from."""

    start: str = option(
        "edge-zeroing", meaning="solver whose placement it starts from; 'random' for none"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start(self.name, self.start)

    def search(self, problem: PlacementProblem, tracker: Tracker[Placement]) -> None:
        """Start, and improve until the budget is spent."""
        evaluator = BudgetedEvaluator(tracker, measure=self.measure, threads=self.threads)
        rng = tracker.rng()
        self.improve(evaluator, starting_placements(evaluator, self.start, rng), rng)
        evaluator.conclude()

    @abstractmethod
    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: np.random.Generator
    ) -> None:
        """Spend the budget; `starts` are the placements to start from, best first, none if none was
        found.
        """
