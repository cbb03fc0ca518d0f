"""Searches that only ask for values take an objective that a user has registered: the one of the
how-to.
"""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from placeopt.api import load, solve
from placeopt.certify.certificate import prove
from placeopt.certify.verify import verify
from placeopt.model import objective as objectives
from placeopt.model.bound import BoundReport
from placeopt.model.errors import InputError, Refused, SolverError
from placeopt.model.objective import INFEASIBLE, Finished, Objective, named_objective
from placeopt.model.placement import Placement
from placeopt.model.result import Budget
from placeopt.solving import registry
from placeopt.solving.bound import bound
from placeopt.solving.registry import ANY_OTHER, make_solver, specs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "new-objective.md"
SEARCHES = sorted(name for name, spec in specs("placement").items() if ANY_OTHER in spec.objectives)

pytestmark = pytest.mark.jit


@pytest.fixture
def traffic(tmp_path, monkeypatch):
    """Return the how-to's objective, registered for this test only."""
    ours = {key: objectives._targets[key] for key in objectives._ours}
    monkeypatch.setattr(objectives, "_targets", ours)
    monkeypatch.setattr(registry, "_registered", {})
    script = tmp_path / "objective.py"
    script.write_text(
        re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    )
    runpy.run_path(str(script), run_name="how_to")
    return named_objective("placement", "traffic")


def test_the_searches_are_there():
    """The searches on the batch evaluator say that they take any objective."""
    assert {"annealing", "genetic", "cross-entropy", "post", "portfolio"} <= set(SEARCHES)


@pytest.mark.parametrize("solver", SEARCHES)
def test_a_registered_objective_is_minimised(traffic, solver):
    """The result is valid under the objective's own judge, better than what random placements
    reach, and repeatable.
    """
    problem = load("gen:ffnn?layers=6", cluster="uniform:3", objective="traffic")
    rows = np.random.default_rng(0).integers(0, 3, (400, problem.num_ops))
    values = traffic.evaluate_batch(problem, rows)
    result = make_solver(solver).solve(problem, Budget(evaluations=400), seed=1)
    assert traffic.judge(problem, result.solution) == []
    assert result.value == traffic.evaluate_batch(problem, result.solution.device[None, :])[0]
    assert result.objective_name == "traffic"
    assert result.value < values[values < INFEASIBLE].min()
    assert (
        make_solver(solver).solve(problem, Budget(evaluations=400), seed=1).solution
        == result.solution
    )


@pytest.mark.parametrize("solver", ["heft", "lns", "ideal-dp"])
def test_others_still_refuse_it(traffic, solver):
    """A solver that reasons about the makespan or the period refuses a registered objective."""
    problem = load("gen:ffnn", cluster="uniform:2", objective="traffic")
    with pytest.raises(Refused, match="traffic"):
        make_solver(solver).solve(problem, Budget(evaluations=10))


def test_a_registered_objective_is_listed(traffic):
    """The registry names it among what the searches accept, and only there."""
    assert "traffic" in specs("placement")["annealing"].accepted
    assert "traffic" not in specs("placement")["heft"].accepted
    assert ANY_OTHER not in specs("placement")["annealing"].accepted


def test_times_that_an_objective_leaves_out_do_not_matter(traffic):
    """How worse a placement may be that is accepted follows from the objective's own values."""
    problem = load("gen:ffnn?layers=6", cluster="uniform:3", objective="traffic")
    longer = problem.replace(compute=problem.compute * 2**20)
    found = [
        make_solver("annealing").solve(each, Budget(evaluations=400), seed=1).value
        for each in (problem, longer)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("solver", ["cross-entropy", "annealing", "portfolio"])
def test_an_objective_may_be_a_dataclass(traffic, solver):
    """One that compares, and so has no hash, is minimised like others."""
    weighed = dataclass(type("Weighed", (type(traffic),), {"name": "weighed"}))()
    assert weighed.__hash__ is None
    objectives.register_objective(weighed)
    problem = load("gen:ffnn", cluster="uniform:2", objective="weighed")
    result = make_solver(solver).solve(problem, Budget(evaluations=60))
    assert result.value == traffic.evaluate_batch(problem, result.solution.device[None, :])[0]


def raises(*given, **how):
    """Fail as a careless objective does."""
    raise OSError("no\nluck")


class Mute:
    """What neither numpy nor a person can read."""

    def __array__(self, *given, **how):
        """Fail as a tensor with a gradient does."""
        raise RuntimeError

    __repr__ = __array__


def changed(objective, monkeypatch, **members):
    """Return a problem of the objective with some of its members changed."""
    for key, member in members.items():
        monkeypatch.setattr(type(objective), key, member)
    return load("gen:ffnn", cluster="uniform:2", objective="traffic")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raises, "its evaluate_batch raised OSError: no luck"),
        (lambda self, problem, devices, *rest, **how: None, "gives None, expected 1 numbers"),
        (lambda self, problem, devices, *rest, **how: np.full(len(devices), -1), "0 or more"),
        (lambda self, problem, devices, *rest, **how: np.zeros((len(devices), 2)), "0 or more"),
        (lambda self, problem, devices, *rest, **how: np.full(len(devices), np.nan), "nan"),
        (lambda self, problem, devices, *rest, **how: np.full(len(devices), 0.5), "whole ticks"),
        (lambda self, problem, devices, *rest, **how: [[1], [1, 2]], "expected 1 numbers"),
        (lambda self, problem, devices, *rest, **how: Mute(), "gives Mute, expected 1 numbers"),
    ],
)
@pytest.mark.parametrize("solver", ["annealing", "portfolio"])
def test_values_that_are_none_are_the_fault_of_the_objective(
    traffic, monkeypatch, solver, answer, words
):
    """One line names it, not the search that has asked."""
    problem = changed(traffic, monkeypatch, evaluate_batch=answer)
    with pytest.raises(SolverError, match=f"^objective 'traffic': .*{words}"):
        solve(problem, solver=solver, evaluations=20)


def test_what_was_found_before_an_objective_fails_is_kept(traffic, monkeypatch):
    """The error brings it along."""
    values, calls = type(traffic).evaluate_batch, []

    def late(*given, **how):
        calls.append(given)
        return raises() if len(calls) == 9 else values(*given, **how)

    problem = changed(traffic, monkeypatch, evaluate_batch=late)
    with pytest.raises(SolverError, match="'traffic'") as failed:
        solve(problem, solver="cross-entropy", evaluations=4000)
    assert failed.value.partial.value > 0


def test_batches_that_contradict_the_objective_are_told(traffic, monkeypatch):
    """A value of 0 ends the search, but it proves nothing, and the result says so."""

    def zeros(self, problem, devices, *rest, **how):
        return np.zeros(len(devices), np.int64)

    problem = changed(
        traffic, monkeypatch, evaluate_batch=zeros, finish=lambda *x: Finished(7, "", ())
    )
    result = solve(problem, solver="annealing", evaluations=20)
    assert (result.value, result.status, result.stop_reason) == (7, "feasible", "converged")
    assert result.message == "values of many placements are wrong: 0 ticks for one of 7"


@pytest.mark.parametrize("words", ["heavy", ["heavy"], ("heavy",), (x for x in ["heavy"])])
def test_one_violation_is_one(traffic, monkeypatch, words):
    """A text that a judge returns is no list of its letters, and what is iterated once is read."""
    problem = changed(traffic, monkeypatch, judge=lambda *x: words, finish=Objective.finish)
    report = verify(problem, [0] * problem.num_ops, seconds=0)
    assert report.violations == ("heavy",)


def test_what_is_no_objective_is_not_registered(traffic):
    """A class instead of an object, or one without a kind, is told in one line."""
    for given, words in ((type(traffic), "the class Traffic"), (object(), "received object")):
        with pytest.raises(InputError, match=f"expected an object with the texts .*{words}"):
            objectives.register_objective(given)


def test_infeasible_placements_may_have_infinite_values(traffic, monkeypatch):
    """Also where the mark for them became a number with a point: beyond 63 bits it is the mark."""
    values = type(traffic).evaluate_batch

    def pointed(*given, **how):
        found = values(*given, **how)
        return np.where(found < INFEASIBLE, found.astype(float), np.inf)

    problem = changed(traffic, monkeypatch, evaluate_batch=pointed)
    devices = np.eye(problem.num_ops, dtype=np.int64)[:6]
    found = objectives.objective_of(problem).evaluate_batch(problem, devices)
    assert (found == values(traffic, problem, devices)).all()
    assert (found == INFEASIBLE).any()


@pytest.mark.parametrize(
    ("key", "answer", "words"),
    [
        ("finish", raises, "its finish raised OSError"),
        ("finish", lambda *given, **how: 7, "its finish gives 7, expected a Finished"),
        ("finish", lambda *given, **how: Finished(None, "", ()), "expected whole ticks, 0 or more"),
        ("finish", lambda *given, **how: Finished(None, "", (3,)), "expected texts"),
        ("finish", lambda *given, **how: Finished(10**400, "", ()), "expected whole .*, below 2"),
        ("bounds", raises, "its bounds raised OSError"),
        ("bounds", lambda *given, **how: 3, "expected a BoundReport"),
        ("bounds", lambda *given, **how: BoundReport(3.5, "x"), "expected whole ticks, 0 or more"),
        ("bounds", lambda *given, **how: BoundReport(2, "x", {3: 2}), "expected texts"),
        ("witness", lambda *given, **how: 5, "its witness gives 5, expected a Witness"),
    ],
)
def test_answers_that_are_none_name_the_objective(traffic, monkeypatch, key, answer, words):
    """Whoever verifies or bounds reads one line."""
    problem = changed(traffic, monkeypatch, **{key: answer})
    placed = Placement(np.arange(problem.num_ops) * 2 // problem.num_ops)
    with pytest.raises(SolverError, match=f"^objective 'traffic': .*{words}"):
        prove(problem, placed, verify(problem, placed, seconds=0))
    if key == "bounds":
        with pytest.raises(SolverError, match=f"^objective 'traffic': .*{words}"):
            bound(problem)
