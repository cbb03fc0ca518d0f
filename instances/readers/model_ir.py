"""The common form of a neural network between a reader (ONNX, OpenVINO, torch) and an OpGraph.

A reader translates its file into a `Model`: values with shapes, and nodes with a cost rule of
`op_costs`. What follows is the same for all of them: shapes are checked, constants
propagated, remnants folded and fused, weights charged to the op that uses them, and
costs computed from shapes (`ir_graph`).
"""

from __future__ import annotations

import heapq
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

BITS = {
    "float64": 64,
    "int64": 64,
    "uint64": 64,
    "complex64": 64,
    "complex128": 128,
    "float32": 32,
    "int32": 32,
    "uint32": 32,
    "float16": 16,
    "bfloat16": 16,
    "int16": 16,
    "uint16": 16,
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "float8": 8,
    "int4": 4,
    "uint4": 4,
    "float4": 4,
    "int2": 2,
    "uint2": 2,
    "string": 64,
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
    data : the content of small integer constants, for shape arithmetic.
    learned : whether the elements of this constant may be parameters of the model.
    """

    shape: Shape | None = None
    dtype: str = "float32"
    constant: bool = False
    root: str = ""
    data: NDArray[Any] | None = field(default=None, repr=False)
    learned: bool = True

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
        """Whether the elements are real numbers."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return -(-self.elements * BITS.get(self.dtype, 32) // 8)


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
    values: dict[str, Value]
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
        if any(max(found, default=-1) >= i for i, found in enumerate(before)):
            self.nodes = [self.nodes[i] for i in self._order(before)]

    def _order(self, before: list[set[int]]) -> list[int]:
        """Return the nodes in a topological order, those that may run early by their index."""
        waiting = list(map(len, before))
        readers: list[list[int]] = [[] for _ in before]
        for i, found in enumerate(before):
            for j in found:
                readers[j].append(i)
        ready = [i for i, count in enumerate(waiting) if not count]
        order: list[int] = []
        while ready:
            order.append(heapq.heappop(ready))
            for j in readers[order[-1]]:
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, j)
        if len(order) < len(self.nodes):
            stuck = next(node.name for i, node in enumerate(self.nodes) if waiting[i])
            raise InputError(f"the graph has a cycle through op '{one_line(stuck)}'")
        return order
