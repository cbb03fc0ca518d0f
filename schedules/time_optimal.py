"""The `time-optimal` solver: the shortest makespan of all n micro-batches, by CP-SAT.

The direct formulation: an interval for every instance, no two at once on a device, precedences with
lags, memory as a reservoir per device, and identical micro-batches in a fixed order. Where a unit
divides all spans and lags it counts these: with orders as they are, starts as early as these allow
are whole units. It is exact, and grows with n where a repetend does not: that is what Tessel [1]_
measured and what the study of this project repeats.

Such a schedule has no pattern but itself: it repeats as a whole, and its value is the period of
that, per micro-batch. What is proved of its makespan is another number (`makespan_bound` of the
schedule, and the message of the result).

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024 (the time-optimal problem).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placeopt.model.arrays import Ints
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.schedules.bounds import makespan_bound
from placeopt.schedules.completion import (
    affordable_passes,
    cp_limits,
    justify,
    offer_schedule,
    prove_first,
)
from placeopt.schedules.evaluate import compact, dispatch, makespan
from placeopt.schedules.period_search import greedy_pattern
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker

EXACT_FLOAT = 2.0**53
"""Below it the bound of CP-SAT, a whole number of ticks given as a float, is exact."""


@dataclass(frozen=True)
class TimeOptimalSolver(SearchSolver):
    """Least makespan of n micro-batches; its period is that of repeating the whole schedule."""

    num_workers: int = option(2, "threads of CP-SAT", low=1)

    def search(self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> None:
        """Minimise the makespan from a greedy schedule; a shorter one takes the place of the
        incumbent's.
        """
        if not prove_first(problem, tracker):
            return
        n, bound = problem.micro_batches, makespan_bound(problem, problem.micro_batches)
        horizon = n * int(problem.span.sum() + problem.lag.sum())
        known = tracker.solution
        best = _greedy(problem, tracker.seconds_left) if known is None else known.start
        if best is not None:
            horizon = makespan(problem, best)
            _offer_shorter(tracker, PipelineSchedule(problem, best))
        fits = _model_seconds(problem) <= tracker.seconds_left
        if fits and (best is None or horizon > bound):
            model = _MakespanModel(problem, horizon, bound, best)
            bound = max(bound, model.solve(tracker, self.num_workers))
        found = tracker.solution
        if found is None:
            tracker.message = "no schedule found in time; allow more seconds"
            return
        tracker.solution = replace(found, makespan_bound=bound)
        proof = "proved optimal" if found.makespan == bound else f"lower bound {bound}"
        tracker.message = f"makespan {found.makespan} of {n} micro-batches, {proof}"


def _offer_shorter(tracker: Tracker[PipelineSchedule], schedule: PipelineSchedule) -> None:
    """Offer a schedule with the shorter period of its own and the incumbent's pattern."""
    known = tracker.solution
    if (
        known is not None
        and schedule.makespan <= known.makespan
        and known.period <= schedule.period
    ):
        schedule = replace(schedule, repetend=known.pattern)
    offer_schedule(tracker, schedule)


def _model_seconds(problem: PipelineProblem) -> float:
    """Estimate the seconds until CP-SAT begins its search; it does not look at the clock before."""
    n = problem.micro_batches
    changes = (problem.memory != 0).sum(axis=0)[problem.limited] * n
    pairs = int((changes[changes > 2 * n] ** 2).sum())
    # Instances (times devices), and pairs of changes of a device's memory, that it reads a second
    instances_per_second, pairs_per_second = 4000, 50_000
    return n * len(problem.device) / instances_per_second + pairs / pairs_per_second


def _greedy(problem: PipelineProblem, seconds: float) -> Ints | None:
    """Return a schedule to start from: greedy with backward passes first, or so many micro-batches
    after as many others: all at once may hold memory that each other needs.
    """
    n, each = problem.micro_batches, 5  # passes: one, and four to justify what it makes
    passes = affordable_passes(problem, seconds)
    sizes = [2**i for i in range(n.bit_length()) if each * (3 + i) <= passes]
    patterns = [greedy_pattern(problem, size) for size in sizes or [1]]
    rounds = [compact(problem, pattern.unroll(n)) for pattern in patterns if pattern is not None]
    if not sizes:
        return next(iter(rounds), None)
    rank = np.arange(n, dtype=np.int64)[:, None]
    found = [
        dispatch(problem, rank + problem.forward * n),
        dispatch(problem, rank + 0 * problem.forward),
        *rounds,
    ]
    good = [np.sort(justify(problem, start), axis=0) for start in found if start is not None]
    return min(good, key=lambda start: makespan(problem, start), default=None)


class _OfferEach(cp_model.CpSolverSolutionCallback):
    """Offers every schedule at once, so that none is lost when the search is interrupted."""

    def __init__(self, model: _MakespanModel, tracker: Tracker[PipelineSchedule]) -> None:
        super().__init__()
        self.model, self.tracker = model, tracker

    def on_solution_callback(self) -> None:
        _offer_shorter(self.tracker, self.model.decode(self.value))


class _MakespanModel:
    """CP-SAT model of all instances: variables, one method per constraint family, objective,
    decode.
    """

    def __init__(
        self, problem: PipelineProblem, horizon: int, bound: int, hint: Ints | None = None
    ) -> None:
        self.given, self.unit, self.n = problem, problem.unit, problem.micro_batches
        self.problem = problem = problem.in_units(self.unit)
        horizon, bound = horizon // self.unit, -(-bound // self.unit)
        self.model = cp_model.CpModel()
        self.end = self.model.new_int_var(bound, horizon, "makespan")
        self.start = np.empty((self.n, problem.num_blocks), object)
        for j, i in itertools.product(range(self.n), range(problem.num_blocks)):
            latest = horizon - int(problem.span[i])
            self.start[j, i] = self.model.new_int_var(
                int(problem.heads[i]), latest, f"start{j}_{i}"
            )
            self.model.add(self.start[j, i] + int(problem.span[i]) <= self.end)
        self._add_precedences()
        self._order_micro_batches()
        for device in range(problem.num_devices):
            self._add_device(device)
            if problem.limited[device]:
                self._add_memory(device)
        self.model.minimize(self.end)
        if hint is not None:
            for variable, value in zip(self.start.flat, hint.ravel().tolist(), strict=True):
                self.model.add_hint(variable, value // self.unit)

    def _add_precedences(self) -> None:
        start = self.start.ravel()
        for u, v, ticks in self.problem.edges_of(self.n):
            self.model.add(start[v] >= start[u] + ticks)

    def _order_micro_batches(self) -> None:
        """Micro-batches are identical: sorting the starts of each block keeps everything valid."""
        for j, i in itertools.product(range(self.n - 1), range(self.problem.num_blocks)):
            self.model.add(self.start[j + 1, i] >= self.start[j, i] + int(self.problem.span[i]))

    def _add_device(self, device: int) -> None:
        self.model.add_no_overlap(
            [
                self.model.new_fixed_size_interval_var(
                    self.start[j, i], int(self.problem.span[i]), f"run{device}_{j}_{i}"
                )
                for j in range(self.n)
                for i in self.problem.on_device[device]
            ]
        )

    def _add_memory(self, device: int) -> None:
        """Keep the memory of one device within its capacity."""
        problem, start = self.problem, self.start
        changing = [i for i in problem.on_device[device] if problem.memory[i, device]]
        adds = [i for i in changing if problem.memory[i, device] > 0]
        frees = [i for i in changing if problem.memory[i, device] < 0]
        capacity = int(problem.capacity[device])
        if len(adds) == len(frees) == 1:
            # One allocation and one release of the same size: allocation j + room waits for release
            # j.
            room = capacity // int(problem.memory[adds[0], device])
            for j in range(self.n - room):
                self.model.add(
                    start[j + room, adds[0]] >= start[j, frees[0]] + int(problem.span[frees[0]])
                )
            return
        times = [start[j, i] for j in range(self.n) for i in changing]
        deltas = [int(problem.memory[i, device]) for _ in range(self.n) for i in changing]
        self.model.add_reservoir_constraint(times, deltas, 0, capacity)

    def decode(self, value: Callable[[Any], int]) -> PipelineSchedule:
        """Return the schedule of a solution, given as the value of every variable."""
        values = np.array([value(v) for v in self.start.flat]).reshape(self.start.shape)
        return PipelineSchedule(self.given, compact(self.given, values * self.unit))

    def solve(self, tracker: Tracker[PipelineSchedule], num_workers: int) -> int:
        """Offer every schedule that is found; return the proven lower bound on the makespan."""
        timed = tracker.budget.evaluations is None
        # Where evaluations are the limit, each is a second of CP-SAT's own clock
        seconds = tracker.seconds_left if timed else tracker.evaluations_left
        limits = cp_limits(tracker, seconds, num_workers)
        solver = cp_solver(workers=limits.pop("num_workers"), **limits)
        solve_interruptibly(solver, self.model, _OfferEach(self, tracker))
        done = 1 if timed else int(solver.response_proto.deterministic_time)
        tracker.count(max(1, min(done, tracker.evaluations_left)))
        bound = solver.best_objective_bound
        return round(bound) * self.unit if 0 < bound < EXACT_FLOAT else 0
