"""Edge lists: one edge per line, `u v`, `u v weight` or `u -> v`, commas or spaces between.

`name: time` gives the time of an op in ticks; ops without one take `op_time`. `#` begins a comment. Lines
as networkx writes them (`a b {'weight': 3}`) are understood.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from placeopt.instances.readers.draft import UNKNOWN, Draft, ticks
from placeopt.model.errors import InputError
from placeopt.model.files import one_line, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph

EDGE = re.compile(r"([^\s,]+?)(?:\s*->\s*|\s*,\s*|\s+)([^\s,]+)(?:(?:\s*,\s*|\s+)([^\s,]+))?$")
OP = re.compile(r"(\S+?)\s*:\s*([^\s:]+)$")
DATA = re.compile(r"\{(?:[^{}]*?['\"]weight['\"]\s*:\s*([^,{}]+))?[^{}]*\}\s*$")


def read(
    path: Path, *, weight: str = "ticks", op_time: float = 1, tick_seconds: float = 1e-9, max_bytes: int
) -> OpGraph:
    """Read an edge list; each edge is a tensor of its own.

    Parameters
    ----------
    weight : what the third column is: "ticks" between two different devices, or "bytes".
    op_time : ticks of an op without a `name: time` line.
    tick_seconds : length of a tick.

    Raises
    ------
    InputError
        If a line has another form, an edge is there twice, or only some edges have a weight.
    """
    if weight not in ("ticks", "bytes"):
        raise InputError(f"option weight: expected ticks or bytes, received '{weight}'")
    times: dict[str, int] = {}
    edges: dict[tuple[str, str], tuple[str, str]] = {}
    names: dict[str, None] = {}
    for position, raw in enumerate(read_text(path, max_bytes=max_bytes).splitlines(), start=1):
        where = f"line {position}"
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        if op := OP.match(line):
            if op[1] in times:
                raise InputError(f"{where}: op '{one_line(op[1])}' has two times; keep one")
            times[op[1]] = ticks(op[2], where, "time")
            names.setdefault(op[1])
            continue
        data = DATA.search(line)
        text = "" if data is None else (data[1] or "").strip()
        edge = EDGE.match(line if data is None else line[: data.start()].strip())
        if edge is None:
            raise InputError(f"{where}: expected 'u v', 'u v weight' or 'name: time', received {line[:60]!r}")
        u, v = edge[1], edge[2]
        if (u, v) in edges:
            raise InputError(f"{where}: edge {one_line(u, 30)} -> {one_line(v, 30)} is there twice")
        edges[u, v] = (text or edge[3] or "", where)
        names.setdefault(u)
        names.setdefault(v)
    unweighted = [where for value, where in edges.values() if not value]
    if unweighted and len(unweighted) < len(edges):
        raise InputError(f"{unweighted[0]}: the edge has no weight, but others have one")
    default = ticks(op_time, "option op_time", "ticks")
    draft = Draft(path.stem, tick_seconds=tick_seconds)
    for name in names:
        draft.op(name, name, times={"*": times.get(name, default)})
    for (u, v), (value, where) in edges.items():
        amount = ticks(value, where, "weight") if value else 0
        if weight == "bytes" and value:
            draft.edge(u, v, where, size=amount, ticks=UNKNOWN)
        else:
            draft.edge(u, v, where, ticks=amount)
    return draft.build()
