"""From `placeopt schedule` of a module to two processes that run it: the cut and the schedule are
read back from their files.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest
from gloo_ranks import run_ranks

from placeopt.cli import main

TESTS = Path(__file__).resolve().parents[1]
COUNT = 4
SOURCE = "torch:model.py:make"


def run(*words: str) -> int:
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a GPT-2-like module of two layers, in which commands run."""
    pytest.importorskip("torch")
    text = (TESTS / "user_models.py").read_text()
    (tmp_path / "model.py").write_text(f"{text}\n\ndef make():\n    return gpt(layers=2)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_on_two_ranks(folder):
    """The exported pipeline gives the loss and the gradients of the unsplit module."""
    import torch

    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    module, (ids,) = made.make()
    torch.manual_seed(0)
    inputs = torch.cat([ids.roll(turn, -1) for turn in range(COUNT)])
    output = module(inputs)
    target = torch.randint(0, output.shape[-1], output.shape[:-1])
    loss = torch.nn.functional.cross_entropy(
        output.flatten(0, -2), target.flatten(), reduction="sum"
    )
    loss.backward()
    torch.save({"inputs": inputs, "target": target}, folder / "data.pt")
    outputs = run_ranks(2, folder, "exported", folder / "pipeline", folder / "data.pt")
    assert float("".join(outputs)) == pytest.approx(float(loss.detach()), rel=1e-5)
    gradients = torch.load(folder / "pipeline" / "gradients0.pt") | torch.load(
        folder / "pipeline" / "gradients1.pt"
    )
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "solver", "file", "stages"),
    [
        ("V", "repetend", "schedule.torch.csv", 2),
        pytest.param("wave", "repetend", "schedule.json", 4, marks=pytest.mark.slow),
    ],
)
def test_a_cut_and_its_schedule_run_with_the_loss_of_the_unsplit_module(
    folder, capsys, shape, solver, file, stages
):
    """`schedule` writes cut.json; `export` reads it with the schedule's CSV or JSON; two processes
    give the same loss.
    """
    words = (
        "schedule",
        SOURCE,
        "--cluster",
        "2xA100",
        "--micro-batches",
        str(COUNT),
        "--shape",
        shape,
        "--solver",
        solver,
    )
    assert run(*words, "--seconds", "10", "--out", "out") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "forward ms" in printed
    assert "activations" in printed
    cut = json.loads(Path("out/cut.json").read_text())
    assert set(cut["device"].values()) == {"gpu0", "gpu1"}
    assert set(cut["stage"].values()) == set(range(stages))
    words = (
        "export",
        "out/cut.json",
        "--to",
        "torch-pipeline",
        "--model",
        SOURCE,
        "--schedule",
        f"out/{file}",
    )
    assert run(*words, "--out", "pipeline") == 0, capsys.readouterr().err
    told = json.loads(Path("pipeline/pipeline.json").read_text())
    assert (len(told["stages"]), told["micro_batches"]) == (stages, COUNT)
    rows = list(csv.reader(Path("out/schedule.torch.csv").read_text().splitlines()))
    assert rows == list(csv.reader(Path("pipeline/schedule.csv").read_text().splitlines()))
    check_on_two_ranks(folder)


def test_a_schedule_of_another_cut_and_options_beside_a_schedule_are_refused(folder, capsys):
    """Swapped ranks, and a number of micro-batches beside a schedule that has its own, are one line
    each.
    """
    assert (
        run("schedule", SOURCE, "--cluster", "2xA100", "-n", "2", "-s", "1f1b", "--out", "out") == 0
    )
    first, second = Path("out/schedule.torch.csv").read_text().splitlines()
    Path("swapped.csv").write_text(f"{second}\n{first}\n")
    words = (
        "export",
        "out/cut.json",
        "--to",
        "torch-pipeline",
        "--model",
        SOURCE,
        "--out",
        "pipeline",
        "--schedule",
    )
    capsys.readouterr()
    assert run(*words, "swapped.csv") == 2
    assert "its stages are on the ranks [1, 0]" in capsys.readouterr().err
    assert run(*words, "out/schedule.torch.csv", "--micro-batches", "3") == 2
    assert "--micro-batches: the schedule that is given says what runs" in capsys.readouterr().err
    assert not Path("pipeline").exists()
