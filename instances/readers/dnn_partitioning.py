"""Graphs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), as
JSON.

`maxSizePerFPGA` (bytes), `maxFPGAs`, `maxCPUs`; nodes with `id` (unique, not dense),
`supportedOnFpga`, `cpuLatency`, `fpgaLatency` (milliseconds), `isBackwardNode`, `size` (bytes on
the accelerator), optional `colorClass` (same device); edges `sourceId`, `destId`, `cost`: the time
to move the source's output between an accelerator and host memory, equal on all out-edges of a
source. "FPGA" means any accelerator.

The published layer graphs for throughput have costs 1000 times smaller than the latency files of
the same graphs. `cost_scale=1000` multiplies them; `"file"` (the default) takes them as they are,
as the published results do.

References
----------
Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers.draft import UNSUPPORTED, Draft, number, ticks, whole
from placeopt.instances.readers.json_rows import entry, rows
from placeopt.model.arrays import UNLIMITED
from placeopt.model.cluster import Cluster, Device, Link, contention_matrix
from placeopt.model.errors import InputError
from placeopt.model.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph

COST_TOLERANCE = 1e-6
"""Out-edges of a node must have equal costs, up to this relative or absolute difference."""


def read(
    path: Path, *, cost_scale: str | float = "file", tick_seconds: float = 1e-9, max_bytes: int
) -> tuple[OpGraph, Cluster]:
    """Read the graph and its devices: `maxFPGAs` accelerators, then `maxCPUs` CPUs.

    Parameters
    ----------
    cost_scale : "file" for the communication costs of the file, or a factor to multiply them by.
    tick_seconds : length of a tick; times of the file are milliseconds.

    Raises
    ------
    InputError
        If an entry is missing or of a wrong type, ids repeat, an edge dangles, or the costs of a
        node's out-edges differ by more than 1e-6.
    """
    scale = (
        1.0
        if cost_scale == "file"
        else number(cost_scale, "option cost_scale", 'expected "file" or a factor')
    )
    unit = 1e-3 / tick_seconds
    data = read_json(path, max_bytes=max_bytes)
    if not isinstance(data, dict):
        raise InputError(
            "expected an object with nodes and edges, received a list or a plain value"
        )
    nodes, edges = rows(data, "nodes", "file"), rows(data, "edges", "file")
    draft = Draft(path.stem, tick_seconds=tick_seconds)
    _add_nodes(draft, nodes, unit)
    _add_edges(draft, edges, scale, unit)
    return draft.build(), _devices(data, draft.name)


def _add_nodes(draft: Draft, nodes: list[dict[str, Any]], unit: float) -> None:
    classes: dict[Any, int] = {}
    names: dict[str, int] = {}
    for i, node in enumerate(nodes):
        where = f"nodes[{i}]"
        key = whole(entry(node, "id", where), where, "id", least=-(2**62))
        supported = _flag(entry(node, "supportedOnFpga", where), where, "supportedOnFpga")
        cpu = ticks(entry(node, "cpuLatency", where), where, "cpuLatency", unit)
        accelerator = UNSUPPORTED
        if supported:
            accelerator = ticks(entry(node, "fpgaLatency", where), where, "fpgaLatency", unit)
        color = node.get("colorClass")
        group = -1
        if color is not None:
            color = whole(color, where, "colorClass", least=-(2**62))
            group = classes.setdefault(color, len(classes))
        name = node.get("name", key)
        label = str(name) if isinstance(name, str | int) else str(key)
        names[label] = names.get(label, 0) + 1
        draft.op(
            key,
            where,
            name=label if names[label] == 1 else f"{label}#{key}",
            type=_kind(label),
            times={"cpu": cpu, "accelerator": accelerator},
            resident=int(number(node.get("size", 0), where, "size") + 0.5),
            colocation=group,
            backward=_flag(node.get("isBackwardNode", 0), where, "isBackwardNode"),
        )


def _add_edges(draft: Draft, edges: list[dict[str, Any]], scale: float, unit: float) -> None:
    """Add the edges; the file gives cost and size of a node's output once per out-edge, the first
    counts.
    """
    first: dict[int, tuple[float, int]] = {}
    for i, edge in enumerate(edges):
        where = f"edges[{i}]"
        source = whole(entry(edge, "sourceId", where), where, "sourceId", least=-(2**62))
        target = whole(entry(edge, "destId", where), where, "destId", least=-(2**62))
        value = number(entry(edge, "cost", where), where, "cost")
        cost, size = first.setdefault(
            source, (value, int(number(edge.get("size", 0), where, "size") + 0.5))
        )
        if abs(cost - value) > COST_TOLERANCE * max(1.0, abs(cost)):
            raise InputError(
                f"{where}: the out-edges of node {source} must have equal costs (up to 1e-6), "
                f"received {value} after {cost}"
            )
        draft.edge(
            source,
            target,
            where,
            tensor="output",
            size=size,
            ticks=ticks(cost * scale, where, "cost", unit),
        )


def _devices(data: dict[str, Any], name: str) -> Cluster:
    """Return the accelerators and CPUs that the file describes."""
    memory = int(number(entry(data, "maxSizePerFPGA", "file"), "file", "maxSizePerFPGA"))
    accelerators = whole(entry(data, "maxFPGAs", "file"), "file", "maxFPGAs")
    cpus = whole(entry(data, "maxCPUs", "file"), "file", "maxCPUs")
    if not 1 <= accelerators + cpus <= 4096:
        raise InputError(
            f"expected 1..4096 devices, received maxFPGAs={accelerators}, maxCPUs={cpus}"
        )
    # Every time is measured: the peaks and the link below are never used, but a device needs some.
    devices = [
        Device(f"accelerator{i}", "accelerator", "accelerator", 1e12, 1e11, min(memory, UNLIMITED))
        for i in range(accelerators)
    ] + [Device(f"cpu{i}", "cpu", "cpu", 1e11, 1e10) for i in range(cpus)]
    k = len(devices)
    link_class = np.zeros((k, k), np.int64)
    return Cluster(
        name, tuple(devices), (Link("host", 0.0, 1e10),), link_class, contention_matrix(k, "none")
    )


def _kind(name: str) -> str:
    """Return the op type that a name such as 'bert/layer_0/MatMul_3' ends in; "" for 'node17'."""
    stem = name.rsplit("/", 1)[-1].rstrip("0123456789_")
    return "" if stem.startswith("node") or not stem.isidentifier() else stem


def _flag(value: Any, where: str, what: str) -> bool:
    if value not in (0, 1):  # False and True included
        raise InputError(f"{where}: {what}: expected true, false, 0 or 1, received {value!r:.40}")
    return bool(value)
