"""Task graphs with one time per device: text with `#tasks` lines `i: time, time, ...` and `#edges`
lines `k: u, v, cost`.

The file brings its own devices. An edge is a tensor of its own that costs its weight between any
two different devices, without contention. The times are abstract: a tick is one unit, and
`tick_seconds` is 1, unless `unit` tells theirs.
"""

from __future__ import annotations

from pathlib import Path

from placeopt.instances.readers.draft import Draft, abstract_draft, whole
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import read_text
from placeopt.model.graph import OpGraph


def read(
    path: Path, *, unit: str = "", tick_seconds: float = 0.0, max_bytes: int
) -> tuple[OpGraph, Cluster]:
    """Read a graph with one time per device, and these devices; options as in `abstract_draft`."""
    draft = abstract_draft(path.stem, unit, tick_seconds)
    section, width = "", 0
    for where, raw in enumerate(read_text(path, max_bytes=max_bytes).splitlines(), start=1):
        line = raw.strip()
        if line.startswith("#"):
            section = line[1:].strip().lower()
            if section not in ("critical", "tasks", "edges", "end"):
                raise _expected("#tasks, #edges, #critical or #end", where, line)
        elif line and section != "critical":  # that of a critical path we compute ourselves
            label, cells = _cells(section, line, where)
            if section == "tasks":
                width = width or len(cells)
                _add_task(draft, label, cells, where, width)
            elif len(cells) != 3:
                raise _expected("'number: source, destination, cost'", where, line)
            else:
                draft.cells_edge(cells, where)
    if section != "end":
        raise InputError("expected #end as the last line: the file is truncated")
    graph = draft.build()
    return graph, _devices(graph.name, width)


def _cells(section: str, line: str, where: int) -> tuple[str, list[str]]:
    """Split a line of tasks or edges into its number and its values."""
    label, colon, rest = line.partition(":")
    if section not in ("tasks", "edges") or not colon:
        raise _expected("'number: values' below #tasks or #edges", where, line)
    return label.strip(), [cell.strip() for cell in rest.strip().rstrip(",").split(",")]


def _expected(form: str, where: int, line: str) -> InputError:
    return InputError(f"line {where}: expected {form}, received {line[:40]!r}")


def _add_task(draft: Draft, label: str, cells: list[str], where: int, width: int) -> None:
    if len(cells) != width:
        raise InputError(
            f"line {where}: expected {width} times, one per device, received {len(cells)}"
        )
    times = {f"device{j}": draft.rounded(cell, where, "time") for j, cell in enumerate(cells)}
    i = whole(label, where, "task number")
    draft.op(i, where, name=f"task{i}", times=times)


def _devices(name: str, count: int) -> Cluster:
    """Return `count` devices, each a kind of its own, whose transfers never wait."""
    # Every time is measured: the peaks and the link are never used, but a device needs some.
    devices = tuple(
        Device(f"device{j}", f"device{j}", "accelerator", 1e12, 1e11) for j in range(count)
    )
    return Cluster(name, devices, (Link("link", 0.0, 1e9),))
