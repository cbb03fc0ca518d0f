"""Random tiny period problems and slow, obvious evaluators of their placements."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from placeopt.model.problem import PlacementProblem

if TYPE_CHECKING:
    from collections.abc import Iterator


def every_meaning(test: Any) -> Any:
    """Run a test under every contiguity and pipeline, for inference and for training."""
    test = pytest.mark.parametrize("training", [False, True])(test)
    test = pytest.mark.parametrize("pipeline", ["1f1b", "gpipe"])(test)
    return pytest.mark.parametrize("contiguity", ["chain", "convex", "none"])(test)


def random_problem(
    seed: int, *, training: bool = False, n: int = 6, **fields: object
) -> PlacementProblem:
    """Two accelerators and a CPU, or three unrelated devices; shared tensors, colocation,
    memory.
    """
    rng = np.random.default_rng(seed)
    forward = n // 2 if training else n
    unrelated = rng.random() < 0.4
    base = rng.integers(0, 12, n)
    if unrelated:
        compute = rng.integers(1, 12, (n, 3))
        io_class = np.array([0, 1, -1])
    else:
        compute = np.stack([base, base, base * 3], axis=1)
        io_class = np.array([0, 0, -1])
    compute = np.where(rng.random((n, 3)) < 0.1, -1, compute)
    if not unrelated:
        compute[:, 1] = compute[:, 0]
    compute[(compute < 0).all(axis=1), 2] = 5
    producers, pointer, consumers = [], [0], []
    for u in range(n):
        for _ in range(2):
            later = [v for v in range(u + 1, n) if rng.random() < 0.35]
            if later:
                producers.append(u)
                consumers.extend(later)
                pointer.append(len(consumers))
    transfer = rng.integers(0, 6, (len(producers), 2))
    colocation = np.where(rng.random(n) < 0.35, rng.integers(0, 2, n), -1)
    if training:  # the backward op of op v is n - 1 - v; some are orphans
        for v in range(forward):
            if rng.random() < 0.75:
                colocation[[v, n - 1 - v]] = 10 + v
    for group in set(colocation.tolist()) - {-1}:  # a class must have a device that runs all of it
        members = np.flatnonzero(colocation == group)
        if not (compute[members] >= 0).all(axis=0).any():
            colocation[members] = -1
    resident = rng.integers(0, 4, n)
    tight = rng.random() < 0.5
    capacity = np.array([int(resident.sum() * 0.6) + 1] * 2 + [2**62]) if tight else None
    return PlacementProblem(
        name=f"random{seed}",
        compute=compute,
        producer=np.array(producers, dtype=np.int64),
        consumer_ptr=np.array(pointer),
        consumer=np.array(consumers, dtype=np.int64),
        transfer=transfer,
        resident=resident,
        capacity=capacity,
        colocation=colocation,
        backward=np.arange(n) >= forward if training else None,
        io_class=io_class,
        **{"objective": "period", **fields},
    )


def placements(problem: PlacementProblem) -> Iterator[tuple[int, ...]]:
    """Every assignment of devices to ops."""
    return product(range(problem.num_devices), repeat=problem.num_ops)


@lru_cache(8)
def plain(problem: PlacementProblem) -> SimpleNamespace:
    """What the definitions below read, as lists."""
    names = ("compute", "resident", "capacity", "colocation", "backward", "io_class")
    return SimpleNamespace(**{name: getattr(problem, name).tolist() for name in names})


@lru_cache(8)
def tensors(problem: PlacementProblem) -> list[tuple[int, list[int], list[int]]]:
    """(producer, consumers, ticks on each device) of every tensor."""
    found = []
    for t in range(problem.num_tensors):
        consumers = problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]].tolist()
        ticks = [int(problem.transfer[t, c]) if c >= 0 else 0 for c in problem.io_class]
        found.append((int(problem.producer[t]), consumers, ticks))
    return found


def oracle_period(problem: PlacementProblem, device: tuple[int, ...]) -> int | None:
    """Period by the definition, None where a constraint is broken."""
    if not fits(problem, device) or not contiguous(problem, device):
        return None
    p = plain(problem)
    loads = {"forward": [0] * problem.num_devices, "backward": [0] * problem.num_devices}
    for d in range(problem.num_devices):
        held = {v for v in range(problem.num_ops) if device[v] == d}
        for v in held:
            loads["backward" if p.backward[v] else "forward"][d] += p.compute[v][d]
        for producer, consumers, ticks in tensors(problem):
            part = loads["backward" if p.backward[producer] else "forward"]
            if producer not in held and held & set(consumers):
                part[d] += ticks[d]
            if producer in held and set(consumers) - held:
                part[d] += ticks[d]
    if problem.pipeline == "gpipe":
        return max(loads["forward"]) + max(loads["backward"])
    return max(a + b for a, b in zip(loads["forward"], loads["backward"], strict=True))


def fits(problem: PlacementProblem, device: tuple[int, ...]) -> bool:
    """Compatibility, colocation and memory."""
    p, n = plain(problem), problem.num_ops
    for v in range(n):
        if p.compute[v][device[v]] < 0:
            return False
        for w in range(v):
            if p.colocation[v] == p.colocation[w] >= 0 and device[v] != device[w]:
                return False
    return all(
        sum(p.resident[v] for v in range(n) if device[v] == d) <= p.capacity[d]
        for d in range(problem.num_devices)
    )


def contiguous(problem: PlacementProblem, device: tuple[int, ...]) -> bool:
    """Chain: some order of the devices is respected. Convex: no path leaves a device and
    returns.
    """
    if problem.contiguity == "none":
        return True
    if problem.contiguity == "convex":
        return not any(device[a] == device[c] != device[b] for a, b, c in ways(problem))
    return any(
        all(order[device[u]] <= order[device[v]] for u, v in in_order(problem))
        for order in permutations(range(problem.num_devices))
    )


def forward_edges(problem: PlacementProblem) -> set[tuple[int, int]]:
    """Edges between forward ops."""
    backward = plain(problem).backward
    edges = {(u, v) for u, consumers, _ in tensors(problem) for v in consumers}
    return {(u, v) for u, v in edges if not backward[u] and not backward[v]}


@lru_cache(8)
def ways(problem: PlacementProblem) -> list[tuple[int, int, int]]:
    """(first op, one between, last op) of every path of forward ops."""
    forward = forward_edges(problem)
    reach = set(forward)
    for _ in range(problem.num_ops):
        reach |= {(a, d) for a, b in reach for c, d in forward if b == c}
    return [(a, b, c) for a, b in reach for other, c in reach if b == other]


@lru_cache(8)
def in_order(problem: PlacementProblem) -> set[tuple[int, int]]:
    """Pairs of ops whose devices a chain has in this order: forward edges, and turned those of
    backward ops without a forward op that are tied to none.
    """
    backward, colocation = plain(problem).backward, plain(problem).colocation

    def orphan(v: int) -> bool:
        group = colocation[v]
        return not any(
            not backward[w] and (w == v or colocation[w] == group >= 0)
            for w in range(problem.num_ops)
        )

    edges = {(u, v) for u, consumers, _ in tensors(problem) for v in consumers}
    return forward_edges(problem) | {
        (v, u) for u, v in edges if backward[u] and backward[v] and (orphan(u) or orphan(v))
    }


def best_period(problem: PlacementProblem) -> int | None:
    """Smallest period of all placements, None if none is feasible."""
    values = [
        value
        for device in placements(problem)
        if (value := oracle_period(problem, device)) is not None
    ]
    return min(values, default=None)


def oracle_latency(
    problem: PlacementProblem, device: tuple[int, ...], slot: tuple[int, ...]
) -> int | None:
    """Latency by the definition: repeat until no unit can start any more; None where one never
    does.
    """
    if not fits(problem, device):
        return None
    p = plain(problem)
    unit = [
        ("slot", device[v], slot[v]) if p.io_class[device[v]] >= 0 else ("op", v, 0)
        for v in range(problem.num_ops)
    ]
    before, lasts = {}, {}
    for u in set(unit):
        held = {v for v in range(problem.num_ops) if unit[v] == u}
        d = device[min(held)]
        lasts[u] = sum(p.compute[v][d] for v in held)
        before[u] = set()
        for producer, consumers, ticks in tensors(problem):
            if producer not in held and held & set(consumers):
                before[u].add(unit[producer])
                lasts[u] += ticks[d] if u[0] == "slot" else 0
            if producer in held and set(consumers) - held:
                lasts[u] += ticks[d] if u[0] == "slot" else 0
        if u[0] == "slot":
            before[u] |= {w for w in unit if w[0] == "slot" and w[1] == u[1] and w[2] < u[2]}
    ends: dict[tuple[str, int, int], int] = {}
    while len(ends) < len(before):
        ready = [u for u in before if u not in ends and before[u] <= ends.keys()]
        if not ready:
            return None
        for u in ready:
            ends[u] = max((ends[w] for w in before[u]), default=0) + lasts[u]
    return max(ends.values())
