"""ONNX models: ops with flops, bytes and parameters computed from shapes. Nothing in the file is
executed.

The weights are not read, only their types and shapes. Constants are propagated first, so that ops
on weights alone vanish; `fold` removes shape arithmetic, identities and dropout; `fuse` merges
batch norms and per-channel products and sums into the op before. Symbolic dimensions are fixed by
`dims`.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers import op_costs
from placeopt.instances.readers.ir_graph import finish
from placeopt.instances.readers.model_ir import Cost, Model, Node, Value, stored_cost
from placeopt.instances.readers.onnx_file import MAX_DEPTH, load_model, nested_graphs, scope_of
from placeopt.instances.readers.onnx_ops import DTYPES, rule_of
from placeopt.instances.readers.onnx_shapes import Inferred, infer, plain_attributes
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping
    from pathlib import Path

    from placeopt.model.graph import OpGraph


def read(
    path: Path,
    *,
    dims: Mapping[str, int] | str = "",
    fuse: bool = True,
    fold: bool = True,
    shared: str = "colocate",
    trip_count: int | None = None,
    max_bytes: int,
) -> OpGraph:
    """Read an ONNX model.

    Parameters
    ----------
    dims : values of symbolic dimensions, {"batch": 1} or "batch=1,seq=128"; a dimension without a
    name is
        called "INPUT:AXIS". Symbolic dimensions without a value count as 1, and ops that have them
        are flagged in `OpGraph.unshaped`.
    fuse : merge batch norms and their remnants, and additions of a bias, into the op before.
    fold : remove shape arithmetic, identity and dropout ops.
    shared : "colocate" keeps a weight matrix used by several ops once and colocates them, "copy"
    copies it.
    trip_count : turns of every Loop or Scan whose number of turns the file does not tell; without
    it such an op is costed
        for one turn and flagged in `OpGraph.unshaped`.

    Raises
    ------
    InputError
        If the file is truncated or damaged, a value is undefined or made twice, or a dimension is
        unknown.
    """
    proto = load_model(path, max_bytes=max_bytes)
    _fix_dims(proto, parse_dims(dims))
    proto = _inline(proto)
    found = infer(proto)
    found.turns = op_costs.check_turns(trip_count)
    model = _translate(proto, found, proto.graph.name or path.stem, fold)
    model.name = path.stem.removeprefix("light_")
    return finish(model, fuse=fuse, fold=fold, shared=shared, is_identity=_is_identity)


def symbolic_dims(path: Path, *, max_bytes: int = 2**40) -> dict[str, int]:
    """Return the dimensions of the model's inputs that have no value, by name, with the number of
    their uses.
    """
    return _symbols(load_model(path, max_bytes=max_bytes))


def parse_dims(dims: Mapping[str, int] | str) -> dict[str, int]:
    """Return dimensions by name; accepts the text "batch=1,seq=128".

    Raises
    ------
    InputError
        If a value is not a whole number >= 1.
    """
    if isinstance(dims, str):
        pairs = [part.partition("=") for part in dims.split(",") if part.strip()]
        table: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    else:
        table = dict(dims)
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
    found: dict[str, int] = {}
    for value in proto.graph.input:
        if value.name in weights or not value.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                name = dim.dim_param or f"{value.name}:{axis}"
                found[name] = found.get(name, 0) + 1
    return found


def _fix_dims(proto: Any, dims: dict[str, int]) -> None:
    """Give symbolic dimensions their values, wherever they are declared."""
    symbols = _symbols(proto)
    for name in dims:
        if name not in symbols:
            hint = did_you_mean(name, symbols)
            raise InputError(
                f"dimension '{one_line(name)}' is no symbolic dimension of the model's inputs; "
                f"{hint}"
            )
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        if not value.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            name = dim.dim_param or f"{value.name}:{axis}"
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


def _translate(proto: Any, found: Inferred, name: str, fold: bool) -> Model:
    """Turn a ModelProto into the common form."""
    graph = proto.graph
    values = {value.name: _value(value.name, found) for value in graph.input} | _stored(graph)
    nodes = []
    for proto_node in graph.node:
        fresh = (key for key in proto_node.output if key and key not in values)
        values |= {key: _value(key, found) for key in fresh}
        if proto_node.op_type != "Constant":
            nodes.append(_node(proto_node, values, found))
        else:
            for key in proto_node.output:
                values[key].constant = True
    if fold:
        _keep_computed(values, found)
    model = Model(name, nodes, values, [value.name for value in graph.output])
    model.sort()
    return model


def _keep_computed(values: dict[str, Value], found: Inferred) -> None:
    """Make constants of the values that shape arithmetic computed."""
    for key, array in found.data.items():
        if key in values and not values[key].constant:
            values[key].constant, values[key].learned, values[key].data = True, False, array


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
    shape, dtype = found.shapes.get(name, (None, "float32"))
    return Value(shape, dtype)


def _constant(tensor: Any, dims: Any) -> Value:
    """Return what a TensorProto says of a weight."""
    return Value(tuple(dims), DTYPES.get(tensor.data_type, "float32"), constant=True)


def _node(proto_node: Any, values: MutableMapping[str, Value], found: Inferred) -> Node:
    attrs = plain_attributes(proto_node)
    rule, kept = rule_of(proto_node.op_type, proto_node.domain, attrs)
    inputs, outputs = list(proto_node.input), list(proto_node.output)
    name = proto_node.name or next((x for x in outputs if x), proto_node.op_type)
    path = scope_of(proto_node).replace(".", "/") or "/".join(
        proto_node.name.strip("/").split("/")[:-1]
    )
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
    (and the op is flagged).
    """
    costs = []
    for body in nested_graphs(proto_node):
        cost, captured = _body_cost(body, found)
        costs.append(cost)
        node.inputs += [name for name in captured if name in values and name not in node.inputs]
    known: int | None = 1
    if proto_node.op_type == "Loop":
        trips = found.known.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        known = None if trips is None else max(0, int(trips.reshape(-1)[0]))
    elif proto_node.op_type == "Scan":
        known = _scan_length(proto_node, values)
    op_costs.charge_bodies(node, costs, op_costs.turns_of(node, known, found.turns))


def _scan_length(proto_node: Any, values: Mapping[str, Value]) -> int | None:
    """Return the length of the first scanned sequence, None if it is unknown."""
    count = next((a.i for a in proto_node.attribute if a.name == "num_scan_inputs"), 0)
    names = list(proto_node.input)[-count:] if count else []
    shape = values[names[0]].shape if names and names[0] in values else None
    axes = next((list(a.ints) for a in proto_node.attribute if a.name == "scan_input_axes"), [])
    axis = axes[0] if axes else 0
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _body_cost(body: Any, found: Inferred) -> tuple[Cost, list[str]]:
    """Return the cost of one run of a nested graph, and the values it captures from outside."""
    inside = {item.name: _value(item.name, found) for item in body.input}
    inside |= {tensor.name: _constant(tensor, tensor.dims) for tensor in body.initializer}
    captured: dict[str, None] = {}
    total = Cost(0, 0)
    for proto_node in body.node:
        inside |= {name: _value(name, found) for name in proto_node.output if name}
        if proto_node.op_type == "Constant":
            inside[proto_node.output[0]].constant = True
            continue
        scope = ChainMap({}, inside)
        _capture(proto_node.input, inside, scope, captured, found)
        node = _node(proto_node, scope, found)
        _capture(node.inputs, inside, scope, captured, found)  # what is nested deeper captures
        if all(scope[name].shape is not None for name in (*node.inputs, *node.outputs) if name):
            total = total.plus(op_costs.cost(node, scope))
    captured |= dict.fromkeys(item.name for item in body.output if item.name not in inside)
    weights = (value for value in inside.values() if value.constant)
    return total.plus(stored_cost(weights)), list(captured)


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
