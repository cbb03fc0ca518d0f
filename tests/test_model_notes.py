"""What reports say of a user's own model: its costs, its links, its memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.cli.model_notes import (
    cost_notes,
    is_own_model,
    link_note,
    memory_note,
    rate_note,
    why_none,
)
from placeopt.instances.clusters import make_cluster
from placeopt.instances.readers.torch_export import from_torch
from placeopt.instances.sources import load_graph

spec = importlib.util.spec_from_file_location(
    "user_models", Path(__file__).with_name("user_models.py")
)
user_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(user_models)


def output(capsys, *arguments):
    """Return what a command prints to stdout and stderr."""
    with pytest.raises(SystemExit) as stop:
        main([str(x) for x in arguments])
    captured = capsys.readouterr()
    assert stop.value.code == 0, captured.err
    return captured.out, captured.err


def test_own_models_are_modules_and_files_of_frameworks():
    """Generators, models of packages and problem files are not the user's own."""
    assert all(
        map(
            is_own_model,
            ("torch:model.py:make", "model.onnx", "dir/net.pt2", "net.xml", "a.onnx?fuse=false"),
        )
    )
    assert not any(
        map(is_own_model, ("gen:gpt2", "onnx:resnet50", "problem.json", "graph.dot", "shape:V"))
    )


def test_solve_says_what_shared_links_would_cost(capsys, tmp_path):
    """On PCI Express the file's model gets a line with the command; with contention in the name, or
    a generator, none.
    """
    pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    user_models.symbolic_model(path)
    words = (
        "solve",
        path,
        "--dim",
        "batch=4",
        "--solver",
        "round-robin",
        "--bound-seconds",
        "0",
        "--cluster",
    )
    out, _ = output(capsys, *words, "4xA100-pcie")
    assert "links: 4xA100-pcie has no contention" in out
    assert '--cluster "4xA100-pcie?contention=hardware"' in out
    assert "memory in GiB: gpu" in out
    out, _ = output(capsys, *words, "4xA100-pcie?contention=hardware")
    assert "links:" not in out
    words = (
        "solve",
        "gen:fork-join",
        "--solver",
        "round-robin",
        "--bound-seconds",
        "0",
        "--cluster",
        "4xA100",
    )
    assert "links:" not in output(capsys, *words)[0]


def test_the_line_on_links_has_the_makespan_under_contention():
    """Its percentage is that of the same placement evaluated on the cluster with shared links."""
    problem, shared = (
        po.load("gen:gpt2?layers=2&hidden=64&heads=2&vocab=500&seq=32", cluster=f"4xA100-pcie{x}")
        for x in ("", "?contention=hardware")
    )
    result = po.solve(problem, "round-robin")
    expected = (
        po.evaluate(shared, result.solution, result.queue or None).makespan / result.value - 1
    )
    assert expected > 0
    assert f"({expected:+.1%})" in link_note(problem, result)
    assert link_note(shared, po.solve(shared, "round-robin")) == ""


def test_the_line_on_memory_adds_up():
    """What the fullest device holds is the evaluator's peak; static and live bytes are its
    parts.
    """
    problem = po.load(
        "gen:gpt2?layers=2&hidden=64&heads=2&vocab=500&seq=32", cluster="2xA100", training=True
    )
    result = po.solve(problem, "round-robin")
    peak = po.evaluate(problem, result.solution, result.queue or None).peak_memory
    most = int(np.argmax(peak))
    note = memory_note(problem, result)
    assert note.startswith(
        f"memory in GiB: {problem.device_names[most]} {peak[most] / 2**30:.3g} of 40 (weights "
    )
    assert "gradients" in note
    assert "optimizer states" in note


TRAINED = "gen:llama?layers=2&hidden=64&heads=4&ffn=64&vocab=64&training=1"


def test_the_line_on_rates_says_what_the_values_are():
    """An exported module of 16-bit values takes what kernels sustain, one of 32 bits the data
    sheet's peak; a precision, or a device without matrix units, needs no line.
    """
    torch = pytest.importorskip("torch")
    x = torch.zeros(8, 64)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    cluster = make_cluster("2xA100")
    single = from_torch(net, (x,))
    half = from_torch(net.bfloat16(), (x.bfloat16(),))
    assert rate_note(half, cluster) == "op times: 16-bit values, at what measured kernels sustain"
    for graph, others in ((single, single.num_ops), (load_graph(TRAINED)[0], 21)):
        note = rate_note(graph, cluster)
        assert f"{others} of {graph.num_ops} ops make no 16-bit" in note
        assert ("export the model so" in note) == (graph is single)
    for name in ("2xA100?precision=bf16", "2xP100", "uniform:2"):
        assert rate_note(half, make_cluster(name)) == ""


def test_loops_of_unknown_length_are_named(capsys, tmp_path):
    """`info` names control flow and its rule; a loop of unknown length is costed once, and the way
    out is told.
    """
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "flow.onnx"
    user_models.control_flow_model(path)
    out, _ = output(capsys, "info", path)
    assert (
        "If, Loop: a branch costs its most expensive body, a loop its body times its turns" in out
    )
    assert "unknown length" not in out  # the file holds the number of turns
    model = onnx.load(path)
    (trips,) = (x for x in model.graph.initializer if x.name == "trips")
    model.graph.initializer.remove(trips)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("trips", onnx.TensorProto.INT64, [])
    )
    onnx.save(model, path)
    assert cost_notes(po.read_graph(path)) == [
        "1 loop of unknown length costed for one turn (--trip-count N): loop"
    ]
    assert "costed for one turn (--trip-count N): loop" in output(capsys, "info", path)[0]
    words = ("solve", path, "--cluster", "2xA100", "--solver", "heft", "--bound-seconds", "0")
    assert "costed for one turn" in output(capsys, *words)[1]
    assert "costed for one turn" not in output(capsys, *words, "--trip-count", "9")[1]


def test_info_tells_what_training_needs(capsys):
    """By precision, in GiB and per device; for a training graph as it is."""
    out, _ = output(
        capsys,
        "info",
        "gen:gpt2?layers=2&hidden=64&heads=2&vocab=500&seq=32",
        "--cluster",
        "2xA100",
    )
    lines = [line for line in out.splitlines() if line.startswith("training, ")]
    assert [line.split("  ")[0] for line in lines] == ["training, fp32", "training, mixed 16-bit"]
    assert all("optimizer states (Adam)" in line for line in lines)
    assert "per device" in out


@pytest.mark.parametrize("objective", ["makespan", "period", "latency"])
def test_why_nothing_fits_is_told_of_every_objective(objective):
    """The placement that the line is about comes from a scheduler that knows one objective."""
    problem = po.PlacementProblem.from_edges(
        [[1, 1], [1, 1]],
        [(0, 1, 1)],
        objective=objective,
        memory="peak",
        tensor_bytes=[9],
        capacity=[5, 5],
    )
    assert why_none(problem).startswith("no placement was found that fits")
