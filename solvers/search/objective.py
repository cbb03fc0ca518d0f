"""What a search minimises, in batches and within the budget: makespan, period, or a user's own measurement.

One object counts evaluations, keeps the time, and hands every candidate to the tracker, so that no search can
overrun its budget or lose the best it has seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.makespan.bounds.feasibility import infeasible_reason
from placeopt.makespan.evaluate import INFEASIBLE, best_queue, evaluate_batch, finish
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.heuristics.repair import pack
from placeopt.solvers.search.space import Space
from placeopt.solvers.search.walker import warm_up
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

Measure = Callable[[Any], float]
"""A user's own objective: devices, shape (num_ops,), to seconds; not finite where the placement fails."""

SLICE_SECONDS = 0.05
"""Aimed length of one call of the evaluator, between two looks at the clock."""

OBJECTIVES = ("makespan", "period")


class Objective:
    """Evaluates rows of devices (and ranks), counts them, and offers the best to the tracker.

    Parameters
    ----------
    measure : replaces the problem's objective; called once per candidate that satisfies the constraints.
    threads : of the evaluator; None for one per core. Results do not depend on it.

    Attributes
    ----------
    ordered : whether ranks matter (makespan).
    walkable : whether the compiled walk applies: makespan without contention or peak memory.
    """

    def __init__(
        self,
        solver: str,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        measure: Measure | None = None,
        threads: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        require_objective(solver, problem, OBJECTIVES)
        if budget.unlimited:
            raise InputError(f"solver '{solver}' never stops by itself: give a budget of seconds or evaluations")
        if budget.seconds is not None:
            warm_up()
        self.tracker: Tracker[Placement] = Tracker(solver, problem, budget, seed=seed, on_progress=on_progress)
        self.problem, self.measure, self.threads = problem, measure, threads
        self.space = Space(problem)
        self.ordered = problem.objective == "makespan" and measure is None
        self.walkable = self.ordered and problem.num_channels == 0 and problem.memory == "static"
        self._seconds_per_row = 0.0

    def impossible(self) -> str | None:
        """Why no placement can exist, None if no simple reason is found."""
        return infeasible_reason(self.problem) or None

    def values(self, devices: NDArray[Any], ranks: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Values of rows of devices in ticks; INFEASIBLE for those that break a constraint or exceed the budget.

        Parameters
        ----------
        devices : shape (batch, num_ops). ranks : one row for all, or one each; read for the makespan only.
        """
        devices = np.ascontiguousarray(devices, dtype=np.int32)
        out = np.full(len(devices), INFEASIBLE, dtype=np.int64)
        todo = min(len(devices), self.tracker.evaluations_left)
        at = 0
        while at < todo and (at == 0 or self.tracker.seconds_left > 0):
            step = todo - at
            if self._seconds_per_row > 0:
                step = min(step, max(1, int(SLICE_SECONDS / self._seconds_per_row)))
            elif self.tracker.budget.seconds is not None:
                step = min(step, 4)  # the first rows tell how long one takes
            rows = slice(at, at + step)
            began = time.perf_counter()
            out[rows] = self._batch(devices[rows], ranks if ranks is None or ranks.ndim == 1 else ranks[rows])
            spent = (time.perf_counter() - began) / step
            if at > 0 or self._seconds_per_row > 0 or step < todo:  # the very first call may compile
                self._seconds_per_row = max(spent, 1e-9)
            self.tracker.count(step)
            best = at + int(out[rows].argmin())
            if out[best] < (INFEASIBLE if self.tracker.value is None else self.tracker.value):
                rank = None
                if self.ordered and ranks is not None:
                    rank = ranks if ranks.ndim == 1 else ranks[best]
                self.tracker.offer(int(out[best]), Placement(devices[best], rank))
            at += step
            if self.tracker.stop():
                break
        return out

    def _batch(self, devices: NDArray[np.int32], ranks: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if self.measure is not None:
            return self._measured(devices)
        if self.problem.objective == "period":
            from placeopt.period.evaluate import period_batch

            return period_batch(self.problem, devices)
        return evaluate_batch(self.problem, devices, ranks, threads=self.threads)

    def _measured(self, devices: NDArray[np.int32]) -> NDArray[np.int64]:
        assert self.measure is not None
        out = np.full(len(devices), INFEASIBLE, dtype=np.int64)
        for row in np.flatnonzero(self.space.feasible(devices)):
            seconds = float(self.measure(devices[row].astype(np.int64)))
            if math.isfinite(seconds):
                ticks = round(seconds / self.problem.tick_seconds)
                if not 0 <= ticks < 2**62:
                    raise InputError(
                        f"objective: expected seconds between 0 and {2**62 * self.problem.tick_seconds:.3g}, "
                        f"received {seconds}"
                    )
                out[row] = ticks
        return out

    def value_of(self, placement: Placement) -> int:
        """Value of one placement in its fastest execution, counted as one evaluation and offered."""
        if self.ordered:
            value, _ = best_queue(self.problem, placement)
            self.tracker.count(1)
        else:
            value = int(self.values(placement.device[None, :])[0])
        if value != INFEASIBLE:
            self.tracker.offer(value, placement if self.ordered else Placement(placement.device))
        return value

    def finish(self, message: str = "") -> Result[Placement]:
        """Re-evaluate the incumbent and build the Result."""
        tracker = self.tracker
        if tracker.solution is None:
            proved = pack(self.space.view.units)[1] if self.problem.capacity.min() < 2**62 else False
            if proved:
                message = "the ops cannot be packed into the capacities (proved by an integer program)"
            elif not message:
                message = "no placement found satisfies every constraint; none was proved impossible"
            return tracker.result(status="infeasible" if proved else "unknown", message=message)
        if self.measure is not None:
            return tracker.result(message=message or "the objective is the caller's measurement of this placement")
        if self.problem.objective == "period":
            return tracker.result(message=message)
        return finish(tracker, message=message)
