"""What the searches share: units of ops, arrays for kernels, orders, random and repaired starts,
and groups of units.

Groups grow by merging along heavy edges: what talks much stays together, and no group outgrows a
device.

References
----------
Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM
Journal on Scientific Computing 1998 (heavy edges first).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.objective import MAKESPAN
from placeopt.model.arrays import (
    Array,
    Flags,
    Floats,
    Ints,
    SmallInts,
    frozen,
    place_in,
    stable_order,
)
from placeopt.model.compiled import entry, uncounted_kernel
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.model.objective import objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.union_find import number_sets, root as find_root
from placeopt.solvers.heuristics.context import Context, equal_parts
from placeopt.solvers.heuristics.repair import fits
from placeopt.solvers.search.walk_state import WalkGraph

REACHES = (1, 2, 4, 8)
"""Distances in the topological order at which what is left over is merged."""


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The placements of a problem: one device per *unit* (ops that must share one), one order of
    the ops; `patience` as of a Context.
    """

    problem: PlacementProblem
    patience: float = math.inf

    @cached_property
    def context(self) -> Context:
        """What heuristics know of the problem: mean costs, upward ranks."""
        return Context(self.problem, patience=self.patience)

    @property
    def num_units(self) -> int:
        """Number of units."""
        return len(self.problem.units.bytes)

    @cached_property
    def graph(self) -> WalkGraph:
        """The arrays that the compiled walks and moves read."""
        problem = self.problem
        return WalkGraph(
            problem.compute,
            problem.successors,
            problem.predecessors,
            problem.transfer,
            problem.link_class,
            frozen(np.rint(self.tensor_weight).astype(np.int64)),
            problem.units,
        )

    @cached_property
    def tensor_weight(self) -> Floats:
        """Mean ticks that each tensor costs between two devices, or to and from host memory
        (period, latency).
        """
        if objective_of(self.problem) is MAKESPAN:
            return self.context.mean_transfer
        return self.problem.io_ticks.mean(axis=1, dtype=np.float64)

    @cached_property
    def sequence(self) -> Ints:
        """Ops by decreasing upward rank: a topological order."""
        level, _ = self.context.upward_rank()
        return frozen(self.context.topological(self.context.by_decreasing(level)))

    @cached_property
    def rank(self) -> Ints:
        """Place of each op in `sequence`."""
        return frozen(place_in(self.sequence))

    @cached_property
    def mean_load(self) -> float:
        """Ticks of work per device, on mean devices: the scale of temperatures."""
        return max(1.0, float(self.context.mean_compute.sum()) / self.problem.num_devices)

    def sequence_of(self, placement: Placement) -> Ints:
        """Ops in the order in which the fastest execution of the placement starts them
        (topological).
        """
        try:
            _, queue = best_queue(self.problem, placement)
            plan = evaluate(self.problem, placement, queue, check=False)
        except InfeasiblePlacementError:
            return self.sequence
        return self.context.topological(
            np.lexsort((self.context.position, plan.finish, plan.start))
        )

    def homes_of(self, device: Array) -> Ints:
        """Device of the first op of each unit, for one or many rows of devices."""
        return np.asarray(device)[..., self.problem.units.first_op].astype(np.int64, order="C")

    def devices_of(self, homes: Ints) -> Ints:
        """Device of each op, for one or many rows of homes."""
        return np.asarray(homes)[..., self.problem.units.unit]

    def feasible(self, devices: SmallInts) -> Flags:
        """Whether each row respects compatibility, colocation and static capacities."""
        units, homes = self.problem.units, self.homes_of(devices)
        good = (self.devices_of(homes) == devices).all(axis=1)
        safe = np.clip(homes, 0, self.problem.num_devices - 1)
        good &= (homes == safe).all(axis=1)
        good &= units.allowed[np.arange(self.num_units), safe].all(axis=1)
        for row, home in enumerate(safe):
            good[row] &= fits(units, home)
        return good

    def random_homes(self, rng: np.random.Generator) -> Ints | None:
        """Return an allowed device per unit, uniform before repair; None if nothing was found that
        fits.
        """
        allowed = self.problem.units.allowed
        pick = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
        return self.context.repaired_homes(pick.astype(np.int64))

    def chunk_homes(self) -> Ints | None:
        """Contiguous chunks of the topological order with equal work, one per device, repaired to
        fit.
        """
        problem = self.problem
        order, device = problem.topological_order, np.empty(problem.num_ops, np.int64)
        device[order] = equal_parts(self.context.mean_compute[order], problem.num_devices)
        return self.context.repaired_homes(self.homes_of(device))

    def groups(self, count: int, weight: Floats | None = None) -> Ints:
        """Label of each unit, at most about `count` labels, by merging along the heaviest edges.

        Edges are taken by decreasing weight of their tensors, `tensor_weight` by default (ties in
        order of the tensors); two groups merge
        unless the result would do more than half a device's share of the work, need more bytes than
        a device has, or have no device that runs all. Groups left over are then merged along the
        topological order.
        """
        units, problem = self.problem.units, self.problem
        work = np.bincount(units.unit, weights=self.context.mean_compute, minlength=self.num_units)
        # Below 2 * work / count nothing could reach the wanted number.
        most = max(work.sum() / (2 * problem.num_devices), 2.0 * work.sum() / max(1, count))
        weight = (self.tensor_weight if weight is None else weight)[problem.edge_tensor]
        heaviest = stable_order(-weight)
        source = units.unit[problem.edge_source][heaviest]
        target = units.unit[problem.consumer][heaviest]
        order = units.unit[problem.topological_order]
        order = order[np.sort(np.unique(order, return_index=True)[1])]
        alone = Groups(
            np.arange(self.num_units), work, units.bytes.astype(np.float64), units.allowed.copy()
        )
        return groups_along(
            source, target, order, alone, problem.capacity.astype(np.float64), float(most), count
        )


class Groups(NamedTuple):
    """Groups that grow; what a root has holds for its whole group."""

    parent: np.ndarray  # (u,) a unit of the same group, nearer to its root
    work: np.ndarray  # (u,) ticks
    size: np.ndarray  # (u,) bytes
    allowed: np.ndarray  # (u, k) devices that can run every member


@uncounted_kernel
def _merge(groups, capacity, most, first, second):  # type: ignore[no-untyped-def]
    """Merge the groups of two units, unless that is too much work or no device can hold it; return
    whether it was done.
    """
    x, y = find_root(groups.parent, first), find_root(groups.parent, second)
    a, b = min(x, y), max(x, y)
    if a == b or groups.work[a] + groups.work[b] > most:
        return False
    together = groups.size[a] + groups.size[b]
    somewhere = False
    for d in range(len(capacity)):
        somewhere |= groups.allowed[a, d] and groups.allowed[b, d] and capacity[d] >= together
    if not somewhere:
        return False
    groups.parent[b] = a
    for d in range(len(capacity)):
        groups.allowed[a, d] &= groups.allowed[b, d]
    groups.work[a] += groups.work[b]
    groups.size[a] = together
    return True


@entry
def groups_along(  # type: ignore[no-untyped-def]
    source, target, order, groups, capacity, most, count
):
    """Return a label per unit: groups in the order of their first units, about `count` of them
    where that can be.

    Parameters
    ----------
    source, target : units that an edge joins, heaviest edge first. order : units, topologically.
    groups : every unit a group of its own; changed in place. most : most ticks of a group.
    """
    left = len(groups.parent)
    for e in range(len(source)):
        if left <= count:
            break
        left -= _merge(groups, capacity, most, source[e], target[e])
    for reach in REACHES:
        for i in range(len(order) - reach):
            if left <= count:
                break
            left -= _merge(groups, capacity, most, order[i], order[i + reach])
    label = np.empty(len(groups.parent), np.int64)
    number_sets(groups.parent, label)
    return label
