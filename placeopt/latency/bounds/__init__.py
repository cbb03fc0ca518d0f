"""Lower bounds on the latency of any placement.

`path`: ops on a path follow each other, each at its fastest. Transfers are left out: they go
through host memory (`io_class`), whatever the links between devices cost.

`load`: what no CPU can take in time has to share the accelerators, as argued below.

`flow`: a flow over paths, priced over ideals, see `placeopt.latency.bounds.flow`; on published
graphs it is the optimum.

Argument of `load`. Let T be the latency of a placement, h(v) the longest path of ops before op v
and q(v) the one after it, every op at its fastest, and k the number of accelerators that run any
op. Ops of a slot run one after the other between its transfers, in an order of the graph, and a
slot begins after the slots that it waits for. So v starts at h(v) at the earliest and ends at
T - q(v) at the latest, wherever it is. If h(v) + p(v) + q(v) > T for its fastest CPU, v is on an
accelerator. A set S of such ops with h(v) >= a and q(v) >= b keeps k accelerators busy for the sum
of its shortest
accelerator times within T - a - b ticks: more than k (T - a - b) refutes T. Both sides fall
together as T rises, so the largest T that is refuted is found by bisection.

References
----------
J. Carlier: "The one-machine sequencing problem", European Journal of Operational Research 11, 1982
(heads and tails).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from placeopt.makespan.bounds.relaxation import sample
from placeopt.model.arrays import Flags, Ints, fastest, row_at, stable_order
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem

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
    return int((_around(problem)[0] + problem.min_compute).max())


def load_bound(problem: PlacementProblem, path: int, *, heads: int = 64) -> int:
    """Return the bound in ticks, at least `path`, the longest path.

    Parameters
    ----------
    heads : that are tried as `a`, spread evenly over their ranks: every choice is a valid bound,
    and one of all ops costs a sort of them.
    """
    accelerators = (problem.io_class >= 0) & (problem.compute != INCOMPATIBLE).any(axis=0)
    count = int(accelerators.sum())
    if count == 0:
        return path
    head, tail = _around(problem)
    times = problem.compute
    rows = head, tail, fastest(times[:, accelerators]), fastest(times[:, problem.io_class < 0])
    order = stable_order(-tail)
    head, tail, busy, cpu = (row[order] for row in rows)
    busy, through = np.maximum(busy, 0), head + tail + np.maximum(cpu, 0)
    levels = sample(np.unique(head), heads).tolist()

    def refutes(limit: int) -> bool:
        """Whether some of the ops that must be on accelerators have no room within `limit`."""
        must = (cpu < 0) | (through > limit)
        for level in levels:
            inside = must & (head >= level)
            work = np.cumsum(np.where(inside, busy, 0))
            if (inside & (-(-work // count) > limit - level - tail)).any():
                return True
        return False

    # below the longest path all is refuted; with all work after one another nothing is
    low, high = path - 1, path + int(busy.sum())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return high


def _around(problem: PlacementProblem) -> tuple[Ints, Ints]:
    """Return the longest paths before and after every op, each op at its fastest."""
    time = problem.min_compute
    ptr, successor, _ = problem.successors
    head, tail = np.zeros((2, problem.num_ops), np.int64)
    order = problem.topological_order.tolist()
    for u in order:
        np.maximum.at(head, row_at(successor, ptr, u), head[u] + time[u])
    for u in reversed(order):
        after = row_at(successor, ptr, u)
        tail[u] = (tail[after] + time[after]).max(initial=0)
    return head, tail
