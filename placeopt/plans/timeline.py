"""A step of a plan in time: forward and backward of every micro-batch on every stage, one after the other (1F1B).

Stage i runs min(n, S - i) forward passes, then one backward and one forward pass in turns, then the backward passes that
are left. A pass starts when its stage is free and its input is there: the transfer over a cut takes part of the price of
the stages beside it. Times may be drawn: `noise` multiplies every pass, `slow` every pass of a stage.

The closed price takes (n - 1) times the longest period; this is what happens when every pass waits for what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.plans.step_price import step_price

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import StepPlanProblem

FORWARD_PART = 1 / 3
"""Part of a stage's compute that is its forward pass."""


@dataclass(frozen=True)
class Pass:
    """One pass: stage, micro-batch, whether it is the backward one, start and end in ticks."""

    stage: int
    micro_batch: int
    backward: bool
    start: float
    end: float


def one_f_one_b(stages: int, rounds: int, stage: int) -> list[tuple[int, bool]]:
    """Return (micro-batch, backward) of the passes of a stage in order."""
    warm = min(rounds, stages - stage)
    order = [(j, False) for j in range(warm)]
    for j in range(rounds):
        order.append((j, True))
        if warm + j < rounds:
            order.append((warm + j, False))
    return order


def step_timeline(
    problem: StepPlanProblem,
    plan: TrainingPlan,
    *,
    noise: NDArray[np.float64] | None = None,
    slow: NDArray[np.float64] | None = None,
) -> tuple[list[Pass], float]:
    """Return the passes of a step and its end in ticks, all-reduce and optimizer included.

    Parameters
    ----------
    noise : factors of every pass, shape (stages, micro-batches, 2). slow : factor of every stage.
    """
    price = step_price(problem, plan)
    count, rounds = len(plan.stages), price.rounds
    compute = np.array([stage.compute for stage in price.stages], dtype=float)
    # what the price adds to a stage behind a cut is there and back
    wire = np.array([0.0, *((stage.fill - stage.compute) / 2 for stage in price.stages[1:])])
    compute = compute if slow is None else compute * slow
    factor = np.ones((count, rounds, 2)) if noise is None else noise
    orders = [one_f_one_b(count, rounds, i) for i in range(count)]
    ready: dict[tuple[int, int, bool], float] = {(0, j, False): 0.0 for j in range(rounds)}
    at, free, passes = [0] * count, [0.0] * count, []
    moved = True
    while moved:
        moved = False
        for i in range(count):
            while at[i] < len(orders[i]) and (i, *orders[i][at[i]]) in ready:
                j, backward = orders[i][at[i]]
                part = 1 - FORWARD_PART if backward else FORWARD_PART
                start = max(free[i], ready[i, j, backward])
                end = start + compute[i] * part * factor[i, j, int(backward)]
                passes.append(Pass(i, j, backward, start, end))
                free[i], at[i], moved = end, at[i] + 1, True
                if not backward and i == count - 1:
                    ready[i, j, True] = end
                elif not backward:
                    ready[i + 1, j, False] = end + wire[i + 1]
                elif i > 0:
                    ready[i - 1, j, True] = end + wire[i]
    return passes, max(free[i] + price.stages[i].sync + price.stages[i].optimizer for i in range(count))


def step_spread(
    problem: StepPlanProblem, plan: TrainingPlan, *, samples: int = 200, noise: float = 0.05, straggler: float = 1.0,
    seed: int = 0,
) -> NDArray[np.float64]:  # fmt: skip
    """Return seconds of simulated steps, sorted: log-normal noise on every pass, one random stage slower.

    Parameters
    ----------
    noise : standard deviation of the logarithm of a pass, 0 for none. straggler : factor of one stage's passes.
    """
    rng = np.random.default_rng(seed)
    stages, rounds = len(plan.stages), problem.rounds(plan.micro_batch, plan.stages[0].data)
    found = []
    for _ in range(samples):
        slow = np.ones(stages)
        slow[int(rng.integers(stages))] = straggler
        drawn = np.exp(rng.normal(0.0, noise, (stages, rounds, 2)))
        found.append(step_timeline(problem, plan, noise=drawn, slow=slow)[1] * problem.tick_seconds)
    return np.sort(np.array(found))
