"""What every combinatorial bound reads: the cheapest version of a problem, with devices in classes.

Devices with the same compute column form a *class*. An op is compatible with a class if it can run
there itself, its whole colocation group can, and the group's resident bytes fit. For an edge (u,
v):

- `pay`: the least time from the end of u to the start of v when they are on *different* devices,
  i.e. the largest over the tensors from u to v of the cheapest link between two different
  compatible devices; `INFINITE` if they cannot be on different devices (same colocation group, a
  single possible device);
- `free`: the same when nothing is known about the devices: 0, or `pay` where they cannot share a
  device;
- `far`: the same when they are on devices of different *islands*: devices joined by links much
  cheaper than those between islands, such as those of a host (`islands`).

Contention, link classes and the choice of device can only delay a schedule beyond these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import (
    Flags,
    Ints,
    frozen,
    pointers,
    row_numbers,
    stable_order,
    sums_by,
    unique_columns,
    unique_rows,
)
from placeopt.model.feasibility import allowed_devices
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem

INFINITE = 2**62
"""More ticks than any schedule has: 'impossible'."""


class Direction(NamedTuple):
    """The graph read forwards (in-edges of every op, in topological order) or backwards; read-only,
    fit for kernels.
    """

    order: Ints  # (num_ops,) every neighbour of `ptr/op` before the op itself
    ptr: Ints  # (num_ops + 1,)
    op: Ints  # (num_pairs,) predecessors (forwards) or successors (backwards)
    free: Ints  # (num_pairs,) ticks
    pay: Ints  # (num_pairs,) ticks or INFINITE
    far: Ints  # (num_pairs,) ticks or INFINITE


@dataclass(frozen=True, eq=False)
class Relaxation:
    """See the module text. Built once per problem by `relax` and shared by all bounds."""

    problem: PlacementProblem
    class_of: Ints  # (num_devices,) class of each device
    class_size: Ints  # (num_classes,)
    compute: Ints  # (num_ops, num_classes) ticks or -1
    min_compute: Ints  # (num_ops,) ticks
    source: Ints  # (num_pairs,) pairs (u, v), sorted by v; distinct unless merged
    target: Ints  # (num_pairs,)
    free: Ints  # (num_pairs,) ticks
    pay: Ints  # (num_pairs,) ticks or INFINITE
    far: Ints  # (num_pairs,) ticks or INFINITE
    beside: Ints  # (num_classes, num_classes) devices of a class in the island of one of a class

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.min_compute)

    @cached_property
    def allowed(self) -> Flags:
        """Devices of each op, shape (num_ops, num_devices): compatible, colocation and single-op
        memory included.
        """
        return _possible(self.problem)

    @cached_property
    def serial(self) -> int:
        """Length of a schedule that runs all ops and transfers in turn: some optimal schedule is no
        longer.

        While nothing runs, everything later can move to the left; that shortens lives of tensors
        too.
        """
        problem = self.problem
        copies = np.minimum(np.diff(problem.consumer_ptr), max(0, problem.num_devices - 1))
        sent = problem.transfer.max(axis=1, initial=0) * copies
        return int(problem.compute.max(axis=1).sum() + sent.sum())

    @cached_property
    def forwards(self) -> Direction:
        """In-edges in topological order."""
        ptr = pointers(self.target, self.num_ops)
        rows = self.problem.topological_order, ptr, self.source, self.free, self.pay, self.far
        return Direction(*map(frozen, rows))

    @cached_property
    def backwards(self) -> Direction:
        """Out-edges in reversed topological order."""
        by = stable_order(self.source)
        ptr = pointers(self.source[by], self.num_ops)
        order = np.ascontiguousarray(self.problem.topological_order[::-1])
        rows = order, ptr, self.target[by], self.free[by], self.pay[by], self.far[by]
        return Direction(*map(frozen, rows))

    def least_by_class(self, ticks: Ints) -> Ints:
        """Return the least of ticks per op and device, -1 where there are none, over the devices of
        each class: what holds of all of them. INFINITE where no device has any.
        """
        known = np.where(ticks < 0, INFINITE, ticks)
        classes = range(len(self.class_size))
        return np.column_stack([known[:, self.class_of == c].min(axis=1) for c in classes])

    @cached_property
    def items(self) -> tuple[Ints, Ints]:
        """Colocation groups merged: (compute[item, class] or -1, resident bytes)."""
        units = self.problem.units
        compute = sums_by(units.unit, np.maximum(self.compute, 0), len(units.bytes))
        possible = np.ones(compute.shape, np.bool_)
        np.logical_and.at(possible, units.unit, self.compute >= 0)
        return np.where(possible, compute, INCOMPATIBLE), units.bytes


def _possible(problem: PlacementProblem) -> Flags:
    """Return the allowed devices; ops that can run nowhere keep their plain compatibility."""
    allowed = allowed_devices(problem)
    nowhere = ~allowed.any(axis=1)
    if nowhere.any():
        allowed[nowhere] = problem.compute[nowhere] >= 0
    return allowed


def fastest_ticks(compute: Ints) -> Ints:
    """Return the ticks of each op where it is fastest; INFINITE where it can run nowhere."""
    return np.where(compute < 0, INFINITE, compute).min(axis=1)


def relax(problem: PlacementProblem, merged: bool = False) -> Relaxation:
    """Build the relaxation of `problem`.

    Parameters
    ----------
    merged : put all devices into one class, where every op runs as on its fastest device and any
    two may share one:
        weaker, but read in one pass.
    """
    if merged:
        return _merged(problem)
    allowed = _possible(problem)
    times = np.where(allowed, problem.compute, INCOMPATIBLE)
    island = islands(problem)
    first, class_of = unique_columns(np.vstack([times, _companions(times, island)]))
    compute = np.ascontiguousarray(times[:, first])
    here = island[first][:, None] == island[None, :]
    members = class_of[:, None] == np.arange(len(first))
    found = Relaxation(
        problem,
        class_of,
        np.bincount(class_of),
        compute,
        fastest_ticks(compute),
        *_pairs(problem, allowed, island),
        _counts(here, members),
    )
    found.__dict__["allowed"] = allowed
    return found


def _merged(problem: PlacementProblem) -> Relaxation:
    """Return the relaxation with one class of devices and the cheapest link everywhere."""
    pointer, source, tensor = problem.predecessors
    target = row_numbers(pointer)
    pay = problem.min_transfer[tensor]
    group = problem.colocation
    pay = np.where((group[source] >= 0) & (group[source] == group[target]), INFINITE, pay)
    ticks = problem.min_compute.copy()  # kernels are compiled for arrays that may be written to
    return Relaxation(
        problem=problem,
        class_of=np.zeros(problem.num_devices, np.int64),
        class_size=np.array([problem.num_devices], np.int64),
        compute=ticks[:, None].copy(),
        min_compute=ticks,
        source=source,
        target=target,
        free=np.zeros(len(source), np.int64),
        pay=pay,
        far=np.full(len(source), INFINITE, np.int64),
        beside=np.array([[problem.num_devices]], np.int64),
    )


def islands(problem: PlacementProblem) -> Ints:
    """Return the island of each device: those joined by links cheaper than the widest gap between
    costs of links, by the ratio of all tensors' times. All are one island where no gap leaves
    several, with more than a device in one of them.

    The links of a cheapest tree that joins all devices decide (Prim's algorithm): no others lead
    from one island to the next.
    """
    label = np.zeros(problem.num_devices, np.int64)
    if problem.num_tensors == 0:  # then links need not have a class
        return label
    cost = problem.transfer.astype(np.float64).sum(axis=0)[problem.link_class]
    cost = np.minimum(cost, cost.T)
    parent, least = np.zeros(problem.num_devices, np.int64), cost[0].copy()
    waiting = np.arange(1, problem.num_devices)
    tree: list[tuple[float, int]] = []
    while waiting.size:
        d = int(waiting[least[waiting].argmin()])
        tree.append((float(least[d]), d))
        waiting = waiting[waiting != d]
        closer = waiting[cost[d, waiting] < least[waiting]]
        least[closer], parent[closer] = cost[d, closer], d
    gaps = [(high / max(low, 1.0), low) for low, high in pairwise(sorted(x for x, _ in tree))]
    widest, low = max(gaps, default=(1.0, 0.0))
    for price, d in tree if widest > 1.0 else ():
        label[d] = label[parent[d]] if price <= low else d
    return label


def _companions(times: Ints, island: Ints) -> Ints:
    """Return, per device, a number of what is on its island: devices of one class have alike
    islands.
    """
    kind = unique_columns(times)[1]
    return unique_rows(_counts(island[:, None] == island, kind[:, None] == np.unique(kind)))[1]


def _counts(here: Flags, members: Flags) -> Ints:
    """Return the product of two masks; in floating point, where it is exact and takes no time."""
    return (here.astype(np.float64) @ members.astype(np.float64)).astype(np.int64)


def _pairs(
    problem: PlacementProblem, allowed: Flags, island: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return (source, target, free, pay, far) of the distinct op pairs joined by a tensor."""
    tensor, target = problem.edge_tensor, problem.consumer
    source = problem.producer[tensor]
    pay, far, share = _edge_costs(problem, allowed, island, source, target, tensor)
    key = target * problem.num_ops + source
    distinct, inverse = np.unique(key, return_inverse=True)
    worst, farthest = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.maximum.at(worst, inverse, pay)
    np.maximum.at(farthest, inverse, far)
    can_share = np.ones(len(distinct), np.bool_)
    np.logical_and.at(can_share, inverse, share)
    free = np.where(can_share | (worst >= INFINITE), 0, worst)
    return distinct % problem.num_ops, distinct // problem.num_ops, free, worst, farthest


def _edge_costs(
    problem: PlacementProblem,
    allowed: Flags,
    island: Ints,
    source: Ints,
    target: Ints,
    tensor: Ints,
) -> tuple[Ints, Ints, Flags]:
    """Return, per edge, the cheapest transfer between two devices, between two islands, and whether
    one device can hold both.
    """
    rows, kind = unique_rows(allowed)
    masks = allowed[rows]
    pairs, pair = np.unique(kind[source] * len(masks) + kind[target], return_inverse=True)
    first, second = np.divmod(pairs, len(masks))
    pay, far = (np.full(len(source), INFINITE, np.int64) for _ in range(2))
    off = ~np.eye(problem.num_devices, dtype=np.bool_), island[:, None] != island
    for costs, between in zip((pay, far), off, strict=True):
        for link in np.unique(problem.link_class[between]) if len(source) else ():
            joined = (between & (problem.link_class == link)).astype(np.float32)
            reached = masks.astype(np.float32) @ joined > 0  # (num_masks, num_devices)
            usable = (reached[first] & masks[second]).any(axis=1)[pair]
            costs[usable] = np.minimum(costs[usable], problem.transfer[tensor[usable], link])
    both = masks[first] & masks[second]
    # the two ops' own weights may not fit together on any device
    largest = np.where(both, problem.capacity, -1).max(axis=1)[pair]
    share = problem.resident[source] + problem.resident[target] <= largest
    group = problem.colocation
    together = (group[source] >= 0) & (group[source] == group[target])
    pay[together] = far[together] = INFINITE
    share[together] = True
    return pay, far, share


def weight_choices(relaxation: Relaxation, weights: Ints) -> list[Ints]:
    """Return class weights worth trying: all equal, the load bound's, and each class on its own.

    A class on its own counts the ops that can run nowhere else.
    """
    choices = [np.ones_like(weights)]
    if len(weights) > 1:
        only = relaxation.compute[(relaxation.compute >= 0).sum(axis=1) == 1]
        alone = np.eye(len(weights), dtype=np.int64)
        choices = [weights, *choices, *(unit for unit in alone if (only @ unit > 0).any())]
    return [choice for choice in choices if fits(relaxation, choice)]


def sample(values: Ints, most: int) -> Ints:
    """Return at most so many of some values, spread evenly over their ranks."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def fits(relaxation: Relaxation, weights: Ints, horizon: int = 0) -> bool:
    """Whether weighted energies, and windows of a schedule up to `horizon` or of one in turn, times
    the weights of all devices, stay far from int64's limit.
    """
    return float((relaxation.class_size * weights).sum()) < most_weight(relaxation, horizon)


def most_weight(relaxation: Relaxation, horizon: int = 0) -> float:
    """Return what the weights of all devices together have to stay below (`fits`)."""
    longest = float(np.maximum(relaxation.compute, 0).max(axis=1).astype(np.float64).sum())
    paid = np.where(relaxation.far >= 2**62, relaxation.pay, relaxation.far)
    longest += float(np.where(paid >= 2**62, 0, paid).astype(np.float64).sum())
    return 2.0**61 / max(longest, horizon, 1)
