"""Export to PyTorch's pipelining runtime."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import placeopt as po
from placeopt.schedules import schedule
from placeopt.schedules.torch_csv import torch_rows, write_torch_csv

WORKER = Path(__file__).with_name("torch_worker.py")
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
    """Forward-only schedules, blocks on several ranks and several chains are refused with the reason."""
    found = schedule(po.load_pipeline(source), micro_batches=4)
    with pytest.raises(po.InputError, match=reason):
        torch_rows(found)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_exported_schedules_run_in_pytorch_with_the_gradients_of_the_unpipelined_model(tmp_path: Path):
    """A V schedule, one with I and W, and ZB-V run on four gloo processes; gradients equal the plain model's."""
    made = {
        "v": schedule(po.load_pipeline("shape:V?devices=4&memory=4"), micro_batches=8),
        "iw": schedule(po.load_pipeline("shape:V?devices=4&memory=4&split=1"), micro_batches=8),
        "zbv": schedule(po.load_pipeline("shape:wave?devices=4&split=1"), "zb-v", micro_batches=8),
    }
    paths = []
    for name, found in made.items():
        paths.append(str(tmp_path / f"{name}.csv"))
        write_torch_csv(found, paths[-1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(RANKS), str(tmp_path / "init"), "8", *paths],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    outputs = []
    try:
        outputs = [worker.communicate(timeout=200) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (out, err) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, err[-2000:]
        assert out.split() == ["same"] * len(paths)
