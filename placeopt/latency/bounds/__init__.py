"""Lower bounds on the latency of any placement.

`path`: ops on a path follow each other, each at its fastest.

`flow`: a flow over paths, priced over ideals, see `placeopt.latency.bounds.flow`; on published graphs it is the optimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem


def latency_bounds(problem: PlacementProblem, seconds: float = 10.0) -> dict[str, int]:
    """Return lower bounds in ticks by method; `seconds` is the time for `flow`."""
    found = {"path": longest_path(problem)}
    if seconds > 0:
        from placeopt.latency.bounds.flow import flow_bound

        found["flow"] = flow_bound(problem, seconds)
    return found


def longest_path(problem: PlacementProblem) -> int:
    """Ticks of the longest path, every op at its fastest."""
    finish = problem.min_compute.copy()
    ptr, successor, _ = problem.successors
    for u in problem.topological_order.tolist():
        for v in successor[ptr[u] : ptr[u + 1]].tolist():
            finish[v] = max(finish[v], finish[u] + problem.min_compute[v])
    return int(finish.max())
