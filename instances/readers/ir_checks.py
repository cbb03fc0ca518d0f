"""Shapes of a `Model` that contradict each other: a damaged file is refused, before its costs are
taken for real.

Only what holds for every op of a kind is checked, and only where both sides are known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.instances.readers.model_ir import Model, Node, Shape


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME_ELEMENTS = _words(
    "Reshape Flatten Squeeze Unsqueeze Transpose view _unsafe_view reshape flatten unflatten "
    "squeeze unsqueeze permute "
    "transpose t contiguous clone"
)
_SAME_SHAPE = _words(
    "Relu ReLU relu Sigmoid sigmoid Tanh tanh Softmax SoftMax softmax _softmax Gelu gelu silu Erf "
    "erf Exp exp Sqrt sqrt "
    "LeakyRelu leaky_relu Elu elu Clip Clamp clamp HardSwish HSwish hardswish hardtanh "
    "BatchNormalization batch_norm "
    "BatchNormInference LRN Dropout dropout layer_norm LayerNormalization"
)
_BROADCAST = _words(
    "Add Sub Mul Div Sum Max Min Mean add sub mul div Multiply Subtract Divide Maximum Minimum"
)
_JOIN = _words("Concat cat concat stack")
_OTHER_PRODUCTS = _words("MatMulNBits FusedMatMul _scaled_mm _int_mm FullyConnected")


def check_shapes(model: Model) -> None:
    """Refuse a model in which the shapes around an op cannot all be true.

    Raises
    ------
    InputError
        With the op and the shapes.
    """
    for node in model.nodes:
        check = next((check for holds, check in _CHECKS if holds(node)), None)
        if check is None:
            continue
        inputs = [model.values[name].shape if name else None for name in node.inputs]
        output = model.values[node.outputs[0]].shape if node.outputs and node.outputs[0] else None
        if output is not None and inputs and not check(node, inputs, output):
            shapes = ", ".join("?" if shape is None else str(list(shape)) for shape in inputs)
            raise InputError(
                f"op '{one_line(node.name)}' ({node.type}): its shapes contradict each other: "
                f"{shapes} give {list(output)}"
            )


def _same_elements(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    return not _known(inputs[0], output) or _elements(inputs[0]) == _elements(output)


def _same_shape(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    return inputs[0] is None or _agree(inputs[0], output)


def _broadcast(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    """Whether the output is what the inputs broadcast to."""
    if None in inputs:
        return True
    if max(len(shape or ()) for shape in inputs) > len(output):
        return False
    for axis in range(1, len(output) + 1):
        sizes = {shape[-axis] for shape in inputs if shape is not None and len(shape) >= axis} | {
            output[-axis]
        }
        if None not in sizes and (len(sizes - {1}) > 1 or (output[-axis] == 1 and sizes != {1})):
            return False
    return True


def _join(_: Node, inputs: list[Shape | None], output: Shape) -> bool:
    if not _known(*inputs, output):
        return True
    return sum(map(_elements, inputs)) == _elements(output)


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
    channels, inner, made = image[-spatial - 1], weight[lead], output[-spatial - 1]
    wanted = [d for d in weight[:lead] if d is not None]
    if len(wanted) == lead and made is not None and made != math.prod(wanted):
        return False
    if channels is None or inner is None or None in weight[: lead - 1]:
        return True
    groups = node.attrs.get("groups") if lead == 1 else math.prod(wanted[:-1])
    if groups is None:
        return inner > 0 and channels % inner == 0
    return channels == inner * groups and (
        weight[0] is None or lead > 1 or (groups > 0 and weight[0] % groups == 0)
    )


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


def _agree(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(
        x is None or y is None or x == y for x, y in zip(a, b, strict=True)
    )


_CHECKS: tuple[
    tuple[Callable[[Node], bool], Callable[[Node, list[Shape | None], Shape], bool]], ...
] = (
    (lambda node: node.type in _SAME_ELEMENTS, _same_elements),
    (lambda node: node.type in _SAME_SHAPE, _same_shape),
    (lambda node: node.type in _BROADCAST, _broadcast),
    (lambda node: node.type in _JOIN, _join),
    (lambda node: node.rule == "conv", _conv),
    (lambda node: node.rule == "matmul" and node.type not in _OTHER_PRODUCTS, _product),
)
