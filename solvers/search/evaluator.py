"""The evaluator of the searches: values of candidates in batches, within the budget.

One object counts evaluations, keeps the time, and hands every candidate to the tracker, so that no
search can overrun its budget or lose the best it has seen. What is minimised is the problem's
objective, or a user's own measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from placeopt.makespan.objective import MAKESPAN
from placeopt.model.arrays import Array, Ints, SmallInts
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE, objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics.context import packing_seconds
from placeopt.solvers.heuristics.repair import UNPACKABLE
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.tracker import PlacementTracker

Measure = Callable[..., float]
"""A user's own measurement: devices, shape (num_ops,), to seconds; not finite where the placement
fails."""


def measured_ticks(problem: PlacementProblem, seconds: float) -> int:
    """Return the ticks of a measurement, INFEASIBLE where it is not finite.

    Raises
    ------
    InputError
        If it is negative, or more than ticks can say.
    """
    seconds = float(seconds)
    if not math.isfinite(seconds):
        return INFEASIBLE
    ticks = seconds / problem.tick_seconds
    if not 0 <= ticks < 2**62:
        most = 2**62 * problem.tick_seconds
        raise InputError(f"measure: expected seconds between 0 and {most:.3g}, received {seconds}")
    return round(ticks)


class BudgetedEvaluator:
    """Evaluates rows of devices (and ranks), counts them, and offers the best to the tracker.

    Parameters
    ----------
    measure : replaces the problem's objective; called once per candidate that satisfies the
    constraints.
    threads : of the evaluator; None for one per core. Results do not depend on it.

    Attributes
    ----------
    ordered : whether ranks matter.
    walkable : whether the compiled walk applies: the makespan, which it decodes, no peak memory.
    chunk_work : ops and edges that a walk replays between two looks at the clock, in about
    `chunk_seconds`.
    """

    chunk_work: ClassVar[int] = 400_000
    chunk_seconds: ClassVar[float] = 0.01

    def __init__(
        self,
        tracker: PlacementTracker,
        *,
        measure: Measure | None = None,
        threads: int | None = None,
    ) -> None:
        self.tracker, self.measure, self.threads = tracker, measure, threads
        self.problem = tracker.problem
        self.objective = objective_of(self.problem)
        self.space = SearchSpace(self.problem, packing_seconds(tracker))
        self.ordered = self.objective.ordered and measure is None
        static = self.problem.memory == "static"
        self.walkable = self.ordered and self.objective is MAKESPAN and static
        self._seconds_per_row = 0.0
        if measure is not None:
            tracker.message = "the value is the caller's measurement of this placement"

    def values(self, devices: Array, ranks: Ints | None = None) -> Ints:
        """Values of rows of devices in ticks; INFEASIBLE for those that break a constraint or
        exceed the budget.

        Parameters
        ----------
        devices : shape (batch, num_ops). ranks : one row for all, or one each; read where order
        matters.
        """
        devices = np.ascontiguousarray(devices, np.int32)
        out = np.full(len(devices), INFEASIBLE, np.int64)
        todo = min(len(devices), self.tracker.evaluations_left)
        at = 0
        while at < todo and (at == 0 or self.tracker.seconds_left > 0):
            step = self._rows_at_once(todo - at)
            rows = slice(at, at + step)
            theirs = ranks if ranks is None or ranks.ndim == 1 else ranks[rows]
            began = time.perf_counter()
            if self.measure is not None:
                out[rows] = self._measured(devices[rows], self.measure)
            else:
                out[rows] = self.objective.evaluate_batch(
                    self.problem, devices[rows], theirs, threads=self.threads
                )
            spent = (time.perf_counter() - began) / step
            if (
                at > 0 or self._seconds_per_row > 0 or step < todo
            ):  # the very first call may compile
                self._seconds_per_row = max(spent, 1e-9)
            self.tracker.count(step)
            self._offer_best(out[rows], devices[rows], theirs)
            at += step
            if self.tracker.stop():
                break
        return out

    def _offer_best(self, values: Ints, devices: Array, ranks: Ints | None) -> None:
        """Offer the best row if it is better than the incumbent."""
        best, known = int(values.argmin()), self.tracker.value
        if values[best] < (INFEASIBLE if known is None else known):
            rank = None
            if self.ordered and ranks is not None:
                rank = ranks if ranks.ndim == 1 else ranks[best]
            self.tracker.offer(int(values[best]), Placement(devices[best], rank))

    def _rows_at_once(self, left: int, *, seconds: float = 0.05) -> int:
        """Rows to evaluate before the next look at the clock, after about so many seconds."""
        if self._seconds_per_row > 0:
            return min(left, max(1, int(seconds / self._seconds_per_row)))
        limited = self.tracker.budget.seconds is not None
        return min(left, 4) if limited else left  # the first rows tell how long one takes

    def _measured(self, devices: SmallInts, measure: Measure) -> Ints:
        out = np.full(len(devices), INFEASIBLE, np.int64)
        for row in np.flatnonzero(self.space.feasible(devices)):
            out[row] = measured_ticks(self.problem, measure(devices[row].astype(np.int64)))
        return out

    @property
    def target(self) -> int:
        """Value at which a search may end: the budget's target, or a proven bound."""
        return max(self.tracker.budget.target or 0, self.tracker.lower_bound)

    @property
    def chunk(self) -> int:
        """Steps of a walk between two looks at the clock."""
        size = self.problem.num_ops + self.problem.num_edges
        return int(np.clip(self.chunk_work // size, 4, 4096))

    def value_of(self, placement: Placement) -> int:
        """Value of one placement in its fastest execution, counted as one evaluation and
        offered; INFEASIBLE where the budget is spent.
        """
        if not self.ordered:
            return int(self.values(placement.device[None, :])[0])
        if self.tracker.evaluations_left == 0:
            return INFEASIBLE
        self.tracker.count(1)
        try:
            value, _ = self.objective.value(self.problem, placement)
        except InfeasiblePlacementError:
            return INFEASIBLE
        self.tracker.offer(value, placement)
        return value

    def conclude(self) -> None:
        """Note why the budget ended the search; where nothing was found, try to prove that nothing
        fits.
        """
        self.tracker.stop()
        if self.tracker.solution is None and self.space.context.packed[1]:
            self.tracker.infeasible(UNPACKABLE)
