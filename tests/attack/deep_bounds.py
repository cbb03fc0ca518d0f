"""Bounds one by one, from a bound that is known and weaker than the best: what the cheap ones would
end at once has work to do.

A bound takes what is known (drawn here between 1 and the optimum, so that it is true), a value that
a solution has (none, the optimum, or more), and limits on its work, which are made so small that
what a large problem meets happens on a small one; a clock that runs out is one of them. Nothing of
it may exceed the optimum.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
from limits import clock, current, patched

from placeopt.latency.bounds.flow import FlowBound
from placeopt.makespan.bounds import (
    METHODS as MAKESPAN,
    communication,
    destructive,
    elementary,
    energy,
    front,
    segment_graph,
    segments,
)
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.communication import heads_tails
from placeopt.makespan.bounds.energy import head_tail_bound
from placeopt.makespan.bounds.front import Fronts
from placeopt.makespan.bounds.segment_graph import SegmentGraph
from placeopt.makespan.bounds.series import (
    heads_in_series,
    part_problem,
    placement_in_series,
    series_parts,
)
from placeopt.makespan.coarsening import coarsen
from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InfeasiblePlacementError, InfeasibleProblemError
from placeopt.model.placement import Placement
from placeopt.period import bounds as period_bounds
from placeopt.period.bounds import (
    closing,
)
from placeopt.period.bounds.closing import Closing, PriceSearch, can_close
from placeopt.period.bounds.covering import CoverBound, cover_bound
from placeopt.period.bounds.prices import PriceBound
from placeopt.period.bounds.set_prices import Frontier, OutOfTimeError, SetPricer, UndecidedError
from placeopt.period.bounds.set_tables import SetTables
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch

SMALL = {
    "makespan": (
        (Analysis, "pace.cheap_work", (0,)),
        (destructive.is_small, "most_edges", (0,)),
        (heads_tails, "uncut_seconds", (1e9,)),
        (heads_tails, "most_work", (1, 50)),
        (communication._run, "energy_work", (1, 50)),
        (destructive.propagate, "rounds", (1,)),
        (energy.refutes, "most_work", (1, 10)),
        (segments.spreads, "most_visited", (1, 3)),
        (segments._thresholds, "most_levels", (1, 2)),
        (head_tail_bound, "most_work", (1,)),
        (elementary._dual_weights, "most_variables", (0,)),
        (SegmentGraph, "limits.small", (0, 1)),
        (SegmentGraph, "limits.segments", (1, 2)),
        (segment_graph.too_large, "most_ops", (0,)),
        (segments.segment_delays, "most_wide", (1, 2)),
        (front, "LARGEST_TIME", (2**62,)),
        (segments._Model.least, "effort", (0.0,)),
        (Fronts, "windows.most_ops", (1, 3)),
        (Fronts, "windows.close", (10**12,)),
    ),
    "period": (
        (PriceSearch, "rounds.listed", (1, 3)),
        (PriceSearch, "rounds.near", (0.5,)),
        (PriceSearch, "rounds.disjoint", (1,)),
        (PriceSearch, "rounds.least_steady", (2.0,)),
        (CoverBound, "bisection.most_nodes", (0,)),
        (CoverBound, "rounds.disjoint", (1,)),
        (CoverBound, "rounds.least_steady", (2.0,)),
        (closing, "_WORK", (1, 20)),
        (Frontier, "most_states", (1, 8)),
        (Frontier, "most_width", (0, 1, 2, 3)),
        (Frontier, "first_width", (1, 2, 5)),
        (Frontier, "wider", (2,)),
        (Frontier, "most_relaxed", (1, 30, 100)),
        (period_bounds, "LIMITS.contract_seconds", (1e9,)),
        (period_bounds, "LIMITS.area_nodes", (0,)),
        (SetPricer, "labelling.work", (1, 20)),
        (SetPricer, "labelling.labels", (8,)),
        (SetPricer, "labelling.most_labels", (8, 16)),
        (SetTables, "room.labels", (8,)),
        (SetTables, "room.most_labels", (8, 16)),
        (Closing, "listing.rows", (1,)),
        (SetPricer, "labelling.search_bits", ((1, 2), (2, 3))),
        (SetPricer, "labelling.proof_bits", ((1, 2), (2, 3, 16))),
        (SetTables, "room.bucket_bits", ((1, 1), (1, 2, 3, 20))),
        (Closing, "listing.most_sets", (1, 3)),
    ),
    "latency": (
        (FlowBound, "effort.states", (4, 40)),
        (FlowBound, "effort.most_rounds", (2, 30)),
    ),
}
"""Limits on the work of bounds, by objective: (owner, name, smaller values), as for `patched`."""


def small_limits(objective, rng, chance=None):
    """Return a context in which some limits are smaller, and the clock may run out, each with some
    chance; without one a third of all contexts changes nothing.
    """
    stack, chance = ExitStack(), rng.choice([0.0, 0.1, 0.3]) if chance is None else chance
    for owner, name, values in SMALL[objective]:
        current(owner, name)  # raises where there is none
        if rng.random() < chance:
            stack.enter_context(patched(owner, name, rng.choice(values)))
    if rng.random() < chance:
        stack.enter_context(clock(rng.choice([2, 5, 15, 50])))
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
    whole = Analysis(problem, seconds=rng.choice([0.0, 3600.0, 3600.0]), upper=upper)
    whole.bounds["drawn"] = known
    names = rng.sample(MAKESPAN, rng.randint(1, len(MAKESPAN)))
    if rng.random() < 0.8 and "front" in names:  # a program per window
        names.remove("front")
    found = [(name, whole.run(name)) for name in names]
    found.append(("heads and tails", int(whole.heads.through().max())))
    parts = series_parts(whole.relaxation, float("inf"))
    if parts:
        found.append(("parts in series", in_series(problem, whole, parts)))
    if problem.objective == "makespan" and best < 2**40 and rng.random() < 0.3:
        unit = rng.choice([1, 2, 3, 7, max(1, best // 4)])
        coarse = coarsen(problem, unit)
        inner = Analysis(coarse.problem, seconds=3600.0)
        found += [("coarse " + name, inner.run(name) * unit) for name in MAKESPAN[:7]]
        found += there_and_back(problem, coarse, rng)
    return _above(found, best, f"from {known}, value {upper}")


def in_series(problem, whole, parts):
    """Return the bound of parts one after the other, each with heads and tails of its own."""
    least, heads = series_heads(problem, whole, parts)
    alone = [Placement(np.full(len(x.ops), i % problem.num_devices)) for i, x in enumerate(parts)]
    together = placement_in_series(problem, parts, alone)
    kind = {d: i for i, alike in enumerate(problem.identical_devices) for d in alike}
    for place, placement in zip(parts, alone, strict=True):
        there, own = together.device[place.members].tolist(), placement.device[place.own].tolist()
        renamed = set(zip(own, there, strict=True))  # one to one, within classes of identical ones
        if any(kind[a] != kind[b] for a, b in renamed) or len(renamed) > len(set(there)):
            return 2**62
    return max(sum(least), int(heads.through().max()))


def series_heads(problem, whole, parts):
    """Return what every part needs at least, and the heads and tails that the parts give."""
    inner = [Analysis(part_problem(problem, place), seconds=3600.0) for place in parts]
    least = [max(part.run(name) for name in MAKESPAN[:4]) for part in inner]
    return least, heads_in_series(whole, parts, inner, least)


def there_and_back(problem, coarse, rng):
    """Return a difference where a placement of the coarse problem and one of the fine problem do
    not have the devices of each other.
    """
    devices = rng.choices(range(problem.num_devices), k=problem.num_ops)
    fine = Placement(np.array(devices), rng.choice([None, np.arange(problem.num_ops)]))
    restricted = coarse.restrict(fine)
    try:
        back = coarse.extend(evaluate(coarse.problem, restricted).schedule)
    except InfeasiblePlacementError:
        return []
    same = np.array_equal(back.device[coarse.kept], restricted.device)
    return [] if same else [("devices of what was left out and put back", 2**62)]


def _period(problem, best, rng):
    """Refute periods by prices: the frontier's graph, and closing the gap."""
    upper = rng.choice([None, best, best + rng.randint(1, 9), 2 * best + 1])
    known, deadline, found = rng.randint(0, best), time.perf_counter() + 1000.0, []
    try:
        model = contract(problem, contiguity="none", limit=upper)
    except InfeasibleProblemError:
        return [f"contraction says infeasible, brute force has {best}"]
    most = int(model.smallest_times.sum()) + 1 if upper is None else upper
    most = max(known, most)
    if rng.random() < 0.5:
        turns = PriceBound(problem)
        found.append(("prices", turns.raise_from(known, upper, 1000.0)))
        if turns.goes_on:
            found.append(("prices again", turns.raise_from(known, upper, 1000.0)))
        return _above(found + _closing(problem, turns.closing, known, most), best, f"from {known}")
    cover = cover_bound(model, deadline)
    if cover is not None:
        found.append(("cover", cover.raise_from(known, most)))
        if problem.contiguity == "none" and can_close(cover):

            def make(value, offer):
                return Closing(cover, value, lambda device: offer(model.expand(device)))

            found += _closing(problem, make, known, most)
    return _above(found, best, f"from {known}, value {upper}")


def _closing(problem, make, known, most):
    """Return the bound at which closing the gap ends; what it offers must be worth what it says."""
    offered = []
    run = make(lambda: most, offered.append)
    if run is None:
        return []
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
    clicks = iter(range(rng.choice([10**9, 10**9, rng.randint(0, 60)])))

    def stop():
        return next(clicks, None) is None

    bound = FlowBound(problem, max_ideals=rng.choice([3, 4, 6, 8, 12, 10**4]), stop=stop)
    value = bound.run(lambda: upper, stop) if bound.usable else 0
    return _above([("flow", value)], best, f"value {upper}")
