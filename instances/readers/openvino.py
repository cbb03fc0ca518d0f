"""OpenVINO IR (versions 10 and 11): topology, types and shapes from the XML; the weights file is
not needed.

Flops and bytes are computed from the shapes that every port declares. Const layers are weights,
Parameter layers inputs, Result layers outputs; the rest is as for ONNX models.

The ops of OpenVINO's IR: which cost rule each one has, and which attributes the rules need.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers import op_costs
from placeopt.instances.readers.draft import whole
from placeopt.instances.readers.ir_graph import Reading, finish, propagate_constants
from placeopt.instances.readers.model_ir import (
    Model,
    Node,
    Shape,
    Value,
    Values,
    agree,
    stored_cost,
)
from placeopt.instances.readers.safe_xml import parse_xml
from placeopt.model.errors import InputError
from placeopt.model.files import one_line

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET
    from collections.abc import Mapping
    from pathlib import Path

    from placeopt.model.graph import OpGraph

    Layers = dict[int, ET.Element]


def read(path: Path, *, max_bytes: int, **reading: Any) -> OpGraph:
    """Read an IR; options as for ONNX models.

    Raises
    ------
    InputError
        If the XML is malformed, a layer id is there twice, or an edge names a layer or port that is
        not there.
    """
    how, root = Reading(**reading), parse_xml(path, "net", max_bytes=max_bytes)
    model = _translate(root, root.get("name") or path.stem, how.trip_count)
    model.sort()
    for node in model.nodes if how.fold else ():
        if node.rule == "shape" and model.values[node.inputs[0]].known:
            for name in node.outputs:
                model.values[name].make_constant()
    return finish(model, how)


def _translate(net: ET.Element, name: str, turns: int | None) -> Model:
    """Turn a <net> (or the <body> of a loop) into the common form."""
    layers, edges = net.find("layers"), net.find("edges")
    if layers is None or edges is None:
        raise InputError("expected <layers> and <edges>: the file is truncated or no OpenVINO IR")
    by_id = _by_id(layers)
    source = _edges(edges, by_id)
    values = _declared(by_id)
    nodes: list[Node] = []
    results: list[str] = []
    for key, layer in by_id.items():
        kind = layer.get("type", "")
        inputs = _inputs(key, layer, source, values)
        outputs = [f"{key}:{port}" for port, _ in _ports(layer, "output")]
        if kind in ("Const", "Constant"):
            for value in map(values.__getitem__, outputs):
                value.constant = True
                value.dtype = DTYPES.get(_data(layer).get("element_type", ""), value.dtype)
        elif kind in ("Result", "Assign"):
            results += inputs
        elif kind not in ("Parameter", "Input"):
            nodes.append(_node(layer, inputs, outputs, values, turns))
    return Model(name, nodes, values, results)


def _node(
    layer: ET.Element, inputs: list[str], outputs: list[str], values: Values, turns: int | None
) -> Node:
    """Translate a layer that computes something, and the bodies of a loop."""
    title, kind = _label(layer), layer.get("type", "")
    rule, attrs = rule_of(kind, _data(layer), f"layer '{title}'")
    module = title.strip("/").rpartition("/")[0]
    node = Node(title, kind, rule, inputs, outputs, attrs, module)
    if rule == "control":
        _add_bodies(node, layer, values, turns)
    return node


def _data(layer: ET.Element) -> dict[str, str]:
    """Return the attributes of an op that a layer declares."""
    data = layer.find("data")
    return {} if data is None else data.attrib


def _declared(by_id: Layers) -> Values:
    """Return the values of all output ports, as LAYER:PORT, with the shapes that they declare."""
    return {
        f"{key}:{port}": Value(_shape(element), DTYPES.get(element.get("precision", ""), "float32"))
        for key, layer in by_id.items()
        for port, element in _ports(layer, "output")
    }


def _by_id(layers: ET.Element) -> Layers:
    by_id: Layers = {}
    for layer in layers.findall("layer"):
        key = whole(layer.get("id", ""), f"layer '{_label(layer)}'", "id")
        if key in by_id:
            raise InputError(
                f"layer id {key} is there twice ('{_label(by_id[key])}' and '{_label(layer)}')"
            )
        by_id[key] = layer
    return by_id


def _inputs(
    key: int, layer: ET.Element, source: dict[tuple[int, int], str], values: Values
) -> list[str]:
    """Return the values that a layer reads, refusing ports without one and shapes that differ
    between the two ends.
    """
    where = f"layer '{_label(layer)}'"
    inputs = []
    for port, element in _ports(layer, "input"):
        if (key, port) not in source:
            raise InputError(f"{where}: no edge leads to its input port {port}")
        name = source[key, port]
        if name not in values:
            raise InputError(f"{where}: an edge comes from port {name}, which is not there")
        declared, made = _shape(element), values[name].shape or ()
        if declared and made and not agree(declared, made):
            raise InputError(
                f"{where}: input port {port} expects the shape {list(declared)}, receives "
                f"{list(made)}"
            )
        inputs.append(name)
    return inputs


def _edges(edges: ET.Element, by_id: Layers) -> dict[tuple[int, int], str]:
    """Return the value (LAYER:PORT) that each input port (layer, port) reads."""
    source: dict[tuple[int, int], str] = {}
    for i, edge in enumerate(edges.findall("edge")):
        where = f"edge {i + 1}"
        at = {
            k: whole(edge.get(k, ""), where, k)
            for k in ("from-layer", "from-port", "to-layer", "to-port")
        }
        for end in ("from-layer", "to-layer"):
            if at[end] not in by_id:
                raise InputError(f"{where}: {end} {at[end]} is not in the graph")
        target = (at["to-layer"], at["to-port"])
        if target in source:
            raise InputError(f"{where}: input port {target[1]} of layer {target[0]} has two edges")
        source[target] = f"{at['from-layer']}:{at['from-port']}"
    return source


def _label(layer: ET.Element) -> str:
    return one_line(layer.get("name") or layer.get("id") or "?", 200)


def _ports(layer: ET.Element, side: str) -> list[tuple[int, ET.Element]]:
    group = layer.find(side)
    if group is None:
        return []
    where = f"layer '{_label(layer)}'"
    return [
        (whole(port.get("id", ""), where, f"{side} port id"), port)
        for port in group.findall("port")
    ]


def _shape(port: ET.Element) -> Shape:
    """Return the shape of a port; a dynamic dimension (-1) is unknown."""
    dims: list[int | None] = []
    for dim in port.findall("dim"):
        text = (dim.text or "").strip()
        dims.append(None if text.startswith("-") or ".." in text else whole(text, "port", "dim"))
    return tuple(dims)


def _add_bodies(node: Node, layer: ET.Element, values: Values, turns: int | None) -> None:
    """Charge a TensorIterator, Loop or If for its bodies: the dearest one, times the number of
    iterations.
    """
    costs = []
    for body in layer:
        if body.tag in ("body", "then_body", "else_body"):
            inner = _translate(body, node.name, turns)
            propagate_constants(inner)
            run = op_costs.run_cost(inner.nodes, inner.values)
            held = stored_cost(v for v in inner.values.values() if v.constant and not v.root)
            costs.append(held._replace(flops=run.flops, bytes_moved=run.bytes_moved))
    op_costs.charge_bodies(
        node, costs, op_costs.turns_of(node, _iterations(node, layer, values), turns)
    )


def _iterations(node: Node, layer: ET.Element, values: Values) -> int | None:
    """Return the trip count, from an input that is sliced along an axis; 1 for an If, None where
    unknown.
    """
    if node.type == "If":
        return 1
    ports = [port for port, _ in _ports(layer, "input")]
    for entry in layer.iterfind("port_map/input"):
        axis, port = entry.get("axis"), entry.get("external_port_id", "")
        if axis is None or not port.isdecimal() or int(port) not in ports:
            continue
        shape = values[node.inputs[ports.index(int(port))]].shape or ()
        where = f"layer '{node.name}'"
        at, part = (
            whole(axis, where, "axis"),
            whole(entry.get("part_size", "1"), where, "part_size", least=1),
        )
        if at < len(shape) and (length := shape[at]) is not None:
            return math.ceil(length / part)
    return None


_OPS = op_costs.vocabulary("openvino")

DTYPES = _OPS["dtypes"]
"""Element type by the precision of a port or the element_type of a constant."""


def rule_of(kind: str, attributes: Mapping[str, str], where: str) -> tuple[str, dict[str, Any]]:
    """Return the cost rule of a layer and the attributes that the rules look at."""
    rule, found = op_costs.look_up(_OPS, kind)
    if rule == "matmul":
        for key in ("a", "b"):
            found[f"trans_{key}"] = attributes.get(f"transpose_{key}", "").lower() in ("true", "1")
    elif rule == "pool" and "kernel" in attributes:
        found["kernel"] = tuple(
            whole(k.strip(), where, "kernel") for k in attributes["kernel"].split(",")
        )
    elif rule == "einsum":
        found["equation"] = attributes.get("equation", "")
    elif rule == "lrn":
        found["size"] = whole(attributes.get("size", "5"), where, "size")
    return rule, found
