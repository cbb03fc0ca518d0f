"""Published splits of dnn-partitioning graphs come out exactly, and malformed ones are one line."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.experiments.studies import data_folder
from placeopt.instances.readers.dnn_partitioning import is_split, read_split
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of

DATA = data_folder("dnn-partitioning")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no instances in {DATA}")
EXPERTS = {
    "bert24_inference": 20_083_953,
    "bert24_training": 49_404_906,
    "gnmt_inference": 46_208_452,
    "gnmt_training": 137_153_904,
    "inceptionv3_inference": 102_482_076,
    "resnet50_inference": 43_918_258,
}
"""Periods of the experts' splits, in ticks: 1e-6 of the files' unit."""


def ticks(milliseconds):
    """Round as readers do: half up, to nanoseconds, never to nothing."""
    exact = milliseconds * 1_000_000
    return max(int(exact.to_integral_value(ROUND_HALF_UP)), 1) if exact > 0 else 0


def largest_load(graph, split):
    """Return the largest load of a split from the two files alone, in ticks of a nanosecond."""
    numbers = json.loads(Path(graph).read_text(), parse_float=Decimal, parse_int=Decimal)
    node = {int(row["id"]): row for row in numbers["nodes"]}
    cost = {int(row["sourceId"]): ticks(row["cost"]) for row in reversed(numbers["edges"])}
    readers = {}
    for row in numbers["edges"]:
        readers.setdefault(int(row["sourceId"]), set()).add(int(row["destId"]))
    loads = []
    for holder in json.loads(Path(split).read_text())["fpgas"]:
        mine = set(holder["nodes"])
        out = sum(cost[u] for u in mine & readers.keys() if readers[u] - mine)
        come = sum(cost[u] for u in readers.keys() - mine if readers[u] & mine)
        loads.append(sum(ticks(Decimal(node[v]["fpgaLatency"])) for v in mine) + out + come)
    return max(loads)


@needs_data
@pytest.mark.parametrize("name", EXPERTS)
def test_expert_splits(name):
    """The period of an expert's split is, to the tick, what its files say under the definition of
    the load.
    """
    graph, split = (
        DATA / "throughput" / f"layer_{name}.json",
        DATA / "human-experts" / f"{name}_expert.json",
    )
    problem = po.load(graph, objective="period", contiguity="none")
    assert is_split(json.loads(Path(split).read_text()))
    finished = objective_of(problem).finish(problem, read_split(split, graph, problem), None)
    assert not finished.violations
    assert finished.value == largest_load(graph, split) == EXPERTS[name]


@needs_data
def test_on_the_command_line(capsys):
    """`verify` and `evaluate` take a split where they take a placement."""
    graph, split = (
        DATA / "throughput" / "layer_resnet50_inference.json",
        DATA / "human-experts" / "resnet50_inference_expert.json",
    )
    words = [str(graph), str(split), "--objective", "period", "--contiguity", "none", "--json"]
    values = []
    for command in (["evaluate", *words], ["verify", *words, "--seconds", "0.1"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
        values.append(json.loads(capsys.readouterr().out)["value"])
    assert values == [43918258, 43918258]


GRAPH = {
    "maxSizePerFPGA": 10,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": i,
            "name": f"n{i}",
            "supportedOnFpga": 1,
            "cpuLatency": 9,
            "fpgaLatency": 1,
            "isBackwardNode": 0,
            "size": 1,
        }
        for i in (7, 3)
    ],
    "edges": [{"sourceId": 7, "destId": 3, "cost": 0.5}],
}


def split_of(*lists, cpu=()):
    """Return a split as data."""
    return {
        "fpgas": [{"nodes": list(nodes)} for nodes in lists],
        "cpus": [{"nodes": list(cpu)}],
        "maxLoad": -1,
    }


@pytest.fixture
def files(tmp_path):
    """Return a graph's file, its problem, and a function that writes a split."""
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(GRAPH))

    def write(data):
        path = tmp_path / "split.json"
        path.write_text(json.dumps(data))
        return path

    return graph, po.load(graph, objective="period", contiguity="none"), write


def test_ids_are_those_of_the_graph(files):
    """A node is found by its id in the graph file, not by its place or name; CPUs come after the
    accelerators.
    """
    graph, problem, write = files
    assert read_split(write(split_of([3], [7])), graph, problem).device.tolist() == [1, 0]
    assert read_split(write(split_of([7], cpu=[3])), graph, problem).device.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (split_of([3]), "'n7' has no device"),
        (split_of([3, 7], [7]), "'n7' is placed twice"),
        (split_of([3, 7, 8]), "node 8 is not in the graph"),
        (split_of([], [], [3, 7]), "at most 2 fpgas"),
        (split_of(["x"]), "node"),
        ({"fpgas": [{}], "cpus": []}, '"nodes" is missing'),
        ({"fpgas": 3, "cpus": []}, "expected a list"),
    ],
)
def test_malformed(files, data, words):
    """A split that does not fit its graph is refused in one line that says what."""
    graph, problem, write = files
    with pytest.raises(InputError, match=words) as error:
        read_split(write(data), graph, problem)
    assert "\n" not in str(error.value)


def test_without_its_graph(files, tmp_path):
    """A generator has no ids: the message says that the graph's file is needed."""
    _, problem, write = files
    with pytest.raises(InputError, match="expected the file of its graph"):
        read_split(write(split_of([3], [7])), "gen:vgg16", problem)
