"""What Results show of themselves: short words, a table in a notebook, a picture, a data frame."""

from __future__ import annotations

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


def test_objects_are_short(problem, result):
    """No object prints its arrays in full."""
    pipeline = po.load("shape:V")
    for thing in (
        problem,
        result,
        result.solution,
        pipeline,
        po.generate("ffnn"),
        po.make_cluster("2xA100+2xL4"),
    ):
        assert len(repr(thing)) < 330
        assert "\n" not in repr(thing)
    assert "makespan" in repr(result)
    assert "gap" in repr(result)
    assert "2 A100 + 2 L4" in repr(po.make_cluster("2xA100+2xL4"))


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
