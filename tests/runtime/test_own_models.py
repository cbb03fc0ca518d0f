"""The user's own models: executed under placements with the results of the unsplit model, and
measured op by op.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.instances.op_cost_file import apply_costs, read_costs, rooflines, write_costs
from placeopt.instances.sources import load_graph
from placeopt.instances.traces import match, read_trace
from placeopt.model.errors import ExecutionError

MODELS = Path(__file__).parent.parent / "user_models.py"
spec = importlib.util.spec_from_file_location("user_models", MODELS)
user_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(user_models)


@pytest.fixture(scope="module", params=["gpt", "resnet"])
def module(request):
    """A captured module with its graph and its runtime."""
    pytest.importorskip("torch")
    from placeopt.programs.torch_program import torch_program
    from placeopt.runtime.module_runtime import ModuleRuntime

    net, inputs = getattr(user_models, request.param)()
    return load_graph(net, inputs=inputs)[0], ModuleRuntime(torch_program(net, inputs=inputs))


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    """An ONNX model with If and Loop: its path and graph, and what runs it."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from placeopt.programs.onnx_program import onnx_program
    from placeopt.runtime.onnx_sessions import OnnxSessions

    path = tmp_path_factory.mktemp("onnx") / "flow.onnx"
    feeds = user_models.control_flow_model(path)
    return path, load_graph(path)[0], OnnxSessions(onnx_program(path), feeds)


def dealt(graph, seed=0):
    """Return a random placement on two devices."""
    return po.Placement(np.random.default_rng(seed).integers(0, 2, graph.num_ops))


# --- execution
# ------------------------------------------------------------------------------------------


def test_a_module_runs_under_any_placement_with_its_own_results(module):
    """Every op has a time on its device, in the order of its inputs; the results are those of the
    unsplit module.
    """
    graph, runtime = module
    run = runtime.run(graph, dealt(graph), repeat=2, check=True)
    assert run.checked
    assert run.start.shape == (2, graph.num_ops)
    assert (run.finish >= run.start).all()
    for u, v in graph.edges.tolist():
        assert (run.start[:, v] >= run.finish[:, u]).all()
    assert len(run.transfers)
    assert (run.transfers[:, 1] < graph.num_tensors).all()
    for device in range(2):  # one op at a time
        ops = np.flatnonzero(run.placement.device == device)
        order = ops[np.argsort(run.start[0, ops])]
        assert (run.start[0, order[1:]] >= run.finish[0, order[:-1]]).all()


def test_a_wrong_result_is_noticed(module, monkeypatch):
    """An op that computes something else makes the run fail."""
    from placeopt.runtime.module_runtime import ModuleWork

    graph, runtime = module
    right = ModuleWork.compute
    monkeypatch.setattr(
        ModuleWork, "compute", lambda *given: [value + 1 for value in right(*given)]
    )
    with pytest.raises(ExecutionError, match="differs from that of the unsplit module"):
        runtime.run(graph, dealt(graph), check=True)


def test_wrong_imaginary_parts_are_noticed(monkeypatch):
    """Complex results were compared by their real parts alone."""
    torch = pytest.importorskip("torch")
    from placeopt.programs.torch_program import torch_program
    from placeopt.runtime.module_runtime import ModuleRuntime, ModuleWork

    class Turn(torch.nn.Module):
        def forward(self, x):
            return x * 1j

    net, inputs = Turn(), (torch.ones(4),)
    runtime = ModuleRuntime(torch_program(net, inputs=inputs))
    graph = load_graph(net, inputs=inputs)[0]
    assert runtime.run(graph, dealt(graph), check=True).checked
    right = ModuleWork.compute
    monkeypatch.setattr(
        ModuleWork, "compute", lambda *given: [value + 1j for value in right(*given)]
    )
    with pytest.raises(ExecutionError, match="differs from that of the unsplit module"):
        runtime.run(graph, dealt(graph), check=True)


def test_a_module_may_change_its_buffers():
    """The first execution is compared, in which buffers and inputs are those of the unsplit
    module.
    """
    torch = pytest.importorskip("torch")
    from placeopt.programs.torch_program import torch_program
    from placeopt.runtime.module_runtime import ModuleRuntime

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            self.total.add_(x)
            return self.linear(self.total)

    net, inputs = Sum(), (torch.ones(4),)
    runtime = ModuleRuntime(torch_program(net, inputs=inputs))
    graph = load_graph(net, inputs=inputs)[0]
    assert runtime.run(graph, dealt(graph), repeat=3, check=True).checked


def test_a_module_can_be_calibrated(module):
    """Measured op times make a problem whose simulated makespan is positive and of the measured
    size.
    """
    from placeopt.runtime.calibration import calibrate

    graph, runtime = module
    learned = calibrate(runtime, [graph], placements=1, repeat=1)
    assert learned.op_seconds[graph.name].shape == (graph.num_ops,)
    assert (learned.problem(graph).compute > 0).all()


def test_onnx_parts_run_under_any_placement(flow):
    """Parts of random placements give the model's results; their graph has one op per part, and its
    order holds.
    """
    _, graph, sessions = flow
    for seed in range(3):
        parts = sessions.parts(graph, dealt(graph, seed))
        run = sessions.run(parts, repeat=2, check=True)
        assert run.start.shape == (2, parts.graph.num_ops)
        assert parts.graph.flops.sum() == graph.flops.sum()
        for u, v in parts.graph.edges.tolist():
            assert (run.start[:, v] >= run.finish[:, u]).all()


def test_weights_and_inputs_may_be_results(tmp_path):
    """The parts hand over what the whole model does, computed or not."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from placeopt.programs.onnx_program import onnx_program
    from placeopt.runtime.onnx_sessions import OnnxSessions

    x, y, w = (onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "xyw")
    weight = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    nodes = [onnx.helper.make_node(*row) for row in (("Add", "xw", "a"), ("Relu", "a", "y"))]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y, w, x], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    sessions = OnnxSessions(onnx_program(tmp_path / "m.onnx"), {"x": np.ones(4, np.float32)})
    graph = load_graph(tmp_path / "m.onnx")[0]
    sessions.run(sessions.parts(graph, po.Placement([1, 0])), check=True)


def test_scalar_inputs_are_arrays(tmp_path):
    """Inputs that nobody gives are arrays, scalars too: onnxruntime takes nothing else."""
    onnx = pytest.importorskip("onnx")
    from placeopt.programs.onnx_program import onnx_program
    from placeopt.runtime.onnx_sessions import feeds_of

    kinds = {"b": onnx.TensorProto.BOOL, "f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64}
    inputs = [onnx.helper.make_tensor_value_info(x, kind, []) for x, kind in kinds.items()]
    nodes = [onnx.helper.make_node("Where", ["b", "f", "f"], ["w"])]
    nodes.append(onnx.helper.make_node("Cast", ["i"], ["c"], to=onnx.TensorProto.FLOAT))
    outputs = [onnx.helper.make_tensor_value_info(x, kinds["f"], []) for x in "wc"]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    feeds = feeds_of(onnx_program(path), {})
    assert [type(feeds[x]) for x in kinds] == [np.ndarray] * 3


def test_a_wrong_onnx_result_is_noticed(flow, monkeypatch):
    """A part that computes something else makes the run fail."""
    from placeopt.programs import onnx_runner

    _, graph, sessions = flow
    right = onnx_runner.Runner.run
    monkeypatch.setattr(
        onnx_runner.Runner, "run", lambda *given: {k: v + 1 for k, v in right(*given).items()}
    )
    with pytest.raises(ExecutionError, match="differs from the whole model's"):
        sessions.run(sessions.parts(graph, dealt(graph)), check=True)


# --- the command line
# -----------------------------------------------------------------------------------


def command(capsys, *words):
    """Run a command; return its exit code, its output and its errors."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_run_executes_a_torch_module(tmp_path, capsys):
    """A module of a file runs its own operators; CPUs that play GPUs are said to, with no senseless
    error beside them.
    """
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    shutil.copy(MODELS, tmp_path / "model.py")
    source = f"torch:{tmp_path}/model.py:gpt"
    assert (
        command(
            capsys, "solve", source, "-c", "2xA100", "-s", "round-robin", "--out", tmp_path / "out"
        )[0]
        == 0
    )
    code, out, err = command(
        capsys,
        "run",
        source,
        tmp_path / "out" / "placement.json",
        "--repeat",
        2,
        "--calibrate",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert code == 0, err
    data = json.loads(out)
    assert data["runtime"] == "module"
    assert data["measured"]["checked"]
    assert set(data["simulated"]) == {"nominal", "fitted", "measured"}
    assert all(row["relative_error"] > -0.99 for row in data["simulated"].values())
    assert "CPU workers play gpu0, gpu1" in data["warning"]
    assert (tmp_path / "run" / "gantt.png").exists()


def test_run_executes_an_onnx_model(flow, tmp_path, capsys):
    """An ONNX file runs in ONNX Runtime; synthetic operators remain an option."""
    path, _, _ = flow
    code, out, err = command(
        capsys, "run", path, "solver:round-robin", "--repeat", 2, "--calibrate", "--json"
    )
    assert code == 0, err
    data = json.loads(out)
    assert data["runtime"] == "onnxruntime"
    assert set(data["simulated"]) == {"nominal", "measured"}
    code, out, err = command(
        capsys, "run", path, "solver:round-robin", "--runtime", "serial", "--repeat", 1, "--json"
    )
    assert (code, json.loads(out)["runtime"]) == (0, "serial"), err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["run", "gen:chain-mm?size=16", "solver:heft", "--runtime", "model"],
            "no model that can be run",
        ),
        (
            ["run", "gen:chain-mm?size=16", "solver:heft", "--runtime", "modell"],
            "expected one of model, dask",
        ),
        (["profile", "gen:chain-mm?size=16"], "expected a model that can be run"),
        (["profile", "torch:missing.py:make"], "no such file"),
        (["profile", "torch:./model:make"], "./model raised TypeError"),
        (["profile", "torch:{leaves}:make"], "raised SystemExit"),
        (["profile", "torch:{models}:gpt", "--device", "cuda:99"], "CUDA devices here"),
        (["profile", "torch:{models}:gpt", "--device", "gpu"], "expected a torch device"),
        (["profile", "{flow}", "--device", "cuda:0"], "profiled on the CPU"),
        (["profile", "{flow}", "--trace", "{bad}"], "not recognised"),
        (["profile", "{flow}", "--trace", "{broken}"], "not valid JSON"),
        (["profile", "{flow}", "--inputs", "{bad}"], "expected an .npz file"),
        (["solve", "{flow}", "-c", "2xA100", "--costs", "{other}"], "none of its ops"),
        (["solve", "{flow}", "-c", "2xA100", "--costs", "{negative}"], "expected a finite number"),
        (["solve", "{flow}", "-c", "2xA100", "--group", "blocks"], "group: expected"),
        (
            ["export", "{bad}", "--to", "torch", "--model", "{flow}", "--out", "x"],
            "it does not tell its devices",
        ),
    ],
)
def test_wrong_input_is_one_line(flow, tmp_path, capsys, words, reason):
    """What a user can get wrong ends with code 2 and one line that says what."""
    if words[1].startswith("torch:"):
        pytest.importorskip("torch")
    head = (
        '{"format": "placeopt/costs", "version": 1, "model": "m", "device": {"kind": "cpu", '
        '"family": "cpu"}, "ops": '
    )
    files = {
        "bad": "{}",
        "broken": "{",
        "other": head + '{"nobody": {"seconds": 1, "how": "measured"}}}',
        "negative": head + '{"first": {"seconds": -1, "how": "measured"}}}',
        "leaves.py": "raise SystemExit(3)",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = {name.removesuffix(".py"): str(tmp_path / name) for name in files} | {
        "flow": str(flow[0]),
        "models": str(MODELS),
    }
    code, _, err = command(
        capsys, *[word.format(**names) if "{" in word else word for word in words]
    )
    assert code == 2, err
    assert reason in err
    assert err.count("\n") == 1


# --- profiles and costs
# ---------------------------------------------------------------------------------


def test_torch_profile_measures_every_op(module, tmp_path):
    """Every op has a time of its own, and the profiler's trace gives the same once more."""
    from placeopt.runtime.profile_model import torch_op_seconds

    graph, runtime = module
    costs = torch_op_seconds(runtime.program, graph, {}, repeat=2, keep=tmp_path / "trace.json")
    assert set(costs.how.values()) == {"measured"}
    assert set(costs.seconds) == set(graph.op_names)
    again = read_costs(tmp_path / "trace.json", graph)
    assert again.seconds == costs.seconds
    assert again.kind == "cpu"


def test_a_plain_kineto_trace_is_matched_by_kind_and_turn(tmp_path):
    """torch.profiler around the module itself, as a user would run it: ops are found by their kind,
    in order.
    """
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    net, inputs = user_models.gpt(layers=2)
    graph = load_graph(net, inputs=inputs)[0]
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            net(*inputs)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = match(graph, read_trace(tmp_path / "trace.json"))
    for kind in ("linear", "layer_norm", "gelu", "scaled_dot_product_attention"):
        ops = [
            name
            for name, other in zip(graph.op_names, graph.op_types, strict=True)
            if other == kind
        ]
        assert {found[name][1] for name in ops} == {"measured"}


def test_kernels_that_nobody_started_are_nobodys(tmp_path):
    """Each call without an id had the time of all kernels without one."""
    rows = [("cpu_op", "aten::relu", 0, 3), ("cpu_op", "aten::gelu", 5, {}), ("kernel", "k", 1, {})]
    rows = [(cat, name, ts, {"External id": x} if x else {}) for cat, name, ts, x in rows]
    events = [
        {"cat": cat, "ph": "X", "name": name, "ts": ts, "dur": 2, "args": args}
        for cat, name, ts, args in rows
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(po.InputError, match=r"damaged kineto trace.*External id"):
        read_trace(path)
    own = {**events[-1], "args": {"External id": 3}, "dur": 7}
    path.write_text(json.dumps({"traceEvents": [*events, own]}))
    assert read_trace(path).by_kind == {"relu": [7e-6], "gelu": [0.0]}


def test_a_full_disk_does_not_hide_what_was_measured(flow, capsys):
    """The costs are shown, then one line says why they are not written."""
    code, out, err = command(
        capsys, "profile", flow[0], "--out", "/dev/full", "--repeat", "1", "--json"
    )
    assert (code, err.count("\n")) == (2, 1), err
    assert json.loads(out)["counts"]["measured"] > 0
    assert "/dev/full" in err
    for model in (flow[0], f"torch:{user_models.__file__}:resnet"):
        given = ("profile", model, "--out", "/dev/null", "--repeat", "1", "--keep-trace")
        code, _, err = command(capsys, *given, "/dev/full")
        assert (code, err.count("\n"), "'/dev/full'" in err) == (2, 1, True), err


def test_onnx_profile_measures_ops_and_the_rest_is_fitted(flow, tmp_path):
    """Every node is measured, If and Loop as a whole; the file is read back as it was written."""
    from placeopt.runtime.profile_model import onnx_op_seconds

    path, graph, sessions = flow
    costs = onnx_op_seconds(
        sessions.program, sessions.feeds, graph, repeat=2, keep=tmp_path / "profile.json"
    )
    assert {costs.how[name] for name in ("first", "choice", "loop")} == {"measured"}
    assert read_trace(tmp_path / "profile.json").source == "ONNX Runtime"
    again = read_costs(write_costs(tmp_path / "costs.json", costs), graph)
    assert (again.seconds, again.how, again.kind) == (costs.seconds, costs.how, "cpu")
    problem = po.load(path, cluster="cpu+gpu", costs=tmp_path / "costs.json")
    cpu = problem.device_names.index("cpu")
    first = problem.op_names.index("first")
    assert problem.compute[first, cpu] == pytest.approx(costs.seconds["first"] * 1e9, abs=1)


NODES = [
    {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1},
    {"id": 2, "name": "aten::linear", "ctrl_deps": 1, "inclusive_dur": 20.0, "exclusive_dur": 5.0},
    {"id": 3, "name": "aten::addmm", "ctrl_deps": 2, "inclusive_dur": 15.0, "exclusive_dur": 15.0},
    {"id": 4, "name": "aten::relu", "ctrl_deps": 1, "inclusive_dur": 4.0},
    {"id": 5, "name": "aten::linear", "ctrl_deps": 1, "inclusive_dur": 30.0},
]


@pytest.mark.parametrize("form", ["pytorch", "tool"])
def test_chakra_traces_are_read(tmp_path, form):
    """Outermost operators count; kernels count with the operator that started them."""
    graph = po.OpGraph.from_edges(
        "net",
        ["a", "b", "c"],
        [(0, 1), (1, 2)],
        op_types=("linear", "relu", "linear"),
        flops=np.array([10, 1, 20]),
        bytes_moved=np.array([5, 5, 6]),
    )
    path = tmp_path / "chakra.json"
    if form == "pytorch":
        path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": NODES}))
        expected = {"a": 20e-6, "b": 4e-6, "c": 30e-6}
    else:
        rows = [
            {
                "id": str(x["id"]),
                "name": x["name"],
                "type": "COMP_NODE",
                "ctrlDeps": [str(x["ctrl_deps"])],
                "durationMicros": str(int(x.get("inclusive_dur", 0))),
            }
            for x in NODES
        ]
        rows.append(
            {
                "id": "6",
                "name": "sgemm_128x64",
                "type": "COMP_NODE",
                "ctrlDeps": ["3"],
                "durationMicros": "7",
            }
        )
        path.write_text(
            "\n".join(json.dumps(row, indent=1) for row in [{"version": "0.0.4"}, *rows])
        )
        expected = {"a": 7e-6, "b": 4e-6, "c": 30e-6}
    found = match(graph, read_trace(path))
    assert {name: time for name, (time, _) in found.items()} == pytest.approx(expected)
    assert {word for _, word in found.values()} == {"measured"}


def test_costs_are_carried_to_other_devices_by_the_stated_rule():
    """On the measured kind times stay; elsewhere the work is scaled by the rooflines and the
    overheads are exchanged.
    """
    from placeopt.instances.op_cost_file import costs_of

    rng = np.random.default_rng(1)
    flops, moved = rng.integers(10**6, 10**9, 30), rng.integers(10**5, 10**8, 30)
    seconds = np.maximum(flops / 1e10, moved / 5e9) + 2e-5
    names = [f"op{i}" for i in range(30)]
    graph = po.OpGraph.from_edges(
        "net", names, [(i, i + 1) for i in range(29)], flops=flops, bytes_moved=moved
    )
    known = {
        name: (time, "measured") for name, time in zip(names[:-2], seconds.tolist(), strict=False)
    }
    costs = costs_of(graph, known, kind="cpu", family="cpu")
    assert costs.counts() == {"measured": 28, "fitted": 2}
    assert costs.seconds["op29"] == pytest.approx(seconds[29], rel=0.05)
    cluster = po.make_cluster("cpu+gpu")
    timed, marks = apply_costs(graph, cluster, costs)
    host, gpu = (
        next(device for device in cluster.devices if device.family == family)
        for family in ("cpu", "gpu")
    )
    at = {kind: i for i, kind in enumerate(timed.measured_kinds)}
    assert timed.measured[3, at[host.kind]] == round(seconds[3] * 1e9)
    scaled = (
        (seconds[3] - costs.device.launch_overhead)
        * rooflines(graph, gpu)[3]
        / rooflines(graph, costs.device)[3]
    )
    assert timed.measured[3, at[gpu.kind]] == pytest.approx(
        (scaled + gpu.launch_overhead) * 1e9, abs=1
    )
    assert set(marks[gpu.kind].values()) == {"fitted"}
    assert marks[host.kind]["op29"] == "fitted"


def test_constants_of_the_file_fit_what_it_does_not_name():
    """A file with a device's constants and the times of two ops: the third is fitted by the
    constants, and all three are carried to the other device.
    """
    from placeopt.instances.op_cost_file import OpCosts

    graph = po.OpGraph.from_edges(
        "net", ["a", "b", "c"], [(0, 1), (1, 2)], flops=np.array([10**9, 10**9, 10**9])
    )
    host = next(d for d in po.make_cluster("cpu+gpu").devices if d.family == "cpu").plain()
    how = dict.fromkeys("ab", "measured")
    costs = OpCosts("net", host.kind, "cpu", host, {"a": 0.5, "b": 0.25}, how)
    timed, marks = apply_costs(graph, po.make_cluster("cpu+gpu"), costs)
    assert {row["c"] for row in marks.values()} == {"fitted"}
    at = timed.measured_kinds.index(host.kind)
    expected = host.launch_overhead + rooflines(graph, host)[2]
    assert timed.measured[2, at] == pytest.approx(expected * 1e9, abs=1)
    assert (timed.measured > 0).all()


def test_too_few_measurements_leave_the_rest_guessed():
    """With two measured ops nothing can be fitted: the others keep the times of the cost model."""
    graph = po.OpGraph.from_edges(
        "net", ["a", "b", "c"], [(0, 1), (1, 2)], flops=np.array([10**9, 10**9, 10**9])
    )
    from placeopt.instances.op_cost_file import costs_of

    costs = costs_of(
        graph, {"a": (0.5, "measured"), "b": (0.25, "measured")}, kind="cpu", family="cpu"
    )
    problem = po.load(graph, cluster="cpu+gpu", costs=costs)
    plain = po.load(graph, cluster="cpu+gpu")
    assert problem.compute[:, 0].tolist() == [500_000_000, 250_000_000, plain.compute[2, 0]]
    assert problem.compute[:, 1].tolist() == plain.compute[:, 1].tolist()
    assert set(apply_costs(graph, po.make_cluster("cpu+gpu"), costs)[1]["V100"].values()) == {
        "guessed"
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"name": "aten::mm"}]}',
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"name": "aten::mm", "id": "x"}]}',
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"name": "aten::mm", "id": 1, "dur": NaN}]}',
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"name": "aten::mm", "id": 1, "dur": 1, '
        '"ctrl_deps": {"a": 1}}]}',
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": 3}',
        '{"traceEvents": [{"cat": "cpu_op", "ph": "X", "name": "aten::mm", "ts": 1}]}',
        '{"traceEvents": [{"cat": "cpu_op", "ph": "X", "name": "aten::mm", "ts": "soon", "dur": '
        "2}]}",
        '{"traceEvents": [{"cat": "cpu_op", "ph": "X", "name": "aten::mm", "ts": 1, "dur": -2}]}',
        '{"traceEvents": [{"cat": "cpu_op", "ph": "X", "ts": 1, "dur": 2}]}',
        '{"traceEvents": [{"cat": "kernel", "ph": "X", "name": "k", "ts": 1, "dur": 2, "args": '
        "7}]}",
        '[{"cat": "Node", "name": "a_kernel_time", "dur": Infinity, "ts": 0, "args": {}}]',
        '[{"cat": "Node", "name": "a_kernel_time", "dur": 1}]',
        '{"traceEvents": [',
    ],
)
def test_damaged_traces_are_one_line(tmp_path, text):
    """Missing, wrong and impossible fields of every format of trace end with one line that names
    the file.
    """
    from placeopt.instances.traces import read_trace

    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(po.InputError, match=r"trace\.json") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
