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
from placeopt.solving.registry import register

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPT = "gen:gpt2?layers=2&hidden=64&heads=2&vocab=500&seq=32&detail=coarse"

CONTRACT = (
    "period",
    "period_bound",
    "period_status",
    "makespan",
    "micro_batches",
    "peak_memory",
    "bubble_period",
    "bubble_wall",
    "runtime",
    "problem",
    "solver",
    "objective",
    "value",
    "seconds",
    "lower_bound",
    "bound_method",
    "gap",
    "status",
    "stop_reason",
    "evaluations",
    "seed",
)


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


def test_schedule_prints_its_contract_and_writes_every_export(
    tmp_path: Path, run: Callable[..., Any]
):
    """One object with the agreed names; picture, trace, starts, PyTorch CSV and JSON in the
    folder.
    """
    found = run(
        "schedule", "shape:V?devices=4&memory=4", "--micro-batches", "8", "--out", str(tmp_path)
    )
    assert set(CONTRACT) <= set(found)
    assert (found["period"], found["period_bound"], found["period_status"]) == (4, 4, "optimal")
    assert found["micro_batches"] == 8
    assert found["peak_memory"] == [4, 3, 2, 1]
    assert found["skipped"] == []
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"schedule{end}" for end in (".png", ".trace.json", ".starts.csv", ".torch.csv", ".json")
    }
    rows = list(csv.DictReader((tmp_path / "schedule.starts.csv").open()))
    assert len(rows) == 8 * 8
    events = json.loads((tmp_path / "schedule.trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 8 * 8
    # One tick is shown as one microsecond where ticks have no unit.
    assert (
        max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
        == found["makespan"]
    )


@pytest.mark.parametrize("source", [("shape:V?devices=4&memory=3",), (GPT, "--cluster", "2xA100")])
def test_the_schedule_that_is_written_is_read_back(
    tmp_path: Path, run: Callable[..., Any], source: tuple[str, ...]
):
    """schedule.json of --out is what --initial takes: with no time at all, the same makespan comes
    back.
    """
    first = run("schedule", *source, "-n", "6", "-s", "repetend", "-t", "5", "--out", str(tmp_path))
    again = run(
        "schedule",
        *source,
        "-n",
        "6",
        "-s",
        "repetend",
        "-t",
        "0",
        "--initial",
        str(tmp_path / "schedule.json"),
    )
    assert again["makespan"] <= first["makespan"]


def test_several_solvers_are_compared_and_refusals_are_given_with_reasons(
    tmp_path: Path, run: Callable[..., Any]
):
    """With several solvers: results and the best; what PyTorch cannot run is left out with the
    reason.
    """
    found = run(
        "schedule", "shape:V?devices=4&memory=3", "-s", "repetend,tessel", "-n", "6", "-k", "3"
    )
    assert [result["solver"] for result in found["results"]] == ["repetend", "tessel"]
    assert found["best"] == 0
    assert found["results"][0]["period"] == pytest.approx(16 / 3)
    assert "larger_pattern" not in found["results"][0]
    found = run("schedule", "shape:M", "-n", "4", "--out", str(tmp_path))
    assert any("4 ranks at once" in reason for reason in found["skipped"])


def test_solvers_that_do_not_suit_the_shape_are_skipped_with_one_line(
    capsys: pytest.CaptureFixture[str],
):
    """The table has the solvers that found a schedule; the others have a line with the reason."""
    code, out, _ = output(
        capsys, "schedule", "shape:V?devices=3", "-s", "1f1b,zb-v,chimera,repetend", "-n", "4"
    )
    assert code == 0
    skipped = [line.split(":")[0] for line in out.splitlines() if line.startswith("skipped ")]
    assert skipped == ["skipped zb-v", "skipped chimera"]
    table = out[: out.index("skipped")]
    assert "chimera" not in table
    assert "1f1b" in table


@register("late-pipeline", kind="pipeline", objectives=("period",))
class Late:
    """Raises."""

    name = "late-pipeline"

    def search(self, problem, tracker):
        """Fail."""
        raise RuntimeError("out of order")


@register("unmade-pipeline", kind="pipeline", objectives=("period",))
class Unmade:
    """Cannot be made."""

    name, kernels = "unmade-pipeline", 5


@pytest.mark.parametrize(
    ("name", "why"), [("late-pipeline", "out of order"), ("unmade-pipeline", "cannot be read")]
)
def test_a_solver_that_fails_takes_no_other_along(
    name: str, why: str, capsys: pytest.CaptureFixture[str]
):
    """The others' schedules are shown, and why one has none; alone it ends with exit code 3."""
    source = "shape:V?devices=2"
    code, out, _ = output(capsys, "schedule", source, "-s", f"{name},1f1b", "-n", "4")
    assert (code, f"skipped {name}: " in out, why in out) == (0, True, True)
    code, out, err = output(capsys, "schedule", source, "-s", name, "-n", "4")
    assert (code, out, err.count("\n")) == (3, "", 1)


def test_optimal_for_one_size_says_what_two_micro_batches_per_repetend_do(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
):
    """With room for 3 micro-batches K = 1 repeats every 8 ticks, and two together do better: the
    report says so.
    """
    arguments = ("schedule", "shape:V?devices=4&memory=3", "-n", "8", "--seconds", "20", "-k", "1")
    found = run(*arguments)
    assert (found["period"], found["repetend_size"]) == (8, 1)
    assert found["larger_pattern"]["size"] == 2
    assert found["larger_pattern"]["period"] < 8
    assert found["period_status"] == "optimal for K = 1, K = 2 is shorter"
    out = output(capsys, *arguments)[1]
    assert "not the best pattern: K = 2 repeats every" in out
    assert "larger_pattern" not in run("schedule", "shape:V?devices=4&memory=4", "-n", "8")


def test_patterns_grow_until_the_bound_for_all_is_met(run: Callable[..., Any]):
    """Without a size, three micro-batches share 16 ticks where one takes 8, which is best of all."""
    found = run("schedule", "shape:V?devices=4&memory=3", "-n", "9", "--seconds", "20")
    assert (found["period"], found["repetend_size"]) == (16 / 3, 3)
    assert found["period_status"] == "optimal"
    assert "larger_pattern" not in found
    fixed = run("schedule", "shape:V?devices=2", "-n", "4", "--option", "period=5")
    assert (fixed["period"], fixed["repetend_size"]) == (5, 1)


def test_a_model_is_reported_in_ms_and_gib_with_a_table_of_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Stages name their ops, devices and times; the cut is a placement file that tells them; memory
    is told by what it is.
    """
    code, out, err = output(
        capsys,
        "schedule",
        GPT,
        "--cluster",
        "2xA100",
        "-n",
        "4",
        "-s",
        "1f1b,zb-v",
        "--out",
        str(tmp_path),
    )
    assert code == 0, err
    for words in (
        "period ms",
        "forward ms",
        "resident GiB",
        "optimizer states",
        "activations",
        "memory GiB",
        "skipped zb-v",
    ):
        assert words in out
    cut = json.loads((tmp_path / "cut.json").read_text())
    problem = po.load(GPT, "2xA100")
    assert set(cut["device"]) == set(cut["stage"]) == set(problem.op_names)
    assert all(cut["device"][op] == f"gpu{stage}" for op, stage in cut["stage"].items())


def test_json_tells_the_stages_of_a_model(run: Callable[..., Any]):
    """The stages' times add up to the work of the devices, their ops to the model's, their weights
    to what is resident.
    """
    found = run("schedule", GPT, "--cluster", "2xA100", "-n", "4", "-s", "1f1b")
    stages = found["stages"]
    assert [row["stage"] for row in stages] == [0, 1]
    assert sum(row["num_ops"] for row in stages) == po.load(GPT, "2xA100").num_ops
    assert [row["resident"] for row in stages] == found["resident_per_device"]
    assert sum(found["resident_per_device"]) == int(
        po.load(GPT, "2xA100", training=True).resident.sum()
    )
    assert max(row["forward"] + row["backward"] for row in stages) <= found["period"]


@pytest.mark.parametrize("shape", ["wave", "M"])
def test_shapes_of_a_model_are_selectable(tmp_path: Path, run: Callable[..., Any], shape: str):
    """`--shape` cuts otherwise: a wave has two stages per device, M ops on all devices, which no
    placement can say.
    """
    found = run(
        "schedule",
        f"{GPT}&tied=0"
        if shape == "wave"
        else "gen:gpt2?layers=4&hidden=64&heads=2&vocab=50000&seq=32&detail=coarse&tied=0",
        "--cluster",
        "2xA100",
        "-n",
        "4",
        "--shape",
        shape,
        "--out",
        str(tmp_path),
        "-t",
        "5",
    )
    if shape == "wave":
        assert [row["device"] for row in found["stages"]] == ["gpu0", "gpu1", "gpu1", "gpu0"]
        assert (tmp_path / "cut.json").is_file()
    else:
        assert "all" in {row["device"] for row in found["stages"]}
        assert any(
            reason.startswith("cut.json: ops that run on all devices")
            for reason in found["skipped"]
        )


def test_shapes_lists_the_lower_bounds(run: Callable[..., Any]):
    """On 4 devices the shapes have the published bounds."""
    rows = {row["shape"]: (row["train"], row["infer"]) for row in run("shapes")["shapes"]}
    expected = {"V": (4, 1), "X": (8, 2), "M": (6, 2), "NN": (8, 3), "K": (6, 2)}
    assert {name: rows[name] for name in expected} == expected


def test_joint_choice_names_the_runner_up(
    tmp_path: Path, run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
):
    """--joint prints the best and the runner-up with the reason why it lost, and writes the best
    schedule.
    """
    arguments = (
        "schedule",
        GPT,
        "--cluster",
        "2xA100",
        "--joint",
        "--batch",
        "8",
        "--micro-batch-sizes",
        "1,2",
        "--seconds",
        "1",
        "--out",
        str(tmp_path),
    )
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
        ([GPT, "--cluster", "2xA100", "--joint", "--initial", "x"], "--initial and"),
        ([GPT, "--cluster", "2xA100", "--batch", "3"], "--batch 3: expected --joint"),
        (["shape:V", "--micro-batch-sizes", "3"], "expected --joint beside it"),
        (
            [GPT, "--cluster", "2xA100", "--joint", "--micro-batch-sizes", "a"],
            "--micro-batch-sizes: expected whole numbers",
        ),
        (
            [GPT, "--cluster", "2xA100", "--joint", "--memory-limit", "4GB,4GB"],
            "expected bytes per device",
        ),
        ([GPT], "give its devices with --cluster"),
        (["shape:V", "--cluster", "2xA100"], "brings its own devices"),
        (["shape:Q"], "shape 'Q' is not known"),
        (["shape:V", "--capacity", "x"], "--capacity: expected whole numbers"),
        (["shape:V", "--capacity", "4.5"], "--capacity: expected whole numbers"),
        (["shape:V", "--capacity", "inf"], "--capacity: expected whole numbers"),
        (
            [GPT, "--cluster", "2xA100", "--capacity", "4"],
            "--capacity is for shapes and tables",
        ),
        ([GPT, "--cluster", "2xA100", "--memory-limit", "1MiB"], "bytes for weights"),
        (
            [GPT, "--cluster", "2xA100", "--memory-limit", "1GB,1GB,1GB"],
            "one for each of 2 devices",
        ),
        ([GPT, "--cluster", "2xA100", "--shape", "Q"], "--shape: expected one of V, wave"),
        ([GPT, "--cluster", "2xA100", "--shape", "V,X"], "give --joint to try several"),
        (["shape:V", "--shape", "wave"], "--shape is for models with --cluster"),
        (["nowhere.toml"], "is no file and no shape"),
        (
            ["shape:wave?devices=3&memory=1"],
            "proved infeasible: not even one micro-batch fits; the smallest feasible",
        ),
        (["shape:M", "-s", "gpipe"], "4 devices at once"),
    ],
)
def test_wrong_input_ends_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    """Exit code 2 and one line that says what to change."""
    code, out, err = output(capsys, "schedule", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("memory", "size"), [(4, 1), (3, 3), (5, 1)])
def test_picture_frames_one_repetition_on_every_device(memory: int, size: int):
    """Every block of every micro-batch is drawn; a frame on each device spans at most a period and
    holds K runs of each.
    """
    pytest.importorskip("matplotlib")
    found = schedule(
        po.load_pipeline(f"shape:V?devices=4&memory={memory}"),
        size=size,
        micro_batches=12,
        num_workers=1,
        latency_seconds=0.2,
    )
    axes = draw_pipeline(found).axes[0]
    cells, frames = (
        [patch for patch in axes.patches if patch.get_gid() == kind]
        for kind in ("cell", "repetend")
    )
    assert len(cells) == 12 * 8
    assert len(frames) == 4
    for frame in frames:
        assert frame.get_width() <= found.repetend.period
        left, right = frame.get_x(), frame.get_x() + frame.get_width()
        top, bottom = frame.get_y(), frame.get_y() + frame.get_height()
        inside = [
            c
            for c in cells
            if left <= c.get_x()
            and c.get_x() + c.get_width() <= right
            and top <= c.get_y()
            and c.get_y() + c.get_height() <= bottom
        ]
        assert len(inside) == 2 * size
    assert {text.get_text() for text in axes.texts} == {str(j) for j in range(12)}


def test_a_picture_of_32_micro_batches_is_legible():
    """Passes have lanes of their own, every cell has its number and room for it, and memory fills
    its panel.
    """
    backend = pytest.importorskip("matplotlib.backends.backend_agg")
    problem = po.load_pipeline("shape:V?devices=4&memory=400&split=1")
    figure = draw_pipeline(schedule(problem, micro_batches=32, num_workers=1, latency_seconds=0.2))
    gantt, memory = figure.axes[:2]
    cells = [patch for patch in gantt.patches if patch.get_gid() == "cell"]
    assert len(cells) == 32 * 12 == len([text for text in gantt.texts if text.get_text().isdigit()])
    rows = {(round(cell.get_y() % 1, 6), cell.get_facecolor()) for cell in cells}
    assert len(rows) == len({place for place, _ in rows}) == 3  # a lane for each of F, I and W
    canvas = backend.FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    wide = {round(cell.get_window_extent(renderer).width, 3) for cell in cells}
    widest = max(text.get_window_extent(renderer).width for text in gantt.texts)
    assert widest <= min(wide)
    held = max(line.get_ydata().max() for line in memory.lines)
    assert (
        held / memory.get_ylim()[1] > 0.6
    )  # a capacity of 400 units does not press the curves flat
    assert figure.get_size_inches()[0] <= 34
    assert [patch.get_gid() for patch in gantt.patches].count("steady") == 1
