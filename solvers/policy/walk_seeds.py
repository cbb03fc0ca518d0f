"""Seeds of walks: schedules of the cheap heuristics, in a few milliseconds for 200 ops.

List schedulers cost a pass over the graph each; of edge zeroing, whose sweep of caps, thresholds
and mappings takes a quarter of a second, the few points are taken that were best on families of
generated graphs (results/policy/pretrain.py names those). The linear program of m-SCT is left out
for its greedy choice of favourites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.solvers.heuristics.baechi import favoured_plan, greedy_children
from placeopt.solvers.heuristics.clustering import (
    clustered_plan,
    cut_clusters,
    dsc_units,
    internalised,
    map_clusters,
    unit_graph,
)
from placeopt.solvers.heuristics.clustering_kernels import zero_edges
from placeopt.solvers.heuristics.critical_path import critical_path_plans
from placeopt.solvers.heuristics.list_scheduling import cpop_plan, etf_plan, heft_plan, peft_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.solvers.heuristics.clustering_kernels import UnitGraph
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule

    Ints = NDArray[np.int64]

ZEROED = (
    (0.5, 0.55),
    (0.125, 0.73),
    (0.0625, 0.73),
    (0.25, 0.91),
    (0.67, 0.0),
    (0.25, 0.55),
    (0.0625, 0.1),
    (0.125, 0.36),
)
"""Points of edge zeroing: the cap on a cluster's work as a multiple of the work per device, and how
far down the levels of cost edges are zeroed."""

SLACK = 0.05
"""Load limit of the clusters of Sarkar's rule, as excess over the ideal load."""

CUT = 0.5
"""Largest work of a piece of DSC's clusters, as a multiple of the work per device."""

CRITICAL_PATHS = 8
"""Tie-breakings of the critical-path heuristic."""

STEPS = 10_000_000
"""Sarkar's rule is left out where edges x (ops + edges) is more: it would take longer than the
rest."""


class Seed(NamedTuple):
    """A schedule to begin from, and the heuristic that made it."""

    heuristic: str
    plan: ListSchedule
    value: int  # ticks


def seeds(context: Context) -> list[Seed]:
    """Return the schedules that respect every capacity, best first (ties: in order of the
    heuristics).
    """
    found = [
        Seed(name, plan, int(plan.finish.max()))
        for name, plan in (*_listed(context), *_clustered(context))
        if not plan.overflow
    ]
    return sorted(found, key=lambda seed: seed.value)


def _listed(context: Context) -> Iterator[tuple[str, ListSchedule]]:
    """Yield list schedules."""
    for name, make in (
        ("heft", heft_plan),
        ("peft", peft_plan),
        ("etf", etf_plan),
        ("cpop", cpop_plan),
    ):
        yield name, make(context)
    yield "m-etf", context.by_time(context.position)
    yield "m-sct", favoured_plan(context, greedy_children(context))
    for plan in critical_path_plans(context, np.random.default_rng(0), CRITICAL_PATHS):
        yield "critical-path", plan


def _clustered(context: Context) -> Iterator[tuple[str, ListSchedule]]:
    """Yield schedules of clusters."""
    graph, k = unit_graph(context), context.problem.num_devices
    if len(graph.cost) * (context.problem.num_ops + context.problem.num_edges) <= STEPS:
        ideal = float(graph.work.min(axis=1).sum()) / k
        home, overflow = map_clusters(graph, internalised(context, graph), ideal * (1.0 + SLACK))
        if not overflow:
            yield "edge-zeroing", context.pinned_plan(home[context.units.unit])
    cluster, start = dsc_units(context)
    share = float(graph.mean_work.sum()) / k
    for name, clusters in (
        ("dsc", cut_clusters(graph, cluster, start, CUT * share)),
        *_zeroed(graph, share),
    ):
        plan = clustered_plan(context, clusters)
        if plan is not None:
            yield name, plan


def _zeroed(graph: UnitGraph, share: float) -> Iterator[tuple[str, Ints]]:
    """Yield clusters of edge zeroing; `share` is the work per device."""
    if len(graph.cost) == 0:
        return
    ends = np.flatnonzero(np.append(np.diff(graph.cost) != 0, True)) + 1
    for cap, part in ZEROED:
        count = int(ends[round(part * (len(ends) - 1))])
        yield "edge-zeroing", zero_edges(graph, count, cap * share * (1.0 + 1e-12))
