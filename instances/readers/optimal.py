"""Task graphs of the optimal-scheduling literature, with integer times, in two notations.

`graphs-json`: `{name: {"n": n, "work": [...], "edges": [[u, v, cost]]}}`, a library of graphs for identical
devices; one is chosen by `graphs.json#NAME`. `unrelated`: text with `#tasks` lines `i: time, time, ...` (one
time per device) and `#edges` lines `k: u, v, cost`; the file brings its own devices. In both an edge is a
tensor of its own that costs its weight between any two different devices, without contention.

The times are abstract: a tick is one unit, and `tick_seconds` is 1.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.instances.readers.draft import Draft, ticks, whole
from placeopt.model.cluster import Cluster, Device, Link, contention_matrix
from placeopt.model.errors import InputError
from placeopt.model.files import read_json, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph


def read_library(path: Path, *, graph: str = "", tick_seconds: float = 1.0, max_bytes: int) -> OpGraph:
    """Read one graph of a library.

    Parameters
    ----------
    graph : name of the graph; may be left out where the library has only one.
    """
    data = read_json(path, max_bytes=max_bytes)
    if not isinstance(data, dict) or not data:
        raise InputError('expected an object {name: {"n", "work", "edges"}}, received something else')
    if not graph and len(data) == 1:
        graph = next(iter(data))
    if not graph or graph not in data:
        near = difflib.get_close_matches(graph, list(data), n=1, cutoff=0.4) if graph else []
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(list(data)[:4])}, ..."
        asked = f"no graph '{graph}'" if graph else f"{len(data)} graphs: name one as FILE#NAME"
        raise InputError(f"{asked}; {hint}")
    body = data[graph]
    if not isinstance(body, dict) or not isinstance(body.get("work"), list) or not isinstance(body.get("edges"), list):
        raise InputError(f"graph '{graph}': expected {{n, work: [...], edges: [[u, v, cost]]}}")
    n, work = body.get("n"), body["work"]
    if n != len(work):
        raise InputError(f"graph '{graph}': expected n = {len(work)}, the length of work, received {n!r:.40}")
    draft = Draft(graph, tick_seconds=tick_seconds)
    for i, time in enumerate(work):
        where = f"graph '{graph}': work[{i}]"
        draft.op(i, where, name=f"task{i}", times={"*": ticks(time, where, "time")})
    seen: set[tuple[int, int]] = set()
    for i, edge in enumerate(body["edges"]):
        where = f"graph '{graph}': edges[{i}]"
        if not isinstance(edge, list) or len(edge) != 3:
            raise InputError(f"{where}: expected [u, v, cost], received {edge!r:.40}")
        _edge(draft, edge, where, seen)
    return draft.build()


def _edge(draft: Draft, cells: list[Any], where: str, seen: set[tuple[int, int]]) -> None:
    """Add edge (u, v, cost); an edge that is there twice is refused."""
    u, v = whole(cells[0], where, "source"), whole(cells[1], where, "destination")
    if (u, v) in seen:
        raise InputError(f"{where}: edge {u} -> {v} is there twice")
    seen.add((u, v))
    draft.edge(u, v, where, ticks=ticks(cells[2], where, "cost"))


def read_unrelated(path: Path, *, tick_seconds: float = 1.0, max_bytes: int) -> tuple[OpGraph, Cluster]:
    """Read a graph with one time per device, and these devices."""
    draft = Draft(path.stem, tick_seconds=tick_seconds)
    section, width = "", 0
    seen: set[tuple[int, int]] = set()
    ended = False
    for position, raw in enumerate(read_text(path, max_bytes=max_bytes).splitlines(), start=1):
        line, where = raw.strip(), f"line {position}"
        if not line:
            continue
        if line.startswith("#"):
            section = line[1:].strip().lower()
            ended |= section == "end"
            if section not in ("critical", "tasks", "edges", "end"):
                raise InputError(f"{where}: expected #tasks, #edges, #critical or #end, received {line[:40]!r}")
            continue
        if section == "critical":
            continue  # the length of a critical path, which we compute ourselves
        label, colon, rest = line.partition(":")
        cells = [cell.strip() for cell in rest.strip().rstrip(",").split(",")]
        if section not in ("tasks", "edges") or not colon:
            raise InputError(f"{where}: expected 'number: values' below #tasks or #edges, received {line[:40]!r}")
        if section == "tasks":
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(f"{where}: expected {width} times, one per device, received {len(cells)}")
            times = {f"device{j}": ticks(cell, where, "time") for j, cell in enumerate(cells)}
            i = whole(label.strip(), where, "task number")
            draft.op(i, where, name=f"task{i}", times=times)
        elif len(cells) != 3:
            raise InputError(f"{where}: expected 'number: source, destination, cost', received {line[:40]!r}")
        else:
            _edge(draft, list(cells), where, seen)
    if not ended:
        raise InputError("expected #end as the last line: the file is truncated")
    graph = draft.build()
    return graph, _devices(graph.name, width)


def _devices(name: str, count: int) -> Cluster:
    """Return `count` devices, each a kind of its own, whose transfers never wait."""
    # Every time is measured: the peaks and the link are never used, but a device needs some.
    devices = tuple(Device(f"device{j}", f"device{j}", "accelerator", 1e12, 1e11) for j in range(count))
    link_class = np.zeros((count, count), dtype=np.int64)
    return Cluster(name, devices, (Link("link", 0.0, 1e9),), link_class, contention_matrix(count, "none"))
