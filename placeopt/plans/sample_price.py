"""Price of a plan under the published cost model: ticks per sample and memory of every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.plans.sample_problem import PLAIN, RECOMPUTE

if TYPE_CHECKING:
    from placeopt.plans.plan import PlanStage, TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem


@dataclass(frozen=True)
class SampleStagePrice:
    """One stage.

    Attributes
    ----------
    ticks : time per sample, rounded up. work, communication, sync : its parts before they are
    shared by the replicas.
    memory : units used on a device. in_flight : micro-batches kept there.
    """

    ticks: int
    work: int
    communication: int
    sync: int
    memory: int
    in_flight: int


def sample_prices(problem: SamplePlanProblem, plan: TrainingPlan) -> tuple[SampleStagePrice, ...]:
    """Return the price of every stage of a plan whose stages are well formed."""
    after, prices = 0, []
    for stage in reversed(plan.stages):
        after += stage.data
        prices.append(_stage_price(problem, stage, -(-after // stage.data)))
    return tuple(reversed(prices))


def _stage_price(problem: SamplePlanProblem, stage: PlanStage, in_flight: int) -> SampleStagePrice:
    degree = problem.tensor_degrees.index(stage.replicas[0].tensor)
    layers = np.array(stage.layers, np.int64)
    choice = np.where(np.isin(layers, stage.recompute), RECOMPUTE, PLAIN)
    inside = np.zeros(problem.num_layers, np.bool_)
    inside[layers] = True
    out, into = (
        inside[problem.source] & ~inside[problem.target],
        ~inside[problem.source] & inside[problem.target],
    )
    work = int(problem.work[degree, choice, layers].sum())
    traffic = int(problem.sent[degree, out].sum() + problem.received[degree, into].sum())
    sync = (stage.data - 1) * int(problem.sync[degree, layers].sum())
    kept, fixed = (
        problem.kept[degree, choice, layers].sum(),
        problem.fixed[degree, choice, layers].sum(),
    )
    ticks = -(-(work + traffic + sync) // stage.data)
    return SampleStagePrice(
        ticks, work, traffic, sync, int(kept) * in_flight + int(fixed), in_flight
    )
