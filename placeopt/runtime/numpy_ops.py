"""Numpy kernels: what an op of a graph really does when it is executed.

A kernel takes the options of its step and its operands in order, and returns one array, or a list
where the op has several outputs. Kernels are deterministic: the same operands give the same bits on
every worker, so that a distributed run can be compared with a serial one.
"""

from __future__ import annotations

import math
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Options = Mapping[str, Any]

STREAM_BYTES = 4 << 20
"""Size of the buffer that a calibrated kernel streams its bytes through."""

MASKED = -1e9
"""Score of a position that attention must not see; finite, so that a fully masked block stays a
number."""

EPSILON = 1e-6


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
    out = np.matmul(x, weights)
    if bias:
        out += bias[0]
    return out


def _scores(o: Options, query: Array, key: Array) -> Array:
    """Scores of every head: (length, heads * width) x (keys, heads * width) -> (heads, length,
    keys).
    """
    heads = o["heads"]
    q = query.reshape(query.shape[0], heads, -1).transpose(1, 0, 2)
    k = key.reshape(key.shape[0], heads, -1).transpose(1, 2, 0)
    return np.matmul(q, k)


def _mix(o: Options, weight: Array, value: Array) -> Array:
    """Mix the values of every head: (heads, length, keys) x (keys, heads * width) -> (length, heads
    * width).
    """
    heads, length, _ = weight.shape
    v = value.reshape(value.shape[0], heads, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(np.matmul(weight, v).transpose(1, 0, 2)).reshape(length, -1)


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
    out = np.negative(np.abs(x))
    np.exp(out, out=out)
    return np.where(x >= 0, 1, out) / (1 + out)


def _gelu(x: Array) -> Array:
    return x * _sigmoid(x.dtype.type(1.702) * x)


UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "silu": lambda x: x * _sigmoid(x),
    "exp": lambda x: np.exp(np.minimum(x, 60)),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x) + x.dtype.type(EPSILON)),
    "square": np.square,
    "neg": np.negative,
    "abs": np.abs,
    "pow": lambda x: x * x * x,
    "mul_constant": lambda x: x * x.dtype.type(0.125),
    "copy": np.copy,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda x, y: x / (y + np.where(y < 0, -x.dtype.type(1e-30), x.dtype.type(1e-30))),
    "maximum": np.maximum,
    "scale": np.multiply,
    "bias_add": np.add,
}


def _mask(o: Options, x: Array) -> Array:
    """Scale scores and hide the keys after the query; `first` is query position minus key position
    at (0, 0).
    """
    queries, keys = x.shape[-2:]
    later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + o["first"]
    return np.where(later, x.dtype.type(MASKED), x * x.dtype.type(o["factor"]))


def _rotate(o: Options, x: Array) -> Array:
    """Multiply pairs of features, as complex numbers, by the rotation of their row's position."""
    pairs = x.shape[1] // 2
    position = np.arange(x.shape[0]) + o["first"]
    angle = position[:, None] * 10000.0 ** (-np.arange(pairs)[None, :] / pairs)
    complex_type = np.complex64 if x.dtype == np.float32 else np.complex128
    rotated = np.ascontiguousarray(x).view(complex_type) * np.exp(1j * angle).astype(complex_type)
    return rotated.view(x.dtype)


# --- reductions and joins
# -------------------------------------------------------------------------------


def _sum(o: Options, *parts: Array) -> Array:
    out = parts[0].copy() if len(parts) == 1 else parts[0] + parts[1]
    for part in parts[2:]:
        out += part
    return out


def _maximum(o: Options, *parts: Array) -> Array:
    out = parts[0].copy()
    for part in parts[1:]:
        np.maximum(out, part, out=out)
    return out


def _over_rows(o: Options, x: Array) -> Array:
    function = o["function"]
    if function == "max":
        return x.max(axis=-1, keepdims=True)
    if function == "mean":
        return x.mean(axis=-1, keepdims=True, dtype=x.dtype)
    if function == "square":  # mean of squares
        return np.einsum("...i,...i->...", x, x)[..., None] / x.dtype.type(x.shape[-1])
    if function == "exp":
        return np.exp(np.minimum(x, 60)).sum(axis=-1, keepdims=True)
    return x.sum(axis=-1, keepdims=True)


def _softmax(o: Options, x: Array, *total: Array) -> Array:
    if total:  # the sum of the exponentials of the whole row is given
        return np.exp(np.minimum(x, 60)) / total[0]
    out = np.exp(x - x.max(axis=-1, keepdims=True))
    out /= out.sum(axis=-1, keepdims=True)
    return out


def _rms_norm(o: Options, x: Array, *total: Array) -> Array:
    """Divide by the root of the mean square; `total` is the sum of the mean squares of `parts`
    blocks of a row.
    """
    mean = total[0] / x.dtype.type(o["parts"]) if total else _over_rows({"function": "square"}, x)
    return x / np.sqrt(mean + x.dtype.type(EPSILON))


def _layer_norm(o: Options, x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(_over_rows({"function": "square"}, centred) + x.dtype.type(EPSILON))


def _regrid(o: Options, *parts: Array) -> Array:
    """Cut one block out of the old blocks that it overlaps, `down` x `across` of them."""
    across = o["across"]
    lines = [np.concatenate(parts[i : i + across], axis=1) for i in range(0, len(parts), across)]
    whole = np.concatenate(lines, axis=0) if len(lines) > 1 else lines[0]
    height, width = o["shape"]
    top, left = o["offset"]
    block = whole[top : top + height, left : left + width]
    missing = (height - block.shape[0], width - block.shape[1])
    return np.pad(block, ((0, missing[0]), (0, missing[1]))) if any(missing) else np.array(block)


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
    "matmul": lambda o, x, y: np.matmul(x, y.swapaxes(-1, -2) if o.get("transpose") else y),
    "linear": _linear,
    "scores": _scores,
    "mix": _mix,
    "conv": _conv,
    "pool": _pool,
    "global_pool": lambda o, x: x.mean(axis=(2, 3), dtype=x.dtype).reshape(o["shape"]),
    "unary": lambda o, x: UNARY[o["function"]](x),
    "binary": lambda o, x, y: BINARY[o["function"]](x, y),
    "rearrange": lambda o, x: x.reshape(o["shape"]).copy(),
    "variable": lambda o, x: x,
    "batch_norm": lambda o, x, scale, shift: x * scale + shift,
    "exp_shifted": lambda o, x, top: np.exp(x - top),
    "mask": _mask,
    "rotate": _rotate,
    "sum": _sum,
    "maximum": _maximum,
    "over_rows": _over_rows,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "concat": lambda o, *parts: np.concatenate(parts, axis=o["axis"]),
    "split": lambda o, x: [part.copy() for part in np.split(x, o["cuts"], axis=o["axis"])],
    "regrid": _regrid,
    "embedding": _embedding,
    "calibrated": _calibrated,
}
"""Every kernel by name."""
