"""networkx graphs in both directions, and the node-link JSON that networkx writes.

The attributes are those of `attributes`; a graph made elsewhere needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placeopt.instances.readers.attributes import (
    AttributeDraft,
    Names,
    edge_attributes,
    op_attributes,
)
from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.graph import OpGraph


def from_networkx(graph: Any, *, name: str = "", **names: Any) -> OpGraph:
    """Convert a networkx DiGraph or MultiDiGraph.

    Parameters
    ----------
    graph : nodes are ops, in the order of `graph.nodes`; edges are tensors of their own unless they
    share
        their source and an attribute `tensor`.
    name : by default the graph's attribute of this name, else "graph".
    names : as in `Names`, of attributes.

    Raises
    ------
    InputError
        If the graph is undirected or has a cycle, or an attribute is no number.
    """
    if not graph.is_directed():
        raise InputError(
            "networkx graph: expected a DiGraph or MultiDiGraph, received an undirected graph"
        )
    draft = AttributeDraft(
        name or str(graph.graph.get("name") or "graph"),
        Names(**names),
        tick_seconds=graph.graph.get("tick_seconds", 1e-9),
        repeated="parallel" if graph.is_multigraph() else "refuse",
    )
    for key, attributes in graph.nodes(data=True):
        draft.add_op(key, attributes, f"node {key!r:.60}")
    for u, v, attributes in graph.edges(data=True):
        draft.add_edge(u, v, attributes, f"edge {u!r:.40} -> {v!r:.40}")
    return draft.build()


def to_networkx(graph: OpGraph) -> Any:
    """Return a networkx MultiDiGraph whose nodes are op names, with the attributes of
    `attributes`.
    """
    import networkx as nx

    result = nx.MultiDiGraph(name=graph.name, tick_seconds=graph.tick_seconds)
    for op, row in zip(graph.op_names, op_attributes(graph), strict=True):
        result.add_node(op, **row)
    for u, v, row in edge_attributes(graph):
        result.add_edge(graph.op_names[u], graph.op_names[v], **row)
    return result


def read_node_link(path: Path, *, max_bytes: int, **names: Any) -> OpGraph:
    """Read the JSON of networkx.node_link_data: `{"directed", "graph", "nodes": [{"id"}], "edges":
    [...]}`.

    With `"multigraph": true` edges that are there twice are two tensors; else they are refused.
    `names` are options as in `Names`.
    """
    body = Body(read_json(path, max_bytes=max_bytes), "file")
    data = body.data
    if data.get("directed") is False:
        raise InputError("expected a directed graph, received directed=false")
    if "edges" in data and "links" in data:
        raise InputError('expected one list of edges, received "edges" and "links"; keep one')
    graph = data["graph"] if isinstance(data.get("graph"), dict) else {}
    draft = AttributeDraft(
        str(graph.get("name") or path.stem),
        Names(**names),
        tick_seconds=graph.get("tick_seconds", 1e-9),
        repeated="parallel" if data.get("multigraph") is True else "refuse",
    )
    for node in body.bodies("nodes"):
        draft.add_op(_key(node, "id"), node.data, node.where)
    for edge in body.bodies("edges" if "edges" in data else "links"):
        draft.add_edge(_key(edge, "source"), _key(edge, "target"), edge.data, edge.where)
    return draft.build()


def _key(row: Body, key: str) -> str:
    value = row.data.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise row.wrong(key, "a name or a number", value)
    return str(value)
