"""The stages of the portfolio: heuristics in turn, the quick bound, and searches on shares of a
budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.placement import Placement
from placeopt.solving.compilation import kernels_of, ready
from placeopt.solving.deadline import is_large
from placeopt.solving.registry import make_solver, spec_of
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.search.evaluator import BudgetedEvaluator
    from placeopt.solving.base import SearchSolver

HEURISTICS = (
    "single-device",
    "heft",
    "etf",
    "critical-path",
    "few-hosts",
    "edge-zeroing",
    "dsc",
    "peft",
    "cpop",
    "m-etf",
    "m-topo",
    "round-robin",
    "enumerative",
    "m-sct",
    "linear-dp",
    "learned-list",
)
"""Run in this order as far as they are registered for the objective and the budget lasts."""

SWEEPS = ("edge-zeroing", "learned-list")
"""Those that may try hundreds of placements; within a limit of time they are a tactic, which takes
turns with the searches."""

FIRST, SECOND = "heft", "etf"
"""Heuristics that come before the others on large problems."""

SHARE_OF_FIRST = {"heft": 0.0, "etf": 1.5, "critical-path": 3.0}
"""On large problems, the least time of a heuristic as a multiple of the first one's (2 where not
named): one that would not come back in time is left out."""

SLOW = {
    "m-sct": 2000,
    "linear-dp": 2000,
    "edge-zeroing": 20_000,
    "dsc": 20_000,
    "enumerative": 20_000,
}
"""Number of ops above which a heuristic is left out: it may not come back in time."""


def hot_kernels(problem: PlacementProblem, search: str) -> tuple[str, ...]:
    """Groups of kernels in which a search, annealing or cross-entropy, spends its time."""
    walks = search == "annealing" and problem.memory == "static"
    return ("walks",) if walks else ("populations",)


def is_vast(problem: PlacementProblem) -> bool:
    """Whether ops times devices are so many that a single heuristic may take all of the time."""
    return is_large(problem, 1_000_000)


def in_turn(problem: PlacementProblem) -> tuple[str, ...]:
    """Heuristics in the order in which they run; on large problems the one that is worth its time
    comes first.
    """
    if not is_vast(problem):
        return HEURISTICS
    return tuple(dict.fromkeys((FIRST, SECOND, *HEURISTICS)))


class Stages:
    """Runs solvers one after the other on one budget and one incumbent."""

    def __init__(self, evaluator: BudgetedEvaluator) -> None:
        self.evaluator, self.tracker = evaluator, evaluator.tracker
        self._left_out: dict[str, None] = {}  # in a first run, each once
        self.first_seconds = 0.0  # that the first heuristic took, where the problem is large

    def bound(self) -> None:
        """Prove lower bounds in a tenth of the time, at most two seconds; where no clock may decide
        anything, the quickest, unless some are known.
        """
        tracker, problem = self.tracker, self.evaluator.problem
        seconds = tracker.quick(2.0)
        if self.evaluator.measure is not None or (seconds == 0 and tracker.lower_bound > 0):
            return  # bounds hold for the model, not for a clock; or it is known
        report = self.evaluator.objective.bounds(problem, seconds, None, tracker.value)
        tracker.raise_bound(report.value, report.method)
        if report.infeasible:
            tracker.infeasible(report.infeasible)

    def slices(self) -> None:
        """Offer equal slices of a topological order: an answer at once, where every heuristic takes
        its time.
        """
        problem = self.evaluator.problem
        device = np.empty(problem.num_ops, np.int64)
        device[problem.topological_order] = (
            np.arange(problem.num_ops) * problem.num_devices // problem.num_ops
        )
        self.evaluator.value_of(Placement(device))

    def heuristic(self, name: str) -> None:
        """Run a heuristic on half of the time that is left; the first one that finds an answer may
        take it all.
        """
        solver = self.able(name)
        if solver is not None and (self.tracker.solution is None or self._comes_back(name)):
            self._run_heuristic(solver)

    def able(self, name: str) -> SearchSolver | None:
        """Return a heuristic as it comes back in time; None where it would not on graphs of this
        size, is not registered for the objective, or its kernels are not compiled.
        """
        problem = self.evaluator.problem
        if problem.num_ops > SLOW.get(name, problem.num_ops) or not self.registered(name):
            return None
        made: Any = make_solver(name)
        solver: SearchSolver | None = made.within(problem, self.tracker.seconds_left / 2)
        if solver is None or not self._compiled(
            name, kernels_of(self.evaluator.objective, [solver])
        ):
            return None
        return solver

    def _comes_back(self, name: str) -> bool:
        """Whether a heuristic comes back in time, as far as the first one tells."""
        tracker, expected = self.tracker, self.first_seconds * SHARE_OF_FIRST.get(name, 2.0)
        return not (tracker.stop() or self._nothing_left() or tracker.seconds_left < expected)

    def _run_heuristic(self, solver: SearchSolver) -> None:
        """Run a heuristic, and measure what it finds where the caller measures."""
        tracker, measured = self.tracker, self.evaluator.measure is not None
        first = solver.name == FIRST and is_vast(self.evaluator.problem)
        needed = tracker.solution is None  # an answer, even a late one
        before = tracker.elapsed
        result = run_part(
            tracker,
            solver,
            seconds=None if needed or first else tracker.share(0.5).seconds,
            target=self.evaluator.target,
            adopt=not measured,
        )
        if first:
            self.first_seconds = tracker.elapsed - before
        if measured and result is not None and result.solution is not None:
            self.evaluator.value_of(Placement(result.solution.device))

    def search(self, name: str, share: float, **options: Any) -> None:
        """Run a search from the incumbent on a share of what is left."""
        tracker = self.tracker
        if tracker.stop() or self._nothing_left() or not self.takes(name):
            return
        part = tracker.share(share)
        run_part(
            tracker,
            make_solver(name, **options),
            seconds=part.seconds,
            evaluations=part.evaluations,
            initial=tracker.solution,
            target=self.evaluator.target,
        )

    def takes(self, name: str) -> bool:
        """Whether a search is registered for the objective and its kernels are compiled."""
        kernels = hot_kernels(self.evaluator.problem, name)
        return self.registered(name) and self._compiled(name, kernels)

    def registered(self, name: str) -> bool:
        """Whether a solver is registered and takes the objective."""
        spec = spec_of(name, "placement")
        return spec is not None and self.evaluator.objective.name in spec.accepted

    def _compiled(self, name: str, kernels: Sequence[str]) -> bool:
        """Whether the kernels of a stage are compiled; notes that it is left out where they are
        not.
        """
        if ready(kernels) or (name in HEURISTICS and self.tracker.solution is None):
            return True
        self._left_out[name] = None
        searches = [part for part in self._left_out if part not in HEURISTICS]
        parts = [f"{len(self._left_out) - len(searches)} heuristics", *searches]
        self.tracker.message = (
            f"a first run, without {' and '.join(parts)}: their kernels were not compiled yet"
        )
        return False

    def _nothing_left(self) -> bool:
        """Whether what remains of a nearly spent budget would not carry another solver's start."""
        return self.tracker.seconds_left < 1e-3
