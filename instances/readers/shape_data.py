"""Shape arithmetic: the content of small integer tensors, computed from known shapes.

Exporters write `Reshape(x, Concat(Slice(Shape(x)), ...))`. Once a shape is known, such chains are
constants. Only the ops below are evaluated, by NumPy, on at most 4096 elements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Attributes = dict[str, Any]

MAX_ELEMENTS = 4096

_NUMPY = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    11: np.float64,
    10: np.float16,
}


def evaluate(op_type: str, inputs: Sequence[Array | None], attrs: Attributes) -> list[Array] | None:
    """Return the outputs of an op on known inputs, None where it is not known or too large."""
    function = _OPS.get(op_type)
    if function is None:
        return None
    try:
        with np.errstate(all="ignore"):
            result = function(inputs, attrs)
    except (
        ValueError,
        IndexError,
        TypeError,
        KeyError,
        ZeroDivisionError,
        OverflowError,
        MemoryError,
    ):
        return None  # malformed shape arithmetic: left to the shape inference to report as unknown
    if result is None:
        return None
    arrays = [np.asarray(a) for a in (result if isinstance(result, list) else [result])]
    return arrays if all(_is_small(a) for a in arrays) else None


def _is_small(array: Array) -> bool:
    """Whether an array is shape arithmetic: few whole numbers, or one real one (not a small
    weight).
    """
    return array.size <= (1 if array.dtype.kind == "f" else MAX_ELEMENTS)


def shape_of(op_type: str, shape: Sequence[int], attrs: Attributes) -> Array:
    """Return the output of Shape or Size on a tensor of a known shape."""
    if op_type == "Size":
        return np.array(math.prod(shape), dtype=np.int64)
    end = attrs.get("end")
    return np.array(list(shape)[attrs.get("start", 0) : end], dtype=np.int64)


def _axes(inputs: Sequence[Array | None], attrs: Attributes, position: int = 1) -> list[int] | None:
    if len(inputs) > position:
        given = inputs[position]
        if given is not None:
            return [int(a) for a in given.reshape(-1)]
    axes = attrs.get("axes")
    return None if axes is None else [int(a) for a in axes]


def _bounded(shape: Sequence[int]) -> tuple[int, ...]:
    result = tuple(int(d) for d in shape)
    if min(result, default=0) < 0 or math.prod(result) > MAX_ELEMENTS:
        raise ValueError("too large")
    return result


def _slice(x: Sequence[Any], attrs: Attributes) -> Array:
    data = x[0]
    starts = x[1].tolist() if len(x) > 1 else list(attrs["starts"])
    ends = x[2].tolist() if len(x) > 2 else list(attrs["ends"])
    axes = _axes(x, attrs, 3) or list(range(len(starts)))
    steps = x[4].tolist() if len(x) > 4 and x[4] is not None else [1] * len(starts)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        low = -data.shape[axis] - 1
        stop = None if step < 0 and end < low else max(end, low)
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]  # type: ignore[no-any-return]


def _unsqueeze(x: Sequence[Any], attrs: Attributes) -> Array:
    axes = _axes(x, attrs) or []
    rank = x[0].ndim + len(axes)
    result = x[0]
    for axis in sorted(a % rank for a in axes):
        result = np.expand_dims(result, axis)
    return result  # type: ignore[no-any-return]


def _squeeze(x: Sequence[Any], attrs: Attributes) -> Array:
    axes = _axes(x, attrs)
    return np.squeeze(x[0], axis=None if axes is None else tuple(axes))


def _reshape(x: Sequence[Any], attrs: Attributes) -> Array:
    dims = [int(d) for d in x[1].reshape(-1)]
    if not attrs.get("allowzero", 0):
        dims = [x[0].shape[i] if d == 0 else d for i, d in enumerate(dims)]
    return x[0].reshape(dims)  # type: ignore[no-any-return]


def _divide(x: Sequence[Any], _: Attributes) -> Array:
    if x[0].dtype.kind in "iu":
        if (x[1] == 0).any():
            raise ZeroDivisionError
        quotient = np.abs(x[0]) // np.abs(x[1])  # ONNX rounds towards zero
        return (np.sign(x[0]) * np.sign(x[1]) * quotient).astype(x[0].dtype)  # type: ignore[no-any-return]
    return x[0] / x[1]  # type: ignore[no-any-return]


def _cast(x: Sequence[Any], attrs: Attributes) -> Array | None:
    target = _NUMPY.get(int(attrs["to"]))
    return None if target is None else x[0].astype(target)


def _range(x: Sequence[Any], _: Attributes) -> Array:
    start, limit, step = (a.reshape(()).item() for a in x)
    count = max(0, math.ceil((limit - start) / step))
    _bounded([count])
    return np.array([start + i * step for i in range(count)], dtype=x[0].dtype)


def _constant_of_shape(x: Sequence[Any], attrs: Attributes) -> Array:
    value = attrs.get("value")
    fill = np.zeros(1, dtype=np.float32) if value is None else np.asarray(value)
    return np.full(_bounded(x[0].reshape(-1)), fill.reshape(-1)[0], dtype=fill.dtype)


def _expand(x: Sequence[Any], _: Attributes) -> Array:
    shape = np.broadcast_shapes(x[0].shape, _bounded(x[1].reshape(-1)))
    return np.broadcast_to(x[0], _bounded(shape)).copy()


def _tile(x: Sequence[Any], _: Attributes) -> Array:
    repeats = [int(r) for r in x[1].reshape(-1)]
    _bounded([max(1, d) * r for d, r in zip(x[0].shape, repeats, strict=True)])
    return np.tile(x[0], repeats)


def _split(x: Sequence[Any], attrs: Attributes) -> list[Array]:
    axis = int(attrs.get("axis", 0))
    sizes = _axes(x, {}) or attrs.get("split")
    if sizes is None:
        return list(np.array_split(x[0], int(attrs["num_outputs"]), axis=axis))
    return list(np.split(x[0], np.cumsum(list(sizes))[:-1], axis=axis))


def _reduce(function: Callable[..., Any]) -> Callable[[Sequence[Any], Attributes], Array]:
    def run(x: Sequence[Any], attrs: Attributes) -> Array:
        axes = _axes(x, attrs)
        keep = bool(attrs.get("keepdims", 1))
        return np.asarray(
            function(x[0], axis=None if axes is None else tuple(axes), keepdims=keep),
            dtype=x[0].dtype,
        )

    return run


def _fold(function: Callable[[Any, Any], Any]) -> Callable[[Sequence[Any], Attributes], Array]:
    def run(x: Sequence[Any], _: Attributes) -> Array:
        result = x[0]
        for other in x[1:]:
            result = function(result, other)
        return result  # type: ignore[no-any-return]

    return run


_OPS: dict[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "Identity": lambda x, _: x[0],
    "Cast": _cast,
    "Gather": lambda x, a: np.take(x[0], x[1].astype(np.int64), axis=int(a.get("axis", 0))),
    "Concat": lambda x, a: np.concatenate(list(x), axis=int(a["axis"])),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Transpose": lambda x, a: np.transpose(x[0], a.get("perm")),
    "Add": _fold(np.add),
    "Sub": _fold(np.subtract),
    "Mul": _fold(np.multiply),
    "Div": _divide,
    "Mod": lambda x, a: np.fmod(x[0], x[1]) if a.get("fmod") else np.mod(x[0], x[1]),
    "Pow": lambda x, _: np.power(x[0], x[1]).astype(x[0].dtype),
    "Min": _fold(np.minimum),
    "Max": _fold(np.maximum),
    "Neg": lambda x, _: -x[0],
    "Abs": lambda x, _: np.abs(x[0]),
    "Sqrt": lambda x, _: np.sqrt(x[0]),
    "Floor": lambda x, _: np.floor(x[0]),
    "Ceil": lambda x, _: np.ceil(x[0]),
    "Equal": lambda x, _: x[0] == x[1],
    "Less": lambda x, _: x[0] < x[1],
    "LessOrEqual": lambda x, _: x[0] <= x[1],
    "Greater": lambda x, _: x[0] > x[1],
    "GreaterOrEqual": lambda x, _: x[0] >= x[1],
    "Not": lambda x, _: ~x[0],
    "And": lambda x, _: x[0] & x[1],
    "Or": lambda x, _: x[0] | x[1],
    "Where": lambda x, _: np.where(x[0], x[1], x[2]),
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "NonZero": lambda x, _: np.stack(np.nonzero(x[0])).astype(np.int64),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}
