"""Flops and bytes moved of an op, from the shapes of its inputs and outputs.

A rule says how many flops an op does; a multiply-add is 2 flops, the addition of a bias 1 per
output element. Bytes moved are all inputs, weights and outputs, except where an op reads only what
it keeps (gather, slice) or only renames (reshape). A bag of embeddings reads the rows it adds up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from placeopt.instances.readers.model_ir import Cost, Node, Value
from placeopt.model.errors import InputError
from placeopt.model.files import Data, table_beside

MAX_TURNS = 10**9


def vocabulary(name: str) -> Data:
    """Return what op_tables.json says of the ops of "onnx", "openvino" or "torch".

    `rule`: the cost rule by op type; a type that is not there costs 1 flop per output element.
    `attributes`: what the rules must know of a type, such as the input that is its weight, its bias
    or its buffers (99 for none), or the kind of affine map. `dtypes`: element types.
    """
    ops: Data = _tables()[name]
    ops["rule"] = {op: rule for rule, listed in ops["rules"].items() for op in listed.split()}
    return ops


def look_up(ops: Data, kind: str) -> tuple[str, Data]:
    """Return the cost rule of an op type in a vocabulary, and its attributes to add to."""
    return ops["rule"].get(kind, "elementwise"), dict(ops["attributes"].get(kind, {}))


def _tables() -> Any:
    return table_beside(__file__, "op_tables.json")


class Shapes:
    """The inputs and outputs of a node, with unknown dimensions taken as 1."""

    def __init__(self, node: Node, values: Mapping[str, Value]) -> None:
        self.node = node
        self.inputs = [values[name] if name else None for name in node.inputs]
        self.outputs = [values[name] for name in node.outputs if name]

    def input(self, i: int) -> Value | None:
        """Input i, None where it is absent."""
        return self.inputs[i] if i < len(self.inputs) else None

    def dims(self, i: int) -> tuple[int, ...]:
        """Shape of input i; () where it is absent or a scalar."""
        value = self.input(i)
        shape = None if value is None else value.shape
        return tuple(1 if d is None else d for d in shape or ())

    def dim(self, i: int, axis: int) -> int | None:
        """Dimension of input i at a negative axis, None where it is unknown; vectors have one axis
        only.
        """
        value = self.input(i)
        if value is None or not value.shape:
            return None
        return value.shape[max(axis, -len(value.shape))]

    @property
    def out(self) -> int:
        """Elements of the first output."""
        return self.outputs[0].elements if self.outputs else 0

    def biased(self, position: int) -> int:
        """Elements that a bias is added to; it is an input, by default that one, or fused."""
        bias = self.input(self.node.attrs.get("bias", position))
        return self.out if bias or self.node.shift > 0 else 0

    @property
    def all_in(self) -> int:
        """Elements of the first input."""
        value = self.input(0)
        return value.elements if value else 0


def check_turns(trip_count: int | None) -> int | None:
    """Return the trip count that a user gave."""
    try:
        turns = None if trip_count is None else int(trip_count)
    except (TypeError, ValueError):
        turns = 0
    if turns is not None and not 1 <= turns <= MAX_TURNS:
        raise InputError(
            f"trip_count: expected a whole number in 1..{MAX_TURNS} (--trip-count 10), received "
            f"{trip_count!r:.40}"
        )
    return turns


def turns_of(node: Node, known: int | None, given: int | None) -> int:
    """Return how often a loop's body runs: as its file tells, else as the user says, else once, and
    then it is flagged.
    """
    node.attrs["uncertain"] = known is None and given is None
    return (given or 1) if known is None else known


def charge_bodies(node: Node, bodies: Sequence[Cost], times: int) -> None:
    """Charge a node for the dearest of its bodies, `times` over; the weights of all of them lie in
    memory.
    """
    if bodies:
        top = max(bodies, key=lambda c: (c.flops, c.bytes_moved))
        weights, parameters = sum(c.resident for c in bodies), sum(c.parameters for c in bodies)
        node.extra = Cost(times * top.flops, times * top.bytes_moved, weights, parameters)


def cost(node: Node, values: Mapping[str, Value]) -> Cost:
    """Return the cost of a node whose tensors all have a known rank."""
    s = Shapes(node, values)
    rule = node.rule
    flops = RULES[rule](s) if rule in RULES else PER_ELEMENT.get(rule, 1) * s.out
    if rule in PRODUCTS and s.outputs[:1]:
        flops *= 4 if s.outputs[0].dtype.startswith("complex") else 1  # of real multiply-adds
    read = sum(
        {name: values[values[name].root or name].bytes for name in node.inputs if name}.values()
    )
    written = sum(value.bytes for value in s.outputs)
    moved = read + written
    if rule in ("view", "shape", "identity"):
        moved = 0
    elif rule in ("gather", "pick"):
        moved = 2 * written
    elif rule == "bag":
        table = values[node.inputs[0]]
        moved = Value((flops,), table.dtype).bytes + written
    return Cost(flops, moved).plus(node.extra or Cost(0, 0))


def run_cost(nodes: Iterable[Node], values: Mapping[str, Value]) -> Cost:
    """Return the cost of one run of nodes, without those that have tensors of unknown rank."""
    total = Cost(0, 0)
    for node in nodes:
        tensors = [values.get(name) for name in (*node.inputs, *node.outputs) if name]
        if all(value is not None and value.shape is not None for value in tensors):
            total = total.plus(cost(node, values))
    return total


def _conv(s: Shapes) -> int:
    """Convolution with weights [out, in/groups, kernel...] (or [groups, out, in, kernel...])."""
    weight = s.dims(s.node.attrs.get("weight", 1))
    return 2 * s.out * math.prod(weight[s.node.attrs.get("out_axes", 1) :]) + s.biased(2)


def _conv_transpose(s: Shapes) -> int:
    """Transposed convolution with weights [in, out/groups, kernel...] (or [groups, in, out,
    kernel...]).
    """
    return 2 * s.all_in * math.prod(s.dims(1)[s.node.attrs.get("out_axes", 1) :]) + s.biased(2)


def _matmul(s: Shapes) -> int:
    """Product of two (stacks of) matrices, and a bias if there is one."""
    attrs = s.node.attrs
    left = attrs.get("left", 0)
    at = -2 if attrs.get("trans_a") else -1
    inner = s.dim(left, at)
    if inner is None:  # the other side may know it
        inner = s.dim(attrs.get("right", left + 1), -1 if attrs.get("trans_b") else -2)
    return 2 * s.out * (1 if inner is None else inner) + s.biased(99)


def _einsum(s: Shapes) -> int:
    """Sum over index combinations, from the left one pair of terms after the other; 2 flops each
    for a product, 1 for a plain sum. Further inputs are biases.
    """
    terms, arrow, made = str(s.node.attrs.get("equation", "")).replace(" ", "").partition("->")
    parts = terms.split(",")
    if len(parts) > len(s.inputs) or not terms:
        return 2 * s.out * max((max(s.dims(i), default=1) for i in range(len(s.inputs))), default=1)
    size: dict[str, int] = {}
    indices = []
    for i, term in enumerate(parts):
        dims = s.dims(i)
        before, dots, after = term.partition("...")
        # the axes that dots stand for are counted from the last of them
        hidden = range(len(dims) - len(before) - len(after), 0, -1) if dots else ()
        indices.append([*before, *map(str, hidden), *after])
        for letter, d in zip(indices[-1], dims, strict=False):
            size[letter] = max(size.get(letter, 1), d)
    flops = 0 if len(parts) > 1 else math.prod(size.values())
    count = Counter(terms)
    summed, kept = set(indices[0]), set(made) if arrow else {x for x in count if count[x] == 1}
    for i, own in enumerate(indices[1:], 2):
        summed |= set(own)
        flops += 2 * math.prod(size.get(letter, 1) for letter in summed)
        later = kept.union(*indices[i:])
        summed = {x for x in summed if x in later or x.isdecimal()}
    return flops + s.biased(len(parts))


def _contract(s: Shapes) -> int:
    """Product of two tensors over axes that both have, all others are in the result."""
    left = s.node.attrs.get("left", 0)
    sides = [value.elements for value in map(s.input, (left, left + 1)) if value]
    return 2 * s.out * math.isqrt(math.prod(sides) // max(1, s.out)) + s.biased(99)


def _fft(s: Shapes) -> int:
    """5 n log2(n) for a complex transform of length n, half of it where one side is real."""
    axes = s.node.attrs.get("axes", ())
    sides = s.dims(0), tuple(d or 1 for d in s.outputs[0].shape or ()) if s.outputs else ()
    known = axes and all(-len(dims) <= a < len(dims) for dims in sides for a in axes)
    length = math.prod(max(dims[a] for dims in sides) for a in axes) if known else s.out
    length = s.node.attrs.get("length", length)
    return int(5 * (min(s.all_in, s.out) if known else s.out) * math.log2(max(2, length)))


def _attention(s: Shapes) -> int:
    """softmax(Q K^T) V with Q [.., S, D] and K [.., T, D]; heads only matter for the softmax.

    Without K, the first input holds all three, and Q is as large as the output.
    """
    query, key = s.dims(0), s.dims(1)
    q = math.prod(query) if key else s.out
    length = key[-2] if len(key) > 1 else query[-2] if len(query) > 1 else 1
    past = s.dims(s.node.attrs.get("past", 99))
    length += past[-2] if len(past) > 1 else 0
    heads = s.node.attrs.get("heads", 1)
    rows = math.prod(query[:-1]) * (heads if len(query) == 3 else 1)
    return 2 * q * length + 2 * s.out * length + 5 * rows * length


def _packed_attention(s: Shapes) -> int:
    """Attention with its projection inside: x [B, S, in], weights [in, 3 * hidden], output [B, S,
    hidden].
    """
    x, weight = s.dims(0), s.dims(1)
    rows, length = math.prod(x[:-1]), x[-2] if len(x) > 1 else 1
    heads = s.node.attrs.get("heads", 1)
    return 2 * rows * math.prod(weight) + 4 * s.out * length + 5 * rows * heads * length


def _rnn(s: Shapes) -> int:
    """Recurrent layers: every weight matrix is used once per step and sample, gates cost 10 per
    hidden unit.
    """
    x = s.dims(0)
    steps = math.prod(x[:-1]) if s.node.attrs.get("steps", True) else math.prod(x[:1])
    indices = s.node.attrs.get("weights", (1, 2))
    matrices = sum(math.prod(s.dims(i)) for i in indices if len(s.dims(i)) > 1)
    return steps * 2 * matrices + 10 * s.out


def _pool(s: Shapes) -> int:
    """Count one flop per element of the window of every output element."""
    return s.out * math.prod(s.node.attrs.get("kernel", ()) or (max(1, s.all_in // max(1, s.out)),))


RULES: dict[str, Callable[[Shapes], int]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "matmul": _matmul,
    "einsum": _einsum,
    "attention": _attention,
    "packed_attention": _packed_attention,
    "rnn": _rnn,
    "pool": _pool,
    "reduce": lambda s: s.all_in,
    "bag": lambda s: math.prod(s.dims(1)) * math.prod(s.dims(0)[1:]),
    "nary": lambda s: max(1, len([x for x in s.inputs if x is not None]) - 1) * s.out,
    "lrn": lambda s: s.out * (2 * int(s.node.attrs.get("size", 5)) + 2),
    "sort": lambda s: int(
        s.all_in * max(1.0, math.log2(max(2, s.dims(0)[-1] if s.dims(0) else 2)))
    ),
    "fft": _fft,
    "contract": _contract,
    "factor": lambda s: 2 * s.all_in * max(s.dims(0)[-1:], default=1),
}
"""Flops by rule; the others take a fixed number of flops per element of their output."""

PER_ELEMENT = _tables()["per_element"]
"""That number by rule; one flop for a rule that is not there."""

PRODUCTS = frozenset({"conv", "conv_transpose", "matmul", "einsum", "contract"})
"""Rules of sums of products."""

WEIGHT_RULES = PRODUCTS | {"packed_attention", "rnn", "gather", "bag"}
"""Rules whose constant matrices are weights: kept once where several ops share them."""
