"""What kernels read of a problem: small NamedTuples of read-only arrays, each computed once
(`problem.graph`, ...).

A kernel takes the tuples it needs, whole or nested in its own; every field of every one is int64
(of masks bool), C-contiguous and read-only, so that a kernel is compiled once.

One of them groups the ops into units: ops that share a device, the smallest things that a placement
moves. A unit is a colocation group, or a single op that is in none. `problem.units` is the one
projection of colocation; whoever needs "the ops that go together" takes it from there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, frozen, place_in, pointers, stable_order, sums_by


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


def grouped(count: int, at: Ints) -> tuple[Ints, Ints]:
    """Return (pointer, places): where each of `count` numbers stands in `at` (CSR), rising."""
    places = stable_order(at)
    pointer = pointers(at[places], count)
    return frozen(pointer.astype(np.int64)), frozen(places.astype(np.int64))


def edges_by(num_ops: int, at: Ints, other: Ints, tensor: Ints) -> Edges:
    """Group edges by the op at one end, those of one op in the order given."""
    pointer, places = grouped(num_ops, at)
    return Edges(pointer, frozen(other[places]), frozen(tensor[places]))


class Units(NamedTuple):
    """Ops grouped into units (n ops, u units, k devices); read-only, fit for kernels."""

    unit: Ints  # (n,) unit of each op
    first_op: Ints  # (u,) smallest op of each unit
    member_ptr: Ints  # (u + 1,)
    member: Ints  # (n,) ops of each unit, rising
    bytes: Ints  # (u,) resident bytes
    allowed: Flags  # (u, k) whether every member can run there
    capacity: Ints  # (k,) bytes

    @property
    def head(self) -> Ints:
        """First op of the unit of each op, shape (n,)."""
        return self.first_op[self.unit]


def unit_of_ops(colocation: Ints) -> Ints:
    """Return the unit of each op, numbered by first op; `colocation` is a group or -1 per op."""
    label = np.where(colocation >= 0, colocation, -1 - np.arange(len(colocation)))
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return frozen(place_in(np.argsort(first))[inverse])


def group_units(unit: Ints, op_bytes: Ints, allowed: Flags, capacity: Ints) -> Units:
    """Build units from the unit of each op, its bytes and where it can run, shape (num_ops,
    num_devices).
    """
    count = int(unit.max()) + 1
    pointer, member = grouped(count, unit)
    size = sums_by(unit, op_bytes, count)
    everywhere = allowed[member]
    if count < len(unit):
        everywhere = np.logical_and.reduceat(everywhere, pointer[:-1], axis=0)
    return Units(
        frozen(unit),
        frozen(member[pointer[:-1]]),
        pointer,
        member,
        frozen(size),
        frozen(everywhere),
        capacity,
    )


def join_units(units: Units, cluster: Ints) -> Units:
    """Make each cluster of units one unit; `cluster` is the number (from 0, all used) of each
    unit's cluster.
    """
    op_bytes = np.zeros(len(units.unit), np.int64)
    op_bytes[units.first_op] = units.bytes
    return group_units(cluster[units.unit], op_bytes, units.allowed[units.unit], units.capacity)
