"""Context: a problem as heuristics see it, with mean costs, units, and the steps that they
share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from placeopt.model.arrays import Array, Floats, Ints, place_in, sums_by
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.projection import CostArrays, GraphArrays, Units, group_units
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.insertion_kernels import ListSchedule, schedule_in_order
from placeopt.solvers.heuristics.repair import pack, repair
from placeopt.solvers.heuristics.time_kernels import schedule_by_time
from placeopt.solving.tracker import Tracker

_packings: WeakKeyDictionary[PlacementProblem, dict[float, tuple[Ints | None, bool, float]]] = (
    WeakKeyDictionary()
)
"""By inflation: what is known of the packings of a problem, and after how many seconds."""


@dataclass(frozen=True, eq=False)
class Context:
    """A problem as heuristics see it: graph arrays, units that share a device, mean costs.

    Attributes
    ----------
    inflation : share of the tensors that each op holds (its outputs and its inputs) added to its
    resident
        bytes. With 1 the static limit implies the peak limit; smaller shares are guesses, always
        evaluated.
    patience : seconds after which a packing is no longer looked for.
    """

    problem: PlacementProblem
    inflation: float = 0.0
    patience: float = math.inf

    @property
    def graph(self) -> GraphArrays:
        """The graph that kernels take."""
        return self.problem.graph

    @property
    def costs(self) -> CostArrays:
        """The times that kernels take."""
        return self.problem.costs

    @cached_property
    def units(self) -> Units:
        """Ops that share a device, with the bytes that `inflation` charges."""
        problem = self.problem
        if self.inflation == 0:
            return problem.units
        held = np.zeros(problem.num_ops, np.int64)
        np.add.at(held, problem.producer, problem.tensor_bytes)
        np.add.at(held, problem.consumer, problem.tensor_bytes[problem.edge_tensor])
        charged = problem.resident + (held * self.inflation).astype(np.int64)
        return group_units(problem.units.unit, charged, problem.compute >= 0, problem.capacity)

    @cached_property
    def mean_compute(self) -> Floats:
        """Mean ticks of each op over its compatible devices, shape (num_ops,)."""
        compute = self.problem.compute
        usable = compute >= 0
        return np.where(usable, compute, 0).sum(axis=1, dtype=np.float64) / usable.sum(axis=1)

    @cached_property
    def mean_transfer(self) -> Floats:
        """Mean ticks of each tensor over the ordered pairs of different devices, shape
        (num_tensors,).
        """
        problem = self.problem
        k = problem.num_devices
        if k == 1 or not problem.num_tensors:
            return np.zeros(problem.num_tensors)
        classes = problem.link_class[~np.eye(k, dtype=np.bool_)]
        share = np.bincount(classes, minlength=problem.transfer.shape[1]) / len(classes)
        return problem.transfer @ share

    @cached_property
    def position(self) -> Ints:
        """Place of each op in the topological order, shape (num_ops,)."""
        return place_in(self.problem.topological_order)

    @cached_property
    def unpinned(self) -> Ints:
        """No unit is fixed beforehand, shape (num_units,)."""
        return np.full(len(self.units.bytes), -1, np.int64)

    @cached_property
    def contended(self) -> bool:
        """Whether any two devices are joined by a channel."""
        return self.problem.num_channels > 0

    def upward_rank(self, *, communication: bool = True) -> tuple[Floats, Ints]:
        """b-levels with mean costs and the next op on each longest path; static levels without
        communication.
        """
        delay = self.mean_transfer if communication else np.zeros(self.problem.num_tensors)
        return ranks.upward_rank(self.graph, self.mean_compute, delay)

    def by_decreasing(self, key: Array) -> Ints:
        """Ops sorted by decreasing `key`, ties in topological order."""
        return np.lexsort((self.position, -key)).astype(np.int64)

    def topological(self, order: Ints) -> Ints:
        """Return `order` changed so that producers precede consumers: always the earliest op that
        is free.
        """
        return ranks.priority_list(self.graph, place_in(order))

    def in_order(
        self,
        sequence: Ints,
        *,
        units: Units | None = None,
        bias: Floats | None = None,
        pinned: Ints | None = None,
        insertion: bool = True,
        contention: bool = False,
    ) -> ListSchedule:
        """Schedule ops in a given topological order: see `insertion_kernels.schedule_in_order`;
        `units` are others than those of the problem.
        """
        units = self.units if units is None else units
        return schedule_in_order(
            self.graph,
            self.costs,
            units,
            sequence,
            np.zeros((0, 0)) if bias is None else bias,
            np.full(len(units.bytes), -1, np.int64) if pinned is None else pinned,
            insertion,
            contention,
        )

    def by_time(self, position: Ints) -> ListSchedule:
        """Schedule ops earliest start first: see `time_kernels.schedule_by_time`."""
        return schedule_by_time(self.graph, self.costs, self.units, position)

    def ranked(self, plan: ListSchedule) -> Placement:
        """Turn a schedule into devices and ranks, ops that take no time first among equal
        starts.
        """
        order = np.lexsort((self.position, plan.finish))
        return Placement.from_starts(plan.device, plan.start, order)

    def list_scheduled(self, device: Ints) -> Placement:
        """Rank the ops of a given assignment by a list schedule: highest b-level first, with
        insertion.
        """
        pinned = self.unit_first(device).astype(np.int64)
        rank = ranks.placed_rank(self.graph, self.costs, pinned[self.units.unit])
        order = self.by_decreasing(rank)
        return self.ranked(self.in_order(order, pinned=pinned, contention=self.contended))

    def fitted(self, plan: ListSchedule) -> Placement | None:
        """Return the plan's placement, repaired where memory overflowed; None if repair found no
        way.
        """
        if not plan.overflow:
            return self.ranked(plan)
        return self.repaired(plan.device)

    def repaired(self, device: Ints) -> Placement | None:
        """Move ops of `device` until every constraint holds, and rank them; None if no way was
        found.
        """
        home = self.repaired_homes(self.unit_first(device))
        return None if home is None else self.list_scheduled(home[self.units.unit])

    def repaired_homes(self, home: Ints) -> Ints | None:
        """Return devices of units that fit, close to `home`; None if no way was found."""
        fitted = repair(self.units, home, self.unit_work)
        return self.packed[0] if fitted is None else fitted

    @property
    def packed(self) -> tuple[Ints | None, bool]:
        """What `pack` says of the units: asked once for all contexts of a problem, and again where
        there is more time, since its integer program may take minutes.
        """
        known = _packings.setdefault(self.problem, {})
        home, proved, asked = known.get(self.inflation, (None, False, -1.0))
        if home is None and not proved and self.patience > asked:
            home, proved = pack(self.units, self.patience)
            known[self.inflation] = home, proved, self.patience
        return home, proved

    def unit_first(self, values: Array) -> Array:
        """Value of the first op of each unit, shape (num_units,)."""
        return values[self.units.first_op]

    @cached_property
    def unit_work(self) -> Floats:
        """Ticks of each unit on each device, infinity where it cannot run, shape (num_units,
        num_devices).
        """
        compute = self.problem.compute
        ticks = np.where(compute >= 0, compute, np.inf)
        return sums_by(self.units.unit, ticks, len(self.units.bytes))


def packing_seconds(tracker: Tracker[Any]) -> float:
    """Return how long a search may look for a packing: a quarter of its time, a second at least; no
    clock decides where evaluations are the limit.
    """
    limited = tracker.budget.evaluations is not None
    return math.inf if limited else max(1.0, tracker.seconds_left / 4)


def equal_parts(work: Floats, count: int) -> Ints:
    """Cut a row of work into `count` stretches of about equal work; return the stretch of each."""
    middle = np.cumsum(work) - work / 2
    part = (middle / max(work.sum(), 1e-30) * count).astype(np.int64)
    return np.minimum(part, count - 1)
