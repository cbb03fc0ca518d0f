"""Rules for ops of general graphs: the kernel, options and operands that explain an op's kind,
shapes, weights and flops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placeopt.runtime.steps import Constant, matrix

if TYPE_CHECKING:
    from placeopt.runtime.steps import Op, Rule, Shape

_UNARY = (
    *("relu", "sigmoid", "tanh", "gelu", "silu", "sqrt", "rsqrt", "square", "neg", "abs", "pow"),
    *("mul_constant", "copy"),
)
_BINARY = ("add", "sub", "mul", "div", "maximum")
_MOVES = ("transpose", "reshape", "flatten", "squeeze", "unsqueeze", "formation", "expand")
_OVER = {"reduce_max": "max", "reduce_sum": "sum", "reduce_mean": "mean"}


def rule(op: Op) -> Rule | None:
    """Return the kernel of an op whose shapes fit its kind."""
    if op.kind == "split" and len(op.inputs) == 1:
        return _split(op)
    maker = _RULES.get(op.kind)
    return maker(op) if maker and len(op.out) == 1 else None


def _unary(op: Op) -> Rule | None:
    return ("unary", {"function": op.kind}, op.inputs) if op.shapes == op.out else None


def _move(op: Op) -> Rule | None:
    fits = len(op.inputs) == 1 and math.prod(op.shapes[0]) == math.prod(op.out[0])
    return ("rearrange", {"shape": op.out[0]}, op.inputs) if fits else None


def _split(op: Op) -> Rule | None:
    whole = op.shapes[0]
    for axis in range(len(whole)):
        sizes = [shape[axis] for shape in op.out if len(shape) == len(whole)]
        rest = {shape[:axis] + shape[axis + 1 :] for shape in op.out}
        if (
            len(sizes) == len(op.out)
            and rest == {whole[:axis] + whole[axis + 1 :]}
            and sum(sizes) == whole[axis]
        ):
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
    """Shape of `size` learned values that broadcast to `out`: along the last axis, or the channels
    of an image.
    """
    if size and size == out[-1]:
        return (size,)
    if len(out) == 4 and size == out[1]:
        return (size, 1, 1)
    return None


def _learned_vector(op: Op) -> Rule | None:
    shape = _vector(op.weights, op.out[0])
    if op.shapes != op.out or shape is None:
        return None
    operands: tuple[int | Constant, ...] = (
        *op.inputs,
        matrix(f"{op.name}/vector", shape, op.dtype),
    )
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
        found = _window(image, out, terms)
        if found is None:
            continue
        kernel, stride, padding, groups = found
        options = {
            "shape": out,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "groups": groups,
        }
        return "conv", options, _conv_operands(op, image, terms, bias)
    return None


def _conv_operands(op: Op, image: Shape, terms: int, bias: bool) -> tuple[int | Constant, ...]:
    """Return the images, the weights of the filters and, if there is one, the bias."""
    filters = op.out[0][1]
    images = op.inputs or [matrix(f"{op.name}/image", image, op.dtype)]
    weights = matrix(f"{op.name}/weights", (filters, terms), op.dtype, terms)
    return (*images, weights, *([matrix(f"{op.name}/bias", (filters,), op.dtype)] if bias else []))


def _images(out: Shape) -> list[Shape]:
    """Return shapes of images that a first convolution may read, the likeliest first."""
    return [(out[0], c, out[2] * s, out[3] * s) for s in (2, 1, 4) for c in (3, 1)]


def _window(
    image: Shape, out: Shape, terms: int
) -> tuple[tuple[int, int], int, tuple[int, int], int] | None:
    """Return (kernel, stride, padding, groups) of a convolution with `terms` weights per filter."""
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
                return kernel, stride, padding, groups  # type: ignore[return-value]
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
    return (
        ("mask", {"first": 0, "factor": 1.0}, op.inputs)
        if op.shapes == op.out and len(op.out[0]) > 1
        else None
    )


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
    out = op.out[0]
    for axis in range(len(out)):
        rest = {shape[:axis] + shape[axis + 1 :] for shape in op.shapes if len(shape) == len(out)}
        if (
            rest == {out[:axis] + out[axis + 1 :]}
            and sum(shape[axis] for shape in op.shapes) == out[axis]
        ):
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
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _elementwise),
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
