"""Confinement: the islands of devices that the ops of a short schedule can be on.

Devices joined by links much cheaper than those to others are an island (`relaxation.islands`), such
as those of a host.

Proof. Let S be a schedule of at most T ticks. Where the transfer of an edge between two islands
does not fit between the head of its first op and the tail of its second, both are on one island;
that is transitive, so ops fall into clusters. A cluster is not on an island that has no device for
one of its ops, or no room for all of them, or where they take more than T: along a path, or by
their work, spread over all of its devices between their least head and least tail. Call two islands
alike if some renaming of devices swaps them and changes no cost: S renamed is as long, so one of
the clusters may be supposed to be on the first of the islands that are alike.

Hence: if there is a schedule of at most T ticks at all, there is one on the devices that are left,
and a bound of the problem with these devices, or T + 1 if that is less, is a bound of the problem.

What it adds: other bounds spread work over all devices. Where a network joins hosts, or a graph is
small beside what its transfers cost there, few of the devices are of use, and on those alone the
bounds are far closer.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placeopt.makespan.bounds.communication import HeadsTails, heads_tails
from placeopt.makespan.bounds.relaxation import INFINITE, Relaxation, fastest_ticks, islands
from placeopt.model.arrays import stable_order
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.destructive import Clusters
    from placeopt.model.arrays import Flags, Ints


DEDUCING = 0.3
"""Part of the time for what a horizon says of single devices; a look that takes less was whole."""


def confined(analysis: Analysis, horizon: int, seconds: float) -> PlacementProblem | None:
    """Return the problem with the devices that a schedule of at most `horizon` ticks needs; None if
    there is no such schedule.

    Parameters
    ----------
    seconds : when to stop looking, from now.
    """
    end = time.perf_counter() + seconds
    problem = analysis.problem
    found = analysis.within(horizon, DEDUCING * seconds)
    if found is None:
        return None
    heads, decided = found
    relaxation = replace(decided.relaxation, free=decided.free, pay=decided.pay)
    label = islands(problem)
    island = [np.flatnonzero(label == i) for i in np.unique(label)]
    allowed = relaxation.allowed & (heads.compute[:, relaxation.class_of] >= 0)
    cluster = _clusters(relaxation, heads, decided, horizon)
    work = np.bincount(cluster, weights=relaxation.min_compute)
    for turn, c in enumerate(stable_order(-work).tolist()):
        if time.perf_counter() >= end:
            break
        ops = np.flatnonzero(cluster == c)
        left = [
            devices
            for devices in island
            if _can_hold(relaxation, heads, allowed, ops, devices, horizon, end)
        ]
        if turn == 0:
            left = _unlike(problem, left)
        inside = np.zeros(problem.num_devices, np.bool_)
        inside[[d for devices in left for d in devices]] = True
        allowed[ops] &= inside
        if not allowed[ops].any(axis=1).all():
            return None
    compute = np.where(allowed, problem.compute, INCOMPATIBLE)
    return problem.replace(compute=compute)


def _clusters(relaxation: Relaxation, heads: HeadsTails, decided: Clusters, horizon: int) -> Ints:
    """Return the number of the cluster of each op: all on one island."""
    n = relaxation.num_ops
    head, tail = heads.minima()
    fast = fastest_ticks(heads.compute)
    u, v = relaxation.source, relaxation.target
    room = horizon - (head + fast)[u] - (fast + tail)[v]
    near = relaxation.far > room
    first = np.concatenate([u[near], np.arange(n)])
    second = np.concatenate([v[near], n + decided.cluster])  # a node per cluster, too
    joined = coo_array((np.ones(len(first), np.bool_), (first, second)), shape=(2 * n, 2 * n))
    return np.asarray(connected_components(joined, directed=False)[1][:n], np.int64)


def _can_hold(
    relaxation: Relaxation,
    heads: HeadsTails,
    allowed: Flags,
    ops: Ints,
    devices: Ints,
    horizon: int,
    end: float,
) -> bool:
    """Whether nothing says that a cluster cannot be on an island within the horizon."""
    problem = relaxation.problem
    here = allowed[np.ix_(ops, devices)]
    if not here.any(axis=1).all():
        return False
    room = sum(map(int, problem.capacity[devices]))
    if sum(map(int, problem.resident[ops])) > room:
        return False
    ticks = np.where(here, problem.compute[np.ix_(ops, devices)], INFINITE).min(axis=1)
    head, tail = heads.minima()
    work = sum(map(int, ticks))
    if int(head[ops].min()) + -(-work // len(devices)) + int(tail[ops].min()) > horizon:
        return False
    elsewhere = np.setdiff1d(relaxation.class_of, relaxation.class_of[devices])
    compute = relaxation.compute.copy()
    compute[np.ix_(ops, elsewhere)] = INCOMPATIBLE
    if time.perf_counter() >= end or (compute == relaxation.compute).all():
        return True
    there = replace(relaxation, compute=compute, min_compute=fastest_ticks(compute))
    return int(heads_tails(there, end=end).through().max()) <= horizon


def _unlike(problem: PlacementProblem, found: list[Ints]) -> list[Ints]:
    """Return islands without those that are alike to one before them."""
    kept: list[Ints] = []
    for devices in found:
        if not any(problem.interchangeable(devices, other) for other in kept):
            kept.append(devices)
    return kept
