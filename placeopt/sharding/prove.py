"""Lower bounds on the cost of every feasible choice, cheapest first, until the time is over or one
reaches a value.

The independent bound: every node and every edge at its cheapest. Proof. A choice pays for each node
at least the smallest of its costs, and for each edge at least the smallest entry of its table; the
limit is ignored. The Lagrangian bound is that of `placeopt.sharding.bounds.bounding`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.compact import costs_of
from placeopt.sharding.evaluate import exact_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.sharding.problem import ShardingProblem

METHODS = ("independent", "lagrangian")

STEPS = 20
"""Steps between choices that are decoded."""

PROOF_PART = 10
"""An exact pass costs at most this part of the steps before it."""


def prove(
    problem: ShardingProblem, seconds: float, methods: Sequence[str], upper: int | None
) -> dict[str, int]:
    """Return the bounds named; the Lagrangian one takes what is left of `seconds`.

    Parameters
    ----------
    upper : value of a known solution, which the Lagrangian bound aims at; without one, the choices
    that its messages decode do.
    """
    end = time.perf_counter() + seconds
    found: dict[str, int] = {}
    if "independent" in methods:
        found["independent"] = independent_bound(problem)
    if "lagrangian" in methods and (upper is None or max(found.values(), default=0) < upper):
        found["lagrangian"] = _lagrangian(problem, end, upper)
    return found


def _lagrangian(problem: ShardingProblem, end: float, upper: int | None) -> int:
    bounding = Bounding(problem, upper)
    begun, pause = time.perf_counter(), 0.0
    while not bounding.settled and (upper is None or bounding.bound < upper):
        for _ in range(STEPS):
            bounding.step()
            if time.perf_counter() > end:
                break
        if upper is None:
            choice = bounding.decoded(limited=True)
            bounding.aim(sum(int(part.sum()) for part in costs_of(bounding.compact, choice)))
        now = time.perf_counter()
        if now - begun > PROOF_PART * pause or now + 2 * pause > end:
            bounding.certify()
            begun = time.perf_counter()
            pause = begun - now
        if begun + 2 * pause > end:
            break
    return bounding.bound


def independent_bound(problem: ShardingProblem) -> int:
    """Return the sum of the smallest costs of nodes and edges."""
    total = exact_sum(np.minimum.reduceat(problem.cost, problem.node_ptr[:-1]))
    if problem.num_edges:
        total += exact_sum(np.minimum.reduceat(problem.edge_cost, problem.edge_ptr[:-1]))
    return total
