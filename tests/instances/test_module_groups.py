"""Groups of ops by module: what stays together, and that solvers keep it."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.module_groups import group_ops, parse_group
from placeopt.instances.training import training_graph
from placeopt.model.graph import OpGraph

PATHS = ("wte", "wpe", "", "h/0/ln", "h/0/attn/q", "h/0", "h/1/ln", "h/1", "ln_f", "head", "")
EDGES = [
    (0, 2),
    (1, 2),
    (2, 3),
    (3, 4),
    (4, 5),
    (2, 5),
    (5, 6),
    (6, 7),
    (5, 7),
    (7, 8),
    (8, 9),
    (9, 10),
]


@pytest.fixture
def graph():
    """A model of two blocks, with a sum of embeddings and a loss between the modules."""
    names = [f"op{i}" for i in range(len(PATHS))]
    return OpGraph.from_edges(
        "model",
        names,
        EDGES,
        [100] * len(EDGES),
        layer=PATHS,
        flops=np.full(len(PATHS), 10**6),
        resident=np.array([8, 8, 0, 8, 8, 0, 8, 0, 8, 8, 0]),
        parameters=np.zeros(len(PATHS)),
    )


def groups(graph):
    """Return the sets of ops that share a device, single ones left out."""
    return {
        frozenset(np.flatnonzero(graph.colocation == g).tolist())
        for g in set(graph.colocation.tolist()) - {-1}
    }


def test_blocks_are_whole_and_ops_between_them_join_what_they_read(graph):
    """Elements of the list are one group each; the sum of the embeddings and the loss go with their
    inputs.
    """
    assert groups(group_ops(graph, "block")) == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5}),
        frozenset({6, 7}),
        frozenset({9, 10}),
    }


def test_layers_are_modules_without_those_inside(graph):
    """A block's own ops are one group, its layer norm another; ops of the model itself are free."""
    two = OpGraph.from_edges(
        "two", ["a", "b", "c", "d"], [(0, 1), (1, 2), (2, 3)], layer=("h/0", "h/0/ln", "h/0", "")
    )
    assert groups(group_ops(two, "layer")) == {frozenset({0, 2})}


def test_none_and_numbers(graph):
    """`none` changes nothing; a number is the most groups there are, and blocks stay whole within
    them.
    """
    assert group_ops(graph, "none") is graph
    assert group_ops(graph, None) is graph
    three = group_ops(graph, 3)
    count = len(groups(three)) + int((three.colocation < 0).sum())
    assert count <= 3
    for whole in groups(group_ops(graph, "block")):
        assert len({int(three.colocation[op]) for op in whole}) == 1


def test_groups_keep_the_colocation_that_is_there(graph):
    """Two blocks that share a weight become one group."""
    from dataclasses import replace

    tied = np.full(len(PATHS), -1)
    tied[[4, 6]] = 0
    assert frozenset({3, 4, 5, 6, 7}) in groups(group_ops(replace(graph, colocation=tied), "block"))


def test_backward_ops_stay_with_their_module(graph):
    """Every backward op is in the group of its forward op."""
    training = group_ops(training_graph(graph), "block")
    index = {name: i for i, name in enumerate(training.op_names)}
    for op in np.flatnonzero(training.backward).tolist():
        base = index[training.op_names[op].rpartition("/")[0]]
        assert training.colocation[op] == training.colocation[base] >= 0 or base == 8


def test_solvers_keep_groups(graph):
    """A solved problem has every group on one device, and its value is that of the ungrouped
    graph.
    """
    problem = po.load(graph, cluster="2xA100", group="block")
    result = po.solve(problem, "annealing", evaluations=200)
    for whole in groups(group_ops(graph, "block")):
        assert len({int(result.solution.device[op]) for op in whole}) == 1
    free = po.load(graph, cluster="2xA100")
    assert po.evaluate(free, result.solution, result.queue).makespan == result.value


@pytest.mark.parametrize("wrong", ["blocks", "0", 0, -3, 2.5, True])
def test_wrong_groups_are_refused(graph, wrong):
    """Unknown words and numbers below one are one line."""
    with pytest.raises(po.InputError, match="group: expected"):
        parse_group(wrong)


def test_a_graph_without_modules_is_refused():
    """Blocks need the paths of modules; a number does not."""
    flat = OpGraph.from_edges("flat", ["a", "b", "c"], [(0, 1), (1, 2)], flops=np.array([5, 5, 5]))
    with pytest.raises(po.InputError, match="does not tell the modules"):
        group_ops(flat, "block")
    assert len(groups(group_ops(flat, 1))) == 1
