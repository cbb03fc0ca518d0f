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

from placeopt.api import load
from placeopt.model import objective as objectives
from placeopt.model.errors import Refused
from placeopt.model.objective import INFEASIBLE, named_objective
from placeopt.model.result import Budget
from placeopt.solving import registry
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
