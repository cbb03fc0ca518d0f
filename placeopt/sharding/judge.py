"""The judge of a choice of strategies: plain Python integers, one sweep over time, no code shared
with the evaluator.
"""

from __future__ import annotations

from collections import Counter

from placeopt.sharding.problem import ShardingProblem, ShardingSolution


def sharding_violations(problem: ShardingProblem, solution: ShardingSolution) -> list[str]:
    """Return in words every node with a strategy that does not exist, and every stretch of time
    over the limit.
    """
    strategies = solution.strategy.tolist()
    first = problem.node_ptr.tolist()
    count = len(first) - 1
    if len(strategies) != count:
        return [f"it has strategies of {len(strategies)} nodes; the problem has {count}"]
    found = [
        f"node {v}: strategy {s}, but its strategies are 0..{first[v + 1] - first[v] - 1}"
        for v, s in enumerate(strategies)
        if not 0 <= s < first[v + 1] - first[v]
    ]
    if found or not problem.limited:
        return found
    usages = problem.usage.tolist()
    changes = Counter[int]()
    for v, (start, end) in enumerate(problem.interval.tolist()):
        if start < end:
            amount = usages[first[v] + strategies[v]]
            changes[start] += amount
            changes[end] -= amount
    now, limit = 0, problem.usage_limit
    times = sorted(changes)
    for i, time in enumerate(times):
        now += changes[time]
        if now > limit:
            found.append(
                f"time points {time} to {times[i + 1] - 1}: usage {now}, more than the limit of "
                f"{limit}"
            )
    return found


def judged_cost(problem: ShardingProblem, solution: ShardingSolution) -> int:
    """Return the cost of a valid choice, one addition after the other."""
    strategies, first = solution.strategy.tolist(), problem.node_ptr.tolist()
    costs, tables = problem.cost.tolist(), problem.edge_cost
    total = sum(costs[first[v] + s] for v, s in enumerate(strategies))
    at = 0
    for u, v in problem.edge.tolist():
        width = first[v + 1] - first[v]
        total += int(tables[at + strategies[u] * width + strategies[v]])
        at += (first[u + 1] - first[u]) * width
    return total
