"""Splitting ops: work, weights and tensors add up, and pieces talk to the right pieces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.generators import generate
from placeopt.instances.generators.builder import GraphBuilder
from placeopt.instances.op_splitting import DIMENSIONS, replicate, split
from placeopt.instances.training import training_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph


def _traffic(graph):
    """Bytes by (producer name, consumer name)."""
    table = {}
    for t in range(graph.num_tensors):
        for v in graph.consumer[graph.consumer_ptr[t] : graph.consumer_ptr[t + 1]].tolist():
            key = (graph.op_names[graph.producer[t]], graph.op_names[v])
            table[key] = table.get(key, 0) + int(graph.tensor_bytes[t])
    return table


def _network(training=False):
    """Three linear layers a (8 x 12) -> b (8 x 20) -> c (8 x 4), 4 bytes each, no biases."""
    b = GraphBuilder("net")
    x = b.linear(b.input(8, 16), 12, bias=False, name="a")
    x = b.linear(x, 20, bias=False, name="b")
    b.linear(x, 4, bias=False, name="c")
    graph = b.build()
    return training_graph(graph) if training else graph


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_flops_of_the_pieces_add_up(dimension):
    """Whatever is cut, the pieces do the same work; only reductions add flops."""
    graph = generate("gen:gpt2?layers=2")
    names = [name for name, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == "linear"]
    result = split(graph, {name: 3 for name in names}, dimension)
    work = np.zeros(graph.num_ops, dtype=np.int64)
    np.add.at(work, result.origin[~result.reduction], result.graph.flops[~result.reduction])
    assert np.array_equal(work, graph.flops)
    assert result.graph.parameters.sum() == graph.parameters.sum()
    assert result.graph.num_ops > graph.num_ops


def test_batch_split_scatters_and_gathers():
    """B cut by batch in two: each piece gets half of a's output and sends half of its own to c; weights are copied."""
    graph = split(_network(), {"b": 2}).graph
    assert _traffic(graph) == {
        ("a", "b#0"): 8 * 12 * 2, ("a", "b#1"): 8 * 12 * 2, ("b#0", "c"): 8 * 20 * 2, ("b#1", "c"): 8 * 20 * 2,
    }  # fmt: skip
    assert graph.resident.tolist() == [16 * 12 * 4, 12 * 20 * 4, 12 * 20 * 4, 20 * 4 * 4]


def test_output_split_broadcasts_and_gathers():
    """B cut by output: each piece gets all of a's output (one tensor), has half the weights, sends half."""
    graph = split(_network(), {"b": 2}, "output").graph
    assert _traffic(graph) == {
        ("a", "b#0"): 8 * 12 * 4, ("a", "b#1"): 8 * 12 * 4, ("b#0", "c"): 8 * 20 * 2, ("b#1", "c"): 8 * 20 * 2,
    }  # fmt: skip
    assert graph.num_tensors == 4  # a to both pieces, one per piece, and c's output
    assert graph.resident.sum() == _network().resident.sum()


def test_inner_split_reduces_partial_sums():
    """B cut by inner: half the input each, and two reductions of half the output each, fed by both pieces."""
    result = split(_network(), {"b": 2}, "inner")
    half = 8 * 20 * 2
    assert _traffic(result.graph) == {
        ("a", "b#0"): 8 * 12 * 2, ("a", "b#1"): 8 * 12 * 2,
        ("b#0", "b/reduce#0"): half, ("b#0", "b/reduce#1"): half, ("b#1", "b/reduce#0"): half,
        ("b#1", "b/reduce#1"): half, ("b/reduce#0", "c"): half, ("b/reduce#1", "c"): half,
    }  # fmt: skip
    assert result.graph.flops[result.reduction].sum() == 8 * 20


def test_aligned_cuts_talk_piece_to_piece():
    """Two ops cut alike exchange nothing across; column then row parallelism needs no exchange either."""
    for first, second in (("batch", "batch"), ("output", "inner")):
        graph = split(_network(), {"a": 4, "b": 4}, {"a": first, "b": second}).graph
        pairs = {(u, v) for u, v in _traffic(graph) if u.startswith("a#") and v.startswith("b#")}
        assert pairs == {(f"a#{i}", f"b#{i}") for i in range(4)}


def test_unlike_cuts_exchange_the_overlap():
    """Three row pieces to two row pieces overlap in four places; rows to columns in all six."""
    graph = split(_network(), {"a": 3, "b": 2}).graph
    table = {key: size for key, size in _traffic(graph).items() if key[0].startswith("a#")}
    assert set(table) == {("a#0", "b#0"), ("a#1", "b#0"), ("a#1", "b#1"), ("a#2", "b#1")}
    assert sum(table.values()) == 8 * 12 * 4
    assert table["a#1", "b#0"] == table["a#1", "b#1"] == 8 * 12 * 4 // 6
    graph = split(_network(), {"a": 3, "b": 2}, {"a": "output", "b": "batch"}).graph
    table = {key: size for key, size in _traffic(graph).items() if key[0].startswith("a#")}
    assert len(table) == 6
    assert set(table.values()) == {8 * 12 * 4 // 6}


def test_every_cut_delivers_each_byte_exactly_once():
    """For all cuts of producer and consumer, what a piece receives is its share of the tensor."""
    for first, second, a, b in itertools.product(DIMENSIONS, DIMENSIONS, (1, 2, 3), (1, 2, 5)):
        graph = split(_network(), {"a": a, "b": b}, {"a": first, "b": second}).graph
        size = 8 * 12 * 4
        received = {}
        for (u, v), amount in _traffic(graph).items():
            if v == "b" or v.startswith("b#"):
                received[v] = received.get(v, 0) + amount
                assert u.startswith("a/reduce#" if first == "inner" and a > 1 else "a")
        whole = b == 1 or second == "output"
        if whole:
            assert set(received.values()) == {size}
        else:
            assert sum(received.values()) == size
            assert max(received.values()) - min(received.values()) <= 3 * a


def test_data_parallel_training_all_reduces_weight_gradients():
    """Replicas work alone but for the gradients: 2 (r - 1) / r of the weights in and out per replica."""
    replicas = 4
    result = replicate(_network(training=True), replicas)
    graph = result.graph
    across = 0
    for (u, v), amount in _traffic(graph).items():
        i, j = u.rpartition("#")[2], v.rpartition("#")[2]
        if i != j:
            assert "wgrad" in u
            across += amount
    weights = graph.parameters.sum() * 4
    assert across == replicas * 2 * (replicas - 1) / replicas * weights
    at = {name: op for op, name in enumerate(graph.op_names)}
    assert graph.resident[at["b/update#3"]] == 8 * 12 * 20
    assert graph.colocation[at["b#2"]] == graph.colocation[at["b/wgrad#2"]] == graph.colocation[at["b/update#2"]] >= 0
    assert graph.colocation[at["b#2"]] != graph.colocation[at["b#1"]]


def test_column_parallel_training_reduces_input_gradients():
    """Cut by output: weights, gradients and state are cut, and the input gradient is the sum of partial ones."""
    base = _network(training=True)
    result = split(base, {"b": 2}, "output")
    graph = result.graph
    assert graph.resident.sum() == base.resident.sum()
    traffic = _traffic(graph)
    assert traffic["b/igrad#0", "b/igrad/reduce#1"] == 8 * 12 * 2
    assert traffic["b/wgrad#1", "b/update#1"] == 12 * 20 * 2
    assert ("b/wgrad#1", "b/update#0") not in traffic
    assert traffic["c/igrad", "b/wgrad#0"] == 8 * 20 * 2  # its columns of the output gradient
    assert traffic["a", "b/wgrad#0"] == 8 * 12 * 4  # all of the input


def test_row_parallel_training_reduces_outputs():
    """Cut by inner: the output is reduced, the input gradient comes out cut."""
    traffic = _traffic(split(_network(training=True), {"b": 2}, "inner").graph)
    assert traffic["b#0", "b/reduce#1"] == 8 * 20 * 2
    assert traffic["c/igrad", "b/wgrad#0"] == 8 * 20 * 4
    assert traffic["a", "b/wgrad#0"] == 8 * 12 * 2
    assert traffic["b/igrad#1", "a/wgrad"] == 8 * 12 * 2


def test_measured_times_are_shared():
    """A piece takes its share of a measured time, at least a tick; unknown and unsupported stay."""
    graph = OpGraph.from_edges("m", ["a", "b"], [(0, 1)], [64], measured_kinds=("*", "gpu", "cpu"),
                               measured=np.array([[100, UNKNOWN, UNSUPPORTED], [1, 5, 7]]),
                               measured_transfer=np.array([9]))  # fmt: skip
    result = split(graph, {"a": 3, "b": 2}).graph
    assert result.measured.tolist() == [[33, UNKNOWN, UNSUPPORTED]] * 3 + [[1, 3, 4]] * 2
    assert (result.measured_transfer >= 1).all()


def test_pieces_of_one_op_are_one_meta_op():
    """Pieces and reductions of a split op share a fresh meta label; whole ops have none."""
    result = split(_network(), {"a": 2, "b": 2}, "inner")
    meta = result.graph.meta
    for op in (0, 1):
        assert len(set(meta[result.origin == op].tolist())) == 1
    assert len(set(meta.tolist())) == 3
    assert meta[result.origin == 2].tolist() == [-1]


def test_splitting_shortens_the_schedule():
    """Eight replicas of a batch on eight devices take much less time than one."""
    graph = generate("gen:resnet50?batch=64")
    single = po.load(graph, "8xA100")
    result = replicate(graph, 8)
    many = po.load(result.graph, "8xA100")
    before = po.evaluate(single, po.Placement(np.zeros(single.num_ops, dtype=np.int64))).makespan
    after = po.evaluate(many, po.Placement(result.piece)).makespan
    assert after < before / 3


def test_splitting_by_one_changes_nothing():
    """One piece per op is the graph itself."""
    graph = generate("gen:squeezenet?training=1")
    same = replicate(graph, 1).graph
    assert same.op_names == graph.op_names
    for key in ("flops", "bytes_moved", "resident", "tensor_bytes", "consumer", "colocation"):
        values = getattr(same, key)
        if key == "colocation":
            continue  # ids may be renamed
        assert np.array_equal(values, getattr(graph, key)), key


def test_wrong_splits_are_refused():
    """Unknown ops and dimensions, and absurd numbers of pieces."""
    for parts, dimension, words in (
        ({"x": 2}, "batch", "no op 'x'"),
        ({"a": 0}, "batch", "1 to 4096"),
        ({"a": 2}, "depth", "batch, output, inner"),
    ):
        with pytest.raises(InputError, match=words):
            split(_network(), parts, dimension)
    with pytest.raises(InputError, match="replicas"):
        replicate(_network(), 0)
