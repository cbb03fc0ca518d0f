"""Elastic questions: which devices to rent, and how to go on after some are lost.

The cheapest plan per sample and the fastest are found over the offers, alone and in pairs. After a
loss the best plan on what is left, those of its runner-ups and that with the old micro-batch and
number of stages are candidates if they are within `slack` of the best one. The hosts of a candidate
are matched with those that are left so that the fewest bytes move, exactly, by an assignment
problem; the candidate that moves the fewest is taken. A device moves the weights and optimizer
state of the shards that it did not hold before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.planning.plan_model import Planned, plan as best_plan, plan_problem

if TYPE_CHECKING:
    from placeopt.plans.layer_tables import TabledStepCosts
    from placeopt.plans.plan import PlanStage, TrainingPlan
    from placeopt.plans.step_problem import DevicePool, StepPlanProblem

Shard = tuple[int, int, str]
"""Degree, number of the part, and form of the part of a layer that a device holds."""

Parameters = Mapping[tuple[int, str], Sequence[float]]
"""Degree and form of a part of layers -> the parameters of that part of each layer."""


def best_of(plans: Sequence[Planned]) -> dict[str, Planned]:
    """Return the fastest and, where there are prices, the cheapest plan per sample."""
    best = {"fastest": min(plans, key=lambda planned: planned.step_seconds or 0.0)}
    priced = [planned for planned in plans if planned.price_per_million is not None]
    if priced:
        best["cheapest"] = min(priced, key=lambda planned: planned.price_per_million or 0.0)
    return best


def plan_offers(
    problem: StepPlanProblem, offers: Sequence[DevicePool], *, seconds: float = 5.0
) -> list[Planned]:
    """Return the best plan of every offer and every pair of kinds that has one.

    Raises
    ------
    InputError
        If there is no offer, or none has a price.
    """
    if not offers or not any(offer.price for offer in offers):
        raise InputError("offers: expected devices with prices, as 32xA100-40?price=3.67")
    sets = [(offer,) for offer in offers] + [
        pair for pair in combinations(offers, 2) if pair[0].kind != pair[1].kind
    ]
    problems = (
        problem.replace(
            pools=pools,
            data_degrees=(),  # all that there are on these devices
            name=" + ".join(f"{pool.count} {pool.kind}" for pool in pools),
        )
        for pools in sets
    )
    return _best_plans(problems, seconds)


def _best_plans(problems: Iterable[StepPlanProblem], seconds: float) -> list[Planned]:
    """Return the best plans of those problems that have one, up to an interrupt."""
    found = []
    for problem in problems:
        planned = best_plan(problem, "", 0, seconds=seconds, runner_ups=0)
        if planned.plan is not None:
            found.append(planned)
        if planned.result.stop_reason == "interrupted":
            break
    return found


def plan_clusters(
    model: str, offers: Sequence[str], batch: int, *, seconds: float, **options: object
) -> list[Planned]:
    """Return the best plan on each cluster of `NAME?price=3.67` (a device's price per hour), by
    roofline.

    Raises
    ------
    InputError
        If a cluster has no price, or is not known.
    """

    def problem_of(offer: str) -> StepPlanProblem:
        name, _, price = offer.partition("?price=")
        if not price.replace(".", "", 1).isdecimal():
            raise InputError(
                "offers: expected a cluster and a device's price per hour, as 8xA100?price=3.67, "
                f"received '{offer}'"
            )
        problem = plan_problem(model, name, batch, **options)  # type: ignore[arg-type]
        pools = tuple(replace(pool, price=float(price)) for pool in problem.pools)
        return problem.replace(pools=pools, name=name)

    return _best_plans(map(problem_of, offers), seconds)


def shards_of_devices(planned: Planned) -> dict[str, dict[int, Shard]]:
    """Return the layers that every device holds, each with its shard."""
    held: dict[str, dict[int, Shard]] = {}
    stages: tuple[PlanStage, ...] = () if planned.plan is None else planned.plan.stages
    for stage, replicas in zip(stages, planned.device_names(), strict=True):
        for group, names in zip(stage.each_replica(), replicas, strict=True):
            for number, name in enumerate(names):
                shard = group.tensor, number, group.form
                held.setdefault(name, {}).update(dict.fromkeys(stage.layers, shard))
    return held


def layer_parameters(costs: TabledStepCosts) -> Parameters:
    """Return the parameters of each layer on a device, by degree and form."""
    tables = {"": costs.table, **costs.table.forms}
    return {
        (degree, form): values.tolist()
        for form, table in tables.items()
        for degree, values in table.parameters.items()
    }


Lost = Mapping[str, int | Sequence[int]]
"""By kind of device, the numbers of the hosts that are lost (host h has the devices from h *
per_host on), or how many devices, of which the last ones are taken away."""


def _hosts(pool: DevicePool, lost: int | Sequence[int] = ()) -> list[list[str]]:
    """Return the devices of every host that are left, in the order of their numbers."""
    count, hosts = (pool.count - lost, ()) if isinstance(lost, int) else (pool.count, lost)
    names = [f"{pool.kind}/{number}" for number in range(count)]
    starts = range(0, count, pool.per_host)
    return [
        names[start : start + pool.per_host] for h, start in enumerate(starts) if h not in hosts
    ]


def moves(
    before: Planned, after: Planned, parameters: Parameters, lost: Lost
) -> tuple[dict[str, str], float]:
    """Match the hosts of two plans, and return which device of `before` takes the part of each
    device of `after`, and the parameters that they have to be given, the fewest possible.

    Parameters
    ----------
    parameters : see `layer_parameters`. lost : what is gone.
    """
    from scipy.optimize import linear_sum_assignment

    old, new = shards_of_devices(before), shards_of_devices(after)
    names: dict[str, str] = {}
    given = 0.0
    pools = {pool.kind: pool for pool in before.problem.pools}
    for pool in after.problem.pools:
        parts, there = _hosts(pool), _hosts(pools[pool.kind], lost.get(pool.kind, ()))
        costs = np.full((len(parts), len(there)), np.inf)
        for (i, part), (j, host) in product(enumerate(parts), enumerate(there)):
            if len(part) <= len(host):
                costs[i, j] = sum(
                    _given(new.get(a, {}), old.get(b, {}), parameters)
                    for a, b in zip(part, host, strict=False)
                )
        rows, columns = linear_sum_assignment(costs)
        for i, j in zip(rows, columns, strict=True):
            names |= zip(parts[i], there[j], strict=False)
        given += float(costs[rows, columns].sum())
    return names, given


def _given(part: dict[int, Shard], held: dict[int, Shard], parameters: Parameters) -> float:
    """Return the parameters of a part that a device does not hold."""
    return sum(
        parameters[shard[0], shard[2]][layer]
        for layer, shard in part.items()
        if held.get(layer) != shard
    )


def plan_after_loss(
    before: Planned,
    lost: Lost,
    parameters: Parameters,
    *,
    slack: float = 0.05,
    seconds: float = 5.0,
    state_bytes: int = 12,
) -> tuple[Planned, float]:
    """Return the plan on what is left that moves the fewest bytes, of those within `slack` of the
    best, and the bytes.

    Parameters
    ----------
    before : the plan that ran. lost : what is gone.
    state_bytes : per parameter that a device has to be given: weights and two moments.

    Raises
    ------
    InputError
        If nothing fits what is left.
    """
    left = before.problem.replace(
        pools=_pools_left(before.problem.pools, lost),
        data_degrees=(),  # all that there are on these devices
    )
    best = best_plan(left, "", 0, seconds=seconds, runner_ups=3)
    if best.result.value is None or best.plan is None:
        raise InputError(f"plan after a loss: {best.result.message or 'no plan was found in time'}")
    candidates = [best]
    if best.result.stop_reason != "interrupted":
        plans = [before.plan, *(runner.plan for runner in best.runner_ups)]
        candidates += _alike(left, plans, best.result.value * (1 + slack), seconds)
    given = [moves(before, planned, parameters, lost)[1] for planned in candidates]
    chosen = int(np.argmin(given))
    return candidates[chosen], state_bytes * given[chosen]


def _pools_left(pools: Sequence[DevicePool], lost: Lost) -> tuple[DevicePool, ...]:
    """Return the devices that are left of each kind, if any."""
    found = []
    for pool in pools:
        count = sum(map(len, _hosts(pool, lost.get(pool.kind, ()))))
        if count > 0:
            found.append(replace(pool, count=count))
    if not found:
        raise InputError("plan after a loss: no devices are left")
    return tuple(found)


def _alike(
    problem: StepPlanProblem, plans: Sequence[TrainingPlan | None], most: float, seconds: float
) -> Iterator[Planned]:
    """Yield the best plan with the micro-batch and number of stages of each of some plans, if there
    is one that takes at most `most` ticks.
    """
    for plan in plans:
        if plan is None or plan.micro_batch not in problem.micro_batches:
            continue
        restricted = problem.replace(micro_batches=(plan.micro_batch,), max_stages=len(plan.stages))
        found = best_plan(restricted, "", 0, seconds=seconds, runner_ups=0)
        if found.plan is not None and (found.result.value or 0) <= most:
            yield found
