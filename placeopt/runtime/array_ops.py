"""Kernels: what an op of a graph really does when it is executed, on numpy arrays or torch tensors.

A kernel takes the options of its step and its operands in order, and returns one array, or a list
where the op has several outputs. Kernels are deterministic: the same operands give the same bits on
every worker, so that a distributed run can be compared with a serial one.
"""

from __future__ import annotations

import math
import operator
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np

Array = Any  # an array, or a tensor: torch is optional, also for type checkers
Options = Mapping[str, Any]

STREAM_BYTES = 4 << 20
"""Size of the buffer that a calibrated kernel streams its bytes through."""

MASKED = -1e9
"""Score of a position that attention must not see; finite, so that a fully masked block stays a
number."""

EPSILON = 1e-6


def library(x: Array) -> Any:
    """Return torch for a tensor, else numpy: both know what is called here by the same names."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else np


def constant(name: str, shape: Sequence[int], dtype: str, scale: float) -> Array:
    """Return the array that a name stands for: weights or an input of the model, the same in every
    process.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    array = rng.standard_normal(
        tuple(shape), dtype=np.float64 if dtype == "float64" else np.float32
    )
    array *= array.dtype.type(scale)
    array.setflags(write=False)
    return array


# --- matrix products
# ------------------------------------------------------------------------------------


def _linear(o: Options, x: Array, weights: Array, *bias: Array) -> Array:
    out = x @ weights
    if bias:
        out += bias[0]
    return out


def _scores(o: Options, query: Array, key: Array) -> Array:
    """Scores of every head: (length, heads * width) x (keys, heads * width) -> (heads, length,
    keys).
    """
    q, k = (x.reshape(len(x), o["heads"], -1).swapaxes(0, 1) for x in (query, key))
    return q @ k.swapaxes(1, 2)


def _mix(o: Options, weight: Array, value: Array) -> Array:
    """Mix the values of every head: (heads, length, keys) x (keys, heads * width) -> (length, heads
    * width).
    """
    heads, length, _ = weight.shape
    v = value.reshape(len(value), heads, -1).swapaxes(0, 1)
    return (weight @ v).swapaxes(0, 1).reshape(length, -1)


def _windows(
    x: Array,
    kernel: tuple[int, int],
    stride: int,
    padding: tuple[int, int],
    out: tuple[int, int],
    fill: float,
) -> Array:
    """View the windows of an image: (batch, channels, height', width', kernel height, kernel
    width).
    """
    (kh, kw), (ph, pw) = kernel, padding
    below = max(0, (out[0] - 1) * stride + kh - x.shape[2] - ph)
    right = max(0, (out[1] - 1) * stride + kw - x.shape[3] - pw)
    if ph or pw or below or right:
        x = np.pad(x, ((0, 0), (0, 0), (ph, below), (pw, right)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view
    view = windows(x, (kh, kw), axis=(2, 3))  # type: ignore[call-overload]
    return view[:, :, ::stride, ::stride][:, :, : out[0], : out[1]]


def _conv(o: Options, x: Array, weights: Array, *bias: Array) -> Array:
    """Two-dimensional convolution: gather the windows as a matrix (im2col), then one product per
    group.
    """
    batch, filters, height, width = o["shape"]
    groups = o["groups"]
    windows = _windows(x, o["kernel"], o["stride"], o["padding"], (height, width), 0.0)
    windows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch * height * width, groups, -1)
    kernel = weights.reshape(groups, filters // groups, -1)
    out = np.matmul(
        windows.transpose(1, 0, 2), kernel.transpose(0, 2, 1)
    )  # (groups, positions, filters)
    out = out.transpose(1, 0, 2).reshape(batch, height, width, filters)
    if bias:
        out = out + bias[0]
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def _pool(o: Options, x: Array) -> Array:
    maximum = o["maximum"]
    windows = _windows(
        x, o["kernel"], o["stride"], o["padding"], o["shape"][2:], -np.inf if maximum else 0.0
    )
    return windows.max(axis=(4, 5)) if maximum else windows.mean(axis=(4, 5), dtype=x.dtype)


# --- element-wise
# ---------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    out = library(x).exp(-abs(x))
    return library(x).where(x >= 0, 1, out) / (1 + out)


def _exp(x: Array) -> Array:
    return library(x).exp(x.clip(max=60))


UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: x.clip(0),
    "sigmoid": _sigmoid,
    "tanh": lambda x: library(x).tanh(x),
    "gelu": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "exp": _exp,
    "sqrt": lambda x: abs(x) ** 0.5,
    "rsqrt": lambda x: 1 / (abs(x) + EPSILON) ** 0.5,
    "square": lambda x: x * x,
    "neg": operator.neg,
    "abs": abs,
    "pow": lambda x: x * x * x,
    "mul_constant": lambda x: x * 0.125,
    "copy": lambda x: library(x).asarray(x, copy=True),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda x, y: x / library(y).copysign(abs(y) + 1e-30, y),
    "maximum": lambda x, y: library(x).maximum(x, y),
    "scale": operator.mul,
    "bias_add": operator.add,
}


def _mask(o: Options, x: Array) -> Array:
    """Scale scores and hide the keys after the query; `first` is query position minus key position
    at (0, 0).
    """
    queries, keys = x.shape[-2:]
    later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + o["first"]
    hidden = library(x).asarray(later, device=x.device)
    return library(x).where(hidden, MASKED, x * o["factor"])


def _rotate(o: Options, x: Array) -> Array:
    """Multiply pairs of features, as complex numbers, by the rotation of their row's position."""
    pairs = x.shape[1] // 2
    position = np.arange(len(x)) + o["first"]
    angle = position[:, None] * 10000.0 ** (-np.arange(pairs)[None, :] / pairs)
    cos, sin = (
        library(x).asarray(turn(angle), dtype=x.dtype, device=x.device) for turn in (np.cos, np.sin)
    )
    real, imaginary = x[:, ::2], x[:, 1::2]
    rotated = real * cos - imaginary * sin, real * sin + imaginary * cos
    return library(x).stack(rotated, axis=-1).reshape(x.shape)


# --- reductions and joins
# -------------------------------------------------------------------------------


OVER_ROWS: dict[str, Callable[[Array], Array]] = {
    "max": lambda x: library(x).amax(x, axis=-1, keepdims=True),
    "mean": lambda x: x.mean(axis=-1, keepdims=True),
    "square": lambda x: library(x).einsum("...i,...i->...", x, x)[..., None] / x.shape[-1],
    "exp": lambda x: _exp(x).sum(axis=-1, keepdims=True),
    "sum": lambda x: x.sum(axis=-1, keepdims=True),
}
"""One number of every row; "square" is the mean of its squares."""


def _softmax(o: Options, x: Array, *total: Array) -> Array:
    if total:  # the sum of the exponentials of the whole row is given
        return _exp(x) / total[0]
    out = library(x).exp(x - OVER_ROWS["max"](x))
    out /= out.sum(axis=-1, keepdims=True)
    return out


def _rms_norm(o: Options, x: Array, *total: Array) -> Array:
    """Divide by the root of the mean square; `total` is the sum of the mean squares of `parts`
    blocks of a row.
    """
    mean = total[0] / o["parts"] if total else OVER_ROWS["square"](x)
    return x / library(x).sqrt(mean + EPSILON)


def _layer_norm(o: Options, x: Array) -> Array:
    return _rms_norm(o, x - x.mean(axis=-1, keepdims=True))


def _regrid(o: Options, *parts: Array) -> Array:
    """Cut one block out of the old blocks that it overlaps, `down` x `across` of them."""
    xp, across = library(parts[0]), o["across"]
    (height, width), (top, left) = o["shape"], o["offset"]
    lines = [xp.concatenate(parts[i : i + across], axis=1) for i in range(0, len(parts), across)]
    block = xp.concatenate(lines, axis=0)[top : top + height, left : left + width]
    out = xp.zeros((height, width), dtype=block.dtype, device=block.device)
    out[: block.shape[0], : block.shape[1]] = block
    return out


def _embedding(o: Options, table: Array, *tokens: Array) -> Array:
    shape = o["shape"]
    count = math.prod(shape[:-1])
    return table[(np.arange(count) * 2654435761) % len(table)].reshape(shape)


# --- anything else
# --------------------------------------------------------------------------------------


def _calibrated(o: Options, *inputs: Array) -> list[Array]:
    """Do `flops` by matrix products, move `bytes` through a buffer, and fill outputs that depend on
    the inputs.
    """
    flops, moved = o["flops"], o["bytes"]
    left, right, out, source, target = _buffers()
    side = len(left)
    whole, rest = divmod(flops, 2 * side**3)
    for _ in range(whole):
        np.matmul(left, right, out=out)
    rows = round(rest / (2 * side**2))
    if rows:
        np.matmul(left[:rows], right, out=out[:rows])
    written = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in o["outputs"])
    left_over = max(0, moved - written) // 2  # a copy reads and writes
    while left_over > 0:
        size = min(left_over, STREAM_BYTES)
        np.copyto(target[:size], source[:size])
        left_over -= size
    value = _digest(inputs)
    return [
        np.full(shape, value if np.dtype(kind).kind == "f" else int(255 * abs(value)), kind)
        for shape, kind in o["outputs"]
    ]


def _digest(inputs: Sequence[Array]) -> float:
    """Mix a sample of every input, in order, into one number in (-1, 1)."""
    value = 0.5
    for array in inputs:
        sample = array.reshape(-1)[:: max(1, array.size // 64)]
        value = math.sin(
            1.7 * value
            + float(np.tanh(sample.astype(np.float64)).mean() if sample.size else 0.0)
            + 1.0
        )
    return value


@cache
def _buffers() -> tuple[Array, Array, Array, Array, Array]:
    """Return what a calibrated kernel works on."""
    side = 256  # of the matrices whose products it does its flops with
    left, right = (constant(name, (side, side), "float32", 1.0) for name in ("left", "right"))
    source = np.zeros(STREAM_BYTES, np.uint8)
    return left, right, np.empty_like(left), source, np.ones_like(source)


KERNELS: dict[str, Callable[..., Array | list[Array]]] = {
    "matmul": lambda o, x, y: x @ (y.swapaxes(-1, -2) if o.get("transpose") else y),
    "linear": _linear,
    "scores": _scores,
    "mix": _mix,
    "conv": _conv,
    "pool": _pool,
    "global_pool": lambda o, x: x.mean(axis=(2, 3)).reshape(o["shape"]),
    "unary": lambda o, x: UNARY[o["function"]](x),
    "binary": lambda o, x, y: BINARY[o["function"]](x, y),
    "rearrange": lambda o, x: UNARY["copy"](x.reshape(o["shape"])),
    "variable": lambda o, x: x,
    "batch_norm": lambda o, x, scale, shift: x * scale + shift,
    "exp_shifted": lambda o, x, top: library(x).exp(x - top),
    "mask": _mask,
    "rotate": _rotate,
    "sum": lambda o, *parts: reduce(operator.add, parts),
    "maximum": lambda o, *parts: reduce(BINARY["maximum"], parts),
    "over_rows": lambda o, x: OVER_ROWS[o["function"]](x),
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "concat": lambda o, *parts: library(parts[0]).concatenate(parts, axis=o["axis"]),
    "split": lambda o, x: [part.copy() for part in np.split(x, o["cuts"], axis=o["axis"])],
    "regrid": _regrid,
    "embedding": _embedding,
    "calibrated": _calibrated,
}
"""Every kernel by name."""

ON_HOST = ("pool", "split", "calibrated")
"""Kernels that numpy alone computes; of "conv", too, torch has another one."""
