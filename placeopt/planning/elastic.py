"""Elastic questions: which devices to rent, and how to go on after some are lost.

The cheapest plan per sample and the fastest are found over the offers, alone and in pairs. After a loss every plan that is
within `slack` of the best on what is left is a candidate; the one that moves the fewest bytes is taken. A replica of a
layer moves the weights and optimizer state that its device did not hold before.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError
from placeopt.planning.plan_model import plan as best_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.planning.planned import Planned
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import DevicePool, StepPlanProblem

STATE_BYTES = 12
"""Bytes per parameter that a device has to be given: weights and two moments."""


def plans_of_offers(
    problem: StepPlanProblem, offers: Sequence[DevicePool], *, seconds: float = 5.0
) -> dict[str, Planned | None]:
    """Return the fastest and the cheapest plan per sample over the offers, alone and in pairs of kinds.

    Raises
    ------
    InputError
        If there is no offer, or none has a price.
    """
    if not offers or not any(offer.price for offer in offers):
        raise InputError("offers: expected devices with prices")
    sets = [(offer,) for offer in offers] + [pair for pair in combinations(offers, 2) if pair[0].kind != pair[1].kind]
    found = []
    for pools in sets:
        data = tuple(range(1, min(problem.batch, sum(pool.count for pool in pools)) + 1))
        planned = best_plan(problem.replace(pools=pools, data_degrees=data), "", 0, seconds=seconds, runner_ups=0)
        if planned.plan is not None:
            found.append(planned)
    fastest = min(found, key=lambda planned: planned.result.value or 0, default=None)
    priced = [planned for planned in found if planned.price_per_million is not None]
    return {"fastest": fastest, "cheapest": min(priced, key=lambda p: p.price_per_million or 0.0, default=None)}


def layers_of_devices(planned: Planned) -> dict[str, dict[int, int]]:
    """Return the layers that every device holds, each with the tensor degree of its shard."""
    held: dict[str, dict[int, int]] = {}
    if planned.plan is not None:
        for stage, replicas in zip(planned.plan.stages, planned.device_names(), strict=True):
            for group, names in zip(stage.each_replica(), replicas, strict=True):
                for name in names:
                    held.setdefault(name, {}).update(dict.fromkeys(stage.layers, group.tensor))
    return held


def moved_parameters(before: Planned, after: Planned, parameters: dict[int, Sequence[float]]) -> float:
    """Return the parameters that devices hold after a change and did not hold before.

    Parameters
    ----------
    parameters : of each layer, by tensor degree, per device.
    """
    old, moved = layers_of_devices(before), 0.0
    for name, layers in layers_of_devices(after).items():
        for layer, tensor in layers.items():
            if old.get(name, {}).get(layer) != tensor:
                moved += float(parameters[tensor][layer])
    return moved


def plan_after_loss(
    before: Planned, lost: dict[str, int], parameters: dict[int, Sequence[float]], *, slack: float = 0.05,
    seconds: float = 5.0,
) -> tuple[Planned, float]:  # fmt: skip
    """Return the plan on what is left that moves the fewest bytes, of those within `slack` of the best, and the bytes.

    Parameters
    ----------
    before : the plan that ran. lost : devices lost, by kind; the last ones by number are taken away.

    Raises
    ------
    InputError
        If nothing fits what is left.
    """
    problem = before.problem
    pools = tuple(
        _smaller(pool, pool.count - lost.get(pool.kind, 0)) for pool in problem.pools if pool.count > lost.get(pool.kind, 0)
    )
    if not pools:
        raise InputError("plan after a loss: no devices are left")
    data = tuple(range(1, min(problem.batch, sum(pool.count for pool in pools)) + 1))
    left = problem.replace(pools=pools, data_degrees=data)
    best = best_plan(left, "", 0, seconds=seconds, runner_ups=3)
    if best.result.value is None or best.plan is None:
        raise InputError(f"plan after a loss: {best.result.message or 'no plan was found in time'}")
    candidates = [best]
    plans: list[TrainingPlan | None] = [before.plan, *(runner.plan for runner in best.runner_ups)]
    for other in plans:
        if other is not None:
            found = _fixed(left, other, seconds)
            if found is not None and (found.result.value or 0) <= best.result.value * (1 + slack):
                candidates.append(found)
    chosen = min(candidates, key=lambda planned: moved_parameters(before, planned, parameters))
    return chosen, STATE_BYTES * moved_parameters(before, chosen, parameters)


def _smaller(pool: DevicePool, count: int) -> DevicePool:
    return type(pool)(pool.kind, count, pool.per_host, pool.memory, pool.price)


def _fixed(problem: StepPlanProblem, plan: TrainingPlan, seconds: float) -> Planned | None:
    """Return the best plan with the micro-batch and number of stages of another, None if there is none."""
    if plan.micro_batch not in problem.micro_batches:
        return None
    restricted = problem.replace(micro_batches=(plan.micro_batch,), max_stages=len(plan.stages))
    found = best_plan(restricted, "", 0, seconds=seconds, runner_ups=0)
    return found if found.plan is not None else None
