"""Operands of sharded graphs, from the names and shapes that instances/generators/sharded.py gives
their ops.

The product of block (row, inner) and block (inner, column) is called "row.inner.column", a map's
blocks are numbered, a reduction's parts come in order: enough to know which block of which matrix
an op reads, also where that matrix is an input of the model or learned and therefore no tensor of
the graph. So the result can be compared with the computation on whole matrices.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from placeopt.runtime.steps import Constant, matrix

if TYPE_CHECKING:
    from placeopt.runtime.steps import Op, OpTable, Rule, Shape

_PLACE = re.compile(r"(?:part|sum)?(\d+(?:\.\d+)*)$")


def rule(table: OpTable, op: Op) -> Rule | None:
    """Return the kernel of a sharded op; None for those whose general rule is right."""
    match = _PLACE.match(op.name.rpartition("/")[2])
    if op.kind == "reduce":
        return ("sum", {}, op.inputs) if all(shape == op.out[0] for shape in op.shapes) else None
    if match is None or len(op.out) != 1:
        return None
    maker = _RULES.get(op.kind)
    return maker(table, op, tuple(int(x) for x in match[1].split("."))) if maker else None


def input_block(row: int, column: int, shape: Shape, dtype: str) -> Constant:
    """Block of the model's input."""
    return matrix(f"input{row}.{column}", shape, dtype)


def _path(op: Op) -> str:
    return op.name.rpartition("/")[0]


def _grid_place(table: OpTable, op: Op, index: int) -> tuple[int, int]:
    """Row and column of the block that a map's op number `index` works on."""
    count = len(table.siblings(_path(op)))
    rows = math.isqrt(count)
    while count % rows:
        rows -= 1
    return divmod(index, count // rows)


def _matmul(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    out = op.out[0]
    if found := _attention(op):
        return found
    if len(place) != 3 or len(out) != 2 or len(op.inputs) > 2:
        return None
    row, inner, column = place
    length = op.flops // (2 * math.prod(out))
    shapes = [(out[0], length), (length, out[1])]
    sides = _sides(table, op, shapes[0])
    if list(op.shapes) != [shapes[side] for side in sides]:
        return None
    names = f"{_path(op)}/left{row}.{inner}", f"{_path(op)}/weights{inner}.{column}"
    operands: list[int | Constant] = [
        matrix(name, shape, op.dtype, length) for name, shape in zip(names, shapes, strict=True)
    ]
    for tensor, side in zip(op.inputs, sides, strict=True):
        operands[side] = tensor
    return "matmul", {}, tuple(operands)


def _attention(op: Op) -> Rule | None:
    """Scores of heads, or values mixed by scores; None for a product of plain matrices."""
    if len(op.inputs) != 2:
        return None
    if len(op.out[0]) == 3:
        return "scores", {"heads": op.out[0][0]}, op.inputs
    dimensions = list(map(len, op.shapes))
    if sorted(dimensions) != [2, 3]:
        return None
    return "mix", {}, op.inputs if dimensions == [3, 2] else op.inputs[::-1]


def _sides(table: OpTable, op: Op, left: Shape) -> tuple[int, ...]:
    """Return on which side of a product (0: left) each input of an op stands.

    Learned matrices are on the right, model inputs on the left.
    """
    if len(op.inputs) == 1:
        return (0,) if op.weights else (1,)
    variable = [table.graph.op_types[table.producer[t]] == "variable" for t in op.inputs]
    swap = variable == [True, False] or (variable == [False, False] and op.shapes[0] != left)
    return ((1, 0) if swap else (0, 1)) if op.inputs else ()


def _map(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Element-wise op of one or two blocks; a missing one is a block of the model's input."""
    row, column = _grid_place(table, op, place[0])
    if op.kind == "bias_add":
        bias = matrix(f"{_path(op)}/bias", (op.out[0][1],), op.dtype, 4)
        return "binary", {"function": "bias_add"}, (*op.inputs, bias)
    if op.kind == "mul_complex":
        return "rotate", {"first": row * op.out[0][0]}, op.inputs
    if op.kind in (
        "to_complex",
        "to_real",
    ):  # pairs of features are complex numbers as they lie in memory
        return "unary", {"function": "copy"}, op.inputs
    if len(op.inputs) == 2:
        return "binary", {"function": op.kind}, op.inputs
    return (
        "binary",
        {"function": op.kind},
        (input_block(row, column, op.out[0], op.dtype), *op.inputs),
    )


def _statistics(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Mean square or sum of exponentials of the rows of one block."""
    function = "square" if op.kind == "rms_norm_part" else "exp"
    if op.inputs:
        return "over_rows", {"function": function}, op.inputs
    height = op.out[0][0]
    block = input_block(place[0], place[1], (height, op.flops // (2 * height)), op.dtype)
    return "over_rows", {"function": function}, (block,)


def _normalise(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    out = op.out[0]
    blocks: list[int | Constant] = [
        t for t, shape in zip(op.inputs, op.shapes, strict=True) if shape == out
    ]
    totals = [t for t in op.inputs if t not in blocks]
    if not blocks:
        blocks = [input_block(place[0], place[1] if len(place) > 1 else 0, out, op.dtype)]
    if len(blocks) > 1 or len(totals) > 1:
        return None
    parts = len(table.inputs[table.producer[totals[0]]]) if totals else 1
    return op.kind, {"parts": parts}, (blocks[0], *totals)


def _regrid(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Form a block of another grid out of the blocks it overlaps."""
    if len(place) != 2:
        return "rearrange", {"shape": op.out[0]}, op.inputs
    (height, width), old = op.out[0], op.shapes[0]
    offset = (place[0] * height % old[0], place[1] * width % old[1])
    down = -(-(offset[0] + height) // old[0])
    if any(shape != old for shape in op.shapes) or len(op.inputs) % down:
        return None
    across = len(op.inputs) // down
    return "regrid", {"shape": op.out[0], "offset": offset, "across": across}, op.inputs


def _mask(table: OpTable, op: Op, place: tuple[int, ...]) -> Rule | None:
    """Scale the scores of one block of queries and keys, and hide the keys after the query."""
    heads, queries, keys = op.out[0]
    product = table.producer[op.inputs[0]]
    width = int(table.graph.flops[product]) // (2 * queries * keys * heads)
    first = place[0] * queries - place[1] * keys
    return "mask", {"first": first, "factor": 1.0 / math.sqrt(max(1, width))}, op.inputs


_RULES = {
    "matmul": _matmul,
    **dict.fromkeys(("bias_add", "mul_complex", "to_complex", "to_real", "add", "mul"), _map),
    "rms_norm_part": _statistics,
    "softmax_part": _statistics,
    "rms_norm": _normalise,
    "softmax": _normalise,
    "formation": _regrid,
    "scale_mask": _mask,
}
