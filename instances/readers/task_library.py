"""Libraries of task graphs for identical devices: `{name: {"n": n, "work": [...], "edges": [[u, v,
cost]]}}`.

One graph is chosen by `graphs.json#NAME`. An edge is a tensor of its own that costs its weight
between any two different devices, without contention. The times are abstract: a tick is one unit,
and `tick_seconds` is 1, unless `unit` tells theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placeopt.instances.readers.draft import abstract_draft
from placeopt.io.body import Body
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import read_json
from placeopt.model.graph import OpGraph


def read(
    path: Path, *, graph: str = "", unit: str = "", tick_seconds: float = 0.0, max_bytes: int
) -> OpGraph:
    """Read one graph of a library.

    Parameters
    ----------
    graph : name of the graph; may be left out where the library has only one.
    unit, tick_seconds : as in `abstract_draft`.
    """
    data = Body(read_json(path, max_bytes=max_bytes), "file").data
    if not data:
        raise InputError('expected an object {name: {"n", "work", "edges"}}, received an empty one')
    if not graph and len(data) == 1:
        graph = next(iter(data))
    if not graph or graph not in data:
        raise _unknown(graph, data)
    return _graph(graph, Body(data[graph], f"graph '{graph}'"), unit, tick_seconds)


def _graph(name: str, body: Body, unit: str, tick_seconds: float) -> OpGraph:
    work, edges = body.items("work"), body.items("edges")
    if body.get("n") != len(work):
        raise body.wrong("n", f"n = {len(work)}, the length of work", body.get("n"))
    draft = abstract_draft(name, unit, tick_seconds)
    for i, time in enumerate(work):
        where = f"{body.where}: work[{i}]"
        draft.op(i, where, name=f"task{i}", times={"*": draft.rounded(time, where, "time")})
    for i, edge in enumerate(edges):
        where = f"{body.where}: edges[{i}]"
        if not isinstance(edge, list) or len(edge) != 3:
            raise InputError(f"{where}: expected [u, v, cost], received {edge!r:.40}")
        draft.cells_edge(edge, where)
    return draft.build()


def _unknown(graph: str, data: dict[str, Any]) -> InputError:
    hint = did_you_mean(graph, data, f"it has {', '.join(list(data)[:4])}, ...")
    asked = f"no graph '{graph}'" if graph else f"{len(data)} graphs: name one as FILE#NAME"
    return InputError(f"{asked}; {hint}")
