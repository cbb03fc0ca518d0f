"""Export to PyTorch's pipelining runtime."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from gloo_ranks import run_ranks

import placeopt as po
from placeopt.schedules import Block, PipelineProblem, schedule
from placeopt.schedules.files import (
    ranks_of_stages,
    read_torch_csv,
    torch_rows,
    write_torch_csv,
)

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 4


def test_exported_rows_are_strict_compute_only():
    """Rank 0 of a searched V schedule reads as the format's documentation shows it."""
    found = schedule(po.load_pipeline("shape:V?devices=4&memory=4"), micro_batches=8)
    rows = torch_rows(found)
    expected = "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7"
    assert ",".join(rows[0]) == expected
    assert len(rows) == 4
    assert all(len(row) == 16 for row in rows)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("shape:V?mode=infer", "forward-only"),
        ("shape:M", "4 ranks at once"),
        ("shape:NN", "4 ranks at once"),
        ("shape:K", "4 ranks at once"),
        ("shape:X", "2 independent chains"),
    ],
)
def test_refuses_what_the_runtime_cannot_run(source: str, reason: str):
    """Forward-only schedules, blocks on several ranks and several chains are refused with the
    reason.
    """
    found = schedule(po.load_pipeline(source), micro_batches=4, latency_seconds=0)
    with pytest.raises(po.InputError, match=reason):
        torch_rows(found)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_exported_schedules_run_in_pytorch_with_the_gradients_of_the_unpipelined_model(
    tmp_path: Path,
):
    """A V schedule, one with I and W, and ZB-V run on four gloo processes; gradients equal the
    plain model's.
    """
    made = {
        "v": schedule(po.load_pipeline("shape:V?devices=4&memory=4"), micro_batches=8),
        "iw": schedule(po.load_pipeline("shape:V?devices=4&memory=4&split=1"), micro_batches=8),
        "zbv": schedule(po.load_pipeline("shape:wave?devices=4&split=1"), "zb-v", micro_batches=8),
    }
    paths = []
    for name, found in made.items():
        paths.append(str(tmp_path / f"{name}.csv"))
        write_torch_csv(found, paths[-1])
    for out in run_ranks(RANKS, tmp_path, "schedules", 8, *paths):
        assert out.split() == ["same"] * len(paths)


@pytest.mark.parametrize("solver", ["repetend", "1f1b"])
def test_a_csv_is_read_back(tmp_path: Path, solver: str):
    """What is written is what is read; stages keep their ranks."""
    path = tmp_path / "schedule.csv"
    found = schedule(po.load_pipeline("shape:V?devices=3&split=1"), solver, micro_batches=5)
    write_torch_csv(found, path)
    rows = read_torch_csv(path)
    assert rows == torch_rows(found)
    assert ranks_of_stages(rows) == [0, 1, 2]


def test_devices_without_a_stage_are_no_ranks():
    """A cut that leaves the first of three devices out runs on two ranks."""
    blocks = [
        Block("F0", "F", (1,), 1, (1,), (), 0),
        Block("F1", "F", (2,), 1, (1,), (("F0", 0),), 1),
        Block("B1", "B", (2,), 2, (-1,), (("F1", 0),), 1),
        Block("B0", "B", (1,), 2, (-1,), (("B1", 0),), 0),
    ]
    problem = PipelineProblem.from_blocks("two of three", blocks, ("a", "b", "c"))
    rows = torch_rows(schedule(problem, "1f1b", micro_batches=3))
    assert [row[0] for row in rows] == ["0F0", "1F0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "received an empty file"),
        (" , \n,,\n", "received an empty file"),
        ("0F0,zero\n", "received 'zero'"),
        ("0F0,0B0\n0F1,0B1\n", "stage 0 is on the ranks 0 and 1"),
        ("0F0,0B0,0F1\n", "micro-batch 1: expected F and then B"),
        ("0B0,0F0\n", "expected F and then B"),
        ("1F0,1B0\n", "stage 0, micro-batch 0"),
    ],
)
def test_damaged_csv_is_one_line(tmp_path: Path, text: str, reason: str):
    """A cell, a rank or a pass that is wrong is named."""
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with pytest.raises(po.InputError, match=reason):
        read_torch_csv(path)
