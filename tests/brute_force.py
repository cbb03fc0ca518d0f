"""Periods by their definition alone: tiny random problems and the best of all their placements, in plain Python.

Nothing here comes from the package but the constructor of a problem, so that the two can be held against each other.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np

from placeopt.model.problem import PlacementProblem

UNLIMITED = 2**62
STYLES = {
    "small": lambda rng: rng.randint(0, 20),
    "zero": lambda rng: rng.choice([0, 0, 0, 1, 2]),
    "mixed": lambda rng: rng.choice([0, 1, 3, 2**40, 2**50 + 1]),
    "huge": lambda rng: rng.choice([0, 1, 2**50, 2**50 + rng.randint(0, 9), 2**56]),
}
"""How times are drawn."""


@dataclass
class Tiny:
    """A problem as plain lists; io_class -1 never pays."""

    compute: list[list[int]]  # ticks, -1 where incompatible
    tensors: list[tuple[int, list[int]]]  # (producer, consumers)
    transfer: list[list[int]]  # ticks of each tensor over each link class
    io_class: list[int]
    backward: list[bool]
    colocation: list[int]
    resident: list[int]
    capacity: list[int]
    contiguity: str
    pipeline: str
    num_ops: int = field(init=False)
    num_devices: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_ops, self.num_devices = len(self.compute), len(self.compute[0])

    def problem(self) -> PlacementProblem:
        """Return the same problem as the package sees it."""
        return PlacementProblem.from_arrays(
            name="tiny",
            compute=self.compute,
            producer=[u for u, _ in self.tensors],
            consumer_ptr=np.cumsum([0, *(len(consumers) for _, consumers in self.tensors)]),
            consumer=[c for _, consumers in self.tensors for c in consumers],
            transfer=np.array(self.transfer, dtype=np.int64).reshape(len(self.tensors), -1)
            if self.tensors else np.zeros((0, 2), dtype=np.int64),
            io_class=self.io_class,
            backward=self.backward,
            colocation=self.colocation,
            resident=self.resident,
            capacity=self.capacity,
            objective="period",
            contiguity=self.contiguity,
            pipeline=self.pipeline,
        )  # fmt: skip

    def period(self, device: tuple[int, ...]) -> int | None:
        """Period of a placement, None where it breaks a constraint."""
        if not self._fits(device) or not self._contiguous(device):
            return None
        load = [[0] * self.num_devices, [0] * self.num_devices]  # forward and backward
        for v, d in enumerate(device):
            load[self.backward[v]][d] += self.compute[v][d]
        for (u, consumers), ticks in zip(self.tensors, self.transfer, strict=True):
            for d in range(self.num_devices):
                receives = device[u] != d and any(device[c] == d for c in consumers)
                sends = device[u] == d and any(device[c] != d for c in consumers)
                if self.io_class[d] >= 0 and (receives or sends):
                    load[self.backward[u]][d] += ticks[self.io_class[d]]
        forward, backward = load
        if self.pipeline == "gpipe":
            return max(forward) + max(backward)
        return max(a + b for a, b in zip(forward, backward, strict=True))

    def best(self) -> int | None:
        """Smallest period of all placements, None if there is none."""
        every = itertools.product(range(self.num_devices), repeat=self.num_ops)
        return min((ticks for device in every if (ticks := self.period(device)) is not None), default=None)

    def _fits(self, device: tuple[int, ...]) -> bool:
        group_device = dict(zip(self.colocation, device, strict=True))
        used = [0] * self.num_devices
        for v, d in enumerate(device):
            used[d] += self.resident[v]
            if self.compute[v][d] < 0 or (self.colocation[v] >= 0 and group_device[self.colocation[v]] != d):
                return False
        return all(u <= c for u, c in zip(used, self.capacity, strict=True))

    def _contiguous(self, device: tuple[int, ...]) -> bool:
        back = self.backward
        pairs = [(u, c) for u, consumers in self.tensors for c in consumers]
        edges = [(u, c) for u, c in pairs if not back[u] and not back[c]]
        if self.contiguity == "convex":

            def stays_out(v: int, left: frozenset[int]) -> bool:
                return device[v] not in left and all(
                    stays_out(c, left | ({device[v]} - {device[c]})) for u, c in edges if u == v
                )

            return all(stays_out(v, frozenset()) for v in range(self.num_ops) if not back[v])
        if self.contiguity == "chain":
            with_forward = {g for g, b in zip(self.colocation, back, strict=True) if g >= 0 and not b}
            orphan = [b and g not in with_forward for g, b in zip(self.colocation, back, strict=True)]
            edges += [(c, u) for u, c in pairs if back[u] and back[c] and (orphan[u] or orphan[c])]
            return any(
                all(position[device[u]] <= position[device[v]] for u, v in edges)
                for position in itertools.permutations(range(self.num_devices))
            )
        return True


def draw(seed: int) -> Tiny:
    """Return a random problem of up to 5 ops and 4 devices with many ties, zeros and extremes."""
    rng = random.Random(seed)
    n = rng.randint(1, 5)
    k = rng.randint(1, 3 if n == 5 else 4)
    ticks = STYLES[rng.choice(list(STYLES))]
    uniform, classes = rng.random() < 0.4, rng.choice([1, 1, 2])
    compute = []
    for _ in range(n):
        row = [ticks(rng)] * k if uniform else [ticks(rng) for _ in range(k)]
        if rng.random() < 0.25:
            keep = rng.randrange(k)
            row = [x if d == keep or rng.random() < 0.6 else -1 for d, x in enumerate(row)]
        compute.append(row)
    tensors: list[tuple[int, list[int]]] = []
    for u in range(n):
        later = [v for v in range(u + 1, n) if rng.random() < 0.45]
        shared = rng.random() < 0.7
        tensors += ([(u, later)] if shared else [(u, [v]) for v in later]) if later else []
    first_backward = rng.randint(0, n) if rng.random() < 0.5 else n
    limited = rng.random() < 0.4
    return Tiny(
        compute=compute,
        tensors=tensors,
        transfer=[[ticks(rng) for _ in range(classes)] for _ in tensors],
        io_class=[rng.choice([-1, 0, 0, 0, classes - 1]) for _ in range(k)],
        backward=[v >= first_backward for v in range(n)],
        colocation=[rng.choice([-1, -1, 0, 1]) for _ in range(n)] if rng.random() < 0.4 else [-1] * n,
        resident=[rng.choice([0, 1, 2, 5]) for _ in range(n)],
        capacity=[rng.choice([3, 5, 8, 100]) for _ in range(k)] if limited else [UNLIMITED] * k,
        contiguity=rng.choice(["chain", "convex", "none"]),
        pipeline=rng.choice(["1f1b", "gpipe"]),
    )
