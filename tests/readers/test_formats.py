"""What each text format means: small files with the graphs they stand for."""

from __future__ import annotations

import json
import warnings

import networkx as nx
import numpy as np
import pytest
from reader_samples import NEW, OLD, PARTITION, STG

import placeopt as po
from placeopt.instances.readers import from_networkx, read_bundled, read_graph, write_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph


def read(tmp_path, text, name="file.txt", **options):
    """Write a file and read it, by content unless a format is given."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_graph(path, **options)


def edges(graph):
    """Return the edges by op names, with the measured time of the tensor they carry."""
    result = {}
    for t, u in enumerate(graph.producer.tolist()):
        for v in graph.consumer[graph.consumer_ptr[t] : graph.consumer_ptr[t + 1]].tolist():
            result[graph.op_names[u], graph.op_names[v]] = int(graph.measured_transfer[t])
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\nb c\n", {("a", "b"): 0, ("b", "c"): 0}),
        ("# comment\na b 3\nb c 0.2 # low\n", {("a", "b"): 3, ("b", "c"): 1}),
        ("a -> b\nb->c\n", {("a", "b"): 0, ("b", "c"): 0}),
        ("a,b,7\nb,c,8\n", {("a", "b"): 7, ("b", "c"): 8}),
        ("a b {'weight': 4}\nb c {'weight': 5.0}\n", {("a", "b"): 4, ("b", "c"): 5}),
        ("a b {}\n", {("a", "b"): 0}),
    ],
)
def test_edge_list(text, expected, tmp_path):
    """Edges in all notations; a missing weight costs nothing, ops take one tick."""
    graph = read(tmp_path, text)
    assert edges(graph) == expected
    assert (graph.measured == 1).all()


@pytest.mark.parametrize(
    "unusual",
    [
        "a b 3\n\nb c 4\n",
        " a b 3\nb c 4\n",
        "a  b 3\nb c 4\n",
        "a b 3\nb\tc 4\n",
        "a b 3\nb c 4",
        "a b 3\r\nb c 4\r\n",
    ],
)
def test_edge_lists_are_read_alike_with_and_without_unusual_blanks(unusual, tmp_path):
    """Texts with one space between cells take a short way; others mean the same."""
    plain, other = read(tmp_path, "a b 3\nb c 4\n"), read(tmp_path, unusual)
    assert (plain.op_names, edges(plain)) == (other.op_names, edges(other))


@pytest.mark.parametrize(
    "text", ["a b 3\nb c\nd e 4 5\n", "a b\nc\nd e f\n", "a\nb\n", "a b c d\ne f g h\n"]
)
def test_edge_lists_of_uneven_lines_are_refused(text, tmp_path):
    """As many cells in all as even lines would have does not make lines even."""
    with pytest.raises(InputError):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("a,", '"a",'),
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("a,2", "a, 2"),
    ],
)
def test_csv_tables_are_read_alike_with_and_without_quotes(change, tmp_path):
    """Tables without quotes and blanks take a short way; others mean the same."""
    text = "op,time:*\na,2\nb,3\n\nsource,target,bytes\na,b,7\n"
    path = tmp_path / "graph.csv"
    found = []
    for words in (text, change(text)):
        path.write_bytes(words.encode())
        found.append(read_graph(path))
    assert found[0].op_names == found[1].op_names
    assert found[0].measured.tolist() == found[1].measured.tolist()
    assert edges(found[0]) == edges(found[1])


def test_edge_list_times_and_bytes(tmp_path):
    """Lines `name: time` give times; the third column can be bytes."""
    graph = read(tmp_path, "a: 5\nb: 2.5\na b 64\nb c 32\n", weight="bytes", op_time=9)
    assert graph.measured[:, 0].tolist() == [5, 3, 9]
    assert graph.tensor_bytes.tolist() == [64, 32]
    assert (graph.measured_transfer == UNKNOWN).all()


def test_dot(tmp_path):
    """A DOT file of task-scheduling kind: weights, chains, groups, defaults, comments, ports, HTML,
    strings.
    """
    text = """// a comment
    strict digraph "G" { # not a comment in DOT, but a graph attribute may follow
      rankdir=LR; node [shape=box, Weight=4]; edge [Weight="2"];
      0 [label="0\\nWeight=7", Weight=7];
      1; "two words" [label=<<b>bold</b>>];
      subgraph cluster { node [Weight=9]; in1; in2 }
      0 -> 1:port:n -> "two words" [Weight=5];
      1 -> {in1 in2};
      0 -> 1 /* merged by strict */ [Weight=8]
    }"""
    graph = read(
        tmp_path, text.replace("# not a comment in DOT, but a graph attribute may follow", "")
    )
    assert graph.name == "G"
    assert graph.op_names == ("0", "1", "two words", "in1", "in2")
    assert graph.measured[:, 0].tolist() == [7, 4, 4, 9, 9]
    assert edges(graph) == {("0", "1"): 5, ("1", "two words"): 5, ("1", "in1"): 2, ("1", "in2"): 2}


def test_a_second_dot_graph_is_told_of(tmp_path):
    """A file may hold several graphs; the first is read, with a warning."""
    with pytest.warns(UserWarning, match="what stands behind the first graph is not read"):
        graph = read(tmp_path, "digraph a { x -> y } digraph b { u -> v }")
    assert graph.op_names == ("x", "y")


def test_dot_attributes_by_option(tmp_path):
    """Options name the attributes that hold times and sizes."""
    graph = read(
        tmp_path,
        'digraph {a [alpha=3 cost=8]; a -> b [size="1e3", lag=2]}',
        node_time="alpha",
        edge_time="lag",
    )
    assert graph.measured[:, 0].tolist() == [3, UNKNOWN]
    assert (graph.tensor_bytes.tolist(), graph.measured_transfer.tolist()) == ([1000], [2])


def test_graphml_with_defaults(tmp_path):
    """Keys with defaults, foreign attribute names and an xmlns prefix are understood."""
    text = """<?xml version="1.0"?><g:graphml xmlns:g="http://graphml.graphdrawing.org/xmlns">
    <g:key id="d0" for="node" attr.name="weight" attr.type="int"><g:default>4</g:default></g:key>
    <g:key id="d1" for="edge" attr.name="bytes" attr.type="int"/>
    <g:graph id="net" edgedefault="directed"><g:node id="x"><g:data key="d0">6</g:data></g:node><g:node id="y"/>
    <g:edge source="x" target="y"><g:data key="d1">12</g:data></g:edge></g:graph></g:graphml>"""
    graph = read(tmp_path, text)
    assert (graph.name, graph.op_names) == ("net", ("x", "y"))
    assert graph.measured[:, 0].tolist() == [6, 4]
    assert graph.tensor_bytes.tolist() == [12]


def test_node_link_json(tmp_path):
    """The JSON of networkx.node_link_data is read."""
    graph = nx.DiGraph(name="n")
    graph.add_node("a", time=3)
    graph.add_edge("a", "b", ticks=2)
    result = read(tmp_path, json.dumps(nx.node_link_data(graph, edges="links")))
    assert (result.name, edges(result)) == ("n", {("a", "b"): 2})


def test_networkx_of_another_kind():
    """A plain DiGraph needs no attributes; an undirected graph is refused."""
    graph = from_networkx(nx.DiGraph([(1, 2), (2, "x")]))
    assert graph.op_names == ("1", "2", "x")
    large = nx.DiGraph()
    large.add_node("a", resident=np.int64(2**53 + 1), time=np.int64(2**60 + 1))
    graph = from_networkx(large)
    assert (int(graph.resident[0]), int(graph.measured[0, 0])) == (2**53 + 1, 2**60 + 1)
    with pytest.raises(InputError, match="undirected"):
        from_networkx(nx.Graph([(1, 2)]))
    with pytest.raises(InputError, match="cycle"):
        from_networkx(nx.DiGraph([(1, 2), (2, 1)]))


def test_a_networkx_graph_is_a_source_and_other_objects_are_refused():
    """`load` takes a DiGraph as it is; what is no source is told what one is."""
    graph = nx.DiGraph([("a", "b"), ("a", "c")])
    nx.set_node_attributes(graph, 5, "time")
    problem = po.load(graph, "uniform:2")
    assert problem.op_names == ("a", "b", "c")
    assert problem.compute.tolist() == [[5, 5]] * 3
    for other in ({"a": 1}, None, 5, ["a"]):
        with pytest.raises(InputError, match=f"networkx DiGraph.*received {type(other).__name__}"):
            po.load(other, "uniform:2")


def test_csv_tables(tmp_path):
    """Op and edge tables in one file, in two files, or edges alone; devices by kind; -1 and -2 keep
    their sense.
    """
    ops = "op,type,flops,time:cpu,time:gpu\na,Conv,5,10,-2\nb,,6,-1,3\n"
    links = "source,target,bytes,tensor\na,b,7,t\n"
    one = read(tmp_path, f"{ops}\n{links}", "one.csv")
    assert one.measured_kinds == ("cpu", "gpu")
    assert one.measured.tolist() == [[10, UNSUPPORTED], [UNKNOWN, 3]]
    (tmp_path / "two.edges.csv").write_text(links)
    two = read(tmp_path, ops, "two.ops.csv")
    (tmp_path / "other.csv").write_text(links)
    three = read(tmp_path, ops, "three.csv", edges="other.csv")
    for graph in (two, three):
        assert graph.tensor_bytes.tolist() == [7]
        assert graph.op_names == one.op_names
    assert two.name == "two"
    alone = read(tmp_path, "from,to,cost\nx,y,4\n", "alone.csv")
    assert edges(alone) == {("x", "y"): 4}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("head", ["", "# made by hand, see u v\n\n"])
def test_csv_separators_and_comments(separator, head, tmp_path):
    """A table is a table with tabs and semicolons and behind comments: no header becomes an
    edge.
    """
    tables = "op,time\na,3\nb,4\n\nsource,target,bytes\na,b,7\n"
    graph = read(tmp_path, head + tables.replace(",", separator), "graph.csv")
    assert (graph.op_names, graph.measured.tolist()) == (("a", "b"), [[3], [4]])
    assert graph.tensor_bytes.tolist() == [7]
    with pytest.raises(InputError, match=f"line {2 + head.count(chr(10))}: time"):
        read(tmp_path, f"{head}op{separator}time\na{separator}x\n", "graph.csv")


def test_tables_of_data_frames(tmp_path):
    """The index that pandas writes is left out; a column that is not read is told of where a table
    of ops has no edges.
    """
    text = ",op,time\n0,a,3\n1,b,4\n\n,source,target,bytes\n0,a,b,7\n"
    graph = read(tmp_path, text, "frame.csv")
    assert (graph.measured.tolist(), graph.tensor_bytes.tolist()) == ([[3], [4]], [7])
    with pytest.warns(UserWarning, match="there are no edges, and the column 'deps' is not read"):
        read(tmp_path, "op,time,deps\na,3,\nb,4,a\n", "deps.csv")


def test_csv_of_names_alone_is_recognised(tmp_path):
    """A graph whose ops have no attributes has a header of one cell, which is read again."""
    graph = OpGraph.from_edges("g", ["a", "b"], [(0, 1)], [4])
    again = read_graph(write_graph(graph, tmp_path / "graph.csv"))
    assert (again.op_names, again.tensor_bytes.tolist()) == (graph.op_names, [4])


def test_csv_tensor_column_makes_one_tensor(tmp_path):
    """Edges of one source with the same tensor are one tensor; others are tensors of their own."""
    graph = read(tmp_path, "source,target,tensor,bytes\na,b,t,4\na,c,t,4\na,b,u,5\n", "e.csv")
    assert graph.num_tensors == 2
    assert graph.tensor_bytes.tolist() == [4, 5]


def test_stg(tmp_path):
    """The published notation: three tasks, two dummies, no communication."""
    graph = read(tmp_path, STG)
    assert graph.measured[:, 0].tolist() == [0, 4, 5, 6, 0]
    assert {(u, v) for u, v in graph.edges.tolist()} == {(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)}
    assert (graph.measured_transfer == 0).all()
    assert read(tmp_path, f"# three tasks\n{STG}").op_names == graph.op_names


@pytest.mark.parametrize(
    "text",
    [
        "2\n0 0 0\n1 4 1 0 0\n2 5 2 0 0 1 9\n3 0 1 2 0\n",
        "2\n0 0 0\n1 4 1\n0 0\n2 5 2\n0 0\n1 9\n3 0 1\n2 0\n",
    ],
)
def test_stg_with_communication(text, tmp_path):
    """Costs stand behind each predecessor, on the line or on lines of their own."""
    graph = read(tmp_path, text, format="stg")
    assert edges(graph)["task1", "task2"] == 9


@pytest.mark.parametrize("content", [OLD, NEW], ids=["1.3", "1.5"])
def test_wfcommons(content, tmp_path):
    """Old and new versions: run times in ticks, files as tensors, other dependencies as empty
    tensors.
    """
    graph = read(tmp_path, json.dumps(content))
    assert graph.name == "w"
    assert graph.measured[:, 0].tolist() == [2_500_000_000, 1_000_000_000, 1]
    assert graph.tensor_bytes.tolist() == [100, 0]
    assert graph.edges.tolist() == [[0, 1], [1, 2]]


def test_dnn_partitioning(tmp_path):
    """Times in ms become ns, never 0; unsupported ops, colours, backward flags and devices
    arrive.
    """
    path = tmp_path / "p.json"
    path.write_text(json.dumps(PARTITION))
    graph, cluster = read_bundled(path)
    assert graph.measured_kinds == ("cpu", "accelerator")
    assert graph.measured.tolist() == [[2_000_000, 500_000], [1, UNSUPPORTED], [0, 0]]
    assert graph.num_tensors == 1
    assert graph.measured_transfer.tolist() == [250_000]
    assert graph.colocation.tolist() == [0, -1, 0]
    assert graph.backward.tolist() == [False, False, True]
    assert cluster is not None
    assert [d.memory for d in cluster.devices[:2]] == [1000, 1000]
    assert read_graph(path, cost_scale=1000).measured_transfer.tolist() == [250_000_000]
    assert read_graph(path, cost_scale="1000").measured_transfer.tolist() == [250_000_000]


def test_times_round_half_up_and_never_to_zero(tmp_path):
    """A positive time is at least one tick; halves go up."""
    text = (
        "node1 -- Conv2d(1) -- forward_compute_time=0.0000005, backward_compute_time=0, "
        "activation_size=[1.0; 2.0], "
        "parameter_size=8\nnode2 -- ReLU -- forward_compute_time=0.0000001, "
        "backward_compute_time=0, "
        "activation_size=0, parameter_size=0 -- stage_id=3\n\tnode1 -- node2\n"
    )
    graph = read(tmp_path, text)
    assert graph.measured[:, 0].tolist() == [1, 1]
    assert graph.tensor_bytes.tolist() == [3]
    assert graph.parameters.tolist() == [2, 0]
    coarse = read(tmp_path, text, tick_seconds=1e-10)
    assert coarse.measured[:, 0].tolist() == [5, 1]


@pytest.mark.parametrize(
    "text",
    [
        "digraph { a [weight=0.3]; b [weight=0.96]; a -> b [weight=2.5]; }",
        "op,time\na,0.3\nb,1\n\nsource,target,ticks\na,b,2.5\n",
        "a b 2.5\na : 0.3\n",
    ],
)
def test_times_of_less_than_a_few_ticks_are_warned_of(text, tmp_path):
    """Rounding that changes a time by more than a tenth is not passed over in silence."""
    with pytest.warns(UserWarning, match="rounding changes 2 of them by more than a tenth"):
        graph = read(tmp_path, text)
    assert graph.measured[:, 0].tolist()[0] == 1
    with warnings.catch_warnings(action="error"):
        read(tmp_path, text.replace("0.3", "300").replace("2.5", "10.4"))


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("digraph { a [weight=0.3]; b; a -> b [weight=2.5]; }", 300_000),
        ("op,time\na,0.3\nb,1\n\nsource,target,ticks\na,b,2.5\n", 300_000),
        ("op,time\na,3\nb,1\n\nsource,target,ticks,bytes\na,b,2.5,7\n", 3_000_000),
        ("source,target,ticks\na,b,2.5\n", UNKNOWN),
        ("a b 2.5\na : 0.3\n", 300_000),
        ("a b 2.5\n", 1),
    ],
)
def test_times_of_a_file_have_a_unit(text, ticks, tmp_path):
    """An option says the unit of times in tables, whole numbers or not; ticks stay nanoseconds."""
    graph = read(tmp_path, text, unit="ms")
    assert graph.tick_seconds == 1e-9
    assert [*graph.measured[:1].ravel().tolist(), UNKNOWN][0] == ticks
    assert edges(graph) == {("a", "b"): 2_500_000}
    with pytest.warns(UserWarning, match="take a shorter tick"):
        assert read(tmp_path, text, unit="ns").measured_transfer.tolist() == [3]
    with pytest.raises(
        InputError, match="option unit: expected one of s, ms, us, ns, received 'h'"
    ):
        read(tmp_path, text, unit="h")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2\n0 0.3 0\n1 2 1 0 0.4\n", [300_000, 2_000_000]),
        ('{"a": {"n": 2, "work": [0.3, 2], "edges": [[0, 1, 0.4]]}}', [300_000, 2_000_000]),
        ("#tasks\n0: 0.3\n1: 2\n#edges\n0: 0, 1, 0.4\n#end\n", [300_000, 2_000_000]),
        ("3\n0,\n0,\n1,\n0.3,0.4\n2,1\n", [3_000_000, 20_000_000]),
    ],
)
def test_rounded_times_are_told_of_in_every_format(text, ms, tmp_path):
    """Standard task graphs, libraries, tables by device and Doppler graphs made 0.3 one tick in
    silence.
    """
    with pytest.warns(UserWarning, match="changes 2 of them.*tell their unit"):
        graph = read(tmp_path, text)
    assert graph.measured[:, 0].tolist() == [1, 2]
    assert read(tmp_path, text, unit="ms").measured[:, 0].tolist() == ms


def test_a_name_that_no_attribute_has_is_refused(tmp_path):
    """A misspelt column was no column: every op took what a launch takes."""
    with pytest.raises(InputError, match="node_time: expected one of latency, received 'latncy'"):
        read(tmp_path, "op,latency\na,3\n", node_time="latncy")
    dot = "digraph { a [cost=3]; b; a -> b [Volume=5]; b -> c }"
    with pytest.raises(InputError, match="edge_bytes: expected one of volume, received 'volum'"):
        read(tmp_path, dot, edge_bytes="volum")
    assert read(tmp_path, dot, edge_bytes="volume").tensor_bytes.tolist() == [5, 0]


def test_costs_under_names_that_are_not_read_are_told_of(tmp_path):
    """A table of latencies was a graph without costs, and no word said so."""
    with pytest.warns(UserWarning, match=r"no op has a time.*FILE\?node_time=latency_ms"):
        read(tmp_path, "op,type,latency_ms\na,conv,3\n")
    with pytest.warns(UserWarning, match=r"no edge has a time.*FILE\?edge_bytes=volume"):
        read(tmp_path, "digraph { a [cost=3]; a -> b [volume=5] }")


def test_times_of_other_devices_are_no_times(tmp_path):
    """Without flops, ops measured on other devices took what a launch takes."""
    path = tmp_path / "graph.csv"
    path.write_text("op,time:A100\na,5\n")
    assert po.load(path, cluster="2xA100").compute.tolist() == [[5, 5]]
    with pytest.raises(InputError, match=r"no op has a time on 'V100'.*measured on: A100"):
        po.load(path, cluster="2xV100")


def test_attributes_of_networkx_have_a_unit():
    """The same option in Python; it counts in the ticks of the graph."""
    graph = nx.DiGraph(tick_seconds=1e-6)
    graph.add_node("a", time=1.25)
    assert from_networkx(graph, unit="s").measured.tolist() == [[1_250_000]]
    assert from_networkx(graph, unit="ms", tick_seconds=1e-9).measured.tolist() == [[1_250_000]]


def test_numbers_of_numpy_are_attributes_of_networkx():
    """Only those of Python were numbers."""
    graph = nx.DiGraph()
    graph.add_node("a", time=np.int64(7), resident=np.int32(5))
    graph.add_edge("a", "b", weight=np.float32(2.0))
    found = from_networkx(graph)
    assert (found.measured[0, 0], found.resident[0], found.measured_transfer[0]) == (7, 5, 2)


def test_doppler_trailing_commas_and_types(tmp_path):
    """A trailing comma, an op type and an input list are understood; big integers stay exact."""
    graph = read(tmp_path, f"4\n0,\n0, 1,\n1, 2,\n{2**60},4,matmul\n5,6,add\n7,8,add\n")
    assert graph.op_types == ("matmul", "add", "add")
    assert graph.measured[:, 0].tolist() == [2**60, 5, 7]
    assert edges(graph) == {("op0", "op1"): 4, ("op1", "op2"): 6}


def test_library_of_graphs(tmp_path):
    """A graph is chosen by #NAME; a wrong name gets the nearest one."""
    path = tmp_path / "graphs.json"
    body = {"n": 2, "work": [3, 4], "edges": [[0, 1, 5]]}
    path.write_text(json.dumps({"alpha": body, "beta": body}))
    assert edges(read_graph(f"{path}#beta")) == {("task0", "task1"): 5}
    with pytest.raises(InputError, match="did you mean 'beta'"):
        read_graph(f"{path}#betta")
    with pytest.raises(InputError, match="2 graphs: name one as FILE#NAME"):
        read_graph(path)


def test_options_are_checked(tmp_path):
    """Unknown options, formats and values are refused; texts are converted."""
    path = tmp_path / "e.txt"
    path.write_text("a b\n")
    assert read_graph(path, op_time="3").measured[0, 0] == 3
    with pytest.raises(
        InputError, match="has no option 'dims'; known: weight, op_time, unit, tick_seconds"
    ):
        read_graph(path, dims="a=1")
    with pytest.raises(InputError, match="option op_time: expected a whole number"):
        read_graph(path, op_time="x")
    with pytest.raises(InputError, match="tick_seconds: expected a positive number"):
        read_graph(path, tick_seconds=0.0)
    with pytest.raises(
        InputError, match="format 'edgelist' is not known; did you mean 'edge-list'"
    ):
        read_graph(path, format="edgelist")
    assert read_graph(path, dims=None).num_ops == 2


def test_options_in_the_source(tmp_path):
    """Options can follow the source after a question mark, also with #NAME; a file of that name
    comes first.
    """
    path = tmp_path / "e.txt"
    path.write_text("a b 3\n")
    graph = read_graph(f"{path}?op_time=7&weight=bytes")
    assert (graph.measured[0, 0], graph.tensor_bytes[0]) == (7, 3)
    with pytest.raises(InputError, match="'op_time' is given twice"):
        read_graph(f"{path}?op_time=7", op_time=3)
    with pytest.raises(InputError, match="expected key=value, received 'op_time'"):
        read_graph(f"{path}?op_time")
    with pytest.raises(InputError, match="has no option 'x'"):
        read_graph(f"{path}?x=1")
    (tmp_path / "graphs.json").write_text(
        json.dumps({"a": {"n": 1, "work": [5], "edges": []}, "b": {}})
    )
    assert read_graph(f"{tmp_path}/graphs.json#a?tick_seconds=0.5").tick_seconds == 0.5
    (tmp_path / "e.txt?op_time=7").write_text("x y\nx z\n")
    assert read_graph(f"{path}?op_time=7").num_ops == 3


def test_training_is_an_option_of_every_reader(tmp_path):
    """A format without measured backward times derives them."""
    graph = read(tmp_path, "a: 5\na b 2\n", training=True)
    assert graph.backward.any()
    assert np.count_nonzero(~graph.backward) >= 2
