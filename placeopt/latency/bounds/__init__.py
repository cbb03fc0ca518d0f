"""Lower bounds on the latency of any placement.

`path`: ops on a path follow each other, each at its fastest. Transfers are left out: they go
through host memory (`io_class`), whatever the links between devices cost.

`flow`: a flow over paths, priced over ideals, see `placeopt.latency.bounds.flow`; on published
graphs it is the optimum.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.model.problem import PlacementProblem

METHODS = ("path", "flow")
"""Names of the bounds, cheapest first."""


def latency_bounds(
    problem: PlacementProblem,
    seconds: float,
    methods: Sequence[str] = METHODS,
    upper: int | None = None,
) -> Iterator[tuple[str, int]]:
    """Yield (method, ticks) one after the other; `flow` takes what is left of `seconds`, and none
    of none.

    Parameters
    ----------
    upper : latency of a known placement in ticks; the bound by flows ends where it is reached.
    """
    from placeopt.latency.bounds.flow import FlowBound

    end = time.perf_counter() + seconds

    def stop() -> bool:
        return time.perf_counter() > end

    if "path" in methods:
        yield "path", longest_path(problem)
    if "flow" in methods and seconds > 0:
        yield "flow", FlowBound(problem, stop=stop).run(lambda: upper, stop)


def longest_path(problem: PlacementProblem) -> int:
    """Ticks of the longest path, every op at its fastest."""
    finish = problem.min_compute.copy()
    ptr, successor, _ = problem.successors
    for u in problem.topological_order.tolist():
        for v in successor[ptr[u] : ptr[u + 1]].tolist():
            finish[v] = max(finish[v], finish[u] + problem.min_compute[v])
    return int(finish.max())
