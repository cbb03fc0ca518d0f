"""Clustering: decide first which ops share a device, then which device each cluster gets.

With expensive communication this beats list scheduling, which decides op by op. Two clusterings
share one mapping of clusters to devices:

- `EdgeZeroing`: edges are zeroed (their ends merged) from the most expensive one down. Here a merge
  is accepted while the cluster's work stays below a cap, and both the cap and the cheapest edge
  considered are swept.
- `Dsc`: ops are examined along the dominant sequence; an op joins the cluster of its dominant
  predecessor where that lets it start earlier.

Two kinds of mapping are tried:

- clusters by decreasing work (longest processing time first); each goes to the device it exchanges
  most data with among those that stay below a load limit, otherwise to the device that finishes it
  first;
- HEFT with whole clusters: the first op of a cluster chooses the device, by earliest finish.

References
----------
- V. Sarkar, "Partitioning and scheduling parallel programs for multiprocessors", MIT Press 1989.
- T. Yang, A. Gerasoulis, "DSC: scheduling parallel tasks on an unbounded number of processors",
  IEEE TPDS 5(9), 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import pointers, stable_order
from placeopt.model.errors import InputError
from placeopt.model.projection import edges_by, join_units
from placeopt.solvers.heuristics.clustering_kernels import (
    OpEdges,
    UnitGraph,
    dominant_sequence_clusters,
    internalise,
    map_in_order,
    zero_edges,
)
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals
from placeopt.solvers.heuristics.ranks import clustered_rank
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats, Ints
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
    from placeopt.solving.tracker import PlacementTracker


def unit_graph(context: Context) -> UnitGraph:
    """Contract the ops of each unit; edges between the same two units add up."""
    problem, units = context.problem, context.units
    num_units = len(units.bytes)
    source = units.unit[problem.edge_source]
    target = units.unit[problem.consumer]
    cost = context.mean_transfer[problem.edge_tensor]
    low, high = np.minimum(source, target), np.maximum(source, target)
    between = low != high
    key, inverse = np.unique(low[between] * num_units + high[between], return_inverse=True)
    total = np.bincount(inverse, cost[between], minlength=len(key)).astype(np.float64)
    low, high = key // num_units, key % num_units
    order = stable_order(-total)  # of equal ones, lower units first
    low, high, total = low[order], high[order], total[order]
    ends, others = np.concatenate([low, high]), np.concatenate([high, low])
    near = edges_by(num_units, ends, others, np.arange(len(ends)))
    work, allowed = context.unit_work, units.allowed
    return UnitGraph(
        work,
        np.where(allowed, work, 0.0).sum(axis=1) / allowed.sum(axis=1),
        units.bytes,
        units.capacity,
        low,
        high,
        total,
        near.pointer,
        near.op,
        np.concatenate([total, total])[near.tensor],
    )


def map_clusters(graph: UnitGraph, cluster: Ints, limit: float) -> tuple[Ints, bool]:
    """Give each cluster a device: longest first, to the nearest device within the load `limit`.

    A cluster that no device can hold is placed unit by unit. Returns the device of each unit and
    whether some unit found no device with space (it then sits on one that can run it).
    """
    count = int(cluster.max()) + 1
    members = stable_order(cluster)
    pointer = pointers(cluster[members], count)
    longest_first = stable_order(-np.bincount(cluster, graph.mean_work, minlength=count))
    device_of, overflow = map_in_order(graph, members, pointer, longest_first, limit)
    return device_of, bool(overflow)


def clustered_plan(context: Context, cluster: Ints) -> ListSchedule | None:
    """Schedule by HEFT over clusters of units: the first op of a cluster chooses the device; None
    if no device can run one.
    """
    units = join_units(context.units, cluster)
    if not np.logical_or.reduce(units.allowed, axis=1).all():
        return None
    rank = clustered_rank(context.graph, context.mean_compute, context.mean_transfer, units.unit)
    return context.in_order(context.by_decreasing(rank), units=units, contention=context.contended)


# --- solvers
# -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Sweep:
    """Maps clusterings to devices under several load limits, each distinct assignment once."""

    context: Context
    graph: UnitGraph
    slack: tuple[float, ...]

    def __post_init__(self) -> None:
        self.ideal = float(self.graph.work.min(axis=1).sum()) / self.context.problem.num_devices
        self.clusterings: set[bytes] = set()
        self.assignments: set[bytes] = set()

    def candidates(self, cluster: Ints) -> Proposals:
        if not _is_new(cluster, self.clusterings):
            return
        for slack in self.slack:
            home, overflow = map_clusters(self.graph, cluster, self.ideal * (1.0 + slack))
            device = home[self.context.units.unit]
            if _is_new(device, self.assignments):
                yield (
                    self.context.repaired(device)
                    if overflow
                    else self.context.list_scheduled(device)
                )
        yield from self._by_earliest_finish(cluster)

    def _by_earliest_finish(self, cluster: Ints) -> Proposals:
        """HEFT over clusters, as planned and once more with the b-levels of its own devices."""
        context = self.context
        plan = clustered_plan(context, cluster)
        if plan is not None and _is_new(plan.device, self.assignments):
            yield context.fitted(plan)
            if not plan.overflow:
                yield context.list_scheduled(plan.device)


def _is_new(labels: Ints, seen: set[bytes]) -> bool:
    """Whether these devices of ops (or clusters of units) were not seen before; only digests are
    kept.
    """
    key = blake2b(labels.astype(np.int32).tobytes(), digest_size=16).digest()
    if key in seen:
        return False
    seen.add(key)
    return True


def _check_slack(solver: str, slack: tuple[float, ...]) -> None:
    if not slack or min(slack) < 0:
        raise InputError(
            f"{solver} option slack: expected some numbers of at least 0, received {slack}"
        )


@dataclass(frozen=True)
class EdgeZeroing(Heuristic):
    """Merge along the most expensive edges under a load cap; sweep threshold, cap and mapping.

    Besides `caps`, twice, four times, ... the work per device is tried, up to everything in one
    cluster. Sarkar's own rule (zero an edge whenever the parallel time does not grow) comes first
    where it is quick.
    """

    kernels = ("ranks", "lists", "clusterings")

    caps: tuple[float, ...] = option(
        (1.0, 1.05, 0.8, 1.15, 0.67, 0.5, 1.3, 0.34, 0.25, 1.6, 0.125, 0.0625),
        "largest work of a cluster, as multiples of the total work per device",
    )
    thresholds: int = option(
        12, "quantiles of the edges' costs down to which edges are considered", low=1
    )
    slack: tuple[float, ...] = option(
        (0.0, 0.05, 0.15, 0.4, 1.0, 3.0),
        "load limits of the mapping, as excess over the ideal load per device",
    )
    steps: int = option(
        400_000_000, "Sarkar's rule is tried if edges x (ops + edges) is at most this", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.caps or min(self.caps) <= 0:
            raise InputError(
                f"edge-zeroing option caps: expected some positive numbers, received {self.caps}"
            )
        _check_slack(self.name, self.slack)

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Evaluate every distinct assignment of the sweep, or as many as the budget allows."""
        problem = context.problem
        graph = unit_graph(context)
        sweep = _Sweep(context, graph, self.slack)
        if len(graph.cost) * (problem.num_ops + problem.num_edges) <= self.steps:
            yield from sweep.candidates(internalised(context, graph))
        # nothing merged: plain list scheduling
        yield from sweep.candidates(np.arange(len(graph.bytes)))
        share = graph.mean_work.sum() / problem.num_devices
        multiples = [2.0**i for i in range(1, (problem.num_devices - 1).bit_length() + 1)]
        for cap in (*self.caps, *multiples):
            for num_edges in self._edge_counts(graph.cost):
                yield from sweep.candidates(
                    zero_edges(graph, num_edges, cap * share * (1.0 + 1e-12))
                )

    def _edge_counts(self, cost: Floats) -> list[int]:
        """Numbers of leading edges (sorted by decreasing cost) that end where a cost level ends."""
        ends = (
            np.flatnonzero(np.append(np.diff(cost) != 0, True)) + 1
            if len(cost)
            else np.zeros(1, np.int64)
        )
        picks = np.unique(np.linspace(0, len(ends) - 1, self.thresholds).round().astype(np.int64))
        return [int(ends[pick]) for pick in picks[::-1]]


@dataclass(frozen=True)
class Dsc(Heuristic):
    """Dominant sequence clustering, then longest processing time with affinity.

    DSC knows neither memory nor the number of devices, so its clusters are mapped as they are and,
    once for each of `cuts`, after cutting them into pieces; every piece also fits the memory of the
    device that is fastest for it.
    """

    kernels = ("ranks", "lists", "clusterings")

    slack: tuple[float, ...] = option(
        EdgeZeroing.slack, "load limits of the mapping, as excess over the ideal load per device"
    )
    cuts: tuple[float, ...] = option(
        (float("inf"), 1.0, 0.5), "largest work of a piece, as multiples of the work per device"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts and min(self.cuts) <= 0:
            raise InputError(f"dsc option cuts: expected positive numbers, received {self.cuts}")
        _check_slack(self.name, self.slack)

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Cluster once with mean costs, map under every load limit, keep the best."""
        graph = unit_graph(context)
        sweep = _Sweep(context, graph, self.slack)
        cluster, start = dsc_units(context)
        yield from sweep.candidates(cluster)
        for cut in self.cuts:
            yield from sweep.candidates(cut_clusters(graph, cluster, start, cut * sweep.ideal))


def op_edges(context: Context, order: Ints) -> OpEdges:
    """Return ops and edges with mean compute and transfer times; `order` is topological."""
    before, behind, delay = (
        context.graph.predecessors,
        context.graph.successors,
        context.mean_transfer,
    )
    return OpEdges(
        order,
        before.pointer,
        before.op,
        delay[before.tensor],
        behind.pointer,
        behind.op,
        delay[behind.tensor],
        context.mean_compute,
    )


def internalised(context: Context, graph: UnitGraph) -> Ints:
    """Cluster of each unit by Sarkar's rule, with mean compute and transfer times and ops by
    b-level.
    """
    rank, _ = context.upward_rank()
    return internalise(graph, context.units.unit, op_edges(context, context.by_decreasing(rank)))


def dsc_clusters(context: Context) -> tuple[Ints, Floats]:
    """Cluster and start of each op by DSC with mean compute and transfer times, on unlimited
    devices.
    """
    return dominant_sequence_clusters(op_edges(context, context.graph.order))


def dsc_units(context: Context) -> tuple[Ints, Floats]:
    """Cluster and start of each unit by DSC: those of its first op."""
    cluster, start = dsc_clusters(context)
    return merge_units(cluster, context.units.first_op), context.unit_first(start)


def cut_clusters(graph: UnitGraph, cluster: Ints, start: Floats, cap: float) -> Ints:
    """Cut clusters in order of `start` into pieces that fit a fast device and hold at most `cap`
    ticks of work.
    """
    fastest = graph.work.argmin(axis=1)
    work, room = graph.work.min(axis=1).tolist(), graph.capacity[fastest].tolist()
    size, label = graph.bytes.tolist(), cluster.tolist()
    piece = np.empty(len(cluster), np.int64)
    pieces, load, used, previous = -1, 0.0, 0, -1
    for unit in np.lexsort((start, cluster)).tolist():
        if label[unit] != previous or load + work[unit] > cap or used + size[unit] > room[unit]:
            pieces, load, used, previous = pieces + 1, 0.0, 0, label[unit]
        piece[unit] = pieces
        load += work[unit]
        used += size[unit]
    return piece


def merge_units(cluster: Ints, first_op: Ints) -> Ints:
    """Cluster of each unit: that of its first op (a colocation group may have been torn apart)."""
    _, label = np.unique(cluster[first_op], return_inverse=True)
    return label.astype(np.int64)
