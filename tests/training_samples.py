"""Small models whose training is worked out by hand."""

from __future__ import annotations

from placeopt.instances.generators.builder import GraphBuilder


def perceptron():
    """Two linear layers with biases on a batch of 8: 10 -> 20 -> 5."""
    b = GraphBuilder("perceptron")
    x = b.linear(b.input(8, 10), 20, name="fc1")
    b.linear(b.relu(x), 5, name="fc2")
    return b.build()
