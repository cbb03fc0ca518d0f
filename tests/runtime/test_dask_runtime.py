"""The Dask runtime: right results, real timelines, and no wrong answer when a worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.sources import load_graph
from placeopt.model.errors import ExecutionError, InputError
from placeopt.model.graph import OpGraph
from placeopt.runtime import dask_runtime as module
from placeopt.runtime.execution_plan import make_plan
from placeopt.runtime.measurement import compare_results
from placeopt.runtime.serial_runtime import execute

if TYPE_CHECKING:
    from placeopt.runtime import DaskRuntime, Measurement

SOURCES = (
    "gen:chain-mm?size=96",
    "gen:ffnn?batch=32&inputs=32&hidden=64&outputs=32",
    "gen:llama-block?hidden=32&heads=4&seq=32",
    "gen:nmt?layers=1&batch=4&hidden=32&vocab=64&source=2&target=2",  # ops with several outputs
    "gen:layered?layers=4&width=5",
)


def random_placement(graph: OpGraph, seed: int = 0) -> po.Placement:
    """Return random devices, and random ranks."""
    rng = np.random.default_rng(seed)
    return po.Placement(rng.integers(0, 2, graph.num_ops), rng.permutation(graph.num_ops))


def check_timeline(graph: OpGraph, run: Measurement) -> None:
    """Every op starts after its inputs are there, alone on its device; a tensor is sent once per
    device.
    """
    device = run.placement.device
    for turn in range(len(run.start)):
        start, finish = run.start[turn], run.finish[turn]
        assert start.min() == 0
        assert (finish > start).all()
        rows = run.transfers[run.transfers[:, 0] == turn]
        arrival = {(int(t), int(d)): (begin, end) for _, t, d, begin, end in rows.tolist()}
        assert len(arrival) == len(rows)
        expected = set()
        for tensor, producer in enumerate(graph.producer.tolist()):
            for op in graph.consumer[
                graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]
            ].tolist():
                if device[op] == device[producer]:
                    assert start[op] >= finish[producer]
                else:
                    expected.add((tensor, int(device[op])))
                    assert start[op] >= arrival[tensor, int(device[op])][1]
                    assert arrival[tensor, int(device[op])][1] > finish[producer]
        assert set(arrival) == expected
        for d in range(len(run.device_names)):
            ops = sorted(np.flatnonzero(device == d).tolist(), key=lambda op: start[op])
            assert all(finish[a] <= start[b] for a, b in pairwise(ops))


@pytest.mark.parametrize("source", SOURCES)
def test_results_are_those_of_a_serial_run(dask_runtime: DaskRuntime, source: str) -> None:
    """Whatever the placement, the executed graph computes the values of a serial run, along a
    possible timeline.
    """
    graph, _ = load_graph(source)
    run = dask_runtime.run(graph, random_placement(graph), repeat=2, check=True)
    assert run.checked
    assert run.makespan == pytest.approx(np.median(run.makespans))
    check_timeline(graph, run)


def test_a_wrong_value_is_found() -> None:
    """A result that differs in one element is an error that names the op."""
    graph, _ = load_graph("gen:chain-mm?size=16&shards=1")
    results, _ = execute(graph, make_plan(graph), graph.topological_order)
    tensor = max(results)
    wrong = {**results, tensor: results[tensor].copy()}
    compare_results(graph, wrong, results)
    wrong[tensor][0, 0] += 0.1
    with pytest.raises(ExecutionError, match="result of op 'sum/0' differs"):
        compare_results(graph, wrong, results)


def test_ranks_decide_the_order(dask_runtime: DaskRuntime) -> None:
    """Ops that are ready together run in the order of their ranks."""
    n = 12
    edges = [(0, v) for v in range(1, n)]
    graph = OpGraph.from_edges(
        "fan", [f"op{v}" for v in range(n)], edges, [64] * len(edges), flops=np.full(n, 10**9)
    )
    rank = np.random.default_rng(3).permutation(n)
    rank[0] = -1
    run = dask_runtime.run(graph, po.Placement(np.zeros(n, dtype=np.int64), rank), repeat=3)
    # The first op that arrives may start before the others have arrived; they do while it runs,
    # unless the machine is busy.
    orders = [[int(rank[op]) for op in np.argsort(start) if op] for start in run.start]
    assert min(sum(a > b for a, b in pairwise(order)) for order in orders) <= 1


def long_graph(seconds: float) -> OpGraph:
    """Return two chains of ops of about a twentieth of a second each."""
    n = 2 * round(seconds / 0.05)
    edges = [(v, v + 2) for v in range(n - 2)]
    return OpGraph.from_edges(
        f"long{n}",
        [f"op{v}" for v in range(n)],
        edges,
        [4096] * len(edges),
        flops=np.full(n, 3 * 10**9),
        bytes_moved=np.full(n, 10**6),
    )


def kill_soon(runtime: DaskRuntime, after: float) -> threading.Thread:
    """Kill worker 1 in the middle of the run."""
    victim = runtime.pids()[1]
    thread = threading.Thread(target=lambda: (time.sleep(after), os.kill(victim, signal.SIGKILL)))
    thread.start()
    return thread


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_killed_worker(dask_runtime: DaskRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker killed in a run: one clear error without retries, a rerun with the right results
    with one.
    """
    graph = long_graph(0.6)
    placement = po.Placement(np.arange(graph.num_ops) % 2)
    monkeypatch.setattr(dask_runtime, "retries", 0)
    killer = kill_soon(dask_runtime, 0.2)
    with pytest.raises(
        ExecutionError, match=r"graph 'long\d+': .*(died|stopped answering|restarted).*1 attempt"
    ):
        dask_runtime.run(graph, placement)
    killer.join()
    monkeypatch.setattr(dask_runtime, "retries", 1)
    before = dask_runtime.run(graph, placement, check=True)  # on the worker that took its place
    killer = kill_soon(dask_runtime, 0.2)
    run = dask_runtime.run(graph, placement, check=True)
    killer.join()
    assert run.checked
    check_timeline(graph, run)
    assert before.checked


def test_failing_op_is_named(dask_runtime: DaskRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that raises is one error with the task and the reason, and the cluster stays
    usable.
    """
    graph, _ = load_graph("gen:chain-mm?size=16&shards=1")
    placement = po.Placement(np.zeros(graph.num_ops, dtype=np.int64))

    def broken(graph: OpGraph) -> object:
        plan = make_plan(graph)
        last = plan.steps[-1]._replace(options={"function": "no such function"})
        return plan._replace(steps=(*plan.steps[:-1], last))

    monkeypatch.setattr(module, "make_plan", broken)
    with pytest.raises(
        ExecutionError, match=rf"op{graph.num_ops - 1}' failed: KeyError: 'no such function'"
    ):
        dask_runtime.run(graph, placement)
    monkeypatch.undo()
    graph, _ = load_graph("gen:chain-mm?size=16&shards=1")
    assert dask_runtime.run(graph, placement, check=True).checked


def test_bad_requests(dask_runtime: DaskRuntime) -> None:
    """Placements on devices that do not exist, of other graphs, and zero repeats are refused before
    anything runs.
    """
    graph, _ = load_graph("gen:chain-mm?size=16&shards=1")
    n = graph.num_ops
    with pytest.raises(InputError, match=r"expected a device in 0\.\.1 of the runtime, received 2"):
        dask_runtime.run(graph, po.Placement(np.full(n, 2)))
    with pytest.raises(InputError, match=f"expected {n} ops"):
        dask_runtime.run(graph, po.Placement(np.zeros(n + 1, dtype=np.int64)))
    with pytest.raises(InputError, match="repeat"):
        dask_runtime.run(graph, po.Placement(np.zeros(n, dtype=np.int64)), repeat=0)


def test_unreachable_scheduler() -> None:
    """A scheduler that does not answer is one clear error."""
    pytest.importorskip("distributed")
    from placeopt.runtime import DaskRuntime

    with pytest.raises(InputError, match="cannot be reached"):
        DaskRuntime(2, "tcp://127.0.0.1:9", timeout=1).pids()


def test_workers_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask says so in its own words, which are told in one line."""
    distributed = pytest.importorskip("distributed")

    def broken(**_: object) -> None:
        raise RuntimeError("Cluster failed to start: no usable temporary directory")

    monkeypatch.setattr(distributed, "LocalCluster", broken)
    with pytest.raises(InputError, match="cannot be started: Cluster failed to start: no usable"):
        module.DaskRuntime(2).pids()


def test_workers_end_with_a_killed_process() -> None:
    """Workers do not outlive the process that started them, however that ends, and say nothing
    about it.
    """
    pytest.importorskip("distributed", reason="needs dask[distributed], the extra 'dask'")
    script = (
        "import sys, time\n"
        "from placeopt.runtime import DaskRuntime\n"
        "if __name__ == '__main__':\n"
        "    runtime = DaskRuntime(2)\n"
        "    print(*runtime.pids(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "main.py"
        path.write_text(script)
        process = subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.kill()
        _, errors = process.communicate(
            timeout=30
        )  # returns when the last worker has closed the pipe
    assert "Traceback" not in errors
    end = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if alive(pid)]


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and is not collected yet does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
