# mypy: disable-error-code="assignment, return-value"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

"""Compiled kernels of the clusterings: zeroing edges, Sarkar's rule, DSC, and mapping clusters to
devices.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, inner_kernel, row_of, uncounted_kernel
from placeopt.model.union_find import number_sets, root as find_root
from placeopt.solvers.heuristics.unit_reservation import filled

NONE = np.int64(-1)
"""No device; typed, for a plain number is a type of its own to numba, and a kernel that takes it is
compiled once more."""


class UnitGraph(NamedTuple):
    """Units (ops that share a device anyway) and the transfer times between them."""

    work: Floats  # (num_units, num_devices) ticks, inf where not allowed
    mean_work: Floats  # (num_units,) mean ticks over the allowed devices
    bytes: Ints  # (num_units,)
    capacity: Ints  # (num_devices,)
    source: Ints  # (num_edges,) unit, edges by decreasing cost
    target: Ints  # (num_edges,) unit
    cost: Floats  # (num_edges,) mean ticks
    near_ptr: Ints  # (num_units + 1,)
    near_unit: Ints  # (2 * num_edges,) neighbours of each unit
    near_cost: Floats  # (2 * num_edges,)


class OpEdges(NamedTuple):
    """Ops with one time each, whatever the device, and the times of their edges."""

    order: Ints  # (num_ops,) a topological order
    pred_ptr: Ints  # (num_ops + 1,)
    pred_op: Ints  # (num_edges,)
    pred_cost: Floats  # (num_edges,)
    succ_ptr: Ints  # (num_ops + 1,)
    succ_op: Ints  # (num_edges,)
    succ_cost: Floats  # (num_edges,)
    work: Floats  # (num_ops,)


@inner_kernel
def _numbered(parent: Ints) -> Ints:
    """Cluster of each unit, numbered from 0 by first unit."""
    cluster = np.empty(len(parent), np.int64)
    number_sets(parent, cluster)
    return cluster


@uncounted_kernel
def _mergeable(graph: UnitGraph, work: Floats, size: Ints, a: int, b: int) -> bool:
    """Whether some device can hold both clusters."""
    for device in range(len(graph.capacity)):
        runs = work[a, device] < np.inf and work[b, device] < np.inf
        if runs and size[a] + size[b] <= graph.capacity[device]:
            return True
    return False


@entry
def zero_edges(graph: UnitGraph, num_edges: int, cap: float) -> Ints:
    """Merge the ends of the first `num_edges` edges while a cluster's mean work stays at most
    `cap`.

    Returns the cluster of each unit, numbered from 0 by first unit.
    """
    num_units = len(graph.bytes)
    parent = np.arange(num_units)
    load = graph.mean_work.copy()
    work = graph.work.copy()
    size = graph.bytes.copy()
    for e in range(num_edges):
        a, b = find_root(parent, graph.source[e]), find_root(parent, graph.target[e])
        if a == b or load[a] + load[b] > cap or not _mergeable(graph, work, size, a, b):
            continue
        a, b = min(a, b), max(a, b)
        parent[b] = a
        load[a] += load[b]
        size[a] += size[b]
        for device in range(work.shape[1]):
            work[a, device] += work[b, device]
    return _numbered(parent)


@uncounted_kernel
def _parallel_time(
    edges: OpEdges, cluster: Ints, start: Floats, open_at: Floats, best: float
) -> float:
    """Makespan of a clustering with one device per cluster, ops in the order of `edges`.

    `start` and `open_at` are scratch. Stops early, with a larger value, once `best` is exceeded.
    """
    pred_ptr, pred_op, pred_cost, work = edges.pred_ptr, edges.pred_op, edges.pred_cost, edges.work
    open_at[:] = 0.0
    longest = 0.0
    for op in edges.order:
        begin = open_at[cluster[op]]
        for e in row_of(pred_ptr, op):
            source = pred_op[e]
            arrival = start[source] + work[source]
            if cluster[source] != cluster[op]:
                arrival += pred_cost[e]
            begin = max(begin, arrival)
        start[op] = begin
        open_at[cluster[op]] = begin + work[op]
        longest = max(longest, begin + work[op])
        if longest > best:
            break
    return longest


@entry
def internalise(graph: UnitGraph, unit: Ints, edges: OpEdges) -> Ints:
    """Sarkar's internalisation: zero an edge whenever the parallel time does not grow; cluster of
    each unit.
    """
    num_units = len(graph.bytes)
    parent = np.arange(num_units)
    load, size = graph.work.copy(), graph.bytes.copy()
    cluster = unit.copy()
    trial = unit.copy()
    start, open_at = np.zeros(len(unit)), np.zeros(num_units)
    best = _parallel_time(edges, cluster, start, open_at, np.inf)
    for e in range(len(graph.source)):
        a, b = find_root(parent, graph.source[e]), find_root(parent, graph.target[e])
        if a == b or not _mergeable(graph, load, size, a, b):
            continue
        for op in range(len(unit)):
            trial[op] = a if cluster[op] == b else cluster[op]
        time = _parallel_time(edges, trial, start, open_at, best)
        if time <= best:
            best = time
            parent[b] = a
            size[a] += size[b]
            for device in range(load.shape[1]):
                load[a, device] += load[b, device]
            cluster, trial = trial, cluster
    return _numbered(parent)


@uncounted_kernel
def _choose(work: Floats, size: int, load: Floats, free: Ints, near: Floats, limit: float) -> int:
    """Device with the most data nearby whose load stays within `limit`, else the one that ends
    first; -1: full.
    """
    best, best_near, best_end, within = -1, -1.0, np.inf, False
    for device in range(len(load)):
        end = load[device] + work[device]
        if end == np.inf or size > free[device]:
            continue
        inside = end <= limit
        if inside and not within:
            better = True
        elif inside == within:
            if inside:
                better = near[device] > best_near or (near[device] == best_near and end < best_end)
            else:
                better = end < best_end or (end == best_end and near[device] > best_near)
        else:
            better = False
        if better:
            best, best_near, best_end, within = device, near[device], end, inside
    return best


@uncounted_kernel
def _add_nearness(graph: UnitGraph, device_of: Ints, unit: int, near: Floats) -> None:
    """Add to near[device] what `unit` exchanges with the units placed there."""
    for e in row_of(graph.near_ptr, unit):
        if device_of[graph.near_unit[e]] >= 0:
            near[device_of[graph.near_unit[e]]] += graph.near_cost[e]


@entry
def map_in_order(
    graph: UnitGraph, members: Ints, pointer: Ints, sequence: Ints, limit: float
) -> tuple[Ints, bool]:
    """Map the clusters of `sequence`; the units of cluster c are members[pointer[c]:pointer[c +
    1]].
    """
    num_units, k = graph.work.shape
    device_of = filled(num_units, -1)
    load, free = np.zeros(k), graph.capacity.copy()
    near, work = np.zeros(k), np.zeros(k)
    overflow = False
    for c in sequence:
        first, end = pointer[c], pointer[c + 1]
        near[:] = 0.0
        work[:] = 0.0
        size = np.int64(0)
        for i in range(first, end):
            unit = members[i]
            size += graph.bytes[unit]
            for device in range(k):
                work[device] += graph.work[unit, device]
            _add_nearness(graph, device_of, unit, near)
        whole = _choose(work, size, load, free, near, limit)
        for i in range(first, end):
            unit = members[i]
            device = whole
            if whole < 0:
                near[:] = 0.0
                _add_nearness(graph, device_of, unit, near)
                device = _choose(graph.work[unit], graph.bytes[unit], load, free, near, limit)
            if device < 0:
                overflow = True
                device = np.argmin(graph.work[unit])
            device_of[unit] = device
            load[device] += graph.work[unit, device]
            free[device] -= graph.bytes[unit]
    return device_of, overflow


class Clusters(NamedTuple):
    """The clustering so far: of ops, and of clusters (by number)."""

    cluster: Ints  # (num_ops,) -1 until examined
    start: Floats  # (num_ops,)
    finish: Floats  # (num_ops,)
    open_at: Floats  # (num_ops,) end of the last op of each cluster
    last: Ints  # (num_ops,) last op of each cluster
    members: Ints  # (num_ops,) number of ops of each cluster
    arrival: Floats  # (num_ops,) t-level over the examined predecessors
    dominant: Ints  # (num_ops,) predecessor that attains it, -1 for none


@inner_kernel
def _join(
    edges: OpEdges, state: Clusters, kept: int, op: int, target: int, commit: int
) -> tuple[float, int]:
    """Earliest start of `op` behind cluster `target`, and how many predecessors must follow it
    there.

    The predecessor whose data arrives last may follow into `target` if it is alone in its cluster
    (not `kept`) and feeds only `op`; then the next one, and so on. With `commit` >= 0 that many of
    them are moved.
    """
    first, end = edges.pred_ptr[op], edges.pred_ptr[op + 1]
    outside = np.empty(end - first, np.bool_)
    for e in range(first, end):
        outside[e - first] = state.cluster[edges.pred_op[e]] != target
    tail = state.open_at[target]
    best, pulls, count = np.inf, 0, 0
    while True:
        late, late_at = -1, 0.0
        for e in range(first, end):
            at = state.finish[edges.pred_op[e]] + edges.pred_cost[e]
            if outside[e - first] and (late < 0 or at > late_at):
                late, late_at = e, at
        if max(tail, late_at) < best:
            best, pulls = max(tail, late_at), count
        if late < 0 or tail >= best or count == commit:
            break
        source = edges.pred_op[late]
        alone = state.members[state.cluster[source]] == 1 and state.cluster[source] != kept
        if not alone or edges.succ_ptr[source + 1] - edges.succ_ptr[source] > 1:
            break
        moved = max(state.start[source], tail)
        tail = moved + edges.work[source]
        outside[late - first] = False
        count += 1
        if commit >= 0:
            state.members[state.cluster[source]] = 0
            state.members[target] += 1
            state.cluster[source], state.start[source], state.finish[source] = target, moved, tail
            state.open_at[target] = tail
    return best, pulls


@inner_kernel
def _b_levels(edges: OpEdges) -> Floats:
    """Longest path from the start of each op to the end of the graph."""
    level = np.zeros(len(edges.order))
    for i in range(len(level) - 1, -1, -1):
        op = edges.order[i]
        for e in row_of(edges.succ_ptr, op):
            level[op] = max(level[op], edges.succ_cost[e] + level[edges.succ_op[e]])
        level[op] += edges.work[op]
    return level


@inner_kernel
def _home(edges: OpEdges, state: Clusters, kept: int, op: int) -> tuple[int, float]:
    """Cluster that `op` joins (-1 for one of its own) and its start; predecessors that follow are
    moved.
    """
    begin = state.arrival[op]
    if state.dominant[op] < 0 or state.cluster[state.dominant[op]] == kept:
        return -1, begin
    target = state.cluster[state.dominant[op]]
    best, pulls = _join(edges, state, kept, op, target, NONE)
    if best >= begin:
        return -1, begin
    _join(edges, state, kept, op, target, pulls)
    return target, best


@entry
def dominant_sequence_clusters(edges: OpEdges) -> tuple[Ints, Floats]:
    """DSC: cluster and start of each op, on an unbounded number of devices.

    The free op with the largest t-level + b-level is examined next. Its t-level drops if it joins
    the cluster of the predecessor whose data arrives last; predecessors that feed only this op
    follow into the cluster while that helps. If a partially free op lies on a longer sequence, the
    cluster of *its* last predecessor is kept for it (the dominant sequence reduction warranty).
    """
    n = len(edges.order)
    level = _b_levels(edges)
    state = Clusters(
        filled(n, -1),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n),
        filled(n, -1),
        filled(n, 0),
        np.zeros(n),
        filled(n, -1),
    )
    waiting = edges.pred_ptr[1:] - edges.pred_ptr[:-1]
    free = [(0.0, np.int64(0))]
    partial = [(0.0, np.int64(0))]
    free.clear()
    partial.clear()
    for op in range(n):
        if waiting[op] == 0:
            heapq.heappush(free, (-level[op], np.int64(op)))
    clusters = 0
    for _ in range(n):
        priority, op = heapq.heappop(free)
        while len(partial) > 0 and (
            waiting[partial[0][1]] == 0
            or -partial[0][0] != state.arrival[partial[0][1]] + level[partial[0][1]]
        ):
            heapq.heappop(partial)
        kept = -1
        if len(partial) > 0 and partial[0][0] < priority:
            guard = state.dominant[partial[0][1]]
            if (
                state.last[state.cluster[guard]] == guard
            ):  # otherwise joining it no longer helps the partially free op
                kept = state.cluster[guard]
        home, begin = _home(edges, state, kept, op)
        if home < 0:
            home = clusters
            clusters += 1
        state.cluster[op], state.start[op], state.finish[op] = home, begin, begin + edges.work[op]
        state.open_at[home], state.last[home] = state.finish[op], op
        state.members[home] += 1
        for e in row_of(edges.succ_ptr, op):
            child = edges.succ_op[e]
            at = state.finish[op] + edges.succ_cost[e]
            if state.dominant[child] < 0 or at > state.arrival[child]:
                state.arrival[child], state.dominant[child] = at, op
            waiting[child] -= 1
            heap = free if waiting[child] == 0 else partial
            heapq.heappush(heap, (-(state.arrival[child] + level[child]), child))
    return state.cluster, state.start
