"""Time per sample of a plan as an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.plans.plan_objective import PlanObjective
from placeopt.plans.sample_judge import judge_sample_plan
from placeopt.plans.sample_price import sample_prices

if TYPE_CHECKING:
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem


class SampleTime(PlanObjective):
    """The largest time per sample of a stage."""

    name: ClassVar[str] = "sample-time"
    default_solver: ClassVar[str] = "plan-ideals"
    comparison: ClassVar[tuple[str, ...]] = ("plan-ideals",)
    prover: ClassVar[str] = "plan-ideals"

    def price(self, problem: SamplePlanProblem, plan: TrainingPlan) -> int:
        """Ticks per sample of the slowest stage."""
        return max(price.ticks for price in sample_prices(problem, plan))

    def violations(self, problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
        """See `judge_sample_plan`."""
        return judge_sample_plan(problem, plan)

    def lower_bounds(self, problem: SamplePlanProblem) -> dict[str, int]:
        """Return two bounds.

        "area": a stage of d replicas of t devices takes at least its work / d, so that all stages together need at
        least sum_v min_(t, r) t p(v, t, r) device-ticks; no plan has more than `devices` of them per tick. "layer": some
        stage holds the layer v, on at most min(devices / t, N) replicas.
        """
        degrees = np.array(problem.tensor_degrees)[:, None, None]
        work = problem.work if problem.allow_recompute else problem.work[:, :1]
        device_ticks = np.where(work < 0, 2**62, work * degrees).min(axis=(0, 1))
        replicas = np.minimum(problem.devices // degrees, problem.samples)
        usable = (work >= 0) & (replicas > 0)
        alone = np.where(usable, -(-np.maximum(work, 0) // np.maximum(replicas, 1)), 2**62).min(axis=(0, 1))
        hopeless = bool((alone >= 2**62).any())
        return {"area": -(-int(device_ticks.sum()) // problem.devices), "layer": 0 if hopeless else int(alone.max())}


SAMPLE_TIME = SampleTime()
