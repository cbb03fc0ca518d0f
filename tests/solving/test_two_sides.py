"""Two sides of one solve: what they tell each other, and how the lane that proves ends."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from random_problems import random_problem

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.model.errors import InputError, SolverError
from placeopt.model.placement import Placement
from placeopt.model.result import Budget
from placeopt.solvers import portfolio_tactics
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.policy.dual_policy import DualPolicy
from placeopt.solvers.portfolio import Portfolio
from placeopt.solvers.search.lns import Lns, WindowSearch
from placeopt.solving.tactic import BOUND, Runs
from placeopt.solving.tracker import Exchange, Tracker


@pytest.fixture
def problem():
    """Return a graph on which heuristics do not meet the bound."""
    return po.load("gen:fork-join", cluster="uniform:3")


def tracker_of(problem, seconds=30.0):
    """Return a tracker with a placement of everything on one device."""
    tracker = Tracker("search", problem, Budget(seconds))
    placement = Placement(np.zeros(problem.num_ops, dtype=np.int64))
    tracker.offer(po.evaluate(problem, placement).makespan, placement)
    return tracker


def test_sides_tell_each_other_what_is_better(problem):
    """Each takes the better incumbent and bound of the other, and a bound that meets the incumbent
    ends both.
    """
    exchange, first, second = (
        Exchange(),
        tracker_of(problem),
        Tracker("proof", problem, Budget(30.0)),
    )
    first.exchange = second.exchange = exchange
    assert not first.stop()
    assert not second.stop()
    assert (second.value, second.solution) == (first.value, first.solution)
    second.raise_bound(first.value, "cp-sat")
    assert second.stop()
    assert first.stop()
    assert (first.stop_reason, first.lower_bound, first.bound_method) == (
        "proved",
        first.value,
        "cp-sat",
    )


def test_the_proof_ends_with_the_search(problem):
    """No thread is left when the search is over, and each tactic says what it did."""
    result = po.solve(problem, "portfolio", seconds=2)
    assert not side_threads()
    assert {use.side for use in result.tactics} >= {"value", "bound"}
    assert all(use.turns > 0 and use.seconds >= 0 for use in result.tactics)


def test_a_contradiction_of_the_proof_is_raised(problem, monkeypatch):
    """What goes wrong beside the search is not swallowed."""

    def fail(state, part):
        raise SolverError("bound above value")

    provers = (Runs("fails", BOUND, fail),)
    monkeypatch.setattr(portfolio_tactics, "PROVERS", provers)
    monkeypatch.setattr(portfolio_tactics, "NAMES", ("annealing", "fails"))
    with pytest.raises(SolverError, match="bound above value"):
        po.solve(problem, "portfolio", seconds=20, threads=2)
    assert not side_threads()


def side_threads():
    """Threads of the side that proves."""
    return [thread for thread in threading.enumerate() if thread.name == "placeopt-bound-lane"]


@pytest.mark.jit
def test_small_problems_are_proved_by_the_portfolio():
    """The portfolio proves what the exact solver proves alone."""
    for seed in range(4):
        problem = random_problem(np.random.default_rng(seed), max_ops=6)
        result = po.solve(problem, "portfolio", seconds=20)
        assert result.status == "optimal", result.message
        assert result.value == po.solve(problem, "cp-sat", seconds=20, num_workers=1).value
    assert not side_threads()


@pytest.mark.jit
def test_the_trace_shows_both_sides(problem):
    """Incumbents fall and bounds rise, each with the moment at which a part of the search found
    it.
    """
    result = po.solve(problem, "portfolio", seconds=2)
    values = [point.incumbent for point in result.trace if point.incumbent is not None]
    bounds = [point.lower_bound for point in result.trace]
    seconds = [point.seconds for point in result.trace]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert seconds == sorted(seconds)
    assert (values[-1], bounds[-1]) == (result.value, result.lower_bound)


def test_windows_go_on_from_what_the_other_side_found(problem):
    """A better placement that comes in between is where the next window is freed."""
    best = po.solve(problem, "portfolio", seconds=1)
    tracker, other = tracker_of(problem, seconds=20.0), Tracker("other", problem, Budget(20.0))
    tracker.exchange = Exchange()
    search = WindowSearch(
        Lns(), problem, tracker, Analysis(problem, seconds=1.0).relaxation.allowed
    )
    incumbents, executed = [], search._incumbent

    def watched(placement):
        found = executed(placement)
        incumbents.append(found.makespan)
        if len(incumbents) == 1:
            other.offer(best.value, best.solution)
            tracker.exchange.meet(other)
        return found

    search._incumbent = watched
    for _ in itertools.islice(search.steps(), 3):
        pass
    assert incumbents[0] > best.value
    assert incumbents[1] == best.value


@pytest.mark.parametrize("ours", [CpSat, Portfolio])
def test_a_class_derived_from_ours_still_solves(ours, problem):
    """It meets the face that every plug-in meets; what ours prove under it is run as ours."""

    class Derived(ours):
        pass

    result = Derived(tactics="annealing" if ours is Portfolio else "ladder").solve(
        problem, Budget(1.5), seed=1
    )
    assert result.value is not None
    assert 0 < result.lower_bound <= result.value


@pytest.mark.parametrize("ours", [CpSat, DualPolicy, Lns])
def test_a_class_derived_from_ours_ends_the_shortest_limit_with_a_placement(ours, problem):
    """So does the class itself."""

    class Derived(ours):
        pass

    assert Derived().solve(problem, Budget(1e-9), seed=1).value is not None


def test_unknown_tactics_are_refused(problem):
    """The name of a tactic that there is not is one line, with those that there are."""
    with pytest.raises(InputError, match=r"expected all, or some of .*cp-sat.*received 'magic'"):
        po.solve(problem, "cp-sat", evaluations=10, tactics="ladder, magic")
