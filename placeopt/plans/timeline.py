"""A step of a plan in time: the passes of every device in the order of its schedule, one after the
other.

A pass starts when its device is free and its input is there: the transfer over a cut takes part of
the price of the stages beside it. Times may be drawn: `noise` multiplies every pass, `slow` every
pass of a stage.

Where steps follow each other without a barrier (zb-h2), a step lasts from a device's first pass to
its last. The closed price counts the longest period again and again; this is what happens when
every pass waits for what it needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Floats
from placeopt.plans.plan import TrainingPlan
from placeopt.plans.step_price import StepPrice, step_price
from placeopt.plans.step_problem import StepPlanProblem
from placeopt.plans.step_schedules import BACKWARD, FORWARD, WEIGHT, Step, parse_schedule

FORWARD_PART = 1 / 3
"""Part of a stage's compute that is its forward pass."""


@dataclass(frozen=True)
class Pass:
    """One pass: stage, micro-batch, kind (F, B, W), device (a number per stage that comes first on
    it), start, end in ticks.
    """

    stage: int
    micro_batch: int
    kind: str
    device: int
    start: float
    end: float


def step_timeline(
    problem: StepPlanProblem,
    plan: TrainingPlan,
    *,
    noise: Floats | None = None,
    slow: Floats | None = None,
) -> tuple[list[Pass], float]:
    """Return the passes of a step and its end in ticks, all-reduce and optimizer included.

    Parameters
    ----------
    noise : factors of every pass, shape (stages, micro-batches, 2). slow : factor of every stage.
    """
    price = step_price(problem, plan)
    count, rounds, devices = len(plan.stages), price.rounds, len(plan.on_devices)
    parts = _parts(problem, plan, price)
    factor = np.ones((count, rounds, 2)) if noise is None else noise
    slower = np.ones(count) if slow is None else slow

    def length(step: Step) -> float:
        drawn = factor[step.stage, step.micro_batch, int(step.kind != FORWARD)]
        return float(parts[step.kind][step.stage] * drawn * slower[step.stage])

    schedule = parse_schedule(plan.schedule)
    orders = [schedule.order(count, rounds, device, plan.kept) for device in range(devices)]
    # what the price adds to a stage behind a cut is there and back
    wire = [0.0, *(stage.transfers / 2 for stage in price.stages[1:])]
    passes = _run(orders, length, wire)
    closing, end = [stage.sync + stage.optimizer for stage in price.stages], 0.0
    for device in range(devices):
        own = [p for p in passes if p.device == device]
        begin = 0.0 if schedule.has_barrier else own[0].start
        end = max(end, own[-1].end + max(closing[device::devices]) - begin)
    return passes, end


def _run(
    orders: list[list[Step]], length: Callable[[Step], float], wire: list[float]
) -> list[Pass]:
    """Return all passes, each as soon as its device is free and its input is there."""
    waiting, free = [deque(order) for order in orders], [0.0] * len(orders)
    ready = {Step(0, j, FORWARD): 0.0 for j in range(len(orders[0]))}
    passes: list[Pass] = []
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(waiting):
            while order and order[0] in ready:
                step = order.popleft()
                start = max(free[device], ready[step])
                free[device], moved = start + length(step), True
                passes.append(Pass(*step, device, start, free[device]))
                ready |= {
                    follower: free[device] + wait for follower, wait in _followers(step, wire)
                }
    return passes


def _parts(
    problem: StepPlanProblem, plan: TrainingPlan, price: StepPrice
) -> dict[str, list[float]]:
    """Return the ticks of the passes of every stage by kind."""
    whole = [float(stage.compute) for stage in price.stages]
    weights = [0.0] * len(whole)
    if parse_schedule(plan.schedule).splits_backward:
        for i, stage in enumerate(plan.stages):
            for group in stage.replicas:
                ticks = problem.costs.weight_ticks(
                    group.kind, group.tensor, plan.micro_batch, group.form
                )
                weights[i] = max(
                    weights[i], 0.0 if ticks is None else float(ticks[list(stage.layers)].sum())
                )
    forward = [FORWARD_PART * ticks for ticks in whole]
    backward = [ticks - f - w for ticks, f, w in zip(whole, forward, weights, strict=True)]
    return {FORWARD: forward, BACKWARD: backward, WEIGHT: weights}


def _followers(step: Step, wire: list[float]) -> list[tuple[Step, float]]:
    """Return the passes that wait for a pass, and the transfers between."""
    stage, j, kind = step
    if kind == FORWARD:
        if stage == len(wire) - 1:
            return [(Step(stage, j, BACKWARD), 0.0)]
        return [(Step(stage + 1, j, FORWARD), wire[stage + 1])]
    if kind == WEIGHT:
        return []
    found = [(Step(stage, j, WEIGHT), 0.0)]
    return [*found, (Step(stage - 1, j, BACKWARD), wire[stage])] if stage else found


def step_spread(
    problem: StepPlanProblem,
    plan: TrainingPlan,
    *,
    samples: int = 200,
    noise: float = 0.05,
    straggler: float = 1.0,
    seed: int = 0,
) -> Floats:
    """Return seconds of simulated steps, sorted: log-normal noise on every pass, one random stage
    slower.

    Parameters
    ----------
    noise : standard deviation of the logarithm of a pass, 0 for none. straggler : factor of one
    stage's passes.
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
