"""The common form of a neural network between a reader (ONNX, OpenVINO, torch) and an OpGraph.

A reader translates its file into a `Model`: values with shapes, and nodes with a cost rule of
`op_costs`. What follows is the same for all of them: shapes are checked, constants
propagated, remnants folded and fused, weights charged to the op that uses them, and
costs computed from shapes (`ir_graph`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from placeopt.model.errors import InputError
from placeopt.model.files import one_line

BITS = {
    name: bits
    for bits, names in (
        (2, "int2 uint2"),
        (4, "int4 uint4 float4"),
        (8, "int8 uint8 bool float8"),
        (16, "int16 uint16 float16 bfloat16"),
        (32, "int32 uint32 float32"),
        (64, "int64 uint64 float64 complex64 string"),
        (128, "complex128"),
    )
    for name in names.split()
}
"""Bits of one element by type."""

Shape = tuple[int | None, ...]


class Cost(NamedTuple):
    """What an op costs; resident bytes and parameters only where a nested graph brings them."""

    flops: int
    bytes_moved: int
    resident: int = 0
    parameters: int = 0

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both."""
        return Cost(*map(operator.add, self, other))


@dataclass
class Value:
    """A tensor of the model.

    Attributes
    ----------
    shape : None for unknown rank; an unknown dimension is None.
    constant : known before the run: a weight, or computed from weights alone.
    root : of a constant: the stored constant that it is a view of (reshaped, transposed,
    dequantised).
    learned : whether the elements of this constant may be parameters of the model.
    """

    shape: Shape | None = None
    dtype: str = "float32"
    constant: bool = False
    root: str = ""
    learned: bool = True

    def make_constant(self, *, learned: bool = False) -> None:
        """Mark this value as known before the run."""
        self.constant, self.learned = True, learned

    @property
    def known(self) -> bool:
        """Whether rank and every dimension are known."""
        return self.shape is not None and None not in self.shape

    @property
    def elements(self) -> int:
        """Number of elements; unknown dimensions count as 1, an unknown rank as one element."""
        return math.prod(1 if d is None else d for d in self.shape or ())

    @property
    def real(self) -> bool:
        """Whether the elements are real or complex numbers, no whole ones."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return -(-self.elements * BITS.get(self.dtype, 32) // 8)


Values = dict[str, Value]
"""Values by name."""


def agree(a: Shape, b: Shape) -> bool:
    """Whether two shapes can be the same."""
    return len(a) == len(b) and all(
        x is None or y is None or x == y for x, y in zip(a, b, strict=True)
    )


def stored_cost(constants: Iterable[Value]) -> Cost:
    """Return what the constants of a nested graph take in memory, and their learned values."""
    weights = list(constants)
    learned = [value for value in weights if value.elements > 1 and value.real]
    return Cost(0, 0, sum(v.bytes for v in weights), sum(v.elements for v in learned))


@dataclass
class Node:
    """An op of the model.

    Attributes
    ----------
    type : the name of the op in its own format.
    rule : the cost rule, as `op_costs` names it.
    inputs, outputs : names of values; "" for an absent optional one.
    attrs : attributes that cost rules and passes use.
    scale, shift : parameters that fused remnants (batch norm, per-channel constants) brought along;
    -1 for none.
    extra : flops, bytes moved, resident bytes and parameters of a nested graph (control flow).
    """

    name: str
    type: str
    rule: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    layer: str = ""
    scale: int = -1
    shift: int = -1
    extra: Cost | None = None


@dataclass
class Model:
    """Nodes and values; `outputs` are the results of the model."""

    name: str
    nodes: list[Node]
    values: Values
    outputs: list[str] = field(default_factory=list)

    def producers(self) -> dict[str, int]:
        """Return the node that makes each value, by index."""
        made: dict[str, int] = {}
        for i, node in enumerate(self.nodes):
            for name in node.outputs:
                if name in made:
                    raise InputError(
                        f"value '{one_line(name)}' is produced twice, by "
                        f"'{self.nodes[made[name]].name}' and '{node.name}'"
                    )
                if name:
                    made[name] = i
        return made

    def sort(self) -> None:
        """Bring the nodes into a topological order, keeping theirs where it is one.

        Raises
        ------
        InputError
            If a node reads a value nobody produces, or there is a cycle.
        """
        made = self.producers()
        there = {"", *made, *self.values}
        for node in self.nodes:
            for name in node.inputs:
                if name not in there:
                    raise InputError(
                        f"op '{one_line(node.name)}' reads '{one_line(name)}', which is neither an "
                        "input, a weight nor the output of an op"
                    )
        before = [{made[x] for x in node.inputs if x in made} for node in self.nodes]
        order = in_order(before, [node.name for node in self.nodes])
        self.nodes = [self.nodes[i] for i in order]


def in_order(before: Sequence[set[int]], names: Sequence[str]) -> list[int]:
    """Return a topological order of nodes that read from those `before` them: theirs where it is
    one, else those that may run early by their index.

    Raises
    ------
    InputError
        If there is a cycle.
    """
    if all(max(found, default=-1) < i for i, found in enumerate(before)):
        return list(range(len(before)))
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(before)))
    graph.add_edges_from((j, i) for i, found in enumerate(before) for j in found)
    order: list[int] = []
    try:
        for i in nx.lexicographical_topological_sort(graph):
            order.append(i)
    except nx.NetworkXUnfeasible:
        stuck = names[min(set(graph).difference(order))]
        raise InputError(f"the graph has a cycle through op '{one_line(stuck)}'") from None
    return order
