"""Bounds one by one, from a bound that is known and weaker than the best: what the cheap ones would
end at once has work to do.

A bound takes what is known (drawn here between 1 and the optimum, so that it is true), a value that
a solution has (none, the optimum, or more), and limits on its work, which are made so small that
what a large problem meets happens on a small one. Nothing of it may exceed the optimum.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from unittest import mock

import numpy as np

from placeopt.latency.bounds import flow
from placeopt.latency.bounds.flow import FlowBound
from placeopt.makespan.bounds import METHODS as MAKESPAN
from placeopt.makespan.bounds import communication, fork_join, front, head_tail, segments
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.coarsening import coarsen
from placeopt.model.errors import InfeasibleProblemError
from placeopt.period.bounds import closing, columns, set_prices, set_tables
from placeopt.period.bounds.closing import Closing, can_close
from placeopt.period.bounds.columns import ColumnBound
from placeopt.period.bounds.covering import cover_bound
from placeopt.period.bounds.set_prices import OutOfTimeError, UndecidedError
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch

SMALL = {
    "makespan": (
        (communication, "UNCUT_SECONDS", (1e9,)),
        (communication, "WORK_LIMIT", (1, 50)),
        (fork_join, "MOST_VISITED", (1, 3)),
        (fork_join, "MOST_LEVELS", (1, 2)),
        (head_tail, "WORK_LIMIT", (1,)),
        (segments, "MOST_WIDE", (1, 2)),
        (front, "LARGEST_TIME", (2**62,)),
    ),
    "period": (
        (set_prices, "_SEARCH_BITS", ((1, 2), (2, 3))),
        (set_prices, "_PROOF_BITS", ((1, 2), (2, 3, 16))),
        (set_tables, "BUCKET_BITS", ((1, 1), (1, 2, 3, 20))),
        (closing, "_MOST_SETS", (1, 3)),
        (columns, "_CLOSE", (0.5,)),
        (columns, "_PARTS", (1, 3)),
        (columns, "_DIRECT_SECONDS", (0.0,)),
        (columns, "_ROUNDS", (2, 10)),
    ),
    "latency": (
        (flow, "_STATES", (4, 40)),
        (flow, "_MOST_ROUNDS", (2, 30)),
        (flow, "_MAX_WEIGHT", (2000,)),
    ),
}
"""Limits on the work of bounds, by objective: (module, name, smaller values)."""


def small_limits(objective, rng):
    """Return a context in which some limits are smaller, most of the time none is."""
    stack = ExitStack()
    for module, name, values in SMALL[objective]:
        if hasattr(module, name) and rng.random() < 0.15:
            stack.enter_context(mock.patch.object(module, name, rng.choice(values)))
    return stack


def deep_bounds(problem, best, rng):
    """Return the differences that the bounds of a feasible problem make, one by one."""
    objective = problem.objective
    with small_limits(objective, rng):
        return {"makespan": _makespan, "period": _period, "latency": _latency}[objective](
            problem, best, rng
        )


def _above(found, best, how):
    """Return a difference for every (name, value) above the optimum."""
    return [
        f"{name} {value} exceeds the optimum {best}, {how}" for name, value in found if value > best
    ]


def _makespan(problem, best, rng):
    """Bounds in any order from a drawn one; the segments with all their heads; the coarse problem."""
    upper, known = rng.choice([None, best, best + rng.randint(1, 9)]), rng.randint(0, best)
    analysis = Analysis(problem, seconds=3600.0, upper=upper)
    analysis.bounds["drawn"] = known
    names = rng.sample(MAKESPAN, rng.randint(1, len(MAKESPAN)))
    if rng.random() < 0.9 and "front" in names:  # a program per window
        names.remove("front")
    found = [(name, analysis.run(name)) for name in names]
    found.append(("heads and tails", int(analysis.heads.through().max())))
    if problem.objective == "makespan" and best < 2**40 and rng.random() < 0.3:
        unit = rng.choice([1, 2, 3, 7, max(1, best // 4)])
        inner = Analysis(coarsen(problem, unit).problem, seconds=3600.0)
        found += [("coarse " + name, inner.run(name) * unit) for name in MAKESPAN[:7]]
    return _above(found, best, f"from {known}, value {upper}")


def _period(problem, best, rng):
    """Refute periods by prices: sets one by one, the frontier's graph, and closing the gap."""
    upper = rng.choice([None, best, best + rng.randint(1, 9), 2 * best + 1])
    known, deadline, found = rng.randint(0, best), time.perf_counter() + 1000.0, []
    try:
        model = contract(problem, contiguity="none", limit=upper)
    except InfeasibleProblemError:
        return [f"contraction says infeasible, brute force has {best}"]
    most = int(model.smallest_times.sum()) + 1 if upper is None else upper
    most = max(known, most)
    if rng.random() < 0.3:
        found.append(("columns", ColumnBound(model, deadline).raise_from(known, most)))
    cover = cover_bound(model, deadline)
    if cover is not None:
        found.append(("cover", cover.raise_from(known, most)))
        found += _closing(problem, model, cover, known, most, rng)
    return _above(found, best, f"from {known}, value {upper}")


def _closing(problem, model, cover, known, most, rng):
    """Return the bound at which closing the gap ends; what it offers must be worth what it says."""
    if problem.contiguity != "none" or not can_close(cover):
        return []
    offered = []
    run = Closing(cover, lambda: most, lambda device: offered.append(model.expand(device)))
    try:
        value = run.raise_from(known, 1000.0)
    except (OutOfTimeError, UndecidedError):
        return []
    values = [int(x) for x in period_batch(problem, np.array(offered))] if offered else []
    if values and run._best != min(values):
        return [("closing's best, which is not that of what it offers,", 2**62)]
    return [("closing", value)]


def _latency(problem, best, rng):
    """The bound by flows over all ideals, or with most of them merged."""
    upper = rng.choice([None, None, best])
    bound = FlowBound(problem, max_ideals=rng.choice([3, 4, 6, 8, 12, 10**4]))
    value = bound.run(lambda: upper, lambda: False)
    return _above([("flow", value)], best, f"value {upper}")
