"""Lower bounds on the cost of every feasible choice, cheapest first, until the time is over or one
reaches a value.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from placeopt.sharding.bounds.independent import independent_bound
from placeopt.sharding.two_sided import TwoSided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.sharding.problem import ShardingProblem

METHODS = ("independent", "lagrangian")

SLICE = 2.0
"""Most seconds between exact passes."""


def prove(
    problem: ShardingProblem, seconds: float, methods: Sequence[str], upper: int | None
) -> dict[str, int]:
    """Return the bounds named; the Lagrangian one takes what is left of `seconds`.

    Parameters
    ----------
    upper : value of a known solution, which the Lagrangian bound aims at; without one it looks for
    one itself.
    """
    end = time.perf_counter() + seconds
    found: dict[str, int] = {}
    if "independent" in methods:
        found["independent"] = independent_bound(problem)
    if "lagrangian" in methods and (upper is None or max(found.values(), default=0) < upper):
        found["lagrangian"] = _lagrangian(problem, end, upper)
    return found


def _lagrangian(problem: ShardingProblem, end: float, upper: int | None) -> int:
    sides = TwoSided(problem, np.random.default_rng(0), upper=upper)
    if sides.trivial:
        return sides.bound
    if upper is None:
        sides.start()
    else:
        sides.dual.step()
    sides.certify()
    with ThreadPoolExecutor(1, thread_name_prefix="placeopt") as pool:
        while (left := end - time.perf_counter() - 2 * sides.certify_seconds) > 0:
            sides.side_by_side(min(SLICE, left), pool)
            sides.certify()
            if upper is not None and sides.bound >= upper:
                break
    return sides.bound
