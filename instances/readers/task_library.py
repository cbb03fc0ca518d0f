"""Libraries of task graphs for identical devices: `{name: {"n": n, "work": [...], "edges": [[u, v,
cost]]}}`.

One graph is chosen by `graphs.json#NAME`. An edge is a tensor of its own that costs its weight
between any two different devices, without contention. The times are abstract: a tick is one unit,
and `tick_seconds` is 1, unless `unit` tells theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.draft import abstract_draft
from placeopt.model.errors import InputError, nearest
from placeopt.model.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

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
    data = read_json(path, max_bytes=max_bytes)
    if not isinstance(data, dict) or not data:
        raise InputError(
            'expected an object {name: {"n", "work", "edges"}}, received something else'
        )
    if not graph and len(data) == 1:
        graph = next(iter(data))
    if not graph or graph not in data:
        raise _unknown(graph, data)
    return _graph(graph, data[graph] if isinstance(data[graph], dict) else {}, unit, tick_seconds)


def _graph(name: str, body: dict[str, Any], unit: str, tick_seconds: float) -> OpGraph:
    where = f"graph '{name}'"
    work, edges = body.get("work"), body.get("edges")
    if not isinstance(work, list) or not isinstance(edges, list):
        raise InputError(f"{where}: expected {{n, work: [...], edges: [[u, v, cost]]}}")
    if body.get("n") != len(work):
        raise InputError(
            f"{where}: expected n = {len(work)}, the length of work, received {body.get('n')!r:.40}"
        )
    draft = abstract_draft(name, unit, tick_seconds)
    for i, time in enumerate(work):
        took = draft.rounded(time, f"{where}: work[{i}]", "time")
        draft.op(i, f"{where}: work[{i}]", name=f"task{i}", times={"*": took})
    for i, edge in enumerate(edges):
        if not isinstance(edge, list) or len(edge) != 3:
            raise InputError(f"{where}: edges[{i}]: expected [u, v, cost], received {edge!r:.40}")
        draft.cells_edge(edge, f"{where}: edges[{i}]")
    return draft.build()


def _unknown(graph: str, data: dict[str, Any]) -> InputError:
    near = nearest(graph, data) if graph else ""
    hint = f"did you mean '{near}'?" if near else f"it has {', '.join(list(data)[:4])}, ..."
    asked = f"no graph '{graph}'" if graph else f"{len(data)} graphs: name one as FILE#NAME"
    return InputError(f"{asked}; {hint}")
