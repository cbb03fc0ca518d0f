"""What training needs of memory: weights, gradients, optimizer state and activations, by precision.

The rules are those of `placeopt.instances.training`: a gradient per weight; Adam's two moments of 4
bytes (momentum one, SGD none), and 4 bytes for a master copy where weights have 2; activations are
the tensors of the forward pass that a backward op reads, for the batch that the graph's shapes
have. Mixed precision has weights, gradients and activations of 2 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.instances.training import OPTIMIZERS, training_graph
from placeopt.model.errors import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.arrays import Flags, Ints
    from placeopt.model.graph import OpGraph

PARTS = ("weights", "gradients", "optimizer states")
WEIGHTS, GRADIENTS, STATES = range(3)
"""What resident bytes are, as indices of PARTS."""

PRECISIONS = {"fp32": 4, "mixed 16-bit": 2}
"""Bytes of a weight, a gradient and an element of an activation."""

AS_GIVEN = "as given"
"""The precision of a graph that has its backward pass already: whatever its bytes say."""

MAX_DERIVED_OPS = 20_000
"""Larger graphs are not differentiated for the sake of a line: their activations are not
counted."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on all devices together; `activations` is None where they were not counted."""

    precision: str
    weights: int
    gradients: int
    states: int
    activations: int | None

    @property
    def total(self) -> int:
        """Sum of what is known."""
        return self.weights + self.gradients + self.states + (self.activations or 0)


def part_of_ops(op_names: Sequence[str], backward: Flags) -> Ints:
    """Return what the resident bytes of every op are, by the names that derived backward ops have;
    shape (num_ops,).
    """
    found = np.full(len(op_names), WEIGHTS, np.int64)
    for op in np.flatnonzero(backward).tolist():
        leaf = op_names[op].rpartition("/")[2]
        found[op] = (
            GRADIENTS
            if leaf.startswith("wgrad")
            else STATES
            if leaf.startswith("update")
            else WEIGHTS
        )
    return found


def resident_parts(
    op_names: Sequence[str], backward: Flags, resident: Ints, device: Ints, count: int
) -> Ints:
    """Return the bytes of weights, gradients and optimizer states on every device; shape (count,
    3).
    """
    found = np.zeros((count, len(PARTS)), np.int64)
    np.add.at(found, (device, part_of_ops(op_names, backward)), resident)
    return found


def training_memory(graph: OpGraph, optimizer: str = "adam") -> list[TrainingMemory]:
    """Return what training the graph needs, for every precision; for a training graph, what it
    holds as it is.

    Raises
    ------
    InputError
        If the optimizer is not known.
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    if graph.backward.any():
        none = np.zeros(graph.num_ops, np.int64)
        weights, gradients, states = resident_parts(
            graph.op_names, graph.backward, graph.resident, none, 1
        )[0].tolist()
        return [TrainingMemory(AS_GIVEN, weights, gradients, states, saved_bytes(graph))]
    known = np.where(graph.parameters > 0, graph.parameters, -(-graph.resident // 4))
    count, resident = int(known.sum()), int(graph.resident.sum())
    saved = (
        saved_bytes(training_graph(graph, optimizer)) if graph.num_ops <= MAX_DERIVED_OPS else None
    )
    stored = (
        resident / count if count else 4.0
    )  # bytes per weight as the graph has it; buffers count with the weights
    found = []
    for precision, width in PRECISIONS.items():
        scale = width / (2 if stored < 3 else 4)
        states = count * (OPTIMIZERS[optimizer][1] + (4 if width < 4 else 0))
        found.append(
            TrainingMemory(
                precision,
                round(resident * scale),
                count * width,
                states,
                None if saved is None else round(saved * scale),
            )
        )
    return found


def saved_bytes(graph: OpGraph) -> int:
    """Return the bytes of the forward tensors that a backward op reads."""
    forward = ~graph.backward[graph.producer]
    read = np.zeros(graph.num_tensors, np.bool_)
    tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_ptr))
    read[tensor[graph.backward[graph.consumer]]] = True
    return int(graph.tensor_bytes[forward & read].sum())
