"""Libraries of task graphs for identical devices: `{name: {"n": n, "work": [...], "edges": [[u, v,
cost]]}}`.

One graph is chosen by `graphs.json#NAME`. An edge is a tensor of its own that costs its weight
between any two different devices, without contention. The times are abstract: a tick is one unit,
and `tick_seconds` is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.readers.draft import Draft, ticks, whole
from placeopt.model.errors import InputError, nearest
from placeopt.model.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph


def read(path: Path, *, graph: str = "", tick_seconds: float = 1.0, max_bytes: int) -> OpGraph:
    """Read one graph of a library.

    Parameters
    ----------
    graph : name of the graph; may be left out where the library has only one.
    """
    data = read_json(path, max_bytes=max_bytes)
    if not isinstance(data, dict) or not data:
        raise InputError(
            'expected an object {name: {"n", "work", "edges"}}, received something else'
        )
    if not graph and len(data) == 1:
        graph = next(iter(data))
    if not graph or graph not in data:
        near = nearest(graph, data) if graph else ""
        hint = f"did you mean '{near}'?" if near else f"it has {', '.join(list(data)[:4])}, ..."
        asked = f"no graph '{graph}'" if graph else f"{len(data)} graphs: name one as FILE#NAME"
        raise InputError(f"{asked}; {hint}")
    body = data[graph]
    if (
        not isinstance(body, dict)
        or not isinstance(body.get("work"), list)
        or not isinstance(body.get("edges"), list)
    ):
        raise InputError(f"graph '{graph}': expected {{n, work: [...], edges: [[u, v, cost]]}}")
    n, work = body.get("n"), body["work"]
    if n != len(work):
        raise InputError(
            f"graph '{graph}': expected n = {len(work)}, the length of work, received {n!r:.40}"
        )
    draft = Draft(graph, tick_seconds=tick_seconds)
    for i, time in enumerate(work):
        where = f"graph '{graph}': work[{i}]"
        draft.op(i, where, name=f"task{i}", times={"*": ticks(time, where, "time")})
    for i, edge in enumerate(body["edges"]):
        where = f"graph '{graph}': edges[{i}]"
        if not isinstance(edge, list) or len(edge) != 3:
            raise InputError(f"{where}: expected [u, v, cost], received {edge!r:.40}")
        draft.edge(
            whole(edge[0], where, "source"),
            whole(edge[1], where, "destination"),
            where,
            ticks=ticks(edge[2], where, "cost"),
        )
    return draft.build()
