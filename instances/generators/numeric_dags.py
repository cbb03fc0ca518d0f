"""Task graphs of numerical codes: tiled Cholesky and LU, a fast Fourier transform, a swept stencil.

Times follow the flops of each kernel (scaled to a mean of about 1000 ticks); transfers are `ccr`
times the mean op time for every tile, within a factor 0.5 to 1.5.

References
----------
H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13, 2002.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.instances.generators.random_dags import MEAN_TICKS, task_graph
from placeopt.instances.generators.table import check_count, generator
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph


class _Tasks:
    """Tasks that read and write tiles in program order; a reader depends on the last writer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: list[str] = []
        self.types: list[str] = []
        self.cost: list[float] = []
        self.edges: list[tuple[int, int]] = []
        self._writer: dict[tuple[int, ...], int] = {}

    def add(
        self,
        kind: str,
        cost: float,
        reads: list[tuple[int, ...]],
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

    def graph(self, ccr: float, seed: int) -> OpGraph:
        """Return the graph, with times scaled to a mean of MEAN_TICKS."""
        cost = np.array(self.cost)
        compute = np.maximum(1, np.floor(cost * (MEAN_TICKS / cost.mean()) + 0.5)).astype(np.int64)
        return task_graph(
            self.name,
            self.edges,
            compute,
            np.random.default_rng(seed),
            ccr,
            op_names=tuple(self.names),
            op_types=tuple(self.types),
        )


@generator()
def cholesky(*, tiles: int = 8, ccr: float = 0.5, seed: int = 0, name: str = "cholesky") -> OpGraph:
    """Build the right-looking Cholesky factorisation of a matrix of tiles x tiles tiles."""
    check_count(name, tiles * (tiles + 1) * (tiles + 2) // 6)
    tasks = _Tasks(name)
    for k in range(tiles):
        tasks.add("potrf", 1 / 3, [(k, k)], (k, k), f"{k}")
        for i in range(k + 1, tiles):
            tasks.add("trsm", 1, [(k, k), (i, k)], (i, k), f"{i}.{k}")
        for i in range(k + 1, tiles):
            tasks.add("syrk", 1, [(i, k), (i, i)], (i, i), f"{i}.{k}")
            for j in range(k + 1, i):
                tasks.add("gemm", 2, [(i, k), (j, k), (i, j)], (i, j), f"{i}.{j}.{k}")
    return tasks.graph(ccr, seed)


@generator()
def lu(*, tiles: int = 8, ccr: float = 0.5, seed: int = 0, name: str = "lu") -> OpGraph:
    """Build the LU factorisation without pivoting of a matrix of tiles x tiles tiles."""
    check_count(name, tiles * (tiles + 1) * (2 * tiles + 1) // 6)
    tasks = _Tasks(name)
    for k in range(tiles):
        tasks.add("getrf", 2 / 3, [(k, k)], (k, k), f"{k}")
        for i in range(k + 1, tiles):
            tasks.add("trsm_row", 1, [(k, k), (k, i)], (k, i), f"{k}.{i}")
            tasks.add("trsm_column", 1, [(k, k), (i, k)], (i, k), f"{i}.{k}")
        for i in range(k + 1, tiles):
            for j in range(k + 1, tiles):
                tasks.add("gemm", 2, [(i, k), (k, j), (i, j)], (i, j), f"{i}.{j}.{k}")
    return tasks.graph(ccr, seed)


@generator()
def fft(*, points: int = 16, ccr: float = 0.5, seed: int = 0, name: str = "fft") -> OpGraph:
    """Build the recursive calls and the butterflies of an FFT (Topcuoglu et al. 2002, section 5.2).

    Parameters
    ----------
    points : a power of two, at least 2; there are 2 * points - 1 calls and points * log2(points)
    butterflies.
    """
    if points < 2 or points & (points - 1):
        raise InputError(
            f"generator '{name}': option 'points' expects a power of two >= 2, received {points}"
        )
    check_count(name, 2 * points - 1 + points * (points.bit_length() - 1))
    tasks = _Tasks(name)
    tasks.add("call", 0.5, [], (0, 0, 0), "0.0")
    stages = points.bit_length() - 1
    for level in range(1, stages + 1):
        for index in range(1 << level):
            tasks.add(
                "call", 0.5, [(0, level - 1, index // 2)], (0, level, index), f"{level}.{index}"
            )
    for stage in range(stages):
        before = (0, stages) if stage == 0 else (1, stage - 1)
        for index in range(points):
            reads: list[tuple[int, ...]] = [(*before, index), (*before, index ^ (1 << stage))]
            tasks.add("butterfly", 1, reads, (1, stage, index), f"{stage}.{index}")
    return tasks.graph(ccr, seed)


@generator()
def stencil(
    *,
    rows: int = 4,
    columns: int = 4,
    steps: int = 5,
    ccr: float = 0.5,
    seed: int = 0,
    name: str = "stencil",
) -> OpGraph:
    """Build a five-point stencil: every tile depends on itself and its neighbours one step
    before.
    """
    check_count(name, rows * columns * steps)
    tasks = _Tasks(name)
    for t in range(steps):
        for i in range(rows):
            for j in range(columns):
                around: list[tuple[int, ...]] = [
                    (t - 1, i + di, j + dj) for di, dj in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
                ]
                tasks.add("sweep", 1, around, (t, i, j), f"{t}.{i}.{j}")
    return tasks.graph(ccr, seed)
