"""How an op can be divided over one mesh axis: which placement every operand needs and which one
its results have.

A way is a dimension of the op's iteration space. One that is in the result splits the result; one
that is summed over leaves partial sums; an operand without it is replicated. An op of a kind that
is not known is divided like an element-wise one. Which dimension of a result comes from which of an
operand is read off the shapes: equal sizes match in order, and a dimension that is the product of
several matches the first of them (heads and head size).
"""

from __future__ import annotations

from typing import NamedTuple

from placeopt.sharding.layouts import PARTIAL, REPLICATE

Shape = tuple[int, ...]

_ATTENTION = "scaled_dot_product"
_ROLES = {
    kind: role
    for role, kinds in {
        "product": "linear addmm gemm dense matmulinteger matmul mm",
        "convolution": "conv conv1d conv2d convolution",
        "embedding": "embedding gather index_select",
        "along the last": "softmax log_softmax _softmax rms_norm layer_norm native_layer_norm "
        "layernormalization simplifiedlayernormalization cumsum topk sort",
        "move": "transpose view reshape permute unsqueeze squeeze flatten split contiguous clone "
        "expand unflatten merge_heads split_heads t slice chunk unbind rotary identity cast",
        "sum": "reduce_sum reduce_mean sum mean reducesum reducemean",
        "extreme": "reduce_max reduce_min amax amin reducemax max min argmax",
    }.items()
    for kind in kinds.split()
}
"""What an op of a kind is where it is divided."""


class Way(NamedTuple):
    """One way of dividing an op over one axis.

    Attributes
    ----------
    inputs, outputs : placement of every tensor read and made. weight : of the op's own weight.
    divided : whether the axis shares the work; if not, every device does all of it.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weight: int = REPLICATE
    divided: bool = True


class Form(NamedTuple):
    """What the rules know of an op."""

    kind: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    weight: Shape  # () without one


def ways_of(form: Form) -> list[Way]:
    """Return the ways of an op, to replicate it first; each placement still has to divide its
    dimension.
    """
    whole = Way(
        "replicate",
        (REPLICATE,) * len(form.inputs),
        (REPLICATE,) * len(form.outputs),
        divided=False,
    )
    if not form.outputs or not form.outputs[0]:
        return [whole]
    return [whole, *_divided(form.kind.lower(), form)]


def _divided(kind: str, form: Form) -> list[Way]:
    """Return the ways of an op to share its work."""
    role = _ROLES.get(kind, "")
    if len(form.weight) == 2:
        if role == "convolution":
            return _convolution(form)
        if role == "embedding":
            return _embedding(form)
        if role == "product":
            return _linear(form)
    count = len(form.inputs)
    if kind in ("matmul", "mm", "bmm", "baddbmm") and count == 2:
        return _product(form)
    if kind.startswith((_ATTENTION, "_" + _ATTENTION)) and count >= 3:
        return _attention(form)
    if role in ("sum", "extreme"):
        return _reduction(form, sums=role == "sum")
    if role == "move" and count == 1:
        return _move(form)
    return _elementwise(form, frozen_last=role == "along the last")


def _only(form: Form, at: int, place: int) -> tuple[int, ...]:
    """Return placements of the inputs: one is placed so, the others are replicated."""
    return tuple(place if i == at else REPLICATE for i in range(len(form.inputs)))


def _linear(form: Form) -> list[Way]:
    """Y[.., n] = X[.., k] W[k, n]: rows of X, columns of W (column parallel), terms of the sum (row
    parallel).
    """
    last = len(form.outputs[0]) - 1
    rank = len(form.inputs[0]) if form.inputs else 0
    rows = [
        Way(f"rows {d}", _only(form, 0, d if d < rank else REPLICATE), (d,)) for d in range(last)
    ]
    columns = Way("column", _only(form, 0, REPLICATE), (last,), 1)
    return [*rows, columns, Way("row", _only(form, 0, rank - 1), (PARTIAL,), 0)]


def _convolution(form: Form) -> list[Way]:
    """Batch, output channels (the weight's first dimension), input channels (its second: partial
    sums).
    """
    return [
        Way("rows 0", _only(form, 0, 0), (0,)),
        Way("column", _only(form, 0, REPLICATE), (1,), 0),
        Way("row", _only(form, 0, 1), (PARTIAL,), 1),
    ]


def _embedding(form: Form) -> list[Way]:
    """Rows of the output, columns of the table, rows of the table (partial sums); a second output
    is the table.
    """
    last = len(form.outputs[0]) - 1
    tables = len(form.outputs) - 1

    def way(name: str, place: int, weight: int) -> Way:
        given = tuple(place if 0 <= place < min(len(s), last) else REPLICATE for s in form.inputs)
        return Way(name, given, (place,) + (weight,) * tables, weight)

    rows = [way(f"rows {d}", d, REPLICATE) for d in range(last)]
    return [*rows, way("column", last, 1), way("vocabulary", PARTIAL, 0)]


def _product(form: Form) -> list[Way]:
    """C[.., m, n] = A[.., m, k] B[.., k, n], or B[.., n, k]: batch dimensions, m, n and the terms
    k.
    """
    out = form.outputs[0]
    if len(out) < 2:
        return []
    m, n, rank = out[-2], out[-1], len(out)
    for first in (1, 0):
        a, b = form.inputs[first], form.inputs[1 - first]
        if len(a) < 2 or len(b) < 2 or len(a) != rank or a[-2] != m:
            continue
        if b[-2:] == (a[-1], n):
            b_k, b_n = len(b) - 2, len(b) - 1
        elif b[-2:] == (n, a[-1]):
            b_k, b_n = len(b) - 1, len(b) - 2
        else:
            continue

        def way(name: str, place_a: int, place_b: int, place: int, swap: bool = first == 1) -> Way:
            inputs = (place_b, place_a) if swap else (place_a, place_b)
            return Way(name, inputs, (place,))

        found = [
            way(f"rows {d}", d, d if len(b) == rank else REPLICATE, d) for d in range(rank - 2)
        ]
        found.append(way(f"rows {rank - 2}", rank - 2, REPLICATE, rank - 2))
        return [*found, way("column", REPLICATE, b_n, rank - 1), way("row", rank - 1, b_k, PARTIAL)]
    return []


def _attention(form: Form) -> list[Way]:
    """Batch and heads of queries, keys and values; rows of the queries alone."""
    rank = len(form.outputs[0])
    rest = (REPLICATE,) * (len(form.inputs) - 3)
    others = (REPLICATE,) * (len(form.outputs) - 1)
    found = [Way(f"rows {d}", (d, d, d, *rest), (d, *others)) for d in range(rank - 2)]
    queries = [i for i, s in enumerate(form.inputs[:3]) if s == form.outputs[0]]
    if queries:
        inputs = _only(form, queries[0], rank - 2)
        found.append(Way(f"rows {rank - 2}", inputs, (rank - 2, *others)))
    return found


def _reduction(form: Form, *, sums: bool) -> list[Way]:
    """Dimensions that stay; those that are summed over leave partial sums."""
    given, out = form.inputs[0] if form.inputs else (), form.outputs[0]
    if len(given) != len(out):
        return _elementwise(form, frozen_last=True) if given[: len(out)] == out else []
    found = []
    for d, (size, left) in enumerate(zip(given, out, strict=True)):
        if size == left:
            found.append(Way(f"rows {d}", (d,), (d,)))
        elif sums:
            found.append(Way("row", (d,), (PARTIAL,)))
    return found


def _move(form: Form) -> list[Way]:
    """Views and transpositions: a dimension of the input and the one it becomes."""
    found = []
    for d, target in matched_dimensions(form.inputs[0], form.outputs[0]):
        outputs = tuple(
            target if len(s) == len(form.outputs[0]) else REPLICATE for s in form.outputs
        )
        found.append(Way(f"split {d}", (d,), outputs))
    return found


def matched_dimensions(given: Shape, made: Shape) -> list[tuple[int, int]]:
    """Return (dimension of the input, dimension of the output) pairs that hold the same entries in
    the same order.
    """
    pairs, used = [], set[int]()
    left = []
    for d, size in enumerate(given):
        if size <= 1:
            continue
        same = [j for j, other in enumerate(made) if other == size and j not in used]
        if same:
            j = d if d in same else same[0]
            used.add(j)
            pairs.append((d, j))
        else:
            left.append(d)
    free = [j for j, size in enumerate(made) if j not in used and size > 1]
    if left and free:
        # a product on one side: its first factor; or a part of it, as of a joint projection
        pairs.append((left[0], free[0]))
    return sorted(pairs)


def _elementwise(form: Form, *, frozen_last: bool) -> list[Way]:
    """Every dimension of the result; operands are aligned at their last dimension, as in
    broadcasting.
    """
    out = form.outputs[0]
    found = []
    for d in range(len(out) - int(frozen_last)):
        inputs = tuple(_aligned(shape, out, d) for shape in form.inputs)
        outputs = tuple(
            d if len(s) == len(out) and s[d] == out[d] else REPLICATE for s in form.outputs
        )
        weight = 0 if d == len(out) - 1 and form.weight == out[d:] else REPLICATE
        found.append(Way(f"split {d}", inputs, outputs, weight))
    return found


def _aligned(shape: Shape, out: Shape, d: int) -> int:
    """Return the dimension of an operand that dimension d of the result comes from, REPLICATE where
    the operand is broadcast along it.
    """
    at = d - len(out) + len(shape)
    return at if at >= 0 and shape[at] == out[d] else REPLICATE
