"""The common form of a neural network between a reader (ONNX, OpenVINO, torch) and an OpGraph.

A reader translates its file into a `Model`: values with shapes, and nodes with a cost rule of `op_costs`. What
follows is the same for all of them: constants are propagated, remnants folded and fused (`ir_passes`), weights
charged to the op that uses them, and costs computed from shapes.

Conventions (shared with the generators): a multiply-add is 2 flops; bytes moved are the inputs, weights and
outputs of an op; weights stay resident on the op that uses them; inputs of the model are not ops.

Where a shape is unknown: an unknown dimension counts as 1; an op that has tensors of unknown rank takes the
median cost of the ops whose shapes are known, and such tensors the median size. All of these are flagged in
`OpGraph.unshaped`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers import op_costs
from placeopt.model.arrays import MAX_SUM
from placeopt.model.errors import InputError
from placeopt.model.files import one_line
from placeopt.model.graph import OpGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = {
    "float64": 64, "int64": 64, "uint64": 64, "complex64": 64, "complex128": 128, "float32": 32, "int32": 32,
    "uint32": 32, "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8,
    "float8": 8, "int4": 4, "uint4": 4, "float4": 4, "int2": 2, "uint2": 2, "string": 64,
}  # fmt: skip
"""Bits of one element by type."""

DEFAULT_BYTES = 2**20
"""Bytes of a tensor where no tensor of the model has a known shape."""

Shape = tuple[int | None, ...]


@dataclass
class Value:
    """A tensor of the model.

    Attributes
    ----------
    shape : None for unknown rank; an unknown dimension is None.
    constant : known before the run: a weight, or computed from weights alone.
    root : of a constant: the stored constant that it is a view of (reshaped, transposed, dequantised).
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
    def bytes(self) -> int:
        """Size in bytes."""
        return -(-self.elements * BITS.get(self.dtype, 32) // 8)


@dataclass
class Node:
    """An op of the model.

    Attributes
    ----------
    type : the name of the op in its own format.
    rule : the cost rule, a key of `op_costs.RULES`.
    inputs, outputs : names of values; "" for an absent optional one.
    attrs : attributes that cost rules and passes use.
    scale, shift : parameters that fused remnants (batch norm, per-channel constants) brought along; -1 for none.
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
    extra: op_costs.Cost | None = None


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
                    raise InputError(f"value '{one_line(name)}' is produced twice, by '{self.nodes[made[name]].name}' "
                                     f"and '{node.name}'")  # fmt: skip
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
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in made and name not in self.values:
                    raise InputError(f"op '{one_line(node.name)}' reads '{one_line(name)}', which is neither an input, "
                                     "a weight nor the output of an op")  # fmt: skip
        if all(made.get(name, -1) < i for i, node in enumerate(self.nodes) for name in node.inputs):
            return
        import heapq

        waiting = [len({made[x] for x in node.inputs if x in made}) for node in self.nodes]
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for j in {made[x] for x in node.inputs if x in made}:
                readers[j].append(i)
        ready = [i for i, count in enumerate(waiting) if not count]
        order: list[int] = []
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in readers[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, j)
        if len(order) < len(self.nodes):
            stuck = next(node.name for i, node in enumerate(self.nodes) if waiting[i])
            raise InputError(f"the graph has a cycle through op '{one_line(stuck)}'")
        self.nodes = [self.nodes[i] for i in order]


def to_graph(model: Model, *, shared: str = "colocate") -> OpGraph:
    """Turn a model whose constants are propagated into an OpGraph.

    Parameters
    ----------
    shared : "colocate": a weight matrix that several ops use is kept once, with the first, and all of them share
        a device; "copy": each op keeps a copy. Small constants (vectors, scalars) are always copied.
    """
    if shared not in ("colocate", "copy"):
        raise InputError(f"option shared: expected colocate or copy, received '{shared}'")
    if not model.nodes:
        raise InputError("the model has no op that depends on an input")
    costs, unshaped = _costs(model)
    resident, parameters, colocation = _weights(model, tie=shared == "colocate")
    triples, sizes, shapes = _tensors(model)
    _refuse_overflow(model, costs, resident, parameters, triples, sizes)
    names = _distinct([node.name for node in model.nodes])
    return OpGraph.from_tensors(
        model.name,
        names,
        [(producer, size, consumers) for (producer, consumers), size in zip(triples, sizes, strict=True)],
        op_types=tuple(node.type for node in model.nodes),
        layer=tuple(node.layer for node in model.nodes),
        flops=np.array([cost.flops for cost in costs], dtype=np.int64),
        bytes_moved=np.array([cost.bytes_moved for cost in costs], dtype=np.int64),
        resident=np.array(resident, dtype=np.int64),
        parameters=np.array(parameters, dtype=np.int64),
        colocation=np.array(colocation, dtype=np.int64),
        unshaped=np.array(unshaped, dtype=np.bool_),
        shapes=tuple(shapes) if len(shapes) == len(triples) else (),
    )


def _refuse_overflow(
    model: Model,
    costs: list[op_costs.Cost],
    resident: list[int],
    parameters: list[int],
    tensors: list[tuple[int, list[int]]],
    sizes: list[int],
) -> None:
    """Refuse sizes beyond 2^62, which only a damaged file has, and name the op."""
    numbers = [max(c.flops, c.bytes_moved, r, p) for c, r, p in zip(costs, resident, parameters, strict=True)]
    for (producer, _), size in zip(tensors, sizes, strict=True):
        numbers[producer] = max(numbers[producer], size)
    for node, number in zip(model.nodes, numbers, strict=True):
        if number >= MAX_SUM:
            raise InputError(
                f"op '{one_line(node.name)}': a size or cost passes 2^62; check the dimensions of its tensors"
            )


def _costs(model: Model) -> tuple[list[op_costs.Cost], list[bool]]:
    """Return the cost of every node, and whether it rests on an unknown shape."""
    costs: list[op_costs.Cost | None] = []
    unshaped = []
    read = {name for node in model.nodes for name in node.inputs} | set(model.outputs)
    for node in model.nodes:
        made = [name for name in node.outputs if name in read] or node.outputs[:1]
        used = [model.values[name] for name in (*node.inputs, *made) if name]
        known = all(value.known for value in used)
        unshaped.append(not known or bool(node.attrs.get("uncertain")))
        ranked = all(value.shape is not None for value in used)
        nested = None if node.extra is None else op_costs.Cost(node.extra.flops, node.extra.bytes_moved)
        costs.append(op_costs.cost(node, model.values) if ranked else nested)
    sound = [cost for cost, flag in zip(costs, unshaped, strict=True) if cost is not None and not flag]
    sound = sound or [cost for cost in costs if cost is not None]
    fallback = op_costs.Cost(
        flops=_median([cost.flops for cost in sound if cost.flops], 1),
        bytes_moved=_median([cost.bytes_moved for cost in sound if cost.bytes_moved], DEFAULT_BYTES),
    )
    return [fallback if cost is None else cost for cost in costs], unshaped


def _median(values: list[int], default: int) -> int:
    return sorted(values)[len(values) // 2] if values else default


def _weights(model: Model, *, tie: bool) -> tuple[list[int], list[int], list[int]]:
    """Charge every stored constant to the ops that use it; return resident bytes, parameters and groups."""
    n = len(model.nodes)
    resident, parameters = [0] * n, [0] * n
    users: dict[str, dict[int, bool]] = {}
    learned: dict[str, bool] = {}
    for i, node in enumerate(model.nodes):
        weighty = node.rule in op_costs.WEIGHT_RULES
        for position, name in enumerate(node.inputs):
            value = model.values[name] if name else None
            if value is None or not value.constant:
                continue
            root = value.root or name
            stored = model.values[root]
            is_weight = weighty and len(value.shape or ()) >= 2 and _is_parameter(stored, weighty)
            users.setdefault(root, {})[i] = users.get(root, {}).get(i, False) or is_weight
            counts = value.learned and position not in node.attrs.get("buffers", ())
            learned[root] = learned.get(root, False) or (counts and _is_parameter(stored, weighty))
    leader = list(range(n))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for root, by in users.items():
        value, ops = model.values[root], list(by)
        if learned[root]:
            parameters[ops[0]] += value.elements
        if tie and any(by.values()):
            resident[ops[0]] += value.bytes
            for i in ops[1:]:
                a, b = sorted((find(ops[0]), find(i)))
                leader[b] = a
        else:
            for i in ops:
                resident[i] += value.bytes
    for i, node in enumerate(model.nodes):
        parameters[i] += max(0, node.scale) + max(0, node.shift)
        if node.rule == "batch_norm" and max(node.scale, node.shift) >= 0:
            resident[i] += 4 * (max(0, node.scale) + max(0, node.shift))
        elif node.shift > 0 and not _has_bias(model, node):
            resident[i] += 4 * node.shift
        if node.extra is not None:
            resident[i] += node.extra.resident
            parameters[i] += node.extra.parameters
    size = [0] * n
    for i in range(n):
        size[find(i)] += 1
    groups: dict[int, int] = {}
    colocation = [groups.setdefault(find(i), len(groups)) if size[find(i)] > 1 else -1 for i in range(n)]
    return resident, parameters, colocation


def _has_bias(model: Model, node: Node) -> bool:
    """Whether a fused shift can be merged into a bias that the op has anyway."""
    at = node.attrs.get("bias", len(node.inputs))
    return at < len(node.inputs) and bool(node.inputs[at]) and model.values[node.inputs[at]].constant


def _is_parameter(value: Value, weighty: bool) -> bool:
    """Whether a stored constant holds learned values: real ones, or quantised ones used as a weight."""
    if value.elements <= 1:
        return False
    return value.dtype.startswith(("float", "bfloat")) or (
        weighty and value.dtype in ("int8", "uint8", "int4", "uint4")
    )


def _tensors(model: Model) -> tuple[list[tuple[int, list[int]]], list[int], list[tuple[int, ...]]]:
    """Return (producer, consumers) of every tensor that somebody reads or that is a result, sizes and shapes."""
    consumers: dict[str, list[int]] = {}
    for i, node in enumerate(model.nodes):
        for name in node.inputs:
            if name and not model.values[name].constant:
                consumers.setdefault(name, []).append(i)
    results = set(model.outputs)
    pairs, values = [], []
    for i, node in enumerate(model.nodes):
        for name in node.outputs:
            if name and (name in consumers or name in results):
                pairs.append((i, consumers.get(name, [])))
                values.append(model.values[name])
    typical = _median([value.bytes for value in values if value.known], DEFAULT_BYTES)
    sizes = [typical if value.shape is None else value.bytes for value in values]
    shapes = [
        tuple(d for d in value.shape if d is not None) for value in values if value.known and value.shape is not None
    ]
    return pairs, sizes, shapes


def _distinct(names: list[str]) -> list[str]:
    """Make names distinct by appending #2, #3, ..."""
    seen: set[str] = set(names) if len(set(names)) < len(names) else set()
    used: dict[str, int] = {}
    result = []
    for name in names:
        count = used[name] = used.get(name, 0) + 1
        fresh = name
        while count > 1 and (fresh := f"{name}#{count}") in seen:
            count = used[name] = count + 1
        seen.add(fresh)
        result.append(fresh)
    return result
