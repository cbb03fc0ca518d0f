"""Cost and usage of a choice of strategies, exactly: sums are taken in two words of 32 bits where
64 may not do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

_LOW = 2**32 - 1


class UsageProfile(NamedTuple):
    """Usage over time, constant between neighbouring times.

    Attributes
    ----------
    time : rising time points at which something begins or ends. high, low : usage from there on is
    high 2^32 + low.
    """

    time: Ints
    high: Ints
    low: Ints

    def at(self, index: int) -> int:
        """Return the usage from `time[index]` on."""
        return (int(self.high[index]) << 32) + int(self.low[index])

    @property
    def peak_index(self) -> int:
        """Index of the first time of the highest usage."""
        top = np.flatnonzero(self.high == self.high.max())
        return int(top[np.argmax(self.low[top])])

    @property
    def peak(self) -> int:
        """The highest usage."""
        return self.at(self.peak_index)


def exact_sum(values: Ints) -> int:
    """Return the sum of non-negative numbers, however large it is."""
    return (int((values >> 32).sum()) << 32) + int((values & _LOW).sum())


def chosen(problem: ShardingProblem, solution: ShardingSolution) -> Ints:
    """Return the position of the chosen strategy of every node in `cost` and `usage`.

    Raises
    ------
    InfeasiblePlacementError
        If the solution has another number of nodes, or names a strategy that does not exist.
    """
    strategy = solution.strategy
    if len(strategy) != problem.num_nodes:
        raise InfeasiblePlacementError(
            f"expected strategies of {problem.num_nodes} nodes, received {len(strategy)}"
        )
    wrong = np.flatnonzero((strategy < 0) | (strategy >= problem.num_choices))
    if wrong.size:
        v = int(wrong[0])
        raise InfeasiblePlacementError(
            f"{problem.node_name(v)}: expected a strategy 0..{int(problem.num_choices[v]) - 1}, "
            f"received {int(strategy[v])}"
        )
    return problem.node_ptr[:-1] + strategy


def total_cost(problem: ShardingProblem, solution: ShardingSolution) -> int:
    """Return the cost of a choice, whether or not it keeps the limit."""
    nodes = exact_sum(problem.cost[chosen(problem, solution)])
    first, second = problem.edge.T
    strategy = solution.strategy
    at = problem.edge_ptr[:-1] + strategy[first] * problem.num_choices[second] + strategy[second]
    return nodes + exact_sum(problem.edge_cost[at])


def usage_profile(problem: ShardingProblem, solution: ShardingSolution) -> UsageProfile:
    """Return the usage over time."""
    return profile_of(problem.interval, problem.usage[chosen(problem, solution)])


def profile_of(interval: Ints, usage: Ints) -> UsageProfile:
    """Return the sum of usages over time, each during its interval."""
    live = interval[:, 1] > interval[:, 0]
    usage, start, end = usage[live], interval[live, 0], interval[live, 1]
    time = np.unique(np.concatenate([start, end, [0]]))
    words = []
    for part in (usage >> 32, usage & _LOW):
        change = np.zeros(len(time), np.int64)
        np.add.at(change, np.searchsorted(time, start), part)
        np.subtract.at(change, np.searchsorted(time, end), part)
        words.append(np.cumsum(change))
    high, low = words
    return UsageProfile(time, high + (low >> 32), low & _LOW)


def evaluate(problem: ShardingProblem, solution: ShardingSolution) -> int:
    """Return the cost of a choice of strategies.

    Raises
    ------
    InfeasiblePlacementError
        If the usage passes the limit at some time point, or a strategy does not exist.
    """
    cost = total_cost(problem, solution)
    if not problem.limited:
        return cost
    profile = usage_profile(problem, solution)
    at = profile.peak_index
    if profile.at(at) > problem.usage_limit:
        raise InfeasiblePlacementError(
            f"usage {profile.at(at)} at time {int(profile.time[at])} passes the limit of "
            f"{problem.usage_limit}"
        )
    return cost
