"""ONNX models: ops with flops, bytes and parameters computed from shapes. Nothing in the file is
executed.

The weights are not read, only their types and shapes. Constants are propagated first, so that ops
on weights alone vanish; `fold` removes shape arithmetic, identities and dropout; `fuse` merges
batch norms and per-channel products and sums into the op before. Symbolic dimensions are fixed by
`dims`.

Shapes come in rounds: the package's inference with data propagation, then the shape arithmetic that
became known is evaluated and its results are put in as constants, until nothing new is found.
Exporters write `Reshape(x, Concat(Slice(Shape(x)), ...))`. Once a shape is known, such chains are
constants. Only the ops in `_ARITHMETIC` are evaluated, by the reference evaluator of the onnx
package, on at most 4096 elements.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.readers import op_costs
from placeopt.instances.readers.ir_graph import Reading, finish
from placeopt.instances.readers.model_ir import Cost, Model, Node, Shape, Value, stored_cost
from placeopt.instances.readers.onnx_file import MAX_DEPTH, load_model, nested_graphs, scope_of
from placeopt.model.arrays import Array
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import Data, one_line
from placeopt.model.graph import OpGraph

MAX_ELEMENTS = 4096

_ARITHMETIC = (
    "Identity Cast Gather Concat Slice Split Squeeze Unsqueeze Reshape Transpose Add Sub Mul Div "
    "Mod Pow Min Max Neg Abs Sqrt Floor Ceil Equal Less LessOrEqual Greater GreaterOrEqual Not And "
    "Or Where Range ConstantOfShape Expand Tile NonZero ReduceProd ReduceSum ReduceMax ReduceMin"
)
"""Ops of shape arithmetic: the only ones that are ever evaluated."""

_ELEMENTS: dict[str, Callable[..., Any]] = {
    "Range": lambda start, limit, step: np.ceil((limit - start) / step),
    "ConstantOfShape": lambda shape: math.prod(shape.ravel().tolist()),
    "Expand": lambda x, shape: math.prod(
        np.broadcast_shapes(x.shape, tuple(shape.ravel().tolist()))
    ),
    "Tile": lambda x, repeats: x.size * math.prod(repeats.ravel().tolist()),
}
"""How many elements an op would make of its inputs, where a few numbers can ask for any number."""

_OPS = op_costs.vocabulary("onnx")

SAME_SHAPE = frozenset(_OPS["same_shape"])
"""Ops outside the ONNX standard whose first output has the shape of their first input."""

DTYPES = dict(enumerate(_OPS["dtypes"], 1))
"""Element type by TensorProto.DataType."""


def read(
    path: Path, *, dims: Mapping[str, int] | str = "", max_bytes: int, **reading: Any
) -> OpGraph:
    """Read an ONNX model.

    Parameters
    ----------
    dims : values of symbolic dimensions, {"batch": 1} or "batch=1,seq=128"; a dimension without a
    name is
        called "INPUT:AXIS". Symbolic dimensions without a value count as 1, and ops that have them
        are flagged in `OpGraph.unshaped`.
    reading : see `Reading`.

    Raises
    ------
    InputError
        If the file is truncated or damaged, a value is undefined or made twice, or a dimension is
        unknown.
    """
    how = Reading(**reading)
    proto = load_model(path, max_bytes=max_bytes)
    _fix_dims(proto, parse_dims(dims))
    proto = _inline(proto)
    _separate(proto.graph, _own_names(proto.graph), {})
    found = infer(proto)
    found.turns = how.trip_count
    model = _translate(proto, found, path.stem.removeprefix("light_"), how.fold)
    return finish(model, how, _is_identity)


def parse_dims(dims: Mapping[str, int] | str) -> dict[str, int]:
    """Return dimensions by name; accepts the text "batch=1,seq=128".

    Raises
    ------
    InputError
        If a value is not a whole number >= 1.
    """
    if isinstance(dims, str):
        pairs = [part.partition("=") for part in dims.split(",") if part.strip()]
        table: Data = {name.strip(): value.strip() for name, _, value in pairs}
    elif isinstance(dims, Mapping):
        table = dict(dims)
    else:
        raise InputError(f"dims: expected a mapping or 'batch=1,seq=128', received {dims!r:.40}")
    result = {}
    for name, value in table.items():
        try:
            result[name] = int(value)
        except (TypeError, ValueError):
            result[name] = 0
        if result[name] < 1 or isinstance(value, float | bool):
            raise InputError(
                f"dimension {name}: expected a whole number >= 1 (--dim {name}=8), received "
                f"{value!r:.40}"
            )
    return result


def _symbols(proto: Any) -> dict[str, int]:
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = (value for value in proto.graph.input if value.name not in weights)
    return Counter(
        name
        for name, dim in _dimensions(inputs)
        if not dim.HasField("dim_value") or dim.dim_value < 0
    )


def _dimensions(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dimensions of tensors, each with its name, or what it is called without one."""
    for value in values:
        if value.type.HasField("tensor_type"):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                yield dim.dim_param or f"{value.name}:{axis}", dim


def _fix_dims(proto: Any, dims: dict[str, int]) -> None:
    """Give symbolic dimensions their values, wherever they are declared."""
    symbols = _symbols(proto)
    for name in dims:
        if name not in symbols:
            raise InputError(
                f"dimension '{one_line(name)}' is no symbolic dimension of the model's inputs; "
                f"{did_you_mean(name, symbols)}"
            )
    graph = proto.graph
    for name, dim in _dimensions((*graph.input, *graph.value_info, *graph.output)):
        if name in dims and not dim.HasField("dim_value"):
            dim.dim_value = dims[name]


def _inline(proto: Any) -> Any:
    """Replace calls of the model's own functions by their bodies."""
    if not proto.functions:
        return proto
    _refuse_expansion(proto)
    from onnx import inliner

    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:
        raise InputError(
            f"functions of the model cannot be inlined: {one_line(str(error))}"
        ) from error


def _refuse_expansion(proto: Any) -> None:
    """Refuse functions that call each other in a circle, or whose bodies expand to too many ops.

    Nested graphs count with the body that they stand in.
    """
    bodies = {(f.domain, f.name): list(_all_nodes(f.node)) for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}

    # Most ops that the calls of a model's own functions may expand to
    max_expanded = 20_000

    def size(nodes: list[Any], depth: int) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in bodies and key not in sizes:
                if depth > MAX_DEPTH:
                    raise InputError(
                        f"functions of the model call each other more than {MAX_DEPTH} deep, or in "
                        "a circle"
                    )
                sizes[key] = size(bodies[key], depth + 1)
            total += sizes.get(key, 1)
            if total > max_expanded:
                raise InputError(f"functions of the model expand to more than {max_expanded} ops")
        return total

    size(list(_all_nodes(proto.graph.node)), 0)


def _all_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for graph in nested_graphs(node):
            yield from _all_nodes(graph.node)


def _separate(graph: Any, taken: set[str], renamed: Mapping[str, str]) -> None:
    """Give the values of nested graphs names that no other graph has.

    What is inferred of a value is found by its name, and graphs beside each other may use the same.
    """
    for node in graph.node:
        for names in (node.input, node.output):
            if not renamed.keys().isdisjoint(names):
                names[:] = [renamed.get(name, name) for name in names]
        for inner in nested_graphs(node):
            own = _own_names(inner)
            clashing = sorted(own & taken)
            taken |= own
            inside = {**renamed, **{name: _fresh(name, taken) for name in clashing}}
            _separate(inner, taken, inside)
            for value in (*inner.input, *inner.initializer, *inner.value_info, *inner.output):
                value.name = inside.get(value.name, value.name)


def _own_names(graph: Any) -> set[str]:
    """Return the names of the values that a graph itself brings."""
    made = {name for node in graph.node for name in node.output}
    return made.union(item.name for item in (*graph.input, *graph.initializer)) - {""}


def _fresh(name: str, taken: set[str]) -> str:
    number = len(taken)
    while (fresh := f"{name}#{number}") in taken:
        number += 1
    taken.add(fresh)
    return fresh


def _translate(proto: Any, found: Inferred, name: str, fold: bool) -> Model:
    """Turn a ModelProto into the common form."""
    graph = proto.graph
    values = {value.name: _value(value.name, found) for value in graph.input} | _stored(graph)
    nodes = []
    for proto_node in graph.node:
        values |= {
            key: _value(key, found) for key in proto_node.output if key and key not in values
        }
        if proto_node.op_type != "Constant":
            nodes.append(_node(proto_node, values, found))
        else:
            for key in proto_node.output:
                values[key].constant = True
    for key in found.data.keys() & values.keys() if fold else ():  # computed by shape arithmetic
        if not values[key].constant:
            values[key].make_constant()
    model = Model(name, nodes, values, [value.name for value in graph.output])
    model.sort()
    return model


def _stored(graph: Any) -> dict[str, Value]:
    """Return the constants that a graph stores."""
    values = {}
    for tensor in graph.initializer:
        if min(tensor.dims, default=0) < 0:
            raise InputError(
                f"weight '{one_line(tensor.name)}': expected dimensions >= 0, received "
                f"{min(tensor.dims)}"
            )
        values[tensor.name] = _constant(tensor, tensor.dims)
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = _constant(sparse.values, sparse.dims)
    return values


def _value(name: str, found: Inferred) -> Value:
    """Return what inference found of a value."""
    return Value(*found.shapes.get(name, (None, "float32")))


def _constant(tensor: Any, dims: Any) -> Value:
    """Return what a TensorProto says of a weight."""
    return Value(tuple(dims), DTYPES.get(tensor.data_type, "float32"), constant=True)


def _node(proto_node: Any, values: MutableMapping[str, Value], found: Inferred) -> Node:
    attrs = plain_attributes(proto_node)
    rule, kept = rule_of(proto_node.op_type, proto_node.domain, attrs)
    inputs, outputs = list(proto_node.input), list(proto_node.output)
    name = proto_node.name or next((x for x in outputs if x), proto_node.op_type)
    module = proto_node.name.strip("/").rpartition("/")[0]
    path = scope_of(proto_node).replace(".", "/") or module
    node = Node(name, proto_node.op_type, rule, inputs, outputs, kept, path)
    if rule == "control":
        _add_bodies(node, proto_node, values, found)
    return node


def _is_identity(node: Node) -> bool:
    """Whether an op passes its first input on unchanged at inference."""
    if node.rule == "identity":
        return True
    return len([x for x in node.inputs if x]) == 1 and (
        node.rule == "nary" or node.type == "Concat"
    )


# --- control flow
# ---------------------------------------------------------------------------------------


def _add_bodies(node: Node, proto_node: Any, values: Mapping[str, Value], found: Inferred) -> None:
    """Charge an If, Loop or Scan for its nested graphs, and make what they capture its inputs.

    An If costs its dearest branch; a Loop its body times its trip count, a Scan its body times the
    length of the sequence. Where these are unknown the user's trip count is taken, else one turn
    (and the op is flagged, as it is where a shape in a body is unknown).
    """
    costs, doubt = [], False
    for body in nested_graphs(proto_node):
        cost, captured, sure = _body_cost(body, found)
        costs.append(cost)
        doubt |= not sure
        node.inputs += [name for name in captured if name in values and name not in node.inputs]
    known: int | None = 1
    if proto_node.op_type == "Loop":
        known = _num_turns(proto_node, found)
    elif proto_node.op_type == "Scan":
        known = _scan_length(proto_node, values)
    op_costs.charge_bodies(node, costs, op_costs.turns_of(node, known, found.turns))
    node.attrs["uncertain"] |= doubt


def _scan_length(proto_node: Any, values: Mapping[str, Value]) -> int | None:
    """Return the length of the first scanned sequence, None if it is unknown."""
    attrs = plain_attributes(proto_node)
    count = attrs.get("num_scan_inputs", 0)
    names = list(proto_node.input)[-count:] if count else []
    shape = values[names[0]].shape if names and names[0] in values else None
    axis = (attrs.get("scan_input_axes") or [0])[0]
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _body_cost(body: Any, found: Inferred) -> tuple[Cost, list[str], bool]:
    """Return the cost of one run of a nested graph, the values it captures from outside, and
    whether all that the cost rests on is known.
    """
    inside = {item.name: _value(item.name, found) for item in body.input}
    inside |= {tensor.name: _constant(tensor, tensor.dims) for tensor in body.initializer}
    captured: dict[str, None] = {}
    total, sure = Cost(0, 0), True
    for proto_node in body.node:
        inside |= {name: _value(name, found) for name in proto_node.output if name}
        if proto_node.op_type == "Constant":
            inside[proto_node.output[0]].constant = True
            continue
        scope = ChainMap({}, inside)
        _capture(proto_node.input, inside, scope, captured, found)
        node = _node(proto_node, scope, found)
        _capture(node.inputs, inside, scope, captured, found)  # what is nested deeper captures
        total = total.plus(op_costs.run_cost([node], scope))
        used = (scope[name] for name in (*node.inputs, *node.outputs[:1]) if name)
        sure &= not node.attrs.get("uncertain")
        sure &= all(value.known for value in used if value.real)  # others count or decide
    captured |= dict.fromkeys(item.name for item in body.output if item.name not in inside)
    weights = (value for value in inside.values() if value.constant)
    return total.plus(stored_cost(weights)), list(captured), sure


def _capture(
    names: Iterable[str],
    inside: Mapping[str, Value],
    scope: MutableMapping[str, Value],
    captured: dict[str, None],
    found: Inferred,
) -> None:
    """Note the names that a nested graph reads from outside, and what they are."""
    for name in names:
        if name and name not in inside:
            captured[name] = None
            scope.setdefault(name, _value(name, found))


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
    data: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)
    turns: int | None = None

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a value, None where it is not known."""
        return self.shapes.get(name, (None, ""))[0]


def infer(model: Any) -> Inferred:
    """Infer the shapes of a ModelProto without large tensors; the model itself is not changed."""
    import onnx

    work = onnx.ModelProto()
    work.CopyFrom(model)
    work.ir_version = max(
        work.ir_version, 8
    )  # before version 4 every initialiser had to be an input as well
    _import_domains(onnx, work)
    found = Inferred(known=_hide_contents(work))
    max_rounds = 30
    for _ in range(max_rounds):
        computed = {name: (x.shape, str(x.dtype)) for name, x in found.data.items()}
        _hand_down(work.graph, found.known)
        found.shapes = {**dict(_collect(_run(onnx, work).graph)), **computed}
        fresh = _evaluate(work, found)
        fresh |= _extend(onnx, work, found)
        if not fresh:
            break
    return found


def _hand_down(graph: Any, known: Mapping[str, Array]) -> None:
    """Store what is known of outer values in the nested graphs that read them: the inference of the
    package looks no further.
    """
    from onnx import numpy_helper

    for node in graph.node:
        for inner in nested_graphs(node):
            read = {name for reader in inner.node for name in reader.input}
            for name in sorted(known.keys() & read - _own_names(inner)):
                array = np.ascontiguousarray(known[name]).reshape(known[name].shape)
                inner.initializer.append(numpy_helper.from_array(array, name))
            _hand_down(inner, known)


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
        with suppress(Exception):  # the package raises its own errors and RuntimeError alike
            return onnx.shape_inference.infer_shapes(
                work, check_type=False, strict_mode=False, data_prop=data_prop
            )
    return work


def _hide_contents(work: Any) -> dict[str, Array]:
    """Turn constants without content into inputs, Constant nodes into initialisers; return small
    integers.
    """
    import onnx

    graph = work.graph
    _store_constants(graph)
    declared = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if not has_content(tensor) and tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    _replace(graph.initializer, [tensor for tensor in graph.initializer if has_content(tensor)])
    return {tensor.name: _content(tensor) for tensor in graph.initializer if _is_kept(tensor)}


def _store_constants(graph: Any) -> None:
    """Turn Constant nodes into initialisers."""
    nodes = []
    for node in graph.node:
        tensor = constant_tensor(node) if node.op_type == "Constant" and node.output else None
        if tensor is None:
            nodes.append(node)
        else:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
    _replace(graph.node, nodes)


def _is_kept(tensor: Any) -> bool:
    """Whether shapes may be computed from a tensor."""
    small = math.prod(tensor.dims) <= (MAX_ELEMENTS if tensor.data_type in (6, 7, 9) else 1)
    return small and tensor.data_type in (1, 6, 7, 9, 11)


def _content(tensor: Any) -> Array:
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"weight '{one_line(tensor.name)}': damaged content: {one_line(str(error))}"
        ) from error


def _replace(field: Any, kept: list[Any]) -> None:
    """Replace the messages of a repeated field by some of them (removing one by one takes quadratic
    time).
    """
    if len(kept) < len(field):
        del field[:]
        field.extend(kept)


def constant_tensor(node: Any) -> Any:
    """Return the value of a Constant node as a TensorProto, None if it has none."""
    import onnx
    from onnx import numpy_helper

    for attribute in node.attribute:
        name = attribute.name
        if name == "value":
            return attribute.t
        if name == "sparse_value":
            sparse = attribute.sparse_tensor
            return onnx.TensorProto(data_type=sparse.values.data_type, dims=sparse.dims)
        if name in _NUMBERS:
            number = onnx.helper.get_attribute_value(attribute)
            return numpy_helper.from_array(np.array(number, _NUMBERS[name]))
        if name in ("value_string", "value_strings"):
            dims = [len(attribute.strings)] if name == "value_strings" else []
            return onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=dims)
    return None


_NUMBERS: dict[str, type[np.generic]] = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
"""Type of the numbers of a Constant node, by the name of its attribute."""


def has_content(tensor: Any) -> bool:
    """Whether a TensorProto holds its elements (large and external ones do not)."""
    if tensor.data_location == 1:  # EXTERNAL
        return False
    if math.prod(tensor.dims) == 0:
        return True
    kinds = ("raw", "float", "int32", "int64", "double", "uint64", "string")
    return any(len(getattr(tensor, f"{kind}_data")) for kind in kinds)


def _collect(graph: Any) -> Iterator[tuple[str, tuple[Shape | None, str]]]:
    """Yield (name, (shape, type)) of every value that a graph and its nested graphs declare."""
    for tensor in graph.initializer:
        yield tensor.name, (tuple(tensor.dims), DTYPES.get(tensor.data_type, "float32"))
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            yield value.name, tensor_type(value.type.tensor_type)
    for node in graph.node:
        for nested in nested_graphs(node):
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


def plain_attributes(node: Any) -> Data:
    """Return the attributes of a node that are numbers, texts, lists of them, or small tensors."""
    from onnx import helper, numpy_helper

    found: Data = {}
    for a in node.attribute:
        if a.type in (1, 2, 6, 7):
            found[a.name] = helper.get_attribute_value(a)
        elif a.type == 3:
            found[a.name] = a.s.decode("utf-8", "replace")
        elif a.type == 4 and has_content(a.t) and math.prod(a.t.dims) <= MAX_ELEMENTS:
            with suppress(ValueError, TypeError, RuntimeError):
                found[a.name] = numpy_helper.to_array(a.t)
    return found


def _evaluate(work: Any, found: Inferred) -> bool:
    """Replace shape arithmetic whose result is known by initialisers; return whether there was
    any.
    """
    from onnx import numpy_helper

    version = next((x.version for x in work.opset_import if x.domain in ("", "ai.onnx")), 1)
    kept = []
    for node in work.graph.node:
        arrays = _outputs(node, found, version)
        if arrays is None or len(arrays) < len(node.output):
            kept.append(node)
            continue
        for name, array in zip(node.output, arrays, strict=False):
            if name:
                found.known[name] = found.data[name] = array
                work.graph.initializer.append(
                    numpy_helper.from_array(np.ascontiguousarray(array), name)
                )
    fresh = len(kept) < len(work.graph.node)
    _replace(work.graph.node, kept)
    return fresh


def _outputs(node: Any, found: Inferred, version: int) -> list[Array] | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("Shape", "Size"):
        return _measure(node, found)
    names = [name for name in node.input if name]
    if not node.input or not found.known.keys() >= set(names):
        return None
    return _evaluate_node(node, {name: found.known[name] for name in names}, version)


def _measure(node: Any, found: Inferred) -> list[Array] | None:
    """Return the output of a Shape or Size op, None where a dimension is unknown."""
    shape = found.shape(node.input[0]) if node.input else None
    if shape is None or None in shape:
        return None
    if node.op_type == "Size":
        return [np.array(math.prod(d or 0 for d in shape), np.int64)]
    attrs = plain_attributes(node)
    return [np.array(shape[attrs.get("start", 0) : attrs.get("end")], np.int64)]


def _extend(onnx: Any, work: Any, found: Inferred) -> bool:
    """Declare outputs that the package leaves open: of loops, and of ops outside the standard that
    keep a shape.
    """
    fresh = False
    for node in work.graph.node:
        shapes = {name: found.shape(name) for name in node.output if name}
        open_ones = [name for name, shape in shapes.items() if shape is None or None in shape[:1]]
        told = _told_shapes(node, found) if open_ones else {}
        for name in (name for name in open_ones if told.get(name, shapes[name]) != shapes[name]):
            dtype = found.shapes[name if name in found.shapes else node.input[0]][1]
            element = next(code for code, text in DTYPES.items() if text == dtype)
            work.graph.value_info.append(_declaration(onnx, name, element, told[name]))
            fresh = True
    return fresh


def _declaration(onnx: Any, name: str, element: int, shape: Shape) -> Any:
    """Return the ValueInfoProto of a tensor; unknown dimensions get a symbol each."""
    dims = [f"unknown_{i}" if d is None else d for i, d in enumerate(shape)]
    return onnx.helper.make_tensor_value_info(name, element, dims)


def _told_shapes(node: Any, found: Inferred) -> dict[str, Shape]:
    """Return the shapes of outputs that follow from what kind of op it is."""
    if node.op_type == "Loop":
        return _loop_shapes(node, found)
    shape = found.shape(node.input[0]) if node.input else None
    if shape and node.op_type in _PRODUCTS and len(node.input) > 1:
        columns = _columns(node, found)
        return {} if columns is None else {node.output[0]: (*shape[:-1], columns)}
    if shape is None or node.op_type not in SAME_SHAPE:
        return {}
    kept = node.output if node.op_type.startswith("Skip") else node.output[:1]  # with their sum
    if node.op_type == "GroupQueryAttention" and not any(node.input[1:3]):
        shape = _query_shape(shape, plain_attributes(node))
    return {name: shape for name in (*kept[:1], *kept[3:]) if name and found.shape(name) is None}


_PRODUCTS = ("MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "FusedMatMul")
"""Ops outside the standard whose output has the rows and the type of their first input."""


def _columns(node: Any, found: Inferred) -> int | None:
    """Return the columns of a product of rows with one matrix, None where they are unknown."""
    attrs = plain_attributes(node)
    matrix = found.shape(node.input[1]) or ()
    turned = attrs.get("transA") or attrs.get("transBatchA") or attrs.get("transBatchB")
    if "N" in attrs or turned or len(matrix) != 2:
        return attrs.get("N")
    return matrix[0 if attrs.get("transB") else 1]


def _query_shape(shape: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Return the shape of the queries where an input holds them beside their keys and values."""
    heads, others = attrs.get("num_heads", 1), 2 * attrs.get("kv_num_heads", 1)
    width = shape[-1] if shape else None
    return (*shape[:-1], None if width is None else width * heads // max(1, heads + others))


def _loop_shapes(node: Any, found: Inferred) -> dict[str, Shape]:
    """Return the shapes of a Loop's outputs that keep theirs.

    A carried value does where the body gives back the shape that it begins with. What is collected
    turn by turn has the number of turns as its first dimension.
    """
    body = next(nested_graphs(node), None)
    if body is None:
        return {}
    carried = list(node.input)[2:]
    told: dict[str, Shape] = {}
    for i, (name, inner) in enumerate(zip(node.output, list(body.output)[1:], strict=False)):
        shape = found.shape(inner.name)
        if shape is None:
            continue
        if i >= len(carried):
            told[name] = (_num_turns(node, found), *shape)
        elif shape == found.shape(carried[i]):
            told[name] = shape
    return told


def _num_turns(node: Any, found: Inferred) -> int | None:
    """Return the trip count of a Loop, None where it is unknown, or so large that a condition ends
    the loop before.
    """
    turns = found.known.get(node.input[0]) if node.input and node.input[0] else None
    if turns is None or not turns.size:
        return None
    count = int(turns.reshape(-1)[0])
    return None if count > op_costs.MAX_TURNS else max(0, count)


def _evaluate_node(node: Any, inputs: dict[str, Array], version: int) -> list[Array] | None:
    """Return the outputs of an op on known inputs by the reference evaluator of the onnx package,
    None where it is not shape arithmetic or too large.
    """
    if node.op_type not in _ARITHMETIC.split():
        return None
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    ends = (map(helper.make_empty_tensor_value_info, names) for names in (inputs, node.output))
    graph = helper.make_graph([node], node.op_type, *ends)
    elements = _ELEMENTS.get(node.op_type)
    try:
        with np.errstate(all="raise"):
            if elements and elements(*inputs.values()) > MAX_ELEMENTS:
                return None
            result = ReferenceEvaluator(graph, opsets={"": version}).run(None, inputs)
    except Exception:  # the package raises anything: left to the inference to report as unknown
        return None
    arrays = list(map(np.asarray, result))
    return arrays if all(map(_is_small, arrays)) else None


def _is_small(array: Array) -> bool:
    """Whether an array is shape arithmetic: few whole numbers, or one real one (not a small
    weight).
    """
    return array.dtype.kind in "fiub" and array.size <= (
        1 if array.dtype.kind == "f" else MAX_ELEMENTS
    )


def rule_of(op_type: str, domain: str, attrs: Data) -> tuple[str, Data]:
    """Return the cost rule of a node and the attributes that the rules look at.

    Parameters
    ----------
    attrs : the plain attributes of the node (ints, floats, texts and lists of them).
    """
    rule, found = op_costs.look_up(_OPS, op_type)
    if op_type == "Conv":
        found["groups"] = int(attrs.get("group", 1))
    if rule.endswith("attention"):
        found["heads"] = int(attrs.get("num_heads") or attrs.get("q_num_heads") or 1)
        if op_type == "Attention" and domain not in ("", "ai.onnx"):
            rule = "packed_attention"
        elif op_type == "Attention":
            found["past"] = 4
    elif rule == "matmul":
        found["trans_a"] = bool(attrs.get("transA", 0))
        found["trans_b"] = bool(attrs.get("transB", 0))
    elif rule == "pool":
        found["kernel"] = tuple(int(k) for k in attrs.get("kernel_shape", ()))
    elif rule == "einsum":
        found["equation"] = str(attrs.get("equation", ""))
    elif rule == "lrn":
        found["size"] = int(attrs.get("size", 5))
    return rule, found
