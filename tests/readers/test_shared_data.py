"""Every file of the instance data loads, with the counts it should have."""

from __future__ import annotations

import csv
import json
import math
import re

import numpy as np
import pytest

from placeopt.instances.readers import read_bundled, read_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import UNSUPPORTED

# nodes, edges, sum of activation bytes of nodes with a reader, parameter bytes; counted with other
# tools
PIPEDREAM = {
    "alexnet": (23, 23, 1277689860, 244403360),
    "gnmt": (48, 58, 207644672, 775063808),
    "inception_v3": (326, 362, 16685749768, 108645056),
    "resnet18": (71, 79, 8581545988, 46758048),
    "resnet50": (177, 193, 19308216324, 102228128),
    "squeezenet1_0": (68, 76, 12475293700, 4993696),
    "vgg16": (41, 41, 14758707204, 553430176),
}

DOPPLER = ("chain_mm", "ffnn", "llama_block", "llama_block_8gpu", "llama_layer")

PARTITIONING = (
    *(
        "latency/" + name
        for name in (
            "layer_bert24_inference",
            "layer_gnmt_inference",
            "layer_resnet50_inference",
            "operator_bert_l-3_inference",
            "operator_bert_l-6_inference",
            "operator_resnet50_inference",
        )
    ),
    *(
        "throughput/" + name
        for name in (
            "layer_bert24_inference",
            "layer_bert24_training",
            "layer_gnmt_inference",
            "layer_gnmt_training",
            "layer_inceptionv3_inference",
            "layer_inceptionv3_training",
            "layer_resnet50_inference",
            "operator_bert_l-12_inference",
            "operator_bert_l-3_inference",
            "operator_bert_l-3_training",
            "operator_bert_l-6_training",
            "operator_resnet50_inference",
        )
    ),
)


def test_the_tables_above_are_complete(data):
    """No graph file of the data is left out of these tests."""
    assert {p.stem for p in (data / "pipedream").glob("*.txt")} - {"LICENSE"} == set(PIPEDREAM)
    assert {p.stem for p in (data / "doppler").glob("*.txt")} == set(DOPPLER)
    found = {f"{p.parent.name}/{p.stem}" for p in (data / "dnn-partitioning").glob("[lt]*/*.json")}
    assert found == set(PARTITIONING)


@pytest.mark.parametrize("name", PIPEDREAM)
def test_pipedream(name, data):
    """A profile has its nodes, edges and bytes, and the forward times of its text in
    nanoseconds.
    """
    path = data / "pipedream" / f"{name}.txt"
    graph = read_graph(path)
    nodes, edges, activation, parameters = PIPEDREAM[name]
    assert (graph.num_ops, graph.num_edges) == (nodes, edges)
    assert int(graph.tensor_bytes.sum()) == activation
    assert int(graph.resident.sum()) == parameters
    assert graph.measured_kinds == ("*",)
    times = re.findall(r"forward_compute_time=([\d.]+)", path.read_text())
    assert int(graph.measured.sum()) == round(sum(float(t) for t in times) * 1e6)
    assert not graph.backward.any()


def test_pipedream_lists_of_activations_are_summed(data):
    """The first LSTM of GNMT has three outputs, of 6291456 + 2 * 131072 bytes."""
    graph = read_graph(data / "pipedream" / "gnmt.txt")
    op = graph.op_names.index("node7")
    assert graph.op_types[op] == "LSTM"
    assert graph.tensor_bytes[graph.producer == op].tolist() == [6291456 + 2 * 131072]
    assert graph.parameters[op] == 50364416 // 4


@pytest.mark.parametrize("name", ["alexnet", "gnmt", "resnet18"])
def test_pipedream_training_mirrors_the_graph(name, data):
    """Node i has the backward node 2V+1-i, edges are mirrored, V feeds V+1, both ops share a
    device.
    """
    path = data / "pipedream" / f"{name}.txt"
    forward, graph = read_graph(path), read_graph(path, training=True)
    count = forward.num_ops
    assert graph.num_ops == 2 * count
    mirrored = {(2 * count - 1 - v, 2 * count - 1 - u) for u, v in forward.edges.tolist()}
    assert {tuple(e) for e in graph.edges.tolist()} == {
        tuple(e) for e in forward.edges.tolist()
    } | mirrored | {(count - 1, count)}
    assert graph.backward.tolist() == [False] * count + [True] * count
    assert graph.colocation.tolist() == [*range(count), *reversed(range(count))]
    times = re.findall(r"node(\d+) --.*?backward_compute_time=([\d.]+)", path.read_text())
    for node, time in times:
        assert graph.measured[2 * count - int(node), 0] == round(float(time) * 1e6)
    assert graph.resident.sum() == forward.resident.sum()


def test_pipedream_data_loading_can_be_left_out(data):
    """The time of the Input node of an image model is data loading, and counts only on request."""
    path = data / "pipedream" / "alexnet.txt"
    graph, without = read_graph(path), read_graph(path, data_loading=False)
    changed = np.flatnonzero(graph.measured != without.measured)
    assert all(graph.op_types[i].startswith("Input") for i in changed)
    assert without.measured[changed].sum() == 0
    assert changed.size


@pytest.mark.parametrize("name", DOPPLER)
def test_doppler(name, data):
    """A Doppler graph has its ops (without inputs), edges and ticks; a tensor per op, sent for comm
    ticks.
    """
    graph = read_graph(data / "doppler" / f"{name}.txt")
    lines = (data / "doppler" / f"{name}.txt").read_text().splitlines()
    inputs, sources, targets = (re.findall(r"\d+", line) for line in lines[1:4])
    rows = [row.split(",") for row in lines[4:] if row.strip()]
    assert graph.num_ops == len(rows) == int(lines[0]) - len(inputs)
    assert graph.num_edges == len(set(zip(sources, targets, strict=True)))
    assert int(graph.measured.sum()) == sum(int(row[0]) for row in rows)
    assert len(set(graph.producer.tolist())) == graph.num_tensors
    assert graph.measured_transfer.tolist() == [int(rows[u][1]) for u in graph.producer]
    assert (graph.edges[:, 0] < graph.edges[:, 1]).all()


def test_doppler_load_bounds_are_the_published_ones(data):
    """The work of each graph over 4 devices is the load bound of the data's table."""
    published = {"chain_mm": 1200.07, "ffnn": 56.70, "llama_block": 97.17}
    for name, bound in published.items():
        graph = read_graph(data / "doppler" / f"{name}.txt")
        assert graph.measured.sum() / 4 * graph.tick_seconds == pytest.approx(bound, abs=0.005)


@pytest.mark.parametrize("name", PARTITIONING)
def test_dnn_partitioning(name, data):
    """A file of the NeurIPS 2020 paper gives its graph, times of both kinds, and its own
    devices.
    """
    path = data / "dnn-partitioning" / f"{name}.json"
    graph, cluster = read_bundled(path)
    raw = json.loads(path.read_text())
    nodes = raw["nodes"]
    assert graph.num_ops == len({node["id"] for node in nodes})
    assert graph.num_edges == len({(edge["sourceId"], edge["destId"]) for edge in raw["edges"]})
    assert int(graph.backward.sum()) == sum(int(node["isBackwardNode"]) for node in nodes)
    colours = {node["colorClass"] for node in nodes if node.get("colorClass") is not None}
    assert len(set(graph.colocation[graph.colocation >= 0].tolist())) == len(colours)
    assert graph.measured_kinds == ("cpu", "accelerator")
    assert graph.measured[:, 0].tolist() == [
        math.floor(node["cpuLatency"] * 1e6 + 0.5) for node in nodes
    ]
    assert cluster is not None
    kinds = ["accelerator"] * raw["maxFPGAs"] + ["cpu"] * raw["maxCPUs"]
    assert [device.kind for device in cluster.devices] == kinds
    assert (graph.measured_transfer >= 0).all()
    assert len(set(graph.producer.tolist())) == graph.num_tensors


def test_dnn_partitioning_cost_scales(data):
    """The throughput layer files have costs 1000 times smaller than the latency files of the same
    graphs.
    """
    folder = data / "dnn-partitioning"
    for name in ("layer_bert24_inference", "layer_gnmt_inference", "layer_resnet50_inference"):
        as_in_file = read_graph(folder / "throughput" / f"{name}.json")
        scaled = read_graph(folder / "throughput" / f"{name}.json", cost_scale=1000)
        latency = read_graph(folder / "latency" / f"{name}.json")
        assert np.abs(scaled.measured_transfer - latency.measured_transfer).max() <= 1
        ratio = latency.measured_transfer.sum() / as_in_file.measured_transfer.sum()
        assert ratio == pytest.approx(1000, rel=1e-3)
        assert (as_in_file.measured == latency.measured).all()
    assert (
        read_graph(folder / "latency" / f"{name}.json", cost_scale="file").measured_transfer
        == latency.measured_transfer
    ).all()


def test_human_expert_splits_are_no_graphs(data):
    """A split of a graph is told apart from a graph."""
    for path in (data / "dnn-partitioning" / "human-experts").glob("*.json"):
        with pytest.raises(InputError, match="is a split of a dnn-partitioning graph"):
            read_graph(path)


def test_optimal_identical(data):
    """All 35 graphs of the library load by name, with the numbers of ops that the table of optima
    gives.
    """
    path = data / "optimal" / "identical" / "graphs.json"
    with (data / "optimal" / "identical" / "optima.csv").open() as file:
        ops = {row["graph"]: int(row["num_ops"]) for row in csv.DictReader(file)}
    edges = 0
    for name, count in ops.items():
        graph, cluster = read_bundled(f"{path}#{name}")
        assert (graph.name, graph.num_ops, cluster) == (name, count, None)
        assert graph.num_tensors == graph.num_edges
        assert (graph.measured > 0).all()
        edges += graph.num_edges
    assert (len(ops), edges) == (35, 458)


def test_optimal_unrelated(data):
    """The heterogeneous examples bring one kind of device per column."""
    with (data / "optimal" / "unrelated" / "optima.csv").open() as file:
        rows = list(csv.DictReader(file))
    edges = {
        "Ahmad-3-9": 12,
        "Daoud-2-11": 17,
        "Hamid-3-10": 15,
        "Hsu-3-10": 15,
        "Ilavarasan-3-10": 15,
        "Kuan-3-10": 13,
        "YCLee-3-8": 11,
    }
    for row in rows:
        graph, cluster = read_bundled(data / "optimal" / "unrelated" / row["file"])
        assert cluster is not None
        assert (graph.num_ops, cluster.num_devices) == (
            int(row["num_ops"]),
            int(row["num_devices"]),
        )
        assert graph.num_edges == edges[graph.name]
        assert tuple(d.kind for d in cluster.devices) == graph.measured_kinds
        assert UNSUPPORTED not in graph.measured
    assert len(rows) == 7


def test_topcuoglu_example(data):
    """The first task of Ilavarasan's file takes 14, 16 and 9 on its three devices (a well-known
    example).
    """
    graph = read_graph(data / "optimal" / "unrelated" / "Ilavarasan-3-10.txt")
    assert graph.measured[0].tolist() == [14, 16, 9]


def test_files_that_are_no_graphs_are_refused(data):
    """Tables and texts beside the graphs give one line that lists the formats."""
    for path in (
        data / "README.md",
        data / "optimal" / "identical" / "optima.csv",
        data / "pipedream" / "LICENSE.txt",
    ):
        with pytest.raises(InputError, match=r"not recognised.*formats: onnx"):
            read_graph(path)
