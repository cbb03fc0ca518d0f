"""Shapes of an ONNX model: the package's inference with data propagation, and shape arithmetic
between its rounds.

Each round infers shapes, then evaluates the shape arithmetic that became known and
puts the results in as constants, until nothing new is found.

Shape arithmetic: the content of small integer tensors, computed from known shapes.

Exporters write `Reshape(x, Concat(Slice(Shape(x)), ...))`. Once a shape is known, such chains are
constants. Only the ops below are evaluated, by NumPy, on at most 4096 elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers.onnx_ops import DTYPES, SAME_SHAPE
from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from placeopt.instances.readers.model_ir import Shape

    Array = NDArray[Any]
    Attributes = dict[str, Any]


MAX_ROUNDS = 30


@dataclass
class Inferred:
    """What is known about the values of a model.

    Attributes
    ----------
    shapes : shape and element type of every value that has a tensor type, nested graphs included.
    data : content of the small integers that shape arithmetic computed.
    known : the same, and the small integers that the file holds.
    turns : of a Loop or Scan whose number of turns nothing tells; None where the user does not say
    either.
    """

    shapes: dict[str, tuple[Shape | None, str]] = field(default_factory=dict)
    data: dict[str, NDArray[Any]] = field(default_factory=dict)
    known: dict[str, NDArray[Any]] = field(default_factory=dict)
    turns: int | None = None


def infer(model: Any) -> Inferred:
    """Infer the shapes of a ModelProto without large tensors; the model itself is not changed."""
    import onnx

    work = onnx.ModelProto()
    work.CopyFrom(model)
    work.ir_version = max(
        work.ir_version, 8
    )  # before version 4 every initialiser had to be an input as well
    found = Inferred()
    _import_domains(onnx, work)
    known = found.known = _hide_contents(work)
    for _ in range(MAX_ROUNDS):
        inferred = _run(onnx, work)
        found.shapes = dict(_collect(inferred.graph))
        found.shapes.update(
            {name: (array.shape, str(array.dtype)) for name, array in found.data.items()}
        )
        fresh = _evaluate(work, found, known)
        fresh |= _extend(onnx, work, found)
        if not fresh:
            break
    return found


def _import_domains(onnx: Any, work: Any) -> None:
    """Declare the domains that nodes use: without a declaration the inference gives the whole model
    up.
    """
    declared = {entry.domain for entry in work.opset_import}
    for node in work.graph.node:
        if node.domain not in declared and node.domain not in ("", "ai.onnx"):
            declared.add(node.domain)
            work.opset_import.append(onnx.helper.make_opsetid(node.domain, 1))


def _run(onnx: Any, work: Any) -> Any:
    """Run the inference of the onnx package; a model it cannot follow keeps the shapes it
    declares.
    """
    for data_prop in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(
                work, check_type=False, strict_mode=False, data_prop=data_prop
            )
        except Exception:  # the package raises its own errors and RuntimeError alike
            continue
    return work


def _hide_contents(work: Any) -> dict[str, NDArray[Any]]:
    """Turn constants without content into inputs, Constant nodes into initialisers; return small
    integers.
    """
    import onnx
    from onnx import numpy_helper

    known: dict[str, NDArray[Any]] = {}
    graph = work.graph
    nodes = []
    for node in graph.node:
        tensor = constant_tensor(node) if node.op_type == "Constant" and node.output else None
        if tensor is None:
            nodes.append(node)
        else:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
    _replace(graph.node, nodes)
    declared = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if not has_content(tensor) and tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    _replace(graph.initializer, [tensor for tensor in graph.initializer if has_content(tensor)])
    for tensor in graph.initializer:
        small = math.prod(tensor.dims) <= (MAX_ELEMENTS if tensor.data_type in (6, 7, 9) else 1)
        if small and tensor.data_type in (1, 6, 7, 9, 11):
            try:
                known[tensor.name] = numpy_helper.to_array(tensor)
            except (ValueError, TypeError, RuntimeError) as error:
                raise InputError(
                    f"weight '{one_line(tensor.name)}': damaged content: {one_line(str(error))}"
                ) from error
    return known


def _replace(field: Any, kept: list[Any]) -> None:
    """Replace the messages of a repeated field by some of them (removing one by one takes quadratic
    time).
    """
    if len(kept) < len(field):
        copies = [type(message).FromString(message.SerializeToString()) for message in kept]
        del field[:]
        field.extend(copies)


def constant_tensor(node: Any) -> Any:
    """Return the value of a Constant node as a TensorProto, None if it has none."""
    import onnx
    from onnx import numpy_helper

    for attribute in node.attribute:
        if attribute.name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(attribute.t)
            return tensor
        if attribute.name == "sparse_value":
            tensor = onnx.TensorProto(data_type=attribute.sparse_tensor.values.data_type)
            tensor.dims.extend(attribute.sparse_tensor.dims)
            return tensor
        values: dict[str, Any] = {
            "value_int": lambda a=attribute: np.array(a.i, np.int64),
            "value_ints": lambda a=attribute: np.array(list(a.ints), np.int64),
            "value_float": lambda a=attribute: np.array(a.f, np.float32),
            "value_floats": lambda a=attribute: np.array(list(a.floats), np.float32),
        }
        if attribute.name in values:
            return numpy_helper.from_array(values[attribute.name]())
        if attribute.name in ("value_string", "value_strings"):
            tensor = onnx.TensorProto(data_type=onnx.TensorProto.STRING)
            tensor.dims.extend(
                [len(attribute.strings)] if attribute.name == "value_strings" else []
            )
            return tensor
    return None


def has_content(tensor: Any) -> bool:
    """Whether a TensorProto holds its elements (large and external ones do not)."""
    if tensor.data_location == 1:  # EXTERNAL
        return False
    if math.prod(tensor.dims) == 0:
        return True
    fields = (
        "raw_data",
        "float_data",
        "int32_data",
        "int64_data",
        "double_data",
        "uint64_data",
        "string_data",
    )
    return any(len(getattr(tensor, key)) for key in fields)


def _collect(graph: Any) -> Iterator[tuple[str, tuple[Shape | None, str]]]:
    """Yield (name, (shape, type)) of every value that a graph and its nested graphs declare."""
    for tensor in graph.initializer:
        yield tensor.name, (tuple(tensor.dims), DTYPES.get(tensor.data_type, "float32"))
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            yield value.name, tensor_type(value.type.tensor_type)
    for node in graph.node:
        for attribute in node.attribute:
            for nested in ([attribute.g] if attribute.HasField("g") else []) + list(
                attribute.graphs
            ):
                yield from _collect(nested)


def tensor_type(kind: Any) -> tuple[Shape | None, str]:
    """Return (shape, element type) of a TypeProto.Tensor."""
    dtype = DTYPES.get(kind.elem_type, "float32")
    if not kind.HasField("shape"):
        return None, dtype
    dims = (
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in kind.shape.dim
    )
    return tuple(dims), dtype


def plain_attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node that are numbers, texts, lists of them, or small tensors."""
    from onnx import numpy_helper

    found: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == 1:
            found[a.name] = a.f
        elif a.type == 2:
            found[a.name] = a.i
        elif a.type == 3:
            found[a.name] = a.s.decode("utf-8", "replace")
        elif a.type == 4 and has_content(a.t) and math.prod(a.t.dims) <= MAX_ELEMENTS:
            try:
                found[a.name] = numpy_helper.to_array(a.t)
            except (ValueError, TypeError, RuntimeError):
                continue
        elif a.type == 6:
            found[a.name] = list(a.floats)
        elif a.type == 7:
            found[a.name] = list(a.ints)
    return found


def _evaluate(work: Any, found: Inferred, known: dict[str, NDArray[Any]]) -> bool:
    """Replace shape arithmetic whose result is known by initialisers; return whether there was
    any.
    """
    from onnx import numpy_helper

    kept, fresh = [], False
    for node in work.graph.node:
        arrays = _outputs(node, found, known)
        if arrays is None or len(arrays) < len(node.output):
            kept.append(node)
            continue
        fresh = True
        for name, array in zip(node.output, arrays, strict=False):
            if name:
                known[name] = found.data[name] = array
                work.graph.initializer.append(
                    numpy_helper.from_array(np.ascontiguousarray(array), name)
                )
    if fresh:
        del work.graph.node[:]
        work.graph.node.extend(kept)
    return fresh


def _outputs(
    node: Any, found: Inferred, known: dict[str, NDArray[Any]]
) -> list[NDArray[Any]] | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("Shape", "Size"):
        shape = found.shapes.get(node.input[0] if node.input else "", (None, ""))[0]
        if shape is None or None in shape:
            return None
        return [shape_of(node.op_type, [d or 0 for d in shape], plain_attributes(node))]
    if not node.input or any(name and name not in known for name in node.input):
        return None
    return evaluate(node.op_type, [known.get(name) for name in node.input], plain_attributes(node))


def _extend(onnx: Any, work: Any, found: Inferred) -> bool:
    """Declare outputs that the package leaves open: of loops, and of ops outside the standard that
    keep a shape.
    """
    fresh = False
    for node in work.graph.node:
        shapes = {name: found.shapes.get(name, (None, ""))[0] for name in node.output if name}
        open_ones = [name for name, shape in shapes.items() if shape is None or None in shape[:1]]
        if not open_ones:
            continue
        told: dict[str, Shape] = {}
        if node.op_type in SAME_SHAPE and node.input and shapes.get(node.output[0]) is None:
            shape = found.shapes.get(node.input[0], (None, ""))[0]
            told = {} if shape is None else {node.output[0]: shape}
        elif node.op_type == "Loop":
            told = _loop_shapes(node, found)
        for name in (name for name in open_ones if name in told and told[name] != shapes[name]):
            dtype = (
                found.shapes[name][1] if name in found.shapes else found.shapes[node.input[0]][1]
            )
            element = next(code for code, known in DTYPES.items() if known == dtype)
            dims = [f"unknown_{i}" if d is None else d for i, d in enumerate(told[name])]
            work.graph.value_info.append(onnx.helper.make_tensor_value_info(name, element, dims))
            fresh = True
    return fresh


def _loop_shapes(node: Any, found: Inferred) -> dict[str, Shape]:
    """Return the shapes of a Loop's outputs that keep theirs.

    A carried value does where the body gives back the shape that it begins with. What is collected
    turn by turn has the number of turns as its first dimension.
    """
    body = next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)
    if body is None:
        return {}
    carried = list(node.input)[2:]
    told: dict[str, Shape] = {}
    turns = found.known.get(node.input[0]) if node.input and node.input[0] else None
    length = None if turns is None or not turns.size else max(0, int(turns.reshape(-1)[0]))
    for i, (name, inner) in enumerate(zip(node.output, list(body.output)[1:], strict=False)):
        shape = found.shapes.get(inner.name, (None, ""))[0]
        if shape is None:
            continue
        if i >= len(carried):
            told[name] = (length, *shape)
        elif shape == found.shapes.get(carried[i], (None, ""))[0]:
            told[name] = shape
    return told


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
        return np.array(math.prod(shape), np.int64)
    end = attrs.get("end")
    return np.array(list(shape)[attrs.get("start", 0) : end], np.int64)


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
    return np.array([start + i * step for i in range(count)], x[0].dtype)


def _constant_of_shape(x: Sequence[Any], attrs: Attributes) -> Array:
    value = attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full(_bounded(x[0].reshape(-1)), fill.reshape(-1)[0], fill.dtype)


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
            x[0].dtype,
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
