"""The serial and the torch runtime, and the command `placeopt run`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.instances.sources import load_graph
from placeopt.model.errors import ExecutionError, InputError
from placeopt.runtime import Runtime, SerialRuntime


def test_serial_run_follows_ranks_and_dependencies() -> None:
    """A serial run executes every op once, after its inputs, one at a time."""
    graph, _ = load_graph("gen:llama-block?hidden=32&heads=4&seq=16")
    rank = np.random.default_rng(0).permutation(graph.num_ops)
    run = SerialRuntime(2).run(
        graph, po.Placement(np.zeros(graph.num_ops, dtype=np.int64), rank), repeat=2
    )
    for turn in range(2):
        for producer, reader in graph.edges.tolist():
            assert run.start[turn, reader] >= run.finish[turn, producer]
        order = np.argsort(run.start[turn])
        assert (run.start[turn, order][1:] >= run.finish[turn, order][:-1]).all()
    assert run.makespan >= run.op_seconds.sum() * 0.5
    assert isinstance(SerialRuntime(1), Runtime)


@pytest.mark.parametrize(
    "source",
    [
        "gen:chain-mm?size=48",
        "gen:ffnn?batch=16&inputs=16&hidden=32&outputs=16",
        "gen:llama-layer?hidden=32&heads=4&seq=16&ffn=48",
        "gen:resnet50?image=32",
        "gen:nmt?layers=1&batch=4&hidden=32&vocab=64&source=2&target=2",
        "gen:layered?layers=4&width=5",
    ],
)
def test_torch_computes_what_numpy_computes(source: str) -> None:
    """On two CPU devices, the threads of the torch runtime compute the values of the serial numpy
    run.
    """
    pytest.importorskip("torch", reason="needs torch, the extra 'torch'")
    from placeopt.runtime import TorchRuntime

    graph, _ = load_graph(source)
    rng = np.random.default_rng(0)
    placement = po.Placement(rng.integers(0, 2, graph.num_ops), rng.permutation(graph.num_ops))
    run = TorchRuntime(("cpu", "cpu")).run(graph, placement, repeat=2, check=True)
    device = placement.device
    for turn in range(2):
        rows = run.transfers[run.transfers[:, 0] == turn]
        arrival = {(int(t), int(d)): end for _, t, d, _, end in rows.tolist()}
        assert len(arrival) == len(rows)
        for tensor, producer in enumerate(graph.producer.tolist()):
            for op in graph.consumer[
                graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]
            ].tolist():
                there = (
                    run.finish[turn, producer]
                    if device[op] == device[producer]
                    else arrival[tensor, int(device[op])]
                )
                assert run.start[turn, op] >= there


def test_torch_on_gpus() -> None:
    """On CUDA devices the results are those of numpy too."""
    pytest.importorskip("torch", reason="needs torch, the extra 'torch'")
    from placeopt.runtime import TorchRuntime
    from placeopt.runtime.torch_runtime import unavailable

    if reason := unavailable():
        pytest.skip(reason)
    graph, _ = load_graph("gen:llama-block?hidden=256&heads=4&seq=256")
    runtime = TorchRuntime()
    device = np.random.default_rng(0).integers(0, runtime.num_devices, graph.num_ops)
    assert runtime.run(graph, po.Placement(device), repeat=2, check=True).makespan > 0


def test_torch_without_gpus_says_why() -> None:
    """Without CUDA devices the default is one clear error, and an op that fails names its
    reason.
    """
    pytest.importorskip("torch", reason="needs torch, the extra 'torch'")
    from placeopt.runtime import TorchRuntime, torch_runtime as module

    if module.unavailable():
        with pytest.raises(InputError, match="no CUDA device; name devices"):
            TorchRuntime()
    graph, _ = load_graph("gen:chain-mm?size=16&shards=1")
    engine = TorchRuntime(("cpu", "cpu"))
    plan = module.make_plan(graph)
    broken = plan._replace(steps=(plan.steps[0]._replace(kernel="absent"), *plan.steps[1:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_plan", lambda graph: broken)
        with pytest.raises(ExecutionError, match="KeyError: 'absent'"):
            engine.run(graph, po.Placement(np.arange(graph.num_ops) % 2))


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(x) for x in arguments])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_run_on_dask_writes_everything(capsys, tmp_path) -> None:
    """`placeopt run --calibrate --out` measures, simulates three ways, and writes timeline,
    placement and picture.
    """
    pytest.importorskip("distributed", reason="needs dask[distributed], the extra 'dask'")
    pytest.importorskip("matplotlib")
    source = "gen:chain-mm?size=64&shards=2"
    code, out, err = run_command(
        capsys,
        "run",
        source,
        "solver:heft",
        "--repeat",
        2,
        "--calibrate",
        "--out",
        tmp_path,
        "--json",
    )
    assert code == 0, err
    data = json.loads(out)
    assert data["measured"]["checked"]
    assert len(data["measured"]["repeats"]) == 2
    assert set(data["simulated"]) == {"nominal", "fitted", "measured"}
    for row in data["simulated"].values():
        assert row["relative_error"] == pytest.approx(row["seconds"] / data["seconds"] - 1)
    assert data["calibration"]["launch_overhead"] > 0
    rows = list(csv.DictReader((tmp_path / "timeline.csv").open()))
    graph, _ = load_graph(source)
    assert [row["op"] for row in rows] == list(graph.op_names)
    assert (tmp_path / "gantt.png").stat().st_size > 5000
    again = json.loads((tmp_path / "run.json").read_text())
    assert again["seconds"] == data["seconds"]
    # the placement that was executed can be executed again
    code, out, err = run_command(
        capsys, "run", source, tmp_path / "placement.json", "--workers", 2, "--runtime", "serial"
    )
    assert code == 0, err
    assert "measured" in out


def test_run_refuses(capsys) -> None:
    """Unknown runtimes, a scheduler for the wrong one, and unknown solvers are one line and exit
    code 2.
    """
    for extra, words in (
        (("--runtime", "ray"), "expected one of model, dask, torch, serial"),
        (("--runtime", "serial", "--scheduler", "tcp://x:1"), "only the runtime 'dask'"),
        (("--runtime", "serial", "--workers", "2"), "not known"),
    ):
        code, out, err = run_command(
            capsys, "run", "gen:chain-mm?size=16&shards=1", "solver:nonsense", *extra
        )
        assert code == 2
        assert out == ""
        assert words in err
        assert err.count("\n") == 1
