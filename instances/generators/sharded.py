"""Sharded graphs: every matrix product split into block products and reductions.

These are the four workloads of Doppler (Yao et al. 2025). A matrix is a grid of row x column
blocks. The product of X (rows x inner) and Y (inner x columns) is one product op per (row, inner,
column) and, where inner > 1, one reduction per (row, column) that sums the partial results. All ops
that stem from one operation of the unsharded model share a `meta` label, for the solver
"enumerative".

References
----------
"Doppler: dual-policy learning for device assignment in asynchronous dataflow graphs", 2025.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from placeopt.instances.generators import built
from placeopt.instances.generators.builder import GraphBuilder, Tensor
from placeopt.model.errors import InputError


class Blocks(NamedTuple):
    """A matrix as a grid of blocks, by row of blocks and then column."""

    rows: int  # blocks along the first dimension
    columns: int
    cells: tuple[Tensor, ...]

    def at(self, row: int, column: int) -> Tensor:
        """Return one block."""
        return self.cells[row * self.columns + column]


class Sharder:
    """Adds sharded operations to a builder; each call is one meta-op."""

    def __init__(
        self, name: str, shards: int = 4, dtype_bytes: int = 4, training: bool = False
    ) -> None:
        self.b = GraphBuilder(name, dtype_bytes)
        self.build = self.b.build
        self.training = training
        self.rows, self.columns = _grid(shards)
        self.count = shards
        self.metas = itertools.count()  # the next is a fresh meta label

    def input(self, height: int, width: int, rows: int, columns: int) -> Blocks:
        """Return a matrix that exists at the start."""
        cell = self.b.input(-(-height // rows), -(-width // columns))
        return Blocks(rows, columns, (cell,) * (rows * columns))

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Make the ops created inside the pieces of one operation, with a layer of that name."""
        self.b.meta = next(self.metas)
        with self.b.layer(name):
            yield

    def matmul(self, x: Blocks, y: Blocks, name: str) -> Blocks:
        """Product of two blocked matrices; x.columns must equal y.rows."""

        def part(row: int, inner: int, column: int) -> Tensor:
            left, right = x.at(row, inner), y.at(inner, column)
            shape = (left.shape[0], right.shape[1])
            place = f"{row}.{inner}.{column}"
            return self.b.matmul(left, right, shape, left.shape[1], name=place)

        with self.operation(name):
            return self._product(x, y.columns, part)

    def _product(self, x: Blocks, columns: int, part: Callable[[int, int, int], Tensor]) -> Blocks:
        """Return x times a matrix of so many columns, of which `part` makes a product of two
        blocks.
        """
        cells = [
            self.reduce(
                [part(row, inner, column) for inner in range(x.columns)], f"sum{row}.{column}"
            )
            for row in range(x.rows)
            for column in range(columns)
        ]
        return Blocks(x.rows, columns, tuple(cells))

    def linear(self, x: Blocks, width: int, name: str) -> Blocks:
        """Product with a learned matrix.

        Every row of blocks multiplies the same weights. For inference each product op keeps a copy
        of its block, as if it had been distributed before the run; the parameters are counted on
        row 0. For training a block of weights is an op whose output all rows read, so that the
        gradients of all rows are summed.
        """
        b, columns = self.b, self.columns
        height, out = x.cells[0].shape[1], -(-width // columns)
        variables: dict[tuple[int, int], Tensor] = {}

        def part(row: int, inner: int, column: int) -> Tensor:
            left = x.at(row, inner)
            weights = left.shape[1] * out
            return b.op(
                "matmul",
                (left, variables[inner, column]) if variables else (left,),
                (left.shape[0], out),
                name=f"{row}.{inner}.{column}",
                flops=2 * left.size * out,
                parameters=weights if row == 0 and not variables else 0,
                buffers=weights if row and not variables else 0,
                moved=(left.size + weights + left.shape[0] * out) * b.dtype_bytes,
            )

        with self.operation(name):
            for inner, column in itertools.product(range(x.columns), range(columns)):
                if self.training:
                    name = f"weights{inner}.{column}"
                    variables[inner, column] = b.variable((height, out), name=name)
            return self._product(x, columns, part)

    def reduce(self, parts: list[Tensor], name: str) -> Tensor:
        """Reduce the partial results of a block."""
        first, *others = parts
        if not others:
            return first
        flops = len(others) * first.size
        return self.b.op("reduce", parts, first.shape, name=name, flops=flops)

    def map(self, kind: str, operands: list[Blocks], name: str, cost: int = 1) -> Blocks:
        """Element-wise operation on matrices of the same grid."""
        first = operands[0]
        cells = []
        with self.operation(name):
            for index, x in enumerate(first.cells):
                inputs = [operand.cells[index] for operand in operands]
                flops = cost * x.size
                cells.append(self.b.op(kind, inputs, x.shape, name=f"{index}", flops=flops))
        return Blocks(first.rows, first.columns, tuple(cells))

    def normalise(self, x: Blocks, kind: str, name: str) -> Blocks:
        """Row-wise normalisation (softmax, rms norm): statistics per row of blocks, then an
        element-wise op.
        """
        b = self.b
        cells = []
        with self.operation(name):
            for row in range(x.rows):
                line = [x.at(row, column) for column in range(x.columns)]
                if x.columns == 1:
                    cells.append(b.unary(kind, line[0], cost=5, name=f"{row}"))
                    continue
                parts = [
                    b.op(
                        f"{kind}_part",
                        (cell,),
                        (cell.shape[0], 1),
                        name=f"part{row}.{column}",
                        flops=2 * cell.size,
                    )
                    for column, cell in enumerate(line)
                ]
                total = self.reduce(parts, f"sum{row}")
                cells += [
                    b.op(
                        kind, (cell, total), cell.shape, name=f"{row}.{column}", flops=3 * cell.size
                    )
                    for column, cell in enumerate(line)
                ]
        return Blocks(x.rows, x.columns, tuple(cells))

    def regrid(self, x: Blocks, columns: int, name: str) -> Blocks:
        """Cut a matrix into another number of columns: one formation op per new block."""
        if columns == x.columns:
            return x
        height, width = x.cells[0].shape
        shape = (height, -(-x.columns * width // columns))
        cells = []
        with self.operation(name):
            for row in range(x.rows):
                for column in range(columns):
                    parts = [x.at(row, old) for old in _overlap(column, columns, x.columns)]
                    cells.append(self.b.op("formation", parts, shape, name=f"{row}.{column}"))
        return Blocks(x.rows, columns, tuple(cells))


def _grid(count: int) -> tuple[int, int]:
    """Return the most square grid (rows, columns) with rows <= columns and rows * columns =
    count.
    """
    rows = math.isqrt(count)
    while count % rows:
        rows -= 1
    return rows, count // rows


def _overlap(index: int, pieces: int, others: int) -> range:
    """Pieces of a cut into `others` that overlap piece `index` of a cut into `pieces`."""
    return range(index * others // pieces, -(-(index + 1) * others // pieces))


@built(Sharder)
def chain_mm(s: Sharder, *, size: int = 10000) -> None:
    """Build (A B) + (C (D E)) on square matrices.

    Parameters
    ----------
    size : rows and columns of every matrix.
    shards : blocks of every result; products have as many terms as a row of blocks has columns,
    doubled.
    """
    rows, columns, inner = s.rows, s.columns, 2 * s.columns
    left = s.matmul(s.input(size, size, rows, inner), s.input(size, size, inner, columns), "ab")
    right = s.matmul(s.input(size, size, inner, inner), s.input(size, size, inner, columns), "de")
    right = s.matmul(s.input(size, size, rows, inner), right, "cde")
    s.map("add", [left, right], "sum")


@built(Sharder)
def ffnn(
    s: Sharder,
    *,
    layers: int = 2,
    batch: int = 32768,
    inputs: int = 32768,
    hidden: int = 65536,
    outputs: int = 32768,
) -> None:
    """Build a feed-forward network: `layers` hidden layers with rectifiers, then a softmax.

    Parameters
    ----------
    shards : blocks of every activation; inner dimensions are cut into twice as many pieces.
    """
    x = s.input(batch, inputs, s.rows, 2 * s.count)
    for layer in range(layers):
        x = s.linear(x, hidden, f"linear{layer}")
        x = s.map("bias_add", [x], f"bias{layer}")
        x = s.map("relu", [x], f"relu{layer}")
        x = s.regrid(x, 2 * s.count, f"regrid{layer}")
    x = s.linear(x, outputs, "output")
    s.normalise(s.map("bias_add", [x], "output_bias"), "softmax", "softmax")


@built(Sharder)
def llama_block(
    s: Sharder, *, layers: int = 1, hidden: int = 4096, heads: int = 32, seq: int = 4096
) -> None:
    """Build the attention half of a Llama layer: norm, rotary attention and residual; sharded."""
    _llama(s, layers, hidden, heads, seq)


@built(Sharder)
def llama_layer(
    s: Sharder,
    *,
    layers: int = 1,
    hidden: int = 4096,
    heads: int = 32,
    ffn: int = 11008,
    seq: int = 4096,
) -> None:
    """Build whole Llama layers: attention and gated feed-forward parts with their norms;
    sharded.
    """
    _llama(s, layers, hidden, heads, seq, ffn)


def _llama(s: Sharder, layers: int, hidden: int, heads: int, seq: int, ffn: int = 0) -> None:
    """Add Llama layers, without their feed-forward parts where `ffn` is 0."""
    if heads % s.columns or hidden % heads:
        raise InputError(
            f"generator '{s.b.name}': heads must divide hidden and be a multiple of the "
            f"{s.columns} columns of blocks that shards={s.count} makes, received heads={heads}, "
            f"hidden={hidden}"
        )
    x = s.input(seq, hidden, s.rows, s.columns)
    for layer in range(layers):
        with s.b.layer(f"layer{layer}"):
            x = _attention(s, x, hidden, heads)
            x = _gated_feed_forward(s, x, ffn) if ffn else x


def _gated_feed_forward(s: Sharder, x: Blocks, ffn: int) -> Blocks:
    """Return the residual feed-forward part."""
    hidden = x.columns * x.cells[0].shape[1]
    y = s.normalise(x, "rms_norm", "norm2")
    gate = s.map("silu", [s.linear(y, ffn, "gate")], "silu", cost=4)
    gated = s.map("mul", [gate, s.linear(y, ffn, "up")], "gated")
    return s.map("add", [x, s.linear(gated, hidden, "down")], "residual2")


def _attention(s: Sharder, x: Blocks, hidden: int, heads: int) -> Blocks:
    """Return the residual attention part; heads are dealt to the column blocks, keys to the row
    blocks.
    """
    y = s.normalise(x, "rms_norm", "norm1")
    q, k, v = (
        s.map("formation", [s.linear(y, hidden, key)], f"{key}_heads", cost=0) for key in "qkv"
    )
    q, k = (_rotary(s, blocks, name) for blocks, name in ((q, "q_rotary"), (k, "k_rotary")))
    k = s.map("formation", [k], "k_transposed", cost=0)
    local = heads // s.columns  # heads of one column of blocks
    b = s.b
    meta_scores, meta_mask, meta_softmax, meta_mix = (next(s.metas) for _ in range(4))
    cells = []
    for row in range(s.rows):
        for column in range(s.columns):
            query = q.at(row, column)
            length, width = query.shape
            scores = []
            for key in range(s.rows):
                keys = k.at(key, column)
                shape, place = (local, length, keys.shape[0]), f"{row}.{key}.{column}"
                b.meta = meta_scores
                score = b.matmul(query, keys, shape, width // local, name=f"scores/{place}")
                b.meta = meta_mask
                scores.append(b.unary("scale_mask", score, cost=2, name=f"mask/{place}"))
            b.meta = meta_softmax
            weights = _softmax(b, scores, f"softmax/{row}.{column}")
            b.meta = meta_mix
            parts = [
                b.matmul(
                    weight,
                    v.at(key, column),
                    (length, width),
                    weight.shape[2],
                    name=f"mix/{row}.{key}.{column}",
                )
                for key, weight in enumerate(weights)
            ]
            cells.append(s.reduce(parts, f"mix/sum{row}.{column}"))
    mixed = Blocks(s.rows, s.columns, tuple(cells))
    return s.map("add", [x, s.linear(mixed, hidden, "out")], "residual1")


def _rotary(s: Sharder, x: Blocks, name: str) -> Blocks:
    """Rotate pairs of features: read them as complex numbers, multiply, write them back."""
    z = s.map("to_complex", [x], f"{name}/to_complex", cost=0)
    z = s.map("mul_complex", [z], f"{name}/mul", cost=3)
    return s.map("to_real", [z], f"{name}/to_real", cost=0)


def _softmax(b: GraphBuilder, scores: list[Tensor], name: str) -> list[Tensor]:
    """Stable softmax over a row of score blocks: maximum, exponentials, sum, quotient."""

    def over_row(kind: str, blocks: list[Tensor]) -> Tensor:
        rows = (*blocks[0].shape[:2], 1)
        parts = [
            b.op(kind, (block,), rows, name=f"{name}/{kind}{key}", flops=block.size)
            for key, block in enumerate(blocks)
        ]
        if len(parts) == 1:
            return parts[0]
        flops = sum(part.size for part in parts)
        return b.op(kind, parts, rows, name=f"{name}/{kind}", flops=flops)

    top = over_row("reduce_max", scores)
    exps = [
        b.op("exp", (score, top), score.shape, name=f"{name}/exp{key}", flops=2 * score.size)
        for key, score in enumerate(scores)
    ]
    total = over_row("reduce_sum", exps)
    return [b.binary("div", e, total, name=f"{name}/div{key}") for key, e in enumerate(exps)]
