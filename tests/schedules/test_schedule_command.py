"""The schedule and shapes commands, and the pictures they draw."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPT = "gen:gpt2?layers=2&hidden=64&heads=2&vocab=500&seq=32&detail=coarse"

CONTRACT = ("period", "period_bound", "period_status", "makespan", "micro_batches", "peak_memory", "bubble_period",
            "bubble_wall", "runtime", "problem", "solver", "objective", "value", "seconds", "lower_bound",
            "bound_method", "gap", "status", "stop_reason", "evaluations", "seed")  # fmt: skip


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Run a command; return (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command with --json and returns its object."""

    def command(*arguments: str) -> Any:
        code, out, err = output(capsys, *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return command


def test_schedule_prints_its_contract_and_writes_every_export(tmp_path: Path, run: Callable[..., Any]):
    """One object with the agreed names; picture, trace, starts, PyTorch CSV and JSON in the folder."""
    found = run("schedule", "shape:V?devices=4&memory=4", "--micro-batches", "8", "--out", str(tmp_path))
    assert set(CONTRACT) <= set(found)
    assert (found["period"], found["period_bound"], found["period_status"]) == (4, 4, "optimal")
    assert found["micro_batches"] == 8
    assert found["peak_memory"] == [4, 3, 2, 1]
    assert found["skipped"] == []
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"schedule{end}" for end in (".png", ".trace.json", ".starts.csv", ".torch.csv", ".json")}
    rows = list(csv.DictReader((tmp_path / "schedule.starts.csv").open()))
    assert len(rows) == 8 * 8
    events = json.loads((tmp_path / "schedule.trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 8 * 8
    # One tick is shown as one microsecond where ticks have no unit.
    assert max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") == found["makespan"]


def test_several_solvers_are_compared_and_refusals_are_given_with_reasons(tmp_path: Path, run: Callable[..., Any]):
    """With several solvers: results and the best; what PyTorch cannot run is left out with the reason."""
    found = run("schedule", "shape:V?devices=4&memory=3", "-s", "repetend,tessel", "-n", "6", "-k", "3")
    assert [result["solver"] for result in found["results"]] == ["repetend", "tessel"]
    assert found["best"] == 0
    assert found["results"][0]["period"] == pytest.approx(16 / 3)
    found = run("schedule", "shape:M", "-n", "4", "--out", str(tmp_path))
    assert any("4 ranks at once" in reason for reason in found["skipped"])


def test_shapes_lists_the_lower_bounds(run: Callable[..., Any]):
    """On 4 devices the shapes have the published bounds."""
    rows = {row["shape"]: (row["train"], row["infer"]) for row in run("shapes")["shapes"]}
    expected = {"V": (4, 1), "X": (8, 2), "M": (6, 2), "NN": (8, 3), "K": (6, 2)}
    assert {name: rows[name] for name in expected} == expected


def test_joint_choice_names_the_runner_up(tmp_path: Path, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]):
    """--joint prints the best and the runner-up with the reason why it lost, and writes the best schedule."""
    arguments = ("schedule", GPT, "--cluster", "2xA100", "--joint", "--batch", "8", "--micro-batch-sizes", "1,2",
                 "--seconds", "1", "--out", str(tmp_path))  # fmt: skip
    found = run(*arguments)
    assert set(CONTRACT) <= set(found)
    joint = found["joint"]
    assert joint["why"].startswith(joint["runner_up"]["title"])
    assert joint["best"]["step_seconds"] <= joint["runner_up"]["step_seconds"]
    assert joint["throughput"] == pytest.approx(8 / joint["best"]["step_seconds"])
    assert (tmp_path / "schedule.json").is_file()
    assert "runner-up: " in output(capsys, *arguments)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shape:V", "--joint"], "--joint is for models with --cluster"),
        ([GPT, "--cluster", "2xA100", "--joint", "--split"], "--joint chooses for itself"),
        ([GPT, "--cluster", "2xA100", "--joint", "--micro-batch-sizes", "a"], "--micro-batch-sizes: expected whole numbers"),
        ([GPT, "--cluster", "2xA100", "--joint", "--memory", "4,4"], "expected bytes per device"),
        ([GPT], "give its devices with --cluster"),
        (["shape:V", "--cluster", "2xA100"], "brings its own devices"),
        (["shape:Q"], "shape 'Q' is not known"),
        (["shape:V", "--memory", "x"], "--memory: expected whole numbers"),
        (["nowhere.toml"], "is no file and no shape"),
        (["shape:wave?devices=3&memory=1"], "proved infeasible: not even one micro-batch fits; the smallest feasible"),
        (["shape:M", "-s", "gpipe"], "4 devices at once"),
    ],
)
def test_wrong_input_ends_with_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    """Exit code 2 and one line that says what to change."""
    code, out, err = output(capsys, "schedule", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("memory", "size"), [(4, 1), (3, 3), (5, 1)])
def test_picture_frames_one_repetition_on_every_device(memory: int, size: int):
    """Every block of every micro-batch is drawn; a frame on each device spans at most a period and holds K runs of each."""
    pytest.importorskip("matplotlib")
    found = schedule(po.load_pipeline(f"shape:V?devices=4&memory={memory}"), size=size, micro_batches=12, num_workers=1)
    axes = draw_pipeline(found).axes[0]
    cells = [patch for patch in axes.patches if patch.get_facecolor()[3] > 0]
    frames = [patch for patch in axes.patches if patch.get_facecolor()[3] == 0]
    assert len(cells) == 12 * 8
    assert len(frames) == 4
    for frame in frames:
        assert frame.get_width() <= found.repetend.period
        left, right = frame.get_x(), frame.get_x() + frame.get_width()
        lane = frame.get_y() + frame.get_height() / 2
        inside = [c for c in cells if left <= c.get_x() and c.get_x() + c.get_width() <= right
                  and abs(c.get_y() + c.get_height() / 2 - lane) < 0.1]  # fmt: skip
        assert len(inside) == 2 * size
    assert {text.get_text() for text in axes.texts} == {str(j) for j in range(12)}
