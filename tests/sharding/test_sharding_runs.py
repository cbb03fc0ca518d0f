"""Layouts that run: DTensors on four gloo ranks, PartitionSpecs on eight host devices of jax."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import run_ranks

from placeopt.cli import main
from placeopt.model.errors import InputError
from placeopt.sharding.from_model import sharding_model
from placeopt.sharding.layout_table import pattern, summarised
from placeopt.sharding.layouts import partition_spec
from placeopt.sharding.problem import ShardingSolution

MODEL = Path(__file__).with_name("sharded_model.py")


@pytest.fixture
def shard(capsys, tmp_path):
    """Return how to shard the model within a limit on a mesh: the JSON that the command prints."""
    pytest.importorskip("torch")

    def run(mesh, limit, *words, model=f"{MODEL}:make"):
        count = 1
        for part in mesh.split("x"):
            count *= int(part)
        given = ("--mesh", mesh, "-c", f"{count}xA100", "--memory-limit", limit, "-t", "2")
        with pytest.raises(SystemExit) as stop:
            main(["shard", f"torch:{model}", *given, *words, "--out", str(tmp_path), "--json"])
        said = capsys.readouterr()
        assert stop.value.code == 0, said.err
        return json.loads(said.out)

    return run


def test_rows_have_the_names_of_parameters(shard, tmp_path):
    """Every parameter has a row in its own dimensions, whose layout divides it; the file has all."""
    data = shard("2x2", "260KB")
    rows = {row["parameter"]: row for row in data["parameters"]}
    assert {"embed.weight", "layers.0.up.weight", "layers.1.down.bias", "head.weight"} <= set(rows)
    assert rows["layers.0.up.weight"]["shape"] == [256, 64]
    assert any("Shard" in row["torch"] for row in rows.values())
    assert all("partial" not in row["jax"].lower() for row in rows.values())
    with (tmp_path / "parameters.csv").open(newline="") as file:
        assert [row["parameter"] for row in csv.DictReader(file)] == list(rows)


@pytest.mark.parametrize(
    ("model", "limit"), [pytest.param("make", "260KB", marks=pytest.mark.slow), ("llama", "150KB")]
)
def test_the_collectives_that_run_are_those_that_were_priced(shard, tmp_path, model, limit):
    """Four gloo ranks: results and gradients of the whole module, and kind by kind the collectives
    of the solution.
    """
    source = f"{MODEL}:{model}"
    data = shard("2x2", limit, "--to", "dtensor", model=source)
    priced = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), 0)
    priced |= data["collectives"]
    priced["all_gather"] += priced["all_to_all"]  # gloo has no all-to-all: torch gathers and cuts
    priced["all_to_all"] = 0
    for words in run_ranks(4, tmp_path, "sharded", tmp_path, source, "backward"):
        same, cut, counted = words.splitlines()[-1].split(maxsplit=2)
        assert same == "same"
        assert int(cut) > 2
        assert json.loads(counted) == priced


def test_ways_run_without_communication(shard, tmp_path):
    """Every way of linear, norms, attention, embedding, views and others, run as DTensors on two gloo
    ranks: no collective, the placements that the rules say, and the right result.
    """
    shard("2", "1GB", "--to", "dtensor", model=f"{MODEL}:layer")
    for words in run_ranks(2, tmp_path, "ways", tmp_path):
        same, count = words.split()[-2:]
        assert same == "same"
        assert int(count) > 60


JAX = """
import importlib.util, sys
import jax, numpy
import jax.numpy as jnp
spec = importlib.util.spec_from_file_location("plan", sys.argv[1])
plan = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plan)
weights = dict(numpy.load(sys.argv[2]))
ids, expected = weights.pop("ids"), weights.pop("expected")

def model(p, ids):
    x = p["embed.weight"][ids] * 0.5 + jnp.arange(ids.shape[1])[:, None]
    for i in range(2):
        at = f"layers.{i}."
        mean = x.mean(-1, keepdims=True)
        y = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        y = y * p[at + "norm.weight"] + p[at + "norm.bias"]
        y = jax.nn.relu(y @ p[at + "up.weight"].T + p[at + "up.bias"])
        x = x + y @ p[at + "down.weight"].T + p[at + "down.bias"]
    return x @ p["head.weight"].T

mesh = plan.make_mesh()
placed = plan.place(weights, mesh)
inputs = jax.device_put(ids, jax.sharding.NamedSharding(mesh, plan.INPUTS))
result = jax.jit(model)(placed, inputs)
numpy.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
whole = [name for name, x in placed.items() if not x.sharding.is_fully_replicated]
print("same", len(jax.devices()), len(whole))
"""


def test_partition_specs_give_the_results_of_the_whole_module(shard, tmp_path):
    """Eight host devices of jax take the specs, and the results are torch's."""
    pytest.importorskip("jax")
    import importlib.util

    import torch

    shard("2x4", "200KB", "--to", "jax")
    spec = importlib.util.spec_from_file_location("sharded_model", MODEL)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    module, inputs = made.make()
    arrays = {name: x.numpy() for name, x in module.state_dict().items() if name != "scale"}
    with torch.no_grad():
        arrays |= {"ids": inputs[0].numpy(), "expected": module(*inputs).numpy()}
    np.savez(tmp_path / "weights.npz", **arrays)
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", JAX, tmp_path / "jax_shardings.py", tmp_path / "weights.npz"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    same, devices, cut = done.stdout.split()
    assert (same, devices) == ("same", "8")
    assert int(cut) > 2


def test_specs_are_valid_and_summed_up_by_layer():
    """Partial sums have no spec; equal layouts of all layers are one row, and forty rows suffice."""
    assert partition_spec((-2, 1), 2) == "P(None, 'y')"
    assert pattern("h.12.attn.c_attn.weight") == "h.*.attn.c_attn.weight"
    row = {"torch": "[Shard(0)]", "jax": "P('x')", "bytes": 8}
    rows = [{"parameter": f"h.{i}.w", **row} for i in range(30)]
    rows += [{"parameter": f"other_{chr(97 + i % 26)}{'x' * i}", **row} for i in range(60)]
    found = summarised(rows, 40)
    assert len(found) == 40
    assert found[0] == {"name": "h.*.w", "count": 30, **row, "bytes": 240}
    assert sum(item["bytes"] for item in found) == 8 * 90
    assert "more" in found[-1]["name"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gen:llama?layers=1", "--to", "jax", "--out", "OUT"), "names no parameters"),
        (("gen:llama?layers=1", "--to", "pytorch", "--out", "OUT"), "expected dtensor or jax"),
        (("gen:llama?layers=1", "--to", "jax"), "without --out"),
    ],
)
def test_what_cannot_be_written_is_one_line(capsys, tmp_path, words, expected):
    """A source without names, an unknown word and a missing folder are refused."""
    with pytest.raises(SystemExit) as stop:
        main(["shard", *(str(tmp_path) if x == "OUT" else x for x in words), "-t", "0.1"])
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


def test_writing_into_what_others_read_is_refused():
    """A call in place is run where its operand is its own, and refused where a view shares it; where
    that is read again, the program is read without writes.
    """
    torch = pytest.importorskip("torch")
    from placeopt.exports.sharded import dtensor_program_file
    from placeopt.instances.clusters import make_cluster
    from placeopt.instances.readers.torch_export import from_torch
    from placeopt.programs.torch_program import torch_program

    class Own(torch.nn.Module):
        def forward(self, x):
            return (x + 1).relu_() * 2

    class Shared(torch.nn.Module):
        def forward(self, x):
            return (x + 1)[0].relu_() * 2

    class ReadAgain(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            y[0].relu_()
            return y * 2

    def text(module):
        inputs = (torch.zeros(4, 4),)
        graph = from_torch(module, inputs)
        program = torch_program(module, inputs=inputs)
        model = sharding_model(graph, make_cluster("2xA100"), (2,), program=program)
        whole = ShardingSolution(np.zeros(model.problem.num_nodes, dtype=np.int64))
        return dtensor_program_file([], model, whole, program)

    assert "relu_" in text(Own())
    assert "relu_" not in text(ReadAgain())
    with pytest.raises(InputError, match=r"relu_.* writes into"):
        text(Shared())
