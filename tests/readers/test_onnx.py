"""ONNX: the models of the onnx package, hand-made models, and damaged ones."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from placeopt.instances.readers import read_graph
from placeopt.instances.readers.onnx_file import list_models
from placeopt.instances.readers.onnx_reader import parse_dims
from placeopt.model.errors import InputError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

# parameters as published (BVLC's and torchvision's models), 1e9 multiply-adds of the convolutions
# and products
LIGHT = {
    "bvlc_alexnet": (60_965_224, 0.66),
    "densenet121": (7_978_856, 2.83),
    "inception_v1": (6_998_552, 1.43),
    "inception_v2": (11_194_984, 2.02),
    "resnet50": (25_557_032, 4.09),
    "shufflenet": (1_393_320, 0.127),
    "squeezenet": (1_235_496, 0.35),
    "vgg19": (143_667_240, 19.63),
    "zfnet512": (87_250_536, 1.48),
}


def test_all_light_models_are_found():
    """The models inside the onnx package are found wherever the installed version keeps them."""
    assert set(list_models()) == set(LIGHT)


@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name):
    """Parameters are exactly the published ones, flops within 3 %, every shape known, weights on
    their ops.
    """
    graph = read_graph(f"onnx:{name}")
    parameters, macs = LIGHT[name]
    assert graph.name == name
    assert int(graph.parameters.sum()) == parameters
    assert int(graph.flops.sum()) == pytest.approx(2e9 * macs, rel=0.03)
    assert not graph.unshaped.any()
    assert int(graph.resident.sum()) == pytest.approx(4 * parameters, rel=0.01)
    assert len(graph.shapes) == graph.num_tensors
    sizes = [4 * int(np.prod(shape)) for shape in graph.shapes]
    assert graph.tensor_bytes.tolist() == sizes
    assert (graph.bytes_moved[np.array(graph.op_types) != "Reshape"] > 0).all()
    assert not set(graph.op_types) & {
        "Constant",
        "ConstantOfShape",
        "Unsqueeze",
        "Dropout",
        "Identity",
    }
    assert (graph.colocation == -1).all()


@pytest.mark.parametrize("name", LIGHT)
def test_flops_agree_with_an_independent_count(name):
    """Multiply-adds of convolutions and products, counted from the package's own shapes, are nearly
    all flops.
    """
    model = onnx.shape_inference.infer_shapes(onnx.load(list_models()[name]))
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info
    }
    shapes |= {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*model.graph.input, *model.graph.output]
    }
    macs = sum(
        int(np.prod(shapes[n.output[0]])) * int(np.prod(shapes[n.input[1]][1:]))
        for n in model.graph.node
        if n.op_type in ("Conv", "Gemm")
    )
    flops = int(read_graph(f"onnx:{name}").flops.sum())
    assert 2 * macs < flops < 2.1 * macs


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "shufflenet"])
def test_fusing_keeps_sums(name):
    """Fusing removes batch norms and their remnants; parameters stay, flops hardly change."""
    fused, plain = read_graph(f"onnx:{name}"), read_graph(f"onnx:{name}", fuse=False)
    assert plain.op_types.count("BatchNormalization") > fused.op_types.count("BatchNormalization")
    assert fused.op_types.count("Conv") == plain.op_types.count("Conv")
    assert int(fused.flops.sum()) == pytest.approx(int(plain.flops.sum()), rel=0.02)
    if name != "densenet121":  # its Caffe batch norms carry scales of their own, which are all one
        assert int(fused.parameters.sum()) == int(plain.parameters.sum())
    assert fused.num_ops < plain.num_ops


def test_resnet50_structure():
    """ResNet-50 has 53 convolutions, 16 residual sums, one classifier of 2048 x 1000 and 224 x 224
    inputs.
    """
    graph = read_graph("onnx:resnet50")
    assert (
        graph.op_types.count("Conv"),
        graph.op_types.count("Sum"),
        graph.op_types.count("Gemm"),
    ) == (53, 16, 1)
    gemm = graph.op_types.index("Gemm")
    assert graph.parameters[gemm] == 2048 * 1000 + 1000
    assert graph.flops[gemm] == 2 * 2048 * 1000 + 1000
    first = graph.op_types.index("Conv")
    assert graph.flops[first] == 112 * 112 * 64 * (
        2 * 7 * 7 * 3 + 1
    )  # its batch norm became a bias
    assert graph.parameters[first] == 7 * 7 * 3 * 64 + 2 * 64
    assert graph.resident[first] == 4 * (7 * 7 * 3 * 64 + 64)


def test_resnet50_agrees_with_the_generated_one():
    """The model of the onnx package and the one generated from the paper agree on parameters and
    flops.
    """
    from placeopt.instances.generators import generate

    ours, theirs = read_graph("onnx:resnet50", fuse=False), generate("gen:resnet50")
    assert int(ours.parameters.sum()) == int(theirs.parameters.sum())
    assert int(ours.flops.sum()) == pytest.approx(int(theirs.flops.sum()), rel=0.005)


def test_unknown_model_names_the_known_ones():
    """A wrong name gets the nearest one and the list."""
    with pytest.raises(
        InputError, match=r"did you mean onnx:resnet50\? known: bvlc_alexnet, densenet121"
    ):
        read_graph("onnx:resnet51")
    with pytest.raises(InputError, match="leave out format='dot'"):
        read_graph("onnx:resnet50", format="dot")
    assert read_graph("onnx:alexnet").name == "bvlc_alexnet"


# --- hand-made models
# -----------------------------------------------------------------------------------


def tensor(name, *shape, dtype=np.float32, value=None):
    """Return an initialiser of ones, or of `value`."""
    array = np.ones(shape, dtype=dtype) if value is None else np.asarray(value, dtype=dtype)
    return numpy_helper.from_array(array, name)


def info(name, *shape, dtype=TensorProto.FLOAT):
    """Return the declaration of an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape or None)


def save(tmp_path, nodes, inputs, outputs, weights=(), opset=18, **fields):
    """Write a model and return its path."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **fields
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def node(kind, inputs, outputs, **attributes):
    """Return a node; inputs and outputs are words in one text."""
    return helper.make_node(
        kind, inputs.split(), outputs.split(), name=attributes.pop("name", ""), **attributes
    )


def op(graph, kind):
    """Return the index of the only op of a type."""
    assert graph.op_types.count(kind) == 1, graph.op_types
    return graph.op_types.index(kind)


@pytest.mark.parametrize(
    ("nodes", "x", "weights", "flops", "parameters"),
    [
        (
            [node("Conv", "x w b", "y", group=2)],
            (1, 4, 8, 8),
            [tensor("w", 6, 2, 3, 3), tensor("b", 6)],
            2 * 6 * 6 * 6 * 2 * 9 + 6 * 36,
            6 * 18 + 6,
        ),
        (
            [node("ConvTranspose", "x w", "y")],
            (1, 4, 8, 8),
            [tensor("w", 4, 5, 2, 2)],
            2 * 4 * 64 * 5 * 4,
            80,
        ),
        ([node("MatMul", "x w", "y")], (3, 5, 7), [tensor("w", 7, 2)], 2 * 3 * 5 * 2 * 7, 14),
        (
            [node("Gemm", "x w b", "y", transA=1, transB=1)],
            (7, 5),
            [tensor("w", 2, 7), tensor("b", 2)],
            2 * 5 * 2 * 7 + 10,
            16,
        ),
        (
            [node("Einsum", "x w", "y", equation="bij,jk->bik")],
            (3, 5, 7),
            [tensor("w", 7, 2)],
            2 * 3 * 5 * 7 * 2,
            14,
        ),
        (
            [node("Einsum", "x w", "y", equation="...j,jk->...k")],
            (11, 3, 5, 7),
            [tensor("w", 7, 2)],
            2 * 11 * 3 * 5 * 7 * 2,
            14,
        ),
        ([node("MaxPool", "x", "y", kernel_shape=[2, 3])], (1, 4, 8, 8), [], 4 * 7 * 6 * 6, 0),
        ([node("GlobalAveragePool", "x", "y")], (1, 4, 8, 8), [], 256, 0),
        ([node("Softmax", "x", "y")], (2, 9), [], 5 * 18, 0),
        (
            [node("LayerNormalization", "x s b", "y")],
            (2, 9),
            [tensor("s", 9), tensor("b", 9)],
            8 * 18,
            18,
        ),
        (
            [node("BatchNormalization", "x s b m v", "y")],
            (1, 4, 8, 8),
            [tensor(k, 4) for k in "sbmv"],
            2 * 256,
            8,
        ),
        ([node("Relu", "x", "y")], (2, 9), [], 18, 0),
        ([node("Transpose", "x", "y")], (2, 9), [], 0, 0),
        (
            [node("LSTM", "x w r", "y", hidden_size=5)],
            (10, 2, 7),
            [tensor("w", 1, 20, 7), tensor("r", 1, 20, 5)],
            20 * 2 * (140 + 100) + 10 * 100,
            240,
        ),
        ([node("Gather", "w i", "y")], (1,), [tensor("w", 50, 8)], 0, 400),
        ([node("LRN", "x", "y", size=5)], (1, 4, 8, 8), [], 12 * 256, 0),
        ([node("Sum", "x x x", "y")], (2, 9), [], 2 * 18, 0),
    ],
    ids=lambda value: (
        value[0].op_type
        if isinstance(value, list) and value and hasattr(value[0], "op_type")
        else ""
    ),
)
def test_costs_of_single_ops(nodes, x, weights, flops, parameters, tmp_path):
    """Flops follow the textbook formula, a multiply-add being 2; bytes are inputs, weights and
    outputs.
    """
    inputs = [info("x", *x), info("i", 3, dtype=TensorProto.INT64)]
    graph = read_graph(save(tmp_path, nodes, inputs, [info("y")], weights))
    assert graph.num_ops == 1
    assert (int(graph.flops[0]), int(graph.parameters[0])) == (flops, parameters)
    stored = sum(int(np.prod(w.dims)) for w in weights) * 4
    assert graph.resident[0] == (4 * 8 if nodes[0].op_type == "BatchNormalization" else stored)
    if nodes[0].op_type not in ("Gather", "BatchNormalization"):
        written = int(np.prod(graph.shapes[0])) * 4
        assert graph.bytes_moved[0] == int(np.prod(x)) * 4 + stored + written


def test_constants_are_propagated_first(tmp_path):
    """Ops on weights alone vanish; a transposed or dequantised weight is still the stored one."""
    nodes = [
        node("Constant", "", "axes", value=tensor("c", value=[0], dtype=np.int64)),
        node("Transpose", "q", "t"),
        node("Cast", "t", "f", to=TensorProto.FLOAT),
        node("Sub", "f zero", "d"),
        node("Mul", "d scale", "w"),
        node("Unsqueeze", "b axes", "bias"),
        node("MatMul", "x w", "m"),
        node("Add", "m bias", "y"),
    ]
    weights = [
        tensor("q", 2, 7, dtype=np.int8),
        tensor("zero", 1),
        tensor("scale", 1),
        tensor("b", 2),
    ]
    graph = read_graph(
        save(tmp_path, nodes, [info("x", 3, 7)], [info("y", 3, 2)], weights), fuse=False
    )
    assert graph.op_types == ("MatMul", "Add")
    assert graph.resident.tolist() == [14, 8]
    assert graph.parameters.tolist() == [14, 2]
    fused = read_graph(tmp_path / "model.onnx")
    assert fused.op_types == ("MatMul",)
    assert (fused.flops[0], fused.parameters[0], fused.resident[0]) == (2 * 6 * 7 + 6, 16, 14 + 8)


def test_batch_norm_remnants_are_fused_only_where_nobody_looks(tmp_path):
    """Conv + BN + Mul + Add become one op; a second reader, another axis or c - x keep an op
    alone.
    """
    weights = [
        tensor("w", 6, 4, 1, 1),
        *(tensor(k, 6) for k in "sbmv"),
        tensor("g", 6, 1, 1),
        tensor("h", 6, 1, 1),
        tensor("row", 8),
    ]
    chain = [
        node("Conv", "x w", "c"),
        node("BatchNormalization", "c s b m v", "n"),
        node("Mul", "n g", "p"),
        node("Add", "h p", "q"),
    ]

    def kinds(nodes, outputs=("y",)):
        path = save(
            tmp_path, nodes, [info("x", 1, 4, 8, 8)], [info(name) for name in outputs], weights
        )
        return read_graph(path).op_types

    assert kinds([*chain, node("Relu", "q", "y")]) == ("Conv", "Relu")
    assert kinds([*chain, node("Relu", "q", "y"), node("Neg", "n", "z")], ("y", "z")) == (
        "Conv",
        "Mul",
        "Add",
        "Relu",
        "Neg",
    )
    assert kinds([*chain, node("Relu", "q", "y")], ("y", "c")) == (
        "Conv",
        "BatchNormalization",
        "Relu",
    )
    assert kinds([chain[0], node("Mul", "c row", "y")]) == ("Conv", "Mul")
    assert kinds([chain[0], node("Sub", "h c", "y")]) == ("Conv", "Sub")
    assert kinds([chain[0], node("Sub", "c h", "y")]) == ("Conv",)


SHAPE_CHAIN = [
    node("Shape", "x", "s"),
    node("Constant", "", "zero", value=numpy_helper.from_array(np.array(0), "c0")),
    node("Gather", "s zero", "batch", axis=0),
    node("Constant", "", "axes", value=numpy_helper.from_array(np.array([0]), "c1")),
    node("Unsqueeze", "batch axes", "b1"),
    node("Constant", "", "rest", value=numpy_helper.from_array(np.array([-1]), "c2")),
    node("Concat", "b1 rest", "target", axis=0),
    node("Reshape", "x target", "r"),
    node("MatMul", "r w", "m"),
    node("Dropout", "m", "y"),
]


def chain(tmp_path):
    """Write a model whose reshape is computed from the shape of its input, with a symbolic
    batch.
    """
    return save(tmp_path, SHAPE_CHAIN, [info("x", "N", 3, 4)], [info("y")], [tensor("w", 12, 5)])


def test_shape_arithmetic_is_folded(tmp_path):
    """With the symbolic dimension fixed, shape arithmetic is constant and every shape known."""
    for dims in ({"N": 7}, "N=7"):
        graph = read_graph(chain(tmp_path), dims=dims)
        assert graph.op_types == ("Reshape", "MatMul")
        assert not graph.unshaped.any()
        assert graph.flops[1] == 2 * 7 * 12 * 5
        assert graph.shapes == ((7, 12), (7, 5))
        assert graph.resident.tolist() == [
            16,
            240,
        ]  # the two numbers of the target shape, and the weight
    plain = read_graph(tmp_path / "model.onnx", dims="N=7", fold=False)
    assert plain.op_types == (
        "Shape",
        "Gather",
        "Unsqueeze",
        "Concat",
        "Reshape",
        "MatMul",
        "Dropout",
    )
    assert plain.flops[5] == graph.flops[1]


def test_unknown_dimensions_are_flagged_never_zero(tmp_path):
    """Without the dimension, ops are flagged, counted with dimension 1, and cost something."""
    graph = read_graph(chain(tmp_path))
    matmul = op(graph, "MatMul")
    assert graph.unshaped[matmul]
    assert graph.flops[matmul] >= 2 * 12 * 5
    assert graph.bytes_moved[matmul] > 0
    assert (graph.tensor_bytes > 0).all()
    assert not read_graph(f"{tmp_path}/model.onnx?dims=N=7&fuse=false").unshaped.any()


def test_unknown_ops_move_bytes_and_do_no_flops(tmp_path):
    """An op outside the standard has no known shape: it is flagged, moves what its kind moves, and
    does no other op's flops.
    """
    nodes = [
        node("MatMul", "x w", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "x w2", "c"),
        helper.make_node("Mystery", ["b", "c"], ["z"], domain="my.own"),
        node("Neg", "z", "y"),
    ]
    weights = [tensor("w", 7, 2), tensor("w2", 7, 4)]
    graph = read_graph(save(tmp_path, nodes, [info("x", 3, 7)], [info("y")], weights))
    assert graph.unshaped.tolist() == [False, False, False, True, True]
    assert graph.flops[3] == graph.flops[4] == 0
    assert (
        graph.bytes_moved[3]
        == graph.bytes_moved[4]
        == sorted(graph.bytes_moved[:3].tolist())[1]
        > 0
    )
    assert (graph.tensor_bytes > 0).all()


def test_ops_outside_the_standard_that_keep_the_shape(tmp_path):
    """Well-known contributed ops pass the shape of their first input on."""
    nodes = [
        helper.make_node("FastGelu", ["x"], ["a"], domain="com.microsoft"),
        node("Relu", "a", "y"),
    ]
    graph = read_graph(save(tmp_path, nodes, [info("x", 3, 7)], [info("y")]))
    assert not graph.unshaped.any()
    assert graph.flops.tolist() == [8 * 21, 21]


def test_ops_of_unknown_kinds_with_weights_are_flagged(tmp_path):
    """Experts of another standard cost a flop per element of their output, and no word said so."""
    for kind, dtype in (("MoE", np.float32), ("QMoE", np.uint8)):
        experts = helper.make_node(kind, ["x", "w"], ["m"], domain="com.microsoft")
        nodes = [experts, node("PRelu", "m s", "p"), node("Mul", "p c", "y")]
        weights = [tensor("w", 4, 7, 7, dtype=dtype), tensor("s", 7), tensor("c", 3, 1)]
        path = save(tmp_path, nodes, [info("x", 3, 7)], [info("m", 3, 7), info("y", 3, 7)], weights)
        assert read_graph(path, fuse=False).unshaped.tolist() == [True, False, False]


def test_dimensions_that_do_not_exist(tmp_path):
    """A wrong name gets the nearest one; a wrong value says what is expected."""
    path = save(tmp_path, [node("Relu", "x", "y")], [info("x", "batch", None, 4)], [info("y")])
    with pytest.raises(InputError, match="did you mean 'batch'"):
        read_graph(path, dims="batc=2")
    with pytest.raises(InputError, match="known: batch, x:1"):
        read_graph(path, dims="qqqqqq=2")
    for wrong in ("batch=0", "batch=x", "batch", {"batch": 1.5}, {"batch": True}):
        with pytest.raises(InputError, match=r"dimension batch: expected a whole number >= 1"):
            parse_dims(wrong)
    with pytest.raises(InputError, match="dims: expected a mapping"):
        read_graph(path, dims=["batch"])
    graph = read_graph(path, dims={"batch": 2, "x:1": 3})
    assert graph.shapes == ((2, 3, 4),)


def test_shared_weights(tmp_path):
    """A matrix used twice is kept once and its ops share a device; a vector used twice is
    copied.
    """
    nodes = [
        node("MatMul", "x w", "a"),
        node("MatMul", "z w", "b"),
        node("Mul", "a v", "c"),
        node("Mul", "b v", "d"),
        node("Sub", "c d", "y"),
    ]
    path = save(
        tmp_path,
        nodes,
        [info("x", 3, 7), info("z", 3, 7)],
        [info("y")],
        [tensor("w", 7, 2), tensor("v", 2)],
    )
    graph = read_graph(path, fuse=False)
    assert graph.colocation.tolist() == [0, 0, -1, -1, -1]
    assert graph.resident.tolist() == [56, 0, 8, 8, 0]
    assert graph.parameters.tolist() == [14, 0, 2, 0, 0]
    copied = read_graph(path, fuse=False, shared="copy")
    assert copied.resident.tolist() == [56, 56, 8, 8, 0]
    assert (copied.colocation == -1).all()
    with pytest.raises(InputError, match="option shared"):
        read_graph(path, shared="maybe")


def test_tied_embeddings(tmp_path):
    """An embedding table whose transpose is the classifier is charged once, and both ops are
    colocated.
    """
    nodes = [node("Gather", "w i", "e"), node("Transpose", "w", "t"), node("MatMul", "e t", "y")]
    path = save(
        tmp_path, nodes, [info("i", 3, dtype=TensorProto.INT64)], [info("y")], [tensor("w", 50, 8)]
    )
    graph = read_graph(path)
    assert graph.op_types == ("Gather", "MatMul")
    assert (graph.parameters.tolist(), graph.resident.tolist()) == ([400, 0], [1600, 0])
    assert graph.colocation.tolist() == [0, 0]
    assert graph.bytes_moved[0] == 2 * 3 * 8 * 4


def test_a_tensor_is_one_for_all_its_readers(tmp_path):
    """An output that three ops read is one tensor; reading it twice in one op counts once."""
    nodes = [
        node("Relu", "x", "a"),
        node("Mul", "a a", "b"),
        node("Neg", "a", "c"),
        node("Add", "b c", "d"),
        node("Add", "d a", "y"),
    ]
    graph = read_graph(save(tmp_path, nodes, [info("x", 3)], [info("y")]))
    readers = graph.consumer[graph.consumer_ptr[0] : graph.consumer_ptr[1]].tolist()
    assert readers == [1, 2, 4]
    assert graph.num_tensors == 5  # the result of the model is a tensor, too


def test_control_flow(tmp_path):
    """An If costs its dearest branch, a Loop its body times its trip count; captured values are
    inputs.
    """
    then = helper.make_graph(
        [node("MatMul", "x w", "t")], "then", [], [info("t")], [tensor("w", 4, 4)]
    )
    other = helper.make_graph([node("Neg", "x", "e")], "else", [], [info("e")])
    nodes = [
        node("Relu", "x0", "x"),
        helper.make_node("If", ["flag"], ["z"], then_branch=then, else_branch=other),
        node("Neg", "z", "y"),
    ]
    inputs = [info("x0", 3, 4), info("flag", 1, dtype=TensorProto.BOOL)]
    graph = read_graph(save(tmp_path, nodes, inputs, [info("y", 3, 4)]))
    branch = op(graph, "If")
    assert (int(graph.flops[branch]), int(graph.parameters[branch])) == (2 * 3 * 4 * 4, 16)
    assert [0, branch] in graph.edges.tolist()
    body = helper.make_graph(
        [node("Identity", "c_in", "c_out"), node("Sin", "s_in", "s_out")],
        "body",
        [
            info("i", dtype=TensorProto.INT64),
            info("c_in", dtype=TensorProto.BOOL),
            info("s_in", 3, 4),
        ],
        [info("c_out", dtype=TensorProto.BOOL), info("s_out", 3, 4)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    graph = read_graph(
        save(
            tmp_path,
            nodes,
            [info("x", 3, 4)],
            [info("y", 3, 4)],
            [tensor("trips", value=5, dtype=np.int64)],
        )
    )
    assert graph.flops[0] == 5 * 4 * 12
    assert not graph.unshaped[0]
    inputs = [info("x", 3, 4), info("trips", 1, dtype=TensorProto.INT64)]
    graph = read_graph(save(tmp_path, nodes, inputs, [info("y", 3, 4)]))
    assert graph.unshaped[0]
    assert graph.flops[0] == 4 * 12
    path = tmp_path / "model.onnx"
    told = read_graph(path, trip_count=7)
    assert (int(told.flops[0]), bool(told.unshaped[0])) == (7 * 4 * 12, False)
    assert read_graph(f"{path}?trip_count=7").flops.tolist() == told.flops.tolist()
    for wrong in (0, "many", 10**10):
        with pytest.raises(InputError, match="trip_count: expected a"):
            read_graph(path, trip_count=wrong)


def test_nested_graphs_know_outer_shapes_and_say_what_they_do_not(tmp_path):
    """A branch reshapes to what the outer graph stores; behind an unknown op, or around a loop of
    unknown length, the If is flagged.
    """
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Sin", "s", "t")],
        "body",
        [info(x, *d, dtype=t) for x, d, t in (("i", (), 7), ("go", (1,), 9), ("s", (3, 8), 1))],
        [info("on", 1, dtype=TensorProto.BOOL), info("t", 3, 8)],
    )
    cases = (
        (node("Reshape", "x target", "a"), 2 * 3 * 8 * 4),
        (helper.make_node("Mystery", ["x"], ["a"], domain="my.own"), None),
        (helper.make_node("Loop", ["", "flag", "m"], ["a"], body=body), None),
    )
    weights = [tensor("w", 8, 4), tensor("target", 2, dtype=np.int64, value=[3, 8])]
    ends = [info("x", 24), info("m", 3, 8), info("flag", 1, dtype=TensorProto.BOOL)]
    other = helper.make_graph([node("MatMul", "m w", "e")], "else", [], [info("e", 3, 4)])
    for first, flops in cases:
        then = helper.make_graph([first, node("MatMul", "a w", "t")], "then", [], [info("t", 3, 4)])
        choice = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
        graph = read_graph(save(tmp_path, [choice], ends, [info("y", 3, 4)], weights))
        assert bool(graph.unshaped[0]) == (flops is None)
        assert flops in (None, graph.flops[0])


def test_a_loop_that_its_condition_ends_has_no_trip_count(tmp_path):
    """Exporters of while loops write the largest number there is, which is no number of turns; an
    empty list is none either.
    """
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Sin", "s", "t")],
        "body",
        [
            info("i", dtype=TensorProto.INT64),
            info("go", dtype=TensorProto.BOOL),
            info("s", 3, 4),
        ],
        [info("on", dtype=TensorProto.BOOL), info("t", 3, 4)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    for value in ([], 2**63 - 1):
        trips = tensor("trips", value=value, dtype=np.int64)
        path = save(tmp_path, nodes, [info("x", 3, 4)], [info("y", 3, 4)], [trips])
        graph = read_graph(path)
        assert graph.unshaped[0]
        assert graph.flops[0] == 4 * 12
    assert read_graph(path, trip_count=7).flops[0] == 7 * 4 * 12


def test_graphs_beside_each_other_may_use_the_same_names(tmp_path):
    """The branches of an If, and the bodies of two Scans, are costed with their own shapes where
    their values have the same names.
    """

    def branch(width):
        nodes = [node("MatMul", "x w", "t"), node("ReduceSum", "t", "r", keepdims=0)]
        return helper.make_graph(nodes, "b", [], [info("r")], [tensor("w", 4, width)])

    inputs = [info("x", 3, 4), info("flag", 1, dtype=TensorProto.BOOL)]
    for first, second in ((2, 64), (64, 2)):
        nodes = [
            helper.make_node(
                "If", ["flag"], ["y"], then_branch=branch(first), else_branch=branch(second)
            )
        ]
        graph = read_graph(save(tmp_path, nodes, inputs, [info("y")]))
        assert graph.flops.tolist() == [2 * 3 * 4 * 64 + 3 * 64]
        assert graph.parameters.tolist() == [4 * 66]

    def scan(width):
        ends = [info("s", 3, width)], [info("t", 3, width)]
        ends[0].append(info("e", 3, width))
        weights = [tensor("w", width, width)]
        body = helper.make_graph([node("MatMul", "s w", "t")], "b", *ends, weights)
        names = [f"s{width}", f"x{width}"]
        return helper.make_node("Scan", names, [f"y{width}"], body=body, num_scan_inputs=1)

    inputs = [info(f"{x}{d}", *n, 3, d) for d in (4, 32) for x, n in (("s", ()), ("x", (7,)))]
    outputs = [info("y4", 3, 4), info("y32", 3, 32)]
    graph = read_graph(save(tmp_path, [scan(4), scan(32)], inputs, outputs))
    assert graph.flops.tolist() == [7 * 2 * 3 * d * d for d in (4, 32)]


def test_products_and_norms_outside_the_standard_tell_their_shapes(tmp_path):
    """Of a quantised layer that declares none of them: packed queries, products by their columns,
    and the sum that a norm hands on.
    """

    def contributed(kind, inputs, outputs, **attributes):
        names = inputs.split(" "), outputs.split(" ")
        return helper.make_node(kind, *names, domain="com.microsoft", **attributes)

    nodes = [
        contributed("MatMulNBits", "x w s", "qkv", K=32, N=64, bits=4, block_size=32),
        contributed("GroupQueryAttention", "qkv  ", "a", num_heads=4, kv_num_heads=2),
        contributed("FusedMatMul", "a v", "b", transB=1),
        contributed("SkipSimplifiedLayerNormalization", "x b n", "c   d"),
        contributed("DynamicQuantizeMatMul", "d u s", "e"),
        contributed("MatMulBnb4", "c p s", "f", K=32, N=32, block_size=32, quant_type=1),
        node("Add", "f e", "y"),
    ]
    weights = [tensor("w", 64, 1, 16, dtype=np.uint8), tensor("v", 32, 32), tensor("n", 32)]
    weights += [tensor("s", 64), tensor("u", 32, 32, dtype=np.int8)]
    weights += [tensor("p", 512, dtype=np.uint8)]
    graph = read_graph(save(tmp_path, nodes, [info("x", 1, 5, 32)], [info("y")], weights))
    attention = 2 * 2 * 32 * 5 * 5 + 5 * 5 * 4 * 5
    norm, product = 4 * 5 * 32, 2 * 5 * 32 * 32
    assert graph.flops.tolist() == [2 * product, attention, product, norm, product, product, 160]
    assert not graph.unshaped.any()


def test_shapes_beside_the_model_are_read(tmp_path):
    """A reshape's target in the file of the weights counts; where that file is missing, cut or
    elsewhere, the op is flagged.
    """
    nodes = [node("Reshape", "x target", "a"), node("MatMul", "a w", "y")]
    weights = [tensor("w", 8, 4), tensor("target", 2, dtype=np.int64, value=[3, 8])]
    path = save(tmp_path, nodes, [info("x", 24)], [info("y")], weights)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w", size_threshold=0)
    for content, known in ((None, True), (b"", False)):
        if content is not None:
            (tmp_path / "w").write_bytes(content)
        graph = read_graph(path)
        assert graph.unshaped.tolist() == [not known] * 2
        assert not known or graph.flops[1] == 2 * 3 * 8 * 4


def test_attention_reads_its_cache(tmp_path):
    """A step of generation pays for all keys of the cache, with Q, K and V apart or in one."""
    flops = 2 * 2 * 2 * 32 * 100 + 5 * 2 * 4 * 100
    past = [info("pk", 2, 2, 99, 8), info("pv", 2, 2, 99, 8)]
    for names, inputs in (
        ("q k v pk pv", [info("q", 2, 1, 32), info("k", 2, 1, 16), info("v", 2, 1, 16)]),
        ("q   pk pv", [info("q", 2, 1, 64)]),
    ):
        attention = helper.make_node(
            "GroupQueryAttention",
            names.split(" "),
            ["y"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
        )
        graph = read_graph(save(tmp_path, [attention], inputs + past, [info("y", 2, 1, 32)]))
        assert graph.flops.tolist() == [flops]


def test_quantised_products(tmp_path):
    """The products that onnxruntime writes for quantised models count like plain ones."""
    scalar = [tensor(name, value=1) for name in ("s", "z")]
    weights = [tensor("w", 8, 16, dtype=np.int8), tensor("b", 16, dtype=np.int32), *scalar]
    product = helper.make_node("QGemm", list("xszwszbsz"), ["y"], domain="com.microsoft")
    ends = (info(name, 4, d, dtype=TensorProto.INT8) for name, d in (("x", 8), ("y", 16)))
    graph = read_graph(save(tmp_path, [product], *([end] for end in ends), weights))
    assert (graph.flops[0], graph.parameters[0]) == (2 * 4 * 8 * 16 + 4 * 16, 8 * 16)


def test_what_follows_a_loop_has_the_shapes_that_the_loop_keeps(tmp_path):
    """A carried value whose body returns its shape keeps it, what is collected gets the turns in
    front; growing ones stay open.
    """
    body = helper.make_graph(
        [
            node("Identity", "c_in", "c_out"),
            node("Sin", "s_in", "s_out"),
            node("Neg", "s_in", "row"),
            helper.make_node("Concat", ["g_in", "s_in"], ["g_out"], axis=0),
        ],
        "body",
        [
            info("i", dtype=TensorProto.INT64),
            info("c_in", dtype=TensorProto.BOOL),
            info("s_in", 3, 4),
            info("g_in", 3, 4),
        ],
        [
            info("c_out", dtype=TensorProto.BOOL),
            info("s_out", 3, 4),
            info("g_out", 6, 4),
            info("row", 3, 4),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["trips", "", "x", "x"], ["kept", "grown", "rows"], body=body),
        node("MatMul", "kept w", "y"),
        node("Neg", "rows", "z"),
        node("Abs", "grown", "a"),
    ]
    graph = read_graph(
        save(
            tmp_path,
            nodes,
            [info("x", 3, 4)],
            [info("y", 3, 5), info("z"), info("a")],
            [tensor("w", 4, 5), tensor("trips", value=5, dtype=np.int64)],
        )
    )
    product, negation, growing = op(graph, "MatMul"), op(graph, "Neg"), op(graph, "Abs")
    assert (int(graph.flops[product]), bool(graph.unshaped[product])) == (2 * 3 * 4 * 5, False)
    assert (int(graph.flops[negation]), bool(graph.unshaped[negation])) == (5 * 3 * 4, False)
    assert graph.unshaped[growing]


def test_functions_are_inlined(tmp_path):
    """Calls of the model's own functions are replaced by their bodies."""
    double = helper.make_function(
        "own", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 18)]
    )
    calls = [
        helper.make_node("Twice", ["x"], ["m"], domain="own"),
        helper.make_node("Twice", ["m"], ["y"], domain="own"),
    ]
    graph = helper.make_graph(calls, "g", [info("x", 3)], [info("y", 3)])
    model = helper.make_model(
        graph,
        functions=[double],
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert read_graph(path).op_types == ("Add", "Add")


def test_names_and_layers(tmp_path):
    """Op names are node names, else outputs; equal ones get numbers; paths become layers."""
    nodes = [
        node("Relu", "x", "a", name="/enc/0/Relu"),
        node("Relu", "a", "b", name="/enc/0/Relu"),
        node("Neg", "b", "y"),
    ]
    graph = read_graph(save(tmp_path, nodes, [info("x", 3)], [info("y")]))
    assert graph.op_names == ("/enc/0/Relu", "/enc/0/Relu#2", "y")
    assert graph.layer == ("enc/0", "enc/0", "")


def test_nodes_out_of_order_are_sorted(tmp_path):
    """Nodes in the wrong order are read all the same."""
    graph = read_graph(
        save(tmp_path, [node("Neg", "a", "y"), node("Relu", "x", "a")], [info("x", 3)], [info("y")])
    )
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.op_types == ("Relu", "Neg")


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ([node("Relu", "q", "y")], "reads 'q', which is neither an input"),
        ([node("Relu", "x", "y"), node("Neg", "x", "y")], "produced twice"),
        ([node("Relu", "b", "a"), node("Neg", "a", "b"), node("Add", "x a", "y")], "cycle"),
        ([node("Identity", "w", "y")], "no op that depends on an input"),
        ([], "without any op"),
    ],
)
def test_ill_formed_models(nodes, part, tmp_path):
    """Undefined values, values made twice, cycles and empty models give one line."""
    path = save(tmp_path, nodes, [info("x", 3)], [info("y")], [tensor("w", 2)])
    with pytest.raises(InputError) as error:
        read_graph(path, format="onnx")
    assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((7, -2), "weight 'w': expected dimensions >= 0"),
        ((7, 2**61), "op 'y': a size or cost passes 2^62"),
    ],
)
def test_absurd_dimensions(shape, part, tmp_path):
    """Negative and overflowing dimensions are refused, with the weight or op that has them."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    weight.data_location = TensorProto.EXTERNAL
    path = save(tmp_path, [node("MatMul", "x w", "y")], [info("x", 3, 7)], [info("y")], [weight])
    with pytest.raises(InputError) as error:
        read_graph(path)
    assert part in str(error.value)


def test_names_that_are_no_text(tmp_path):
    """A name that is not UTF-8 is refused."""
    path = save(tmp_path, [node("Relu", "x", "yyyy")], [info("x", 3)], [info("yyyy")])
    path.write_bytes(path.read_bytes().replace(b"yyyy", b"yy\xff\xfe"))
    with pytest.raises(InputError, match="damaged ONNX model"):
        read_graph(path, format="onnx")


def test_truncated_and_mutated_models(tmp_path):
    """A model cut anywhere or with changed bytes is read or refused in one line."""
    path = tmp_path / "cut.onnx"
    small = chain(tmp_path).read_bytes()
    large = list_models()["squeezenet"].read_bytes()
    cuts = [
        data[: int(cut)] for data in (small, large) for cut in np.linspace(1, len(data) - 1, 25)
    ]
    rng = np.random.default_rng(5)
    for _ in range(60):
        data = bytearray(small)
        for _ in range(2):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        cuts.append(bytes(data))
    refused = 0
    for data in cuts:
        path.write_bytes(data)
        message = refusal(path)
        refused += bool(message)
        assert "\n" not in message
        assert len(message) < 1500
    assert refused >= 45  # every cut but those that leave a whole model


def refusal(path) -> str:
    """Return the message with which a model is refused, "" if it is read."""
    try:
        read_graph(path, format="onnx")
    except InputError as error:
        return str(error)
    return ""


def test_a_truncated_model_says_so(tmp_path):
    """A model cut in the middle is called truncated, found by content."""
    path = tmp_path / "cut.onnx"
    path.write_bytes(list_models()["resnet50"].read_bytes()[:40000])
    with pytest.raises(InputError, match="truncated ONNX model"):
        read_graph(path)


def test_weights_are_not_read(tmp_path):
    """A model with 256 MB of weights takes little memory; a 512 MB weight need not even be
    there.
    """
    graph = helper.make_graph(
        [node("MatMul", "x w", "a"), node("Relu", "a", "y")], "g", [info("x", 3, 8192)], [info("y")]
    )
    big = graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[8192, 8192])
    big.raw_data = bytes(8192 * 8192 * 4)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    path = tmp_path / "big.onnx"
    path.write_bytes(model.SerializeToString())
    del model, graph, big
    tracemalloc.start()
    try:
        result = read_graph(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.parameters.tolist() == [8192 * 8192, 0]
    assert peak < 8 * 2**20
    external = helper.make_graph(
        [node("MatMul", "x w", "y")], "g", [info("x", 3, 8192)], [info("y")]
    )
    missing = external.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[8192, 16384])
    missing.data_location = TensorProto.EXTERNAL
    missing.external_data.add(key="location", value="../nowhere.bin")
    path.write_bytes(helper.make_model(external, ir_version=9).SerializeToString())
    graph = read_graph(path)
    assert graph.resident[0] == 2**29
    assert graph.shapes == ((3, 16384),)


def test_nothing_heavy_is_imported_without_need():
    """Reading a text format imports neither onnx nor torch nor networkx."""
    code = (
        "import sys; from placeopt.instances.readers import read_graph, FORMATS; import tempfile, "
        "pathlib;"
        "p = pathlib.Path(tempfile.mkdtemp()) / 'e'; p.write_text('a b\\n'); read_graph(p);"
        "print([m for m in ('onnx', 'torch', 'networkx', 'ortools', 'matplotlib') if m in "
        "sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_dynamo_exporter_tells_the_modules(tmp_path):
    """Its node names are no paths; the scopes beside them are, and blocks are groups of their
    own.
    """
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    nodes = []
    for i in range(2):
        node = helper.make_node("Relu", [f"x{i}"], [f"x{i + 1}"], f"node_relu_{i}")
        prop = node.metadata_props.add()
        prop.key, prop.value = "pkg.torch.onnx.name_scopes", f"['', 'h.{i}', 'h.{i}.act', 'relu']"
        nodes.append(node)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x0", "x2")]
    path = tmp_path / "dynamo.onnx"
    save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), path)
    from placeopt.instances.sources import load_graph
    from placeopt.programs.onnx_program import onnx_program

    assert list(load_graph(path)[0].layer) == ["h/0/act", "h/1/act"]
    assert [call.module for call in onnx_program(path).program.calls] == ["h.0.act", "h.1.act"]


def test_text_called_onnx_is_refused(tmp_path):
    """Two words a line are edges of a graph, but not in a file called .onnx."""
    from placeopt.instances.sources import load_graph
    from placeopt.model.errors import InputError

    path = tmp_path / "junk.onnx"
    path.write_text("hello world\nthis is\n")
    with pytest.raises(InputError, match="expected an ONNX model"):
        load_graph(path)
