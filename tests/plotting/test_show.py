"""What Results show of themselves: short words, a table in a notebook, a picture, a data frame."""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path

import pytest

import placeopt as po
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.errors import InputError


@pytest.fixture(scope="module")
def problem():
    """Return a small placement problem with types and names."""
    return po.load("gen:ffnn", cluster="4xA100")


@pytest.fixture(scope="module")
def result(problem):
    """Return the result of a list heuristic."""
    return po.solve(problem, "heft")


PLAIN_VALUES = ("Budget", "Device", "Link", "TracePoint", "SearchSolver")
"""Public dataclasses of a few numbers, and the base of solvers: no words of their own."""


@pytest.fixture(scope="module")
def answers(problem, result):
    """Return something of every kind that a call returns, by the name of its class."""
    from placeopt.exports.export import Exported
    from placeopt.plans.plan import PlanStage, ReplicaGroup
    from placeopt.splits.problem import Split, SplitProblem, SplitStage
    from placeopt.streams import DegreePolicy, offline_bound, simulate

    pipeline = po.load("shape:V?devices=2")
    stream = po.load_stream("stream:ramp?models=gen:chain-mm&device=A100&jobs=20&beta=2&interval=2")
    split = SplitProblem(po.load("gen:ffnn", cluster="4xA100", objective="period"), max_replicas=2)
    planned = po.plan("gen:ffnn", "2xA100", 2, seconds=0.5, runner_ups=1)
    group = ReplicaGroup("A100", 1, 1)
    sharding = po.ShardingProblem("two", [0, 1, 3], [1, 2, 3], [1, 1, 1], [[0, 1]] * 2, [], [])
    found = (
        problem,
        result,
        result.solution,
        po.evaluate(problem, result.solution),
        po.bound(problem, seconds=0),
        po.verify(problem, result, seconds=0),
        po.verify(problem, po.Placement([0] * problem.num_ops), seconds=0),
        po.generate("ffnn"),
        po.make_cluster("2xA100+2xL4"),
        pipeline,
        po.solve(pipeline, "1f1b").solution,
        stream,
        simulate(stream, DegreePolicy("constant-degree", degree=4)),
        offline_bound(stream),
        split,
        Split([SplitStage((0, 1), (0,)), SplitStage((2,), (1, 2))]),
        planned,
        planned.problem,
        planned.plan or po.TrainingPlan((PlanStage((0,), (group,)),)),
        *planned.runner_ups,
        sharding,
        po.ShardingSolution([0, 1]),
        Exported({}, {"device_map.json": Path.touch}, ("one note",)),
    )
    return {type(thing).__name__: thing for thing in found}


def test_answers_are_short(answers, result):
    """What a call returns is one short line on a prompt, without its arrays, and HTML in a
    notebook.
    """
    for name, thing in answers.items():
        assert len(repr(thing)) < 330, name
        assert "\n" not in repr(thing), name
        assert "array(" not in repr(thing), name
        assert name in repr(thing)
        assert thing._repr_html_().startswith(("<table>", "<code>")), name
    assert "makespan" in repr(result)
    assert "gap" in repr(result)
    assert "2 A100 + 2 L4" in repr(po.make_cluster("2xA100+2xL4"))


def test_every_public_answer_is_shown(answers):
    """No public dataclass is left with the generated repr, but those of a few numbers."""
    public = [getattr(po, name) for name in po.__all__ if name[0].isupper()]
    classes = {x.__name__ for x in public if isinstance(x, type) and is_dataclass(x)}
    assert classes - set(PLAIN_VALUES) <= {*answers, "Schedule"}
    for name in classes - set(PLAIN_VALUES):
        assert hasattr(getattr(po, name), "_repr_html_"), name


def test_notebook_table(result):
    """The HTML names problem, solver and value, escaped."""
    html = result._repr_html_()
    assert html.startswith("<table>")
    assert "heft" in html
    assert result.summary()["makespan"] in html


def test_picture(problem, result):
    """A result draws itself; one read from a file asks for its problem."""
    pytest.importorskip("matplotlib")
    assert problem.name in result.plot().axes[0].get_title()
    copy = from_dict(to_dict(result))
    with pytest.raises(InputError, match="give its problem"):
        copy.plot()
    assert problem.name in copy.plot(problem).axes[0].get_title()


def test_picture_of_a_period():
    """Where the solution is no schedule in time, value and bound are drawn over the search."""
    pytest.importorskip("matplotlib")
    problem = po.PlacementProblem.from_edges(
        [[3, 3], [2, 2], [4, 4]], [(0, 1, 1), (1, 2, 1)], objective="period"
    )
    axes = po.solve(problem, "ideal-dp", seconds=2).plot().axes[0]
    assert "seconds" in axes.get_xlabel()


def test_frame(problem, result):
    """A row per op with the times of the execution that the value holds for."""
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame["op"]) == list(problem.op_names)
    assert frame["finish_seconds"].max() == pytest.approx(result.seconds)
    assert set(frame["device"]) <= set(problem.device_names)


def test_frame_of_a_pipeline():
    """A row per block and micro-batch."""
    pytest.importorskip("pandas")
    pipeline = po.load("shape:V")
    result = po.solve(pipeline, "1f1b", seconds=2)
    frame = result.to_frame()
    assert len(frame) == pipeline.num_blocks * result.solution.micro_batches
    assert frame["finish_seconds"].max() == pytest.approx(
        result.solution.makespan * pipeline.tick_seconds
    )
