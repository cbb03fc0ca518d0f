"""Task graphs with one time per device: text with `#tasks` lines `i: time, time, ...` and `#edges`
lines `k: u, v, cost`.

The file brings its own devices. An edge is a tensor of its own that costs its weight between any
two different devices, without contention. The times are abstract: a tick is one unit, and
`tick_seconds` is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.instances.readers.draft import Draft, ticks, whole
from placeopt.model.cluster import Cluster, Device, Link, contention_matrix
from placeopt.model.errors import InputError
from placeopt.model.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph


def read(path: Path, *, tick_seconds: float = 1.0, max_bytes: int) -> tuple[OpGraph, Cluster]:
    """Read a graph with one time per device, and these devices."""
    draft = Draft(path.stem, tick_seconds=tick_seconds)
    section, width = "", 0
    ended = False
    for where, raw in enumerate(read_text(path, max_bytes=max_bytes).splitlines(), start=1):
        line = raw.strip()
        if not line:
            continue
        if line.startswith("#"):
            section = line[1:].strip().lower()
            ended |= section == "end"
            if section not in ("critical", "tasks", "edges", "end"):
                raise InputError(
                    f"line {where}: expected #tasks, #edges, #critical or #end, received "
                    f"{line[:40]!r}"
                )
            continue
        if section == "critical":
            continue  # the length of a critical path, which we compute ourselves
        label, colon, rest = line.partition(":")
        cells = [cell.strip() for cell in rest.strip().rstrip(",").split(",")]
        if section not in ("tasks", "edges") or not colon:
            raise InputError(
                f"line {where}: expected 'number: values' below #tasks or #edges, received "
                f"{line[:40]!r}"
            )
        if section == "tasks":
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(
                    f"line {where}: expected {width} times, one per device, received {len(cells)}"
                )
            times = {f"device{j}": ticks(cell, where, "time") for j, cell in enumerate(cells)}
            i = whole(label.strip(), where, "task number")
            draft.op(i, where, name=f"task{i}", times=times)
        elif len(cells) != 3:
            raise InputError(
                f"line {where}: expected 'number: source, destination, cost', received "
                f"{line[:40]!r}"
            )
        else:
            draft.edge(
                whole(cells[0], where, "source"),
                whole(cells[1], where, "destination"),
                where,
                ticks=ticks(cells[2], where, "cost"),
            )
    if not ended:
        raise InputError("expected #end as the last line: the file is truncated")
    graph = draft.build()
    return graph, _devices(graph.name, width)


def _devices(name: str, count: int) -> Cluster:
    """Return `count` devices, each a kind of its own, whose transfers never wait."""
    # Every time is measured: the peaks and the link are never used, but a device needs some.
    devices = tuple(
        Device(f"device{j}", f"device{j}", "accelerator", 1e12, 1e11) for j in range(count)
    )
    link_class = np.zeros((count, count), dtype=np.int64)
    return Cluster(
        name, devices, (Link("link", 0.0, 1e9),), link_class, contention_matrix(count, "none")
    )
