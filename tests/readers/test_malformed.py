"""Malformed files of every text format: one clear line each, and bounded memory and time."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tracemalloc

import numpy as np
import pytest
from reader_samples import NEW, OLD, PARTITION, STG

import placeopt as po
from placeopt.instances.readers import FORMATS, read_graph, write_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph

NODE = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=4"
PIPEDREAM = f"node1 -- A(1) -- {NODE}\nnode2 -- B -- {NODE}\n\tnode1 -- node2\n"
DOPPLER = "4\n0\n0,1\n1,2\n1,2\n3,4\n5,6\n"
UNRELATED = "#critical\n0\n#tasks\n0: 1, 2\n1: 3, 4\n#edges\n0: 0, 1, 5\n#end\n"
DOT = "digraph { a [time=1]; a -> b [bytes=3]; b -> c }\n"
OPENVINO = """<net name="n" version="11"><layers>
<layer id="0" name="x" type="Parameter"><output><port id="0" precision="FP32"><dim>1</dim><dim>4</dim></port></output>
</layer><layer id="1" name="w" type="Const"><data element_type="f32" shape="4,2"/><output><port id="0" precision="FP32">
<dim>4</dim><dim>2</dim></port></output></layer><layer id="2" name="mm" type="MatMul"><input><port id="0"><dim>1</dim>
<dim>4</dim></port><port id="1"><dim>4</dim><dim>2</dim></port></input><output><port id="2" precision="FP32"><dim>1</dim>
<dim>2</dim></port></output></layer><layer id="3" name="r" type="Result"><input><port id="0"><dim>1</dim><dim>2</dim>
</port></input></layer></layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/><edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
</edges></net>"""
GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="k" for="node" attr.name="time"/>
<graph edgedefault="directed"><node id="a"><data key="k">3</data></node><node id="b"/><edge source="a" target="b"/>
</graph></graphml>"""
BOMB = """<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>"""
LIBRARY = {"g": {"n": 2, "work": [1, 2], "edges": [[0, 1, 3]]}}
NODE_LINK = {
    "directed": True,
    "multigraph": False,
    "nodes": [{"id": 1}, {"id": 2}],
    "edges": [{"source": 1, "target": 2}],
}
CSV = "op,flops\na,1\nb,2\n\nsource,target,bytes\na,b,3\n"


def own() -> str:
    """Return the JSON text of a small graph."""
    from placeopt.io.serialize import to_dict

    return json.dumps(to_dict(OpGraph.from_edges("g", ["a", "b"], [(0, 1)], [4])))


GOOD = {
    "placeopt": own(),
    "pipedream": PIPEDREAM,
    "doppler": DOPPLER,
    "dnn-partitioning": json.dumps(PARTITION),
    "graphs-json": json.dumps(LIBRARY),
    "unrelated": UNRELATED,
    "dot": DOT,
    "graphml": GRAPHML,
    "node-link": json.dumps(NODE_LINK),
    "csv": CSV,
    "edge-list": "a: 3\na b 1\nb c 2\n",
    "stg": STG,
    "wfcommons": json.dumps(NEW),
    "openvino": OPENVINO,
}


def replaced(text: str, old: str, new: str) -> str:
    """Return `text` with `old` replaced once; `old` must be there."""
    assert old in text, old
    return text.replace(old, new, 1)


def part_of(**changes) -> str:
    """Return the JSON of PARTITION with some nodes or edges changed."""
    data = json.loads(json.dumps(PARTITION))
    for key, value in changes.items():
        kind, _, field = key.partition("_")
        if kind == "node":
            data["nodes"][0][field] = value
        elif kind == "edge":
            data["edges"][0][field] = value
        else:
            data[key] = value
    return json.dumps(data)


def flow(**changes) -> str:
    """Return the JSON of an old workflow with fields of its first task changed."""
    data = json.loads(json.dumps(OLD))
    data["workflow"]["tasks"][0].update(changes)
    return json.dumps(data)


BAD = [
    # format, text, what the line must say
    (
        "pipedream",
        replaced(PIPEDREAM, "forward_compute_time=1", "forward_compute_time=x"),
        "expected a finite number",
    ),
    (
        "pipedream",
        replaced(PIPEDREAM, "forward_compute_time=1", "forward_compute_time=nan"),
        "finite number",
    ),
    ("pipedream", replaced(PIPEDREAM, "forward_compute_time=1", "forward_compute_time=-1"), ">= 0"),
    ("pipedream", replaced(PIPEDREAM, ", parameter_size=4", ""), "parameter_size is missing"),
    ("pipedream", replaced(PIPEDREAM, "node2 -- B", "node1 -- B"), "twice"),
    ("pipedream", replaced(PIPEDREAM, "\tnode1 -- node2", "\tnode1 -- node9"), "node9"),
    ("pipedream", PIPEDREAM + "\tnode2 -- node1\n", "cycle"),
    ("pipedream", PIPEDREAM + "node3 -- C -- forward", "is missing"),
    ("pipedream", replaced(PIPEDREAM, "activation_size=1", "activation_size=1e30"), "2^62"),
    ("doppler", replaced(DOPPLER, "5,6\n", ""), "truncated or the counts are wrong"),
    ("doppler", "4\n0\n0,1\n", "received 3 lines"),
    ("doppler", replaced(DOPPLER, "1,2\n1,2", "1\n1,2"), "expected 2 destinations"),
    ("doppler", replaced(DOPPLER, "0,1\n", "0,7\n"), "node ids in 0..2"),
    ("doppler", replaced(DOPPLER, "0,1\n", "0,x\n"), "expected a whole number"),
    ("doppler", replaced(DOPPLER, "3,4", "3"), "expected comp,comm"),
    ("doppler", replaced(DOPPLER, "3,4", "-3,4"), ">= 0"),
    ("doppler", replaced(DOPPLER, "0,1\n1,2\n", "0,1\n1,0\n"), "cycle"),
    ("doppler", replaced(DOPPLER, "0,1\n1,2\n", "0,1\n0,2\n"), "its own output"),
    ("doppler", replaced(DOPPLER, "4\n0\n", "5\n0,0\n"), "an input is there twice"),
    ("dnn-partitioning", part_of(node_id=90), "twice"),
    ("dnn-partitioning", part_of(node_id="x"), "whole number"),
    ("dnn-partitioning", part_of(node_cpuLatency=-1), ">= 0"),
    ("dnn-partitioning", part_of(node_fpgaLatency="fast"), "expected a finite number"),
    ("dnn-partitioning", part_of(node_supportedOnFpga=2), "expected true, false"),
    ("dnn-partitioning", part_of(edge_destId=55), "which is not in the graph"),
    ("dnn-partitioning", part_of(edge_cost=0.3), "must have equal costs (up to 1e-6)"),
    ("dnn-partitioning", part_of(nodes=[], edges=[]), "at least one op"),
    ("dnn-partitioning", part_of(nodes={}), "list of objects"),
    ("dnn-partitioning", part_of(edges=[3]), "edges[0]: expected an object"),
    ("dnn-partitioning", part_of(maxFPGAs=0, maxCPUs=0), "expected 1..4096 devices"),
    ("dnn-partitioning", part_of(maxFPGAs=10**9), "expected 1..4096 devices"),
    ("dnn-partitioning", part_of(maxSizePerFPGA=None), "expected a finite number"),
    ("dnn-partitioning", replaced(json.dumps(PARTITION), "0.25", "Infinity"), "finite"),
    ("graphs-json", json.dumps({"g": {**LIBRARY["g"], "n": 3}}), "expected n = 2"),
    (
        "graphs-json",
        json.dumps({"g": {**LIBRARY["g"], "edges": [[0, 1]]}}),
        "expected [u, v, cost]",
    ),
    ("graphs-json", json.dumps({"g": {**LIBRARY["g"], "edges": [[0, 9, 1]]}}), "not in the graph"),
    ("graphs-json", json.dumps({"g": {**LIBRARY["g"], "edges": [[0, 1, 1], [0, 1, 1]]}}), "twice"),
    ("graphs-json", json.dumps({"g": {**LIBRARY["g"], "edges": [[0, 1, 1], [1, 0, 1]]}}), "cycle"),
    (
        "graphs-json",
        json.dumps({"g": {**LIBRARY["g"], "work": [1, "x"]}}),
        "expected a finite number",
    ),
    ("graphs-json", json.dumps({"g": {"n": 0, "work": [], "edges": []}}), "at least one op"),
    ("unrelated", replaced(UNRELATED, "#end\n", ""), "truncated"),
    ("unrelated", replaced(UNRELATED, "1: 3, 4", "1: 3"), "expected 2 times"),
    ("unrelated", replaced(UNRELATED, "1: 3, 4", "0: 3, 4"), "twice"),
    ("unrelated", replaced(UNRELATED, "0: 0, 1, 5", "0: 0, 4, 5"), "not in the graph"),
    ("unrelated", replaced(UNRELATED, "0: 0, 1, 5", "0: 0, 1"), "source, destination, cost"),
    ("unrelated", replaced(UNRELATED, "0: 0, 1, 5", "0: 0, 1, 5\n1: 1, 0, 5"), "cycle"),
    ("unrelated", replaced(UNRELATED, "#tasks", "#jobs"), "expected #tasks"),
    ("dot", "digraph { a -> ", "truncated DOT"),
    ("dot", "digraph { a -> b", "truncated DOT"),
    ("dot", 'digraph { a -> "b }', "unterminated string"),
    ("dot", "digraph { a [label=<b] }", "unterminated <"),
    ("dot", "graph { a -- b }", "undirected"),
    ("dot", "digraph { a -- b }", "the graph is directed"),
    ("dot", "digraph { a -> b; b -> a }", "cycle"),
    ("dot", "digraph { a -> a }", "its own output"),
    ("dot", "digraph { a [time=fast] }", "expected a finite number"),
    ("dot", "digraph { a [flops=1.5] }", "whole number"),
    ("dot", "digraph { }", "at least one op"),
    ("dot", "digraph { a % b }", "character '%'"),
    ("dot", "digraph " + "{ subgraph s " * 60, "nested more than 50"),
    ("graphml", GRAPHML[:100], "XML"),
    ("graphml", replaced(GRAPHML, "</node>", "</nod>"), "not well-formed"),
    ("graphml", replaced(GRAPHML, 'id="b"', 'id="a"'), "twice"),
    ("graphml", replaced(GRAPHML, 'target="b"', 'target="z"'), "not in the graph"),
    ("graphml", replaced(GRAPHML, 'target="b"', 'target="a"'), "its own output"),
    ("graphml", replaced(GRAPHML, 'target="b"', ""), "target= is missing"),
    ("graphml", replaced(GRAPHML, ">3<", ">x<"), "expected a finite number"),
    (
        "graphml",
        replaced(GRAPHML, 'edgedefault="directed"', 'edgedefault="undirected"'),
        "undirected",
    ),
    ("graphml", replaced(GRAPHML, 'key="k"', 'key="q"'), "not declared"),
    ("graphml", BOMB + GRAPHML, "DOCTYPE"),
    ("graphml", '<!DOCTYPE x SYSTEM "file:///etc/passwd">' + GRAPHML, "DOCTYPE"),
    ("graphml", "<graphml>" + "<graph>" * 100, "nested more than 64"),
    ("graphml", "<graphml/>", "expected one <graph>"),
    ("node-link", json.dumps({**NODE_LINK, "directed": False}), "directed"),
    (
        "node-link",
        json.dumps({**NODE_LINK, "edges": [{"source": 1, "target": 3}]}),
        "not in the graph",
    ),
    ("node-link", json.dumps({**NODE_LINK, "nodes": [{"id": 1}, {"id": 1}]}), "twice"),
    (
        "node-link",
        json.dumps({**NODE_LINK, "nodes": [{"id": None}]}),
        "expected a name or a number",
    ),
    ("node-link", json.dumps({**NODE_LINK, "nodes": 3}), "list of objects"),
    ("csv", "op,flops\na,1,2\n", "expected 2 cells"),
    ("csv", "op,flops\na,x\n", "whole number"),
    ("csv", "op,flops\na,-1\n", ">= 0"),
    ("csv", "op,flops\na,1\na,2\n", "twice"),
    ("csv", "op,flops,flops\na,1,1\n", "a column twice"),
    ("csv", "op,flops\n", "at least one op"),
    ("csv", replaced(CSV, "a,b,3", "a,z,3"), "not in the graph"),
    ("csv", replaced(CSV, "a,b,3", "a,b,3\nb,a,3"), "cycle"),
    ("csv", replaced(CSV, "a,b,3", "a,,3"), "empty cell"),
    ("csv", replaced(CSV, "source,target", "aim,target"), "expected the header"),
    ("csv", 'op,flops\n"a,1\n', "not valid CSV"),
    ("edge-list", "a b 1\nb c\n", "no weight, but others have one"),
    ("edge-list", "a b 1\na b 2\n", "twice"),
    ("edge-list", "a b\nb a\n", "cycle"),
    ("edge-list", "a b x\n", "expected a finite number"),
    ("edge-list", "a b nan\n", "finite number"),
    ("edge-list", "a: 1\na: 2\n", "two times"),
    ("stg", replaced(STG, "4 0 1 3\n", ""), "truncated or the count is wrong"),
    ("stg", replaced(STG, "3 6 2 1 2", "3 6 2 1"), "expected 2 predecessors"),
    ("stg", replaced(STG, "3 6 2 1 2", "3 6 2 1 1"), "twice"),
    ("stg", replaced(STG, "3 6 2 1 2", "3 6 2 1 9"), "not in the graph"),
    ("stg", replaced(STG, "2 5 1 0", "1 5 1 0"), "twice"),
    ("stg", replaced(STG, "1 4 1 0", "1 4 1 4"), "cycle"),
    ("stg", replaced(STG, "1 4 1 0", "1"), "expected 'id time predecessors"),
    ("wfcommons", flow(runtime=None), "has no run time"),
    ("wfcommons", flow(runtime=-1), ">= 0"),
    ("wfcommons", flow(id="2", name="x"), "twice"),
    ("wfcommons", flow(children=["nobody"]), "not in the graph"),
    ("wfcommons", flow(parents=["cat_3"]), "cycle"),
    ("wfcommons", flow(files=[{"link": "sideways", "name": "f"}]), "expected input or output"),
    ("wfcommons", flow(files=[{"link": "input", "name": "f", "size": "big"}]), "whole number"),
    ("wfcommons", flow(files=7), "list of objects"),
    ("wfcommons", flow(parents=7), "list of names"),
    (
        "wfcommons",
        '{"schemaVersion": "1.5", "workflow": {"specification": {"tasks": []}}}',
        '"execution" is missing',
    ),
    ("wfcommons", '{"schemaVersion": "1.5"}', '"workflow"'),
    ("openvino", OPENVINO[:400], "XML"),
    ("openvino", replaced(OPENVINO, 'id="1" name="w"', 'id="0" name="w"'), "is there twice"),
    ("openvino", replaced(OPENVINO, 'from-layer="1"', 'from-layer="17"'), "is not in the graph"),
    ("openvino", replaced(OPENVINO, 'from-port="2"', 'from-port="5"'), "port 2:5"),
    ("openvino", replaced(OPENVINO, 'to-port="1"', 'to-port="0"'), "two edges"),
    (
        "openvino",
        replaced(OPENVINO, '<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>', ""),
        "no edge leads",
    ),
    ("openvino", replaced(OPENVINO, "<dim>4</dim>", "<dim>four</dim>"), "whole number"),
    ("openvino", replaced(OPENVINO, 'id="2" name="mm"', 'id="" name="mm"'), "whole number"),
    (
        "openvino",
        replaced(OPENVINO, 'from-layer="0"', 'from-layer="2"').replace(
            'from-port="0"', 'from-port="2"', 1
        ),
        "expects the shape [1, 4], receives [1, 2]",
    ),
    ("openvino", replaced(OPENVINO, 'type="MatMul"', 'type="Const"'), "no op"),
    ("openvino", "<net><layers/></net>", "<layers> and <edges>"),
    ("openvino", BOMB.replace("lolz", "net") + OPENVINO, "DOCTYPE"),
    ("placeopt", replaced(own(), '"version": 1', '"version": 9'), '"version"'),
    ("placeopt", replaced(own(), '"consumers": [[1]]', '"consumers": [[5]]'), "op indices in 0..1"),
    ("placeopt", replaced(own(), '"consumers": [[1]]', '"consumers": [[0]]'), "its own output"),
    ("placeopt", replaced(own(), '"b"', '"a"'), "occurs twice"),
]


@pytest.mark.parametrize("name", GOOD)
def test_the_good_files_are_good_and_recognised(name, tmp_path):
    """The files that are damaged below load undamaged, by content and by name of the format."""
    path = tmp_path / "file"
    path.write_text(GOOD[name])
    assert read_graph(path).num_ops == read_graph(path, format=name).num_ops


@pytest.mark.parametrize(
    ("name", "text", "part"), BAD, ids=[f"{i}-{b[0]}" for i, b in enumerate(BAD)]
)
def test_malformed(name, text, part, tmp_path):
    """Each defect is one line that names the file and the defect."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_graph(path, format=name)
    message = str(error.value)
    assert part in message
    assert str(path) in message
    assert "\n" not in message
    assert "not a valid" not in message  # the net below the readers was not needed


def outcome(path, format) -> str:
    """Return the message with which a file is refused, "" if it is read."""
    try:
        return "" if read_graph(path, format=format).num_ops else "empty"
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", GOOD)
def test_truncated_and_mutated_files_never_leak_other_errors(name, tmp_path):
    """Cut anywhere or with any byte changed, a file is read or refused in one line; nothing else
    happens.
    """
    good = GOOD[name].encode()
    rng = np.random.default_rng(3)
    path = tmp_path / "file"
    cases = [good[:cut] for cut in np.unique(np.linspace(0, len(good) - 1, 60).astype(int))]
    for _ in range(120):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(
                rng.choice(list(b'0129-".,:;[]{}<>/ \n\tax\x00\xff'))
            )
        cases.append(bytes(data))
    for data in cases:
        path.write_bytes(data)
        for format in (name, None):
            message = outcome(path, format)
            assert "\n" not in message
            assert len(message) < 1500


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("onnx", "pt2")])
@pytest.mark.parametrize(
    "text", ["", " \n", "\x00\x01\x02", "{", "[]", "null", "<a>", "42", "\ufffe", "é" * 100]
)
def test_nonsense_is_refused_by_every_reader(name, text, tmp_path):
    """A reader that is forced on a file of another kind says so in one line."""
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_graph(path, format=name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("nested", ["[" * 200_000, '{"a":' * 200_000, '{"nodes":[' + "[" * 200_000])
@pytest.mark.parametrize(
    "name", ["placeopt", "dnn-partitioning", "graphs-json", "node-link", "wfcommons"]
)
def test_deeply_nested_json(nested, name, tmp_path):
    """JSON nested 200 000 deep is refused, not a crash."""
    path = tmp_path / "file"
    path.write_text(nested)
    with pytest.raises(InputError, match="nested too deeply"):
        read_graph(path, format=name)


@pytest.mark.parametrize(
    "prefix",
    [*(GOOD[name].encode() for name in GOOD), b"", b"\x08\x07:\x80\x80\x80\x80\x04", b"PK\x03\x04"],
)
def test_gigabytes_of_nonsense_take_little_memory(prefix, tmp_path):
    """A file of 2 GB that begins like any format is refused with little memory used."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(prefix)
        file.truncate(2**31)
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            read_graph(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 64 * 2**20


def test_files_within_the_limit_only(tmp_path):
    """The size limit can be set, and is checked before anything is read."""
    path = write_graph(OpGraph.from_edges("g", ["a", "b"], [(0, 1)]), tmp_path / "g.json")
    with pytest.raises(InputError, match="more than the limit of 10"):
        read_graph(path, max_bytes=10)


def test_an_element_flood_is_refused(tmp_path, monkeypatch):
    """XML with more elements than any graph has is refused while it is parsed."""
    from placeopt.instances.readers import safe_xml

    monkeypatch.setattr(safe_xml, "MAX_ELEMENTS", 1000)
    path = tmp_path / "file"
    path.write_text("<graphml>" + "<a/>" * 2000 + "</graphml>")
    with pytest.raises(InputError, match="more than 1000 XML elements"):
        read_graph(path)


def test_a_product_of_groups_is_bounded(tmp_path):
    """In DOT, {...} -> {...} stands for every pair: too many are refused before they are made."""
    group = " ".join(f"n{i}" for i in range(3000))
    path = tmp_path / "file"
    path.write_text(f"digraph {{ {{{group}}} -> {{{group.replace('n', 'm')}}} }}")
    with pytest.raises(InputError, match="more than 500000 edges"):
        read_graph(path)
    path.write_text(f"digraph {{ {{{group[:200]}}} -> {{m}} }}")
    assert read_graph(path).num_edges > 10


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"format": "placeopt/placement", "version": 1}', "expected a graph"),
        ('{"cpus": [], "fpgas": []}', "a split of a dnn-partitioning graph"),
        ('{"device": {}}', "a placement file"),
        ('{"model_type": "gemma2", "text_config": {}}', "`placeopt plan` takes it"),
        ('{"x": 1}', "no known graph format (its first keys: x)"),
        ("<html></html>", "received <html>"),
        ("some prose, with words in it\n", "not recognised"),
    ],
)
def test_other_files_are_named(text, part, tmp_path):
    """A file that is something else is told what it is, or what it begins with."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_graph(path)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("encode", "words"),
    [
        (gzip.compress, r"compressed \(gzip\); unpack it first"),
        (bz2.compress, r"compressed \(bzip2\); unpack it first"),
        (lzma.compress, r"compressed \(xz\); unpack it first"),
        (lambda data: data.decode().encode("utf-16"), "UTF-16; write it as UTF-8"),
        (lambda data: data.replace(b"a", b"\xe9"), "neither UTF-8 text nor"),
    ],
)
def test_how_a_file_is_packed_is_named(encode, words, tmp_path):
    """A compressed file is told to be one, and text that is not UTF-8 too."""
    path = tmp_path / "graph.dot"
    path.write_bytes(encode(b"digraph { a -> b }"))
    with pytest.raises(InputError, match=words):
        read_graph(path)


def test_one_edge_behind_comments_and_two_lists_of_edges(tmp_path):
    """A list of a single edge is one, whatever stands before; two lists of edges are refused."""
    path = tmp_path / "graph"
    path.write_text("# written by hand\na b\n")
    assert read_graph(path).op_names == ("a", "b")
    nodes = '"directed": true, "nodes": [{"id": 1}, {"id": 2}]'
    path.write_text(f'{{{nodes}, "edges": [], "links": [{{"source": 1, "target": 2}}]}}')
    with pytest.raises(InputError, match=r"received .edges. and .links.; keep"):
        read_graph(path)


@pytest.mark.parametrize("name", ["dot", "graphml", "csv", "placeopt"])
def test_names_that_are_no_text_are_written(name, tmp_path):
    """Half of a character, as JSON can hold it, does not keep a graph from being written."""
    graph = OpGraph.from_edges("g", ["\ud800", "b"], [(0, 1)], [4])
    path = write_graph(graph, tmp_path / "graph", name)
    assert read_graph(path).num_edges == 1


def test_missing_files_folders_and_generators(tmp_path):
    """Paths that are no files give one line."""
    for source, part in [
        (tmp_path, "received a folder"),
        (tmp_path / "no", "no such file"),
        ("gen:x", "a generator"),
        ("x\x00y", "no such file"),
        ("a" * 5000, "too long"),
    ]:
        with pytest.raises(InputError) as error:
            read_graph(source)
        assert part in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("load", [po.load, read_graph])
def test_a_pipe_is_refused_at_once(tmp_path, load):
    """Nobody waits for who might write into a pipe; what is no path is no file for any loader."""
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="expected a regular file"):
        load(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="no such file"):
        load("x\x00y")
