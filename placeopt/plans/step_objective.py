"""Time of a training step as an objective of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from placeopt.plans.plan_objective import PlanObjective
from placeopt.plans.step_bounds import area_bound
from placeopt.plans.step_judge import judge_step_plan
from placeopt.plans.step_price import step_price

if TYPE_CHECKING:
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import StepPlanProblem


class StepTime(PlanObjective):
    """The time of a step under the cost model of the problem."""

    name: ClassVar[str] = "step-time"
    default_solver: ClassVar[str] = "plan-stages"
    comparison: ClassVar[tuple[str, ...]] = ("plan-stages",)
    prover: ClassVar[str] = "plan-stages"

    def price(self, problem: StepPlanProblem, plan: TrainingPlan) -> int:
        """Ticks of a step."""
        return step_price(problem, plan).step

    def violations(self, problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
        """See `judge_step_plan`."""
        return judge_step_plan(problem, plan)

    def lower_bounds(self, problem: StepPlanProblem) -> dict[str, int]:
        """Return the area bound."""
        return {"area": area_bound(problem)}


STEP_TIME = StepTime()
