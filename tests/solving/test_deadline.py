"""A search whose steps outlast the time is left behind, and nothing that it finds later is
taken.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from placeopt.makespan.evaluate import evaluate
from placeopt.model import threads
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.model.threads import left_behind
from placeopt.solving import deadline
from placeopt.solving.base import SearchSolver
from placeopt.solving.deadline import LARGE, is_large, reserve
from placeopt.solving.run import run, run_part


def problem_of(num_ops):
    """Independent ops on a hundred devices."""
    return PlacementProblem.from_edges(np.full((num_ops, 100), 3), [])


@dataclass(frozen=True)
class Stuck(SearchSolver):
    """Offers everything on one device, then takes a step that only the test ends, then finds
    something better.
    """

    name: ClassVar[str] = "stuck"
    release: threading.Event = field(default_factory=threading.Event)
    later: threading.Event = field(default_factory=threading.Event)

    def search(self, problem, tracker):
        """Offer, wait, offer."""
        tracker.offer(3 * problem.num_ops, Placement(np.zeros(problem.num_ops, dtype=np.int64)))
        self.release.wait()
        better = Placement(np.arange(problem.num_ops) % 2)
        tracker.offer(evaluate(problem, better).makespan, better)
        tracker.raise_bound(2**50, "nonsense")
        tracker.infeasible("nonsense")
        self.later.set()


@dataclass(frozen=True)
class Whole(SearchSolver):
    """Runs another solver on a part of its time."""

    name: ClassVar[str] = "whole"
    part: SearchSolver = field(default_factory=Stuck)

    def search(self, problem, tracker):
        """Run the part on what is left."""
        run_part(tracker, self.part)


def test_a_search_that_does_not_come_back_is_left_behind():
    """The incumbent counts; what the search offers after the end of its time is not taken, bounds
    and proofs neither.
    """
    problem, solver = problem_of(LARGE // 100), Stuck()
    result = run(problem, solver, Budget(seconds=2.0))
    assert (result.value, result.stop_reason, result.status) == (
        3 * problem.num_ops,
        "time",
        "feasible",
    )
    assert left_behind()
    solver.release.set()
    assert solver.later.wait(60)
    assert result.value == 3 * problem.num_ops
    assert result.lower_bound < result.value


def test_what_a_part_has_found_is_kept():
    """The search inside another one is left behind with it, and its incumbent counts."""
    problem, part = problem_of(LARGE // 100), Stuck()
    result = run(problem, Whole(part), Budget(seconds=2.0))
    part.release.set()
    assert result.value == 3 * problem.num_ops


def test_small_problems_and_other_budgets_run_as_they_are():
    """Without a limit of time, or on a small problem, nothing is watched and no time is
    reserved.
    """
    small, large = problem_of(10), problem_of(LARGE // 100)
    assert (is_large(small), is_large(large)) == (False, True)
    assert (reserve(small, 1.0), reserve(large, None)) == (0.0, 0.0)
    assert 0.0 < reserve(large, 1.0) <= 0.4
    part = Stuck()
    part.release.set()
    result = run(large, part, Budget(evaluations=5))
    assert (result.status, result.stop_reason, result.value) == (
        "feasible",
        "converged",
        3 * large.num_ops // 2,
    )
    assert "claims that there is no solution ('nonsense')" in result.message


@pytest.mark.parametrize("answers", [True, False])
def test_searches_of_others_on_small_problems_have_as_long_again(monkeypatch, answers):
    """One that never asks is left behind with what it had; one that is a little late is not."""
    monkeypatch.setattr(deadline, "PATIENCE", 0.5)
    problem, release = problem_of(10), threading.Event()

    class Slow:
        name = "slow"

        def search(self, problem, tracker):
            tracker.offer(Placement(np.zeros(problem.num_ops, np.int64)))
            if answers:
                time.sleep(tracker.seconds_left + 0.1)
                tracker.offer(Placement(np.arange(problem.num_ops)))
            else:
                release.wait(60)

    monkeypatch.setattr(threads, "_left_behind", [])
    result = run(problem, Slow(), Budget(seconds=0.2))
    # the end of the process waits for it, but a few seconds only
    assert (left_behind(), left_behind(5.0)) == (not answers, False)
    release.set()
    assert result.value == (3 if answers else 3 * problem.num_ops)
    assert ("left behind" in result.message) is not answers


def test_who_returns_a_solution_is_told_what_is_left():
    """A `solve` that uses the seconds it is given returns before it is left behind."""
    told = []

    class Returning:
        name = "returning"

        def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
            told.append(budget.seconds)
            return SimpleNamespace(solution=Placement(np.zeros(problem.num_ops, np.int64)))

    problem = problem_of(LARGE // 100)
    result = run(problem, Returning(), Budget(seconds=5.0))
    assert 0 < told[0] < 5.0 - reserve(problem, 5.0)
    assert result.solution is not None
