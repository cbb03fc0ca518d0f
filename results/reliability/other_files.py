"""Small good files that are no graphs, and what reads them: placements, plans, costs, traces,
tables, studies, proofs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.study import load_study
from placeopt.instances.clusters import EXAMPLE, make_cluster
from placeopt.instances.op_cost_file import read_costs
from placeopt.instances.traces import read_trace
from placeopt.io.placement_file import read_placement
from placeopt.io.serialize import load as load_saved, to_dict
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.plans.piper_json import read_piper
from placeopt.schedules.files import read_torch_csv
from placeopt.schedules.sources import problem_to_dict, read_table
from placeopt.sharding.contest_format import read as read_sharding

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
STUDY = """name = "grid"
instances = ["gen:ffnn"]
clusters = ["uniform:2"]
seeds = [1, 2]
evaluations = 5
solvers = [{name = "heft"}]
"""
SHARDING = {
    "problem": {
        "name": "s",
        "nodes": {
            "intervals": [[0, 2], [1, 3]],
            "costs": [[1, 2], [3, 4]],
            "usages": [[1, 1], [2, 2]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3]]},
        "usage_limit": 10,
    }
}
COSTS = {
    "format": "placeopt/costs",
    "version": 1,
    "model": "g",
    "device": {"kind": "cpu", "family": "cpu"},
    "ops": {name: {"seconds": 0.001, "how": "measured"} for name in "abc"},
}
KINETO = {
    "traceEvents": [
        {
            "cat": "cpu_op",
            "ph": "X",
            "name": "aten::mm",
            "ts": 1,
            "dur": 2,
            "pid": 1,
            "tid": 1,
            "args": {},
        },
        {"cat": "kernel", "ph": "X", "name": "gemm", "ts": 2, "dur": 1, "args": {"External id": 3}},
    ]
}
CHAKRA = {
    "schema": "1.1.0-chakra.0.0.4",
    "nodes": [
        {"id": 1, "name": "aten::mm", "ctrl_deps": 0, "dur": 5},
        {"id": 2, "name": "gemm", "ctrl_deps": 1, "dur": 3},
    ],
}
ONNXRUNTIME = [
    {"cat": "Session", "name": "model_run", "ts": 0, "dur": 9},
    {"cat": "Node", "name": "a_kernel_time", "ts": 1, "dur": 3, "args": {"op_name": "Relu"}},
]
CHOICE = {"timePerSample": 1.0, "parameterSize": 2.0, "memoryUsageA": 1.0, "memoryUsageB": 1.0}
PIPER = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 1e9,
    "bandwidth": 1e9,
    "mbsInBatch": 4,
    "nodes": [
        {"id": i, "name": f"n{i}", "TMPCs": {"1": [{**CHOICE, "syncTimeFw": {}, "syncTimeBw": {}}]}}
        for i in range(2)
    ],
    "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 1.0}],
}
TABLE = "gid,kind,span,devices,preds,mem\na,F,1,0,,1\nb,B,2,0,a,-1\n"


def graph() -> OpGraph:
    """A chain of three ops."""
    return OpGraph.from_edges("g", ["a", "b", "c"], [(0, 1), (1, 2)], [4, 5], flops=np.arange(3))


@cache
def problem() -> Any:
    """The chain on two devices."""
    return po.load(graph(), "uniform:2")


@cache
def _checker() -> Any:
    spec = importlib.util.spec_from_file_location("check_proof", ROOT / "tools" / "check_proof.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check_proof(path: Path) -> None:
    """Check a proof; what the checker refuses is one line."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = _checker().main(str(path))
    if code:
        raise InputError(said.getvalue().strip())


def samples() -> dict[str, tuple[str, bytes, Callable[[Path], object]]]:
    """Return name -> (file name, content, reader)."""
    result = po.solve(problem(), "heft")
    table = problem_to_dict(po.load("shape:V?devices=2"))
    texts: dict[str, tuple[str, str, Callable[[Path], object]]] = {
        "cluster": ("c.toml", EXAMPLE, make_cluster),
        "study": ("s.toml", STUDY, load_study),
        "block table": ("t.json", json.dumps(table), lambda path: read_table(str(path))),
        "block table, CSV": ("t.csv", TABLE, lambda path: read_table(str(path))),
        "torch schedule": ("t.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", read_torch_csv),
        "placement": (
            "p.json",
            json.dumps({"device": {"a": "device0", "b": "device0", "c": "device1"}}),
            _placement,
        ),
        "placement, CSV": (
            "p.csv",
            "op,device,priority\na,device0,0\nb,device0,1\nc,device1,2\n",
            _placement,
        ),
        "result": ("r.json", json.dumps(to_dict(result)), load_saved),
        "problem": ("q.json", json.dumps(to_dict(problem())), load_saved),
        "sharding": ("s.json", json.dumps(SHARDING), read_sharding),
        "costs": ("c.json", json.dumps(COSTS), lambda path: read_costs(path, graph())),
        "Kineto": ("t.json", json.dumps(KINETO), read_trace),
        "Chakra": ("t.json", json.dumps(CHAKRA), read_trace),
        "ONNX Runtime profile": ("t.json", json.dumps(ONNXRUNTIME), read_trace),
        "Piper": ("p.json", json.dumps(PIPER), read_piper),
    }
    found = {name: (file, text.encode(), read) for name, (file, text, read) in texts.items()}
    archive = ROOT / "results" / "proofs" / "archive" / "chain-mm.json.gz"
    return {**found, "proof": ("p.json.gz", archive.read_bytes(), _check_proof)}


def _placement(path: Path) -> object:
    return read_placement(path, problem())


__all__ = ["samples"]
