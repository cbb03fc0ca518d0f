"""Task graphs with times of their own: random families (layered, fork-join, series-parallel, trees)
and numerical codes (tiled Cholesky and LU, a fast Fourier transform, a swept stencil).

Every op has one time for all devices, around 1000 ticks. In the random families its output is one
tensor with a transfer time of `ccr` times the mean op time on average; in the numerical codes times
follow the flops of each kernel, and transfers are `ccr` times the mean op time for every tile,
within a factor 0.5 to 1.5. Use them on identical devices ("uniform:4").

References
----------
T. Tobita, H. Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
algorithms", Journal of Scheduling 5, 2002.

H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13, 2002.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placeopt.instances.generators import MAX_EDGES, MAX_OPS, built, check_count
from placeopt.model.arrays import Ints, numbered, running_sums
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph

MEAN_TICKS = 1000
"""Mean time of an op in the random families: fine enough for integer costs, coarse enough to
read."""

BYTES_PER_TICK = 16
"""Size that stands for one tick of transfer where a cost model wants bytes (16 GB/s at 1 ns)."""


@dataclass(eq=False)
class _Drawn:
    """A graph whose times are drawn.

    Parameters
    ----------
    ccr : mean transfer time over mean op time.
    spread : op times are uniform within a factor 1 -+ spread of MEAN_TICKS, at least 1.
    """

    name: str
    ccr: float = 0.5
    spread: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def draw(self, edges: ArrayLike, count: int, **fields: Any) -> None:
        """Draw the times of `count` ops and of the tensors between them."""
        low, high = MEAN_TICKS * (1 - self.spread), MEAN_TICKS * (1 + self.spread)
        compute = np.maximum(1, self.rng.uniform(low, high, count).astype(np.int64))
        self.graph = task_graph(self.name, edges, compute, self.rng, self.ccr, **fields)

    def build(self) -> OpGraph:
        """Return what was drawn."""
        return self.graph


@built(_Drawn, {"layers": (1, MAX_OPS), "degree": (1, 1000)}, ccr=1.0, spread=0.9)
def layered(g: _Drawn, *, layers: int = 10, width: int = 10, degree: float = 2.0) -> None:
    """Build a layered random DAG (after Tobita and Kasahara 2002, "layrprob").

    Parameters
    ----------
    width : mean ops per layer; a layer has between half and one and a half times as many.
    degree : mean number of inputs of an op from the layer before, at least one.
    """
    check_count(g.name, layers * width)
    check_count(g.name, round(layers * width * degree), MAX_EDGES, "edges")
    rng = g.rng
    sizes = rng.integers(max(1, width // 2), width + width // 2 + 1, layers)
    first = running_sums(sizes)
    edges = [np.zeros((0, 2), np.int64)]
    for layer in range(1, layers):
        ops = np.arange(first[layer], first[layer + 1])
        inputs = np.minimum(1 + rng.poisson(degree - 1, len(ops)), sizes[layer - 1])
        sources = rng.integers(first[layer - 1], first[layer], int(inputs.sum()))
        edges.append(np.column_stack([sources, np.repeat(ops, inputs)]))
    labels = tuple(
        f"layer/{layer}" for layer, size in enumerate(sizes.tolist()) for _ in range(size)
    )
    g.draw(np.concatenate(edges), len(labels), layer=labels)


@built(_Drawn)
def fork_join(g: _Drawn, *, stages: int = 5, branches: int = 8, length: int = 2) -> None:
    """Build a sequence of stages: a fork op, `branches` chains of `length` ops, then a join op."""
    check_count(g.name, stages * (branches * length + 1) + 1)
    edges: list[tuple[int, int]] = []
    op = 0
    for _ in range(stages):
        fork, op, ends = op, op + 1, []
        for _ in range(branches):
            before = fork
            for _ in range(length):
                edges.append((before, op))
                before, op = op, op + 1
            ends.append(before)
        edges += [(end, op) for end in ends]  # the join is the next stage's fork
    g.draw(edges, op + 1)


@built(_Drawn, spread=0.9)
def series_parallel(g: _Drawn, *, ops: int = 100, parallel: float = 0.5, branches: int = 4) -> None:
    """Build a random series-parallel DAG by splitting ops.

    Starting from a source, a sink and an op between them, a random inner op is replaced by two in
    series, or (with probability `parallel`) joined by up to `branches` - 1 parallel copies, until
    there are `ops` ops.
    """
    check_count(g.name, ops)
    rng = g.rng
    # ops 0 and 1 are source and sink; before[v], after[v] list the neighbours of v
    before: list[list[int]] = [[], []]
    after: list[list[int]] = [[], []]

    def insert(sources: list[int], targets: list[int]) -> None:
        op = len(before)
        before.append(list(sources))
        after.append(list(targets))
        for u in sources:
            after[u].append(op)
        for v in targets:
            before[v].append(op)

    insert([0], [1])
    while len(before) < ops:
        op = int(rng.integers(2, len(before)))
        if rng.random() < parallel and branches > 1:
            for _ in range(min(int(rng.integers(1, branches)), ops - len(before))):
                insert(before[op], after[op])
        else:  # a new op takes over everything after `op`
            successors = after[op]
            after[op] = []
            for v in successors:
                before[v].remove(op)
            insert([op], successors)
    edges = [(u, v) for u, targets in enumerate(after) for v in targets]
    g.draw(edges, len(before))


@built(_Drawn)
def out_tree(g: _Drawn, *, depth: int = 6, arity: int = 2) -> None:
    """Build a complete tree with `depth` levels below the root, edges from parent to children."""
    edges = _tree(g.name, depth, arity)
    g.draw(edges, len(edges) + 1)


@built(_Drawn)
def in_tree(g: _Drawn, *, depth: int = 6, arity: int = 2) -> None:
    """Build a complete tree with edges from children to parent; the root is the last op."""
    edges = _tree(g.name, depth, arity)
    g.draw(len(edges) - edges[:, ::-1], len(edges) + 1)


def _tree(name: str, depth: int, arity: int) -> Ints:
    """Return the edges (parent, child) of a complete tree whose root is op 0."""
    check_count(name, depth + 1 if arity == 1 else arity ** min(depth, 64))
    n = depth + 1 if arity == 1 else (arity ** (depth + 1) - 1) // (arity - 1)
    check_count(name, n)
    child = np.arange(1, n, dtype=np.int64)
    return np.column_stack([(child - 1) // arity, child])


def task_graph(
    name: str, edges: ArrayLike, compute: Ints, rng: np.random.Generator, ccr: float, **fields: Any
) -> OpGraph:
    """Build a graph from edges between ops; all out-edges of an op are one tensor.

    Times of transfers have a mean of `ccr` times the mean op time, uniform within a factor 0.5 to
    1.5.

    Parameters
    ----------
    edges : (source, target) of each; repeated edges are merged.
    compute : ticks of every op on any device.
    """
    pairs = np.unique(np.asarray(edges, np.int64).reshape(-1, 2), axis=0)
    producer, pointer = tensors_of(pairs)
    mean = ccr * float(compute.mean())
    transfer = np.floor(rng.uniform(0.5, 1.5, len(producer)) * mean + 0.5).astype(np.int64)
    return timed_graph(name, compute, (producer, pointer, pairs[:, 1]), transfer, **fields)


def tensors_of(pairs: Ints) -> tuple[Ints, Ints]:
    """Return the producers of sorted (producer, consumer) pairs and where the pairs of each begin,
    with the end.
    """
    producer, degree = np.unique(pairs[:, 0], return_counts=True)
    return producer, running_sums(degree)


def timed_graph(
    name: str, compute: Ints, tensors: tuple[Ints, Ints, Ints], transfer: Ints, **fields: Any
) -> OpGraph:
    """Build a graph with ticks of every op, on any device, and of every tensor.

    Parameters
    ----------
    tensors : producers, pointer and consumers.
    """
    producer, pointer, consumer = tensors
    fields.setdefault("op_names", numbered("op", len(compute)))
    return OpGraph(
        name=name,
        producer=producer,
        tensor_bytes=transfer * BYTES_PER_TICK,
        consumer_ptr=pointer,
        consumer=consumer,
        measured_kinds=("*",),
        measured=compute.reshape(-1, 1),
        measured_transfer=transfer,
        **fields,
    )


@dataclass(eq=False)
class _Tasks:
    """Tasks that read and write tiles in program order; a reader depends on the last writer."""

    name: str
    ccr: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self.names: list[str] = []
        self.types: list[str] = []
        self.cost: list[float] = []
        self.edges: list[tuple[int, int]] = []
        self._writer: dict[tuple[int, ...], int] = {}

    def add(
        self,
        kind: str,
        cost: float,
        reads: Sequence[tuple[int, ...]],
        writes: tuple[int, ...],
        label: str,
    ) -> None:
        """Add a task; `cost` is relative to the others, tiles that nobody wrote are inputs."""
        op = len(self.names)
        self.names.append(f"{kind}/{label}")
        self.types.append(kind)
        self.cost.append(cost)
        self.edges += [(self._writer[tile], op) for tile in reads if tile in self._writer]
        self._writer[writes] = op

    def build(self) -> OpGraph:
        """Return the graph, with times scaled to a mean of MEAN_TICKS."""
        cost = np.array(self.cost)
        compute = np.maximum(1, np.floor(cost * (MEAN_TICKS / cost.mean()) + 0.5)).astype(np.int64)
        return task_graph(
            self.name,
            self.edges,
            compute,
            np.random.default_rng(self.seed),
            self.ccr,
            op_names=tuple(self.names),
            op_types=tuple(self.types),
        )


@built(_Tasks)
def cholesky(tasks: _Tasks, *, tiles: int = 8) -> None:
    """Build the right-looking Cholesky factorisation of a matrix of tiles x tiles tiles."""
    check_count(tasks.name, tiles * (tiles + 1) * (tiles + 2) // 6)
    for k in range(tiles):
        tasks.add("potrf", 1 / 3, [(k, k)], (k, k), f"{k}")
        for i in range(k + 1, tiles):
            tasks.add("trsm", 1, [(k, k), (i, k)], (i, k), f"{i}.{k}")
        for i in range(k + 1, tiles):
            tasks.add("syrk", 1, [(i, k), (i, i)], (i, i), f"{i}.{k}")
            for j in range(k + 1, i):
                tasks.add("gemm", 2, [(i, k), (j, k), (i, j)], (i, j), f"{i}.{j}.{k}")


@built(_Tasks)
def lu(tasks: _Tasks, *, tiles: int = 8) -> None:
    """Build the LU factorisation without pivoting of a matrix of tiles x tiles tiles."""
    check_count(tasks.name, tiles * (tiles + 1) * (2 * tiles + 1) // 6)
    for k in range(tiles):
        tasks.add("getrf", 2 / 3, [(k, k)], (k, k), f"{k}")
        for i in range(k + 1, tiles):
            tasks.add("trsm_row", 1, [(k, k), (k, i)], (k, i), f"{k}.{i}")
            tasks.add("trsm_column", 1, [(k, k), (i, k)], (i, k), f"{i}.{k}")
        for i in range(k + 1, tiles):
            for j in range(k + 1, tiles):
                tasks.add("gemm", 2, [(i, k), (k, j), (i, j)], (i, j), f"{i}.{j}.{k}")


@built(_Tasks)
def fft(tasks: _Tasks, *, points: int = 16) -> None:
    """Build the recursive calls and the butterflies of an FFT (Topcuoglu et al. 2002, section 5.2).

    Parameters
    ----------
    points : a power of two, at least 2; there are 2 * points - 1 calls and points * log2(points)
    butterflies.
    """
    if points < 2 or points & (points - 1):
        raise InputError(
            f"generator '{tasks.name}': option 'points' expects a power of two >= 2, received "
            f"{points}"
        )
    stages = points.bit_length() - 1
    check_count(tasks.name, 2 * points - 1 + points * stages)
    tasks.add("call", 0.5, [], (0, 0, 0), "0.0")
    for level in range(1, stages + 1):
        for index in range(1 << level):
            tasks.add(
                "call", 0.5, [(0, level - 1, index // 2)], (0, level, index), f"{level}.{index}"
            )
    for stage in range(stages):
        before = (0, stages) if stage == 0 else (1, stage - 1)
        for index in range(points):
            reads = [(*before, index), (*before, index ^ (1 << stage))]
            tasks.add("butterfly", 1, reads, (1, stage, index), f"{stage}.{index}")


@built(_Tasks)
def stencil(tasks: _Tasks, *, rows: int = 4, columns: int = 4, steps: int = 5) -> None:
    """Build a five-point stencil: every tile depends on itself and its neighbours one step
    before.
    """
    check_count(tasks.name, rows * columns * steps)
    for t in range(steps):
        for i in range(rows):
            for j in range(columns):
                around = [
                    (t - 1, i + di, j + dj) for di, dj in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
                ]
                tasks.add("sweep", 1, around, (t, i, j), f"{t}.{i}.{j}")
