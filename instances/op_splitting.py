"""Parallelism as a choice: split ops over several devices, or replicate a whole graph.

An op split s ways becomes s pieces `name#0` .. `name#{s-1}`, each with 1/s of the flops. Think of an op as a
matrix product Y = X W. Three dimensions can be cut:

- "batch": rows of X and Y; every piece holds all of W (data parallelism);
- "output": columns of W and Y; every piece reads all of X (column parallelism);
- "inner": columns of X, rows of W; the pieces compute partial sums of Y (row parallelism).

Tensors follow. A reader gets from every piece of the producer exactly the part it needs: the scatter of a whole
tensor, the gather of pieces, and the exchange between two different cuts are all tensors between ops,
sized to the byte. Where both sides are cut alike, piece i only talks to piece i. Partial sums
are reduced by s ops `name/reduce#j`, each of which adds slice j of all pieces and sends it to the readers: a
reduce-scatter followed by an all-gather, which moves 2 (s - 1) / s of the tensor per device as a ring
all-reduce does, if reduce#j runs where piece j does.

In a training graph (training.py), the backward ops of an op are cut with it: by "batch" the weight gradients are
all-reduced and every piece updates its copy; by "output" and "inner" weights, gradients and optimizer state are
cut, and the input gradients are reduced by "output". So derive the training graph first, then split.

Element-wise ops need only their own columns of the input when cut by "output".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.arrays import round_half_up
from placeopt.model.errors import InputError
from placeopt.model.graph import UNKNOWN, OpGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

DIMENSIONS = ("batch", "output", "inner")
MAX_PARTS = 4096

_ELEMENTWISE = frozenset(
    [
        "add", "sub", "mul", "div", "scale", "bias_add", "relu", "gelu", "silu", "sigmoid", "tanh", "dropout", "pow",
        "square", "sqrt", "exp", "mask", "mul_constant", "batch_norm", "batchnormalization", "max_pool", "avg_pool",
        "maxpool", "averagepool", "globalaveragepool", "clip", "relu6", "leakyrelu", "identity", "cast",
    ]
)  # fmt: skip
_ROLES = ("igrad", "wgrad", "update", "grad_sum")


@dataclass(frozen=True, eq=False)
class Split:
    """A split graph and where its ops come from.

    Attributes
    ----------
    origin : op of the original graph that every op stems from.
    piece : which piece it is; reductions carry the slice they add.
    reduction : whether the op was added to sum partial results.
    """

    original: OpGraph
    graph: OpGraph
    origin: NDArray[np.int64]  # (num_ops,)
    piece: NDArray[np.int64]  # (num_ops,)
    reduction: NDArray[np.bool_]  # (num_ops,)


def split(graph: OpGraph, parts: Mapping[str, int], dimension: str | Mapping[str, str] = "batch") -> Split:
    """Split some ops of a graph.

    Parameters
    ----------
    parts : number of pieces by op name; ops that are not named stay whole. The backward ops of a named
        forward op are split with it.
    dimension : "batch", "output" or "inner", for all ops or by op name (default "batch").

    Raises
    ------
    InputError
        If an op or dimension is unknown, or a number of pieces is outside 1..4096.
    """
    index = {name: op for op, name in enumerate(graph.op_names)}
    count, cut = [1] * graph.num_ops, ["batch"] * graph.num_ops
    for name, pieces in parts.items():
        if name not in index:
            raise InputError(f"split: graph '{graph.name}' has no op '{name}'")
        if not 1 <= pieces <= MAX_PARTS:
            raise InputError(f"split of op '{name}': expected 1 to {MAX_PARTS} pieces, received {pieces}")
        way = dimension if isinstance(dimension, str) else dimension.get(name, "batch")
        if way not in DIMENSIONS:
            raise InputError(f"split of op '{name}': expected dimension {', '.join(DIMENSIONS)}, received '{way}'")
        family = [name] if graph.backward[index[name]] else [name, *_backward_ops(name, index)]
        for member in family:
            if member == name or member not in parts:
                count[index[member]], cut[index[member]] = pieces, way
    return _Splitter(graph, count, cut).run()


def replicate(graph: OpGraph, replicas: int) -> Split:
    """Run a whole graph on `replicas` parts of the batch, with all-reduced weight gradients in training graphs."""
    if not 1 <= replicas <= MAX_PARTS:
        raise InputError(f"replicate: expected 1 to {MAX_PARTS} replicas, received {replicas}")
    return _Splitter(graph, [replicas] * graph.num_ops, ["batch"] * graph.num_ops).run()


def _backward_ops(name: str, index: Mapping[str, int]) -> list[str]:
    """Names of the ops that training_graph derived from a forward op."""
    found = [f"{name}/{role}" for role in _ROLES if f"{name}/{role}" in index]
    attempt = 1
    while f"{name}/grad_sum_{attempt}" in index:
        found.append(f"{name}/grad_sum_{attempt}")
        attempt += 1
    return found


class _Op(NamedTuple):
    """An op of the new graph."""

    name: str
    op_type: str
    origin: int
    piece: int
    reduction: bool
    flops: int
    bytes_moved: int
    resident: int
    parameters: int
    share: float  # of the measured time
    group: tuple[int, ...] | None  # colocation key


class _Tensor(NamedTuple):
    """A tensor of the new graph."""

    producer: int
    size: int
    ticks: int
    shape: tuple[int, ...]
    consumers: list[int]


class _Splitter:
    """One split; `count` and `cut` give the pieces and the dimension of every op."""

    def __init__(self, graph: OpGraph, count: list[int], cut: list[str]) -> None:
        self.graph, self.count, self.cut = graph, count, cut
        self.role = [self._role(op) for op in range(graph.num_ops)]
        for op, role in enumerate(self.role):
            if role == "grad_sum" and cut[op] == "inner":
                count[op] = 1  # the forward output it is the gradient of is whole
        self.ops: list[_Op] = []
        self.tensors: list[_Tensor] = []
        self.sources: list[list[int]] = [[] for _ in range(graph.num_ops)]  # ops that hold the output, by slice
        self.pieces: list[list[int]] = [[] for _ in range(graph.num_ops)]
        self.names = set(graph.op_names)
        self.index = {name: op for op, name in enumerate(graph.op_names)}
        self.written = np.zeros(graph.num_ops, dtype=np.int64)
        np.add.at(self.written, graph.producer, graph.tensor_bytes)
        self.read_whole = self._read_whole()

    def run(self) -> Split:
        """Create all pieces, then connect them."""
        graph = self.graph
        for op in range(graph.num_ops):
            self._add_pieces(op)
        partial = [op for op in range(graph.num_ops) if self.count[op] > 1 and self._gives(op) == "partial"]
        for op in partial:
            self._add_reductions(op)
        for tensor in range(graph.num_tensors):
            self._connect(tensor)
        origin, piece = (np.array([getattr(op, key) for op in self.ops], dtype=np.int64) for key in ("origin", "piece"))
        return Split(graph, self._build(), origin, piece, np.array([op.reduction for op in self.ops], dtype=np.bool_))

    # --- who needs and gives what ------------------------------------------------------------------------

    def _role(self, op: int) -> str:
        tail = self.graph.op_names[op].rpartition("/")[2]
        if not self.graph.backward[op]:
            return "forward"
        return next((role for role in _ROLES if tail == role or tail.startswith(f"{role}_")), "igrad")

    def _elementwise(self, op: int) -> bool:
        kind = self.graph.op_types[op].lower()
        return kind.removesuffix("_igrad").removesuffix("_wgrad") in _ELEMENTWISE

    def _gives(self, op: int) -> str:
        """Return how the pieces of a split op hold its output: "rows", "columns" or "partial" sums."""
        role, cut = self.role[op], self.cut[op]
        if cut == "batch":
            return "partial" if role == "wgrad" else "rows"
        if role == "forward":
            return "partial" if cut == "inner" and not self._elementwise(op) else "columns"
        if role == "igrad" and cut == "output" and not self._elementwise(op):
            return "partial"
        return "columns"

    def _needs(self, op: int, producer: int) -> str:
        """Return which part of an input each piece reads: "whole", "rows" or "columns"."""
        role, cut = self.role[op], self.cut[op]
        if self.count[op] == 1 or (role == "update" and cut == "batch"):
            return "whole"
        if cut == "batch":
            return "rows"
        if role in ("update", "grad_sum") or self._elementwise(op):
            return "columns"
        if role == "forward":
            return "columns" if cut == "inner" else "whole"
        gradient = bool(self.graph.backward[producer])
        own = self.graph.op_names[producer] == self.graph.op_names[op].rpartition("/")[0]  # saved output, or the loss
        return "columns" if (gradient or own) == (cut == "output") else "whole"

    def _read_whole(self) -> list[int]:
        """Return, per op, the bytes of the inputs that every piece reads in full."""
        graph = self.graph
        total = [0] * graph.num_ops
        for t in range(graph.num_tensors):
            u, size = int(graph.producer[t]), int(graph.tensor_bytes[t])
            for v in graph.consumer[graph.consumer_ptr[t] : graph.consumer_ptr[t + 1]].tolist():
                if self.count[v] > 1 and self._needs(v, u) == "whole":
                    total[v] += size
        return total

    # --- ops ---------------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        while name in self.names:
            name += "'"
        self.names.add(name)
        return name

    def _add_pieces(self, op: int) -> None:
        graph, s, cut = self.graph, self.count[op], self.cut[op]
        name, resident, parameters = graph.op_names[op], int(graph.resident[op]), int(graph.parameters[op])
        whole = s == 1
        copies = cut == "batch" and not whole  # every piece has all weights
        replicated = copies and self.role[op] == "update"  # ... and does all the work on them
        group = int(graph.colocation[op])
        for i in range(s):
            self.pieces[op].append(len(self.ops))
            self.ops.append(_Op(
                name if whole else self._name(f"{name}#{i}"),
                graph.op_types[op], origin=op, piece=i, reduction=False,
                flops=int(graph.flops[op]) if replicated else _slice(int(graph.flops[op]), i, s),
                bytes_moved=int(graph.bytes_moved[op]) if replicated or whole else self._moved(op, i),
                resident=resident if copies else _slice(resident, i, s),
                # copies of weights are no further parameters of the model
                parameters=_slice(parameters, i, s) if not copies else (0 if i else parameters),
                share=1.0 if replicated else 1 / s,
                group=(group, s, i) if group >= 0 else None,
            ))  # fmt: skip
        self.sources[op] = self.pieces[op]

    def _moved(self, op: int, i: int) -> int:
        """Bytes that a piece reads and writes: what is cut counts in part, what is not in full."""
        moved, s, cut = int(self.graph.bytes_moved[op]), self.count[op], self.cut[op]
        full = self.read_whole[op]
        if cut == "batch" and self.role[op] != "wgrad":  # the weights
            full += int(self.graph.resident[op])
            if self.role[op] == "igrad":
                forward = self.index.get(self.graph.op_names[op].rpartition("/")[0], op)
                full += int(self.graph.resident[forward]) if forward != op else 0
        elif self._gives(op) == "partial":
            full += int(self.written[op])
        full = min(full, moved)
        return full + _slice(moved - full, i, s)

    def _add_reductions(self, op: int) -> None:
        """Add the ops that sum slice j of the partial results of all pieces, and their input tensors."""
        graph, s = self.graph, self.count[op]
        outputs = np.flatnonzero(graph.producer == op).tolist()
        if not outputs:
            return
        size = sum(int(graph.tensor_bytes[t]) for t in outputs)
        ticks = [int(graph.measured_transfer[t]) for t in outputs]
        group = int(graph.colocation[op])
        known = bool(graph.flops.any())
        self.sources[op] = []
        for j in range(s):
            part = _slice(size, j, s)
            self.sources[op].append(len(self.ops))
            self.ops.append(_Op(
                self._name(f"{graph.op_names[op]}/reduce#{j}"), "reduce", origin=op, piece=j, reduction=True,
                flops=(s - 1) * (part // 4) if known else 0, bytes_moved=(s + 1) * part if known else 0,
                resident=0, parameters=0, share=0.0,
                group=(group, s, j) if group >= 0 and self.role[op] == "wgrad" else None,
            ))  # fmt: skip
        for i in self.pieces[op]:
            for j in range(s):
                total = UNKNOWN if UNKNOWN in ticks else sum(ticks)
                self.tensors.append(_Tensor(i, _slice(size, j, s), _scale(total, 1 / s), (), [self.sources[op][j]]))

    # --- tensors -----------------------------------------------------------------------------------------

    def _connect(self, tensor: int) -> None:
        """Send every slice of a tensor to those who need it."""
        graph = self.graph
        u = int(graph.producer[tensor])
        size, ticks = int(graph.tensor_bytes[tensor]), int(graph.measured_transfer[tensor])
        sources = self.sources[u]
        a = len(sources)
        axis = "rows" if a == 1 or self._gives(u) == "partial" else self._gives(u)  # reductions hold rows
        # per source: (first, last) of the common grid -> readers; the whole slice is one tensor for all of them
        readers: list[dict[tuple[int, int, int], list[int]]] = [{} for _ in sources]
        for v in graph.consumer[graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]].tolist():
            b, need = self.count[v], self._needs(v, u)
            for j, reader in enumerate(self.pieces[v]):
                for i in range(a):
                    region = _region(i, a, j, b, need, axis)
                    if region is not None:
                        readers[i].setdefault(region, []).append(reader)
        shape = graph.shapes[tensor] if graph.shapes else ()
        for i, regions in enumerate(readers):
            if not regions:  # an output that nobody reads
                regions[0, 1, 1] = []
            for (first, last, parts), consumers in regions.items():
                low, high = size * i // a, size * (i + 1) // a
                span = high - low
                part = span * last // parts - span * first // parts
                exact = shape if a == 1 and parts == 1 else ()
                share = (last - first) / (parts * a)
                self.tensors.append(_Tensor(sources[i], part, _scale(ticks, share), exact, consumers))

    # --- result ------------------------------------------------------------------------------------------

    def _build(self) -> OpGraph:
        graph, ops, tensors = self.graph, self.ops, self.tensors
        origin = np.array([op.origin for op in ops], dtype=np.int64)
        meta = graph.meta.copy()
        fresh = np.array([op for op in range(graph.num_ops) if self.count[op] > 1 and meta[op] < 0], dtype=np.int64)
        meta[fresh] = int(meta.max()) + 1 + np.arange(len(fresh))
        keys: dict[tuple[int, ...], int] = {}
        colocation = [-1 if op.group is None else keys.setdefault(op.group, len(keys)) for op in ops]
        taken = {name: [getattr(op, name) for op in ops] for name in ("flops", "bytes_moved", "resident", "parameters")}
        return OpGraph.from_tensors(
            graph.name, [op.name for op in ops], [(tensor.producer, tensor.size, tensor.consumers) for tensor in tensors],
            op_types=tuple(op.op_type for op in ops), layer=tuple(graph.layer[op.origin] for op in ops), **taken,
            colocation=colocation, backward=graph.backward[origin], meta=meta[origin], unshaped=graph.unshaped[origin],
            measured_kinds=graph.measured_kinds, measured=self._measured(origin),
            measured_transfer=[tensor.ticks for tensor in tensors],
            shapes=tuple(tensor.shape for tensor in tensors) if graph.shapes else (), tick_seconds=graph.tick_seconds,
        )  # fmt: skip

    def _measured(self, origin: NDArray[np.int64]) -> NDArray[np.int64]:
        times: NDArray[Any] = self.graph.measured[origin]
        if not times.size:
            return times
        scaled = round_half_up(np.maximum(times, 0) * np.array([op.share for op in self.ops])[:, None], "measured time of a piece")
        return np.where(times >= 0, scaled, times)


def _slice(total: int, index: int, parts: int) -> int:
    """Return part `index` of a number cut into nearly equal whole parts that add up to it."""
    return total * (index + 1) // parts - total * index // parts


def _scale(ticks: int, share: float) -> int:
    """Return a share of a transfer time, rounded half up and not to 0; unknown stays unknown."""
    return ticks if ticks <= 0 else max(1, int(ticks * share + 0.5))


def _region(i: int, a: int, j: int, b: int, need: str, axis: str) -> tuple[int, int, int] | None:
    """Return what reader j of b needs of slice i of a: (first, last, parts) means [first, last) / parts of the slice.

    None if it needs nothing of it. Slices are along `axis`; a reader cut along the other axis needs its
    part of every slice.
    """
    if need == "whole":
        return (0, 1, 1)
    if a == 1 or need != axis:
        return (j, j + 1, b) if b > 1 else (0, 1, 1)
    # both along one axis: intersect [i/a, (i+1)/a) with [j/b, (j+1)/b), in units of 1/(a b) of the tensor
    first, last = max(i * b, j * a), min((i + 1) * b, (j + 1) * a)
    if first >= last:
        return None
    first, last = first - i * b, last - i * b
    return (0, 1, 1) if (first, last) == (0, b) else (first, last, b)
