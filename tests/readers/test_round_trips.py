"""Graphs written and read again, in every format that can be written, and through networkx."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from placeopt.instances.readers import FORMATS, from_networkx, read_graph, to_networkx, write_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph

ARRAYS = (
    "producer",
    "tensor_bytes",
    "consumer_ptr",
    "consumer",
    "flops",
    "bytes_moved",
    "resident",
    "parameters",
    "colocation",
    "backward",
    "meta",
    "unshaped",
    "measured_transfer",
)


def assert_same(a: OpGraph, b: OpGraph, *, title: bool = True) -> None:
    """Assert that two graphs are equal, up to the order of measured kinds."""
    assert (a.op_names, a.op_types, a.layer, a.shapes) == (
        b.op_names,
        b.op_types,
        b.layer,
        b.shapes,
    )
    for key in ARRAYS:
        assert np.array_equal(getattr(a, key), getattr(b, key)), key
    assert set(a.measured_kinds) == set(b.measured_kinds)
    for kind in a.measured_kinds:
        assert np.array_equal(
            a.measured[:, a.measured_kinds.index(kind)], b.measured[:, b.measured_kinds.index(kind)]
        )
    if title:
        assert (a.name, a.tick_seconds) == (b.name, b.tick_seconds)


def awkward_graph() -> OpGraph:
    """Return a graph with every field in use and names that need quoting everywhere."""
    return OpGraph.from_tensors(
        'the "name" <&> \\ , ;',
        [
            "a b",
            'q"uote',
            "back\\slash",
            "<tag> & co",
            "comma,colon:x",
            "ünïcode ☃",
            "-1.5",
            "graph",
            "n\\nl",
        ],
        [(0, 8, [1, 2]), (0, 9, [1]), (1, 0, [3, 4]), (2, 7, [5]), (5, 2**40, [6, 7, 8])],
        op_types=("Conv", "", "A->B", 'T"x"', "a;b", "{}", "[]", "x=y", "#"),
        layer=("x/1", "", "x/2", "", "", "", "", "", "y"),
        flops=np.arange(9) * 2**55,
        resident=np.arange(9)[::-1],
        colocation=np.array([0, 0, -1, -1, 3, 3, -1, -1, -1]),
        backward=np.arange(9) > 4,
        unshaped=np.arange(9) % 2 == 0,
        measured_kinds=("cpu", "*", "A100"),
        measured=np.array([[i, 5 if i % 2 else -1, -2] for i in range(9)]),
        measured_transfer=np.array([-1, 4, 0, -1, 2**45]),
        shapes=((2, 4), (), (5,), (0, 3), (1,)),
        tick_seconds=1e-10,
    )


@pytest.mark.parametrize("suffix", [".json", ".dot", ".gv", ".graphml", ".xml"])
def test_every_field_survives(suffix, tmp_path):
    """JSON, DOT and GraphML keep every field of a graph, and awkward names."""
    graph = awkward_graph()
    assert_same(read_graph(write_graph(graph, tmp_path / f"g{suffix}")), graph)


def test_csv_keeps_all_but_title_and_tick(tmp_path):
    """The CSV tables keep every column; name and tick length come from the file name and an
    option.
    """
    graph = awkward_graph()
    path = write_graph(graph, tmp_path / "g.csv")
    assert_same(read_graph(path, tick_seconds=1e-10), graph, title=False)
    assert read_graph(path).name == "g"


def test_networkx_keeps_every_field():
    """A graph converted to networkx and back is the same."""
    graph = awkward_graph()
    there = to_networkx(graph)
    assert isinstance(there, nx.MultiDiGraph)
    assert_same(from_networkx(there), graph)


def test_networkx_reads_our_graphml_and_we_read_its(tmp_path):
    """The networkx parser takes the GraphML written here; what it writes is read here."""
    graph = awkward_graph()
    path = write_graph(graph, tmp_path / "g.graphml")
    theirs = nx.read_graphml(path, force_multigraph=True)
    assert list(theirs.nodes) == list(graph.op_names)
    assert_same(from_networkx(theirs), graph)
    nx.write_graphml(to_networkx(graph), tmp_path / "theirs.graphml")
    assert_same(read_graph(tmp_path / "theirs.graphml"), graph)


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    """Draw a random graph with printable names."""
    n = draw(st.integers(1, 7))
    names = draw(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1),
            min_size=n,
            max_size=n,
            unique=True,
        )
    )
    tensors = []
    for u in range(n):
        for _ in range(draw(st.integers(0, 2)) if u < n - 1 else 0):
            consumers = draw(
                st.lists(st.integers(u + 1, n - 1), min_size=1, max_size=3, unique=True)
            )
            tensors.append((u, draw(st.integers(0, 2**50)), consumers))
    times = draw(st.lists(st.integers(-2, 2**40), min_size=n, max_size=n))
    return OpGraph.from_tensors(
        "random",
        names,
        tensors,
        measured_kinds=("*",),
        measured=np.array(times)[:, None],
        flops=np.arange(n),
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(graph=graphs(), suffix=st.sampled_from([".json", ".dot", ".graphml", ".csv"]))
def test_random_graphs_round_trip(graph, suffix, tmp_path):
    """Random graphs with random names survive every format that keeps names."""
    again = read_graph(write_graph(graph, tmp_path / f"random{suffix}"))
    if (graph.measured == -1).all():  # a column without any time is not written
        assert not again.measured_kinds or (again.measured == -1).all()
        return
    assert_same(again, graph)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_stg_round_trip_keeps_times_and_edges(data, tmp_path):
    """Up to the added dummies, a written task graph has the same times, costs and precedence."""
    n = data.draw(st.integers(1, 7))
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8, unique=True)
    )
    edges = [(u, v) for u, v in pairs if u < v]
    times = data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    costs = data.draw(st.lists(st.integers(0, 9), min_size=len(edges), max_size=len(edges)))
    graph = OpGraph.from_edges(
        "g",
        [f"t{i}" for i in range(n)],
        edges,
        measured_kinds=("*",),
        measured=np.array(times)[:, None],
        measured_transfer=np.array(costs, dtype=np.int64),
    )
    again = read_graph(write_graph(graph, tmp_path / "g.stg"))
    assert again.num_ops == n + 2
    order = graph.topological_order.tolist()
    assert again.measured[:, 0].tolist() == [0, *(times[i] for i in order), 0]
    inner = {
        (order[u - 1], order[v - 1]): t for (u, v), t in _costs(again).items() if u > 0 and v <= n
    }
    assert inner == dict(zip(edges, costs, strict=True))
    third = read_graph(write_graph(again, tmp_path / "h.stg"))
    assert np.array_equal(third.edges, again.edges)
    assert np.array_equal(third.measured, again.measured)


def _costs(graph: OpGraph) -> dict[tuple[int, int], int]:
    source = graph.producer[np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_ptr))]
    pairs = zip(source.tolist(), graph.consumer.tolist(), strict=True)
    return dict(zip(pairs, graph.measured_transfer.tolist(), strict=True))


def test_every_instance_round_trips_through_json(data, tmp_path):
    """Whatever can be read, with its measured times and groups, is the same after JSON."""
    files = [
        *data.glob("pipedream/*[0-9at].txt"),
        *data.glob("doppler/*.txt"),
        *data.glob("dnn-partitioning/[lt]*/*.json"),
        *data.glob("optimal/unrelated/*.txt"),
    ]
    assert len(files) == 7 + 5 + 18 + 7
    for file in files:
        graph = read_graph(file)
        assert_same(read_graph(write_graph(graph, tmp_path / "g.json")), graph)


def read_tensors_only(graph: OpGraph) -> OpGraph:
    """Return the graph without the tensors that nobody reads: formats made of edges cannot hold
    them.
    """
    kept = np.flatnonzero(np.diff(graph.consumer_ptr) > 0)
    counts = np.diff(graph.consumer_ptr)[kept]
    return replace(
        graph,
        producer=graph.producer[kept],
        tensor_bytes=graph.tensor_bytes[kept],
        consumer_ptr=np.concatenate(([0], np.cumsum(counts))),
        measured_transfer=graph.measured_transfer[kept],
        shapes=tuple(graph.shapes[t] for t in kept),
    )


@pytest.mark.parametrize("name", ["inception_v1", "shufflenet"])
def test_models_round_trip_through_every_format(name, tmp_path):
    """A real model keeps its flops, bytes, parameters and shapes in every format that holds
    them.
    """
    pytest.importorskip("onnx")
    graph = read_graph(f"onnx:{name}")
    assert_same(read_graph(write_graph(graph, tmp_path / f"{name}.json")), graph)
    for suffix in (".dot", ".graphml", ".csv"):
        assert_same(
            read_graph(write_graph(graph, tmp_path / f"{name}{suffix}")), read_tensors_only(graph)
        )


def test_stg_needs_one_time_per_op(tmp_path):
    """A graph with times per kind of device cannot be written as STG."""
    with pytest.raises(InputError, match="needs one measured time per op"):
        write_graph(awkward_graph(), tmp_path / "g.stg")


def test_files_that_cannot_be_written(tmp_path):
    """Unknown suffixes and formats without a writer are refused, with what there is."""
    with pytest.raises(InputError, match=r"use one of \.json, \.dot"):
        write_graph(awkward_graph(), tmp_path / "g.txt")
    with pytest.raises(
        InputError, match="cannot be written; these can: placeopt, dot, graphml, csv, stg"
    ):
        write_graph(awkward_graph(), tmp_path / "g.txt", "onnx")
    graph = OpGraph.from_edges("g", ["a\x01"], [])
    with pytest.raises(InputError, match="control characters"):
        write_graph(graph, tmp_path / "g.graphml")
    assert not list(tmp_path.iterdir())


def test_every_format_has_a_reader_that_can_be_imported():
    """The table of formats names modules and functions that exist."""
    import importlib

    for entry in FORMATS.values():
        for target in (entry.target, entry.writer):
            if target:
                module, _, name = target.partition(":")
                assert callable(
                    getattr(importlib.import_module(f"placeopt.instances.readers.{module}"), name)
                )
