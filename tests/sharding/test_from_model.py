"""Sharding problems from models: collectives by hand, rules by shapes, known layouts, the
command.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.clusters import make_cluster
from placeopt.instances.generators import generate
from placeopt.instances.generators.builder import GraphBuilder
from placeopt.model.cluster import Link
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.sharding.evaluate import evaluate, total_cost, usage_profile
from placeopt.sharding.from_model import sharding_model
from placeopt.sharding.layout_table import (
    layout_rows,
    megatron_layout,
    torch_parameter_layouts,
)
from placeopt.sharding.layouts import (
    PARTIAL,
    REPLICATE,
    Axis,
    change_seconds,
    change_steps,
    mesh_axes,
    parse_mesh,
    partition_spec,
    torch_placements,
)
from placeopt.sharding.op_rules import Form, matched_dimensions, ways_of
from placeopt.sharding.problem import ShardingSolution

AXES = (Axis(2, 1.0, 10.0), Axis(4, 0.5, 100.0))
CLUSTER = "8xA100?precision=fp16"


def two_layers(batch=8, width=512):
    """Return x -> linear -> relu -> linear, the smallest graph with Megatron's layout."""
    b = GraphBuilder("mlp", 2)
    x = b.unary("relu", b.input(batch, 64, width), name="start")
    x = b.relu(b.linear(x, 4 * width, bias=False, name="up"))
    b.unary("relu", b.linear(x, width, bias=False, name="down"), name="end")
    return b.build()


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ((-1, -1), (0, 1), 0.0),  # slices are free
        ((-1, 0), (-1, -1), 3 * 0.5 + 800 * 3 / 4 / 100),  # all-gather over 4
        ((-1, -2), (-1, -1), 6 * 0.5 + 2 * 800 * 3 / 4 / 100),  # all-reduce over 4
        ((-1, -2), (-1, 0), 3 * 0.5 + 800 * 3 / 4 / 100),  # reduce-scatter over 4
        ((-1, 0), (-1, 1), 3 * 0.5 + 200 * 3 / 4 / 100),  # all-to-all over 4
        ((0, -2), (0, -1), 6 * 0.5 + 2 * 400 * 3 / 4 / 100),  # all-reduce of half of it
        ((-2, -1), (0, -1), 1 * 1.0 + 800 / 2 / 10),  # reduce-scatter over 2
        ((-1, -1), (-2, -1), 0.0),  # every device takes its part of the value
        ((-1, 0), (-1, -2), math.inf),
    ],
)
def test_collectives_cost_what_rings_take(before, after, seconds):
    """800 bytes on 2 x 4 devices, by hand."""
    assert change_seconds(800, before, after, AXES) == pytest.approx(seconds)


def test_changes_need_no_detour():
    """No change between two layouts is dearer than gathering everything and slicing."""
    places = [REPLICATE, 0, 1]
    for before, after in itertools.product(
        itertools.product([*places, PARTIAL], repeat=2), itertools.product(places, repeat=2)
    ):
        whole = (REPLICATE, REPLICATE)
        detour = change_seconds(800, before, whole, AXES) + change_seconds(800, whole, after, AXES)
        assert change_seconds(800, before, after, AXES) <= detour + 1e-9


def test_words_of_torch_and_jax():
    """The same layout in both vocabularies."""
    assert torch_placements((0, REPLICATE)) == "[Shard(0), Replicate()]"
    assert torch_placements((1, PARTIAL)) == "[Shard(1), Partial()]"
    assert partition_spec((0, 2), 3) == "P('x', None, 'y')"
    assert partition_spec((1, 1), 3) == "P(None, ('x', 'y'))"
    assert partition_spec((PARTIAL, REPLICATE), 2) == "P()"


@pytest.mark.parametrize(
    ("given", "made", "pairs"),
    [
        ((8, 2048, 4096), (8, 32, 2048, 128), [(0, 0), (1, 2), (2, 1)]),
        ((8, 32, 2048, 128), (8, 2048, 4096), [(0, 0), (1, 2), (2, 1)]),
        ((4, 128, 256), (4, 128, 8, 32), [(0, 0), (1, 1), (2, 2)]),
        ((4, 128, 8, 32), (4, 8, 128, 32), [(0, 0), (1, 2), (2, 1), (3, 3)]),
        ((8, 128, 8, 32), (8, 8, 128, 32), [(0, 0), (1, 2), (2, 1), (3, 3)]),
        ((2, 16, 96), (2, 16, 32), [(0, 0), (1, 1), (2, 2)]),
    ],
)
def test_dimensions_are_followed_through_views(given, made, pairs):
    """Heads come from the hidden dimension, and go back into it."""
    assert matched_dimensions(given, made) == pairs


def test_rules_of_products():
    """A matrix product of activations splits batch, rows, columns and terms; a turned operand is
    seen.
    """
    scores = ways_of(Form("matmul", ((2, 4, 64, 16), (2, 4, 64, 16)), ((2, 4, 64, 64),), ()))
    by_name = {way.name: way for way in scores}
    assert by_name["rows 1"].inputs == (1, 1)
    assert by_name["row"].inputs == (3, 3)
    assert by_name["row"].outputs == (PARTIAL,)
    assert sorted(by_name["column"].inputs) == [REPLICATE, 2]


def test_two_layers_cost_what_they_should():
    """Megatron's layout of two layers: the compute of an eighth, and one all-reduce."""
    graph = two_layers()
    model = sharding_model(graph, make_cluster(CLUSTER), (2, 4))
    solution = megatron_layout(model)
    names = {row["op"]: row["strategy"] for row in layout_rows(model, solution)}
    assert names["up"] == "rows 0 x column"
    assert names["down"] == "rows 0 x row"
    device, axis = make_cluster(CLUSTER).devices[0], model.axes[1]
    work = 0.0
    for op in range(graph.num_ops):
        chosen = model.strategies[op][solution.strategy[op]]
        moved = sum(
            graph.tensor_bytes[t] / model_share(model, x)
            for t, x in zip(model.reads[op], chosen.inputs, strict=True)
        )
        moved += graph.tensor_bytes[op] / model_share(model, chosen.outputs[0])
        moved += graph.resident[op] / model_share(model, chosen.weight)
        work += (
            max(graph.flops[op] / chosen.parts / device.peak_flops, moved / device.memory_bandwidth)
            + device.launch_overhead
        )
    size = graph.tensor_bytes[2] / 4 / 2  # the output of the last product on half of the batch
    reduce = 6 * axis.latency + 2 * size * 3 / 4 / axis.bandwidth
    assert total_cost(model.problem, solution) == pytest.approx((work + reduce) * 1e9, abs=6)


def test_shares_are_priced_by_the_kernels_of_their_values():
    """16-bit values take the rates of their kernels without a precision, others the device's."""
    graph = two_layers()
    model = sharding_model(graph, make_cluster("8xA100"), (2, 4))
    device = make_cluster("8xA100").devices[0]
    products = [op for op in range(graph.num_ops) if graph.op_types[op] == "linear"]
    for op in products:
        parts = np.array([strategy.parts for strategy in model.strategies[op]])
        cost = model.problem.cost[model.problem.node_ptr[op] : model.problem.node_ptr[op + 1]]
        work = graph.flops[op] / device.half.flops
        moved = graph.bytes_moved[op] / device.half.bandwidth
        whole = (max(work, moved) + device.half.launch) * 1e9
        assert cost[parts == 1] == pytest.approx(whole, abs=1)
    assert len(products) == 2


def model_share(model, layout):
    """Number of parts of a tensor of a layout."""
    return math.prod(a.size for a, p in zip(model.axes, layout, strict=True) if p >= 0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("source", ["gen:llama?layers=1&batch=2", "gen:gpt2?layers=1&batch=2"])
def test_megatron_is_beaten_or_met(source, training):
    """The choice found is no dearer than Megatron's layout and proved to within 5 %."""
    model = sharding_model(generate(source), make_cluster(CLUSTER), (2, 4), training=training)
    reference = megatron_layout(model)
    result = po.solve(model.problem, evaluations=4000)
    assert result.value <= evaluate(model.problem, reference)
    assert result.gap <= 0.05
    assert usage_profile(model.problem, result.solution).peak <= model.problem.usage_limit


def test_less_memory_costs_no_less():
    """With less memory per device the best layout is no cheaper, and it keeps the limit."""
    graph, values = two_layers(batch=2, width=2048), []
    for memory in (2**40, 24 * 2**20, 12 * 2**20):
        model = sharding_model(graph, make_cluster(CLUSTER), (2, 4), memory=memory)
        result = po.solve(model.problem, evaluations=2000)
        assert result.status == "optimal"
        assert usage_profile(model.problem, result.solution).peak <= memory
        values.append(result.value)
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_training_counts_three_passes_and_keeps_the_state():
    """Replicated everywhere, training takes three times the forward pass and keeps 16 bytes per
    value.
    """
    graph = two_layers()
    plain, trained = (
        sharding_model(graph, make_cluster(CLUSTER), (2, 4), training=t) for t in (False, True)
    )
    whole = ShardingSolution(np.zeros(plain.problem.num_nodes, dtype=np.int64))
    assert (
        trained.problem.usage[trained.problem.node_ptr[graph.num_ops]] == 16 * graph.parameters[1]
    )
    kept = (
        2
        * 16
        * int(graph.parameters.sum())
        / make_cluster(CLUSTER).devices[0].memory_bandwidth
        * 1e9
    )
    forward = total_cost(plain.problem, whole)
    assert total_cost(trained.problem, whole) == pytest.approx(3 * forward + kept, rel=1e-3)


def test_meshes_are_checked():
    """Sizes that are none, and clusters of another size, are refused in one line; hosts lie on the
    first axis.
    """
    with pytest.raises(InputError, match="2x4"):
        parse_mesh("2*4")
    with pytest.raises(InputError, match="8 devices"):
        mesh_axes(make_cluster("4xA100"), (2, 4))
    outer, inner = mesh_axes(make_cluster("2x4xA100"), (2, 4))
    assert outer.bandwidth < inner.bandwidth


def test_the_slower_direction_of_a_link_counts():
    """Rings send along every link of an axis; devices that answer slowly are slow on both."""
    cluster = make_cluster("4xA100")
    back = Link("back", latency=1.0, bandwidth=10.0)
    slow = replace(
        cluster,
        links=(*cluster.links, back),
        link_class=np.where(np.tri(4, k=-1) > 0, len(cluster.links), cluster.link_class),
    )
    for axis in mesh_axes(slow, (2, 2)):
        assert (axis.latency, axis.bandwidth) == (1.0, 10.0)


def test_an_exported_module_is_sharded(tmp_path):
    """A torch.export file of two layers: Megatron's column and row are found as ways, the gap
    closed.
    """
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256), torch.nn.ReLU()
    )
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (torch.zeros(8, 32, 256),)), path)
    graph = po.read_graph(path)
    model = sharding_model(graph, make_cluster(CLUSTER), (2, 4))
    strategies = {row["strategy"] for row in layout_rows(model, megatron_layout(model))}
    assert {"rows 0 x column", "rows 0 x row"} <= strategies
    result = po.solve(model.problem, evaluations=2000)
    assert result.status == "optimal"


def test_the_command_writes_what_can_be_verified(tmp_path, capsys):
    """`shard --json --out`: the table, and a problem and a result that `verify` takes."""
    from placeopt.cli import main

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        assert end.value.code == 0
        return json.loads(capsys.readouterr().out)

    data = call(
        "shard",
        "gen:llama?layers=1&hidden=256&heads=4&ffn=512&vocab=512&seq=128&batch=2",
        "-t",
        "1",
        "--json",
        "--out",
        str(tmp_path),
    )
    assert {
        "value",
        "lower_bound",
        "gap",
        "usage_peak",
        "usage_limit",
        "strategies",
        "table",
    } <= data.keys()
    assert data["value"] <= data["megatron"]["value"]
    assert len(data["table"]) == len(data["strategies"])
    report = call(
        "verify", str(tmp_path / "problem.json"), str(tmp_path / "result.json"), "-t", "1", "--json"
    )
    assert report["feasible"]
    assert report["value"] == data["value"]
    solved = call(
        "solve",
        str(tmp_path / "problem.json"),
        "-t",
        "1",
        "--json",
        "--solver",
        "sharding-portfolio",
    )
    assert {"usage_peak", "usage_limit", "strategies"} <= solved.keys()
    assert call("info", str(tmp_path / "problem.json"), "--json")["nodes"] == len(
        data["strategies"]
    )
    with pytest.raises(SystemExit) as end:
        main(["shard", str(tmp_path / "problem.json")])
    assert end.value.code == 2
    assert "placeopt solve" in capsys.readouterr().err


def call_of(op, *shapes):
    """Return a call on fake tensors of these shapes."""
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode

    from placeopt.sharding.torch_calls import traced

    with torch.no_grad(), FakeTensorMode():
        return traced(op(torch.ops.aten), tuple(torch.empty(shape) for shape in shapes), {})[1]


def test_steps_are_those_of_dtensor():
    """Every change of layout on 2 x 4 and 2 x 2 x 2 devices takes torch's steps in torch's order."""
    torch = pytest.importorskip("torch")
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached

    from placeopt.sharding.torch_calls import code, placement

    for sizes in ((2, 4), (2, 2, 2)):
        mesh = DeviceMesh("cpu", torch.arange(8).reshape(sizes), _init_backend=False, _rank=0)
        meta = TensorMeta(torch.Size((16, 16)), (16, 1), torch.float32)
        layouts = list(itertools.product((REPLICATE, PARTIAL, 0, 1), repeat=len(sizes)))
        specs = {x: DTensorSpec(mesh, tuple(map(placement, x)), meta) for x in layouts}
        for before, after in itertools.product(layouts, repeat=2):
            steps = change_steps(before, after)
            infos = _gen_transform_infos_non_cached(specs[before], specs[after])
            torchs = [(i.mesh_dim, *map(code, i.src_dst_placements)) for i in infos]
            possible = all(now == REPLICATE or then != PARTIAL for _, now, then in torchs)
            assert (steps is not None) == possible
            assert steps is None or [tuple(step) for step in steps] == torchs
            for step, info in zip(steps or (), infos, strict=False):
                assert step.collective == (info._comm_type_key() or "")


@pytest.mark.parametrize(
    ("op", "shapes", "weight", "kind"),
    [
        (lambda aten: aten.linear.default, [(8, 16, 64), (128, 64)], (64, 128), "linear"),
        (lambda aten: aten.add.Tensor, [(8, 16, 64), (8, 16, 64)], (), "add"),
        (lambda aten: aten.matmul.default, [(8, 4, 16, 32), (8, 4, 32, 64)], (), "matmul"),
        (lambda aten: lambda x: aten.softmax.int(x, -1), [(8, 16, 64)], (), "softmax"),
        (lambda aten: lambda x: aten.view.default(x, [8, 16, 4, 16]), [(8, 16, 64)], (), "view"),
        (lambda aten: aten.gelu.default, [(8, 16, 64)], (), "gelu"),
    ],
)
def test_dtensor_knows_the_ways_of_the_table(op, shapes, weight, kind):
    """Where both apply, every way read off the shapes is one of DTensor's, which has summands too."""
    pytest.importorskip("torch")
    from placeopt.sharding.torch_calls import TorchRules

    call = call_of(op, *shapes)
    found = {(way.inputs, way.outputs) for way in TorchRules((4,)).ways(call, 4)}
    inputs = tuple(shapes[:1] if weight else shapes)
    for way in ways_of(Form(kind, inputs, (tuple(call.outputs[0].shape),), weight)):
        own = {REPLICATE: REPLICATE, 0: 1, 1: 0}[way.weight]  # torch stores (out, in)
        operands = (*way.inputs, own) if weight else way.inputs
        assert (operands, way.outputs) in found, way


def test_rules_leave_out_what_costs_more():
    """A replicated operand that could be split is dropped; an op without a rule is only replicated;
    no mesh of the process is touched.
    """
    torch = pytest.importorskip("torch")
    from placeopt.sharding.torch_calls import TorchRules

    rules = TorchRules((2, 4))
    ways = rules.ways(call_of(lambda aten: aten.add.Tensor, (8, 16), (8, 16)), 4)
    assert {way.inputs for way in ways} == {(-1, -1), (0, 0), (1, 1), (-2, -2)}
    unknown = call_of(lambda aten: lambda x: aten.renorm.default(x, 2, 0, 1.0), (8, 8))
    assert [way.name for way in rules.ways(unknown, 4)] == ["R"]
    assert rules.agrees(unknown, [(REPLICATE, REPLICATE)], [(REPLICATE, REPLICATE)])
    assert not rules.agrees(unknown, [(REPLICATE, 1)], [(REPLICATE, 1)])
    assert not torch.distributed.is_initialized()


def test_many_unlike_operands_are_tried_in_few_combinations():
    """Where inputs of one shape placed alike leave too many, those of as many dimensions are placed
    alike: two devices, summands, or whole.
    """
    pytest.importorskip("torch")
    from placeopt.sharding.torch_calls import TorchRules

    shapes = [(8, 4 * n) for n in range(1, 8)]
    joined = call_of(lambda aten: lambda *rows: aten.cat.default(list(rows), 1), *shapes)
    rules = TorchRules((2,))
    ways = rules.ways(joined, 2)
    assert {way.inputs for way in ways} == {(place,) * 7 for place in (REPLICATE, 0, PARTIAL)}
    assert len(rules.known) < 10


def test_ways_of_two_axes_join_as_torch_joins_them(monkeypatch):
    """What is put together axis by axis is what DTensor says of the whole mesh, which is slower."""
    pytest.importorskip("torch")
    from placeopt.sharding.torch_calls import TorchRules

    call = call_of(lambda aten: aten.linear.default, (16, 8, 32), (64, 32))
    quick, plain = TorchRules((2, 2)), TorchRules((2, 2))
    monkeypatch.setattr(plain, "_by_axis", lambda op: False)
    ways, seen = quick.ways(call, 2), set()
    for chosen in itertools.product(ways[:5], repeat=2):
        inputs = list(zip(*(way.inputs for way in chosen), strict=True))
        outputs = list(zip(*(way.outputs for way in chosen), strict=True))
        found = quick.agrees(call, inputs, outputs)
        assert found == plain.agrees(call, inputs, outputs), [way.name for way in chosen]
        seen.add(found)
    assert True in seen


def test_a_weight_beside_an_empty_operand_has_a_layout():
    """A cache of length 0 is joined with what an op has learned: there is nothing to divide by."""
    graph = OpGraph.from_tensors(
        "cache",
        ["empty", "join", "end"],
        [(0, 0, [1]), (1, 128, [2]), (2, 128, [])],
        op_types=("relu", "concat", "relu"),
        flops=np.ones(3, np.int64),
        bytes_moved=np.array([0, 256, 256]),
        parameters=np.array([0, 32, 0]),
        resident=np.array([0, 128, 0]),
        shapes=((4, 0), (4, 8), (4, 8)),
    )
    model = sharding_model(graph, make_cluster("4xA100"), (2, 2))
    assert [weight.values for weight in model.weights] == [32]


def test_weights_may_have_the_names_of_inputs_and_calls():
    """`torch.nn.functional.embedding(x, self.embedding)`: every parameter is still found by its name."""
    torch = pytest.importorskip("torch")
    from placeopt.instances.sources import load_graph
    from placeopt.programs.torch_program import torch_program

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Parameter(torch.zeros(32, 8))
            self.linear = torch.nn.Parameter(torch.zeros(16, 8))
            self.register_buffer("x", torch.ones(8))

        def forward(self, x):
            rows = torch.nn.functional.embedding(x, self.embedding)
            return torch.nn.functional.linear(rows * self.x, self.linear)

    module, inputs = Named(), (torch.zeros(4, 8, dtype=torch.int64),)
    graph, _ = load_graph(module, inputs=inputs)
    program = torch_program(module, inputs=inputs)
    model = sharding_model(graph, make_cluster("4xA100"), (2, 2), program=program)
    solution = ShardingSolution(np.zeros(model.problem.num_nodes))
    rows = torch_parameter_layouts(model, solution)
    assert {row.name: row.shape for row in rows} == {
        "embedding": (32, 8),
        "linear": (16, 8),
        "x": (8,),
    }
    assert "linear (weight)" in model.graph.op_names
