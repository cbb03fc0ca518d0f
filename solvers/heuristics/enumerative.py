"""Enumerative: per sharded op, the balanced assignment of shards to devices with the least
communication.

The enumerative optimizer of Doppler walks over the *meta-ops* (ops of the unsharded graph) in
topological order and, for the shards of each, tries every assignment that spreads them evenly over
the devices, with the producers already placed. The cost of an assignment is the time to fetch the
inputs, a sum over the shards; the best one therefore solves a linear assignment problem with
ceil(shards / devices) places per device, which finds in polynomial time what enumeration finds in
factorial time.

References
----------
"DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow graphs" (2025), its
enumerative baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import Floats, Ints, by_key
from placeopt.model.graph import depths
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals

if TYPE_CHECKING:
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class Enumerative(Heuristic):
    """Meta-op by meta-op, spread the shards evenly over the devices with the least communication.

    On problems without meta-op labels the ops of equal depth and type form the groups; the message
    says so.
    """

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Place group after group; what does not fit into memory is repaired."""
        labelled = int(context.problem.meta.max()) >= 0
        if not labelled:
            tracker.message = (
                "no meta-op labels: ops of equal depth and type were taken as shards of one op"
            )
        yield context.repaired(assign_groups(context, groups(context, labelled=labelled)))


def groups(context: Context, *, labelled: bool) -> list[Ints]:
    """Return the sets of ops placed at once, in topological order of their first ops.

    A meta-op splits into its inner levels: the shards, then the ops that reduce their results. Of
    very many, parts are placed one after the other.
    """
    problem = context.problem
    source, target = problem.edge_source, problem.consumer
    if labelled:
        alone = problem.meta.max() + 1 + np.arange(problem.num_ops)
        label = np.where(problem.meta >= 0, problem.meta, alone)
        inside = label[source] == label[target]
        source, target = source[inside], target[inside]
    else:
        _, label = np.unique(np.array(problem.op_types, np.object_), return_inverse=True)
    level = depths(problem.num_ops, source, target, problem.op_names)
    members = by_key(
        ((int(label[op]), int(level[op])), op) for op in problem.topological_order.tolist()
    )
    # Cells of the largest table of ops and places: on every device as many places as ops, and some
    most_cells = 10_000_000
    most = max(1, math.isqrt(most_cells // (problem.num_devices + 1)))
    return [
        np.array(ops[at : at + most], np.int64)
        for ops in members.values()
        for at in range(0, len(ops), most)
    ]


def assign_groups(context: Context, grouped: list[Ints]) -> Ints:
    """Place group after group, each by a linear assignment problem; device of each op."""
    from scipy.optimize import linear_sum_assignment

    problem, units = context.problem, context.units
    k = problem.num_devices
    device = np.full(problem.num_ops, -1, np.int64)
    home = context.unpinned.copy()
    free = units.capacity.copy()
    load = np.zeros(k)
    forbidden = 1e30
    for ops in grouped:
        free_ops = ops[home[units.unit[ops]] < 0]
        # one row per unit: members of a colocation group in the same set travel together
        _, first = np.unique(units.unit[free_ops], return_index=True)
        rows = free_ops[np.sort(first)]
        if len(rows):
            unit = units.unit[rows]
            allowed, size = units.allowed[unit], units.bytes[unit]
            usable = allowed & (size[:, None] <= free)
            full = ~usable.any(axis=1)
            usable[full] = allowed[full]  # repaired later
            cost = _fetch_times(context, rows, device) + _tie_break(context, rows, load)
            places = -(-len(rows) // k)
            # Evenness is a wish: a place beyond the even share exists too, at a price above any
            # fetch time.
            even = np.repeat(np.where(usable, cost, forbidden), places, axis=1)
            owner = np.repeat(np.arange(k), places)
            if not usable.all():
                dear = np.where(usable, cost + 1.0 + cost[usable].sum(), forbidden)
                even = np.hstack([even, np.repeat(dear, len(rows), axis=1)])
                owner = np.hstack([owner, np.repeat(np.arange(k), len(rows))])
            _, column = linear_sum_assignment(even)  # there are places for all
            home[unit] = owner[column]
            np.subtract.at(free, owner[column], size)
        device[ops] = home[units.unit[ops]]
        np.add.at(load, device[ops], context.mean_compute[ops])
    return device


def _fetch_times(context: Context, rows: Ints, device: Ints) -> Floats:
    """Ticks to bring the placed inputs of each op to each device, shape (len(rows),
    num_devices).
    """
    problem = context.problem
    pointer, source, tensor = problem.predecessors
    cost = np.zeros((len(rows), problem.num_devices))
    for i, op in enumerate(rows.tolist()):
        edges = np.arange(pointer[op], pointer[op + 1])
        edges = edges[device[source[edges]] >= 0]
        if len(edges):
            origin = device[source[edges]]
            time = problem.transfer[tensor[edges][:, None], problem.link_class[origin]]
            moved = origin[:, None] != np.arange(problem.num_devices)
            cost[i] = np.where(moved, time, 0).sum(axis=0)
    return cost


def _tie_break(context: Context, rows: Ints, load: Floats) -> Floats:
    """Less than half a tick in total: prefer faster and less loaded devices among equal fetch
    times.
    """
    compute = context.problem.compute[rows].astype(np.float64)
    heavy = load[None, :] + np.where(compute >= 0, compute, 0.0)
    return heavy / (2.0 * len(rows) * (float(heavy.max()) or 1.0))
