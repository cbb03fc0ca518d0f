"""Lower bounds on the latency of any placement.

`path`: ops on a path follow each other, each at its fastest. Transfers are left out: they go
through host memory (`io_class`), whatever the links between devices cost.

`load`: what no CPU can take in time shares the accelerators, see `placeopt.latency.bounds.load`.

`flow`: a flow over paths, priced over ideals, see `placeopt.latency.bounds.flow`; on published
graphs it is the optimum.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from placeopt.latency.bounds.load import load_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem

METHODS = ("path", "load", "flow")
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
    end = time.perf_counter() + seconds
    path = longest_path(problem)
    if "path" in methods:
        yield "path", path
    if "load" in methods:
        yield "load", load_bound(problem, path)
    if "flow" in methods and seconds > 0:
        yield "flow", _flow(problem, end, upper)


def _flow(problem: PlacementProblem, end: float, upper: int | None) -> int:
    """Return the bound by flows at the time `end`, cut short by the placements that it finds."""
    from placeopt.latency.bounds.flow import flow_bounds
    from placeopt.latency.evaluate import latency_batch

    known = [] if upper is None else [upper]

    def offer(device: Ints, slot: Ints) -> None:
        known.append(int(latency_batch(problem, device[None, :], slot[None, :])[0]))

    def stop() -> bool:
        return time.perf_counter() > end

    best = 0
    for best, _ in flow_bounds(problem, lambda: min(known, default=None), offer, stop):
        if stop() or (upper is not None and best >= upper):
            break
    return best


def longest_path(problem: PlacementProblem) -> int:
    """Ticks of the longest path, every op at its fastest."""
    finish = problem.min_compute.copy()
    ptr, successor, _ = problem.successors
    for u in problem.topological_order.tolist():
        for v in successor[ptr[u] : ptr[u + 1]].tolist():
            finish[v] = max(finish[v], finish[u] + problem.min_compute[v])
    return int(finish.max())
