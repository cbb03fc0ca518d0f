"""The total cost of a choice of strategies as an objective."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.bound import BoundReport, check_methods
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.model.objective import Finished, PlainObjective, agreed, time_text
from placeopt.sharding.evaluate import evaluate, profile_of, usage_profile
from placeopt.sharding.judge import judged_cost, sharding_violations
from placeopt.sharding.problem import ShardingSolution
from placeopt.sharding.prove import METHODS, prove
from placeopt.sharding.witness import sharding_witness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.witness import Witness
    from placeopt.sharding.problem import ShardingProblem


class TotalCost(PlainObjective):
    """Costs of nodes and edges, added up; the usage limit is a constraint."""

    name: ClassVar[str] = "cost"
    kind: ClassVar[str] = "sharding"
    default_solver: ClassVar[str] = "sharding-portfolio"
    comparison: ClassVar[tuple[str, ...]] = ("sharding-portfolio",)

    def impossible(self, problem: ShardingProblem) -> str:
        """Say so if even the smallest usage of every node passes the limit."""
        profile = profile_of(problem.interval, least_usage(problem))
        if profile.peak <= problem.usage_limit:
            return ""
        return (f"the smallest usages add up to {profile.peak} at time {int(profile.time[profile.peak_index])}, "
                f"more than the limit of {problem.usage_limit}")  # fmt: skip

    def value(self, problem: ShardingProblem, solution: ShardingSolution, queue: str | None = None) -> tuple[int, str]:
        """Cost of a choice; raises InfeasiblePlacementError where it is not valid."""
        if not isinstance(solution, ShardingSolution):
            raise InfeasiblePlacementError(f"expected a ShardingSolution, received {type(solution).__name__}")
        return evaluate(problem, solution), ""

    def judge(self, problem: ShardingProblem, solution: ShardingSolution, queue: str | None = None) -> list[str]:
        """Violations of a choice in words, found without the evaluator."""
        if not isinstance(solution, ShardingSolution):
            return [f"a solution of a sharding problem is a ShardingSolution, received {type(solution).__name__}"]
        return sharding_violations(problem, solution)

    def finish(self, problem: ShardingProblem, solution: ShardingSolution, queue: str | None = None) -> Finished:
        """Value and judge a choice; evaluator and judge must agree on its cost."""
        return agreed(
            self.judge(problem, solution), "cost",
            lambda: evaluate(problem, solution), lambda: judged_cost(problem, solution),
        )  # fmt: skip

    def details(self, problem: ShardingProblem, solution: ShardingSolution) -> dict[str, Any]:
        """Return the highest usage, the limit and the strategies, for the command line."""
        peak = usage_profile(problem, solution).peak
        return {"usage_peak": peak, "usage_limit": problem.usage_limit, "strategies": solution.strategy.tolist()}

    def bounds(
        self, problem: ShardingProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove lower bounds for about `seconds`.

        Raises
        ------
        InputError
            If a method is unknown.
        """
        started = time.perf_counter()
        check_methods("a sharding problem", methods, METHODS)
        reason = self.impossible(problem)
        chosen = tuple(methods) if methods is not None else METHODS if seconds > 0 else METHODS[:1]
        found = {} if reason else prove(problem, seconds, chosen, upper)
        return BoundReport.of(found, started, reason)

    def witness(self, problem: ShardingProblem, bound: int, method: str, seconds: float) -> Witness:
        """Prices on usage and messages along edges; see `placeopt.sharding.witness`."""
        return sharding_witness(problem, bound, method, seconds)

    def text(self, problem: ShardingProblem, value: float | None) -> str:
        """Return a cost as a time where its unit is known, else as a number."""
        if value is None:
            return "-"
        return f"{int(value)}" if problem.tick_seconds == 1.0 else time_text(float(value) * problem.tick_seconds)


def least_usage(problem: ShardingProblem) -> NDArray[np.int64]:
    """Return the smallest usage of every node."""
    return np.minimum.reduceat(problem.usage, problem.node_ptr[:-1])


COST = TotalCost()
