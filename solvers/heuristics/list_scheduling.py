"""The classic list schedulers: HEFT, CPOP, PEFT, ETF.

- HEFT, CPOP: H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
  heterogeneous computing", IEEE TPDS 13(3), 2002.
- PEFT: H. Arabnejad, J. Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost
  table", IEEE TPDS 25(3), 2014.
- ETF: J.-J. Hwang, Y.-C. Chow, F. Anger, C.-Y. Lee, "Scheduling precedence graphs in systems with
  interprocessor communication times", SIAM J. Computing 18(2), 1989.

All need O(e k) to O(n k log n) time beyond the insertion of HEFT, CPOP and PEFT, whose gaps are sought from
the end of a device's plan backwards. On problems with channels the first three make two plans, one with free
channels (as published) and one that queues transfers, and the better one is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.heuristics import kernels, ranks
from placeopt.solvers.heuristics.driver import View, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress


def heft_plan(view: View, *, insertion: bool = True, contention: bool = False) -> kernels.Plan:
    """Schedule ops by decreasing upward rank, each on the device of its earliest finish."""
    rank, _ = view.upward_rank()
    sequence = view.by_decreasing(rank)
    return view.in_order(sequence, insertion=insertion, contention=contention)


def cpop_plan(view: View, *, insertion: bool = True, contention: bool = False) -> kernels.Plan:
    """Schedule ready ops by upward + downward rank; the critical path goes to one device."""
    rank, following = view.upward_rank()
    priority = rank + ranks.downward_rank(view.graph, view.mean_compute, view.mean_transfer)
    path = critical_path(view, priority, following)
    pinned = pin_path(view, path)
    sequence = ranks.priority_list(view.graph, view.inverse(view.by_decreasing(priority)))
    return view.in_order(sequence, pinned=pinned, insertion=insertion, contention=contention)


def critical_path(view: View, priority: NDArray[np.float64], following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Follow the longest path from the source with the largest priority.

    The paper walks along equal priorities; the successor that attains the upward rank is one of those, and
    needs no comparison of rounded sums.
    """
    sources = np.flatnonzero(np.diff(view.graph.pred_ptr) == 0)
    op = int(sources[np.lexsort((view.position[sources], -priority[sources]))[0]])
    path = [op]
    while following[op] >= 0:
        op = int(following[op])
        path.append(op)
    return np.array(path, dtype=np.int64)


def pin_path(view: View, path: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pin the critical path to the device that runs it fastest: as much of it as the device can hold."""
    units = view.units
    usable = view.problem.compute[path] >= 0
    # Devices that can run more of the path come first; on most problems all can run all of it.
    work = np.where(usable, view.problem.compute[path], 0).sum(axis=0)
    device = int(np.lexsort((np.arange(len(work)), work, -usable.sum(axis=0)))[0])
    pinned = view.unpinned.copy()
    free = int(units.capacity[device])
    for unit in dict.fromkeys(units.unit[path].tolist()):
        if units.allowed[unit, device] and units.bytes[unit] <= free:
            pinned[unit] = device
            free -= int(units.bytes[unit])
    return pinned


def peft_plan(view: View, *, insertion: bool = True, contention: bool = False) -> kernels.Plan:
    """Schedule ready ops by mean optimistic cost, each on the device of its smallest finish + optimistic cost."""
    table = ranks.optimistic_cost(view.graph, view.mean_transfer)
    usable = view.problem.compute >= 0
    rank = np.where(usable, table, 0.0).sum(axis=1) / usable.sum(axis=1)  # (eq. 4)
    sequence = ranks.priority_list(view.graph, view.inverse(view.by_decreasing(rank)))
    return view.in_order(sequence, bias=table, insertion=insertion, contention=contention)


def etf_plan(view: View) -> kernels.Plan:
    """Start the (op, device) pair with the earliest start, ties by the largest static level."""
    level, _ = view.upward_rank(communication=False)
    return view.by_time(view.inverse(view.by_decreasing(level)))


@dataclass(frozen=True)
class _InsertionScheduler:
    """What HEFT, CPOP and PEFT share.

    Parameters
    ----------
    insertion : whether an op may go into an idle gap before ops scheduled earlier.
    """

    insertion: bool = True

    name: ClassVar[str]
    plan: ClassVar[Callable[..., kernels.Plan]]

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Plan with free channels and, where there are channels, with queued transfers; keep the better one."""

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            for contention in (False, True)[: 1 + view.contended]:
                yield view.fitted(type(self).plan(view, insertion=self.insertion, contention=contention))

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)


@dataclass(frozen=True)
class Heft(_InsertionScheduler):
    """Heterogeneous earliest finish time: decreasing upward rank, earliest finish, insertion into gaps."""

    name: ClassVar[str] = "heft"
    plan: ClassVar[Callable[..., kernels.Plan]] = staticmethod(heft_plan)


@dataclass(frozen=True)
class Cpop(_InsertionScheduler):
    """Critical path on a processor: the whole critical path on one device, the rest by earliest finish."""

    name: ClassVar[str] = "cpop"
    plan: ClassVar[Callable[..., kernels.Plan]] = staticmethod(cpop_plan)


@dataclass(frozen=True)
class Peft(_InsertionScheduler):
    """Predict earliest finish time: earliest finish plus the optimistic cost of what follows."""

    name: ClassVar[str] = "peft"
    plan: ClassVar[Callable[..., kernels.Plan]] = staticmethod(peft_plan)


@dataclass(frozen=True)
class Etf:
    """Earliest task first: of all ready ops and devices, start the pair that can start earliest."""

    name: ClassVar[str] = "etf"

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Plan once; ties by static level, then by op, then by device."""

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            yield view.fitted(etf_plan(view))

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)
