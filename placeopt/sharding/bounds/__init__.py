"""Lower bounds on the cost of every feasible choice, cheapest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.sharding.bounds.independent import independent_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.sharding.problem import ShardingProblem

METHODS = ("independent",)


def prove(problem: ShardingProblem, seconds: float, methods: Sequence[str], upper: int | None) -> dict[str, int]:
    """Return the bounds named, until one reaches `upper`."""
    found: dict[str, int] = {}
    if "independent" in methods:
        found["independent"] = independent_bound(problem)
    return found
