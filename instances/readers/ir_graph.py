"""From a `Model` to an OpGraph: constants propagated, identities folded, batch-norm remnants fused,
shapes checked; then costs, weights and tensors.

Conventions (shared with the generators): a multiply-add is 2 flops; bytes moved are the inputs,
weights and outputs of an op; weights stay resident on the op that uses them; inputs of the model
are not ops.

Where a shape is unknown: an unknown dimension counts as 1; an op that has tensors of unknown rank
moves as many bytes as the median op of its type (of any type, where no other has a known shape) and
does no flops, for those would be another op's; such tensors have the median size. All of these are
flagged in `OpGraph.unshaped`.

A damaged file, whose shapes contradict each other, is refused before its costs are taken for real.
Only what holds for every op of a kind is checked, and only where both sides are known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from placeopt.instances.readers import op_costs
from placeopt.instances.readers.model_ir import Cost, Model, Node, Shape, Value, Values, agree
from placeopt.model.arrays import MAX_SUM, by_key
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import one_line
from placeopt.model.graph import UNKNOWN, OpGraph

Check = Callable[[Node, list[Shape | None], Shape], bool]

DEFAULT_BYTES = 2**20
"""Bytes of a tensor where no tensor of the model has a known shape."""

_SAME_ELEMENTS = (
    "Reshape Flatten Squeeze Unsqueeze Transpose view _unsafe_view reshape flatten unflatten "
    "squeeze unsqueeze permute transpose t contiguous clone"
)

_SAME_SHAPE = (
    "Relu ReLU relu Sigmoid sigmoid Tanh tanh Softmax SoftMax softmax _softmax Gelu gelu silu Erf "
    "erf Exp exp Sqrt sqrt LeakyRelu leaky_relu Elu elu Clip Clamp clamp HardSwish HSwish "
    "hardswish hardtanh BatchNormalization batch_norm BatchNormInference LRN Dropout dropout "
    "layer_norm LayerNormalization"
)

_BROADCAST = (
    "Add Sub Mul Div Sum Max Min Mean add sub mul div Multiply Subtract Divide Maximum Minimum"
)

_JOIN = "Concat cat concat stack"

_OTHER_PRODUCTS = (
    "MatMulNBits MatMulBnb4 FusedMatMul FullyConnected _scaled_mm _int_mm _weight_int8pack_mm "
    "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _dyn_quant_matmul_4bit"
)

VIEWS = frozenset({"view", "layout", "identity", "dequantize"})
"""Rules that keep the stored content of a constant they are applied to (of their first input)."""

POINTWISE = frozenset({"elementwise", "nary", "sigmoid"})
"""Rules that compute a constant of the same size, such as scale and zero point of a quantised
weight."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of all readers of models.

    Attributes
    ----------
    fuse : merge batch norms and their remnants, and additions of a bias, into the op before.
    fold : remove shape arithmetic, identity and dropout ops.
    shared : "colocate" keeps a weight matrix that several ops use once, with the first, and all of
    them on its device; "copy": each op keeps a copy. Small constants (vectors, scalars) are always
    copied.
    trip_count : turns of every loop whose number of turns the file does not tell; without it such
    an op is costed for one turn and flagged in `OpGraph.unshaped`.
    """

    fuse: bool = True
    fold: bool = True
    shared: str = "colocate"
    trip_count: int | None = None

    def __post_init__(self) -> None:
        check_choice("option shared", self.shared, ("colocate", "copy"))
        object.__setattr__(self, "trip_count", op_costs.check_turns(self.trip_count))


def finish(
    model: Model,
    how: Reading,
    is_identity: Callable[[Node], bool] = lambda n: n.rule == "identity",
    *,
    free_views: bool = False,
) -> OpGraph:
    """Check the shapes of a translated model, run the passes over it and turn it into a graph.

    Parameters
    ----------
    free_views : ops that only look at their source in another way (a framework's views) take no
    time at all, not even a launch, and stay on its device.
    """
    check_shapes(model)
    propagate_constants(model)
    if how.fold:
        fold_identities(model, is_identity)
        drop_dead(model)
    if how.fuse:
        fuse_affine(model)
    if not model.nodes:
        raise InputError("the model has no op that depends on an input")
    costs, unshaped = _costs(model)
    views = [free_views and node.rule == "view" for node in model.nodes]
    resident, parameters, colocation = _weights(model, views, tie=how.shared == "colocate")
    tensors, shapes = _tensors(model)
    _refuse_overflow(model, costs, resident, parameters, tensors)
    return OpGraph.from_tensors(
        model.name,
        distinct_names([node.name for node in model.nodes]),
        tensors,
        op_types=tuple(node.type for node in model.nodes),
        layer=tuple(node.layer for node in model.nodes),
        flops=[cost.flops for cost in costs],
        bytes_moved=[cost.bytes_moved for cost in costs],
        resident=resident,
        parameters=parameters,
        colocation=colocation,
        unshaped=unshaped,
        measured_kinds=("*",) if any(views) else (),
        measured=np.where(np.array(views)[:, None], 0, UNKNOWN) if any(views) else None,
        shapes=shapes,
    )


def _sources(model: Model, views: list[bool]) -> list[tuple[int, int]]:
    """Return (view, op that makes what it looks at) of the views whose source is no input or
    constant.
    """
    maker = {name: i for i, node in enumerate(model.nodes) for name in node.outputs if name}
    return [
        (i, maker[node.inputs[0]])
        for i, (node, view) in enumerate(zip(model.nodes, views, strict=True))
        if view and node.inputs and node.inputs[0] in maker
    ]


def _refuse_overflow(
    model: Model,
    costs: list[Cost],
    resident: list[int],
    parameters: list[int],
    tensors: list[tuple[int, int, list[int]]],
) -> None:
    """Refuse sizes beyond 2^62, which only a damaged file has, and name the op."""
    numbers = [
        max(c.flops, c.bytes_moved, r, p)
        for c, r, p in zip(costs, resident, parameters, strict=True)
    ]
    for producer, size, _ in tensors:
        numbers[producer] = max(numbers[producer], size)
    for node, number in zip(model.nodes, numbers, strict=True):
        if number >= MAX_SUM:
            raise InputError(
                f"op '{one_line(node.name)}': a size or cost passes 2^62; check the dimensions of "
                "its tensors"
            )


def _costs(model: Model) -> tuple[list[Cost], list[bool]]:
    """Return the cost of every node, and whether it rests on an unknown shape."""
    read = {name for node in model.nodes for name in node.inputs} | set(model.outputs)
    found = [_cost(model, node, read) for node in model.nodes]
    typical = _typical_bytes(found)
    alike = by_key(
        (node.type, cost.bytes_moved)
        for node, (cost, sure) in zip(model.nodes, found, strict=True)
        if cost is not None and sure
    )
    return [
        cost or Cost(0, _median(alike.get(node.type, []), typical))
        for node, (cost, _) in zip(model.nodes, found, strict=True)
    ], [not sure for _, sure in found]


def _typical_bytes(found: list[tuple[Cost | None, bool]]) -> int:
    """Return the median of the bytes that ops move, of those without a doubt if there are any."""
    sound = [cost for cost, sure in found if cost is not None and sure]
    sound = sound or [cost for cost, _ in found if cost is not None]
    return _median([cost.bytes_moved for cost in sound if cost.bytes_moved], DEFAULT_BYTES)


def _cost(model: Model, node: Node, read: set[str]) -> tuple[Cost | None, bool]:
    """Return the cost of a node, None where a rank is unknown, and whether all it rests on is
    known.
    """
    made = [name for name in node.outputs if name in read] or node.outputs[:1]
    used = [model.values[name] for name in (*node.inputs, *made) if name]
    sure = all(value.known for value in used) and not node.attrs.get("uncertain")
    if sure and node.rule == "elementwise" and node.extra is None:  # or unknown: maybe a product
        read_whole = (value for value in used if _is_parameter(value, value.constant))
        sure = all(_spreads(value.shape, used[-1].shape) for value in read_whole)
    if all(value.shape is not None for value in used):
        return op_costs.cost(node, model.values), sure
    return None if node.extra is None else Cost(node.extra.flops, node.extra.bytes_moved), sure


def _spreads(read: Shape | None, made: Shape | None) -> bool:
    """Whether what is read is spread over what is made; a vector is along any axis."""
    ours, over = (read or ())[::-1], (made or ())[::-1]
    pairs = zip(ours, over, strict=False)
    return len(ours) < 2 or (len(ours) <= len(over) and all(a in (1, b) for a, b in pairs))


def _median(values: list[int], default: int) -> int:
    return sorted(values)[len(values) // 2] if values else default


def _weights(
    model: Model, views: list[bool], *, tie: bool
) -> tuple[list[int], list[int], list[int]]:
    """Charge every stored constant to the ops that use it; return resident bytes, parameters and
    groups.

    `views` share the device of what they look at anyway.
    """
    resident, parameters = map(
        list, zip(*(_merged(model, node) for node in model.nodes), strict=True)
    )
    users, learned = _users(model)
    together = _sources(model, views)
    for root, by in users.items():
        value, ops = model.values[root], list(by)
        if learned[root]:
            parameters[ops[0]] += value.elements
        if tie and any(by.values()):
            resident[ops[0]] += value.bytes
            together += [(ops[0], i) for i in ops[1:]]
        else:
            for i in ops:
                resident[i] += value.bytes
    return resident, parameters, _groups(len(model.nodes), together)


def _merged(model: Model, node: Node) -> tuple[int, int]:
    """Return bytes and parameters of what an op holds besides constants: scales and shifts that
    were fused into it, and a nested graph.
    """
    resident, parameters = 0, max(0, node.scale) + max(0, node.shift)
    if node.rule == "batch_norm" and max(node.scale, node.shift) >= 0:
        resident = 4 * parameters
    elif node.shift > 0 and not _has_bias(model, node):
        resident = 4 * node.shift
    nested = node.extra or Cost(0, 0)
    return resident + nested.resident, parameters + nested.parameters


def _groups(count: int, together: list[tuple[int, int]]) -> list[int]:
    """Return the group of every op, by the first op of each; -1 for an op that is alone."""
    import networkx as nx

    ties = nx.Graph()
    ties.add_edges_from(together)
    group = [-1] * count
    for number, ops in enumerate(sorted(nx.connected_components(ties), key=min)):
        for op in ops:
            group[op] = number
    return group


def _users(model: Model) -> tuple[dict[str, dict[int, bool]], dict[str, bool]]:
    """Return, per stored constant, the ops that use it (whether as a weight matrix) and whether its
    values are learned.
    """
    users: dict[str, dict[int, bool]] = {}
    learned: dict[str, bool] = {}
    for i, node in enumerate(model.nodes):
        weighty = node.rule in op_costs.WEIGHT_RULES
        for position, root, value in _constants(model, node):
            holds = _is_parameter(model.values[root], weighty)
            is_weight = weighty and len(value.shape or ()) >= 2 and holds
            by = users.setdefault(root, {})
            by[i] = by.get(i, False) or is_weight
            counts = value.learned and position not in node.attrs.get("buffers", ())
            learned[root] = learned.get(root, False) or (counts and holds)
    return users, learned


def _constants(model: Model, node: Node) -> Iterator[tuple[int, str, Value]]:
    """Yield (position, stored constant that it is a view of, value) of the constant inputs."""
    for position, name in enumerate(node.inputs):
        if name and model.values[name].constant:
            value = model.values[name]
            yield position, value.root or name, value


def _has_bias(model: Model, node: Node) -> bool:
    """Whether a fused shift can be merged into a bias that the op has anyway."""
    at = node.attrs.get("bias", len(node.inputs))
    return (
        at < len(node.inputs) and bool(node.inputs[at]) and model.values[node.inputs[at]].constant
    )


def _is_parameter(value: Value, weighty: bool) -> bool:
    """Whether a stored constant holds learned values: real ones, or quantised ones used as a
    weight.
    """
    if value.elements <= 1:
        return False
    return value.real or (weighty and value.dtype in ("int8", "uint8", "int4", "uint4"))


def _tensors(model: Model) -> tuple[list[tuple[int, int, list[int]]], tuple[Shape | None, ...]]:
    """Return (producer, bytes, consumers) of every tensor that somebody reads or that is a result,
    and their shapes, none unless all are known.
    """
    consumers = _consumers(model)
    made = [
        (i, name)
        for i, node in enumerate(model.nodes)
        for name in node.outputs
        if name in consumers
    ]
    values = [model.values[name] for _, name in made]
    typical = _median([value.bytes for value in values if value.known], DEFAULT_BYTES)
    tensors = [
        (i, typical if value.shape is None else value.bytes, consumers[name])
        for (i, name), value in zip(made, values, strict=True)
    ]
    known = all(value.known for value in values)
    return tensors, tuple(value.shape for value in values) if known else ()


def _consumers(model: Model) -> dict[str, list[int]]:
    """Return the ops that read each tensor; a result of the model may have none."""
    readers = by_key(
        (name, i)
        for i, node in enumerate(model.nodes)
        for name in _inputs(node, model.values, constant=False)
    )
    return {name: [] for name in model.outputs} | readers


def distinct_names(names: list[str]) -> list[str]:
    """Make names distinct by appending #2, #3, ..."""
    seen = set(names)
    used: Counter[str] = Counter()
    result = []
    for name in names:
        used[name] += 1
        fresh = name
        while used[name] > 1 and (fresh := f"{name}#{used[name]}") in seen:
            used[name] += 1
        seen.add(fresh)
        result.append(fresh)
    return result


def check_shapes(model: Model) -> None:
    """Refuse a model in which the shapes around an op cannot all be true.

    Raises
    ------
    InputError
        With the op and the shapes.
    """
    for node in model.nodes:
        check = _check_of(node)
        if check is None:
            continue
        inputs = [_shape(model, name) for name in node.inputs]
        output = _shape(model, node.outputs[0]) if node.outputs else None
        if output is not None and inputs and not check(node, inputs, output):
            shapes = ", ".join("?" if shape is None else str(list(shape)) for shape in inputs)
            raise InputError(
                f"op '{one_line(node.name)}' ({node.type}): its shapes contradict each other: "
                f"{shapes} give {list(output)}"
            )


def _check_of(node: Node) -> Check | None:
    """Return what must hold of the shapes around an op of this kind, None if nothing is known."""
    if node.type in _CHECKS:
        return _CHECKS[node.type]
    if node.rule == "conv":
        return _conv
    return _product if node.rule == "matmul" and node.type not in _OTHER_PRODUCTS.split() else None


def _shape(model: Model, name: str) -> Shape | None:
    return model.values[name].shape if name else None


def _same_elements(node: Node, inputs: list[Shape | None], output: Shape) -> bool:
    return _join(node, inputs[:1], output)


def _same_shape(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    return inputs[0] is None or agree(inputs[0], output)


def _broadcast(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    """Whether the output is what the inputs broadcast to."""
    shapes = [shape for shape in inputs if shape is not None]
    if len(shapes) < len(inputs):
        return True
    if max(map(len, shapes)) > len(output):
        return False
    axes = zip_longest(output[::-1], *(shape[::-1] for shape in shapes), fillvalue=1)
    return all(None in sizes or set(sizes) <= {1, sizes[0]} for sizes in axes)


def _join(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    return not _known(*inputs, output) or sum(map(_elements, inputs)) == _elements(output)


def _conv(node: Node, inputs: list[Shape | None], output: Shape) -> bool:
    """Whether the channels are a multiple of those of the weights [out, in/groups, ...] ([groups,
    out, in, ...]).
    """
    at, lead = node.attrs.get("weight", 1), node.attrs.get("out_axes", 1)
    image, weight = inputs[0], inputs[at] if at < len(inputs) else None
    if image is None or weight is None:
        return True
    spatial = len(weight) - lead - 1
    if spatial < 0 or len(image) <= spatial or len(output) != len(image):
        return False
    made, filters = output[-spatial - 1], weight[:lead]
    known = made is not None and None not in filters
    if known and made != math.prod(filters):  # type: ignore[arg-type]
        return False
    return _fit_groups(image[-spatial - 1], weight[lead], filters, node.attrs.get("groups"))


def _fit_groups(
    channels: int | None, inner: int | None, filters: Shape, groups: int | None
) -> bool:
    """Whether channels are as many as groups of inner ones, where all are known."""
    if channels is None or inner is None or None in filters[:-1]:
        return True
    if len(filters) > 1:
        return channels == inner * math.prod(filters[:-1])  # type: ignore[arg-type]
    if groups is None:
        return inner > 0 and channels % inner == 0
    divides = filters[0] is None or (groups > 0 and filters[0] % groups == 0)
    return channels == inner * groups and divides


def _product(node: Node, inputs: list[Shape | None], output: Shape) -> bool:
    """Whether the inner dimensions of two matrices agree."""
    attrs = node.attrs
    left = attrs.get("left", 0)
    right = attrs.get("right", left + 1)
    if right >= len(inputs):
        return True
    a, b = inputs[left], inputs[right]
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return True
    inner = a[-2 if attrs.get("trans_a") else -1], b[-1 if attrs.get("trans_b") else -2]
    return None in inner or inner[0] == inner[1]


def _elements(shape: Shape | None) -> int:
    return math.prod(d or 0 for d in shape or ())


def _known(*shapes: Shape | None) -> bool:
    return all(shape is not None and None not in shape for shape in shapes)


_CHECKS: dict[str, Check] = {
    kind: check
    for kinds, check in (
        (_SAME_ELEMENTS, _same_elements),
        (_SAME_SHAPE, _same_shape),
        (_BROADCAST, _broadcast),
        (_JOIN, _join),
    )
    for kind in kinds.split()
}


def propagate_constants(model: Model) -> None:
    """Remove every node whose inputs are all constant; its outputs become constants.

    A view of a constant (reshaped, transposed, dequantised) stays the same stored constant;
    anything else makes a new one.
    """
    kept = []
    for node in model.nodes:
        if _is_constant(node, model.values):
            _mark_constant(node, model.values)
        else:
            kept.append(node)
    model.nodes = kept


def _is_constant(node: Node, values: Values) -> bool:
    """Whether the outputs of a node are known, or follow from constants alone."""
    outputs = [values[name] for name in node.outputs if name]
    if outputs and all(value.constant for value in outputs):
        return True
    inputs = [name for name in node.inputs if name]
    return bool(inputs) and node.extra is None and all(values[x].constant for x in inputs)


def _mark_constant(node: Node, values: Values) -> None:
    """Mark the outputs of a node as constants, with what is stored of them."""
    outputs = [values[name] for name in node.outputs if name]
    if len(outputs) == 1 and not outputs[0].constant:
        name = _stored(node, values, outputs[0])
        if name:
            outputs[0].root = values[name].root or name
            outputs[0].learned = values[name].learned
    for value in outputs:
        value.constant = True


def _stored(node: Node, values: Values, made: Value) -> str:
    """Return the input whose stored content a computed constant is a view of, "" if it is a new
    constant.
    """
    first = node.inputs[0]
    if node.rule in VIEWS:
        return first
    if node.rule == "gather" and len(values[first].shape or ()) > 1:
        return first  # rows of a table (positions): the table is what the model stores
    if node.rule in POINTWISE:
        largest = max(filter(None, node.inputs), key=lambda name: values[name].elements)
        if values[largest].elements == made.elements and made.elements > 1:
            return largest
    return ""


def fold_identities(model: Model, is_identity: Callable[[Node], bool]) -> None:
    """Remove ops that change nothing at inference (identity, dropout); readers take their input
    instead.
    """
    alias: dict[str, str] = {}
    kept = []
    for node in model.nodes:
        node.inputs = [alias.get(name, name) for name in node.inputs]
        if is_identity(node) and node.inputs and node.inputs[0] and node.outputs:
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    model.nodes = kept
    model.outputs = [alias.get(name, name) for name in model.outputs]


def drop_dead(model: Model) -> None:
    """Remove nodes that no output of the model depends on (such as folded shape arithmetic)."""
    needed = set(model.outputs)
    kept = []
    for node in reversed(model.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    # a model without outputs keeps its nodes, and one whose outputs are all constant, refused later
    if kept:
        model.nodes = kept[::-1]


def fuse_affine(model: Model) -> None:
    """Fuse batch norms, and per-channel products and sums with constants, into the op before.

    The op before is a convolution, a matrix product with constant weights, or a batch norm, and
    nobody else reads its output. The fused op scales its weights and keeps one shift per channel;
    as parameters it counts one scale and one shift per channel, whatever number of remnants there
    was.
    """
    read = chain(*(node.inputs for node in model.nodes), model.outputs)
    consumers = Counter(filter(None, read))
    maker: dict[str, Node] = {}
    kept = []
    for node in model.nodes:
        target = _fusable(node, model.values, maker, consumers)
        if target is None:
            maker |= dict.fromkeys(node.outputs, node)
            if node.rule == "batch_norm":
                _own_affine(node, model.values)
            kept.append(node)
            continue
        scale, shift = _affine_parts(node, model.values)
        target.scale, target.shift = max(target.scale, scale), max(target.shift, shift)
        target.outputs[0] = node.outputs[0]
        maker[node.outputs[0]] = target
    model.nodes = kept


def _own_affine(node: Node, values: Values) -> None:
    """Count a batch norm that stays as one scale and one shift per channel."""
    if len(node.inputs) > 1 and all(values[name].constant for name in node.inputs[1:] if name):
        node.scale, node.shift = _affine_parts(node, values)
        node.inputs = node.inputs[:1]


def _fusable(
    node: Node, values: Values, maker: dict[str, Node], consumers: Counter[str]
) -> Node | None:
    """Return the op that `node` can be fused into, None if there is none."""
    dynamic = _inputs(node, values, constant=False)
    if len(dynamic) != 1 or len([name for name in node.outputs if consumers[name]]) != 1:
        return None
    before = maker.get(dynamic[0])
    if before is None or consumers[dynamic[0]] != 1 or before.outputs[0] != dynamic[0]:
        return None
    return before if _has_weights(before, values) and _is_affine(node, before, values) else None


def _inputs(node: Node, values: Values, *, constant: bool = True) -> list[str]:
    """Return the inputs of a node that are constants, or those that are not."""
    return [name for name in node.inputs if name and values[name].constant == constant]


def _has_weights(node: Node, values: Values) -> bool:
    """Whether an op has weights of its own that another affine op can be merged into."""
    if node.rule == "matmul":
        return bool(_inputs(node, values))
    return node.rule in ("conv", "conv_transpose", "batch_norm")


def _is_affine(node: Node, before: Node, values: Values) -> bool:
    """Whether `node` scales or shifts the channels that `before` makes."""
    first = node.inputs[0] == before.outputs[0]
    if node.rule == "batch_norm":
        return first
    if node.attrs.get("ordered") and not first:  # c - x and c / x are no affine remnants
        return False
    return "affine" in node.attrs and _is_per_channel(node, before, values)


def _is_per_channel(node: Node, before: Node, values: Values) -> bool:
    """Whether the constant that `node` adds or multiplies has one entry per channel of `before`."""
    shape = values[before.outputs[0]].shape
    constant = next((values[name].shape for name in _inputs(node, values)), None)
    if shape is None or constant is None or shape != values[node.outputs[0]].shape:
        return False
    # axes are counted from the end, where broadcasting aligns them
    channel = 0 if before.rule == "matmul" else len(shape) - 2
    return all(d == 1 for j, d in enumerate(constant[::-1]) if j != channel)


def _affine_parts(node: Node, values: Values) -> tuple[int, int]:
    """Return how many scales and shifts a remnant has."""
    constants = (values[name] for name in _inputs(node, values))
    count = max((value.elements for value in constants if value.learned and value.real), default=0)
    if node.rule == "batch_norm":
        return count, count
    if count <= 1:  # a common factor is no parameter
        return -1, -1
    return (count, -1) if node.attrs["affine"] == "scale" else (-1, count)
