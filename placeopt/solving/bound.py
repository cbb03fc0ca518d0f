"""`bound`: what can be proved of a problem, whatever its objective."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from placeopt.model.bound import BoundReport
from placeopt.model.objective import Objective, objective_of
from placeopt.model.result import Budget, check_number
from placeopt.solving.compilation import ensure, kernels_of
from placeopt.solving.registry import is_ours, make_solver
from placeopt.solving.tracker import Tracker

LEAST_SECONDS = 1.0
"""Time below which no tactics are begun: models take parts of a second to build."""


def bound(
    problem: Any,
    seconds: float = 10.0,
    methods: Sequence[str] | None = None,
    upper: int | None = None,
) -> BoundReport:
    """Return the best lower bound on the objective of `problem` that can be proved in about
    `seconds`.

    With a second and more, and no `methods` named, the tactics go on that prove in a solve: those
    of the objective's prover.

    Parameters
    ----------
    methods : names of the bounds to run; None for all that the time allows.
    upper : value of a known solution in ticks: the search for bounds ends once it is reached.

    Raises
    ------
    InputError
        If a method is unknown, or `problem` is no problem.
    """
    seconds, objective = float(check_number("seconds", seconds)), objective_of(problem)
    ensure(kernels_of(objective, bounds=True))  # compiling does not count
    started = time.perf_counter()
    prover = _prover_of(objective)
    if upper is not None:
        check_number("upper", upper)
    if prover is None or methods is not None or seconds < LEAST_SECONDS:
        return objective.bounds(problem, seconds, methods=methods, upper=upper)
    ensure(kernels_of(objective, [prover]))
    tracker = BoundTracker(prover.name, problem, Budget(seconds), upper)
    quick = objective.quick_bounds(problem, tracker.quick(), upper)
    tracker.found = dict(quick.bounds)
    if not quick.infeasible:
        tracker.raise_bound(quick.value, quick.method)
        if not tracker.stop():
            type(prover).prove(prover, problem, tracker)
    reason = quick.infeasible or tracker.reason
    return BoundReport.of({} if reason else tracker.found, started, reason)


def _prover_of(objective: Objective) -> Any:
    """Return a solver whose tactics prove bounds of an objective; None without one of ours, since
    nobody else's word is a proof.
    """
    prover: Any = make_solver(objective.prover, objective.kind) if objective.prover else None
    ours: Any = type(prover) if is_ours(prover) else None
    proves = hasattr(ours, "prove") and ours.proves_objective(prover, objective.name)
    return prover if proves else None


class BoundTracker(Tracker[Any]):
    """A tracker that remembers the best bound of every method, and ends at a known value.

    Attributes
    ----------
    found : ticks per method.
    """

    def __init__(self, solver: str, problem: Any, budget: Budget, upper: int | None) -> None:
        super().__init__(solver, problem, budget)
        self.upper = upper
        self.found: dict[str, int] = {}

    def raise_bound(self, value: Any, method: str) -> bool:
        """Record a proven lower bound if it is better; return whether it was."""
        if not self.closed and value > 0:
            value = objective_of(self.problem).least_value(self.problem, int(value))
            self.found[method] = max(value, self.found.get(method, 0))
        return super().raise_bound(value, method)

    @property
    def gained(self) -> tuple[float, ...]:
        """Parts of the gap that were closed: an incumbent helps, but only a bound is a gain."""
        return self._gained

    @gained.setter
    def gained(self, parts: tuple[float, ...]) -> None:
        self._gained = 0.0, parts[1]

    def stop(self) -> bool:
        """Whether the bound cannot or need not rise any more."""
        if self.upper is not None and self.lower_bound >= self.upper:
            self.stopped = True
        return super().stop()
