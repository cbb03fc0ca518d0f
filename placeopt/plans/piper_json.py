"""Reader of the published multidimensional planner's inputs (JSON), as SamplePlanProblem.

`nodes` with `TMPCs`: per tensor degree a list of choices {timePerSample, parameterSize,
memoryUsageA, memoryUsageB, syncTimeFw, syncTimeBw}, the second one recomputing activations; `edges`
with `communicationCost` bytes; `bandwidth` bytes per second, `mbsInBatch` samples of a step,
`maxDevices`, `maxMemoryPerDevice` bytes. Sources of the numbers: measured by the authors of the
file (times), counted (bytes).

References
----------
Tarnawski, Narayanan, Phanishayee: "Piper: multidimensional planner for DNN parallelization",
NeurIPS 2021.
"""

from __future__ import annotations

import math
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import Body
from placeopt.model.arrays import UNLIMITED, Floats, positions
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.plans.sample_problem import SamplePlanProblem

UNITS_PER_BYTE = 100
"""The published memory sizes have two decimals."""


def read_piper(
    path: str | Path,
    *,
    devices: int | None = None,
    memory: float | None = None,
    bandwidth: float | None = None,
    copies: int | None = None,
) -> SamplePlanProblem:
    """Read a file of the published planner.

    Parameters
    ----------
    devices, memory, bandwidth : number of devices, bytes of each, bytes per second between them; by
    default those of
        the file. The published program's own runs use 25 * 2^30 bytes per second, the files say
        25e9.
    copies : number of transformer layers, at least those of the file, whose last one is repeated.

    Raises
    ------
    InputError
        If the file is malformed, or has more layers than `copies`.
    """
    body = Body(read_json(path), f"file '{path}'")
    nodes = [_Node(item) for item in body.bodies("nodes")]
    edges = [
        (e.integer("sourceId"), e.integer("destId"), e.number("communicationCost"))
        for e in body.bodies("edges")
    ]
    if not nodes or len({node.id for node in nodes}) < len(nodes):
        raise InputError(f"file '{path}': nodes: expected layers with ids of their own")
    if copies is not None:
        nodes, edges = _repeated(nodes, edges, copies, f"file '{path}'")
    count = body.integer("maxDevices") if devices is None else devices
    capacity = body.number("maxMemoryPerDevice") if memory is None else memory
    speed = body.number("bandwidth") if bandwidth is None else bandwidth
    return _problem(
        Path(path).stem, nodes, edges, count, capacity, speed, body.integer("mbsInBatch")
    )


class _Node:
    """One layer of the file."""

    def __init__(self, body: Body) -> None:
        self.id, self.name = body.integer("id"), body.text("name", "")
        degrees = body.body("TMPCs")
        self.choices: dict[int, list[dict[str, float]]] = {}
        self.syncs: dict[int, tuple[dict[int, float], dict[int, float]]] = {}
        for key in degrees.data:
            if not key.isdecimal():
                raise InputError(
                    f"{degrees.where}: expected tensor degrees as keys, received '{key}'"
                )
            options = degrees.bodies(key)
            if len(options) not in (1, 2):
                raise InputError(
                    f'{degrees.where}: "{key}": expected one or two choices, received '
                    f"{len(options)}"
                )
            names = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")
            self.choices[int(key)] = [
                {name: option.number(name) for name in names} for option in options
            ]
            first = options[0]
            self.syncs[int(key)] = (
                _neighbours(first, "syncTimeFw"),
                _neighbours(first, "syncTimeBw"),
            )

    def copy(self, number: int, before: int, previous: int) -> _Node:
        """Return a copy with another id that follows `previous` as this one does `before`, and
        sends to no one yet.
        """
        made = copy(self)
        made.id, made.name = number, f"{self.name} copy of {self.id}"
        made.syncs = {t: (dict(fw), {}) for t, (fw, _) in self.syncs.items()}
        made.follow(before, previous)
        return made

    def follow(self, before: int, previous: int) -> None:
        """Receive from `previous` what came from `before`."""
        for forward, _ in self.syncs.values():
            forward[previous] = forward.pop(before, 0.0)

    def send_to(self, number: int) -> None:
        """Send to one layer alone, at the largest price."""
        for forward, backward in self.syncs.values():
            value = max((backward or forward).values(), default=0.0)
            backward.clear()
            backward[number] = value

    def send_too(self, number: int, other: int) -> None:
        """Send to a layer what is sent to another one, if anything is."""
        for _, backward in self.syncs.values():
            if other in backward:
                backward[number] = backward[other]


Edge = tuple[int, int, float]
"""Ids of two layers, and the bytes between them."""


def _neighbours(option: Body, key: str) -> dict[int, float]:
    body = option.body(key)
    other = next((name for name in body.data if not name.isdecimal()), None)
    if other is not None:
        raise InputError(f"{body.where}: expected ids of layers as keys, received {other!r:.40}")
    return {int(name): body.number(name) for name in body.data}


def _repeated(
    nodes: list[_Node], edges: list[Edge], copies: int, where: str
) -> tuple[list[_Node], list[Edge]]:
    """Lengthen the chain of transformer layers to `copies` by inserting copies of the last one
    after it.
    """
    blocks = [node.id for node in nodes if "TransformerLayer" in node.name]
    if copies < len(blocks) or tuple(blocks[-2:]) not in {edge[:2] for edge in edges}:
        raise InputError(
            f"{where}: copies: expected at least the file's {len(blocks)} transformer layers, "
            f"two or more with an edge between the last ones, received {copies}"
        )
    by_id = {node.id: node for node in nodes}
    free = max(by_id) + 1
    numbers = range(free, free + copies - len(blocks))
    edges = _lengthened(by_id, edges, blocks[-2], blocks[-1], numbers)
    return [*nodes, *(by_id[number] for number in numbers)], edges


def _lengthened(
    by_id: dict[int, _Node], edges: list[Edge], before: int, last: int, numbers: range
) -> list[Edge]:
    """Add copies of the layer `last`, which follows `before`, and return the edges with theirs."""
    after = [(v, c) for u, v, c in edges if u == last]
    edges = [(u, v, c) for u, v, c in edges if u != last]
    into = [(u, c) for u, v, c in edges if v == last]
    shared = [(u, c) for u, c in into if u != before]
    step = next(c for u, c in into if u == before)
    previous = last
    for number in numbers:
        by_id[number] = by_id[last].copy(number, before, previous)
        by_id[previous].send_to(number)
        for u, c in shared:
            edges.append((u, number, c))
            by_id[u].send_too(number, last)
        edges.append((previous, number, step))
        previous = number
    for v, c in after:
        edges.append((previous, v, c))
        by_id[v].follow(last, previous)
        for t in by_id[v].syncs:
            by_id[previous].syncs[t][1][v] = by_id[before].syncs[t][1].get(last, 0.0)
    return edges


def _topological(nodes: list[_Node], edges: list[Edge]) -> list[int]:
    """Return the ids of the layers along a topological order, smallest id first."""
    import networkx as nx

    layers = nx.DiGraph()
    layers.add_nodes_from(node.id for node in nodes)
    for u, v, _ in edges:
        if u not in layers or v not in layers:
            raise InputError(f"edge {u} -> {v}: expected ids of nodes")
        layers.add_edge(u, v)
    try:
        return list(nx.lexicographical_topological_sort(layers))
    except nx.NetworkXUnfeasible:
        raise InputError("the layers form a circle: expected edges without one") from None


def _problem(
    name: str,
    nodes: list[_Node],
    edges: list[Edge],
    devices: int,
    capacity: float,
    bandwidth: float,
    samples: int,
) -> SamplePlanProblem:
    given = {"maxDevices": devices, "mbsInBatch": samples, "bandwidth": bandwidth}
    for what, number in given.items():
        if not number > 0:
            raise InputError(f"plan '{name}': {what}: expected more than 0, received {number}")
    order = _topological(nodes, edges)
    place = positions(order)
    by_id = {node.id: node for node in nodes}
    layers = [by_id[node] for node in order]
    degrees = tuple(sorted({t for node in nodes for t in node.choices}))
    work, sync, kept, fixed = _layer_arrays(layers, degrees)
    sync *= 1 / (samples * bandwidth)
    sent, received = 2 * _transfers(by_id, edges, degrees) / bandwidth
    with np.errstate(over="ignore"):  # what is endless is refused
        largest = np.maximum(work, 0).max(axis=(0, 1)).sum() + devices * sync.max(axis=0).sum()
        largest += 2 * (sent.max(axis=0, initial=0).sum() + received.max(axis=0, initial=0).sum())
    if not largest < 1e250:
        raise InputError(f"plan '{name}': a sample takes {largest:g} s, too long to count")
    # the most decimal places of a tick for which so many seconds stay below 2^56 ticks
    digits = math.floor(math.log10(2.0**56 / max(largest * devices, 1e-9)))
    scale = 10.0**digits
    return SamplePlanProblem(
        layers=tuple(node.name or str(node.id) for node in layers),
        tensor_degrees=degrees,
        work=np.where(work < 0, -1, _whole(np.maximum(work, 0) * scale)),
        sync=_whole(sync * scale),
        kept=_units(kept),
        fixed=_units(fixed),
        source=np.array([place[u] for u, _, _ in edges], np.int64),
        target=np.array([place[v] for _, v, _ in edges], np.int64),
        sent=_whole(sent * scale),
        received=_whole(received * scale),
        devices=devices,
        samples=samples,
        capacity=math.floor(min(capacity * UNITS_PER_BYTE, UNLIMITED)),
        units_per_byte=UNITS_PER_BYTE,
        name=name,
        tick_seconds=10.0**-digits,
    )


def _layer_arrays(
    layers: list[_Node], degrees: tuple[int, ...]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the work, bytes sent to sum gradients, and memory per micro-batch and once, of every
    choice that the layers have, -1 for work where there is none.

    In the published formula a gradient sum sends four bytes per byte of weights.
    """
    shape = len(degrees), 2, len(layers)
    work, kept, fixed = np.full(shape, -1.0), np.zeros(shape), np.zeros(shape)
    sync = np.zeros((len(degrees), len(layers)))
    for (k, t), (i, node) in product(enumerate(degrees), enumerate(layers)):
        for r, choice in enumerate(node.choices.get(t, ())):
            work[k, r, i] = choice["timePerSample"]
            sync[k, i] = 4 * choice["parameterSize"]
            kept[k, r, i], fixed[k, r, i] = choice["memoryUsageA"], choice["memoryUsageB"]
    return work, sync, kept, fixed


def _transfers(by_id: dict[int, _Node], edges: list[Edge], degrees: tuple[int, ...]) -> Floats:
    """Return the bytes that cut edges cost their sources and targets; shape (2, degrees, edges)."""
    found = np.zeros((2, len(degrees), len(edges)))
    for (k, t), (e, (u, v, cost)) in product(enumerate(degrees), enumerate(edges)):
        _, backward = by_id[u].syncs.get(t, ({}, {}))
        forward, _ = by_id[v].syncs.get(t, ({}, {}))
        found[:, k, e] = cost + backward.get(v, 0.0), cost + forward.get(u, 0.0)
    return found


def _whole(values: Any) -> Any:
    return np.floor(np.asarray(values) + 0.5).astype(np.int64)


def _units(values: Any) -> Any:
    """Memory in units: exact where the file has at most two decimals, else rounded up."""
    scaled = np.asarray(values) * UNITS_PER_BYTE
    near = np.floor(scaled + 0.5)
    return np.where(np.abs(scaled - near) <= 1e-3, near, np.ceil(scaled)).astype(np.int64)
