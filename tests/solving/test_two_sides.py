"""Two sides of one solve: what they tell each other, and how the side that proves ends."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from random_problems import random_problem

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.model.budget import Budget
from placeopt.model.errors import SolverError
from placeopt.model.placement import Placement
from placeopt.solvers import dual_side
from placeopt.solvers.dual_side import DualSide, worth_it
from placeopt.solvers.search.lns import Lns, WindowSearch
from placeopt.solving.exchange import Exchange
from placeopt.solving.registry import solver_class
from placeopt.solving.tracker import Tracker

TWO_SIDES = "placeopt-dual-side"


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
    """No thread is left when the search is over, however much time the budget had."""
    tracker = tracker_of(problem)
    with DualSide(tracker) as side:
        side.exchange.meet(tracker)
    side._thread.join(20)
    assert not side._thread.is_alive()
    assert tracker.exchange is None
    assert side._own.elapsed < 30


def test_a_contradiction_of_the_proof_is_raised(problem, monkeypatch):
    """What goes wrong beside the search is not swallowed."""

    def fail(*_):
        raise SolverError("bound above value")

    monkeypatch.setattr(solver_class("cp-sat"), "search", fail)
    with (
        pytest.raises(SolverError, match="bound above value"),
        DualSide(tracker_of(problem)) as side,
    ):
        side._thread.join(20)


def test_interruption_ends_both_sides(problem):
    """Ctrl-C in the search passes through, and the proof ends too."""
    tracker = tracker_of(problem)
    with pytest.raises(KeyboardInterrupt), DualSide(tracker) as side:
        raise KeyboardInterrupt
    side._thread.join(20)
    assert not side._thread.is_alive()


@pytest.mark.jit
def test_small_problems_are_proved_by_the_portfolio():
    """The portfolio proves what the exact solver proves alone."""
    for seed in range(4):
        problem = random_problem(np.random.default_rng(seed), max_ops=6)
        result = po.solve(problem, "portfolio", seconds=20)
        assert result.status == "optimal", result.message
        assert result.value == po.solve(problem, "cp-sat", seconds=20, num_workers=1).value
    assert not [
        thread for thread in threading.enumerate() if thread.name == TWO_SIDES and thread.is_alive()
    ]


@pytest.mark.jit
def test_the_trace_shows_both_sides(problem):
    """Incumbents fall and bounds rise, each with the moment at which a part of the search found
    it.
    """
    result = po.solve(problem, "portfolio", seconds=3)
    values = [point.incumbent for point in result.trace if point.incumbent is not None]
    bounds = [point.lower_bound for point in result.trace]
    seconds = [point.seconds for point in result.trace]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    assert seconds == sorted(seconds)
    assert (values[-1], bounds[-1]) == (result.value, result.lower_bound)


def test_a_second_side_needs_time_a_core_and_a_model_that_fits(problem):
    """Without them the search has everything for itself."""
    assert worth_it(problem, 10.0, 2)
    assert not worth_it(problem, 0.2, 2)
    assert not worth_it(problem, 10.0, 1)
    assert not worth_it(problem, float("inf"), 2)
    assert not worth_it(po.load("gen:layered?layers=60&width=60", cluster="uniform:8"), 10.0, 2)


def side_that_ran(problem, small):
    """Return a side whose proof ended at once, a while ago."""
    side = DualSide(tracker_of(problem, seconds=0.2))
    side.small = small
    side.exchange.meet(side.tracker)
    side._thread.start()
    side._thread.join(20)
    time.sleep(0.1)
    return side


def test_a_stalled_proof_leaves_its_core(problem, monkeypatch):
    """One that gained nothing of late ends, at first only on large problems; what it proved is
    kept.
    """
    monkeypatch.setattr(solver_class("cp-sat"), "search", lambda *_: None)
    patient = side_that_ran(problem, False)
    patient.end_if_stalled()
    assert not patient.ended
    patient.end()
    monkeypatch.setattr(dual_side, "STALLED_SECONDS", 0.05)
    large, gaining, small = (
        side_that_ran(problem, False),
        side_that_ran(problem, False),
        side_that_ran(problem, True),
    )
    gaining._own.raise_bound(gaining._own.value - 1, "later")
    for side in (large, gaining, small):
        side.end_if_stalled(large=True)
    assert (large.ended, gaining.ended, small.ended) == (True, False, False)
    small.end_if_stalled()
    assert small.ended
    gaining.exchange.meet(gaining._own)
    gaining.end()
    assert gaining.tracker.lower_bound == gaining.tracker.value - 1


def test_windows_go_on_from_what_the_other_side_found(problem):
    """A better placement that comes in between is where the next window is freed."""
    best = po.solve(problem, "portfolio", seconds=3)
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
    search.run(share=0.1)
    assert incumbents[0] > best.value
    assert incumbents[1] == best.value
