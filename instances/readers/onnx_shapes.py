"""Shapes of an ONNX model: the package's inference with data propagation, and shape arithmetic
between its rounds.

Each round infers shapes, then evaluates the shape arithmetic that became known (`shape_data`) and
puts the results in as constants, until nothing new is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers import shape_data
from placeopt.instances.readers.onnx_ops import DTYPES, SAME_SHAPE
from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.instances.readers.model_ir import Shape

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
        small = math.prod(tensor.dims) <= (
            shape_data.MAX_ELEMENTS if tensor.data_type in (6, 7, 9) else 1
        )
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
            "value_int": lambda a=attribute: np.array(a.i, dtype=np.int64),
            "value_ints": lambda a=attribute: np.array(list(a.ints), dtype=np.int64),
            "value_float": lambda a=attribute: np.array(a.f, dtype=np.float32),
            "value_floats": lambda a=attribute: np.array(list(a.floats), dtype=np.float32),
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
        elif a.type == 4 and has_content(a.t) and math.prod(a.t.dims) <= shape_data.MAX_ELEMENTS:
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
        return [shape_data.shape_of(node.op_type, [d or 0 for d in shape], plain_attributes(node))]
    if not node.input or any(name and name not in known for name in node.input):
        return None
    return shape_data.evaluate(
        node.op_type, [known.get(name) for name in node.input], plain_attributes(node)
    )


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
