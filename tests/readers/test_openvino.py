"""OpenVINO IR: costs per layer type, constants, fusing, loops."""

from __future__ import annotations

import re

import pytest

from placeopt.instances.readers import read_graph


class Net:
    """Writes an IR layer by layer; `add` returns the id of the layer."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.edges: list[str] = []
        self.shapes: dict[int, tuple[int, ...]] = {}

    def add(self, kind, shape, *inputs, name="", precision="FP32", **data) -> int:
        """Add a layer with one output of `shape` (or none)."""
        key = len(self.layers)
        attributes = " ".join(f'{k}="{v}"' for k, v in data.items())
        text = (
            f'<layer id="{key}" name="{name or f"{kind}_{key}"}" type="{kind}" '
            f'version="opset1"><data {attributes}/>'
        )
        text += (
            "<input>"
            + "".join(self._port(i, self.shapes[x], "FP32") for i, x in enumerate(inputs))
            + "</input>"
        )
        if shape is not None:
            text += f"<output>{self._port(len(inputs), shape, precision)}</output>"
        self.layers.append(text + "</layer>")
        for i, x in enumerate(inputs):
            port = self.count.get(x, 0)
            self.edges.append(
                f'<edge from-layer="{x}" from-port="{port}" to-layer="{key}" to-port="{i}"/>'
            )
        self.count = {**self.count, key: len(inputs)}
        self.shapes[key] = shape
        return key

    count: dict[int, int] = {}  # noqa: RUF012

    @staticmethod
    def _port(i, shape, precision) -> str:
        dims = "".join(f"<dim>{d}</dim>" for d in shape)
        return f'<port id="{i}" precision="{precision}">{dims}</port>'

    def read(self, tmp_path, **options):
        """Write the net and read it."""
        path = tmp_path / "net.xml"
        path.write_text(
            '<?xml version="1.0"?><net name="n" '
            f'version="11"><layers>{"".join(self.layers)}</layers>'
            f"<edges>{''.join(self.edges)}</edges></net>"
        )
        return read_graph(path, **options)


def single(tmp_path, kind, out, x, *weights, **data):
    """Return the graph of one layer on an input and weights."""
    net = Net()
    inputs = [net.add("Parameter", x)] + [net.add("Const", w, element_type="f32") for w in weights]
    net.add("Result", None, net.add(kind, out, *inputs, **data))
    return net.read(tmp_path)


@pytest.mark.parametrize(
    ("kind", "out", "x", "weights", "data", "flops"),
    [
        ("Convolution", (1, 6, 6, 6), (1, 4, 8, 8), [(6, 4, 3, 3)], {}, 2 * 216 * 36),
        ("GroupConvolution", (1, 4, 6, 6), (1, 4, 8, 8), [(4, 1, 1, 3, 3)], {}, 2 * 144 * 9),
        ("ConvolutionBackpropData", (1, 5, 16, 16), (1, 4, 8, 8), [(4, 5, 2, 2)], {}, 2 * 256 * 20),
        ("MatMul", (3, 2), (3, 7), [(2, 7)], {"transpose_b": "true"}, 2 * 6 * 7),
        ("MatMul", (7, 2), (3, 7), [(3, 2)], {"transpose_a": "true"}, 2 * 14 * 3),
        ("MaxPool", (1, 4, 7, 6), (1, 4, 8, 8), [], {"kernel": "2, 3"}, 168 * 6),
        ("SoftMax", (2, 9), (2, 9), [], {}, 90),
        ("ReLU", (2, 9), (2, 9), [], {}, 18),
        ("Reshape", (18,), (2, 9), [(1,)], {}, 0),
        ("ReduceMean", (2,), (2, 9), [(1,)], {}, 18),
        ("MVN", (2, 9), (2, 9), [(1,)], {}, 144),
    ],
)
def test_costs_of_single_layers(kind, out, x, weights, data, flops, tmp_path):
    """Flops follow from the shapes of the ports."""
    graph = single(tmp_path, kind, out, x, *weights, **data)
    assert graph.op_types == (kind,)
    assert graph.flops.tolist() == [flops]
    assert not graph.unshaped.any()
    assert graph.shapes == (out,)


def test_lstm_sequence(tmp_path):
    """A recurrent layer uses its matrices once per step and sample."""
    net = Net()
    x, h, c = (
        net.add("Parameter", (2, 10, 7)),
        net.add("Parameter", (2, 1, 5)),
        net.add("Parameter", (2, 1, 5)),
    )
    rest = [
        net.add("Const", s, element_type="f32") for s in ((2,), (1, 20, 7), (1, 20, 5), (1, 20))
    ]
    net.add("Result", None, net.add("LSTMSequence", (2, 1, 10, 5), x, h, c, *rest))
    graph = net.read(tmp_path)
    assert graph.flops.tolist() == [20 * 2 * (140 + 100) + 10 * 100]
    assert graph.parameters.tolist() == [2 + 140 + 100 + 20]


def test_compressed_weights_and_bias(tmp_path):
    """Decompression of a stored weight vanishes, and the bias is fused; bytes are those that are
    stored.
    """
    net = Net()
    x = net.add("Parameter", (1, 4, 8, 8))
    stored = net.add("Const", (6, 4, 3, 3), element_type="f16", precision="FP16")
    weight = net.add("Convert", (6, 4, 3, 3), stored, destination_type="f32")
    conv = net.add("Convolution", (1, 6, 6, 6), x, weight)
    bias = net.add(
        "Add",
        (1, 6, 6, 6),
        conv,
        net.add("Const", (1, 6, 1, 1), element_type="f32"),
        name="block/0/add",
    )
    relu = net.add("ReLU", (1, 6, 6, 6), bias, name="block/0/relu")
    net.add("Result", None, relu)
    graph = net.read(tmp_path)
    assert graph.op_types == ("Convolution", "ReLU")
    assert graph.parameters.tolist() == [216 + 6, 0]
    assert graph.resident.tolist() == [432 + 24, 0]
    assert graph.flops[0] == 216 * (72 + 1)
    assert graph.layer == ("", "block/0")
    assert net.read(tmp_path, fuse=False).op_types == ("Convolution", "Add", "ReLU")


def test_shape_arithmetic_is_folded(tmp_path):
    """What is computed from a known shape is constant."""
    net = Net()
    x = net.add("Parameter", (2, 9))
    shape = net.add("ShapeOf", (2,), x, precision="I64")
    part = net.add(
        "Gather",
        (1,),
        shape,
        net.add("Const", (1,), element_type="i64"),
        net.add("Const", (), element_type="i64"),
    )
    net.add("Result", None, net.add("Reshape", (18,), x, part))
    assert net.read(tmp_path).op_types == ("Reshape",)
    assert net.read(tmp_path, fold=False).op_types == ("ShapeOf", "Gather", "Reshape")


def test_dynamic_dimensions_are_flagged(tmp_path):
    """A dimension of -1 counts as 1, and its ops are flagged."""
    graph = single(tmp_path, "MatMul", (-1, 2), (-1, 7), (7, 2))
    assert graph.unshaped.tolist() == [True]
    assert graph.flops.tolist() == [28]


def test_loops_cost_their_body_per_iteration(tmp_path):
    """A TensorIterator over 10 steps costs ten times its body, whose weights stay with it."""
    text = """<net name="n" version="11"><layers>
    <layer id="0" name="x" type="Parameter"><output><port id="0"><dim>10</dim><dim>4</dim></port></output></layer>
    <layer id="1" name="loop" type="TensorIterator"><input><port id="0"><dim>10</dim><dim>4</dim></port></input>
    <output><port id="1"><dim>10</dim><dim>2</dim></port></output>
    <port_map><input axis="0" external_port_id="0" internal_layer_id="0" part_size="1" stride="1"/></port_map>
    <body><layers>
    <layer id="0" name="i" type="Parameter"><output><port id="0"><dim>1</dim><dim>4</dim></port></output></layer>
    <layer id="1" name="w" type="Const"><data element_type="f32"/><output><port id="0"><dim>4</dim><dim>2</dim></port>
    </output></layer>
    <layer id="2" name="m" type="MatMul"><input><port id="0"><dim>1</dim><dim>4</dim></port><port id="1"><dim>4</dim>
    <dim>2</dim></port></input><output><port id="2"><dim>1</dim><dim>2</dim></port></output></layer>
    </layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
    <edge from-layer="1" from-port="0" to-layer="2" to-port="1"/></edges></body></layer>
    <layer id="2" name="r" type="Result"><input><port id="0"><dim>10</dim><dim>2</dim></port></input></layer></layers>
    <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
    <edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>"""
    path = tmp_path / "loop.xml"
    path.write_text(text)
    graph = read_graph(path)
    assert graph.op_types == ("TensorIterator",)
    assert (graph.flops[0], graph.parameters[0], graph.resident[0]) == (10 * 16, 8, 32)
    assert not graph.unshaped[0]
    assert read_graph(path, trip_count=3).flops[0] == 10 * 16  # the file tells
    path.write_text(re.sub(r"<port_map>.*</port_map>", "", text))
    assert (read_graph(path).flops[0], read_graph(path).unshaped[0]) == (16, True)
    assert (
        read_graph(path, trip_count=3).flops[0],
        read_graph(path, trip_count=3).unshaped[0],
    ) == (3 * 16, False)
