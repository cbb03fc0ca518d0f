"""Training graphs: which backward ops arise, what they read, what they cost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from training_samples import perceptron

import placeopt as po
from placeopt.instances.generators import generate
from placeopt.instances.generators.builder import GraphBuilder
from placeopt.instances.training import training_graph
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph


def _index(graph):
    return {name: i for i, name in enumerate(graph.op_names)}


def _inputs(graph, op):
    """Names of the producers that an op reads from, each as often as it reads a tensor of
    theirs.
    """
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_ptr))
    return Counter(
        graph.op_names[graph.producer[t]] for t in tensor[graph.consumer == _index(graph)[op]]
    )


def test_backward_ops_of_a_perceptron():
    """Two linear layers and a rectifier: exactly the ops and reads that calculus asks for."""
    graph = training_graph(perceptron())
    assert set(graph.op_names[3:]) == {
        "fc2/igrad",
        "fc2/wgrad",
        "fc2/update",
        "relu/igrad",
        "fc1/wgrad",
        "fc1/update",
    }
    assert _inputs(graph, "fc2/igrad") == {"fc2": 1}  # the loss gradient; weights are local
    assert _inputs(graph, "fc2/wgrad") == {
        "fc2": 1,
        "relu": 1,
    }  # its input is an activation kept until now
    assert _inputs(graph, "relu/igrad") == {"relu": 1, "fc2/igrad": 1}  # needs its own output
    assert _inputs(graph, "fc1/wgrad") == {"relu/igrad": 1}  # its input is the model's, no op's
    assert _inputs(graph, "fc1/update") == {"fc1/wgrad": 1}
    assert graph.backward.tolist() == [False] * 3 + [True] * 6


def test_costs_of_a_perceptron():
    """Input and weight gradients take the forward flops each, Adam 12 per weight and 8 bytes of
    state.
    """
    forward = perceptron()
    graph = training_graph(forward)
    at, weights = _index(graph), 20 * 5 + 5
    for role in ("igrad", "wgrad"):
        assert graph.flops[at[f"fc2/{role}"]] == forward.flops[2]
    assert graph.flops[at["fc2/update"]] == 12 * weights
    resident = [
        graph.resident[at[name]] for name in ("fc2", "fc2/igrad", "fc2/wgrad", "fc2/update")
    ]
    assert resident == [4 * weights, 0, 4 * weights, 8 * weights]
    # reads dY (8 x 5) and the activation (8 x 20), writes the gradient; the input gradient reads
    # the weights
    assert graph.bytes_moved[at["fc2/wgrad"]] == 4 * (8 * 5 + 8 * 20 + weights)
    assert graph.bytes_moved[at["fc2/igrad"]] == 4 * (8 * 5 + 8 * 20 + weights)
    groups = [
        graph.colocation[at[name]] for name in ("fc2", "fc2/igrad", "fc2/wgrad", "fc2/update")
    ]
    assert len(set(groups)) == 1
    assert groups[0] >= 0
    assert graph.colocation[at["relu"]] == graph.colocation[at["relu/igrad"]] == -1


def test_gradients_add_up_where_a_tensor_has_several_consumers():
    """A residual connection sums two gradients before the backward ops of its producer."""
    b = GraphBuilder("residual")
    x = b.linear(b.input(4, 6), 6, name="fc1")
    b.add(b.linear(x, 6, name="fc2"), x)
    graph = training_graph(b.build())
    assert _inputs(graph, "fc1/grad_sum") == {"fc2/igrad": 1, "add/igrad": 1}
    assert _inputs(graph, "fc1/wgrad") == {"fc1/grad_sum": 1}
    assert graph.flops[_index(graph)["fc1/grad_sum"]] == 24


def test_products_of_two_activations_take_twice_the_forward_flops():
    """Attention scores need the gradient of both operands."""
    b = GraphBuilder("scores")
    x = b.input(4, 6)
    q, k = b.linear(x, 8, name="q"), b.linear(x, 8, name="k")
    b.matmul(q, k, (4, 4), 8)
    graph = training_graph(b.build())
    at = _index(graph)
    assert graph.flops[at["matmul/igrad"]] == 2 * graph.flops[at["matmul"]]
    assert _inputs(graph, "matmul/igrad") == {"matmul": 1, "q": 1, "k": 1}


def test_no_gradient_flows_where_no_weights_are():
    """Ops before the first weights get no backward op."""
    b = GraphBuilder("frozen")
    x = b.relu(b.input(4, 6), name="preprocess")
    b.linear(x, 3, name="fc")
    graph = training_graph(b.build())
    assert "preprocess/igrad" not in graph.op_names
    assert _inputs(graph, "fc/wgrad") == {"fc": 1, "preprocess": 1}
    assert "fc/igrad" not in graph.op_names


@pytest.mark.parametrize(
    "name", ["resnet50", "inception-v3", "bert-base", "gpt2", "mt5", "moe", "nmt", "llama-layer"]
)
def test_backward_takes_about_twice_the_forward_flops(name):
    """Forward plus backward plus update is 3 times the forward flops, up to updates and shapes."""
    forward, graph = generate(name), generate(f"{name}?training=1&optimizer=sgd")
    assert graph.flops.sum() == pytest.approx(3 * forward.flops.sum(), rel=0.08)


@pytest.mark.parametrize(
    ("optimizer", "size", "per_weight"),
    [
        ("adam", 4, 16),
        ("momentum", 4, 12),
        ("sgd", 4, 8),
        ("adam", 2, 16),
        ("sgd", 2, 8),
    ],
)
def test_memory_per_weight(optimizer, size, per_weight):
    """Weights, gradients and state: 16 bytes with Adam in either precision, and so on."""
    graph = generate(f"gpt2?training=1&optimizer={optimizer}&dtype_bytes={size}")
    assert graph.resident.sum() == per_weight * graph.parameters.sum()


def test_forward_part_is_unchanged():
    """Forward ops and tensors keep index, cost and consumers; consumers are only added."""
    forward = generate("gpt2?layers=2")
    graph = training_graph(forward)
    n, m = forward.num_ops, forward.num_tensors
    assert graph.op_names[:n] == forward.op_names
    for key in ("flops", "bytes_moved", "resident", "parameters"):
        assert np.array_equal(getattr(graph, key)[:n], getattr(forward, key))
    for t in range(m):
        before = forward.consumer[forward.consumer_ptr[t] : forward.consumer_ptr[t + 1]]
        after = graph.consumer[graph.consumer_ptr[t] : graph.consumer_ptr[t + 1]]
        assert np.array_equal(after[: len(before)], before)
        assert graph.backward[after[len(before) :]].all()


def test_every_weight_is_updated_once_after_its_gradient():
    """One update per op with weights, fed by its weight gradient only, on its device."""
    graph = generate("mt5?training=1&layers=2")
    at = _index(graph)
    for i in np.flatnonzero(graph.parameters):
        name = graph.op_names[i]
        assert _inputs(graph, f"{name}/update") == {f"{name}/wgrad": 1}
        assert graph.colocation[i] == graph.colocation[at[f"{name}/update"]] >= 0


def test_measured_times_scale_by_the_ratio():
    """Without any weights each op has one backward op of backward_ratio times its time; unknown
    stays unknown.
    """
    graph = OpGraph.from_edges(
        "m",
        ["a", "b"],
        [(0, 1)],
        [64],
        measured_kinds=("*", "gpu", "cpu"),
        measured=np.array([[100, UNKNOWN, 7], [11, 5, UNSUPPORTED]]),
        measured_transfer=np.array([9]),
    )
    trained = training_graph(graph, backward_ratio=1.5)
    at = _index(trained)
    assert trained.measured[at["a/igrad"]].tolist() == [150, UNKNOWN, 11]
    assert trained.measured[at["b/igrad"]].tolist() == [17, 8, UNSUPPORTED]
    assert trained.num_ops == 4
    assert sorted(trained.measured_transfer.tolist()) == [0, 9, 9]


def test_measured_times_are_divided_between_input_and_weight_gradient():
    """An op with weights spends half of backward_ratio on each gradient, and update_ratio on the
    update.
    """
    graph = OpGraph.from_edges(
        "m",
        ["a", "b"],
        [(0, 1)],
        [64],
        measured_kinds=("*",),
        measured=np.array([[100], [60]]),
        parameters=np.array([10, 10]),
        resident=np.array([40, 40]),
    )
    trained = training_graph(graph, backward_ratio=3, update_ratio=0.2)
    times = dict(zip(trained.op_names, trained.measured[:, 0].tolist(), strict=True))
    assert times == {
        "a": 100,
        "b": 60,
        "b/igrad": 90,
        "b/wgrad": 90,
        "b/update": 12,
        "a/wgrad": 300,
        "a/update": 20,
    }


def test_existing_colocation_groups_are_kept_and_extended():
    """Backward ops join the group of their forward op; new groups get new ids."""
    forward = perceptron()
    forward = OpGraph(**{**_fields(forward), "colocation": np.array([7, 7, -1])})
    graph = training_graph(forward, colocate="all")
    at = _index(graph)
    assert {graph.colocation[at[x]] for x in ("fc1", "fc1/update", "relu/igrad")} == {7}
    assert graph.colocation[at["fc2"]] == graph.colocation[at["fc2/wgrad"]] == 8


def _fields(graph):
    return {key: getattr(graph, key) for key in graph.__dataclass_fields__}


def test_training_graphs_lower_and_run():
    """A training graph is a valid problem whose critical path grows by the backward pass."""
    for name in ("resnet50", "layered"):
        cluster = "4xA100" if name == "resnet50" else "uniform:4"
        forward, trained = (
            po.load(f"gen:{name}", cluster),
            po.load(f"gen:{name}?training=1", cluster),
        )
        zero = po.Placement(np.zeros(forward.num_ops, dtype=np.int64))
        both = po.Placement(np.zeros(trained.num_ops, dtype=np.int64))
        ratio = po.evaluate(trained, both).makespan / po.evaluate(forward, zero).makespan
        assert 2.5 < ratio < 4.5


def test_wrong_options_are_refused():
    """Optimizer, ratios, colocation and double derivation."""
    graph = perceptron()
    for options, words in (
        ({"optimizer": "adamw"}, "adam, momentum, sgd"),
        ({"backward_ratio": -1.0}, "backward_ratio"),
        ({"update_ratio": float("nan")}, "update_ratio"),
        ({"colocate": "some"}, "weights, all"),
    ):
        with pytest.raises(InputError, match=words):
            training_graph(graph, **options)
    with pytest.raises(InputError, match="already"):
        training_graph(training_graph(graph))


def test_weights_of_which_the_optimizer_cannot_count_the_bytes_are_refused():
    """A file may give any number; eight bytes of state each pass what int64 holds."""
    graph = OpGraph.from_edges("large", ["a"], [], parameters=[2 * 10**18], resident=[2**61])
    with pytest.raises(InputError, match="bytes_moved: expected whole numbers"):
        training_graph(graph)
