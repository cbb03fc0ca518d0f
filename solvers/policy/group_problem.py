"""What the two grouping policies share: the problem's arrays, values of samples, the incumbent, the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE, best_queue, evaluate_batch
from placeopt.model.budget import Budget
from placeopt.model.placement import Placement
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy.group_kernels import GroupArrays
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import Tracker

NUM_LEVELS = 16


def group_arrays(problem: PlacementProblem) -> GroupArrays:
    """Return the arrays of a problem that grouping kernels take."""
    view = Context(problem)
    n = problem.num_ops
    source = problem.producer[problem.edge_tensor] if problem.num_edges else np.zeros(0, np.int64)
    target = np.array(problem.consumer)
    ends = np.concatenate([source, target])
    order = np.argsort(ends, kind="stable")
    rank, _ = view.upward_rank()
    bucket = np.minimum(NUM_LEVELS - 1, (1 - rank / max(1e-300, float(rank.max()))) * NUM_LEVELS).astype(np.int64)
    return GroupArrays(
        compute=problem.compute.astype(np.float64),
        resident=problem.resident.astype(np.float64),
        capacity=problem.capacity.astype(np.float64),
        source=source,
        target=target,
        cost=view.mean_transfer[problem.edge_tensor] if problem.num_edges else np.zeros(0),
        incident_ptr=np.searchsorted(ends[order], np.arange(n + 1)).astype(np.int64),
        incident=(order % max(1, len(source))).astype(np.int64),
        unit=np.array(view.units.unit),
        level=bucket,
        num_levels=NUM_LEVELS,
    )


@dataclass(frozen=True, eq=False)
class Judge:
    """Values samples and keeps the best: under fifo, and in the order of b-levels."""

    problem: PlacementProblem
    rank: NDArray[np.int64]  # (num_ops,) order of decreasing b-level

    @classmethod
    def of(cls, problem: PlacementProblem) -> Judge:
        """Return the judge of a problem."""
        view = Context(problem)
        level, _ = view.upward_rank()
        return cls(problem, view.inverse(view.by_decreasing(level)))

    def offer_seed(self, tracker: Tracker[Placement], teacher: str, initial: Placement | None, seed: int) -> Placement | None:
        """Make the teacher's placement, or `initial`, the first incumbent; return the better one."""
        if initial is not None:
            value, _ = best_queue(self.problem, initial)
            if value != INFEASIBLE:
                tracker.offer(value, initial)
        if teacher and not tracker.stop():
            seconds = None if tracker.budget.seconds is None else 0.5 * tracker.seconds_left
            budget = Budget(seconds, tracker.evaluations_left if tracker.budget.evaluations else None)
            result = make_solver(teacher).solve(self.problem, budget, seed=seed)
            tracker.count(result.evaluations)
            if result.solution is not None and result.objective is not None:
                tracker.offer(result.objective, result.solution)
        return tracker.solution

    def values(self, tracker: Tracker[Placement], devices: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the makespan of every sample (in b-level order), counted, the best one offered."""
        values = evaluate_batch(self.problem, devices, self.rank, "priority")
        tracker.count(len(devices))
        i = int(values.argmin())
        if values[i] != INFEASIBLE:
            tracker.offer(int(values[i]), Placement(devices[i].astype(np.int64), self.rank))
        return values


def square_root_rewards(values: NDArray[np.int64], scale: float, penalty: float) -> NDArray[np.float64]:
    """Return -sqrt(time / scale), and -penalty for samples that break a constraint (Mirhoseini et al. 2018)."""
    failed = values == INFEASIBLE
    return np.where(failed, -penalty, -np.sqrt(np.where(failed, 0, values) / max(1.0, scale)))
