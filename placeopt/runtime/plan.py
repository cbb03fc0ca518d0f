"""The plan of a graph: for every op the kernel that computes it, its operands in order, and its options.

An OpGraph says which tensors an op reads, not in which order, and leaves out weights and model inputs. Both are
derived here: the order from shapes (a product needs (.., m, k) x (k, n)), missing operands as *constants* that
are named after the op, so that every process makes the same array from the name. An op whose type or
shapes are unknown gets the calibrated kernel: the same flops and bytes on real buffers, and outputs of
the right size that depend on every input. Sharded graphs have rules of their own (sharded.py), exact enough for the
results to be compared with the unsharded computation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.errors import InputError
from placeopt.runtime.kernels import KERNELS

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


class Plan(NamedTuple):
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


def make_plan(graph: OpGraph, flops_per_second: float = 5e10) -> Plan:
    """Return the plan of a graph.

    Parameters
    ----------
    flops_per_second : work that stands for a second of measured time, for ops that have no flops and bytes.

    Raises
    ------
    InputError
        If a tensor or the work of an op is too large to be executed here.
    """
    from placeopt.runtime import sharded

    view = View(graph)
    steps = []
    for index in range(graph.num_ops):
        op = view.op(index)
        rule = None
        if op is not None:
            rule = sharded.rule(view, op) if graph.meta[index] >= 0 else None
            rule = rule or _rule(op)
        kernel, options, operands = rule or _calibrated(view, index, flops_per_second)
        steps.append(Step(kernel, options, operands, view.outputs[index], tuple(view.result(t) for t in view.outputs[index])))
    return Plan(graph.name, tuple(steps))


class View:
    """A graph, op by op."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        n = graph.num_ops
        self.producer: list[int] = graph.producer.tolist()
        inputs: list[list[int]] = [[] for _ in range(n)]
        outputs: list[list[int]] = [[] for _ in range(n)]
        for tensor, op in enumerate(self.producer):
            outputs[op].append(tensor)
            for reader in graph.consumer[graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]].tolist():
                inputs[reader].append(tensor)
        self.inputs = [tuple(x) for x in inputs]
        self.outputs = [tuple(x) for x in outputs]
        self._names: dict[str, list[str]] | None = None

    def dtype(self, tensor: int) -> str:
        """Float type of a tensor's elements; "" where its shape is unknown or does not explain its size."""
        if not self.graph.shapes:
            return ""
        size = math.prod(self.graph.shapes[tensor])
        bytes_ = int(self.graph.tensor_bytes[tensor])
        return {4 * size: "float32", 8 * size: "float64"}.get(bytes_, "") if size else ""

    def result(self, tensor: int) -> tuple[Shape, str]:
        """Shape and dtype of a tensor as it is executed: plain bytes where nothing better is known."""
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
            index, graph.op_names[index], _KINDS.get(graph.op_types[index].lower(), graph.op_types[index].lower()),
            self.inputs[index], tuple(graph.shapes[t] for t in self.inputs[index]),
            self.outputs[index], tuple(graph.shapes[t] for t in self.outputs[index]), dtype,
            int(graph.resident[index]) // (4 if dtype == "float32" else 8), int(graph.flops[index]),
        )  # fmt: skip

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


# --- rules by kind --------------------------------------------------------------------------------------

_KINDS = {
    "gemm": "linear", "fullyconnected": "linear", "convolution": "conv", "maxpool": "max_pool", "averagepool": "avg_pool",
    "globalaveragepool": "avg_pool", "batchnormalization": "batch_norm", "identity": "copy", "dropout": "copy",
    "cast": "copy", "sum": "add", "reducesum": "reduce_sum", "reducemean": "reduce_mean", "reducemax": "reduce_max",
    "layernormalization": "layer_norm", "leakyrelu": "relu", "mean": "reduce_mean",
}  # fmt: skip
"""Names that exporters use for the same kind."""

_UNARY = frozenset(
    ("relu", "sigmoid", "tanh", "gelu", "silu", "exp", "sqrt", "rsqrt", "square", "neg", "abs", "pow", "mul_constant", "copy")
)
_BINARY = frozenset(("add", "sub", "mul", "div", "maximum"))
_MOVES = frozenset(("transpose", "reshape", "flatten", "squeeze", "unsqueeze", "formation", "expand"))
_OVER = {"reduce_max": "max", "reduce_sum": "sum", "reduce_mean": "mean"}


def _rule(op: Op) -> Rule | None:
    """Return the kernel of an op whose shapes fit its kind."""
    if op.kind == "split" and len(op.inputs) == 1:
        return _split(op)
    if len(op.out) != 1:
        return None
    if op.kind in _UNARY and op.shapes == op.out:
        return "unary", {"function": op.kind}, op.inputs
    if op.kind in _MOVES and len(op.inputs) == 1 and math.prod(op.shapes[0]) == math.prod(op.out[0]):
        return "rearrange", {"shape": op.out[0]}, op.inputs
    if op.kind in _OVER:
        return _reduction(op)
    if op.kind in _BINARY:
        return _elementwise(op)
    maker = _RULES.get(op.kind)
    return maker(op) if maker else None


def _split(op: Op) -> Rule | None:
    whole = op.shapes[0]
    for axis in range(len(whole)):
        sizes = [shape[axis] for shape in op.out if len(shape) == len(whole)]
        rest = {shape[:axis] + shape[axis + 1 :] for shape in op.out}
        if len(sizes) == len(op.out) and rest == {whole[:axis] + whole[axis + 1 :]} and sum(sizes) == whole[axis]:
            return "split", {"axis": axis, "cuts": np.cumsum(sizes)[:-1].tolist()}, op.inputs
    return None


def _reduction(op: Op) -> Rule | None:
    """Reduce the last axis of one operand, or combine several of the result's shape."""
    if op.shapes and all(shape == op.out[0] for shape in op.shapes) and op.kind != "reduce_mean":
        return ("maximum" if op.kind == "reduce_max" else "sum"), {}, op.inputs
    if len(op.shapes) == 1 and op.out[0] == (*op.shapes[0][:-1], 1):
        return "over_rows", {"function": _OVER[op.kind]}, op.inputs
    return None


def _elementwise(op: Op) -> Rule | None:
    out = op.out[0]
    if len(op.inputs) > 2:
        fits = op.kind == "add" and all(shape == out for shape in op.shapes)
        return ("sum", {}, op.inputs) if fits else None
    operands: list[int | Constant] = list(op.inputs)
    shapes = list(op.shapes)
    if len(operands) == 1:
        shape = _vector(op.weights, out) or out
        operands.append(matrix(f"{op.name}/operand", shape, op.dtype))
        shapes.append(shape)
    if len(operands) != 2 or not _broadcasts(shapes, out):
        return None
    if math.prod(shapes[1]) > math.prod(shapes[0]):
        operands.reverse()
    return "binary", {"function": op.kind}, tuple(operands)


def _broadcasts(shapes: list[Shape], out: Shape) -> bool:
    try:
        return np.broadcast_shapes(*shapes) == out
    except ValueError:
        return False


def _vector(size: int, out: Shape) -> Shape | None:
    """Shape of `size` learned values that broadcast to `out`: along the last axis, or the channels of an image."""
    if size and size == out[-1]:
        return (size,)
    if len(out) == 4 and size == out[1]:
        return (size, 1, 1)
    return None


def _learned_vector(op: Op) -> Rule | None:
    shape = _vector(op.weights, op.out[0])
    if op.shapes != op.out or shape is None:
        return None
    operands: tuple[int | Constant, ...] = (*op.inputs, matrix(f"{op.name}/vector", shape, op.dtype))
    return "binary", {"function": op.kind}, operands


def _batch_norm(op: Op) -> Rule | None:
    out = op.out[0]
    if op.shapes != op.out or len(out) < 2:
        return None
    shape = (out[1], *(1,) * (len(out) - 2))
    vectors = (matrix(f"{op.name}/{key}", shape, op.dtype) for key in ("scale", "shift"))
    return "batch_norm", {}, (*op.inputs, *vectors)


def _matmul(op: Op) -> Rule | None:
    if len(op.inputs) == 1:
        return _linear(op)
    if len(op.inputs) != 2:
        return None
    out = op.out[0]
    for order in ((0, 1), (1, 0)):
        x, y = (op.shapes[i] for i in order)
        if len(x) >= 2 and len(y) >= 2 and x[-1] == y[-2] and (*x[:-1], y[-1]) == out and y[:-2] in ((), x[:-2]):
            return "matmul", {}, tuple(op.inputs[i] for i in order)
    x, y = op.shapes
    if len(x) >= 2 and len(y) >= 2 and x[-1] == y[-1] and (*x[:-1], y[-2]) == out and y[:-2] in ((), x[:-2]):
        return "matmul", {"transpose": True}, op.inputs  # attention scores: the keys are read transposed
    return None


def _linear(op: Op) -> Rule | None:
    if len(op.inputs) > 1:
        return None
    out = op.out[0]
    columns = out[-1]
    rows = (op.weights - columns if op.weights > columns else 0) / columns
    inner = round(op.flops / (2 * math.prod(out))) if op.flops else int(rows)
    shape: Shape = op.shapes[0] if op.shapes else (*out[:-1], inner)
    operands: list[int | Constant] = list(op.inputs) or [matrix(f"{op.name}/input", shape, op.dtype)]
    if shape[:-1] != out[:-1] or not shape[-1]:
        return None
    operands.append(matrix(f"{op.name}/weights", (shape[-1], columns), op.dtype, shape[-1]))
    if op.weights == (shape[-1] + 1) * columns:
        operands.append(matrix(f"{op.name}/bias", (columns,), op.dtype))
    return "linear", {}, tuple(operands)


def _conv(op: Op) -> Rule | None:
    """Find kernel, stride, padding and groups that explain shapes, weights and flops."""
    out = op.out[0]
    if len(out) != 4 or len(op.inputs) > 1 or not op.weights:
        return None
    filters = out[1]
    bias = op.weights % filters == 0 and op.flops % (2 * math.prod(out)) != 0
    terms = op.weights // filters - bias  # channels per group x kernel height x kernel width
    if terms < 1 or (terms + bias) * filters != op.weights:
        return None
    images = [op.shapes[0]] if op.shapes else [(out[0], c, out[2] * s, out[3] * s) for s in (2, 1, 4) for c in (3, 1)]
    for image in images:
        found = _window(image, out, terms)
        if found is None:
            continue
        kernel, stride, padding, groups = found
        operands: list[int | Constant] = list(op.inputs) or [matrix(f"{op.name}/image", image, op.dtype)]
        operands.append(matrix(f"{op.name}/weights", (filters, terms), op.dtype, terms))
        if bias:
            operands.append(matrix(f"{op.name}/bias", (filters,), op.dtype))
        options = {"shape": out, "kernel": kernel, "stride": stride, "padding": padding, "groups": groups}
        return "conv", options, tuple(operands)
    return None


def _window(image: Shape, out: Shape, terms: int) -> tuple[tuple[int, int], int, tuple[int, int], int] | None:
    """Return (kernel, stride, padding, groups) of a convolution with `terms` weights per filter."""
    channels = image[1]
    if len(image) != 4 or image[0] != out[0]:
        return None
    stride = max(1, round(image[2] / out[2]))
    for groups in sorted({1, channels}):
        if channels % groups or terms % (channels // groups):
            continue
        area = terms // (channels // groups)
        sides = [(kh, area // kh) for kh in range(1, area + 1) if area % kh == 0]
        for kernel in sorted(sides, key=lambda side: abs(side[0] - side[1])):
            padding = tuple(_padding(image[2 + i], out[2 + i], kernel[i], stride) for i in range(2))
            if all(0 <= p <= side for p, side in zip(padding, kernel, strict=True)):
                return kernel, stride, padding, groups  # type: ignore[return-value]
    return None


def _padding(length: int, out: int, kernel: int, stride: int) -> int:
    """Smallest padding in front with which `out` windows exist, -1 if windows would be left over."""
    if (length - kernel) // stride + 1 > out:
        return -1
    return max(0, -(-((out - 1) * stride + kernel - length) // 2))


def _pool(op: Op) -> Rule | None:
    out = op.out[0]
    if len(op.inputs) != 1 or len(op.shapes[0]) != 4:
        return None
    image = op.shapes[0]
    if math.prod(out) == image[0] * image[1] and op.kind == "avg_pool":
        return "global_pool", {"shape": out}, op.inputs
    if len(out) != 4 or out[:2] != image[:2]:
        return None
    stride = max(1, round(image[2] / out[2]))
    side = math.isqrt(max(1, op.flops // math.prod(out)))
    padding = tuple(_padding(image[2 + i], out[2 + i], side, stride) for i in range(2))
    if not all(0 <= p < max(2, side) for p in padding):
        return None
    options = {"shape": out, "kernel": (side, side), "stride": stride, "padding": padding,
               "maximum": op.kind == "max_pool"}  # fmt: skip
    return "pool", options, op.inputs


def _mask(op: Op) -> Rule | None:
    return ("mask", {"first": 0, "factor": 1.0}, op.inputs) if op.shapes == op.out and len(op.out[0]) > 1 else None


def _exp(op: Op) -> Rule | None:
    fits = len(op.inputs) == 2 and op.shapes[0] == op.out[0] and _broadcasts(list(op.shapes), op.out[0])
    return ("exp_shifted", {}, op.inputs) if fits else None


def _softmax(op: Op) -> Rule | None:
    return ("softmax", {}, op.inputs) if op.shapes == op.out else None


def _norm(op: Op) -> Rule | None:
    return ("layer_norm", {}, op.inputs) if op.shapes == op.out else None


def _concat(op: Op) -> Rule | None:
    out = op.out[0]
    for axis in range(len(out)):
        rest = {shape[:axis] + shape[axis + 1 :] for shape in op.shapes if len(shape) == len(out)}
        if rest == {out[:axis] + out[axis + 1 :]} and sum(shape[axis] for shape in op.shapes) == out[axis]:
            return "concat", {"axis": axis}, op.inputs
    return None


def _embedding(op: Op) -> Rule | None:
    width = op.out[0][-1]
    if op.inputs or not op.weights or op.weights % width:
        return None
    table = matrix(f"{op.name}/table", (op.weights // width, width), op.dtype)
    return "embedding", {"shape": op.out[0]}, (table,)


def _variable(op: Op) -> Rule | None:
    shape = op.out[0]
    return None if op.inputs else ("variable", {}, (matrix(op.name, shape, op.dtype, shape[0]),))


_RULES = {
    "scale": _learned_vector, "bias_add": _learned_vector, "batch_norm": _batch_norm, "matmul": _matmul,
    "linear": _linear, "conv": _conv, "max_pool": _pool, "avg_pool": _pool, "softmax": _softmax,
    "mask": _mask, "exp": _exp, "layer_norm": _norm, "concat": _concat, "embedding": _embedding, "variable": _variable,
}  # fmt: skip


# --- anything else --------------------------------------------------------------------------------------

MAX_FLOPS = 1e14
MAX_BYTES = 1 << 36


def _calibrated(view: View, index: int, flops_per_second: float) -> Rule:
    graph = view.graph
    flops, moved = int(graph.flops[index]), int(graph.bytes_moved[index])
    if not flops and not moved:  # all that is known is a time
        known = [ticks for ticks in graph.measured[index].tolist() if ticks >= 0]
        flops = round(max(known, default=0) * graph.tick_seconds * flops_per_second)
    if flops > MAX_FLOPS or moved > MAX_BYTES:
        raise InputError(
            f"graph '{graph.name}': op '{graph.op_names[index]}' has {flops:.3g} flops and moves {moved:.3g} bytes, "
            f"too much to be executed here (at most {MAX_FLOPS:.0e} and {MAX_BYTES:.0e}); use a smaller graph"
        )
    outputs = tuple(view.result(tensor) for tensor in view.outputs[index])
    return "calibrated", {"flops": flops, "bytes": moved, "outputs": outputs}, view.inputs[index]
