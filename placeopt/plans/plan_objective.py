"""What the objectives of plans share: judged first, then priced."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.bound import BoundReport, check_methods
from placeopt.model.objective import Finished, PlainObjective, time_text
from placeopt.plans.plan import TrainingPlan

if TYPE_CHECKING:
    from collections.abc import Sequence


class PlanObjective(PlainObjective):
    """An objective of plans; subclasses name it and say how a plan is priced, judged and bounded."""

    kind: ClassVar[str] = "plan"
    name: ClassVar[str]
    default_solver: ClassVar[str]
    comparison: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def price(self, problem: Any, plan: TrainingPlan) -> int:
        """Return the ticks of a plan that the judge accepts."""

    @abstractmethod
    def violations(self, problem: Any, plan: TrainingPlan) -> list[str]:
        """Return what is wrong with a plan, in words."""

    @abstractmethod
    def lower_bounds(self, problem: Any) -> dict[str, int]:
        """Return the bounds that take milliseconds, by name."""

    def judge(self, problem: Any, solution: TrainingPlan, queue: str | None = None) -> list[str]:
        """Violations of a plan in words."""
        if not isinstance(solution, TrainingPlan):
            return [f"expected a TrainingPlan, received {type(solution).__name__}"]
        return self.violations(problem, solution)

    def finish(self, problem: Any, solution: TrainingPlan, queue: str | None = None) -> Finished:
        """Judge a plan and price it."""
        violations = tuple(self.judge(problem, solution))
        return Finished(None if violations else self.price(problem, solution), "", violations)

    def bounds(
        self, problem: Any, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove the bounds that take milliseconds; a solver proves the others.

        Raises
        ------
        InputError
            If a method is unknown.
        """
        started = time.perf_counter()
        found = self.lower_bounds(problem)
        check_methods("a plan", methods, found)
        return BoundReport.of({name: value for name, value in found.items() if methods is None or name in methods}, started)

    def text(self, problem: Any, value: float | None) -> str:
        """Return a time for people."""
        return "-" if value is None else time_text(float(value) * problem.tick_seconds)
