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
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.plans.sample_problem import SamplePlanProblem

UNITS_PER_BYTE = 100
"""The published memory sizes have two decimals."""

WEIGHT_COPIES = 4
"""Bytes sent per byte of weights by a gradient sum, in the published formula."""

TICK_BITS = 56
"""Ticks are the finest power of ten for which the sum over all layers, times the devices, stays
below 2^TICK_BITS."""


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
    copies : number of transformer layers; more than the file has repeat its last one, fewer drop
    the last ones.

    Raises
    ------
    InputError
        If the file is malformed.
    """
    body = Body(read_json(path), f"file '{path}'")
    nodes = [_Node(item) for item in body.bodies("nodes")]
    edges = [
        (e.integer("sourceId"), e.integer("destId"), e.number("communicationCost"))
        for e in body.bodies("edges")
    ]
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
            if not key.isdigit():
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

    def copy(self, number: int, old: int) -> _Node:
        """Return a copy with another id, whose neighbours are renumbered by the caller."""
        made = object.__new__(_Node)
        made.id, made.name, made.choices = number, f"{self.name} copy of {old}", self.choices
        made.syncs = {t: (dict(fw), dict(bw)) for t, (fw, bw) in self.syncs.items()}
        return made


def _neighbours(option: Body, key: str) -> dict[int, float]:
    body = option.body(key)
    return {int(name): body.number(name) for name in body.data}


def _repeated(
    nodes: list[_Node], edges: list[tuple[int, int, float]], copies: int, where: str
) -> tuple[list[_Node], list[tuple[int, int, float]]]:
    """Lengthen the chain of transformer layers to `copies` by inserting copies of the last one
    after it.
    """
    blocks = [node for node in nodes if "TransformerLayer" in node.name]
    if not blocks or copies < len(blocks):
        raise InputError(
            f"{where}: copies: expected at least the file's {len(blocks)} transformer layers, "
            f"received {copies}"
        )
    last, free = blocks[-1].id, max(node.id for node in nodes) + 1
    before, after = blocks[-2].id, [(v, c) for u, v, c in edges if u == last]
    nodes, edges = list(nodes), [(u, v, c) for u, v, c in edges if u != last]
    shared = [(u, c) for u, v, c in edges if v == last and u != before]
    step = next(c for u, v, c in edges if v == last and u == before)
    by_id = {node.id: node for node in nodes}
    previous = last
    for number in range(free, free + copies - len(blocks)):
        made = by_id[last].copy(number, last)
        for fw, bw in made.syncs.values():
            fw[previous] = fw.pop(before)
            bw.clear()
        for fw, bw in by_id[previous].syncs.values():
            value = max(bw.values(), default=0.0) if bw else max(fw.values(), default=0.0)
            bw.clear()
            bw[number] = value
        for u, c in shared:
            edges.append((u, number, c))
            for _, bw in by_id[u].syncs.values():
                if last in bw:
                    bw[number] = bw[last]
        edges.append((previous, number, step))
        nodes.append(made)
        by_id[number] = made
        previous = number
    for v, c in after:
        edges.append((previous, v, c))
        for t, (fw, _) in by_id[v].syncs.items():
            fw[previous] = fw.pop(last, 0.0)
            by_id[previous].syncs[t][1][v] = by_id[blocks[-2].id].syncs[t][1].get(last, 0.0)
    return nodes, edges


def _topological(nodes: list[_Node], edges: list[tuple[int, int, float]]) -> list[int]:
    """Return the ids of the layers along a topological order, smallest id first."""
    known = {node.id for node in nodes}
    missing = {node.id: 0 for node in nodes}
    for u, v, _ in edges:
        if u not in known or v not in known:
            raise InputError(f"edge {u} -> {v}: expected ids of nodes")
        missing[v] += 1
    ready, order = sorted(node for node in known if missing[node] == 0), []
    while ready:
        u = ready.pop(0)
        order.append(u)
        for a, v, _ in edges:
            if a == u:
                missing[v] -= 1
                if missing[v] == 0:
                    ready.append(v)
        ready.sort()
    if len(order) < len(known):
        raise InputError("the layers form a circle: expected edges without one")
    return order


def _problem(
    name: str,
    nodes: list[_Node],
    edges: list[tuple[int, int, float]],
    devices: int,
    capacity: float,
    bandwidth: float,
    samples: int,
) -> SamplePlanProblem:
    order = _topological(nodes, edges)
    place = {node: i for i, node in enumerate(order)}
    by_id = {node.id: node for node in nodes}
    layers = [by_id[node] for node in order]
    degrees = tuple(sorted({t for node in nodes for t in node.choices}))
    n, shape = len(layers), (len(degrees), 2, len(layers))
    work, kept, fixed = np.full(shape, -1.0), np.zeros(shape), np.zeros(shape)
    sync = np.zeros((len(degrees), n))
    sent, received = np.zeros((len(degrees), len(edges))), np.zeros((len(degrees), len(edges)))
    for k, t in enumerate(degrees):
        for i, node in enumerate(layers):
            for r, choice in enumerate(node.choices.get(t, ())):
                work[k, r, i], sync[k, i] = choice["timePerSample"], choice["parameterSize"]
                kept[k, r, i], fixed[k, r, i] = choice["memoryUsageA"], choice["memoryUsageB"]
        for e, (u, v, cost) in enumerate(edges):
            _, backward = by_id[u].syncs.get(t, ({}, {}))
            forward, _ = by_id[v].syncs.get(t, ({}, {}))
            sent[k, e], received[k, e] = cost + backward.get(v, 0.0), cost + forward.get(u, 0.0)
    sync *= WEIGHT_COPIES / (samples * bandwidth)
    sent, received = 2 * sent / bandwidth, 2 * received / bandwidth
    largest = np.maximum(work, 0).max(axis=(0, 1)).sum() + devices * sync.max(axis=0).sum()
    largest += 2 * (sent.max(axis=0, initial=0).sum() + received.max(axis=0, initial=0).sum())
    digits = math.floor(math.log10(2.0**TICK_BITS / (largest * devices)))
    scale = 10.0**digits
    return SamplePlanProblem(
        layers=tuple(node.name or str(node.id) for node in layers),
        tensor_degrees=degrees,
        work=np.where(work < 0, -1, _whole(work * scale)),
        sync=_whole(sync * scale),
        kept=_units(kept),
        fixed=_units(fixed),
        source=np.array([place[u] for u, _, _ in edges], np.int64),
        target=np.array([place[v] for _, v, _ in edges], np.int64),
        sent=_whole(sent * scale),
        received=_whole(received * scale),
        devices=devices,
        samples=samples,
        capacity=math.floor(capacity * UNITS_PER_BYTE),
        units_per_byte=UNITS_PER_BYTE,
        name=name,
        tick_seconds=10.0**-digits,
    )


def _whole(values: Any) -> Any:
    return np.floor(np.asarray(values) + 0.5).astype(np.int64)


def _units(values: Any) -> Any:
    """Memory in units: exact where the file has at most two decimals, else rounded up."""
    scaled = np.asarray(values) * UNITS_PER_BYTE
    near = np.floor(scaled + 0.5)
    return np.where(np.abs(scaled - near) <= 1e-3, near, np.ceil(scaled)).astype(np.int64)
