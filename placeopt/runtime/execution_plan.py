"""The plan of a graph: for every op the kernel that computes it, its operands in order, and its
options.

An OpGraph says which tensors an op reads, not in which order, and leaves out weights and model
inputs. Both are derived here from kind, shapes, weights and flops: the order from shapes (a product
needs (.., m, k) x (k, n)), missing operands as *constants* that are named after the op, so that
every process makes the same array from the name. An op whose type or shapes are unknown gets the
calibrated kernel: the same flops and bytes on real buffers, and outputs of the right size that
depend on every input.

Sharded graphs have rules of their own, exact enough for the results to be compared with the
computation on whole matrices. They go by the names and shapes that instances/generators/sharded.py
gives its ops: the product of block (row, inner) and block (inner, column) is called
"row.inner.column", a map's blocks are numbered, a reduction's parts come in order. That tells which
block of which matrix an op reads, also where that matrix is an input of the model or learned and
therefore no tensor of the graph.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from placeopt.model.arrays import Array
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.runtime.array_ops import BINARY, KERNELS, UNARY

Shape = tuple[int, ...]

MAX_BYTES = 1 << 36

_MOVES = ("transpose", "reshape", "flatten", "squeeze", "unsqueeze", "formation", "expand")
_OVER = {"reduce_max": "max", "reduce_sum": "sum", "reduce_mean": "mean"}

_PLACE = re.compile(r"(?:part|sum)?(\d+(?:\.\d+)*)$")


class Constant(NamedTuple):
    """Weights or a model input, there before the run starts."""

    name: str
    shape: Shape
    dtype: str
    scale: float


Operands = tuple[int | Constant, ...]
"""Indices of tensors, and constants."""


class Step(NamedTuple):
    """How one op is executed."""

    kernel: str  # a key of KERNELS
    options: Mapping[str, Any]
    operands: Operands  # tensor index or constant
    outputs: tuple[int, ...]  # tensor indices
    result: tuple[tuple[Shape, str], ...]  # shape and dtype of each output


class ExecutionPlan(NamedTuple):
    """One step per op of a graph."""

    steps: tuple[Step, ...]

    def constants(self, op: int) -> tuple[Constant, ...]:
        """Return the constants that an op reads."""
        return tuple(x for x in self.steps[op].operands if isinstance(x, Constant))

    def run(self, op: int, values: Mapping[Any, Any]) -> list[Array]:
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

    name: str
    kind: str  # canonical, lower case
    inputs: tuple[int, ...]  # tensor indices, ascending
    shapes: tuple[Shape, ...]  # of the inputs
    out: tuple[Shape, ...]  # of the outputs
    dtype: str
    weights: int  # learned and other resident values
    flops: int


Rule = tuple[str, dict[str, Any], Operands]
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


def first_ranks(
    readers: list[int], device: list[int], rank: list[int], home: int
) -> list[tuple[int, int]]:
    """Return the other devices that read a tensor, and the rank of the first reader on each."""
    homes = sorted({device[reader] for reader in readers} - {home})
    return [(d, min(rank[reader] for reader in readers if device[reader] == d)) for d in homes]


class OpTable:
    """A graph, op by op."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.producer: list[int] = graph.producer.tolist()
        self.inputs = [tuple(x) for x in graph.reads()]
        self.outputs = [tuple(x) for x in graph.makes()]

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
        dtype, kind = types.pop(), graph.op_types[index].lower()
        return Op(
            graph.op_names[index],
            KINDS.get(kind, kind),
            self.inputs[index],
            tuple(graph.shapes[t] for t in self.inputs[index]),
            tuple(graph.shapes[t] for t in self.outputs[index]),
            dtype,
            int(graph.resident[index]) // (4 if dtype == "float32" else 8),
            int(graph.flops[index]),
        )

    @cached_property
    def siblings(self) -> Counter[str]:
        """Number of ops under each path."""
        return Counter(name.rpartition("/")[0] for name in self.graph.op_names)


def matrix(name: str, shape: Shape, dtype: str, fan_in: int = 1) -> Constant:
    """Return a constant whose products keep the size of their inputs."""
    return Constant(name, shape, dtype, 1.0 / math.sqrt(max(1, fan_in)))


def make_plan(graph: OpGraph) -> ExecutionPlan:
    """Return the plan of a graph.

    Raises
    ------
    InputError
        If a tensor or the work of an op is too large to be executed here.
    """
    table = OpTable(graph)
    steps = []
    for index in range(graph.num_ops):
        op = table.op(index)
        rule = None
        if op is not None:
            rule = _sharded_rule(table, op) if graph.meta[index] >= 0 else None
            rule = rule or _general_rule(op)
        kernel, options, operands = rule or _calibrated(table, index)
        steps.append(
            Step(
                kernel,
                options,
                operands,
                table.outputs[index],
                tuple(table.result(t) for t in table.outputs[index]),
            )
        )
    return ExecutionPlan(tuple(steps))


def _calibrated(table: OpTable, index: int) -> Rule:
    graph = table.graph
    flops, moved = int(graph.flops[index]), int(graph.bytes_moved[index])
    if not flops and not moved:  # all that is known is a time
        known = [ticks for ticks in graph.measured[index].tolist() if ticks >= 0]
        flops_per_second = 5e10  # work that stands for a second of it
        flops = round(max(known, default=0) * graph.tick_seconds * flops_per_second)
    max_flops = 1e14
    if flops > max_flops or moved > MAX_BYTES:
        raise InputError(
            f"graph '{graph.name}': op '{graph.op_names[index]}' has {flops:.3g} flops and moves "
            f"{moved:.3g} bytes, too much to be executed here (at most {max_flops:.0e} and "
            f"{MAX_BYTES:.0e}); use a smaller graph"
        )
    outputs = tuple(table.result(tensor) for tensor in table.outputs[index])
    return "calibrated", {"flops": flops, "bytes": moved, "outputs": outputs}, table.inputs[index]


def _general_rule(op: Op) -> Rule | None:
    """Return the kernel of an op whose shapes fit its kind."""
    if op.kind == "split" and len(op.inputs) == 1:
        return _split(op)
    maker = _RULES.get(op.kind)
    if maker is None or len(op.out) != 1 or not (op.out[0] or maker in _OF_SCALARS):
        return None
    return maker(op)


def _unary(op: Op) -> Rule | None:
    return ("unary", {"function": op.kind}, op.inputs) if op.shapes == op.out else None


def _move(op: Op) -> Rule | None:
    fits = len(op.inputs) == 1 and math.prod(op.shapes[0]) == math.prod(op.out[0])
    return ("rearrange", {"shape": op.out[0]}, op.inputs) if fits else None


def _split(op: Op) -> Rule | None:
    axis = _joined_axis(op.out, op.shapes[0])
    if axis is None:
        return None
    cuts = np.cumsum([shape[axis] for shape in op.out])[:-1].tolist()
    return "split", {"axis": axis, "cuts": cuts}, op.inputs


def _joined_axis(parts: tuple[Shape, ...], whole: Shape) -> int | None:
    """Return the axis along which parts of these shapes, side by side, are the whole."""
    if {len(shape) for shape in parts} == {len(whole)}:
        for axis in range(len(whole)):
            rest = {shape[:axis] + shape[axis + 1 :] for shape in (*parts, whole)}
            if len(rest) == 1 and sum(shape[axis] for shape in parts) == whole[axis]:
                return axis
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
    """Shape of `size` learned values that broadcast to `out`: along the last axis, or the channels
    of an image.
    """
    if size and out[-1:] == (size,):
        return (size,)
    if len(out) == 4 and size == out[1]:
        return (size, 1, 1)
    return None


def _learned_vector(op: Op) -> Rule | None:
    shape = _vector(op.weights, op.out[0])
    if op.shapes != op.out or shape is None:
        return None
    operands: Operands = (*op.inputs, matrix(f"{op.name}/vector", shape, op.dtype))
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
    for order in ((0, 1), (1, 0)):
        x, y = (op.shapes[i] for i in order)
        if _is_product(x, y, op.out[0]):
            return "matmul", {}, tuple(op.inputs[i] for i in order)
    x, y = op.shapes
    if _is_product(x, (*y[:-2], *reversed(y[-2:])), op.out[0]):
        # attention scores: the keys are read transposed
        return "matmul", {"transpose": True}, op.inputs
    return None


def _is_product(x: Shape, y: Shape, out: Shape) -> bool:
    """Whether x times y, matrix by matrix or with one matrix for all, has this shape."""
    matrices = len(x) >= 2 and len(y) >= 2 and y[:-2] in ((), x[:-2])
    return matrices and x[-1] == y[-2] and (*x[:-1], y[-1]) == out


def _linear(op: Op) -> Rule | None:
    if len(op.inputs) > 1:
        return None
    out = op.out[0]
    columns = out[-1]
    rows = (op.weights - columns if op.weights > columns else 0) / columns
    inner = round(op.flops / (2 * math.prod(out))) if op.flops else int(rows)
    shape: Shape = op.shapes[0] if op.shapes else (*out[:-1], inner)
    operands: list[int | Constant] = list(op.inputs) or [
        matrix(f"{op.name}/input", shape, op.dtype)
    ]
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
    for image in op.shapes or _images(out):
        if window := _window(image, out, terms):
            return "conv", {"shape": out, **window}, _conv_operands(op, image, terms, bias)
    return None


def _conv_operands(op: Op, image: Shape, terms: int, bias: bool) -> Operands:
    """Return the images, the weights of the filters and, if there is one, the bias."""
    filters = op.out[0][1]
    images = op.inputs or [matrix(f"{op.name}/image", image, op.dtype)]
    weights = matrix(f"{op.name}/weights", (filters, terms), op.dtype, terms)
    return (*images, weights, *([matrix(f"{op.name}/bias", (filters,), op.dtype)] if bias else []))


def _images(out: Shape) -> list[Shape]:
    """Return shapes of images that a first convolution may read, the likeliest first."""
    return [(out[0], c, out[2] * s, out[3] * s) for s in (2, 1, 4) for c in (3, 1)]


def _window(image: Shape, out: Shape, terms: int) -> dict[str, Any] | None:
    """Return kernel, stride, padding and groups of a convolution with `terms` weights per
    filter.
    """
    channels = image[1]
    if len(image) != 4 or image[0] != out[0]:
        return None
    stride = max(1, round(image[2] / out[2]))
    for groups in sorted({1, channels}):
        if channels % groups or terms % (channels // groups):
            continue
        for kernel in _kernels(terms // (channels // groups)):
            padding = tuple(_padding(image[2 + i], out[2 + i], kernel[i], stride) for i in range(2))
            if all(0 <= p <= side for p, side in zip(padding, kernel, strict=True)):
                return {"kernel": kernel, "stride": stride, "padding": padding, "groups": groups}
    return None


def _kernels(area: int) -> list[tuple[int, int]]:
    """Return the heights and widths of an area, the squarest first."""
    sides = [(height, area // height) for height in range(1, area + 1) if area % height == 0]
    return sorted(sides, key=lambda side: abs(side[0] - side[1]))


def _padding(length: int, out: int, kernel: int, stride: int) -> int:
    """Smallest padding in front with which `out` windows exist, -1 if windows would be left
    over.
    """
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
    options = {
        "shape": out,
        "kernel": (side, side),
        "stride": stride,
        "padding": padding,
        "maximum": op.kind == "max_pool",
    }
    return "pool", options, op.inputs


def _mask(op: Op) -> Rule | None:
    fits = op.shapes == op.out and len(op.out[0]) > 1
    return ("mask", {"first": 0, "factor": 1.0}, op.inputs) if fits else None


def _exp(op: Op) -> Rule | None:
    fits = (
        len(op.inputs) == 2
        and op.shapes[0] == op.out[0]
        and _broadcasts(list(op.shapes), op.out[0])
    )
    return ("exp_shifted", {}, op.inputs) if fits else _unary(op)


def _row_wise(op: Op) -> Rule | None:
    return (op.kind, {}, op.inputs) if op.shapes == op.out else None


def _concat(op: Op) -> Rule | None:
    axis = _joined_axis(op.shapes, op.out[0])
    return None if axis is None else ("concat", {"axis": axis}, op.inputs)


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
    # some of these have rules of their own below
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _elementwise),
    **dict.fromkeys(_MOVES, _move),
    **dict.fromkeys(_OVER, _reduction),
    "scale": _learned_vector,
    "bias_add": _learned_vector,
    "batch_norm": _batch_norm,
    "matmul": _matmul,
    "linear": _linear,
    "conv": _conv,
    "max_pool": _pool,
    "avg_pool": _pool,
    "softmax": _row_wise,
    "mask": _mask,
    "exp": _exp,
    "layer_norm": _row_wise,
    "concat": _concat,
    "embedding": _embedding,
    "variable": _variable,
}


_OF_SCALARS = (_unary, _elementwise, _reduction, _exp, _move)
"""Rules that hold where the result has no axes."""


def _sharded_rule(table: OpTable, op: Op) -> Rule | None:
    """Return the kernel of a sharded op; None for those whose general rule is right."""
    match = _PLACE.match(op.name.rpartition("/")[2])
    if op.kind == "reduce":
        return ("sum", {}, op.inputs) if all(shape == op.out[0] for shape in op.shapes) else None
    if match is None or len(op.out) != 1:
        return None
    maker = _SHARDED_RULES.get(op.kind)
    return maker(table, op, tuple(int(x) for x in match[1].split("."))) if maker else None


def input_block(row: int, column: int, shape: Shape, dtype: str) -> Constant:
    """Block of the model's input."""
    return matrix(f"input{row}.{column}", shape, dtype)


def _path(op: Op) -> str:
    return op.name.rpartition("/")[0]


def _grid_place(table: OpTable, op: Op, index: int) -> tuple[int, int]:
    """Row and column of the block that a map's op number `index` works on."""
    count = table.siblings[_path(op)]
    rows = math.isqrt(count)
    while count % rows:
        rows -= 1
    return divmod(index, count // rows)


def _block_product(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    out = op.out[0]
    if found := _attention(op):
        return found
    if len(place) != 3 or len(out) != 2 or len(op.inputs) > 2:
        return None
    row, inner, column = place
    length = op.flops // (2 * math.prod(out))
    shapes = [(out[0], length), (length, out[1])]
    sides = _sides(table, op, shapes[0])
    if list(op.shapes) != [shapes[side] for side in sides]:
        return None
    names = f"{_path(op)}/left{row}.{inner}", f"{_path(op)}/weights{inner}.{column}"
    operands: list[int | Constant] = [
        matrix(name, shape, op.dtype, length) for name, shape in zip(names, shapes, strict=True)
    ]
    for tensor, side in zip(op.inputs, sides, strict=True):
        operands[side] = tensor
    return "matmul", {}, tuple(operands)


def _attention(op: Op) -> Rule | None:
    """Scores of heads, or values mixed by scores; None for a product of plain matrices."""
    if len(op.inputs) != 2:
        return None
    if len(op.out[0]) == 3:
        return "scores", {"heads": op.out[0][0]}, op.inputs
    dimensions = list(map(len, op.shapes))
    if sorted(dimensions) != [2, 3]:
        return None
    return "mix", {}, op.inputs if dimensions == [3, 2] else op.inputs[::-1]


def _sides(table: OpTable, op: Op, left: Shape) -> tuple[int, ...]:
    """Return on which side of a product (0: left) each input of an op stands.

    Learned matrices are on the right, model inputs on the left.
    """
    if len(op.inputs) == 1:
        return (0,) if op.weights else (1,)
    variable = [table.graph.op_types[table.producer[t]] == "variable" for t in op.inputs]
    swap = variable == [True, False] or (variable == [False, False] and op.shapes[0] != left)
    return ((1, 0) if swap else (0, 1)) if op.inputs else ()


def _map(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Element-wise op of one or two blocks; a missing one is a block of the model's input."""
    row, column = _grid_place(table, op, place[0])
    if op.kind == "bias_add":
        bias = matrix(f"{_path(op)}/bias", (op.out[0][1],), op.dtype, 4)
        return "binary", {"function": "bias_add"}, (*op.inputs, bias)
    if op.kind == "mul_complex":
        return "rotate", {"first": row * op.out[0][0]}, op.inputs
    if op.kind in (
        "to_complex",
        "to_real",
    ):  # pairs of features are complex numbers as they lie in memory
        return "unary", {"function": "copy"}, op.inputs
    operands: Operands = op.inputs
    if len(operands) != 2:
        operands = input_block(row, column, op.out[0], op.dtype), *operands
    return "binary", {"function": op.kind}, operands


def _statistics(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Mean square or sum of exponentials of the rows of one block."""
    operands: Operands = op.inputs
    if not operands:
        height = op.out[0][0]
        shape = height, op.flops // (2 * height)
        operands = (input_block(place[0], place[1], shape, op.dtype),)
    return "over_rows", {"function": "square" if op.kind == "rms_norm_part" else "exp"}, operands


def _normalise(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    out = op.out[0]
    blocks: list[int | Constant] = [
        t for t, shape in zip(op.inputs, op.shapes, strict=True) if shape == out
    ]
    totals = [t for t in op.inputs if t not in blocks]
    if not blocks:
        blocks = [input_block(place[0], place[1] if len(place) > 1 else 0, out, op.dtype)]
    if len(blocks) > 1 or len(totals) > 1:
        return None
    parts = len(table.inputs[table.producer[totals[0]]]) if totals else 1
    return op.kind, {"parts": parts}, (blocks[0], *totals)


def _regrid(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Form a block of another grid out of the blocks it overlaps."""
    if len(place) != 2:
        return "rearrange", {"shape": op.out[0]}, op.inputs
    (height, width), old = op.out[0], op.shapes[0]
    offset = (place[0] * height % old[0], place[1] * width % old[1])
    down = -(-(offset[0] + height) // old[0])
    if any(shape != old for shape in op.shapes) or len(op.inputs) % down:
        return None
    across = len(op.inputs) // down
    return "regrid", {"shape": op.out[0], "offset": offset, "across": across}, op.inputs


def _block_mask(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Scale the scores of one block of queries and keys, and hide the keys after the query."""
    heads, queries, keys = op.out[0]
    product = table.producer[op.inputs[0]]
    width = int(table.graph.flops[product]) // (2 * queries * keys * heads)
    first = place[0] * queries - place[1] * keys
    return "mask", {"first": first, "factor": 1.0 / math.sqrt(max(1, width))}, op.inputs


_SHARDED_RULES = {
    "matmul": _block_product,
    **dict.fromkeys(("bias_add", "mul_complex", "to_complex", "to_real", "add", "mul"), _map),
    "rms_norm_part": _statistics,
    "softmax_part": _statistics,
    "rms_norm": _normalise,
    "softmax": _normalise,
    "formation": _regrid,
    "scale_mask": _block_mask,
}
