"""Passes over a `Model`: constants propagated, identities folded, batch-norm remnants fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.instances.readers.model_ir import Model, Node, Value

VIEWS = frozenset({"view", "layout", "identity", "dequantize"})
"""Rules that keep the stored content of a constant they are applied to (of their first input)."""

POINTWISE = frozenset({"elementwise", "nary", "sigmoid"})
"""Rules that compute a constant of the same size, such as scale and zero point of a quantised
weight."""


def propagate_constants(model: Model) -> None:
    """Remove every node whose inputs are all constant; its outputs become constants.

    A view of a constant (reshaped, transposed, dequantised) stays the same stored constant;
    anything else makes a new one.
    """
    model.nodes = [node for node in model.nodes if not _made_constant(node, model.values)]


def _made_constant(node: Node, values: dict[str, Value]) -> bool:
    """Whether the outputs of a node are constants; they are marked as such."""
    outputs = [values[name] for name in node.outputs if name]
    inputs = [name for name in node.inputs if name]
    known = bool(outputs) and all(value.constant for value in outputs)
    foldable = bool(inputs) and node.extra is None and all(values[x].constant for x in inputs)
    if not known and not foldable:
        return False
    view = len(outputs) == 1 and not outputs[0].constant
    name = _stored(node, inputs, values) if view else ""
    if name:
        outputs[0].root = values[name].root or name
        outputs[0].learned = values[name].learned
    for value in outputs:
        value.constant = True
    return True


def _stored(node: Node, inputs: list[str], values: dict[str, Value]) -> str:
    """Return the input whose stored content a computed constant is a view of, "" if it is a new
    constant.
    """
    if node.rule in VIEWS and node.inputs and node.inputs[0]:
        return node.inputs[0]
    if node.rule == "gather" and len(values[node.inputs[0]].shape or ()) > 1:
        return node.inputs[0]  # rows of a table (positions): the table is what the model stores
    if node.rule in POINTWISE and inputs:
        largest = max(inputs, key=lambda name: values[name].elements)
        made = next(values[name] for name in node.outputs if name)
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
    if not model.outputs:
        return
    needed = set(model.outputs)
    kept = []
    for node in reversed(model.nodes):
        if any(name in needed for name in node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    if kept:  # a model whose outputs are all constant keeps its nodes, and is refused later
        model.nodes = kept[::-1]


def fuse_affine(model: Model) -> None:
    """Fuse batch norms, and per-channel products and sums with constants, into the op before.

    The op before is a convolution, a matrix product with constant weights, or a batch norm, and
    nobody else reads its output. The fused op scales its weights and keeps one shift per channel;
    as parameters it counts one scale and one shift per channel, whatever number of remnants there
    was.
    """
    consumers: dict[str, int] = {}
    for node in model.nodes:
        for name in node.inputs:
            consumers[name] = consumers.get(name, 0) + 1
    for name in model.outputs:
        consumers[name] = consumers.get(name, 0) + 1
    maker: dict[str, Node] = {}
    gone: set[int] = set()
    for i, node in enumerate(model.nodes):
        target = _fusable(node, model.values, maker, consumers)
        if target is None:
            for name in node.outputs:
                maker[name] = node
            if node.rule == "batch_norm":
                _own_affine(node, model.values)
            continue
        scale, shift = _affine_parts(node, model.values)
        target.scale, target.shift = max(target.scale, scale), max(target.shift, shift)
        target.outputs[0] = node.outputs[0]
        maker[node.outputs[0]] = target
        gone.add(i)
    model.nodes = [node for i, node in enumerate(model.nodes) if i not in gone]


def _own_affine(node: Node, values: dict[str, Value]) -> None:
    """Count a batch norm that stays as one scale and one shift per channel."""
    if len(node.inputs) > 1 and all(values[name].constant for name in node.inputs[1:] if name):
        node.scale, node.shift = _affine_parts(node, values)
        node.inputs = node.inputs[:1]


def _fusable(
    node: Node, values: dict[str, Value], maker: dict[str, Node], consumers: dict[str, int]
) -> Node | None:
    """Return the op that `node` can be fused into, None if there is none."""
    dynamic = [name for name in node.inputs if name and not values[name].constant]
    if len(dynamic) != 1 or len([x for x in node.outputs if x and consumers.get(x)]) != 1:
        return None
    before = maker.get(dynamic[0])
    if before is None or consumers.get(dynamic[0]) != 1 or before.outputs[0] != dynamic[0]:
        return None
    if not _has_weights(before, values):
        return None
    first = node.inputs[0] == dynamic[0]
    if node.rule == "batch_norm":
        return before if first else None
    ordered = node.attrs.get("ordered") and not first  # c - x and c / x are no affine remnants
    affine = node.attrs.get("affine") in ("scale", "shift") and not ordered
    return before if affine and _is_per_channel(node, before, values) else None


def _has_weights(node: Node, values: dict[str, Value]) -> bool:
    """Whether an op has weights of its own that another affine op can be merged into."""
    if node.rule == "matmul":
        return any(values[x].constant for x in node.inputs if x)
    return node.rule in ("conv", "conv_transpose", "batch_norm")


def _is_per_channel(node: Node, before: Node, values: dict[str, Value]) -> bool:
    """Whether the constant that `node` adds or multiplies has one entry per channel of `before`."""
    shape = values[before.outputs[0]].shape
    constant = next((values[x].shape for x in node.inputs if x and values[x].constant), None)
    if shape is None or constant is None or shape != values[node.outputs[0]].shape:
        return False
    # axes are counted from the end, where broadcasting aligns them
    channel = 0 if before.rule == "matmul" else len(shape) - 2
    return all(d == 1 for j, d in enumerate(constant[::-1]) if j != channel)


def _affine_parts(node: Node, values: dict[str, Value]) -> tuple[int, int]:
    """Return how many scales and shifts a remnant has."""
    constants = [values[x] for x in node.inputs if x and values[x].constant]
    learned = [
        value
        for value in constants
        if value.learned and value.dtype.startswith(("float", "bfloat"))
    ]
    count = max((value.elements for value in learned), default=0)
    if node.rule == "batch_norm":
        return count, count
    if count <= 1:  # a common factor is no parameter
        return -1, -1
    return (count, -1) if node.attrs["affine"] == "scale" else (-1, count)
