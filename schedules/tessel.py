"""The `tessel` solver: the published enumeration of repetends, as a baseline.

Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible Schedule Search", HPCA 2024. A
repetend holds one instance of every block; r_b is the index of its micro-batch. The indices are enumerated:
r_pred >= r_succ and no index is skipped, fewest micro-batches first. For each assignment a small
problem asks for starts s_b of least period P = R + o, where R is the longest time of a device from its first
start to its last end and o what dependencies between repetitions add:
  s_j + span_j - s_i <= P                        for i, j on one device,
  s_v + P (r_u - r_v) >= s_u + span_u + lag      for u -> v,
  sum_i m_i r_i + sum_i m_i [s_i <= s_c] <= capacity   on every device, right after c starts.
Solved with CP-SAT instead of the published SMT solver; assignments whose longest chains already exclude a better period
are pruned. The search ends at the first repetend that reaches the load bound, which is Tessel's own rule; only the
winner is completed to a finite schedule (lazy completion).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.schedules.bounds import best_bound, load_bound
from placeopt.schedules.completion import complete
from placeopt.schedules.memory_limits import require_feasible_memory
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.schedules.solve import finish_pipeline, warm_up
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class TesselSolver:
    """Enumerate index assignments, solve each, complete the best.

    Attributes
    ----------
    max_micro_batches : most micro-batches that a repetend may touch; 0 means the number of blocks.
    """

    name: ClassVar[str] = "tessel"

    max_micro_batches: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        for key, low in (("max_micro_batches", 0), ("num_workers", 1)):
            if getattr(self, key) < low:
                raise InputError(f"tessel option {key}: expected at least {low}, received {getattr(self, key)}")

    def solve(
        self,
        problem: PipelineProblem,
        budget: Budget,
        *,
        seed: int = 0,
        initial: PipelineSchedule | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[PipelineSchedule]:
        """Search; an evaluation is one index assignment that was solved."""
        warm_up()
        tracker: Tracker[Repetend] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        require_feasible_memory(problem)
        goal = int(load_bound(problem))
        reach = _same_device_chains(problem)
        # One micro-batch after another always works: an upper bound that every repetend must beat.
        period = int(problem.span.sum() + problem.lag.sum()) + 1
        best: Repetend | None = None
        limit = self.max_micro_batches or problem.num_blocks
        with tracker:
            for assignment in _assignments(problem, limit):
                if tracker.stop() or period <= goal:
                    break
                if _chain_bound(problem, assignment, reach) >= period or _overfull(problem, assignment):
                    continue
                found = self._solve_assignment(problem, assignment, period - 1, tracker, seed)
                tracker.count()
                if found is not None:
                    best, period = found, found.period
                    tracker.offer(period, found)
        if best is None:
            return finish_pipeline(tracker, None, message="no repetend found in time; allow more seconds")
        bound, method = best_bound(problem)
        schedule = PipelineSchedule(
            problem=problem,
            start=complete(problem, best, problem.micro_batches),
            solver=self.name,
            period=Fraction(best.period),
            period_bound=bound,
            period_status="optimal" if best.period <= bound else "feasible",
            bound_method=method,
            repetend=best,
            runtime=tracker.elapsed,
            candidates=tracker.evaluations,
        )
        return finish_pipeline(tracker, schedule)

    def _solve_assignment(
        self, problem: PipelineProblem, index: NDArray[np.int64], most: int, tracker: Tracker[Repetend], seed: int
    ) -> Repetend | None:
        """Return the repetend of least period <= most for these micro-batch indices, or None."""
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        b = problem.num_blocks
        span = problem.span.tolist()
        horizon = int(problem.span.sum() + problem.lag.sum())
        start = [model.new_int_var(0, horizon, f"start{i}") for i in range(b)]
        period = model.new_int_var(int(problem.work.max()), most, "period")
        before = {}
        for device in range(problem.num_devices):
            here = problem.on_device[device]
            model.add_no_overlap([model.new_fixed_size_interval_var(start[i], span[i], f"run{i}") for i in here])
            for i in here:
                for j in here:
                    if i != j:
                        model.add(start[j] + span[j] - start[i] <= period)
        for u, v, lag in problem.edges:
            gap = int(index[u] - index[v])
            model.add(start[v] + gap * period >= start[u] + span[u] + lag)
        for device in np.flatnonzero(problem.limited).tolist():
            delta = problem.memory[:, device]
            changing = [i for i in problem.on_device[device] if delta[i]]
            held = int(delta @ index)
            for c in changing:
                if delta[c] < 0:
                    continue
                for i in changing:
                    if i != c and (i, c) not in before:
                        flag = model.new_bool_var(f"before{i}_{c}")
                        model.add(start[i] + span[i] <= start[c]).only_enforce_if(flag)
                        model.add(start[c] + span[c] <= start[i]).only_enforce_if(~flag)
                        before[i, c], before[c, i] = flag, ~flag
                level = held + int(delta[c]) + sum(int(delta[i]) * before[i, c] for i in changing if i != c)
                model.add(level <= int(problem.capacity[device]))
        model.minimize(period)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.num_workers
        solver.parameters.random_seed = seed
        solver.parameters.max_time_in_seconds = max(0.01, min(1e6, tracker.seconds_left))
        if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        value = int(solver.value(period))
        times = np.array([solver.value(s) for s in start])
        return Repetend(value, (times + value * (index.max() - index))[None, :])


def _assignments(problem: PipelineProblem, limit: int) -> Iterator[NDArray[np.int64]]:
    """Yield index assignments, those that touch fewer micro-batches first."""
    order = problem.topological_order[::-1].tolist()
    after: list[list[int]] = [[] for _ in range(problem.num_blocks)]
    for u, v, _ in problem.edges:
        after[u].append(v)
    index = np.zeros(problem.num_blocks, dtype=np.int64)

    def extend(position: int, top: int, used: list[int]) -> Iterator[NDArray[np.int64]]:
        if position == len(order):
            if all(used):
                yield index.copy()
            return
        if used.count(0) > len(order) - position:
            return  # too few blocks are left to use every index
        block = order[position]
        for value in range(max((int(index[v]) for v in after[block]), default=0), top + 1):
            index[block] = value
            used[value] += 1
            yield from extend(position + 1, top, used)
            used[value] -= 1
        index[block] = 0

    for top in range(limit):
        yield from extend(0, top, [0] * (top + 1))


def _same_device_chains(problem: PipelineProblem) -> list[tuple[int, int, int]]:
    """Return (u, v, length): the longest chain from u's start to v's end, for u before v on a common device."""
    found = []
    for u in range(problem.num_blocks):
        length = {u: int(problem.span[u])}
        for v in problem.topological_order.tolist():
            for before, lag in problem.predecessors_of(v):
                if before in length:
                    length[v] = max(length.get(v, 0), length[before] + lag + int(problem.span[v]))
        mine = set(problem.devices_of(u).tolist())
        found += [(u, v, ticks) for v, ticks in length.items() if v != u and mine & set(problem.devices_of(v).tolist())]
    return found


def _chain_bound(problem: PipelineProblem, index: NDArray[np.int64], chains: list[tuple[int, int, int]]) -> int:
    """Smallest period that the chains allow: s_v + span_v - s_u <= P and s_v + P gap >= s_u + length - span_v."""
    return max((-(-length // (1 + int(index[u] - index[v]))) for u, v, length in chains), default=0)


def _overfull(problem: PipelineProblem, index: NDArray[np.int64]) -> bool:
    """Whether the memory held at the start of a repetition already passes a capacity."""
    return bool((problem.memory.T @ index > problem.capacity).any())
