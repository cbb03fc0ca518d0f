"""Time of a training step as an objective of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from placeopt.plans.plan_objective import PlanObjective
from placeopt.plans.step_bounds import area_bound
from placeopt.plans.step_judge import judge_step_plan, judged_step
from placeopt.plans.step_price import step_price

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import StepPlanProblem


class StepTime(PlanObjective):
    """The time of a step under the cost model of the problem."""

    __slots__ = ()

    name: ClassVar[str] = "step-time"
    default_solver: ClassVar[str] = "plan-stages"
    prover: ClassVar[str] = "plan-stages"
    bound_methods: ClassVar[tuple[str, ...]] = ("area",)

    def measured(self, problem: StepPlanProblem, plan: TrainingPlan) -> int:
        """Ticks of a step."""
        return step_price(problem, plan).step

    def violations(self, problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
        """See `judge_step_plan`; the judge's own price has to be the evaluator's."""
        wrong = judge_step_plan(problem, plan)
        if not wrong and judged_step(problem, plan) != self.measured(problem, plan):
            wrong = [
                f"a step takes {judged_step(problem, plan)} ticks, not "
                f"{self.measured(problem, plan)}"
            ]
        return wrong

    def prove(
        self, problem: StepPlanProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield the area bound, which takes milliseconds; the solver proves better ones."""
        yield "area", area_bound(problem)


STEP_TIME = StepTime()
