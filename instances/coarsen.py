"""Coarsening: merge ops into groups, and map a solution of the coarse graph back.

    coarsening = coarsen(problem, "heavy-edge", groups=64)
    result = po.solve(coarsening.coarse, ...)
    placement = coarsening.expand(result.solution)

A group is one op of the coarse problem: its time is the sum of its members' times (-1 where one of
them cannot run), its resident bytes their sum, and it starts when all inputs of all members are
there. Tensors inside a group disappear; a tensor with readers outside keeps its cost and goes once
to each reading group. Groups are convex: the coarse graph has no cycle.

What a coarse solution promises. Replace every group, in a schedule of the coarse problem, by its
members one after the other: that is a schedule of the fine problem, with the same makespan.
`expand(placement, start)` returns its order; executed as planned on the fine problem, without
contention, it ends no later than the coarse schedule, and where groups are chains exactly with it.

For searches that only tie devices together and keep all ops, `group_labels` gives groups that
need not be convex.

References
----------
G. Karypis, V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
SIAM Journal on Scientific Computing 20, 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from placeopt.instances.op_groups import Grouping, groupable
from placeopt.instances.quotient import quotient
from placeopt.model.arrays import int_array
from placeopt.model.errors import InputError, check_choice
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

METHODS = ("chain", "type", "layer", "meta", "heavy-edge", "topological")

ModelT = TypeVar("ModelT", OpGraph, PlacementProblem)


@dataclass(frozen=True, eq=False)
class Coarsening(Generic[ModelT]):
    """A coarse graph or problem and the way back.

    Attributes
    ----------
    fine, coarse : both graphs or both problems.
    group : coarse op of every fine op.
    """

    fine: ModelT
    coarse: ModelT
    group: NDArray[np.int64]  # (num_fine_ops,)

    def expand(self, placement: Placement, start: ArrayLike | None = None) -> Placement:
        """Return the placement of the fine ops that a placement of the coarse ops stands for.

        Members of a group get consecutive ranks in topological order.

        Parameters
        ----------
        placement : devices and, optionally, ranks of the coarse ops.
        start : start of every coarse op in a schedule; ranks follow it instead of the placement's.
            Pass the evaluation's `start` to keep the coarse makespan under `queue="planned"`.
        """
        count = self.coarse.num_ops
        if len(placement.device) != count:
            raise InputError(
                f"placement: expected {count} devices, one per coarse op, received "
                f"{len(placement.device)}"
            )
        device = placement.device[self.group]
        coarse_rank = _coarse_rank(self.coarse, placement, start)
        if coarse_rank is None:
            return Placement(device)
        position = np.empty(self.fine.num_ops, dtype=np.int64)
        position[self.fine.topological_order] = np.arange(self.fine.num_ops)
        rank = np.empty(self.fine.num_ops, dtype=np.int64)
        rank[np.lexsort((position, coarse_rank[self.group]))] = np.arange(self.fine.num_ops)
        return Placement(device, rank)

    def restrict(self, placement: Placement) -> Placement:
        """Return the coarse placement nearest to a fine one: most members decide, ties to the first
        device.

        Ranks become the order of each group's first member. Colocation between groups, and devices
        that cannot run the whole group, are not repaired.
        """
        n = self.fine.num_ops
        if len(placement.device) != n:
            raise InputError(
                f"placement: expected {n} devices, one per op, received {len(placement.device)}"
            )
        votes = np.zeros((self.coarse.num_ops, int(placement.device.max()) + 1), dtype=np.int64)
        np.add.at(votes, (self.group, placement.device), 1)
        rank = None
        if placement.priority is not None:
            first = np.full(self.coarse.num_ops, np.iinfo(np.int64).max)
            np.minimum.at(first, self.group, placement.priority)
            rank = np.empty(self.coarse.num_ops, dtype=np.int64)
            rank[np.argsort(first, kind="stable")] = np.arange(self.coarse.num_ops)
        return Placement(votes.argmax(axis=1), rank)


def _coarse_rank(
    coarse: OpGraph | PlacementProblem, placement: Placement, start: ArrayLike | None
) -> NDArray[np.int64] | None:
    """Rank of every coarse op, all different; None for first in, first out."""
    count = coarse.num_ops
    if start is not None:
        times = int_array(start, (count,), "start")
        return Placement.from_starts(placement.device, times, coarse.topological_order).priority
    if placement.priority is None:
        return None
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(placement.priority, kind="stable")] = np.arange(count)
    return rank


def coarsen(
    model: ModelT,
    method: str = "heavy-edge",
    *,
    groups: int | None = None,
    depth: int | None = None,
    types: Sequence[str] | None = None,
) -> Coarsening[ModelT]:
    """Merge the ops of a graph or a problem into convex groups.

    Colocation is kept: groups that hold ops of one colocation id share a new id. Forward and
    backward ops are never merged. Merges that leave no compatible device, or more resident bytes on
    one device than the largest capacity, are refused.

    Parameters
    ----------
    method :
        "chain": ops whose only consumer has no other input, with that consumer;
        "type": cheap types of op with their heaviest neighbour, never two expensive ops;
        "layer": ops of one layer (`OpGraph.layer`, or the op's name up to the last "/");
        "meta": the pieces of one sharded op;
        "heavy-edge": matching along heavy edges, level by level (Karypis and Kumar 1998, made
        acyclic); "topological": runs of a depth-first topological order with equal work.
    groups : merge on along heavy edges until there are at most this many groups (fewer merges where
        the constraints forbid them); needed by "heavy-edge" and "topological".
    depth : "layer" only: leading parts of the layer path that count, all by default.
    types : "type" only: the cheap types; by default those below half the mean work per op.

    Raises
    ------
    InputError
        If an option is wrong, or the method needs what the model does not have.
    """
    grouping = _group(model, method, groups, depth, types, acyclic=True)
    label = grouping.ordered_labels()
    return Coarsening(model, quotient(model, label, grouping.roots()), label)


def group_labels(
    model: OpGraph | PlacementProblem,
    num_groups: int,
    method: str = "heavy-edge",
    *,
    depth: int | None = None,
    types: Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Return a group 0..G-1 for every op, with G at most `num_groups` unless constraints forbid it.

    The groups only say which ops share a device: they need not be convex, ops of one colocation id
    are always in one group, and every group has a device that can run all of it.

    Parameters
    ----------
    method, depth, types : as in `coarsen`; then groups are merged along heavy edges.
    """
    grouping = _group(model, method, num_groups, depth, types, acyclic=False)
    return grouping.ordered_labels()


def _group(
    model: OpGraph | PlacementProblem,
    method: str,
    groups: int | None,
    depth: int | None,
    types: Sequence[str] | None,
    acyclic: bool,
) -> Grouping:
    check_choice("coarsening method", method, METHODS)
    if groups is None and method in ("heavy-edge", "topological"):
        raise InputError(f"coarsening method '{method}' needs groups=N, the number of groups")
    if groups is not None and groups < 1:
        raise InputError(f"groups: expected at least 1, received {groups}")
    ops = groupable(model)
    grouping = Grouping(ops, acyclic)
    if method == "chain":
        grouping.fuse_chains()
    elif method == "type":
        grouping.absorb_types(types, groups or 1)
    elif method == "layer":
        grouping.by_label(ops.layer_labels(depth, groups))
    elif method == "meta":
        grouping.by_label(ops.meta_labels())
    elif method == "topological" and groups is not None:
        grouping.cut(groups)
    if groups is not None:
        grouping.reduce(groups)
    return grouping
