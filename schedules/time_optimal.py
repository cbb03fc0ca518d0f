"""The `time-optimal` solver: the shortest makespan of all n micro-batches, by CP-SAT.

The direct formulation: an interval for every instance, no two at once on a device, precedences with lags, memory
as a reservoir per device, and identical micro-batches in a fixed order. It is exact, and grows with n where a
repetend does not: that is what Tessel measured and what the study of this project repeats.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.schedules.bounds import best_bound, makespan_bound
from placeopt.schedules.completion import justify
from placeopt.schedules.evaluate import compact, dispatch, makespan
from placeopt.schedules.memory_limits import require_feasible_memory
from placeopt.schedules.period_search import greedy_pattern
from placeopt.schedules.solution import PipelineSchedule, relaunch_period
from placeopt.schedules.solve import finish_pipeline, warm_up
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class TimeOptimalSolver:
    """Least makespan of n micro-batches; its period is that of repeating the whole schedule."""

    name: ClassVar[str] = "time-optimal"

    num_workers: int = 2

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise InputError(f"time-optimal option num_workers: expected at least 1, received {self.num_workers}")

    def solve(
        self,
        problem: PipelineProblem,
        budget: Budget,
        *,
        seed: int = 0,
        initial: PipelineSchedule | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[PipelineSchedule]:
        """Solve; `makespan_bound` of the schedule says what is proved."""
        from ortools.sat.python import cp_model

        warm_up()
        tracker: Tracker[NDArray[np.int64]] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        require_feasible_memory(problem)
        n = problem.micro_batches
        best = _greedy(problem, n) if initial is None else initial.start
        bound = makespan_bound(problem, n)
        if best is None or makespan(problem, best) > bound:
            horizon = n * int(problem.span.sum() + problem.lag.sum()) if best is None else makespan(problem, best)
            model, start = _model(problem, n, horizon, bound)
            if best is not None:
                for variable, value in zip(start.ravel().tolist(), best.ravel().tolist(), strict=True):
                    model.add_hint(variable, value)
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = self.num_workers
            solver.parameters.random_seed = seed
            solver.parameters.max_time_in_seconds = max(0.01, min(1e6, tracker.seconds_left))
            status = solver.solve(model)
            tracker.count()
            if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                values = np.array([solver.value(v) for v in start.ravel().tolist()]).reshape(start.shape)
                best = compact(problem, values)
            bound = max(bound, int(np.ceil(solver.best_objective_bound - 1e-6)))
        if best is None:
            return finish_pipeline(tracker, None, message="no schedule found in time; allow more seconds")
        period_bound, method = best_bound(problem)
        period = max(period_bound, relaunch_period(problem, best))
        total = makespan(problem, best)
        schedule = PipelineSchedule(
            problem=problem,
            start=best,
            solver=self.name,
            period=period,
            period_bound=period_bound,
            period_status="optimal" if period <= period_bound else "feasible",
            bound_method=method,
            runtime=tracker.elapsed,
            candidates=tracker.evaluations,
            makespan_bound=min(bound, total),
        )
        proof = "proved optimal" if total <= bound else f"lower bound {bound}"
        return finish_pipeline(tracker, schedule, message=f"makespan {total} of {n} micro-batches, {proof}")


def _greedy(problem: PipelineProblem, micro_batches: int) -> NDArray[np.int64] | None:
    """Return a schedule to start from: greedy with backward passes first, or one micro-batch after another."""
    forward = np.array([kind == "F" for kind in problem.kind], dtype=np.int64) * micro_batches
    rank = np.arange(micro_batches, dtype=np.int64)[:, None]
    found = [dispatch(problem, rank + forward[None, :]), dispatch(problem, rank + 0 * forward[None, :])]
    pattern = greedy_pattern(problem, 1)
    if pattern is not None:
        found.append(compact(problem, pattern.unroll(micro_batches)))
    good = [np.sort(justify(problem, start), axis=0) for start in found if start is not None]
    return min(good, key=lambda start: makespan(problem, start)) if good else None


def _model(problem: PipelineProblem, n: int, horizon: int, bound: int) -> tuple[Any, NDArray[Any]]:
    """Build the CP-SAT model; returns it and the start variables, shape (n, num_blocks)."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    b, span = problem.num_blocks, problem.span.tolist()
    start = np.empty((n, b), dtype=object)
    end = model.new_int_var(bound, horizon, "makespan")
    for j, i in itertools.product(range(n), range(b)):
        start[j, i] = model.new_int_var(int(problem.heads[i]), horizon - span[i], f"start{j}_{i}")
        model.add(start[j, i] + span[i] <= end)
    for j in range(n):
        for u, v, lag in problem.edges:
            model.add(start[j, v] >= start[j, u] + span[u] + lag)
    # Micro-batches are identical: sorting the starts of each block keeps everything valid.
    for j, i in itertools.product(range(n - 1), range(b)):
        model.add(start[j + 1, i] >= start[j, i] + span[i])
    for d in range(problem.num_devices):
        here = problem.on_device[d]
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(start[j, i], span[i], f"run{d}_{j}_{i}") for j in range(n) for i in here]
        )
        if problem.limited[d]:
            _add_memory(model, problem, start, d, n)
    model.minimize(end)
    return model, start


def _add_memory(model: Any, problem: PipelineProblem, start: NDArray[Any], device: int, n: int) -> None:
    """Keep the memory of one device within its capacity."""
    changing = [i for i in problem.on_device[device] if problem.memory[i, device]]
    adds = [i for i in changing if problem.memory[i, device] > 0]
    frees = [i for i in changing if problem.memory[i, device] < 0]
    capacity = int(problem.capacity[device])
    if len(adds) == len(frees) == 1:
        # One allocation and one release of the same size: allocation j + room waits for release j.
        room = capacity // int(problem.memory[adds[0], device])
        for j in range(n - room):
            model.add(start[j + room, adds[0]] >= start[j, frees[0]] + int(problem.span[frees[0]]))
        return
    times = [start[j, i] for j in range(n) for i in changing]
    deltas = [int(problem.memory[i, device]) for _ in range(n) for i in changing]
    model.add_reservoir_constraint(times, deltas, 0, capacity)
