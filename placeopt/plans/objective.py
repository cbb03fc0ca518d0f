"""Objectives of plans, which are judged first, then priced: the time per sample of a plan, and the
time of a training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from placeopt.model.objective import JudgedObjective
from placeopt.plans.judge import judge_sample_plan, judge_step_plan, judged_step
from placeopt.plans.plan import TrainingPlan
from placeopt.plans.sample_problem import SamplePlanProblem, sample_ticks
from placeopt.plans.step_bounds import area_bound
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import StepPlanProblem


class PlanObjective(JudgedObjective):
    """An objective of plans; subclasses name it and say how a plan is judged, priced and
    bounded.
    """

    __slots__ = ()

    kind = "plan"
    bounded = "a plan"
    solution_class = TrainingPlan
    expected = "expected a TrainingPlan"


class SampleTime(PlanObjective):
    """The largest time per sample of a stage."""

    __slots__ = ()

    name = "sample-time"
    default_solver = "plan-ideals"
    prover = "plan-ideals"
    bound_methods = ("area", "layer")
    violations = staticmethod(judge_sample_plan)
    measured = staticmethod(sample_ticks)

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


class StepTime(PlanObjective):
    """The time of a step under the cost model of the problem."""

    __slots__ = ()

    name = "step-time"
    default_solver = "plan-stages"
    prover = "plan-stages"
    bound_methods = ("area",)

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
