"""Codecs of what is given: graphs, clusters and placement problems, arrays by column, neutral
columns left out.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.io.body import Body, int_table, show
from placeopt.io.codec import Codec, register
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OP_COLUMNS = ("flops", "bytes_moved", "resident", "parameters", "colocation", "meta")


def _encode_graph(graph: OpGraph) -> dict[str, Any]:
    ops: dict[str, Any] = {"name": list(graph.op_names)}
    for key, names in (("type", graph.op_types), ("layer", graph.layer)):
        if any(names):
            ops[key] = list(names)
    for key in _OP_COLUMNS:
        array = getattr(graph, key)
        neutral = -1 if key in ("colocation", "meta") else 0
        if (array != neutral).any():
            ops[key] = array.tolist()
    for key in ("backward", "unshaped"):
        array = getattr(graph, key)
        if array.any():
            ops[key] = array.astype(int).tolist()
    tensors: dict[str, Any] = {
        "producer": graph.producer.tolist(),
        "consumers": _split(graph.consumer_ptr, graph.consumer),
        "bytes": graph.tensor_bytes.tolist(),
    }
    if (graph.measured_transfer != -1).any():
        tensors["ticks"] = graph.measured_transfer.tolist()
    if graph.shapes:
        tensors["shape"] = [list(shape) for shape in graph.shapes]
    body: dict[str, Any] = {"name": graph.name, "tick_seconds": graph.tick_seconds}
    body["ops"], body["tensors"] = ops, tensors
    if graph.measured_kinds:
        body["measured"] = {
            "kinds": list(graph.measured_kinds),
            "ticks": [graph.measured[:, j].tolist() for j in range(len(graph.measured_kinds))],
        }
    return body


def _decode_graph(body: Body) -> OpGraph:
    ops, tensors = body.body("ops"), body.body("tensors")
    names = ops.texts("name")
    pointer, consumer = _join(tensors.items("consumers"), f'{tensors.where}: "consumers"')
    columns: dict[str, Any] = {key: ops.optional_integers(key) for key in _OP_COLUMNS}
    kinds: tuple[str, ...] = ()
    measured = None
    if body.has("measured"):
        part = body.body("measured")
        kinds, columns_of_kind = part.texts("kinds"), part.items("ticks")
        if len(kinds) != len(columns_of_kind):
            raise InputError(
                f"{part.where}: expected one list of ticks per kind, "
                f"received {len(columns_of_kind)} for {len(kinds)} kinds"
            )
        for kind, column in zip(kinds, columns_of_kind, strict=True):
            if not isinstance(column, list) or len(column) != len(names):
                raise InputError(
                    f"{part.where}: kind '{kind}': expected {len(names)} ticks, one per op"
                )
        measured = int_table(columns_of_kind, part.where).reshape(len(kinds), len(names)).T
    return OpGraph(
        name=body.text("name"),
        op_names=names,
        producer=tensors.integers("producer"),
        tensor_bytes=tensors.integers("bytes"),
        consumer_ptr=pointer,
        consumer=consumer,
        op_types=ops.texts("type") if ops.has("type") else (),
        layer=ops.texts("layer") if ops.has("layer") else (),
        backward=ops.flags("backward"),  # type: ignore[arg-type]
        unshaped=ops.flags("unshaped"),  # type: ignore[arg-type]
        measured_kinds=kinds,
        measured=measured,  # type: ignore[arg-type]
        measured_transfer=tensors.optional_integers("ticks"),  # type: ignore[arg-type]
        shapes=_shapes(tensors) if tensors.has("shape") else (),
        tick_seconds=body.number("tick_seconds", 1e-9),
        **columns,
    )


def _shapes(tensors: Body) -> tuple[tuple[int, ...], ...]:
    rows = tensors.items("shape")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or any(type(x) is not int for x in row):
            raise tensors.wrong(f"shape[{i}]", "a list of whole numbers", row)
    return tuple(tuple(row) for row in rows)


def _split(pointer: NDArray[np.int64], flat: NDArray[np.int64]) -> list[list[int]]:
    bounds, values = pointer.tolist(), flat.tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


def _join(rows: list[Any], where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise InputError(f"{where}[{i}]: expected a list of op indices, received {show(row)}")
    pointer = np.zeros(len(rows) + 1, dtype=np.int64)
    pointer[1:] = np.cumsum([len(row) for row in rows])
    return pointer, int_table([x for row in rows for x in row], where)


# --- Cluster
# --------------------------------------------------------------------------------------------


def _encode_cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "devices": [
            {f.name: getattr(device, f.name) for f in fields(Device)} for device in cluster.devices
        ],
        "links": [{f.name: getattr(link, f.name) for f in fields(Link)} for link in cluster.links],
        "link_class": cluster.link_class.tolist(),
        "channel": cluster.channel.tolist(),
    }


def _decode_cluster(body: Body) -> Cluster:
    devices = tuple(
        Device(
            **item.each(item.text, "name", "kind", "family"),
            **item.each(item.number, "peak_flops", "memory_bandwidth"),
            memory=item.integer("memory"),
            launch_overhead=item.number("launch_overhead", 0.0),
        )
        for item in body.bodies("devices")
    )
    links = tuple(
        Link(item.text("name"), item.number("latency"), item.number("bandwidth"))
        for item in body.bodies("links")
    )
    return Cluster(
        body.text("name"), devices, links, body.integers("link_class"), body.integers("channel")
    )


# --- PlacementProblem
# -----------------------------------------------------------------------------------

_PROBLEM_ARRAYS = (
    "compute",
    "producer",
    "transfer",
    "link_class",
    "channel",
    "resident",
    "capacity",
    "colocation",
    "tensor_bytes",
    "io_class",
    "meta",
)
_PROBLEM_WORDS = ("memory", "objective", "contiguity", "pipeline")


def _encode_problem(problem: PlacementProblem) -> dict[str, Any]:
    body: dict[str, Any] = {"name": problem.name, "tick_seconds": problem.tick_seconds}
    body["slots"] = problem.slots
    body.update({key: getattr(problem, key) for key in _PROBLEM_WORDS})
    body["op_names"], body["device_names"] = list(problem.op_names), list(problem.device_names)
    if any(problem.op_types):
        body["op_types"] = list(problem.op_types)
    body.update({key: getattr(problem, key).tolist() for key in _PROBLEM_ARRAYS})
    body["consumers"] = _split(problem.consumer_ptr, problem.consumer)
    if problem.backward.any():
        body["backward"] = problem.backward.astype(int).tolist()
    return body


def _decode_problem(body: Body) -> PlacementProblem:
    pointer, consumer = _join(body.items("consumers"), f'{body.where}: "consumers"')
    arrays: dict[str, Any] = {
        key: body.integers(key) for key in ("compute", "producer", "transfer")
    }
    arrays.update(
        {key: body.optional_integers(key) for key in _PROBLEM_ARRAYS if key not in arrays}
    )
    words: dict[str, Any] = {key: body.text(key) for key in _PROBLEM_WORDS if body.has(key)}
    if not len(arrays["producer"]):  # a table without rows has lost its width
        arrays["transfer"] = arrays["transfer"].reshape(0, 1)
    return PlacementProblem(
        name=body.text("name"),
        consumer_ptr=pointer,
        consumer=consumer,
        tick_seconds=body.number("tick_seconds", 1e-9),
        slots=body.integer("slots", 1),
        op_names=body.texts("op_names") if body.has("op_names") else (),
        op_types=body.texts("op_types") if body.has("op_types") else (),
        device_names=body.texts("device_names") if body.has("device_names") else (),
        backward=body.flags("backward"),  # type: ignore[arg-type]
        **words,
        **arrays,
    )


register(Codec("opgraph", OpGraph, _encode_graph, _decode_graph))
register(Codec("cluster", Cluster, _encode_cluster, _decode_cluster))
register(Codec("problem", PlacementProblem, _encode_problem, _decode_problem))
