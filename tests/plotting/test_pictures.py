"""What pictures say: names, units, bubbles, and a legend of what can be seen."""

from __future__ import annotations

import pytest

import placeopt as po
from placeopt.plotting.gantt import colour_of_types, comparison_figure, gantt_figure
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.plotting.plans import plan_figure
from placeopt.plotting.style import ATTENTION

pytest.importorskip("matplotlib")

TYPES = ("embedding", "self_attention", "linear", "reshape", "linear")


@pytest.fixture
def run():
    """A chain on one device, in which the reshape takes no time and attention a little."""
    compute = [[4, 4], [1, 1], [6, 6], [0, 0], [6, 6]]
    edges = [(i, i + 1, 3) for i in range(4)]
    problem = po.PlacementProblem.from_edges(compute, edges, op_types=TYPES)
    return po.evaluate(problem, po.Placement([0] * 5))


def legend(figure) -> list[str]:
    """The words of a figure's legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_attention_has_its_colour_whatever_else_is_drawn(run):
    """Attention is drawn in its own colour, also where other types take more time."""
    colours = colour_of_types([run])
    assert colours["self_attention"] == ATTENTION
    assert list(colours.values()).count(ATTENTION) == 1
    many = tuple(f"type{i}" for i in range(40))
    problem = po.PlacementProblem.from_edges(
        [[9]] * 40 + [[1]], [(0, 1, 1)], op_types=(*many, "Attention")
    )
    assert colour_of_types([po.evaluate(problem, po.Placement([0] * 41))])["Attention"] == ATTENTION


def test_the_legend_names_what_can_be_seen(run):
    """Ops without length and transfers that do not happen are not in the legend."""
    assert legend(gantt_figure(run)) == ["self_attention", "linear", "embedding"]
    apart = po.evaluate(run.problem, po.Placement([0, 0, 1, 1, 1]))
    assert legend(gantt_figure(apart))[-1] == "transfer"
    assert legend(comparison_figure([("one", run), ("two", apart)]))[-1] == "transfer"


def test_a_pipeline_names_devices_stages_lanes_units_and_bubbles():
    """Rows carry the device and its stage, lanes their pass, the title both bubbles."""
    schedule = po.solve(po.load("shape:V?devices=2"), "1f1b").solution
    axis = draw_pipeline(schedule).axes[0]
    assert [x.get_text() for x in axis.get_yticklabels()] == [
        "device0\nstage 0",
        "device1\nstage 1",
    ]
    title = axis.get_title(loc="left")
    mean = sum(schedule.bubble_wall) / 2
    assert f"{mean:.1%} of the wall clock" in title
    assert f"{schedule.bubble_period:.1%} of a period" in title
    lanes = axis.child_axes[0].get_yticklabels()
    assert [x.get_text() for x in lanes] == ["forward", "backward"] * 2


def test_a_plan_names_stages_units_and_the_bubble():
    """Rows carry the stage, its layers and devices; the axes their units."""
    planned = po.plan("gen:gpt2?layers=2&detail=coarse", "2xV100", 4, seconds=1, runner_ups=0)
    figure = plan_figure(planned)
    time, memory = figure.axes
    assert time.get_yticklabels()[0].get_text().startswith("stage 0: layers 0-")
    assert "of the wall clock" in time.get_title()
    assert time.get_xlabel() in ("time (s)", "time (ms)")
    assert "GiB" in memory.get_xlabel()
    assert legend(figure)[:2] == ["forward", "backward"]
