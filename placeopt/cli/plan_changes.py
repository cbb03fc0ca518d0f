"""`placeopt plan --offers` and `--lose`: which devices to rent, and how to go on without some
hosts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placeopt.cli import common

if TYPE_CHECKING:
    from placeopt.planning.planned import Planned


def compare_offers(
    model: str, text: str, batch: int, seconds: float, space: dict[str, Any], *, json: bool
) -> None:
    """Print the best plan of every offer and pair of offers, and which is the fastest and which the
    cheapest.
    """
    from pathlib import Path

    from placeopt.model.errors import InputError
    from placeopt.planning.elastic import best_of, plan_clusters, plan_offers
    from placeopt.planning.plan_model import plan_problem
    from placeopt.plans.pools import parse_pools

    offers = [part.strip() for part in text.split(",") if part.strip()]
    if space["costs"] is not None and Path(space["costs"]).is_dir():
        pools = tuple(pool for offer in offers for pool in parse_pools(offer))
        if len({pool.kind for pool in pools}) < len(pools):
            raise InputError(f"--offers: expected every kind of device once, received '{text}'")
        found = plan_offers(plan_problem(model, pools, batch, **space), pools, seconds=seconds)
    else:
        found = plan_clusters(model, offers, batch, seconds=seconds, **space)
    if not found:
        raise InputError("--offers: no plan fits the memory of any of them")
    best = {key: value for key, value in best_of(found).items() if value is not None}
    rows = [
        {
            "devices": one.problem.name,
            "step_seconds": one.step_seconds,
            "gap": one.result.gap,
            "throughput": one.throughput,
            "price_per_hour": one.price_per_hour,
            "price_per_million_samples": one.price_per_million,
            "plan": "" if one.plan is None else one.plan.text(),
        }
        for one in found
    ]
    if json:
        common.print_json(
            {"offers": rows, **{key: value.problem.name for key, value in best.items()}}
        )
        return
    for row, one in zip(rows, found, strict=True):
        what = ", ".join(key for key, value in best.items() if value is one)
        price = "-" if one.price_per_million is None else f"{one.price_per_million:.4g}"
        common.console().print(
            f"{row['devices']}: {one.throughput:.4g} samples/s, {one.price_per_hour:.4g} per hour, "
            f"{price} per million samples, "
            f"gap {common.percent(one.result.gap)}"
            + (f" ({what})" if what else "")
            + f"\n  {row['plan']}"
        )


def parse_hosts(text: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of hosts by kind of `KIND/HOST,KIND/HOST`."""
    from placeopt.model.errors import InputError

    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(.+)/(\d+)", part.strip())
        if match is None:
            raise InputError(
                f"--lose: expected KIND/HOST, as A100-40/0 for its first host, received '{part}'"
            )
        found[match[1]] = (*found.get(match[1], ()), int(match[2]))
    return found


@dataclass(frozen=True)
class Remainder:
    """The plan after hosts are lost.

    Attributes
    ----------
    moved : bytes that devices have to be given. parts : which device takes the part of which, by
    name.
    """

    planned: Planned
    moved: float
    parts: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**self.planned.to_json(), "moved_bytes": self.moved, "takes_part_of": self.parts}

    def say(self) -> None:
        """Print it."""
        plan = "" if self.planned.plan is None else self.planned.plan.text()
        ticks = self.planned.problem.tick_seconds
        common.console().print(
            f"without these hosts: {common.time_text(self.planned.result.value or 0, ticks)} per "
            f"step, "
            f"gap {common.percent(self.planned.result.gap)}, {common.bytes_text(int(self.moved))} "
            f"to move\n  {plan}"
        )


def plan_without(planned: Planned, lost: dict[str, tuple[int, ...]], seconds: float) -> Remainder:
    """Return the plan on the hosts that are left, of those near the best one that with the fewest
    bytes to move.
    """
    from placeopt.model.errors import InputError
    from placeopt.planning.elastic import device_moves, layer_parameters, plan_after_loss
    from placeopt.plans.tabled_costs import TabledStepCosts

    for kind, numbers in lost.items():
        pool = planned.problem.pool(kind)
        if max(numbers) * pool.per_host >= pool.count:
            raise InputError(
                f"--lose: '{kind}' has the hosts 0..{(pool.count - 1) // pool.per_host}, received "
                f"{max(numbers)}"
            )
    costs = planned.problem.costs
    if not isinstance(costs, TabledStepCosts):
        raise InputError(
            f"--lose: the cost model '{costs.name}' does not say the parameters of layers"
        )
    parameters = layer_parameters(costs)
    after, moved = plan_after_loss(planned, dict(lost), parameters, seconds=seconds)
    return Remainder(after, moved, device_moves(planned, after, parameters, dict(lost)))
