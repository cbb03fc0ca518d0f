"""GraphML, the XML of networkx, yEd and Gephi, in both directions.

Read: nodes, edges and their data; nested graphs and hyperedges are refused. An edge that is there
twice is refused unless the two name different tensors.

References
----------
Brandes, Eiglsperger, Herman, Himsolt and Marshall, "GraphML Progress Report", Graph Drawing 2001.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from placeopt.instances.readers.attributes import (
    MAX_ATTRIBUTES,
    AttributeDraft,
    Names,
    edge_attributes,
    op_attributes,
    used_columns,
)
from placeopt.instances.readers.safe_xml import parse_xml
from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET
    from pathlib import Path

    from placeopt.model.graph import OpGraph


def read(path: Path, *, max_bytes: int, **names: Any) -> OpGraph:
    """Read a GraphML file with one directed graph; `names` are options as in `Names`."""
    root = parse_xml(path, "graphml", max_bytes=max_bytes)
    graph = _only_graph(root)
    keys, defaults = _keys(root)
    own = _data(graph, keys, "graph", defaults["graph"])
    draft = AttributeDraft(
        own.get("name") or graph.get("id") or path.stem,
        Names(**names),
        tick_seconds=own.get("tick_seconds", 1e-9),
    )
    for i, node in enumerate(graph.findall("node")):
        where = f"node {i + 1}"
        if node.find("graph") is not None:
            raise InputError(f"{where}: nested graphs are not supported")
        data = _data(node, keys, where, defaults["node"])
        draft.add_op(_attribute(node, "id", where), data, where)
    if graph.find("hyperedge") is not None:
        raise InputError("hyperedges are not supported")
    for i, edge in enumerate(graph.findall("edge")):
        where = f"edge {i + 1}"
        if edge.get("directed", "true") != "true":
            raise InputError(f"{where}: expected a directed edge")
        source, target = _attribute(edge, "source", where), _attribute(edge, "target", where)
        draft.add_edge(source, target, _data(edge, keys, where, defaults["edge"]), where)
    return draft.build()


def _only_graph(root: ET.Element) -> ET.Element:
    """Return the one graph of a file, which has to be directed."""
    graphs = root.findall("graph")
    if len(graphs) != 1:
        raise InputError(f"expected one <graph>, received {len(graphs)}")
    if graphs[0].get("edgedefault", "directed") != "directed":
        raise InputError('expected edgedefault="directed", received an undirected graph')
    return graphs[0]


def _keys(root: ET.Element) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the names of attributes by their key, and their defaults by name for nodes, edges and
    the graph.
    """
    elements = root.findall("key")
    keys = {key.get("id", ""): key.get("attr.name") or str(key.get("id", "")) for key in elements}
    if len(keys) > MAX_ATTRIBUTES:
        raise InputError(f"expected at most {MAX_ATTRIBUTES} <key>, received {len(keys)}")
    defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}
    for key in elements:
        value, domain = key.find("default"), key.get("for", "all")
        if value is not None and value.text:
            for one in defaults if domain == "all" else [domain]:
                defaults.setdefault(one, {})[keys[key.get("id", "")]] = value.text
    return keys, defaults


def _attribute(element: ET.Element, key: str, where: str) -> str:
    value = element.get(key)
    if value is None:
        raise InputError(f"{where}: attribute {key}= is missing")
    return value


def _data(
    element: ET.Element, keys: dict[str, str], where: str, defaults: dict[str, str]
) -> dict[str, str]:
    """Return the <data> of an element by attribute name."""
    values, own = dict(defaults), set[str]()
    for data in element.findall("data"):
        key = data.get("key", "")
        if key not in keys:
            raise InputError(
                f"{where}: data names the key '{one_line(key)}', which is not declared"
            )
        if keys[key] in own:
            raise InputError(f"{where}: '{one_line(keys[key])}' is there twice; keep one")
        own.add(keys[key])
        values[keys[key]] = data.text or ""
    return values


def write(graph: OpGraph) -> str:
    """Return the GraphML text of a graph; `read` gives the same graph back."""
    ops, edges = list(op_attributes(graph)), list(edge_attributes(graph))
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        '<key id="g0" for="graph" attr.name="name" attr.type="string"/>',
        '<key id="g1" for="graph" attr.name="tick_seconds" attr.type="double"/>',
    ]
    ids: dict[tuple[str, str], str] = {}
    for domain, letter, rows in (("node", "n", ops), ("edge", "e", [row for _, _, row in edges])):
        for i, column in enumerate(used_columns(rows)):
            ids[domain, column] = f"{letter}{i}"
            value = next(row[column] for row in rows if column in row)
            kind = {bool: "boolean", int: "long"}.get(type(value), "string")
            name = quoteattr(column)
            lines.append(
                f'<key id="{letter}{i}" for="{domain}" attr.name={name} attr.type="{kind}"/>'
            )
    lines.append('<graph edgedefault="directed">')
    lines.append(
        f'<data key="g0">{_text(graph.name)}</data><data key="g1">{graph.tick_seconds!r}</data>'
    )
    for op, row in zip(graph.op_names, ops, strict=True):
        lines.append(f"<node id={_quote(op)}>{_all_data(row, ids, 'node')}</node>")
    for u, v, edge in edges:
        ends = f"source={_quote(graph.op_names[u])} target={_quote(graph.op_names[v])}"
        lines.append(f"<edge {ends}>{_all_data(edge, ids, 'edge')}</edge>")
    lines += ["</graph>", "</graphml>", ""]
    return "\n".join(lines)


def _all_data(row: dict[str, Any], ids: dict[tuple[str, str], str], domain: str) -> str:
    def cell(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else _text(str(value))

    return "".join(
        f'<data key="{ids[domain, key]}">{cell(value)}</data>' for key, value in row.items()
    )


def _text(value: str) -> str:
    _refuse_control(value)
    return escape(value, {"\r": "&#13;"})


def _quote(value: str) -> str:
    _refuse_control(value)
    return quoteattr(value, {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})


def _refuse_control(value: str) -> None:
    if any(ord(c) < 32 and c not in "\t\n\r" for c in value):
        raise InputError(
            f"name {value!r:.60}: XML cannot hold control characters; write another format"
        )
