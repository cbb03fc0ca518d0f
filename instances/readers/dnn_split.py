"""Splits of dnn-partitioning graphs, as JSON: which nodes each accelerator and each CPU holds.

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

from placeopt.instances.readers.draft import whole
from placeopt.instances.readers.json_rows import entry, rows
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem

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
        whole(entry(node, "id", f"nodes[{i}]"), f"nodes[{i}]", "id", least=-(2**62)): i
        for i, node in enumerate(rows(nodes, "nodes", "graph"))
    }
    if len(op_of) != problem.num_ops:
        raise InputError(
            f"{where}: expected a graph of {problem.num_ops} nodes, as problem '{problem.name}' "
            "has, "
            f"received {len(op_of)} in '{graph}'"
        )
    device = np.full(problem.num_ops, -1, np.int64)
    data = read_json(path, what="split") if data is None else data
    for key, kind in HOLDERS:
        own = [d for d, name in enumerate(problem.device_names) if name.startswith(kind)]
        for number, holder in enumerate(rows(data, key, where)):
            for op in _ops(holder, op_of, f"{where}: {key}[{number}]"):
                if number >= len(own):
                    raise InputError(
                        f"{where}: {key}[{number}]: expected at most {len(own)} {key} with nodes "
                        "in problem "
                        f"'{problem.name}'"
                    )
                if device[op] >= 0:
                    raise InputError(
                        f"{where}: op '{problem.op_names[op]}' is placed twice; keep one"
                    )
                device[op] = own[number]
    if (device < 0).any():
        raise InputError(
            f"{where}: op '{problem.op_names[int((device < 0).argmax())]}' has no device"
        )
    return Placement(device)


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
