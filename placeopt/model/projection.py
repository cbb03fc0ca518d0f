"""What kernels read of a problem: small NamedTuples of read-only arrays, each computed once
(`problem.graph`, ...).

A kernel takes the tuples it needs, whole or nested in its own; every field of every one is int64,
C-contiguous and read-only, so that a kernel is compiled once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints, frozen


class Edges(NamedTuple):
    """Edges grouped by one of their ends (CSR)."""

    pointer: Ints  # (num_ops + 1,)
    op: Ints  # (num_edges,) the other end
    tensor: Ints  # (num_edges,)


class Outputs(NamedTuple):
    """Tensors grouped by the op that produces them (CSR)."""

    pointer: Ints  # (num_ops + 1,)
    tensor: Ints  # (num_tensors,)


class GraphArrays(NamedTuple):
    """The graph of a problem: in-edges, out-edges and outputs of its ops."""

    order: Ints  # (num_ops,) a topological order
    predecessors: Edges  # in-edges, ordered by tensor
    successors: Edges  # out-edges, those of one tensor side by side
    outputs: Outputs
    indegree: Ints  # (num_ops,) number of in-edges


class CostArrays(NamedTuple):
    """The times of a problem and the channels that transfers share."""

    compute: Ints  # (num_ops, num_devices) ticks, -1 where incompatible
    transfer: Ints  # (num_tensors, num_classes) ticks
    link_class: Ints  # (num_devices, num_devices)
    channel: Ints  # (num_devices, num_devices), -1 for no contention


class MemoryArrays(NamedTuple):
    """The bytes of a problem."""

    resident: Ints  # (num_ops,)
    tensor_bytes: Ints  # (num_tensors,)
    capacity: Ints  # (num_devices,)


def edges_by(num_ops: int, at: Ints, other: Ints, tensor: Ints) -> Edges:
    """Group edges by the op at one end, those of one op in the order given."""
    order = np.argsort(at, kind="stable")
    pointer = np.searchsorted(at[order], np.arange(num_ops + 1))
    return Edges(frozen(pointer.astype(np.int64)), frozen(other[order]), frozen(tensor[order]))


def outputs_of(num_ops: int, producer: Ints) -> Outputs:
    """Group tensors by their producer."""
    order = np.argsort(producer, kind="stable")
    pointer = np.searchsorted(producer[order], np.arange(num_ops + 1))
    return Outputs(frozen(pointer.astype(np.int64)), frozen(order.astype(np.int64)))
