"""Time per sample of a plan as an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.plans.plan_objective import PlanObjective
from placeopt.plans.sample_judge import judge_sample_plan
from placeopt.plans.sample_price import sample_prices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem


class SampleTime(PlanObjective):
    """The largest time per sample of a stage."""

    __slots__ = ()

    name: ClassVar[str] = "sample-time"
    default_solver: ClassVar[str] = "plan-ideals"
    prover: ClassVar[str] = "plan-ideals"
    bound_methods: ClassVar[tuple[str, ...]] = ("area", "layer")
    violations = staticmethod(judge_sample_plan)

    def measured(self, problem: SamplePlanProblem, plan: TrainingPlan) -> int:
        """Ticks per sample of the slowest stage."""
        return max(price.ticks for price in sample_prices(problem, plan))

    def prove(
        self, problem: SamplePlanProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield two bounds, which take milliseconds; the solver proves better ones.

        "area": a stage of d replicas of t devices takes at least its work / d, so that all stages
        together need at least sum_v min_(t, r) t p(v, t, r) device-ticks; no plan has more than
        `devices` of them per tick. "layer": some stage holds the layer v, on at most min(devices /
        t, N) replicas.
        """
        degrees = np.array(problem.tensor_degrees)[:, None, None]
        work = problem.work if problem.allow_recompute else problem.work[:, :1]
        device_ticks = np.where(work < 0, 2**62, work * degrees).min(axis=(0, 1))
        replicas = np.minimum(problem.devices // degrees, problem.samples)
        usable = (work >= 0) & (replicas > 0)
        alone = np.where(usable, -(-np.maximum(work, 0) // np.maximum(replicas, 1)), 2**62).min(
            axis=(0, 1)
        )
        hopeless = bool((alone >= 2**62).any())
        found = {
            "area": -(-int(device_ticks.sum()) // problem.devices),
            "layer": 0 if hopeless else int(alone.max()),
        }
        yield from ((name, value) for name, value in found.items() if name in methods)


SAMPLE_TIME = SampleTime()
