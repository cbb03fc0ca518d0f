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

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.readers.draft import Draft, number, ticks, whole
from placeopt.io.body import Body
from placeopt.model.arrays import UNLIMITED
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.graph import UNSUPPORTED, OpGraph
from placeopt.model.placement import Placement
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
    data = Body(read_json(path, max_bytes=max_bytes), "file")
    draft = Draft(path.stem, tick_seconds=tick_seconds)
    _add_nodes(draft, data.bodies("nodes"), unit)
    _add_edges(draft, data.bodies("edges"), scale, unit)
    return draft.build(), _devices(data, draft.name)


def _add_nodes(draft: Draft, nodes: list[Body], unit: float) -> None:
    classes: dict[Any, int] = {}
    names: dict[str, int] = {}
    for node in nodes:
        where, key = node.where, _id(node, "id")
        cpu = ticks(node.get("cpuLatency"), where, "cpuLatency", unit)
        accelerator = UNSUPPORTED
        if _flag(node, "supportedOnFpga"):
            accelerator = ticks(node.get("fpgaLatency"), where, "fpgaLatency", unit)
        group = -1
        if node.has("colorClass"):
            color = whole(node.get("colorClass"), where, "colorClass", least=-(2**62))
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
            backward=_flag(node, "isBackwardNode", 0),
        )


def _add_edges(draft: Draft, edges: list[Body], scale: float, unit: float) -> None:
    """Add the edges; the file gives cost and size of a node's output once per out-edge, the first
    counts.
    """
    first: dict[int, tuple[float, int]] = {}
    # Out-edges of a node must have equal costs, up to this relative or absolute difference
    cost_tolerance = 1e-6
    for edge in edges:
        where = edge.where
        source, target = _id(edge, "sourceId"), _id(edge, "destId")
        value = number(edge.get("cost"), where, "cost")
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


def _devices(data: Body, name: str) -> Cluster:
    """Return the accelerators and CPUs that the file describes."""
    memory = int(number(data.get("maxSizePerFPGA"), data.where, "maxSizePerFPGA"))
    accelerators, cpus = (whole(data.get(key), data.where, key) for key in ("maxFPGAs", "maxCPUs"))
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


def _id(row: Body, key: str) -> int:
    """Return the id of a node, which may be negative."""
    return whole(row.get(key), row.where, key, least=-(2**62))


def _flag(row: Body, key: str, default: int | None = None) -> bool:
    value = row.get(key, default)
    if value not in (0, 1):  # False and True included
        raise row.wrong(key, "true, false, 0 or 1", value)
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
    nodes = Body(read_json(graph, what="graph"), "graph").bodies("nodes")
    op_of = {_id(node, "id"): i for i, node in enumerate(nodes)}
    if len(op_of) != problem.num_ops:
        raise InputError(
            f"{where}: expected a graph of {problem.num_ops} nodes, as problem '{problem.name}' "
            f"has, received {len(op_of)} in '{graph}'"
        )
    device = np.full(problem.num_ops, -1, np.int64)
    data = read_json(path, what="split") if data is None else data
    for holder, ops in _holders(Body(data, where), op_of, problem):
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
    data: Body, op_of: dict[int, int], problem: PlacementProblem
) -> Iterator[tuple[int, list[int]]]:
    """Yield each device of a split that holds ops, and them."""
    for key, kind in HOLDERS:
        own = [d for d, name in enumerate(problem.device_names) if name.startswith(kind)]
        for index, holder in enumerate(data.bodies(key)):
            ops = _ops(holder, op_of)
            if ops and index >= len(own):
                raise InputError(
                    f"{holder.where}: expected at most {len(own)} {key} with nodes in "
                    f"problem '{problem.name}'"
                )
            if ops:
                yield own[index], ops


def _ops(holder: Body, op_of: dict[int, int]) -> list[int]:
    """Return the ops of a device's node ids."""
    found = []
    for node in holder.items("nodes"):
        number = whole(node, holder.where, "node", least=-(2**62))
        if number not in op_of:
            raise InputError(f"{holder.where}: node {number} is not in the graph")
        found.append(op_of[number])
    return found
