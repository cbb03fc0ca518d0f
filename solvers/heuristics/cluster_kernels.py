# mypy: disable-error-code="assignment, return-value"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

"""Compiled kernels of the clusterings: zeroing edges, Sarkar's rule, DSC, and mapping clusters to devices."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from placeopt.solvers.heuristics.kernels import Floats, Ints


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


@njit(cache=True, nogil=True)
def _root(parent: Ints, unit: int) -> int:
    while parent[unit] != unit:
        parent[unit] = parent[parent[unit]]
        unit = parent[unit]
    return unit


@njit(cache=True, nogil=True)
def _mergeable(graph: UnitGraph, work: Floats, size: Ints, a: int, b: int) -> bool:
    """Whether some device can hold both clusters."""
    for device in range(len(graph.capacity)):
        runs = work[a, device] < np.inf and work[b, device] < np.inf
        if runs and size[a] + size[b] <= graph.capacity[device]:
            return True
    return False


@njit(cache=True, nogil=True)
def zero_edges(graph: UnitGraph, num_edges: int, cap: float) -> Ints:
    """Merge the ends of the first `num_edges` edges while a cluster's mean work stays at most `cap`.

    Returns the cluster of each unit, numbered from 0 by first unit.
    """
    num_units = len(graph.bytes)
    parent = np.arange(num_units)
    load = graph.mean_work.copy()
    work = graph.work.copy()
    size = graph.bytes.copy()
    for e in range(num_edges):
        a, b = _root(parent, graph.source[e]), _root(parent, graph.target[e])
        if a == b or load[a] + load[b] > cap or not _mergeable(graph, work, size, a, b):
            continue
        a, b = min(a, b), max(a, b)
        parent[b] = a
        load[a] += load[b]
        size[a] += size[b]
        for device in range(work.shape[1]):
            work[a, device] += work[b, device]
    cluster = np.full(num_units, -1, np.int64)
    count = 0
    for unit in range(num_units):
        root = _root(parent, unit)
        if cluster[root] < 0:
            cluster[root] = count
            count += 1
        cluster[unit] = cluster[root]
    return cluster


@njit(cache=True, nogil=True)
def _parallel_time(
    sequence: Ints, pred_ptr: Ints, pred_op: Ints, pred_cost: Floats, work: Floats, cluster: Ints, start: Floats,
    open_at: Floats, best: float,
) -> float:  # fmt: skip
    """Makespan of a clustering with one device per cluster, ops in the order of `sequence`.

    `start` and `open_at` are scratch. Stops early, with a larger value, once `best` is exceeded.
    """
    open_at[:] = 0.0
    longest = 0.0
    for op in sequence:
        begin = open_at[cluster[op]]
        for e in range(pred_ptr[op], pred_ptr[op + 1]):
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


@njit(cache=True, nogil=True)
def internalise(
    graph: UnitGraph, unit: Ints, sequence: Ints, pred_ptr: Ints, pred_op: Ints, pred_cost: Floats, work: Floats
) -> Ints:
    """Sarkar's internalisation: zero an edge whenever the parallel time does not grow; cluster of each unit."""
    num_units = len(graph.bytes)
    parent = np.arange(num_units)
    load, size = graph.work.copy(), graph.bytes.copy()
    cluster = unit.copy()
    trial = unit.copy()
    start, open_at = np.zeros(len(work)), np.zeros(num_units)
    best = _parallel_time(sequence, pred_ptr, pred_op, pred_cost, work, cluster, start, open_at, np.inf)
    for e in range(len(graph.source)):
        a, b = _root(parent, graph.source[e]), _root(parent, graph.target[e])
        if a == b or not _mergeable(graph, load, size, a, b):
            continue
        for op in range(len(work)):
            trial[op] = a if cluster[op] == b else cluster[op]
        time = _parallel_time(sequence, pred_ptr, pred_op, pred_cost, work, trial, start, open_at, best)
        if time <= best:
            best = time
            parent[b] = a
            size[a] += size[b]
            for device in range(load.shape[1]):
                load[a, device] += load[b, device]
            cluster, trial = trial, cluster
    result = np.full(num_units, -1, np.int64)
    count = 0
    for u in range(num_units):
        root = _root(parent, u)
        if result[root] < 0:
            result[root] = count
            count += 1
        result[u] = result[root]
    return result


@njit(cache=True, nogil=True)
def _choose(
    graph: UnitGraph, work: Floats, size: int, load: Floats, free: Ints, near: Floats, limit: float
) -> int:
    """Device with the most data nearby whose load stays within `limit`, else the one that ends first; -1: full."""
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


@njit(cache=True, nogil=True)
def map_in_order(
    graph: UnitGraph, members: Ints, pointer: Ints, sequence: Ints, limit: float
) -> tuple[Ints, bool]:
    """Map the clusters of `sequence`; the units of cluster c are members[pointer[c]:pointer[c + 1]]."""
    num_units, k = graph.work.shape
    device_of = np.full(num_units, -1, np.int64)
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
            for e in range(graph.near_ptr[unit], graph.near_ptr[unit + 1]):
                if device_of[graph.near_unit[e]] >= 0:
                    near[device_of[graph.near_unit[e]]] += graph.near_cost[e]
        whole = _choose(graph, work, size, load, free, near, limit)
        for i in range(first, end):
            unit = members[i]
            device = whole
            if whole < 0:
                near[:] = 0.0
                for e in range(graph.near_ptr[unit], graph.near_ptr[unit + 1]):
                    if device_of[graph.near_unit[e]] >= 0:
                        near[device_of[graph.near_unit[e]]] += graph.near_cost[e]
                device = _choose(graph, graph.work[unit], graph.bytes[unit], load, free, near, limit)
            if device < 0:
                overflow = True
                device = np.argmin(graph.work[unit])
            device_of[unit] = device
            load[device] += graph.work[unit, device]
            free[device] -= graph.bytes[unit]
    return device_of, overflow


@njit(cache=True, nogil=True)
def _join(
    pred_ptr: Ints, pred_op: Ints, pred_cost: Floats, succ_ptr: Ints, work: Floats, cluster: Ints, members: Ints,
    start: Floats, finish: Floats, open_at: Floats, kept: int, op: int, target: int, commit: int,
) -> tuple[float, int]:  # fmt: skip
    """Earliest start of `op` behind cluster `target`, and how many predecessors must follow it there.

    The predecessor whose data arrives last may follow into `target` if it is alone in its cluster (not `kept`)
    and feeds only `op`; then the next one, and so on. With `commit` >= 0 that many of them are moved.
    """
    first, end = pred_ptr[op], pred_ptr[op + 1]
    outside = np.empty(end - first, np.bool_)
    for e in range(first, end):
        outside[e - first] = cluster[pred_op[e]] != target
    tail = open_at[target]
    best, pulls, count = np.inf, 0, 0
    while True:
        late, late_at = -1, 0.0
        for e in range(first, end):
            at = finish[pred_op[e]] + pred_cost[e]
            if outside[e - first] and (late < 0 or at > late_at):
                late, late_at = e, at
        if max(tail, late_at) < best:
            best, pulls = max(tail, late_at), count
        if late < 0 or tail >= best or count == commit:
            break
        source = pred_op[late]
        alone = members[cluster[source]] == 1 and cluster[source] != kept
        if not alone or succ_ptr[source + 1] - succ_ptr[source] > 1:
            break
        moved = max(start[source], tail)
        tail = moved + work[source]
        outside[late - first] = False
        count += 1
        if commit >= 0:
            members[cluster[source]] = 0
            members[target] += 1
            cluster[source], start[source], finish[source] = target, moved, tail
            open_at[target] = tail
    return best, pulls


@njit(cache=True, nogil=True)
def dominant_sequence_clusters(
    order: Ints, pred_ptr: Ints, pred_op: Ints, pred_cost: Floats, succ_ptr: Ints, succ_op: Ints, succ_cost: Floats,
    work: Floats,
) -> tuple[Ints, Floats]:  # fmt: skip
    """DSC: cluster and start of each op, on an unbounded number of devices.

    The free op with the largest t-level + b-level is examined next. Its t-level drops if it joins the cluster
    of the predecessor whose data arrives last; predecessors that feed only this op follow into the cluster
    while that helps. If a partially free op lies on a longer sequence, the cluster of *its* last predecessor is
    kept for it (the dominant sequence reduction warranty).
    """
    n = len(order)
    level = np.zeros(n)  # b-level
    for i in range(n - 1, -1, -1):
        op = order[i]
        for e in range(succ_ptr[op], succ_ptr[op + 1]):
            level[op] = max(level[op], succ_cost[e] + level[succ_op[e]])
        level[op] += work[op]
    start, finish = np.zeros(n), np.zeros(n)
    cluster = np.full(n, -1, np.int64)
    open_at = np.zeros(n)  # end of the last op of each cluster
    last = np.full(n, -1, np.int64)  # last op of each cluster
    members = np.zeros(n, np.int64)
    arrival = np.zeros(n)  # t-level over the examined predecessors
    dominant = np.full(n, -1, np.int64)  # predecessor that attains it
    waiting = pred_ptr[1:] - pred_ptr[:-1]
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
            waiting[partial[0][1]] == 0 or -partial[0][0] != arrival[partial[0][1]] + level[partial[0][1]]
        ):
            heapq.heappop(partial)
        kept = -1
        if len(partial) > 0 and partial[0][0] < priority:
            guard = dominant[partial[0][1]]
            if last[cluster[guard]] == guard:  # otherwise joining it no longer helps the partially free op
                kept = cluster[guard]
        home, begin = -1, arrival[op]
        if dominant[op] >= 0 and cluster[dominant[op]] != kept:
            target = cluster[dominant[op]]
            best, pulls = _join(pred_ptr, pred_op, pred_cost, succ_ptr, work, cluster, members, start, finish, open_at,
                                kept, op, target, -1)  # fmt: skip
            if best < begin:
                home, begin = target, best
                _join(pred_ptr, pred_op, pred_cost, succ_ptr, work, cluster, members, start, finish, open_at,
                      kept, op, target, pulls)  # fmt: skip
        if home < 0:
            home = clusters
            clusters += 1
        cluster[op], start[op], finish[op] = home, begin, begin + work[op]
        open_at[home], last[home] = finish[op], op
        members[home] += 1
        for e in range(succ_ptr[op], succ_ptr[op + 1]):
            child = succ_op[e]
            at = finish[op] + succ_cost[e]
            if dominant[child] < 0 or at > arrival[child]:
                arrival[child], dominant[child] = at, op
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(free, (-(arrival[child] + level[child]), child))
            else:
                heapq.heappush(partial, (-(arrival[child] + level[child]), child))
    return cluster, start
