"""The total cost of a choice of strategies as an objective, with lower bounds on that of every
feasible choice: cheapest first, until the time is over or one reaches a value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.objective import JudgedObjective
from placeopt.sharding.bounds import independent_bound
from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.compact import cost_of
from placeopt.sharding.evaluate import evaluate, profile_of, usage_profile
from placeopt.sharding.judge import judged_cost, sharding_violations
from placeopt.sharding.problem import ShardingProblem, ShardingSolution
from placeopt.sharding.witness import sharding_witness

METHODS = ("independent", "lagrangian")

STEPS = 20
"""Steps between choices that are decoded."""

PROOF_PART = 10
"""An exact pass costs at most this part of the steps before it."""


class TotalCost(JudgedObjective):
    """Costs of nodes and edges, added up; the usage limit is a constraint."""

    __slots__ = ()

    name = "cost"
    kind = "sharding"
    default_solver = "sharding-portfolio"
    prover = "sharding-portfolio"
    bounded = "a sharding problem"
    bound_methods = METHODS
    solution_class = ShardingSolution
    expected = "a solution of a sharding problem is a ShardingSolution"
    violations = staticmethod(sharding_violations)
    measured = staticmethod(evaluate)
    judged = staticmethod(judged_cost)
    witness = staticmethod(sharding_witness)

    def impossible(self, problem: ShardingProblem) -> str:
        """Say so if even the smallest usage of every node passes the limit."""
        if not problem.limited:
            return ""
        profile = profile_of(problem.interval, least_usage(problem))
        if profile.peak <= problem.usage_limit:
            return ""
        return (
            f"the smallest usages add up to {profile.peak} at time "
            f"{int(profile.time[profile.peak_index])}, more than the limit of {problem.usage_limit}"
        )

    def details(self, problem: ShardingProblem, solution: ShardingSolution) -> dict[str, Any]:
        """Return the highest usage, the limit (None without one) and the strategies, for the
        command line.
        """
        peak = usage_profile(problem, solution).peak
        limit = problem.usage_limit if problem.limited else None
        return {"usage_peak": peak, "usage_limit": limit, "strategies": solution.strategy.tolist()}

    def usual_methods(self, seconds: float) -> tuple[str, ...]:
        """Return all bounds, or without time the first."""
        return METHODS if seconds > 0 else METHODS[:1]

    def prove(
        self, problem: ShardingProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield the bounds named; the Lagrangian one takes what is left of `seconds`.

        Parameters
        ----------
        upper : value of a known solution, which the Lagrangian bound aims at; without one, the
        choices that its messages decode do.
        """
        end, best = time.perf_counter() + seconds, 0
        if "independent" in methods:
            best = independent_bound(problem)
            yield "independent", best
        if "lagrangian" in methods and (upper is None or best < upper):
            yield "lagrangian", _lagrangian(problem, end, upper)

    def text(self, problem: ShardingProblem, value: float | None) -> str:
        """Return a cost as a time where its unit is known, else as a number."""
        if value is not None and problem.tick_seconds == 1.0:
            return f"{int(value)}"
        return super().text(problem, value)


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
            bounding.aim(cost_of(bounding.compact, choice))
        now = time.perf_counter()
        if now - begun > PROOF_PART * pause or now + 2 * pause > end:
            bounding.certify()
            begun = time.perf_counter()
            pause = begun - now
        if begun + 2 * pause > end:
            break
    return bounding.bound


def least_usage(problem: ShardingProblem) -> Ints:
    """Return the smallest usage of every node."""
    return np.minimum.reduceat(problem.usage, problem.node_ptr[:-1])


COST = TotalCost()
