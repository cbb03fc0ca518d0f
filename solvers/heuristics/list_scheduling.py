"""The classic list schedulers: HEFT, CPOP, PEFT, ETF.

References
----------
- HEFT, CPOP: H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task
  scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002.
- PEFT: H. Arabnejad, J. Barbosa, "List scheduling algorithm for heterogeneous systems by an
  optimistic cost table", IEEE TPDS 25(3), 2014.
- ETF: J.-J. Hwang, Y.-C. Chow, F. Anger, C.-Y. Lee, "Scheduling precedence graphs in systems with
  interprocessor communication times", SIAM J. Computing 18(2), 1989.

All need O(e k) to O(n k log n) time beyond the insertion of HEFT, CPOP and PEFT, whose gaps are
sought from the end of a device's plan backwards. On problems with channels the first three make two
plans, one with free channels (as published) and one that queues transfers, and the better one is
kept.

Critical path: ready ops by b-level, each on the device of its earliest start, best of several
tie-breakings.

References
----------
The critical-path baseline of "DOPPLER: Dual-policy learning for device assignment in asynchronous
dataflow graphs" (2025) runs 50 times and keeps the best, because sharded graphs are full of ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.makespan.bounds.relaxation import islands
from placeopt.model.arrays import Floats, Ints, frozen, place_in, stable_order, value_ranks
from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals
from placeopt.solvers.heuristics.time_kernels import schedule_earliest_start
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from placeopt.model.problem import PlacementProblem
    from placeopt.model.projection import Units
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
    from placeopt.solving.base import SearchSolver
    from placeopt.solving.tracker import PlacementTracker


def heft_plan(
    context: Context,
    *,
    insertion: bool = True,
    contention: bool = False,
    units: Units | None = None,
) -> ListSchedule:
    """Schedule ops by decreasing upward rank, each on the device of its earliest finish; `units`
    are others than those of the problem.
    """
    rank, _ = context.upward_rank()
    sequence = context.by_decreasing(rank)
    return context.in_order(sequence, units=units, insertion=insertion, contention=contention)


def cpop_plan(
    context: Context, *, insertion: bool = True, contention: bool = False
) -> ListSchedule:
    """Schedule ready ops by upward + downward rank; the critical path goes to one device."""
    rank, following = context.upward_rank()
    priority = rank + ranks.downward_rank(
        context.graph, context.mean_compute, context.mean_transfer
    )
    path = critical_path(context, priority, following)
    pinned = pin_path(context, path)
    sequence = context.topological(context.by_decreasing(priority))
    return context.in_order(sequence, pinned=pinned, insertion=insertion, contention=contention)


def critical_path(context: Context, priority: Floats, following: Ints) -> Ints:
    """Follow the longest path from the source with the largest priority.

    The paper walks along equal priorities; the successor that attains the upward rank is one of
    those, and needs no comparison of rounded sums.
    """
    sources = np.flatnonzero(context.graph.indegree == 0)
    op = int(sources[np.lexsort((context.position[sources], -priority[sources]))[0]])
    path = [op]
    while following[op] >= 0:
        op = int(following[op])
        path.append(op)
    return np.array(path, np.int64)


def pin_path(context: Context, path: Ints) -> Ints:
    """Pin the critical path to the device that runs it fastest: as much of it as the device can
    hold.
    """
    units = context.units
    usable = context.problem.compute[path] >= 0
    # Devices that can run more of the path come first; on most problems all can run all of it.
    work = np.where(usable, context.problem.compute[path], 0).sum(axis=0)
    device = int(np.lexsort((work, -usable.sum(axis=0)))[0])
    pinned = context.unpinned.copy()
    free = int(units.capacity[device])
    for unit in dict.fromkeys(units.unit[path].tolist()):
        if units.allowed[unit, device] and units.bytes[unit] <= free:
            pinned[unit] = device
            free -= int(units.bytes[unit])
    return pinned


def peft_plan(
    context: Context, *, insertion: bool = True, contention: bool = False
) -> ListSchedule:
    """Schedule ready ops by mean optimistic cost, each on the device of its smallest finish +
    optimistic cost.
    """
    table = ranks.optimistic_cost(context.graph, context.costs, context.mean_transfer)
    usable = context.problem.compute >= 0
    rank = np.where(usable, table, 0.0).sum(axis=1) / usable.sum(axis=1)  # (eq. 4)
    sequence = context.topological(context.by_decreasing(rank))
    return context.in_order(sequence, bias=table, insertion=insertion, contention=contention)


def etf_plan(context: Context) -> ListSchedule:
    """Start the (op, device) pair with the earliest start, ties by the largest static level."""
    level, _ = context.upward_rank(communication=False)
    return context.by_time(place_in(context.by_decreasing(level)))


@dataclass(frozen=True)
class _InsertionScheduler(Heuristic):
    """What HEFT, CPOP and PEFT share: a plan with free channels and, where there are channels, one
    that queues.
    """

    plan: ClassVar[Callable[..., ListSchedule]]

    insertion: bool = option(
        True, "whether an op may go into an idle gap before ops scheduled earlier"
    )

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Plan with free channels and, where there are channels, with queued transfers; keep the
        better one.
        """
        for contention in (False, True)[: 1 + context.contended]:
            yield context.fitted(
                type(self).plan(context, insertion=self.insertion, contention=contention)
            )


@dataclass(frozen=True)
class Heft(_InsertionScheduler):
    """Heterogeneous earliest finish time: decreasing upward rank, earliest finish, insertion into
    gaps.
    """

    plan = staticmethod(heft_plan)


@dataclass(frozen=True)
class FewHosts(Heuristic):
    """HEFT on one host, on two, on four, ..., fewer than all, those that are fastest together
    first; on all devices where they are one host. What cannot run there goes anywhere.

    HEFT sends a tensor to another host wherever that op then ends first, however many transfers
    follow, or wait for the same channel.
    """

    def within(self, problem: PlacementProblem, seconds: float) -> SearchSolver | None:
        """Return None on a single host, where it is HEFT."""
        return self if islands(problem).any() else None

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Plan with free channels and, where there are channels, with queued transfers."""
        compute, units = context.problem.compute, context.units
        host = value_ranks(islands(context.problem))
        speed = context.mean_compute[:, None] / np.maximum(compute, 1)
        power = np.bincount(host, np.where(compute < 0, 0.0, speed).sum(axis=0))
        place = place_in(stable_order(-power))[host]
        for doubling in range(max(1, (len(power) - 1).bit_length())):
            inside = units.allowed & (place < 2**doubling)
            allowed = np.where(inside.any(axis=1, keepdims=True), inside, units.allowed)
            fewer = units._replace(allowed=frozen(allowed))
            for contention in (False, True)[: 1 + context.contended]:
                yield context.fitted(heft_plan(context, contention=contention, units=fewer))


@dataclass(frozen=True)
class Cpop(_InsertionScheduler):
    """Critical path on a processor: the whole critical path on one device, the rest by earliest
    finish.
    """

    plan = staticmethod(cpop_plan)


@dataclass(frozen=True)
class Peft(_InsertionScheduler):
    """Predict earliest finish time: earliest finish plus the optimistic cost of what follows."""

    plan = staticmethod(peft_plan)


@dataclass(frozen=True)
class Etf(Heuristic):
    """Earliest task first: of all ready ops and devices, start the pair that can start earliest."""

    kernels = ("ranks", "lists", "lists-by-time")

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Plan once; ties by static level, then by op, then by device."""
        yield context.fitted(etf_plan(context))


@dataclass(frozen=True)
class CriticalPath(Heuristic):
    """Highest b-level first, device of the earliest start, best of several random tie-breakings.

    The first tie-breaking is by index, the others are drawn from the seed.
    """

    kernels = ("ranks", "lists", "lists-by-time")

    runs: int = option(50, "number of tie-breakings, of which the best is kept", low=1)

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Run every tie-breaking, or as many as the budget allows, and keep the best."""
        for plan in critical_path_plans(context, tracker.rng(), self.runs):
            yield context.fitted(plan)


def critical_path_plans(
    context: Context, rng: np.random.Generator, runs: int
) -> Iterator[ListSchedule]:
    """Yield the schedule of each tie-breaking, that by index first."""
    n, k = context.problem.num_ops, context.problem.num_devices
    level, _ = context.upward_rank()
    tie, turn = context.position, np.zeros(n, np.int64)
    for _ in range(runs):
        sequence = context.topological(np.lexsort((tie, -level)))
        yield schedule_earliest_start(context.graph, context.costs, context.units, sequence, turn)
        tie, turn = rng.permutation(n), rng.integers(k, size=n)
