"""Clustering: decide first which ops share a device, then which device each cluster gets.

With expensive communication this beats list scheduling, which decides op by op. Two clusterings share one
mapping of clusters to devices:

- `EdgeZeroing`: V. Sarkar, "Partitioning and scheduling parallel programs for multiprocessors", MIT Press 1989.
  Edges are zeroed (their ends merged) from the most expensive one down. Here a merge is accepted while the
  cluster's work stays below a cap, and both the cap and the cheapest edge considered are swept.
- `Dsc`: T. Yang, A. Gerasoulis, "DSC: scheduling parallel tasks on an unbounded number of processors", IEEE
  TPDS 5(9), 1994. Ops are examined along the dominant sequence; an op joins the cluster of its dominant
  predecessor where that lets it start earlier.

Two kinds of mapping are tried:

- clusters by decreasing work (longest processing time first); each goes to the device it exchanges most data
  with among those that stay below a load limit, otherwise to the device that finishes it first;
- HEFT with whole clusters: the first op of a cluster chooses the device, by earliest finish.
"""

# mypy: disable-error-code="assignment, return-value"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

import heapq
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numba import njit

from placeopt.errors import InputError
from placeopt.solvers.heuristics.driver import View, join, run
from placeopt.solvers.heuristics.kernels import Plan, clustered_rank, schedule_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.problem import PlacementProblem
    from placeopt.solution import Budget, Placement, Result
    from placeopt.solver import OnProgress

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


SLACK = (0.0, 0.05, 0.15, 0.4, 1.0, 3.0)
"""Default load limits of the mapping, as excess over the ideal load per device."""


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


def unit_graph(view: View) -> UnitGraph:
    """Contract the ops of each unit; edges between the same two units add up."""
    problem, units = view.problem, view.units
    num_units = len(units.bytes)
    source = units.unit[problem.producer[problem.edge_tensor]]
    target = units.unit[problem.consumer]
    cost = view.mean_transfer[problem.edge_tensor]
    low, high = np.minimum(source, target), np.maximum(source, target)
    between = low != high
    key, inverse = np.unique(low[between] * num_units + high[between], return_inverse=True)
    total = np.bincount(inverse, cost[between], minlength=len(key)).astype(np.float64)
    low, high = key // num_units, key % num_units
    order = np.lexsort((high, low, -total))
    low, high, total = low[order], high[order], total[order]
    ends, others = np.concatenate([low, high]), np.concatenate([high, low])
    by_end = np.argsort(ends, kind="stable")
    pointer = np.searchsorted(ends[by_end], np.arange(num_units + 1)).astype(np.int64)
    work = np.where(units.allowed, view.unit_work, np.inf)
    mean_work = np.where(units.allowed, view.unit_work, 0.0).sum(axis=1) / units.allowed.sum(axis=1)
    return UnitGraph(
        work, mean_work, units.bytes, units.capacity, low, high, total,
        pointer, others[by_end], np.concatenate([total, total])[by_end],
    )  # fmt: skip


# --- kernels -----------------------------------------------------------------------------------------------


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


def map_clusters(graph: UnitGraph, cluster: Ints, limit: float) -> tuple[Ints, bool]:
    """Give each cluster a device: longest first, to the nearest device within the load `limit`.

    A cluster that no device can hold is placed unit by unit. Returns the device of each unit and whether
    some unit found no device with space (it then sits on one that can run it).
    """
    count = int(cluster.max()) + 1
    members = np.argsort(cluster, kind="stable")
    pointer = np.searchsorted(cluster[members], np.arange(count + 1)).astype(np.int64)
    longest_first = np.argsort(-np.bincount(cluster, graph.mean_work, minlength=count), kind="stable")
    device_of, overflow = _map_in_order(graph, members, pointer, longest_first, limit)
    return device_of, bool(overflow)


@njit(cache=True, nogil=True)
def _map_in_order(
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


# --- solvers -----------------------------------------------------------------------------------------------


OFFSET = 1_000_000
"""Added to devices, so that their digests never equal those of cluster numbers."""


class _Sweep:
    """Maps clusterings to devices under several load limits, each distinct assignment once."""

    def __init__(self, view: View, graph: UnitGraph, slack: tuple[float, ...]) -> None:
        self.view, self.graph, self.slack = view, graph, slack
        fastest = graph.work.min(axis=1)
        self.ideal = max(float(fastest.sum()) / view.problem.num_devices, 1.0)
        self.seen: set[bytes] = set()

    def candidates(self, cluster: Ints) -> Iterator[Placement | None]:
        if not self._is_new(cluster):
            return
        for slack in self.slack:
            home, overflow = map_clusters(self.graph, cluster, self.ideal * (1.0 + slack))
            device = home[self.view.units.unit]
            if self._is_new(device + OFFSET):
                yield self.view.repaired(device) if overflow else self.view.list_scheduled(device)
        yield from self._by_earliest_finish(cluster)

    def _by_earliest_finish(self, cluster: Ints) -> Iterator[Placement | None]:
        """HEFT over clusters, as planned and once more with the b-levels of its own devices."""
        view = self.view
        units = join(view.units, cluster)
        if not np.logical_or.reduce(units.allowed, axis=1).all():
            return  # a cluster of ops that no one device can run
        rank = clustered_rank(view.graph, view.mean_compute, view.mean_transfer, units.unit)
        pinned = np.full(len(units.bytes), -1, dtype=np.int64)
        plan: Plan = schedule_in_order(
            view.graph, units, view.by_decreasing(rank), np.zeros((0, 0)), pinned, True, view.contended
        )
        if self._is_new(plan.device + OFFSET):
            yield view.fitted(plan)
            if not plan.overflow:
                yield view.list_scheduled(plan.device)

    def _is_new(self, labels: Ints) -> bool:
        """Whether these devices of ops (or clusters of units) were not seen before; only digests are kept."""
        key = blake2b(labels.astype(np.int32).tobytes(), digest_size=16).digest()
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


def _check_slack(solver: str, slack: tuple[float, ...]) -> None:
    if not slack or min(slack) < 0:
        raise InputError(f"{solver}: slack must be a non-empty tuple of numbers >= 0, received {slack}")


@dataclass(frozen=True)
class EdgeZeroing:
    """Merge along the most expensive edges under a load cap; sweep threshold, cap and mapping.

    Parameters
    ----------
    caps : largest work of a cluster, as multiples of the total work per device. Twice, four times, ... as
        much is tried too, up to everything in one cluster.
    thresholds : number of thresholds: edges are considered down to so many quantiles of the distinct costs.
    slack : load limits of the mapping, as excess over the ideal load per device.
    steps : Sarkar's own rule (zero an edge whenever the parallel time does not grow) is tried first if
        edges x (ops + edges) is at most this.
    """

    caps: tuple[float, ...] = (1.0, 1.05, 0.8, 1.15, 0.67, 0.5, 1.3, 0.34, 0.25, 1.6, 0.125, 0.0625)
    thresholds: int = 12
    slack: tuple[float, ...] = SLACK
    steps: int = 400_000_000

    name: ClassVar[str] = "edge-zeroing"

    def __post_init__(self) -> None:
        if not self.caps or min(self.caps) <= 0:
            raise InputError(f"edge-zeroing: caps must be a non-empty tuple of positive numbers, received {self.caps}")
        if self.thresholds < 1:
            raise InputError(f"edge-zeroing: thresholds must be at least 1, received {self.thresholds}")
        _check_slack(self.name, self.slack)

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Evaluate every distinct assignment of the sweep, or as many as the budget allows."""

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            graph = unit_graph(view)
            sweep = _Sweep(view, graph, self.slack)
            if len(graph.cost) * (problem.num_ops + problem.num_edges) <= self.steps:
                yield from sweep.candidates(internalised(view, graph))
            yield from sweep.candidates(np.arange(len(graph.bytes)))  # nothing merged: plain list scheduling
            share = graph.mean_work.sum() / problem.num_devices
            multiples = [2.0**i for i in range(1, (problem.num_devices - 1).bit_length() + 1)]
            for cap in (*self.caps, *multiples):
                for num_edges in self._edge_counts(graph.cost):
                    yield from sweep.candidates(zero_edges(graph, num_edges, cap * share * (1.0 + 1e-12)))

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)

    def _edge_counts(self, cost: Floats) -> list[int]:
        """Numbers of leading edges (sorted by decreasing cost) that end where a cost level ends."""
        ends = np.flatnonzero(np.append(np.diff(cost) != 0, True)) + 1 if len(cost) else np.zeros(1, dtype=np.int64)
        picks = np.unique(np.linspace(0, len(ends) - 1, self.thresholds).round().astype(np.int64))
        return [int(ends[pick]) for pick in picks[::-1]]


@dataclass(frozen=True)
class Dsc:
    """Dominant sequence clustering, then longest processing time with affinity.

    DSC knows neither memory nor the number of devices, so its clusters are mapped as they are and, once for
    each of `cuts`, after cutting them into pieces.

    Parameters
    ----------
    slack : load limits of the mapping, as excess over the ideal load per device.
    cuts : largest work of a piece, as multiples of the work per device; every piece also fits the memory of
        the device that is fastest for it.
    """

    slack: tuple[float, ...] = SLACK
    cuts: tuple[float, ...] = (float("inf"), 1.0, 0.5)

    name: ClassVar[str] = "dsc"

    def __post_init__(self) -> None:
        if self.cuts and min(self.cuts) <= 0:
            raise InputError(f"dsc: cuts must be positive numbers, received {self.cuts}")
        _check_slack(self.name, self.slack)

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Cluster once with mean costs, map under every load limit, keep the best."""

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            graph = unit_graph(view)
            sweep = _Sweep(view, graph, self.slack)
            cluster, start = dsc_clusters(view)
            merged = merge_units(cluster, view.units.unit)
            yield from sweep.candidates(merged)
            share = float(graph.work.min(axis=1).sum()) / problem.num_devices
            for cut in self.cuts:
                yield from sweep.candidates(cut_clusters(graph, merged, view.unit_first(start), cut * share))

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)


def internalised(view: View, graph: UnitGraph) -> Ints:
    """Cluster of each unit by Sarkar's rule, with mean compute and transfer times and ops by b-level."""
    rank, _ = view.upward_rank()
    arrays = view.graph
    return np.asarray(internalise(
        graph, view.units.unit, view.by_decreasing(rank), arrays.pred_ptr, arrays.pred_op,
        view.mean_transfer[arrays.pred_tensor], view.mean_compute,
    ))  # fmt: skip


def dsc_clusters(view: View) -> tuple[Ints, Floats]:
    """Cluster and start of each op by DSC with mean compute and transfer times, on unlimited devices."""
    graph, delay = view.graph, view.mean_transfer
    cluster, start = dominant_sequence_clusters(
        graph.order, graph.pred_ptr, graph.pred_op, delay[graph.pred_tensor],
        graph.succ_ptr, graph.succ_op, delay[graph.succ_tensor], view.mean_compute,
    )  # fmt: skip
    return cluster, start


def cut_clusters(graph: UnitGraph, cluster: Ints, start: Floats, cap: float) -> Ints:
    """Cut clusters in order of `start` into pieces that fit a fast device and hold at most `cap` ticks of work."""
    fastest = graph.work.argmin(axis=1)
    work, room = graph.work.min(axis=1).tolist(), graph.capacity[fastest].tolist()
    size, label = graph.bytes.tolist(), cluster.tolist()
    piece = np.empty(len(cluster), dtype=np.int64)
    pieces, load, used, previous = -1, 0.0, 0, -1
    for unit in np.lexsort((start, cluster)).tolist():
        if label[unit] != previous or load + work[unit] > cap or used + size[unit] > room[unit]:
            pieces, load, used, previous = pieces + 1, 0.0, 0, label[unit]
        piece[unit] = pieces
        load += work[unit]
        used += size[unit]
    return piece


def merge_units(cluster: Ints, unit: Ints) -> Ints:
    """Cluster of each unit: that of its first op (a colocation group may have been torn apart)."""
    _, first = np.unique(unit, return_index=True)
    _, label = np.unique(cluster[first], return_inverse=True)
    return label.astype(np.int64)
