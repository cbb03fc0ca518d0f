"""What training needs of memory, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from training_samples import perceptron

import placeopt as po
from placeopt.instances.training import resident_parts, saved_bytes, training_graph, training_memory


def test_a_perceptron_by_precision():
    """4 bytes per weight and gradient, 8 of Adam's state; half precision has a master copy of 4
    more and half the rest.
    """
    graph = perceptron()
    count = int(graph.parameters.sum())
    full, mixed = training_memory(graph)
    assert (full.weights, full.gradients, full.states) == (4 * count, 4 * count, 8 * count)
    assert (mixed.weights, mixed.gradients, mixed.states) == (2 * count, 2 * count, 12 * count)
    assert full.activations == 2 * mixed.activations == saved_bytes(training_graph(graph))
    # The rectifier's output is read by its own gradient and by the second layer's weights; the loss
    # starts from the end.
    assert full.activations in (4 * 8 * 20, 4 * 8 * (20 + 5))
    assert full.total == full.weights + full.gradients + full.states + full.activations
    assert training_memory(graph, "sgd")[0].states == 0
    with pytest.raises(po.InputError, match="optimizer: expected one of adam"):
        training_memory(graph, "lion")


def test_a_training_graph_holds_what_it_says():
    """The parts of a derived training graph add up to its resident bytes, device by device."""
    graph = training_graph(perceptron())
    (given,) = training_memory(graph)
    assert given.weights + given.gradients + given.states == int(graph.resident.sum())
    assert given.states == 2 * given.gradients
    device = np.arange(graph.num_ops) % 3
    parts = resident_parts(graph.op_names, graph.backward, graph.resident, device, 3)
    assert parts.sum(axis=1).tolist() == [int(graph.resident[device == d].sum()) for d in range(3)]
    assert parts.sum(axis=0).tolist() == [given.weights, given.gradients, given.states]
