"""RAMP clusters: servers on a grid of communication groups, racks and positions, and the blocks a
split op fits.

A server has the coordinates (group, rack, position); its index is (group * racks + rack) *
positions + position. An op split s ways occupies a *block* of s servers: a box of one of the shapes
that keep collectives symmetric (section "Placement" of the job-stream model; Ottino et al., RAMP,
2022). Shapes are tried in the order of `block_shapes`, origins by group, rack, position.

References
----------
A. Ottino, J. Benjamin, G. Zervas, "RAMP: a flat nanosecond optical network and MPI operations for
distributed deep learning systems", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from placeopt.model.arrays import MAX_SUM, Bits, Ints, csr, row_at, row_numbers, tells_types
from placeopt.model.errors import InputError


class Blocks(NamedTuple):
    """Every block of every size, in the order in which first fit tries them.

    The blocks of size s are rows ``size_ptr[s] .. size_ptr[s + 1]``; the servers of row b are
    ``server[server_ptr[b] : server_ptr[b + 1]]``.
    """

    size_ptr: Ints  # (max_size + 2,)
    server_ptr: Ints  # (num_blocks + 1,)
    server: Ints  # (sum of sizes,) server index

    def of_size(self, size: int) -> Iterator[list[int]]:
        """Yield the servers of every block of a size."""
        for row in range(*self.size_ptr[size : size + 2].tolist()):
            yield row_at(self.server, self.server_ptr, row).tolist()

    def masks(self, num_servers: int) -> Bits:
        """Return the servers of every block as bits of 64-bit words, (num_blocks, words)."""
        marks = np.zeros((len(self.server_ptr) - 1, -(-num_servers // 64) * 64), np.bool_)
        marks[row_numbers(self.server_ptr), self.server] = True
        return np.packbits(marks, axis=1, bitorder="little").view(np.uint64)


@tells_types
@dataclass(frozen=True)
class RampTopology:
    """A grid of identical servers, each pair connected.

    Attributes
    ----------
    groups, racks, servers : communication groups, racks per group, servers per rack.
    memory : bytes of one server.
    bandwidth : what one server sends per second over all its transceivers, in bytes (1.6 Tb/s =
    2e11 B/s; the
        published simulator takes the number of bits for a number of bytes).
    propagation, io_latency : seconds; a transfer pays the first once and the second twice.
    memory_frequency, peak_flops : bytes and operations per second of a server adding up a
    collective.
    max_degree : largest degree that policies may choose.
    """

    groups: int = 4
    racks: int = 4
    servers: int = 2
    memory: int = 80_000_000_000
    bandwidth: float = 2e11
    propagation: float = 50e-9
    io_latency: float = 100e-9
    memory_frequency: float = 2e12
    peak_flops: float = 130e12
    max_degree: int = 16

    def __post_init__(self) -> None:
        for key in ("groups", "racks", "servers", "max_degree"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"topology: {key} must be a whole number >= 1, received {value}")
        if self.num_servers > 4096:
            raise InputError(
                f"topology: at most 4096 servers are supported, received {self.num_servers}"
            )
        if not 0 < self.memory < MAX_SUM:
            raise InputError(f"topology: memory must be in 1..2^62 bytes, received {self.memory}")
        for keys, low, what in (
            (("bandwidth", "memory_frequency", "peak_flops"), math.ulp(0.0), "positive number"),
            (("propagation", "io_latency"), 0.0, "number >= 0"),
        ):
            for key in keys:
                if not low <= getattr(self, key) < math.inf:
                    raise InputError(
                        f"topology: {key} must be a {what}, received {getattr(self, key)}"
                    )

    @property
    def num_servers(self) -> int:
        """Number of servers of the grid."""
        return self.groups * self.racks * self.servers

    @property
    def channel_bandwidth(self) -> float:
        """Bytes per second between two servers: the transceivers are shared out over the groups."""
        return self.bandwidth / self.groups

    def index(self, group: int, rack: int, position: int) -> int:
        """Return the index of the server at these coordinates."""
        return (group * self.racks + rack) * self.servers + position

    @cached_property
    def coordinates(self) -> Ints:
        """(num_servers, 3) group, rack and position of each server."""
        grid = np.indices((self.groups, self.racks, self.servers)).reshape(3, -1).T
        return np.ascontiguousarray(grid, np.int64)

    def block_shapes(self, size: int) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes (groups, racks, positions) of blocks of `size` servers, in the order
        they are tried.

        For factor pairs (a, b) of the size, a descending: (sqrt a, sqrt a, b) when a is a square,
        then (a, 1, b) and (a, b, 1); last (size, 1, 1). Shapes larger than the grid are left out.
        """
        shapes: list[tuple[int, int, int]] = []
        for a in range(size, 0, -1):
            b, rest = divmod(size, a)
            if rest:
                continue
            root = math.isqrt(a)
            if root * root == a:
                shapes.append((root, root, b))
            if a <= min(self.groups, self.racks) and b <= self.servers:
                shapes += [(a, 1, b), (a, b, 1)]
        shapes.append((size, 1, 1))
        fits = [
            s for s in shapes if s[0] <= self.groups and s[1] <= self.racks and s[2] <= self.servers
        ]
        return tuple(dict.fromkeys(fits))

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that policies may choose: 1 and the even numbers up to `max_degree` that have a
        block.
        """
        limit = min(self.max_degree, self.num_servers)
        return tuple(u for u in (1, *range(2, limit + 1, 2)) if self.block_shapes(u))

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of all sizes up to the largest degree, in the order of first fit."""
        grid = np.arange(self.num_servers).reshape(self.groups, self.racks, self.servers)
        rows: list[list[int]] = []
        pointer = [0, 0]
        for size in range(1, max(self.degrees) + 1):
            for shape in self.block_shapes(size):
                rows += sliding_window_view(grid, shape).reshape(-1, size).tolist()
            pointer.append(len(rows))
        server_ptr, server = csr(rows)
        return Blocks(np.array(pointer, np.int64), server_ptr, server)

    def require_degree(self, degree: int, what: str = "degree") -> int:
        """Return the index of `degree` among `degrees`.

        Raises
        ------
        InputError
            If the topology has no block of that many servers, or policies may not choose it.
        """
        if degree not in self.degrees:
            known = ", ".join(map(str, self.degrees))
            grid = f"{self.groups}x{self.racks}x{self.servers}"
            raise InputError(
                f"{what} {degree} does not exist on the {grid} grid; choose one of {known}"
            )
        return self.degrees.index(degree)
