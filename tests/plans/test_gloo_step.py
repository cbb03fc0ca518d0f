"""A plan that was exported runs: two stages of two replicas on local gloo processes lose what one
process loses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from placeopt.planning.launch_files import torch_configuration
from placeopt.planning.plan_model import plan, plan_problem
from placeopt.plans.plan import ReplicaGroup
from placeopt.plans.step_costs import Load
from placeopt.plans.step_problem import DevicePool

SCRIPT = Path(__file__).resolve().parents[2] / "results" / "plans" / "gloo_gpt2.py"
MODEL = "gen:gpt2?detail=coarse&layers=3&hidden=32&heads=2&seq=8&vocab=60&tied=0"


@pytest.mark.slow
def test_losses_are_those_of_one_process(tmp_path):
    """Two stages of two replicas, found by the planner where one stage does not fit, keep the
    losses of one process.
    """
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    problem = plan_problem(
        MODEL, "4xA100", 8, recompute=False, schedules=("1f1b",), sharded=False
    ).replace(data_degrees=(2,), micro_batches=(1,), max_stages=2)
    kind = problem.pools[0].kind
    needed = [
        problem.costs.memory_bytes(Load(0, last, 1, 1, False), ReplicaGroup(kind, 1, 1))
        for last in (3, problem.costs.num_layers)
    ]
    pool = DevicePool(kind, 4, 1, max(needed) - 1)
    found = plan(problem.replace(pools=(pool,)), "", 0, runner_ups=0, seconds=60.0)
    assert (len(found.plan.stages), found.plan.stages[0].data) == (2, 2)
    config, out = tmp_path / "torch.json", tmp_path / "losses.json"
    config.write_text(json.dumps(torch_configuration(found)))
    size = ["--hidden", "32", "--heads", "2", "--vocab", "60", "--seq", "8"]
    subprocess.run(
        [sys.executable, str(SCRIPT), str(config), str(out), *size],
        check=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    losses = json.loads(out.read_text())
    assert len(losses["plan"]) == 3
    assert losses["plan"] == pytest.approx(losses["alone"], rel=1e-5)
