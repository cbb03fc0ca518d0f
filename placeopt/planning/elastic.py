"""Elastic questions: which devices to rent, and how to go on after some are lost.

The cheapest plan per sample and the fastest are found over the offers, alone and in pairs. After a
loss the best plan on what is left, those of its runner-ups and that with the old micro-batch and
number of stages are candidates if they are within `slack` of the best one. The hosts of a candidate
are matched with those that are left so that the fewest bytes move, exactly, by an assignment
problem; the candidate that moves the fewest is taken. A device moves the weights and optimizer
state of the shards that it did not hold before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.planning.plan_model import plan as best_plan
from placeopt.planning.plan_model import plan_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placeopt.planning.planned import Planned
    from placeopt.plans.plan import TrainingPlan
    from placeopt.plans.step_problem import DevicePool, StepPlanProblem
    from placeopt.plans.tabled_costs import TabledStepCosts

STATE_BYTES = 12
"""Bytes per parameter that a device has to be given: weights and two moments."""

Shard = tuple[int, int, str]
"""Degree, number of the part, and form of the part of a layer that a device holds."""


def best_of(plans: Sequence[Planned]) -> dict[str, Planned | None]:
    """Return the fastest and the cheapest plan per sample."""
    fastest = min(plans, key=lambda planned: planned.step_seconds or 0.0, default=None)
    priced = [planned for planned in plans if planned.price_per_million is not None]
    return {
        "fastest": fastest,
        "cheapest": min(priced, key=lambda p: p.price_per_million or 0.0, default=None),
    }


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
    found = []
    for pools in sets:
        data = tuple(range(1, min(problem.batch, sum(pool.count for pool in pools)) + 1))
        name = " + ".join(f"{pool.count} {pool.kind}" for pool in pools)
        planned = best_plan(
            problem.replace(pools=pools, data_degrees=data, name=name),
            "",
            0,
            seconds=seconds,
            runner_ups=0,
        )
        if planned.plan is not None:
            found.append(planned)
        if planned.result.stop_reason == "interrupted":
            break
    return found


def plan_clusters(
    model: str, offers: Sequence[str], batch: int, *, seconds: float = 5.0, **options: object
) -> list[Planned]:
    """Return the best plan on each cluster of `NAME?price=3.67` (a device's price per hour), by
    roofline.

    Raises
    ------
    InputError
        If a cluster has no price, or is not known.
    """
    found = []
    for offer in offers:
        name, _, price = offer.partition("?price=")
        if not price.replace(".", "", 1).isdigit():
            raise InputError(
                "offers: expected a cluster and a device's price per hour, as 8xA100?price=3.67, "
                f"received '{offer}'"
            )
        problem = plan_problem(model, name, batch, **options)  # type: ignore[arg-type]
        pools = tuple(replace(pool, price=float(price)) for pool in problem.pools)
        planned = best_plan(
            problem.replace(pools=pools, name=name), "", 0, seconds=seconds, runner_ups=0
        )
        if planned.plan is not None:
            found.append(planned)
        if planned.result.stop_reason == "interrupted":
            break
    return found


def shards_of_devices(planned: Planned) -> dict[str, dict[int, Shard]]:
    """Return the layers that every device holds, each with its shard."""
    held: dict[str, dict[int, Shard]] = {}
    if planned.plan is not None:
        for stage, replicas in zip(planned.plan.stages, planned.device_names(), strict=True):
            for group, names in zip(stage.each_replica(), replicas, strict=True):
                for number, name in enumerate(names):
                    held.setdefault(name, {}).update(
                        dict.fromkeys(stage.layers, (group.tensor, number, group.form))
                    )
    return held


def layer_parameters(costs: TabledStepCosts) -> dict[int, Sequence[float]]:
    """Return the parameters of each layer on a device, by tensor degree."""
    return {degree: values.tolist() for degree, values in costs.table.parameters.items()}


@dataclass(frozen=True)
class _Hosts:
    """Devices of a kind by host, in the order of their numbers."""

    kind: str
    devices: tuple[tuple[str, ...], ...]


def _hosts(pool: DevicePool, lost: Sequence[int] = ()) -> _Hosts:
    names = [f"{pool.kind}/{number}" for number in range(pool.count)]
    hosts = [
        tuple(names[start : start + pool.per_host]) for start in range(0, pool.count, pool.per_host)
    ]
    return _Hosts(pool.kind, tuple(host for number, host in enumerate(hosts) if number not in lost))


def moved_parameters(
    before: Planned,
    after: Planned,
    parameters: dict[int, Sequence[float]],
    lost: Mapping[str, Sequence[int]] | None = None,
) -> float:
    """Return the parameters that devices have to be given by a change of plans, the hosts matched
    for the fewest.

    Parameters
    ----------
    parameters : of each layer, by tensor degree, per device. lost : numbers of the hosts that are
    gone, by kind.
    """
    return sum(moved for _, moved in _matching(before, after, parameters, lost or {}))


def device_moves(
    before: Planned,
    after: Planned,
    parameters: dict[int, Sequence[float]],
    lost: Mapping[str, Sequence[int]],
) -> dict[str, str]:
    """Return which device of `before` takes the part of each device of `after`, by name."""
    return {
        new: old
        for names, _ in _matching(before, after, parameters, lost)
        for new, old in names.items()
    }


def _matching(
    before: Planned,
    after: Planned,
    parameters: dict[int, Sequence[float]],
    lost: Mapping[str, Sequence[int]],
) -> list[tuple[dict[str, str], float]]:
    """Return for each kind which device takes which part, and the parameters that it has to be
    given.
    """
    from scipy.optimize import linear_sum_assignment

    old, new, found = shards_of_devices(before), shards_of_devices(after), []
    pools = {pool.kind: pool for pool in before.problem.pools}
    for pool in after.problem.pools:
        parts, there = _hosts(pool), _hosts(pools[pool.kind], lost.get(pool.kind, ()))
        costs = np.full((len(parts.devices), len(there.devices)), np.inf)
        for i, part in enumerate(parts.devices):
            for j, host in enumerate(there.devices):
                if len(part) <= len(host):
                    costs[i, j] = sum(
                        _given(new.get(a, {}), old.get(b, {}), parameters)
                        for a, b in zip(part, host, strict=False)
                    )
        rows, columns = linear_sum_assignment(costs)
        names = {
            a: b
            for i, j in zip(rows, columns, strict=True)
            for a, b in zip(parts.devices[i], there.devices[j], strict=False)
        }
        found.append((names, float(costs[rows, columns].sum())))
    return found


def _given(
    part: dict[int, Shard], held: dict[int, Shard], parameters: dict[int, Sequence[float]]
) -> float:
    """Return the parameters of a part that a device does not hold."""
    return sum(
        parameters[shard[0]][layer] for layer, shard in part.items() if held.get(layer) != shard
    )


def plan_after_loss(
    before: Planned,
    lost: dict[str, int | Sequence[int]],
    parameters: dict[int, Sequence[float]],
    *,
    slack: float = 0.05,
    seconds: float = 5.0,
) -> tuple[Planned, float]:
    """Return the plan on what is left that moves the fewest bytes, of those within `slack` of the
    best, and the bytes.

    Parameters
    ----------
    before : the plan that ran. lost : by kind, the numbers of the hosts that are lost (host h has
    the devices from
        h * per_host on), or how many devices, of which the last ones are taken away.

    Raises
    ------
    InputError
        If nothing fits what is left.
    """
    problem, pools, hosts = before.problem, [], {}
    for pool in problem.pools:
        gone = lost.get(pool.kind, ())
        hosts[pool.kind] = () if isinstance(gone, int) else tuple(gone)
        count = (
            pool.count - gone
            if isinstance(gone, int)
            else sum(map(len, _hosts(pool, hosts[pool.kind]).devices))
        )
        if count > 0:
            pools.append(replace(pool, count=count))
    if not pools:
        raise InputError("plan after a loss: no devices are left")
    data = tuple(range(1, min(problem.batch, sum(pool.count for pool in pools)) + 1))
    left = problem.replace(pools=tuple(pools), data_degrees=data)
    best = best_plan(left, "", 0, seconds=seconds, runner_ups=3)
    if best.result.value is None or best.plan is None:
        raise InputError(f"plan after a loss: {best.result.message or 'no plan was found in time'}")
    candidates = [best]
    plans: list[TrainingPlan | None] = [before.plan, *(runner.plan for runner in best.runner_ups)]
    for other in plans:
        if other is not None and best.result.stop_reason != "interrupted":
            found = _fixed(left, other, seconds)
            if found is not None and (found.result.value or 0) <= best.result.value * (1 + slack):
                candidates.append(found)
    moves = [moved_parameters(before, planned, parameters, hosts) for planned in candidates]
    chosen = int(np.argmin(moves))
    return candidates[chosen], STATE_BYTES * moves[chosen]


def _fixed(problem: StepPlanProblem, plan: TrainingPlan, seconds: float) -> Planned | None:
    """Return the best plan with the micro-batch and number of stages of another, None if there is
    none.
    """
    if plan.micro_batch not in problem.micro_batches:
        return None
    restricted = problem.replace(micro_batches=(plan.micro_batch,), max_stages=len(plan.stages))
    found = best_plan(restricted, "", 0, seconds=seconds, runner_ups=0)
    return found if found.plan is not None else None
