"""torch.export: modules live and from .pt2 archives; archives that are none."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from placeopt.instances.clusters import make_cluster
from placeopt.instances.readers import from_torch, read_graph
from placeopt.instances.readers.torch_ops import base_name, lost_write, module_path
from placeopt.instances.sources import load_graph
from placeopt.io.serialize import to_dict
from placeopt.model.cost_model import lower
from placeopt.model.errors import InputError
from placeopt.programs.torch_program import torch_program


@pytest.fixture(scope="module")
def net():
    """Return a small module with tied weights, and its example input."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.bn = torch.nn.BatchNorm2d(8)
            self.body = torch.nn.Sequential(
                torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1)
            )
            self.head = torch.nn.Linear(8, 8, bias=False)
            self.head.weight = self.body[0].weight
            self.lstm = torch.nn.LSTM(4, 6, batch_first=True)

        def forward(self, x):
            a, b = torch.relu(self.bn(self.conv(x))).chunk(2, dim=1)
            z = torch.cat([b, a], 1).mean((2, 3))
            h, _ = self.lstm((self.body(z) + self.head(z)).view(-1, 2, 4))
            return torch.nn.functional.scaled_dot_product_attention(h, h, h).softmax(-1)

    return Net().eval(), (torch.zeros(2, 3, 16, 16),)


def kind(graph, name):
    """Return the index of the only op of a type."""
    assert graph.op_types.count(name) == 1
    return graph.op_types.index(name)


def test_a_module_becomes_a_graph(net):
    """Parameters are the module's, tied ones once and colocated; flops are the textbook ones."""
    module, inputs = net
    graph = from_torch(module, inputs)
    assert graph.name == "Net"
    assert int(graph.parameters.sum()) == sum(p.numel() for p in module.parameters())
    assert not graph.unshaped.any()
    assert "batch_norm" not in graph.op_types
    conv, lstm = kind(graph, "conv2d"), kind(graph, "lstm")
    assert graph.flops[conv] == 2 * 8 * 16 * 16 * (2 * 27 + 1)
    assert graph.flops[lstm] == 2 * 2 * 2 * 24 * (4 + 6) + 10 * 2 * 2 * 6
    attention = kind(graph, "scaled_dot_product_attention")
    assert graph.flops[attention] == 2 * (2 * 2 * 2 * 6 * 2) + 5 * 2 * 2 * 2
    linear = [i for i, t in enumerate(graph.op_types) if t == "linear"]
    assert len(set(graph.colocation[linear].tolist()) - {-1}) == 1
    assert graph.parameters[linear].tolist() == [64 + 8, 0]
    assert [graph.layer[i] for i in linear] == ["body/0", "head"]
    assert (graph.bytes_moved[[conv, lstm, attention]] > 0).all()


def test_views_take_no_time_and_stay_with_their_source(net):
    """What only looks at a tensor in another way costs nothing, not even a launch, and never causes
    a transfer.
    """
    module, inputs = net
    problem = lower(from_torch(module, inputs), make_cluster("2xA100"))
    view, chunk, pooled = (kind(problem, name) for name in ("view", "chunk", "mean"))
    assert not problem.compute[[view, chunk]].any()
    assert (problem.compute[[pooled, kind(problem, "lstm")]] > 0).all()
    for op in (view, chunk):
        pointer, source, _ = problem.predecessors
        (before,) = source[pointer[op] : pointer[op + 1]]
        assert problem.units.unit[op] == problem.units.unit[before]


def test_fold_and_fuse_are_options(net):
    """Without them, batch norm and dropout stay, and parameters are the same."""
    module, inputs = net
    plain, fused = from_torch(module, inputs, fuse=False, fold=False), from_torch(module, inputs)
    assert {"batch_norm", "dropout"} <= set(plain.op_types)
    assert plain.parameters.sum() == fused.parameters.sum()
    bn = kind(plain, "batch_norm")
    assert (plain.parameters[bn], plain.resident[bn]) == (16, 4 * 32)


def test_a_module_without_weights_will_do():
    """A module on the meta device has no weights in memory, and gives the same graph."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(10**5, 10**6), torch.nn.ReLU())
        graph = from_torch(module, (torch.zeros(4, 10**5),))
    assert graph.resident[0] == 4 * (10**11 + 10**6)
    assert graph.parameters[0] == 10**11 + 10**6


def test_dynamic_shapes_take_the_example_sizes():
    """Symbolic dimensions have the sizes of the example inputs."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(5, 6)
    batch = torch.export.Dim("batch", min=2, max=64)
    graph = from_torch(module, (torch.zeros(7, 5),), dynamic_shapes={"input": {0: batch}})
    assert graph.flops.tolist() == [7 * 6 * 11]
    assert not graph.unshaped.any()


def test_cells_are_products_and_unknown_products_are_flagged():
    """Both cost a flop per element of their output, and no word said so."""
    torch = pytest.importorskip("torch")
    cell = from_torch(torch.nn.LSTMCell(3, 5), (torch.zeros(4, 3),))
    at = kind(cell, "lstm_cell")
    assert (cell.flops[at], cell.unshaped[at]) == (4 * 2 * 4 * 5 * (3 + 5) + 10 * 4 * 5, False)

    class Unknown(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3, 5))

        def forward(self, x):
            return torch.kron(self.w, x)

    assert from_torch(Unknown(), (torch.zeros(4, 3),)).unshaped.tolist() == [True]


@pytest.mark.parametrize(
    ("product", "shapes", "flops"),
    [
        (lambda x, y, z: torch_of("einsum")("ab,bc,cd->ad", x, y, z), "2,30 30,4 4,5", 560),
        (lambda x, y, z: torch_of("einsum")("ab,bc,cd", x, y, z), "2,30 30,4 4,5", 560),
        (lambda x, y, z: torch_of("chain_matmul")(x, y, z), "2,30 30,4 4,5", 560),
        (lambda x, y: torch_of("tensordot")(x, y, 2), "2,3,4 3,4,5", 240),
        (lambda x, y: torch_of("inner")(x, y), "2,3,4 5,4", 240),
        (lambda x, y: torch_of("cdist")(x, y), "3,4 5,4", 120),
        (lambda x, y, z: torch_of("addbmm")(x, y, z), "3,5 2,3,4 2,4,5", 240 + 15),
        (lambda x: torch_of("linalg").cholesky(x), "8,8", 2 * 8**3),
        (lambda x: torch_of("fft").fft(x), "100,16", 5 * 1600 * 4),
        (lambda x: torch_of("fft").irfft2(x), "100,8,5", 5 * 4000 * 6),
    ],
)
def test_products_cost_their_multiplications(product, shapes, flops):
    """Chains of products cost that of all their indices, other products a flop per element of their
    output, transforms log n of a batch's n; torch's own counter agrees on products.
    """
    torch = pytest.importorskip("torch")

    class Product(torch.nn.Module):
        def forward(self, *inputs):
            return product(*inputs)

    inputs = tuple(torch.zeros([int(d) for d in x.split(",")]) for x in shapes.split())
    graph = from_torch(Product(), inputs)
    assert graph.flops.tolist() == [flops]
    assert not graph.unshaped.any()


def torch_of(name):
    """Return what torch has under a name."""
    return getattr(pytest.importorskip("torch"), name)


@pytest.mark.parametrize("mode", ["vmap", "autocast"])
def test_shapes_and_precisions_are_those_of_the_run(mode, tmp_path):
    """Behind a vmap products lacked its axis and weights were too small; a model in autocast was
    one op.
    """
    torch = pytest.importorskip("torch")

    class Modes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5, 6, 4))

        def forward(self, x):
            if mode == "vmap":
                return torch.vmap(lambda w: torch.relu(torch.nn.functional.linear(x, w)))(self.w)
            with torch.autocast("cpu", torch.bfloat16):
                return torch.relu(x @ self.w[0].T)

    inputs = (torch.zeros(3, 4),)
    graph = from_torch(Modes(), inputs)
    times = 5 if mode == "vmap" else 1
    assert graph.flops[kind(graph, "matmul")] == times * 2 * 3 * 4 * 6
    assert graph.flops[kind(graph, "relu")] == times * 3 * 6
    assert int(graph.parameters.sum()) == 5 * 6 * 4
    calls = torch_program(Modes(), inputs=inputs).program.calls
    assert {call.name for call in calls} >= set(graph.op_names)
    if mode == "vmap":
        torch.export.save(torch.export.export(Modes(), inputs), tmp_path / "modes.pt2")
        with pytest.raises(InputError, match="behind a vmap"):
            read_graph(tmp_path / "modes.pt2")


def test_regions_of_archives_are_inlined(tmp_path):
    """`with torch.no_grad()` was one op in an archive, under another name than in its program."""
    torch = pytest.importorskip("torch")

    class Regions(torch.nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y, z = torch.relu(x @ x), x + 1
            with torch.no_grad():
                y = torch.exp(y)
            return y.sum() + z

    inputs, path = (torch.zeros(3, 3),), tmp_path / "regions.pt2"
    torch.export.save(torch.export.export(Regions(), inputs), path)
    live, archived = from_torch(Regions(), inputs), read_graph(path)
    assert archived.op_names == live.op_names
    assert archived.op_types == ("matmul", "relu", "add", "exp", "sum", "add")
    assert archived.bytes_moved.tolist() == live.bytes_moved.tolist()
    assert archived.consumer.tolist() == live.consumer.tolist()


def test_products_with_packed_weights_are_products():
    """What quantised linear layers call cost a flop per element of its output."""
    torch = pytest.importorskip("torch")

    class Packed(torch.nn.Module):
        def forward(self, x, w8, s8, w4, s4):
            y = torch.ops.aten._weight_int8pack_mm(x, w8, s8)
            return torch.ops.aten._weight_int4pack_mm_for_cpu(y, w4, 32, s4)

    w8, w4 = torch.zeros(64, 32, dtype=torch.int8), torch.zeros(16, 32, dtype=torch.uint8)
    inputs = (torch.zeros(4, 32), w8, torch.ones(64), w4, torch.ones(2, 16, 2))
    graph = from_torch(
        Packed(), tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    )
    assert graph.flops.tolist() == [2 * 4 * 32 * 64, 2 * 4 * 64 * 16]
    assert not graph.unshaped.any()


def test_complex_products_are_four_real_ones():
    """They cost as much as real ones of their shapes, and complex weights were no parameters."""
    torch = pytest.importorskip("torch")

    class Complex(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(8, 4, dtype=torch.complex64))

        def forward(self, x):
            return x @ self.w

    graph = from_torch(Complex(), (torch.zeros(2, 8, dtype=torch.complex64),))
    assert graph.flops.tolist() == [4 * 2 * 2 * 8 * 4]
    assert graph.parameters.tolist() == [8 * 4]


def test_writes_into_views_are_not_lost(tmp_path):
    """What was written into a part of a tensor was left out with all before it, and who reads the
    whole depended on nothing of it; an archive tells how it is to be saved.
    """
    torch = pytest.importorskip("torch")

    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(8, 8)

        def forward(self, x):
            found = torch.zeros_like(x)
            for step in range(2):
                found[:, step] = self.a(x[:, step])
            return torch.relu_(found)

    inputs = (torch.ones(2, 3, 8),)
    graph = from_torch(Steps(), inputs)
    assert graph.op_types.count("linear") == 2
    assert int(graph.parameters.sum()) == 8 * 9
    parts = set(graph.consumer.tolist()) | set(graph.producer.tolist())
    assert len(parts) == graph.num_ops
    program = torch.export.export(Steps(), inputs)
    torch.export.save(program, tmp_path / "steps.pt2")
    with pytest.raises(InputError, match=r"'copy' writes into a tensor.*run_decompositions"):
        read_graph(tmp_path / "steps.pt2")
    torch.export.save(program.run_decompositions({}), tmp_path / "steps.pt2")
    assert read_graph(tmp_path / "steps.pt2").op_types.count("linear") == 2


def test_names_in_place_are_writes():
    """A write counts where its tensor is read under an older name, also through a view."""
    add = ("aten.add_.Tensor", ["x", "y"], ["z"])
    view = ("aten.select.int", ["x"], ["v"])
    assert lost_write([add, ("aten.relu.default", ["x"], ["r"])]) == "aten.add_.Tensor"
    assert lost_write([view, add, ("aten.relu.default", ["v"], ["r"])]) == "aten.add_.Tensor"
    assert lost_write([("aten.relu.default", ["x"], ["r"]), add, ("", ["z", "r"], [])]) == ""
    assert lost_write([("aten.__and__.Tensor", ["x", "y"], ["z"]), ("", ["x"], [])]) == ""


def test_what_cannot_be_exported():
    """No module, or one that torch cannot trace, gives one line."""
    torch = pytest.importorskip("torch")

    class Bad(torch.nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module, received int"):
        from_torch(3, ())
    with pytest.raises(InputError, match="cannot export Bad") as error:
        from_torch(Bad(), (torch.zeros(3),))
    assert "\n" not in str(error.value)


def test_bags_of_embeddings():
    """A bag of embeddings reads the rows it adds up, and several that share a table keep it once."""
    torch = pytest.importorskip("torch")

    class Bags(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.EmbeddingBag(50, 8, mode="sum")

        def forward(self, few, many):
            return self.table(few) + self.table(many)

    graph = from_torch(Bags().eval(), (torch.zeros(4, 2).long(), torch.zeros(4, 20).long()))
    bags = [i for i, name in enumerate(graph.op_types) if name == "embedding_bag"]
    assert graph.flops[bags].tolist() == [4 * 2 * 8, 4 * 20 * 8]
    assert (graph.bytes_moved[bags] > 4 * graph.flops[bags]).all()
    assert int(graph.parameters.sum()) == 50 * 8
    assert len(set(graph.colocation[bags].tolist())) == 1
    assert int(graph.resident[bags].sum()) < 1.1 * 4 * 50 * 8


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_archives_give_the_same_graph(net, tmp_path):
    """A .pt2 file is read, without torch, to the graph that the live module gives, and so is a
    program that was exported.
    """
    torch = pytest.importorskip("torch")
    module, inputs = net
    torch.export.save(torch.export.export(module, inputs), tmp_path / "net.pt2")
    live, stored = from_torch(module, inputs), read_graph(tmp_path / "net.pt2")
    assert (live.op_types, live.layer, live.shapes) == (
        stored.op_types,
        stored.layer,
        stored.shapes,
    )
    given, _ = load_graph(torch.export.export(module, inputs), name=live.name)
    assert to_dict(given) == to_dict(live)
    for key in (
        "producer",
        "consumer",
        "consumer_ptr",
        "tensor_bytes",
        "flops",
        "bytes_moved",
        "resident",
        "parameters",
        "colocation",
        "unshaped",
    ):
        assert np.array_equal(getattr(live, key), getattr(stored, key)), key
    code = (
        "import sys; from placeopt.instances.readers import read_graph; "
        f"read_graph({str(tmp_path / 'net.pt2')!r});"
    )
    out = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "False"


# --- archives without torch
# -----------------------------------------------------------------------------


def program(**changes):
    """Return the JSON of a program y = linear(x, w)."""

    def size(*dims):
        return {"dtype": 7, "sizes": [{"as_int": d} for d in dims]}

    def tensor(name):
        return {"as_tensor": {"name": name}}

    graph = {
        "inputs": [tensor("w"), tensor("x")],
        "outputs": [tensor("y")],
        "nodes": [
            {
                "target": "torch.ops.aten.linear.default",
                "inputs": [
                    {"name": "input", "arg": tensor("x")},
                    {"name": "weight", "arg": tensor("w")},
                ],
                "outputs": [tensor("y")],
                "metadata": {"nn_module_stack": "L__self__,,Net;L__self___fc,fc.0,torch.nn.Linear"},
            }
        ],
        "tensor_values": {"x": size(3, 5), "w": size(2, 5), "y": size(3, 2)},
        **changes,
    }
    specs = [
        {"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    return json.dumps(
        {"graph_module": {"graph": graph, "signature": {"input_specs": specs, "output_specs": []}}}
    )


def archive(tmp_path, text, name="m/models/model.json", **options):
    """Write an archive and return its path."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("m/archive_version", "0")
        file.writestr(name, text)
    return path


def test_a_program_by_hand(tmp_path):
    """An archive made by hand is read, found by content."""
    graph = read_graph(archive(tmp_path, program()))
    assert (graph.op_types, graph.layer) == (("linear",), ("fc/0",))
    assert (graph.flops.tolist(), graph.parameters.tolist()) == ([60], [10])


TENSOR = {"as_tensor": {"name": "y"}}
SIZE = {"dtype": 7, "sizes": [{"as_int": 5}]}

BAD = {
    "empty graph": (program(nodes=[]), "no op"),
    "dangling": (program(tensor_values={"w": SIZE, "y": SIZE}), "reads 'x', which is neither"),
    "undeclared": (
        program(outputs=[], tensor_values={"w": SIZE, "x": SIZE}),
        "output 'y' has no entry",
    ),
    "nodes of wrong type": (program(nodes=3), "not the JSON of an exported program"),
    "sizes of wrong type": (
        program(tensor_values={"x": {"dtype": 7, "sizes": [3]}}),
        "not the JSON",
    ),
    "empty argument": (
        program(
            nodes=[{"target": "aten.neg.default", "inputs": [{"arg": {}}], "outputs": [TENSOR]}]
        ),
        "an argument of an op is empty",
    ),
    "no program": ("{}", "not the JSON of an exported program"),
    "no JSON": ("{", "truncated JSON"),
    "no text": (b"\xff\xfe", "expected UTF-8"),
    "deep": ("[" * 200_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", BAD)
def test_malformed_programs(case, tmp_path):
    """Each defect is one line."""
    text, part = BAD[case]
    with pytest.raises(InputError) as error:
        read_graph(archive(tmp_path, text))
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_zip_bombs_are_not_unpacked(tmp_path):
    """A program that unpacks to more than the limit is given up at the limit."""
    path = archive(tmp_path, b" " * 2**26, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**17
    with pytest.raises(InputError, match="unpacks to more than the limit of 1048576 bytes"):
        read_graph(path, max_bytes=2**20)


def test_other_and_damaged_archives(tmp_path):
    """A zip of something else, and cut or mutated archives, give one line."""
    with pytest.raises(InputError, match=r"not of torch\.export"):
        read_graph(archive(tmp_path, "x", name="readme.txt"))
    good = archive(tmp_path, program()).read_bytes()
    path = tmp_path / "bad.pt2"
    rng = np.random.default_rng(1)
    cases = [good[: int(cut)] for cut in np.linspace(4, len(good) - 1, 40)]
    for _ in range(80):
        data = bytearray(good)
        data[int(rng.integers(4, len(data)))] = int(rng.integers(256))
        cases.append(bytes(data))
    for data in cases:
        path.write_bytes(data)
        assert "\n" not in refusal(path)


def refusal(path) -> str:
    """Return the message with which a file is refused, "" if it is read."""
    try:
        read_graph(path)
    except InputError as error:
        return str(error)
    return ""


def test_names_of_targets_and_modules():
    """Targets in every notation have one base name; module paths become layers."""
    targets = ("torch.ops.aten.add.Tensor", "aten.add.Tensor", "aten.add_.Tensor", "aten::add")
    assert {base_name(t) for t in targets} == {"add"}
    assert module_path("layers.0.attn") == "layers/0/attn"
    assert module_path("L['self'].layers[0].attn") == "layers/0/attn"
    assert module_path("") == ""


@pytest.mark.parametrize("archived", [False, True])
def test_nested_graphs_cost_their_bodies(tmp_path, archived):
    """A cond costs its dearer branch, a while_loop its body times the trip count that is given,
    else once and flagged.
    """
    torch = pytest.importorskip("torch")
    from torch._higher_order_ops.while_loop import while_loop

    class Flow(torch.nn.Module):
        def forward(self, x, turns):
            x = torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + 1, (x,))
            return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ y), (turns, x))[1]

    inputs = (torch.zeros(8, 8), torch.tensor(0))
    path = tmp_path / "flow.pt2"
    torch.export.save(torch.export.export(Flow(), inputs), path)

    def read(**options):
        return read_graph(path, **options) if archived else from_torch(Flow(), inputs, **options)

    product = 2 * 8 * 8 * 8
    graph, told = read(), read(trip_count=5)
    branch = next(i for i, kind in enumerate(graph.op_types) if kind == "cond")
    loop = next(i for i, kind in enumerate(graph.op_types) if kind == "while_loop")
    assert product <= graph.flops[branch] < 1.2 * product
    assert product <= graph.flops[loop] < 1.2 * product
    assert 5 * product <= told.flops[loop] < 6 * product
    assert (
        bool(graph.unshaped[loop]),
        bool(told.unshaped[loop]),
        bool(graph.unshaped[branch]),
    ) == (True, False, False)
    assert graph.bytes_moved[branch] > 3 * 8 * 8 * 4
