"""OpGraph: a computation graph of a model, independent of any device.

An OpGraph has n ops and m tensors. A tensor has one producer, a size in bytes and a list of
distinct consumers. Costs are either *analytic* (flops, bytes moved: the cost model turns them into
times for a device) or *measured* (ticks for a kind of device, which win over the analytic ones).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placeopt.model.arrays import (
    MAX_SUM,
    ArrayHolder,
    Flags,
    Ints,
    by_number,
    check_positive,
    columns_of,
    csr,
    flags,
    frozen,
    ints,
    names,
    pointers,
    row_at,
    row_numbers,
    rows_of,
    settle,
    stable_order,
    together,
)
from placeopt.model.errors import InputError, twice_in

UNKNOWN = -1
"""A measured time that is not known: the cost model computes it."""

UNSUPPORTED = -2
"""A measured time that says: this op cannot run on this kind of device."""


class SharedTensors(ArrayHolder):
    """Ops joined by tensors, each with one producer and distinct consumers (CSR)."""

    op_names: tuple[str, ...]
    producer: Ints  # (num_tensors,) op index
    consumer_ptr: Ints  # (num_tensors + 1,)
    consumer: Ints  # (num_edges,) op index, distinct within a tensor

    @property
    def num_ops(self) -> int:
        """Number of ops, n."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """Number of tensors, m."""
        return len(self.producer)

    @property
    def num_edges(self) -> int:
        """Number of (tensor, consumer) pairs."""
        return len(self.consumer)

    @cached_property
    def edge_tensor(self) -> Ints:
        """Tensor of each entry of `consumer`, shape (num_edges,)."""
        return frozen(row_numbers(self.consumer_ptr))

    @property
    def edge_source(self) -> Ints:
        """Op that makes the tensor of each entry of `consumer`, shape (num_edges,)."""
        return self.producer[self.edge_tensor]

    def readers(self) -> list[list[int]]:
        """Return the ops that read each tensor."""
        return rows_of(self.consumer_ptr, self.consumer)

    def readers_of(self, tensor: int) -> list[int]:
        """Return the ops that read a tensor."""
        return row_at(self.consumer, self.consumer_ptr, tensor).tolist()

    def reads(self) -> list[list[int]]:
        """Return the tensors that each op reads."""
        edges = together(self.consumer, self.edge_tensor)
        return by_number(self.num_ops, edges)

    def makes(self) -> list[list[int]]:
        """Return the tensors that each op makes."""
        return by_number(self.num_ops, ((op, t) for t, op in enumerate(self.producer.tolist())))

    @cached_property
    def topological_order(self) -> Ints:
        """Op indices sorted by (depth, index): every producer before its consumers."""
        return frozen(
            topological_order(self.num_ops, self.edge_source, self.consumer, self.op_names)
        )

    def check_tensors(self) -> None:
        """Refuse dangling or repeated consumers, self-loops, malformed pointers and cycles."""
        self._check_pointer()
        consumer, op_names = self.consumer, self.op_names
        for what, array in (("producer", self.producer), ("consumer", consumer)):
            low, high = int(array.min(initial=0)), int(array.max(initial=0))
            if low < 0 or high >= self.num_ops:
                bad = high if high >= self.num_ops else low
                raise InputError(
                    f"{what}: expected op indices in 0..{self.num_ops - 1}, received {bad}"
                )
        tensor, source = self.edge_tensor, self.edge_source
        loops = source == consumer
        if loops.any():
            op = op_names[int(consumer[int(loops.argmax())])]
            raise InputError(f"op '{op}' consumes its own output: the graph must be acyclic")
        order = np.lexsort((consumer, tensor))
        same = (np.diff(tensor[order]) == 0) & (np.diff(consumer[order]) == 0)
        if same.any():
            at = order[int(same.argmax())]
            raise InputError(
                f"tensor {int(tensor[at])}: consumer '{op_names[int(consumer[at])]}' is listed "
                "twice; list it once"
            )
        if (source > consumer).any():
            _ = self.topological_order  # refuses a cycle; none where every edge leads to a later op

    def _check_pointer(self) -> None:
        pointer, end = self.consumer_ptr, len(self.consumer)
        if pointer[0] != 0 or pointer[-1] != end or (np.diff(pointer) < 0).any():
            raise InputError(
                f"consumer_ptr: expected to rise from 0 to {end}, the number of consumers, "
                f"received {pointer[0]}..{pointer[-1]}"
            )


@dataclass(frozen=True, eq=False)
class OpGraph(SharedTensors):
    """A directed acyclic graph of ops connected by tensors.

    Only `name`, `op_names` and the four tensor arrays are needed; everything else has a neutral
    default.

    Attributes
    ----------
    measured_kinds : kinds of device for which `measured` has a column: the name of a device kind
        ("A100"), a family ("cpu", "gpu", "accelerator") or "*" for any device.
    layer : the layer an op belongs to, as a path ("encoder/3/attention"); "" where unknown.
    meta : label of the sharded op ("meta-op") that an op is a piece of, -1 for none.
    unshaped : ops whose shapes are unknown and whose costs are therefore a fallback.
    """

    name: str
    op_names: tuple[str, ...]
    producer: Ints = ints("tensors")  # op index
    tensor_bytes: Ints = ints("tensors", low=0, summed=True)
    consumer_ptr: Ints = ints("bounds")  # first edge of each tensor, and the end
    consumer: Ints = ints("edges")  # op index, distinct within a tensor
    op_types: tuple[str, ...] = names("ops")  # "" where unknown
    layer: tuple[str, ...] = names("ops")
    flops: Ints = ints("ops", default=0, low=0, summed=True)
    bytes_moved: Ints = ints(  # bytes read + written
        "ops", default=0, low=0, summed=True
    )
    resident: Ints = ints(  # bytes kept on the device
        "ops", default=0, low=0, summed=True
    )
    parameters: Ints = ints("ops", default=0, low=0, summed=True)  # learned values
    colocation: Ints = ints("ops", default=-1)  # group id or -1
    backward: Flags = flags("ops")
    meta: Ints = ints("ops", default=-1)  # label or -1
    unshaped: Flags = flags("ops")
    measured_kinds: tuple[str, ...] = ()
    measured: Ints = ints(
        *("ops", "kinds"),
        default=UNKNOWN,
        low=UNSUPPORTED,
        expected="ticks >= 0, UNKNOWN (-1) or UNSUPPORTED (-2)",
    )
    measured_transfer: Ints = ints(
        "tensors", default=UNKNOWN, low=UNKNOWN, expected="ticks >= 0 or UNKNOWN (-1)"
    )
    shapes: tuple[
        tuple[int, ...], ...
    ] = ()  # shape of each tensor; () for all tensors where unknown
    tick_seconds: float = 1e-9  # unit of the measured times

    def __post_init__(self) -> None:
        n, m = len(self.op_names), len(np.asarray(self.producer))
        if n == 0:
            raise InputError(f"graph '{self.name}': expected at least one op, received none")
        if len(set(self.op_names)) != n:
            raise InputError(
                f"graph '{self.name}': op names must be distinct, '{twice_in(self.op_names)}' "
                "occurs twice"
            )
        for key in ("op_names", "measured_kinds"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        settle(
            self,
            ops=n,
            tensors=m,
            bounds=m + 1,
            edges=len(np.asarray(self.consumer)),
            kinds=len(self.measured_kinds),
        )
        shapes = tuple(tuple(int(x) for x in shape) for shape in self.shapes)
        object.__setattr__(self, "shapes", shapes)
        if shapes and len(shapes) != m:
            raise InputError(
                f"shapes: expected {m} entries, one per tensor, received {len(shapes)}"
            )
        for t, shape in enumerate(shapes):
            if abs(math.prod(shape)) >= MAX_SUM:
                raise InputError(f"shapes[{t}]: expected fewer than 2^62 elements")
        tick = check_positive("tick_seconds", self.tick_seconds)
        object.__setattr__(self, "tick_seconds", tick)  # its text is part of hashes and files
        self.check_tensors()

    def __repr__(self) -> str:
        return (
            f"<OpGraph '{self.name}': {self.num_ops} ops, {self.num_tensors} tensors, "
            f"{self.num_edges} edges>"
        )

    @cached_property
    def edges(self) -> Ints:
        """The distinct (producer, consumer) pairs of ops, sorted, shape (num_pairs, 2)."""
        pairs = np.column_stack([self.edge_source, self.consumer])
        return frozen(np.unique(pairs, axis=0))

    @cached_property
    def half(self) -> Flags:
        """Whether an op makes values of 16 bits, or reads some where what it makes has no known
        shape, by sizes and shapes of the tensors; shape (num_ops,).
        """
        made, read = np.zeros((2, self.num_ops), np.bool_), np.zeros(self.num_ops, np.bool_)
        if self.shapes:
            known = np.array([bool(shape) for shape in self.shapes])
            values = np.array([math.prod(shape) for shape in self.shapes], np.float64)
            short = known & (values > 0) & (self.tensor_bytes == 2 * values)
            made[0][self.producer[known]] = True
            made[1][self.producer[short]] = True
            read[self.consumer[short[self.edge_tensor]]] = True
        return frozen(np.where(made[0], made[1], read))

    @classmethod
    def from_edges(
        cls,
        name: str,
        op_names: Sequence[str],
        edges: Iterable[tuple[int, int]],
        edge_bytes: ArrayLike | None = None,
        **fields: Any,
    ) -> OpGraph:
        """Build a graph in which every edge (u, v) is a tensor of its own.

        `edge_bytes` has one size per edge (default 0); `fields` are the other attributes of the
        class.
        """
        pairs = [(int(u), int(v)) for u, v in edges]
        sizes = np.zeros(len(pairs), np.int64) if edge_bytes is None else edge_bytes
        return cls(
            name=name,
            op_names=tuple(op_names),
            producer=np.array([u for u, _ in pairs], np.int64),
            tensor_bytes=np.asarray(sizes),
            consumer_ptr=np.arange(len(pairs) + 1, dtype=np.int64),
            consumer=np.array([v for _, v in pairs], np.int64),
            **fields,
        )

    @classmethod
    def from_tensors(
        cls,
        name: str,
        op_names: Sequence[str],
        tensors: Iterable[tuple[int, int, Sequence[int]]],
        **fields: Any,
    ) -> OpGraph:
        """Build a graph from (producer, bytes, consumers) triples, one per tensor, in order.

        Repeated consumers of one tensor are merged. `fields` are the other attributes of the class.
        """
        triples = list(tensors)
        pointer, flat = csr([list(dict.fromkeys(consumers)) for _, _, consumers in triples])
        return cls(
            name=name,
            op_names=tuple(op_names),
            producer=np.array([producer for producer, _, _ in triples], np.int64),
            tensor_bytes=np.array([size for _, size, _ in triples]),
            consumer_ptr=pointer,
            consumer=flat,
            **fields,
        )


OP_COLUMNS = {
    key: column
    for key, column in columns_of(OpGraph).items()
    if column.shape == ("ops",) and key != "op_types"
}
"""Columns of a graph with an entry for every op; files give its types another name."""


def topological_order(num_ops: int, source: Ints, consumer: Ints, op_names: Sequence[str]) -> Ints:
    """Sort ops by (depth, index); see `depths`."""
    depth = depths(num_ops, source, consumer, op_names)
    return stable_order(depth)


def depths(num_ops: int, source: Ints, consumer: Ints, op_names: Sequence[str]) -> Ints:
    """Return the number of edges of the longest path to each op from an op without inputs.

    Edge i leads from op `source[i]` to op `consumer[i]`.

    Raises
    ------
    InputError
        If the graph has a cycle; the message names one.
    """
    by_source = stable_order(source)
    target = consumer[by_source]
    if (source[by_source] < target).all():
        return np.array(_depths_in_order(num_ops, source[by_source].tolist(), target.tolist()))
    pointer = pointers(source[by_source], num_ops)
    waiting = np.bincount(consumer, minlength=num_ops)
    depth = np.array(_depths(waiting.tolist(), pointer.tolist(), target.tolist()))
    if depth.min() < 0:
        cycle = _name_cycle(depth < 0, source, consumer, op_names)
        raise InputError(f"the graph has a cycle: {cycle}")
    return depth


def _depths_in_order(num_ops: int, source: list[int], target: list[int]) -> list[int]:
    """Return the depths of ops whose edges, sorted by source, all lead to later ops: one pass over
    the edges.
    """
    depth = [0] * num_ops
    for op, other in zip(source, target, strict=True):
        if depth[other] <= depth[op]:
            depth[other] = depth[op] + 1
    return depth


def _depths(waiting: list[int], pointer: list[int], target: list[int]) -> list[int]:
    """Return the number of edges of the longest path to every op, -1 on or behind a cycle (Kahn
    1962).

    Plain lists: the graph may be a chain of a million ops, where a step per level would take a
    minute in NumPy.
    """
    ready = [op for op, count in enumerate(waiting) if not count]
    depth = [0] * len(waiting)
    for op in ready:  # grows
        further = depth[op] + 1
        for other in target[pointer[op] : pointer[op + 1]]:
            if depth[other] < further:
                depth[other] = further
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return [-1 if count else d for d, count in zip(depth, waiting, strict=True)]


def _name_cycle(stuck: Flags, source: Ints, consumer: Ints, op_names: Sequence[str]) -> str:
    """Walk backwards among the ops that never became ready until one repeats."""
    inside = stuck[source] & stuck[consumer]
    predecessor = dict(together(consumer[inside], source[inside]))
    at, path = next(iter(predecessor)), dict[int, int]()
    while at not in path:
        path[at] = len(path)
        at = predecessor[at]
    cycle = list(path)[path[at] :][::-1]
    names = (
        [op_names[i] for i in cycle[:6]]
        + (["..."] if len(cycle) > 6 else [])
        + [op_names[cycle[0]]]
    )
    return " -> ".join(names)
