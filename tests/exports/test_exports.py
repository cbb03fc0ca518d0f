"""Exports: what is written runs, on devices of the CPU, and gives what the unsplit model gives."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gloo_ranks import run_ranks

import placeopt as po
from placeopt.cli.export import cluster_of
from placeopt.exports.export import Job, export, framework_devices, make
from placeopt.instances.module_groups import block_of, group_ops
from placeopt.programs.onnx_program import open_runner, providers

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("user_models", HERE.parent / "user_models.py")
user_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(user_models)

CPUS = ("cpu", "cpu:1")
"""Two names of one CPU: torch moves tensors between them, and they are equal."""


class Case:
    """A module, its inputs, its graph and what it returns."""

    def __init__(self, module, inputs):
        self.module, self.inputs = module, inputs
        self.problem = po.load(module, cluster="2xA100", inputs=inputs)
        self.graph = po.instances.sources.load_graph(module, inputs=inputs)[0]
        self.expected = module(*inputs)

    def export(self, placement, to, problem=None, **options):
        """Export a placement of this module."""
        return export(
            problem or self.problem, placement, to, model=self.module, inputs=self.inputs, **options
        )

    def by_block(self, seed):
        """Return a placement that keeps blocks together, at random."""
        label = group_ops(self.graph, "block").colocation
        rng = np.random.default_rng(seed)
        tied, alone = rng.integers(0, 2, label.max() + 2), rng.integers(0, 2, len(label))
        return po.Placement(np.where(label >= 0, tied[label], alone))

    def at_random(self, seed):
        """Return any placement."""
        return po.Placement(np.random.default_rng(seed).integers(0, 2, self.problem.num_ops))


@pytest.fixture(scope="module", params=["gpt", "resnet"])
def case(request):
    """A GPT-2-like and a ResNet-like module."""
    pytest.importorskip("torch")
    return Case(*getattr(user_models, request.param)())


@pytest.fixture(scope="module")
def small():
    """A GPT-2-like module of two layers."""
    pytest.importorskip("torch")
    return Case(*user_models.gpt(layers=2))


@pytest.fixture(scope="module", params=["control_flow_model", "symbolic_model"])
def onnx_case(request, tmp_path_factory):
    """An ONNX model with If and Loop, and one with a symbolic batch: path, feeds and the results of
    the whole model.
    """
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("onnx") / f"{request.param}.onnx"
    feeds = getattr(user_models, request.param)(path)
    session = onnxruntime.InferenceSession(path)
    return (
        path,
        feeds,
        dict(zip([x.name for x in session.get_outputs()], session.run(None, feeds), strict=True)),
    )


# --- torch
# ----------------------------------------------------------------------------------------------


def test_a_placed_module_computes_what_the_module_does(case):
    """Any placement gives a module with the same results, the same weights, and gradients through
    its transfers.
    """
    import torch

    placed = case.export(case.at_random(1), "torch", devices=CPUS)
    result = placed(*case.inputs)
    assert torch.equal(result, case.expected)
    assert set(placed.state_dict()) == set(case.module.state_dict())
    assert sum(node.op == "call_method" for node in placed.graph.nodes) > 3
    result.sum().backward()
    assert all(p.grad is not None for p in placed.parameters())


def test_transfers_stand_wherever_a_tensor_changes_device(case):
    """With the second half on the meta device, an op whose inputs were not moved would fail."""
    position = np.empty(case.problem.num_ops, dtype=np.int64)
    position[case.problem.topological_order] = np.arange(case.problem.num_ops)
    half = po.Placement((2 * position >= case.problem.num_ops).astype(np.int64))
    placed = case.export(half, "torch", devices=("cpu", "meta"))
    result = placed(*case.inputs)
    assert result.device.type == "meta"
    assert result.shape == case.expected.shape
    assert {p.device.type for p in placed.parameters()} == {"cpu", "meta"}
    assert not any(p.is_meta for p in case.module.parameters())  # the module itself stays as it was


def test_control_flow_stays_whole_and_is_not_written(tmp_path):
    """torch.cond is one op of one device; the module runs, and only its file is refused."""
    torch = pytest.importorskip("torch")

    class Choice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x)
            return 2 * torch.cond(y.sum() > 0, lambda t: self.second(t), lambda t: t - 1, (y,))

    case = Case(Choice(), (torch.randn(2, 8),))
    placement = po.Placement(np.arange(case.problem.num_ops) % 2)
    placed = case.export(placement, "torch", devices=CPUS)
    for sign in (1, -1):
        x = sign * torch.ones(2, 8)
        assert torch.equal(placed(x), case.module(x))
    with pytest.raises(po.InputError, match="control flow"):
        case.export(placement, "torch", devices=CPUS, out=tmp_path)


def test_nested_arguments_and_results_are_kept(tmp_path):
    """Keyword arguments, dicts, tuples and numbers go in and come out as in the module, also from
    its file.
    """
    torch = pytest.importorskip("torch")

    class Nested(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
            self.register_buffer("shift", torch.arange(8.0))

        def forward(self, x, *, mask, more):
            y = self.norm(self.layer(x) + self.shift).masked_fill(mask, 0.0)
            return {"sum": y + more["k"], "pair": (y, [y.sum()]), "three": 3}

    given = {"mask": torch.rand(4, 8) > 0.5, "more": {"k": torch.randn(4, 8)}}
    module, x = Nested().eval(), torch.randn(4, 8)
    (tmp_path / "nested.py").write_text("made = None\ndef make():\n    return made\n")
    source = f"torch:{tmp_path}/nested.py:make"
    from placeopt.instances import sources

    sources._import_file(str(tmp_path / "nested.py")).made = (module, (x,), given)
    problem = po.load(source, cluster="2xA100")
    placement = po.Placement(np.arange(problem.num_ops) % 2)
    placed = export(problem, placement, "torch", model=source, devices=CPUS, out=tmp_path)
    written = importlib.util.spec_from_file_location("placed", tmp_path / "placed.py")
    code = importlib.util.module_from_spec(written)
    written.loader.exec_module(code)
    expected = module(x, **given)
    for found in (placed(x, **given), code.load()(x, **given)):
        assert found["three"] == 3
        assert torch.equal(found["sum"], expected["sum"])
        assert torch.equal(found["pair"][1][0], expected["pair"][1][0])


def test_the_written_module_needs_torch_only(small, tmp_path):
    """placed.py and weights.pt run in a process that cannot import placeopt."""
    import torch

    small.export(small.at_random(2), "torch", devices=CPUS, out=tmp_path)
    torch.save({"inputs": small.inputs, "expected": small.expected.detach()}, tmp_path / "data.pt")
    code = (
        "import sys, torch; sys.modules['placeopt'] = None; import placed; given = "
        "torch.load('data.pt'); "
        "print(torch.equal(placed.load()(*given['inputs']), given['expected']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == "True", done.stderr[-2000:]


def test_accelerate_takes_the_device_map(case):
    """dispatch_model takes the map: on the CPU the results are the same; half on the meta device,
    shapes are.
    """
    accelerate = pytest.importorskip("accelerate")
    import torch

    placement = case.by_block(3)
    found = case.export(placement, "device-map", devices=("cpu", "meta"))
    assert set(found.values()) == {"cpu", "meta"}
    weights = {name for name, _ in case.module.named_parameters()}
    assert all(
        any(name == path or name.startswith(f"{path}.") for path in found) for name in weights
    )
    meta = accelerate.dispatch_model(copy.deepcopy(case.module), found)
    result = meta(*[x.to("meta") for x in case.inputs])
    assert result.shape == case.expected.shape
    assert result.device.type == "meta"
    whole = dict.fromkeys(found, "cpu")
    dispatched = accelerate.dispatch_model(
        copy.deepcopy(case.module), whole, main_device="cpu", force_hooks=True
    )
    assert all(hasattr(dispatched.get_submodule(path), "_hf_hook") for path in found)
    assert torch.equal(dispatched(*case.inputs), case.expected)


def test_the_device_map_is_short_and_true(case):
    """Every op of a named module is on its device, and no two modules inside one are named alone
    with one device.
    """
    from placeopt.programs.torch_program import torch_program

    placement = case.by_block(4)
    found = case.export(placement, "device-map", devices=("0", "1"))
    program = torch_program(case.module, inputs=case.inputs).program
    device = dict(zip(case.problem.op_names, placement.device.tolist(), strict=True))
    for call in program.calls:
        path = call.module
        while path and path not in found:
            path = path.rpartition(".")[0]
        if path in found and call.name in device and not call.free:
            assert int(found[path]) == device[call.name]
    for path in {p.rpartition(".")[0] for p in found if "." in p}:
        assert len({found[p] for p in found if p.startswith(f"{path}.")}) > 1


def test_what_a_module_makes_itself_is_made_where_it_is_read():
    """Positions and a mask of the decoder's own, read by embeddings on one device and layers on
    another, keep no placement by block from being told as a map.
    """
    pytest.importorskip("torch")
    case = Case(*user_models.masked())
    seen = set()
    for seed in range(8):
        found = case.export(case.by_block(seed), "device-map", devices=("0", "1"))
        seen.add(tuple(sorted(found.items())))
    assert len(seen) > 3
    assert any(
        len({device for path, device in row if path.startswith("layers.")} | {dict(row)["embed"]})
        > 1
        for row in seen
        if "embed" in dict(row)
    )


def test_everything_on_one_device_is_one_entry(small):
    """The map of a placement on one device names the model itself; CUDA devices are numbers."""
    assert small.export(
        po.Placement(np.ones(small.problem.num_ops, dtype=np.int64)), "device-map"
    ) == {"": 1}


def test_a_split_module_is_refused_by_name(small):
    """A block whose ops are on two devices cannot be told as a map; the message names it and the
    way out.
    """
    device = np.zeros(small.problem.num_ops, dtype=np.int64)
    device[[i for i, layer in enumerate(small.graph.layer) if layer.startswith("h/1/mlp")]] = 1
    with pytest.raises(po.InputError, match=r"'h\.1'.*--group block"):
        small.export(po.Placement(device), "device-map")


def test_parameters_that_the_program_does_not_hold_join_the_nearest_module(small, tmp_path):
    """Names beside the model are in the map: where a module around them has an op, on its device;
    names that the map covers already are not repeated. A file of names may be weights, their
    index, or a list.
    """
    device = np.array([layer.startswith("h/1") for layer in small.graph.layer], dtype=np.int64)
    placement = po.Placement(device)
    found = small.export(placement, "device-map", devices=("0", "1"))
    assert (found["h.0"], found["h.1"]) == ("0", "1")
    held = [name for name, _ in small.module.named_parameters()]
    assert small.export(placement, "device-map", devices=("0", "1"), parameters=held) == found
    names = [*held, "h.1.folded", "h.folded", "folded"]
    more = small.export(placement, "device-map", devices=("0", "1"), parameters=names)
    assert more == found | {"h.folded": "0", "folded": "0"}

    header = json.dumps({"__metadata__": {}, "h.folded": {}, "folded": {}}).encode()
    weights, index, plain = (
        tmp_path / name for name in ("m.safetensors", "m.safetensors.index.json", "names.json")
    )
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 9)
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"h.folded": "a", "folded": "a"}}))
    plain.write_text('["h.folded", "folded"]')
    for path in (weights, index, plain):
        read = small.export(placement, "device-map", devices=("0", "1"), parameters=path)
        assert read == more, path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.json", None),
        ("a.json", b"3"),
        ("a.json", b"[1]"),
        ("a.json", b"{"),
        ("a.safetensors", b"\xff" * 40),
    ],
)
def test_what_holds_no_names_is_refused(name, content, tmp_path):
    """A missing file, other JSON and other bytes are one line that names the option."""
    from placeopt.exports.export import parameter_names

    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(po.InputError, match="--parameters") as refused:
        parameter_names(tmp_path / name)
    assert "\n" not in str(refused.value)


# --- torch.distributed.pipelining
# -----------------------------------------------------------------------


def test_a_pipeline_runs_on_two_processes_with_the_loss_of_the_unsplit_model(small, tmp_path):
    """Stages cut by the period DP run under the searched repetend schedule; loss and gradients are
    the module's.
    """
    count, case = 4, small
    problem = po.load(
        case.module, cluster="2xA100", inputs=case.inputs, objective="period", group="block"
    )
    result = po.solve(problem, "ideal-dp", seconds=10)
    stages = case.export(
        result, "torch-pipeline", problem, micro_batches=count, seconds=5, out=tmp_path
    )
    assert len(stages) == 2
    assert (tmp_path / "schedule.csv").read_text().count("\n") == 2
    check_pipeline(case, tmp_path, count, tmp_path)


def check_pipeline(case, folder, count, scratch):
    """Run an exported pipeline on two processes; loss and gradients are the module's."""
    import torch

    torch.manual_seed(0)
    inputs = torch.cat([x for x in case.inputs for _ in range(count)])
    inputs = inputs.roll(1, -1) if inputs.dtype == torch.int64 else torch.randn_like(inputs)
    module = copy.deepcopy(case.module)
    output = module(inputs)
    target = torch.randint(0, output.shape[-1], output.shape[:-1])
    loss = torch.nn.functional.cross_entropy(
        output.flatten(0, -2), target.flatten(), reduction="sum"
    )
    loss.backward()
    torch.save({"inputs": inputs, "target": target}, scratch / "data.pt")
    outputs = run_ranks(2, scratch, "exported", folder, scratch / "data.pt")
    assert float("".join(outputs)) == pytest.approx(float(loss.detach()), rel=1e-5)
    gradients = torch.load(folder / "gradients0.pt") | torch.load(folder / "gradients1.pt")
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_stages_one_after_the_other_are_the_module(case, tmp_path):
    """Three stages, one of which is reached by a tensor that skips one, give the module's result in
    sequence.
    """
    import torch

    position = np.empty(case.problem.num_ops, dtype=np.int64)
    position[case.problem.topological_order] = np.arange(case.problem.num_ops)
    problem = po.load(case.module, cluster="3xA100", inputs=case.inputs)
    thirds = po.Placement(3 * position // case.problem.num_ops)
    stages = case.export(thirds, "torch-pipeline", problem, solver="1f1b", micro_batches=3)
    values = case.inputs
    for stage in stages:
        found = stage.module(*values)
        values = found if isinstance(found, tuple) else (found,)
        assert len(values) == len(stage.outputs)
    assert len(stages) == 3
    assert torch.equal(values[0], case.expected)


def test_a_schedule_of_other_stages_is_refused(small):
    """A schedule for three devices does not fit a placement on two."""
    other = po.schedules.schedule(po.load_pipeline("shape:V?devices=3"), micro_batches=3)
    half = po.Placement(
        (np.arange(small.problem.num_ops) >= small.problem.num_ops // 2).astype(np.int64)
    )
    with pytest.raises(po.InputError, match="its stages are on devices"):
        small.export(half, "torch-pipeline", schedule=other)


# --- ONNX Runtime
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_onnx_parts_compute_what_the_model_does(onnx_case, tmp_path, seed):
    """The parts of a random placement, run by device, give the results of the whole model."""
    path, feeds, expected = onnx_case
    problem = po.load(path, cluster="2xA100")
    placement = po.Placement(np.random.default_rng(seed).integers(0, 2, problem.num_ops))
    manifest = export(
        problem, placement, "onnxruntime", model=path, devices=("cpu", "cpu"), out=tmp_path
    )
    assert {part["device"] for part in manifest["parts"]} == {"cpu#0", "cpu#1"}
    found = open_runner(tmp_path, threads=1).run(feeds)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_the_written_runner_needs_onnxruntime_only(onnx_case, tmp_path):
    """runner.py beside the parts runs from the command line, without placeopt."""
    path, feeds, expected = onnx_case
    problem = po.load(path, cluster="2xA100")
    export(
        problem,
        po.Placement(np.arange(problem.num_ops) % 2),
        "onnxruntime",
        model=path,
        out=tmp_path,
    )
    np.savez(tmp_path / "feeds.npz", **feeds)
    code = (
        "import sys; sys.modules['placeopt'] = None; sys.path.insert(0, '.'); import runner; "
        "runner.main(['feeds.npz', 'results.npz'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "results.npz") as results:
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6)


def test_cuda_devices_get_their_provider():
    """The CUDA execution provider with the device's number, and the CPU behind it."""
    assert providers("cuda:3") == [
        ["CUDAExecutionProvider", {"device_id": 3}],
        "CPUExecutionProvider",
    ]
    assert providers("cpu") == ["CPUExecutionProvider"]
    with pytest.raises(po.InputError, match="device 'cuda:x': expected cuda:0"):
        providers("cuda:x")


# --- jax, CSV, devices
# ----------------------------------------------------------------------------------


def test_jax_puts_every_parameter_on_its_device(small, tmp_path):
    """The written file places a tree of parameters on two devices of the CPU, as the placement
    says.
    """
    pytest.importorskip("jax")
    table = small.export(small.by_block(3), "jax", out=tmp_path)
    (tmp_path / "check.py").write_text(
        "import jax, numpy, shardings\n"
        "tree = {}\n"
        "for path in shardings.DEVICES:\n"
        "    home = tree\n"
        "    for part in path.split('/'):\n"
        "        home = home.setdefault(part, {})\n"
        "    home['kernel'] = numpy.ones(4, numpy.float32)\n"
        "placed = shardings.place(tree)\n"
        "for path, number in shardings.DEVICES.items():\n"
        "    leaf = placed\n"
        "    for part in path.split('/'):\n"
        "        leaf = leaf[part]\n"
        "    assert leaf['kernel'].devices() == {jax.devices()[number]}\n"
        "moved = shardings.to_device(path.replace('/', '.'), numpy.ones(2))\n"
        "print(len({str(x.devices()) for x in jax.tree_util.tree_leaves(placed)}), moved.devices() "
        "== {jax.devices()[number]})\n"
    )
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "check.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["2", "True"], done.stderr[-2000:]
    assert set(table.values()) == {0, 1}


def test_csv_is_read_back(small, tmp_path):
    """The table is a placement file."""
    from placeopt.io.placement_file import read_placement

    placement = po.Placement(small.at_random(5).device, np.arange(small.problem.num_ops))
    export(small.problem, placement, "csv", out=tmp_path / "placement.csv")
    again = read_placement(tmp_path / "placement.csv", small.problem)
    assert (again.device == placement.device).all()
    assert (again.priority == placement.priority).all()


def test_devices_have_names_of_the_framework():
    """CPUs are the CPU, the others CUDA devices in order; names may be given by index or by
    name.
    """
    problem = po.load("gen:chain-mm?size=100", cluster="cpu+2xV100")
    assert framework_devices(problem, None) == ("cpu", "cuda:0", "cuda:1")
    hosts = po.load("gen:chain-mm?size=100", cluster="2x2xV100")
    assert framework_devices(hosts, None) == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert framework_devices(problem, ["a", "b", "c"]) == ("a", "b", "c")
    assert framework_devices(problem, {"gpu1": "c", "cpu": "a", "gpu0": "b"}) == ("a", "b", "c")
    for wrong in (["a"], {"cpu": "a"}, {"cpu": "a", "gpu0": "b", "gpu1": "c", "gpu9": "d"}):
        with pytest.raises(po.InputError, match="devices"):
            framework_devices(problem, wrong)


def test_devices_of_a_placement_keep_their_numbers(tmp_path):
    """gpu10 came before gpu2, and took its CUDA device; numbers without an op were left out."""
    ops, path = [f"op{i}" for i in range(12)], tmp_path / "placement"

    def devices(text):
        path.write_text(text)
        found = cluster_of(path, None, None, SimpleNamespace(op_names=ops))
        return [device.name for device in found.devices]

    rows = "".join(f"{op},gpu{i}\n" for i, op in enumerate(ops))
    assert devices(f"op,device\n{rows}") == [f"gpu{i}" for i in range(12)]
    assert len(devices("op,device\n" + rows.replace("gpu", ""))) == 12
    assert len(devices("op,device\nop0,0\nop1,3\n")) == 4
    assert len(devices('{"device": [0, 3]}')) == len(devices('{"device": {"op0": 3}}')) == 4


@pytest.mark.parametrize(
    ("to", "options", "reason"),
    [
        ("device_map", {}, "did you mean 'device-map'"),
        ("device-map", {}, "needs the model itself"),
        ("torch", {"model": "model.onnx", "devices": ["cpu", "cpu"]}, "expected a torch module"),
        ("onnxruntime", {"model": "torch:model.py:make"}, "expected an ONNX file"),
        ("csv", {"solver": "1f1b"}, "no option 'solver'"),
    ],
)
def test_wrong_exports_are_refused(to, options, reason):
    """An unknown target, a missing or unfit model and an unknown option are one line each."""
    if to == "torch":
        pytest.importorskip("torch")
    problem = po.load("gen:chain-mm?size=100", cluster="2xA100")
    with pytest.raises(po.InputError, match=reason):
        export(problem, po.Placement(np.zeros(problem.num_ops, dtype=np.int64)), to, **options)


def test_a_placement_of_another_model_is_refused(small):
    """Ops that the module does not have are named."""
    problem = po.load("gen:chain-mm?size=100", cluster="2xA100")
    with pytest.raises(po.InputError, match="is no call of model"):
        small.export(
            po.Placement(np.zeros(problem.num_ops, dtype=np.int64)),
            "torch",
            problem,
            devices=["cpu", "cpu"],
        )


def test_a_placement_of_the_training_graph_is_one_of_the_module(small):
    """Backward ops run where autograd runs them, with their forward ops."""
    problem = po.load(small.module, cluster="2xA100", inputs=small.inputs, training=True)
    done = make(
        problem,
        po.Placement(np.zeros(problem.num_ops, dtype=np.int64)),
        "device-map",
        model=small.module,
        inputs=small.inputs,
    )
    assert done.artifact == {"": 0}


def test_an_archive_of_torch_export_keeps_its_names(tmp_path):
    """A .pt2 file is placed by its own reader and exported by torch's, whose names of calls
    differ.
    """
    torch = pytest.importorskip("torch")
    module, inputs = user_models.gpt(layers=2)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, inputs), path)
    problem = po.load(path, cluster="2xA100")
    device = np.random.default_rng(7).integers(0, 2, problem.num_ops)
    placed = export(problem, po.Placement(device), "torch", model=path, devices=CPUS)
    assert torch.equal(placed(*inputs), module(*inputs))
    job = Job(problem, po.Placement(device), model=path, devices=CPUS)
    second = [i for i, name in enumerate(problem.op_names) if name.startswith("split")][1]
    split = [i for i, call in enumerate(job.program.calls) if call.kind == "split"][1]
    assert job.home[split] == device[second]


def test_blocks_are_elements_of_lists():
    """The path up to the first number, in torch's notation and in that of ONNX files."""
    assert block_of("encoder/layer/3/attn/query") == "encoder/layer/3"
    assert block_of("layers/layers.0/fc1") == "layers/layers.0"
    assert block_of("layer1/conv1") == "layer1/conv1"
