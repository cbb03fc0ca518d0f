"""What `plan-ideals` searches: a problem, the lattice of its ideals, and the answers to "at most so
many ticks?".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.ideals import Lattice, ideal_lattice, linear_lattice
from placeopt.model.interruptible import call_interruptibly
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.sample_problem import PLAIN, RECOMPUTE, SamplePlanProblem
from placeopt.solvers.planning.ideal_plan_search import (
    LABEL_D,
    LABEL_DATA,
    LABEL_FROM,
    LABEL_PARENT,
    LABEL_TENSOR,
    PlanArrays,
    Work,
    recomputed_layers,
    search_limit,
)

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints

DEVICE_KIND = "device"
"""Kind of the devices of a problem whose devices are all equal."""


class IdealPlans:
    """Plans over the ideals of a problem.

    Attributes
    ----------
    complete : whether the lattice holds every ideal, so that what is refuted is refuted for all
    plans.
    """

    def __init__(self, problem: SamplePlanProblem, lattice: Lattice, complete: bool) -> None:
        self.problem, self.lattice, self.complete = problem, lattice, complete
        self.arrays = _arrays(problem, lattice)
        degrees, n = len(problem.tensor_degrees), problem.num_layers
        flights = min(problem.devices, problem.samples) + 2
        self.scratch = Work(
            np.zeros((degrees, flights, n), np.int16),
            np.zeros((degrees, flights), np.bool_),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n + 1, np.int8),
            np.zeros(n, np.bool_),
            np.zeros(n),
            np.zeros(n, np.int64),
            np.zeros(1, np.int64),
        )

    @property
    def least(self) -> int:
        """Ticks that no plan can beat: all work, shared equally by all devices."""
        return -(-int(self.arrays.least[-1]) // self.problem.devices)

    @property
    def most(self) -> int:
        """Ticks that every plan keeps to."""
        problem = self.problem
        total = int(np.maximum(problem.work, 0).max(axis=(0, 1)).sum())
        total += int(problem.sync.max(axis=0).sum()) * problem.devices
        return total + int((problem.sent + problem.received).max(axis=0, initial=0).sum())

    def within(self, limit: int, optimistic: bool = False) -> TrainingPlan | None:
        """Return a plan whose stages take at most `limit` ticks each, None if there is none.

        `exact` afterwards says whether every knapsack was decided.
        """
        self.scratch.unknown[0] = 0
        labels, last = call_interruptibly(
            lambda: search_limit(self.arrays, self.scratch, limit, optimistic)
        )
        self.exact = int(self.scratch.unknown[0]) == 0
        if last < 0:
            return None
        return self._plan(labels, int(last))

    def refuted(self, limit: int) -> bool:
        """Whether no plan keeps to `limit`, given that `within` has found none."""
        return self.complete and (self.exact or self.within(limit, optimistic=True) is None)

    def _plan(self, labels: Ints, at: int) -> TrainingPlan | None:
        """Read a plan off its labels, from the first stage to the last."""
        problem, inner, stages = self.problem, 0, []
        while labels[at, LABEL_PARENT] >= 0:
            outer, degree, data = (
                int(labels[at, key]) for key in (LABEL_FROM, LABEL_TENSOR, LABEL_DATA)
            )
            flight = -(-int(labels[at, LABEL_D]) // data)
            if recomputed_layers(self.arrays, self.scratch, (inner, outer, degree), flight) < 0:
                return None  # only with optimistic knapsacks
            members = self.lattice.members(outer, problem.num_layers) & ~self.lattice.members(
                inner, problem.num_layers
            )
            group = ReplicaGroup(DEVICE_KIND, problem.tensor_degrees[degree], data)
            again = np.flatnonzero(self.scratch.taken & members)
            stages.append(
                PlanStage(tuple(np.flatnonzero(members).tolist()), (group,), tuple(again.tolist()))
            )
            inner, at = outer, int(labels[at, LABEL_PARENT])
        return TrainingPlan(tuple(stages))


def prefix_plans(problem: SamplePlanProblem) -> IdealPlans:
    """Return the plans whose stages are intervals of the given order of the layers."""
    return IdealPlans(problem, linear_lattice(problem.num_layers), complete=False)


def all_plans(problem: SamplePlanProblem, max_ideals: int) -> IdealPlans | None:
    """Return all plans; None if there are more ideals than `max_ideals`."""
    lattice = ideal_lattice(problem.num_layers, problem.source, problem.target, limit=max_ideals)
    return None if lattice is None else IdealPlans(problem, lattice, complete=True)


def _arrays(problem: SamplePlanProblem, lattice: Lattice) -> PlanArrays:
    n = problem.num_layers
    inside = np.array([lattice.members(i, n) for i in range(lattice.num_ideals)]).astype(np.int64)
    plain, again = problem.work[:, PLAIN], problem.work[:, RECOMPUTE]
    both = problem.allow_recompute & (again >= 0)
    fastest = np.where(both, np.minimum(plain, again), plain)
    lacking = (plain < 0).astype(np.int64)
    tensor = np.array(problem.tensor_degrees, np.int64)
    device_ticks = np.where(lacking > 0, 2**62, fastest * tensor[:, None]).min(axis=0)
    per_ideal = np.where(lacking > 0, 0, fastest) @ inside.T
    cut = (inside[:, problem.source] > 0) & (inside[:, problem.target] == 0)
    order = np.argsort(per_ideal, axis=1, kind="stable")
    return PlanArrays(
        bits=lattice.bits,
        plain=per_ideal,
        least=inside @ device_ticks,
        sync=problem.sync @ inside.T,
        work=problem.work,
        kept=problem.kept,
        fixed=problem.fixed,
        sent_out=problem.sent @ cut.T.astype(np.int64),
        cut_ptr=np.concatenate([[0], np.cumsum(cut.sum(axis=1))]).astype(np.int64),
        cut_edge=np.nonzero(cut)[1].astype(np.int64),
        target=problem.target,
        sent=problem.sent,
        received=problem.received,
        tensor=tensor,
        data=np.array(problem.data_degrees, np.int64),
        lacking=lacking @ inside.T,
        by_work=order,
        rising=np.take_along_axis(per_ideal, order, axis=1),
        work_sum=np.maximum(plain, 0) @ inside.T,
        kept_sum=problem.kept @ inside.T,
        fixed_sum=problem.fixed @ inside.T,
        smaller=_smaller(problem),
        devices=problem.devices,
        samples=problem.samples,
        capacity=problem.capacity,
        choices=2 if problem.allow_recompute else 1,
    )


def _smaller(problem: SamplePlanProblem) -> bool:
    """Whether recomputing a layer never takes more memory, whatever is in flight (one micro-batch
    or more).
    """
    if not problem.allow_recompute:
        return True
    kept = problem.kept[:, PLAIN] - problem.kept[:, RECOMPUTE]
    once = kept + problem.fixed[:, PLAIN] - problem.fixed[:, RECOMPUTE]
    return bool(((kept >= 0) & (once >= 0) & (problem.work[:, RECOMPUTE] >= 0)).all())
