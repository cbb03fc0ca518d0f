"""`bound` runs the tactics that prove in a solve: what it says holds, and it knows what they know."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import period_problems
import pytest
from exact_instances import random_layered
from random_problems import random_problem

import placeopt as po
from placeopt.io.serialize import from_dict, to_dict
from placeopt.makespan.objective import Makespan
from placeopt.model.errors import InputError, Refused
from placeopt.model.result import Budget
from placeopt.solvers.exact import latency_tactics
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_tactics import PROVERS
from placeopt.solvers.exact.period_tactics import TACTICS as PERIODIC
from placeopt.solving import bound as bounding
from placeopt.solving.bound import BoundTracker


@cache
def solved(seed):
    """Return a small problem and its best solution, proved."""
    problem = random_problem(np.random.default_rng(seed), max_ops=6)
    return problem, po.solve(problem, "cp-sat", seconds=60, num_workers=1)


@pytest.mark.jit
@pytest.mark.parametrize("seed", range(6))
def test_bound_is_the_optimum_of_small_problems(seed):
    """With time, `bound` proves what the exact solver proves, and no more."""
    problem, best = solved(seed)
    report = po.bound(problem, seconds=20)
    assert best.status in ("optimal", "infeasible")
    assert report.value == (best.value or 0)
    assert bool(report.infeasible) == (best.status == "infeasible")
    assert all(value <= report.value for value in report.bounds.values())


def test_a_known_value_ends_the_bound():
    """No more is proved than that the known value is the best."""
    problem = random_problem(np.random.default_rng(1), max_ops=6)
    tracker = BoundTracker("cp-sat", problem, Budget(1000.0), 7)
    tracker.raise_bound(7, "known")
    assert tracker.stop()
    assert tracker.found == {"known": 7}


def test_the_quick_bounds_are_part_of_the_time(monkeypatch):
    """On large graphs they take seconds: what proves begins with what they leave."""
    begun, asked, quick = [], [], Makespan.bounds

    def noted(*given, **more):
        asked.append(time.perf_counter())
        return quick(*given, **more)

    monkeypatch.setattr(Makespan, "bounds", noted)
    monkeypatch.setattr(CpSat, "prove", lambda *given: begun.append(given[-1].started))
    po.bound(random_problem(np.random.default_rng(1), max_ops=6), seconds=1.0)
    assert begun < asked


def test_nobody_elses_proof_is_taken(monkeypatch):
    """A prover that is not ours, or has an option more than ours, is not asked."""

    class Liar(CpSat):
        def prove(self, problem, tracker):
            tracker.raise_bound(10**9, "lie")

    monkeypatch.setattr(bounding, "make_solver", lambda *_: Liar())
    problem = random_problem(np.random.default_rng(1), max_ops=6)
    assert po.bound(problem, seconds=1.0).value < 10**9


@pytest.mark.parametrize("name", [tactic.name for tactic in PROVERS])
def test_each_proof_alone_holds(name, monkeypatch):
    """Whatever a tactic proves alone is no more than the optimum."""
    from placeopt.solvers.exact import makespan_tactics

    alone = tuple(tactic for tactic in PROVERS if tactic.name == name)
    for seed in range(3):
        problem, best = solved(seed)
        with monkeypatch.context() as patched:
            patched.setattr(makespan_tactics, "PROVERS", alone)
            patched.setattr(bounding, "LEAST_SECONDS", 0.4)
            report = po.bound(problem, seconds=0.4)
        if best.value is not None:
            assert report.value <= best.value


@pytest.mark.parametrize("name", [tactic.name for tactic in PERIODIC if tactic.name != "starts"])
@pytest.mark.parametrize("contiguity", ["none", "convex", "chain"])
def test_each_tactic_of_the_period_alone_holds(name, contiguity):
    """Whatever a tactic proves of the period alone is no more than the optimum, and what it finds
    no less.
    """
    for seed in range(2):
        problem = period_problems.random_problem(seed, contiguity=contiguity, n=6)
        best = period_problems.best_period(problem)
        result = po.solve(problem, "cp-sat", seconds=0.2, tactics=f"starts,{name}")
        if best is None:
            assert result.value is None
        else:
            assert result.lower_bound <= best <= (result.value or best)


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize(("seconds", "share"), [(1.0, 1.0), (1.0, 0.4), (0.01, 1.0)])
def test_cp_sat_waits_for_the_latency_while_flows_gain(seconds, share, refused, monkeypatch):
    """A large model waits until flows end, however they do, if they prove half of the value; a small
    one does not.
    """
    begun: list[bool] = []
    problem = period_problems.random_problem(1, n=7, objective="latency", slots=1)
    proved, waits = int(share * po.solve(problem, seconds=5.0).value), seconds * share == 1

    def flows(*_):
        for _ in range(300):
            assert not (begun and waits)
            yield proved, True
        if refused:
            raise Refused("no more flows")
        while not (begun or waits):
            yield proved, True

    def cp_sat(*_):
        begun.append(True)
        return True

    monkeypatch.setattr(latency_tactics, "building_seconds", lambda *_: seconds)
    monkeypatch.setattr(latency_tactics, "flow_bounds", flows)
    monkeypatch.setattr(latency_tactics, "starts", lambda tracker: iter(()))
    monkeypatch.setattr(latency_tactics.LatencyCpModel, "solve", cp_sat)
    po.solve(problem, "cp-sat", seconds=20.0, tactics="filling,flow,cp-sat")
    assert begun


def test_bound_of_a_period_is_the_optimum_of_small_problems():
    """With time, `bound` proves the best period, and knows what CP-SAT knows."""
    for seed in range(4):
        problem = period_problems.random_problem(seed, contiguity="convex", n=5)
        best = period_problems.best_period(problem)
        report = po.bound(problem, seconds=20)
        assert report.value == (best or 0)
        assert bool(report.infeasible) == (best is None)


def test_results_keep_their_tactics():
    """What each tactic did is written and read again; what is none is refused."""
    result = po.solve(random_layered(24, 3, 2), "cp-sat", evaluations=60, num_workers=1)
    assert result.tactics
    data = to_dict(result)
    assert from_dict(data).tactics == result.tactics
    data["tactics"][0]["turns"] = "many"
    with pytest.raises(InputError, match="tactics"):
        from_dict(data)
