"""What an execution consists of: steps with operands in order, constants, and the ops as the rules
see them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from placeopt.runtime.numpy_ops import KERNELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placeopt.model.graph import OpGraph

Shape = tuple[int, ...]


class Constant(NamedTuple):
    """Weights or a model input, there before the run starts."""

    name: str
    shape: Shape
    dtype: str
    scale: float


class Step(NamedTuple):
    """How one op is executed."""

    kernel: str  # a key of KERNELS
    options: Mapping[str, Any]
    operands: tuple[int | Constant, ...]  # tensor index or constant
    outputs: tuple[int, ...]  # tensor indices
    result: tuple[tuple[Shape, str], ...]  # shape and dtype of each output


class ExecutionPlan(NamedTuple):
    """One step per op of a graph."""

    name: str
    steps: tuple[Step, ...]

    def constants(self, op: int) -> tuple[Constant, ...]:
        """Return the constants that an op reads."""
        return tuple(x for x in self.steps[op].operands if isinstance(x, Constant))

    def run(self, op: int, values: Mapping[Any, Any]) -> list[NDArray[Any]]:
        """Execute one op; `values` holds its operands by tensor index or constant."""
        step = self.steps[op]
        found = KERNELS[step.kernel](step.options, *(values[x] for x in step.operands))
        return found if isinstance(found, list) else [found]

    @property
    def exact(self) -> int:
        """Number of ops with a kernel of their own kind."""
        return sum(step.kernel != "calibrated" for step in self.steps)


class Op(NamedTuple):
    """What the rules see of an op."""

    number: int
    name: str
    kind: str  # canonical, lower case
    inputs: tuple[int, ...]  # tensor indices, ascending
    shapes: tuple[Shape, ...]  # of the inputs
    outputs: tuple[int, ...]
    out: tuple[Shape, ...]
    dtype: str
    weights: int  # learned and other resident values
    flops: int


Rule = tuple[str, dict[str, Any], tuple[int | Constant, ...]]
"""Kernel, options and operands."""


KINDS = {
    "gemm": "linear",
    "fullyconnected": "linear",
    "convolution": "conv",
    "maxpool": "max_pool",
    "averagepool": "avg_pool",
    "globalaveragepool": "avg_pool",
    "batchnormalization": "batch_norm",
    "identity": "copy",
    "dropout": "copy",
    "cast": "copy",
    "sum": "add",
    "reducesum": "reduce_sum",
    "reducemean": "reduce_mean",
    "reducemax": "reduce_max",
    "layernormalization": "layer_norm",
    "leakyrelu": "relu",
    "mean": "reduce_mean",
}
"""Names that exporters use for the same kind."""


def readers_of(graph: OpGraph) -> list[list[int]]:
    """Return the ops that read each tensor."""
    bounds = itertools.pairwise(graph.consumer_ptr.tolist())
    return [graph.consumer[a:b].tolist() for a, b in bounds]


class OpTable:
    """A graph, op by op."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        n = graph.num_ops
        self.producer: list[int] = graph.producer.tolist()
        inputs: list[list[int]] = [[] for _ in range(n)]
        outputs: list[list[int]] = [[] for _ in range(n)]
        for tensor, (op, readers) in enumerate(zip(self.producer, readers_of(graph), strict=True)):
            outputs[op].append(tensor)
            for reader in readers:
                inputs[reader].append(tensor)
        self.inputs = [tuple(x) for x in inputs]
        self.outputs = [tuple(x) for x in outputs]
        self._names: dict[str, list[str]] | None = None

    def dtype(self, tensor: int) -> str:
        """Float type of a tensor's elements; "" where its shape is unknown or does not explain its
        size.
        """
        if not self.graph.shapes:
            return ""
        size = math.prod(self.graph.shapes[tensor])
        bytes_ = int(self.graph.tensor_bytes[tensor])
        return {4 * size: "float32", 8 * size: "float64"}.get(bytes_, "") if size else ""

    def result(self, tensor: int) -> tuple[Shape, str]:
        """Shape and dtype of a tensor as it is executed: plain bytes where nothing better is
        known.
        """
        dtype = self.dtype(tensor)
        if dtype:
            return self.graph.shapes[tensor], dtype
        return (int(self.graph.tensor_bytes[tensor]),), "uint8"

    def op(self, index: int) -> Op | None:
        """Return an op for the rules; None where a shape is unknown or types differ."""
        graph, tensors = self.graph, (*self.inputs[index], *self.outputs[index])
        if not self.outputs[index] or graph.unshaped[index] or graph.backward[index]:
            return None
        types = {self.dtype(tensor) for tensor in tensors}
        if len(types) != 1 or "" in types:
            return None
        dtype = types.pop()
        return Op(
            index,
            graph.op_names[index],
            KINDS.get(graph.op_types[index].lower(), graph.op_types[index].lower()),
            self.inputs[index],
            tuple(graph.shapes[t] for t in self.inputs[index]),
            self.outputs[index],
            tuple(graph.shapes[t] for t in self.outputs[index]),
            dtype,
            int(graph.resident[index]) // (4 if dtype == "float32" else 8),
            int(graph.flops[index]),
        )

    def siblings(self, path: str) -> list[str]:
        """Last components of the names of all ops under a path."""
        if self._names is None:
            self._names = {}
            for name in self.graph.op_names:
                head, _, last = name.rpartition("/")
                self._names.setdefault(head, []).append(last)
        return self._names.get(path, [])


def matrix(name: str, shape: Shape, dtype: str, fan_in: int = 1) -> Constant:
    """Return a constant whose products keep the size of their inputs."""
    return Constant(name, shape, dtype, 1.0 / math.sqrt(max(1, fan_in)))
