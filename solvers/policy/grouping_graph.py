"""What the grouping placers need of a problem: edges with their costs, ops that share a device,
depths.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints, place_in, pointers, stable_order
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics.context import Context


class GroupingGraph(NamedTuple):
    """What grouping and placing need of a problem (n ops, k devices)."""

    compute: Floats  # (n, k) ticks, negative where incompatible
    resident: Floats  # (n,)
    capacity: Floats  # (k,)
    source: Ints  # (edges,) producer of each out-edge
    target: Ints  # (edges,) consumer
    cost: Floats  # (edges,) mean transfer ticks
    incident_ptr: Ints  # (n + 1,)
    incident: Ints  # (2 edges,) edges at each op
    unit: Ints  # (n,) ops of one unit are always in one group
    level: Ints  # (n,) bucket of each op's depth
    num_levels: int


def grouping_graph(problem: PlacementProblem, *, num_levels: int = 16) -> GroupingGraph:
    """Return the arrays of a problem that grouping kernels take, with so many buckets of depth."""
    view = Context(problem)
    n = problem.num_ops
    source = problem.edge_source
    target = np.array(problem.consumer)
    ends = np.concatenate([source, target])
    order = stable_order(ends)
    rank, _ = view.upward_rank()
    depth = (1 - rank / max(1e-300, float(rank.max()))) * num_levels
    return GroupingGraph(
        compute=problem.compute.astype(np.float64),
        resident=problem.resident.astype(np.float64),
        capacity=problem.capacity.astype(np.float64),
        source=source,
        target=target,
        cost=view.mean_transfer[problem.edge_tensor],
        incident_ptr=pointers(ends[order], n),
        incident=(order % max(1, len(source))).astype(np.int64),
        unit=np.array(problem.units.unit),
        level=np.minimum(num_levels - 1, depth).astype(np.int64),
        num_levels=num_levels,
    )


def b_level_ranks(problem: PlacementProblem) -> Ints:
    """Return the rank of every op by decreasing b-level: the order in which the samples of
    groupings run.
    """
    view = Context(problem)
    level, _ = view.upward_rank()
    return place_in(view.by_decreasing(level))
