"""Small files that used to hang or expand: each is read or refused at once, in a process with
bounded time and memory.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from placeopt.instances.generators import generate
from placeopt.instances.readers import read_bundled, read_graph
from placeopt.model.errors import MAX_MESSAGE, InputError, brief
from placeopt.model.graph import OpGraph

_PATH = Path(__file__).parents[2] / "results" / "reliability" / "malformed.py"
_SPEC = importlib.util.spec_from_file_location("malformed_files", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
study = sys.modules["malformed_files"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(study)

pytest.importorskip("onnx")


def archive(size: int) -> bytes:
    """Return a small archive that unpacks to `size` bytes of empty lists."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/models/model.json", "[" + "[]," * (size // 3) + "[]]")
    return stream.getvalue()


def functions(depth: int) -> bytes:
    """Return an ONNX model whose functions call the next one twice each."""
    from onnx import TensorProto, helper

    opset = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    made = []
    for i in range(depth):
        kind, domain = (f"F{i + 1}", "f") if i + 1 < depth else ("Relu", "")
        nodes = [
            helper.make_node(kind, ["x"], ["t"], domain=domain),
            helper.make_node(kind, ["t"], ["y"], domain=domain),
        ]
        made.append(helper.make_function("f", f"F{i}", ["x"], ["y"], nodes, opset))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain="f")], "g", value[:1], value[1:]
    )
    content: bytes = helper.make_model(
        graph, functions=made, opset_imports=opset
    ).SerializeToString()
    return content


SMALL = {
    "comments": b"/**/" * 60 + b" x",
    "many comments": b"/**/" * 16_000 + b" x",
    "XML comments": b"<a" + b"<!--" * 16_000,
    "weights": b"a b {" + b'"weight":a' * 10_000 + b"}\n",
    "arrows": b"a->b" * 16_000 + b" x y z\n",
    "blanks": b"a b" + b" " * 60_000 + b"c d\n",
    "functions": functions(30),
    "archive": archive(120_000_000),
    "default attributes": b"digraph { node ["
    + b" ".join(b"a%d=1" % i for i in range(30_000))
    + b"]; "
    + b"b;" * 99_999,
    "groups": b"digraph {{"
    + b" ".join(b"a%d" % i for i in range(9_000))
    + b"} -> {"
    + b"b " * 9_000
    + b"c d}}",
    "string": b'digraph { "' + b"\\x" * 400_000,
    "cycle": b"".join(b"a%d a%d\n" % (i, (i + 1) % 60_000) for i in range(60_000)),
    "chain": b"".join(b"a%d a%d\n" % (i, i + 1) for i in range(70_000)),
    "names": json.dumps({"g": {"n": 1, "work": [1], "edges": [[0, 9, 1]] * 20_000}}).encode(),
    "long names": b"".join(b"%s%d: 1\n" % (b"ab" * 100, i) for i in range(4_000))
    + b"a %s" % (b"ba" * 90),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_files_cost_little(name, tmp_path):
    """A file of at most 1 MB is read or refused in one short line within 5 s and 1 GiB."""
    assert len(SMALL[name]) <= 2**20
    path = tmp_path / "file"
    path.write_bytes(SMALL[name])
    assert study.outcome(path, read_bundled) in ("read", "refused")


@pytest.mark.parametrize("name", study.samples())
def test_a_slice_of_the_malformed_files(name, tmp_path):
    """Of every reader, one malformed file of each kind is read or refused in one short line."""
    path = tmp_path / "file"
    for number, (kind, _) in enumerate(study.KINDS.items()):
        rng = np.random.default_rng([1, number])
        path.write_bytes(study.malformed(name, study.samples()[name], kind, rng))
        assert study.outcome(path, partial(read_bundled, format=name)) in ("read", "refused"), kind


@pytest.mark.parametrize(
    ("text", "format", "words"),
    [
        (
            '{"directed": true, "nodes": [], "nodes": [{"id": 1}], "edges": []}',
            "node-link",
            "'nodes' occurs twice",
        ),
        ("op,flops\na,1_000\n", "csv", "whole number"),
        ("op,flops\na,\u0661\n", "csv", "whole number"),
        ("source,target\na,b\na,b\n", "csv", "edge a -> b is there twice"),
        ("a b 1\na b 1\n", "edge-list", "line 2: edge a -> b is there twice"),
        ("digraph { a -> b; a -> b }", "dot", "edge a -> b is there twice"),
        ("a b {'weight': 1, 'weight': 2}\n", "edge-list", "expected one 'weight'"),
    ],
)
def test_what_was_accepted_in_silence_is_refused(text, format, words, tmp_path):
    """Duplicate keys and edges, 1_000 and digits of other scripts are one line each."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_graph(path, format)


@pytest.mark.parametrize(
    ("kind", "x", "out", "weights", "attributes", "refused"),
    [
        ("Reshape", [3, 4], [5, 7], {"w": np.array([5, 7])}, {}, True),
        ("Reshape", [3, 4], [2, 6], {"w": np.array([2, 6])}, {}, False),
        (
            "Conv",
            [1, 3, 8, 8],
            [1, 7, 8, 8],
            {"w": np.zeros((7, 3, 1, 1), np.float32)},
            {"group": 7},
            True,
        ),
        (
            "Conv",
            [1, 6, 8, 8],
            [1, 4, 8, 8],
            {"w": np.zeros((4, 3, 1, 1), np.float32)},
            {"group": 2},
            False,
        ),
        ("MatMul", [2, 3], [2, 5], {"w": np.zeros((4, 5), np.float32)}, {}, True),
        ("Add", [2, 3], [2, 3], {"w": np.zeros(4, np.float32)}, {}, True),
    ],
)
def test_shapes_that_contradict_each_other(kind, x, out, weights, attributes, refused, tmp_path):
    """A model whose tensors cannot have the shapes that it declares is refused, with the op and the
    shapes.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node(kind, ["x", *weights], ["y"], **attributes)
    value = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, s)
        for name, s in (("x", x), ("y", out))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", value[:1], value[1:], tensors)),
        tmp_path / "m.onnx",
    )
    if refused:
        with pytest.raises(InputError, match="contradict each other"):
            read_graph(tmp_path / "m.onnx", fold=False)
    else:
        assert read_graph(tmp_path / "m.onnx", fold=False).num_ops == 1


def test_flops_of_a_grouped_convolution_counted_one_by_one(tmp_path):
    """A grouped convolution does 2 flops per multiplication of the plain loops: ShuffleNet's count
    is not too low.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    channels, made, groups, side, kernel = 6, 4, 2, 5, 3
    products = 0
    for out in range(made):
        first = out // (made // groups) * (channels // groups)
        for _ in range((side - kernel + 1) ** 2):
            for _channel in range(first, first + channels // groups):
                products += kernel * kernel
    weight = numpy_helper.from_array(
        np.zeros((made, channels // groups, kernel, kernel), np.float32), "w"
    )
    value = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, side, side]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups)
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", value[:1], value[1:], [weight])),
        tmp_path / "m.onnx",
    )
    assert read_graph(tmp_path / "m.onnx").flops.tolist() == [2 * products]


@pytest.mark.parametrize("way", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_damaged_archive_is_one_line(way, tmp_path):
    """However it is packed, whichever byte is another: name, content or what is said of them."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", way) as file:
        file.writestr("m/models/mod\u00e9l.json", "[]")
    for at in range(4, len(stream.getvalue())):
        data = bytearray(stream.getvalue())
        data[at] = 0xFF
        (tmp_path / "x.pt2").write_bytes(data)
        with pytest.raises(InputError, match=r"x\.pt2"):
            read_graph(tmp_path / "x.pt2")


def test_a_huge_mixture_of_experts_is_refused():
    """The size is refused before anything is built."""
    with pytest.raises(InputError, match="make 500000000 ops"):
        generate("gen:moe?experts=10000&layers=10000")


@pytest.mark.parametrize(
    "text", ["a\nb", "x" * 9999, f"file '{'p/' * 300}': wrong", f"a{'b' * 300}; {'hint ' * 900}"]
)
def test_every_message_is_one_short_line(text):
    """Whatever input brings along, a message is one line, at most 200 characters before its hint
    and 1000 in all.
    """
    line = brief(text)
    assert "\n" not in line
    assert len(line.partition("; ")[0]) <= MAX_MESSAGE
    assert len(line) <= 5 * MAX_MESSAGE


def test_a_cycle_is_named_whatever_its_length():
    """The names of a long cycle are cut."""
    with pytest.raises(InputError, match=r"cycle: .* -> \.\.\. -> "):
        OpGraph.from_edges(
            "g", [f"a{i}" for i in range(99)], [(i, (i + 1) % 99) for i in range(99)]
        )
