"""Which ops large neighbourhood search frees: the neighbourhoods that papers vary.

A window takes the problem, the incumbent, the number of ops wanted and a generator, and returns the
ops to free.

References
----------
D. Godard, P. Laborie, W. Nuijten, "Randomized large neighborhood search for cumulative scheduling",
ICAPS 2005 (time). A. Carchrae, J. C. Beck, "Principles for the design of large neighborhood
search", Journal of Mathematical Modelling and Algorithms 8, 2009 (windows of time and of resources,
chosen by what they earned).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.search.window_model import Incumbent, arrival_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem


def by_time(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops in the order of their starts."""
    size = min(size, problem.num_ops)
    low = int(rng.integers(0, problem.num_ops - size + 1))
    return now.order[low : low + size]


def by_device_pair(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take consecutive ops of two devices."""
    used = np.unique(now.device)
    pair = rng.choice(used, min(2, len(used)), replace=False)
    if len(used) == 1 and problem.num_devices > 1:
        pair = used
    ops = now.order[np.isin(now.device[now.order], pair)]
    size = min(size, len(ops))
    low = int(rng.integers(0, len(ops) - size + 1))
    return np.asarray(ops[low : low + size])


def by_critical_path(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Take a stretch of the critical path, and ops that run at the same time."""
    path = _critical_path(problem, now, rng)
    take = max(1, min(len(path), size // 2))
    low = int(rng.integers(0, len(path) - take + 1))
    chosen = path[low : low + take]
    begin, end = int(now.start[chosen].min()), int(now.finish[chosen].max())
    beside = np.flatnonzero((now.finish > begin) & (now.start < end))
    beside = np.setdiff1d(beside, chosen)
    extra = rng.permutation(beside)[: max(0, size - take)]
    return np.concatenate([chosen, extra])


def _critical_path(problem: PlacementProblem, now: Incumbent, rng: Generator) -> Ints:
    """Walk back from the last end: each op waits for its device's previous op or for an input."""
    ptr, source, tensor = problem.predecessors
    previous: dict[int, int] = {}
    last: dict[int, int] = {}
    for v in now.order.tolist():
        d = int(now.device[v])
        if d in last:
            previous[v] = last[d]
        last[d] = v
    at = int(now.finish.argmax())
    path = [at]
    while now.start[at] > 0 and len(path) <= problem.num_ops:
        begin = int(now.start[at])
        tight = [
            int(source[e])
            for e in range(ptr[at], ptr[at + 1])
            if int(now.finish[source[e]])
            + arrival_delay(
                problem, now, int(tensor[e]), int(now.device[source[e]]), int(now.device[at])
            )
            >= begin
        ]
        if at in previous and now.finish[previous[at]] >= begin:
            tight.append(previous[at])
        if not tight:
            break
        at = int(tight[int(rng.integers(len(tight)))])
        path.append(at)
    return np.array(path[::-1], np.int64)


def connected(problem: PlacementProblem, now: Incumbent, size: int, rng: Generator) -> Ints:
    """Grow a connected piece of the graph from a random op."""
    out, target, _ = problem.successors
    into, source, _ = problem.predecessors
    seed = int(rng.integers(problem.num_ops))
    found: list[int] = []
    known, border = {seed}, [seed]
    while border and len(found) < size:
        v = border.pop(int(rng.integers(len(border))))
        found.append(v)
        around = [*target[out[v] : out[v + 1]].tolist(), *source[into[v] : into[v + 1]].tolist()]
        for w in around:
            if w not in known:
                known.add(w)
                border.append(w)
    return np.array(found, np.int64)


WINDOWS: dict[str, Callable[[PlacementProblem, Incumbent, int, Generator], Ints]] = {
    "time": by_time,
    "device-pair": by_device_pair,
    "critical-path": by_critical_path,
    "connected": connected,
}
