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

Splits of dnn-partitioning graphs, as JSON: which nodes each accelerator and each CPU holds.

`fpgas` and `cpus` are lists of objects with `nodes`, the ids of the graph file. Ids are no op names
(a file may name its nodes, and does not number them in order), so that a split is read together
with its graph. The loads in the file are not read: the published expert splits state -1.

References
----------
Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers.draft import Draft, entry, number, rows, ticks, whole
from placeopt.model.arrays import UNLIMITED
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.graph import UNSUPPORTED
from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.graph import OpGraph
    from placeopt.model.problem import PlacementProblem


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
        key = _id(node, "id", where)
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
    # Out-edges of a node must have equal costs, up to this relative or absolute difference
    cost_tolerance = 1e-6
    for i, edge in enumerate(edges):
        where = f"edges[{i}]"
        source, target = _id(edge, "sourceId", where), _id(edge, "destId", where)
        value = number(entry(edge, "cost", where), where, "cost")
        cost, size = first.setdefault(
            source, (value, int(number(edge.get("size", 0), where, "size") + 0.5))
        )
        if abs(cost - value) > cost_tolerance * max(1.0, abs(cost)):
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
    return Cluster(name, tuple(devices), (Link("host", 0.0, 1e10),))


def _kind(name: str) -> str:
    """Return the op type that a name such as 'bert/layer_0/MatMul_3' ends in; "" for 'node17'."""
    stem = name.rsplit("/", 1)[-1].rstrip("0123456789_")
    return "" if stem.startswith("node") or not stem.isidentifier() else stem


def _id(row: dict[str, Any], key: str, where: str) -> int:
    """Return the id of a node, which may be negative."""
    return whole(entry(row, key, where), where, key, least=-(2**62))


def _flag(value: Any, where: str, what: str) -> bool:
    if value not in (0, 1):  # False and True included
        raise InputError(f"{where}: {what}: expected true, false, 0 or 1, received {value!r:.40}")
    return bool(value)


HOLDERS = (("fpgas", "accelerator"), ("cpus", "cpu"))
"""Lists of the file, and how the devices of a graph's own cluster begin."""


def is_split(data: Any) -> bool:
    """Return whether parsed JSON is a split: an object with `fpgas` and `cpus` and no graph."""
    return isinstance(data, dict) and {"fpgas", "cpus"} <= data.keys() and "nodes" not in data


def read_split(
    path: str | Path,
    graph: str | Path,
    problem: PlacementProblem,
    data: dict[str, Any] | None = None,
) -> Placement:
    """Return the placement of a split, on a problem that was loaded from the split's graph.

    Parameters
    ----------
    graph : the graph's file, whose node ids the split uses.
    data : the parsed JSON of `path`, where it was read already.

    Raises
    ------
    InputError
        If a file is no split or no graph, an id is unknown, placed twice or left out, or a device
        is not there.
    """
    where = f"split '{path}'"
    if not Path(graph).is_file():
        raise InputError(
            f"{where}: expected the file of its graph as source (its nodes are ids there), "
            f"received '{graph}'"
        )
    nodes = read_json(graph, what="graph")
    op_of = {
        _id(node, "id", f"nodes[{i}]"): i for i, node in enumerate(rows(nodes, "nodes", "graph"))
    }
    if len(op_of) != problem.num_ops:
        raise InputError(
            f"{where}: expected a graph of {problem.num_ops} nodes, as problem '{problem.name}' "
            f"has, received {len(op_of)} in '{graph}'"
        )
    device = np.full(problem.num_ops, -1, np.int64)
    data = read_json(path, what="split") if data is None else data
    for holder, ops in _holders(data, op_of, problem, where):
        for op in ops:
            if device[op] >= 0:
                raise InputError(f"{where}: op '{problem.op_names[op]}' is placed twice; keep one")
            device[op] = holder
    if (device < 0).any():
        raise InputError(
            f"{where}: op '{problem.op_names[int((device < 0).argmax())]}' has no device"
        )
    return Placement(device)


def _holders(
    data: dict[str, Any], op_of: dict[int, int], problem: PlacementProblem, where: str
) -> Iterator[tuple[int, list[int]]]:
    """Yield each device of a split that holds ops, and them."""
    listed = [(key, kind, rows(data, key, where)) for key, kind in HOLDERS]
    for key, kind, holders in listed:
        own = [d for d, name in enumerate(problem.device_names) if name.startswith(kind)]
        for index, holder in enumerate(holders):
            ops = _ops(holder, op_of, f"{where}: {key}[{index}]")
            if ops and index >= len(own):
                raise InputError(
                    f"{where}: {key}[{index}]: expected at most {len(own)} {key} with nodes in "
                    f"problem '{problem.name}'"
                )
            if ops:
                yield own[index], ops


def _ops(holder: dict[str, Any], op_of: dict[int, int], where: str) -> list[int]:
    """Return the ops of a device's node ids."""
    listed = entry(holder, "nodes", where)
    if not isinstance(listed, list):
        raise InputError(f'{where}: "nodes": expected a list of ids, received {listed!r:.40}')
    found = []
    for node in listed:
        number = whole(node, where, "node", least=-(2**62))
        if number not in op_of:
            raise InputError(f"{where}: node {number} is not in the graph")
        found.append(op_of[number])
    return found
