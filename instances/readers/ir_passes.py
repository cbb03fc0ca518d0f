"""Passes over a `Model`: constants propagated, identities folded, batch-norm remnants fused."""

from __future__ import annotations

from collections import Counter
from itertools import chain
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
    kept = []
    for node in model.nodes:
        if _is_constant(node, model.values):
            _mark_constant(node, model.values)
        else:
            kept.append(node)
    model.nodes = kept


def _is_constant(node: Node, values: dict[str, Value]) -> bool:
    """Whether the outputs of a node are known, or follow from constants alone."""
    outputs = [values[name] for name in node.outputs if name]
    if outputs and all(value.constant for value in outputs):
        return True
    inputs = [name for name in node.inputs if name]
    return bool(inputs) and node.extra is None and all(values[x].constant for x in inputs)


def _mark_constant(node: Node, values: dict[str, Value]) -> None:
    """Mark the outputs of a node as constants, with what is stored of them."""
    outputs = [values[name] for name in node.outputs if name]
    if len(outputs) == 1 and not outputs[0].constant:
        name = _stored(node, values, outputs[0])
        if name:
            outputs[0].root = values[name].root or name
            outputs[0].learned = values[name].learned
    for value in outputs:
        value.constant = True


def _stored(node: Node, values: dict[str, Value], made: Value) -> str:
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


def _own_affine(node: Node, values: dict[str, Value]) -> None:
    """Count a batch norm that stays as one scale and one shift per channel."""
    if len(node.inputs) > 1 and all(values[name].constant for name in node.inputs[1:] if name):
        node.scale, node.shift = _affine_parts(node, values)
        node.inputs = node.inputs[:1]


def _fusable(
    node: Node, values: dict[str, Value], maker: dict[str, Node], consumers: Counter[str]
) -> Node | None:
    """Return the op that `node` can be fused into, None if there is none."""
    dynamic = _inputs(node, values, constant=False)
    if len(dynamic) != 1 or len([name for name in node.outputs if consumers[name]]) != 1:
        return None
    before = maker.get(dynamic[0])
    if before is None or consumers[dynamic[0]] != 1 or before.outputs[0] != dynamic[0]:
        return None
    return before if _has_weights(before, values) and _is_affine(node, before, values) else None


def _inputs(node: Node, values: dict[str, Value], *, constant: bool = True) -> list[str]:
    """Return the inputs of a node that are constants, or those that are not."""
    return [name for name in node.inputs if name and values[name].constant == constant]


def _has_weights(node: Node, values: dict[str, Value]) -> bool:
    """Whether an op has weights of its own that another affine op can be merged into."""
    if node.rule == "matmul":
        return bool(_inputs(node, values))
    return node.rule in ("conv", "conv_transpose", "batch_norm")


def _is_affine(node: Node, before: Node, values: dict[str, Value]) -> bool:
    """Whether `node` scales or shifts the channels that `before` makes."""
    first = node.inputs[0] == before.outputs[0]
    if node.rule == "batch_norm":
        return first
    if node.attrs.get("ordered") and not first:  # c - x and c / x are no affine remnants
        return False
    affine = node.attrs.get("affine") in ("scale", "shift")
    return affine and _is_per_channel(node, before, values)


def _is_per_channel(node: Node, before: Node, values: dict[str, Value]) -> bool:
    """Whether the constant that `node` adds or multiplies has one entry per channel of `before`."""
    shape = values[before.outputs[0]].shape
    constant = next((values[name].shape for name in _inputs(node, values)), None)
    if shape is None or constant is None or shape != values[node.outputs[0]].shape:
        return False
    # axes are counted from the end, where broadcasting aligns them
    channel = 0 if before.rule == "matmul" else len(shape) - 2
    return all(d == 1 for j, d in enumerate(constant[::-1]) if j != channel)


def _affine_parts(node: Node, values: dict[str, Value]) -> tuple[int, int]:
    """Return how many scales and shifts a remnant has."""
    constants = (values[name] for name in _inputs(node, values))
    count = max((value.elements for value in constants if value.learned and value.real), default=0)
    if node.rule == "batch_norm":
        return count, count
    if count <= 1:  # a common factor is no parameter
        return -1, -1
    return (count, -1) if node.attrs["affine"] == "scale" else (-1, count)
