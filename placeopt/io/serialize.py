"""Versioned JSON of every object: graphs, clusters, problems, solutions, budgets and results.

    save(result, "result.json")
    result = load("result.json")

What is given (graphs, clusters, placement problems: arrays by column, neutral columns left out)
has its form here, what comes back in `result_codecs`; packages add theirs with `register` (see
`codec`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.io.body import Body, int_table, plain, show
from placeopt.io.codec import Codec, from_dict, load, register, save, to_dict
from placeopt.io.result_codecs import result_fields
from placeopt.model.cluster import Cluster, Device, Link, Rates
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints


__all__ = ["Body", "Codec", "from_dict", "load", "register", "result_fields", "save", "to_dict"]


_OP_ARRAYS = ("flops", "bytes_moved", "resident", "parameters", "colocation", "meta")
_OP_FIELDS = ("layer", "backward", "unshaped", *_OP_ARRAYS)


def _encode_graph(graph: OpGraph) -> dict[str, Any]:
    ops = {"name": list(graph.op_names), **plain(graph, *_OP_FIELDS)}
    if any(graph.op_types):
        ops["type"] = list(graph.op_types)
    for key in _OP_ARRAYS:
        if (getattr(graph, key) == (-1 if key in ("colocation", "meta") else 0)).all():
            del ops[key]
    tensors: dict[str, Any] = {
        "producer": graph.producer.tolist(),
        "consumers": _split(graph.consumer_ptr, graph.consumer),
        "bytes": graph.tensor_bytes.tolist(),
    }
    if (graph.measured_transfer != -1).any():
        tensors["ticks"] = graph.measured_transfer.tolist()
    if graph.shapes:
        tensors["shape"] = [list(shape) for shape in graph.shapes]
    body = {**plain(graph, "name", "tick_seconds"), "ops": ops, "tensors": tensors}
    if graph.measured_kinds:
        body["measured"] = {"kinds": list(graph.measured_kinds), "ticks": graph.measured.T.tolist()}
    return body


def _decode_graph(body: Body) -> OpGraph:
    ops, tensors = body.body("ops"), body.body("tensors")
    names = ops.texts("name")
    pointer, consumer = _join(tensors.items("consumers"), f'{tensors.where}: "consumers"')
    given: dict[str, Any] = body.fields(OpGraph, "name", "tick_seconds")
    given |= ops.fields(OpGraph, *_OP_FIELDS)
    if body.has("measured"):
        given |= _measured(body.body("measured"), len(names))
    return OpGraph(
        op_names=names,
        producer=tensors.integers("producer"),
        tensor_bytes=tensors.integers("bytes"),
        consumer_ptr=pointer,
        consumer=consumer,
        op_types=ops.texts("type") if ops.has("type") else (),
        measured_transfer=tensors.optional_integers("ticks"),  # type: ignore[arg-type]
        shapes=_shapes(tensors) if tensors.has("shape") else (),
        **given,
    )


def _measured(part: Body, num_ops: int) -> dict[str, Any]:
    """Return the measured times of a graph: a list of ticks for every kind of device."""
    kinds, columns = part.texts("kinds"), part.items("ticks")
    if len(kinds) != len(columns):
        raise InputError(
            f"{part.where}: expected one list of ticks per kind, "
            f"received {len(columns)} for {len(kinds)} kinds"
        )
    for kind, column in zip(kinds, columns, strict=True):
        if not isinstance(column, list) or len(column) != num_ops:
            raise InputError(f"{part.where}: kind '{kind}': expected {num_ops} ticks, one per op")
    table = int_table(columns, part.where).reshape(len(kinds), num_ops).T
    return {"measured_kinds": kinds, "measured": table}


def _shapes(tensors: Body) -> tuple[tuple[int, ...], ...]:
    rows = tensors.items("shape")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or any(type(x) is not int for x in row):
            raise tensors.wrong(f"shape[{i}]", "a list of whole numbers", row)
    return tuple(tuple(row) for row in rows)


def _split(pointer: Ints, flat: Ints) -> list[list[int]]:
    bounds, values = pointer.tolist(), flat.tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


def _join(rows: list[Any], where: str) -> tuple[Ints, Ints]:
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise InputError(f"{where}[{i}]: expected a list of op indices, received {show(row)}")
    pointer = np.zeros(len(rows) + 1, np.int64)
    pointer[1:] = np.cumsum([len(row) for row in rows])
    return pointer, int_table([x for row in rows for x in row], where)


def _encode_cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        **plain(cluster, but=("devices", "links")),
        "devices": [_encode_device(device) for device in cluster.devices],
        "links": [plain(link) for link in cluster.links],
    }


def _decode_cluster(body: Body) -> Cluster:
    return Cluster(
        devices=tuple(_decode_device(item) for item in body.bodies("devices")),
        links=tuple(Link(**item.fields(Link)) for item in body.bodies("links")),
        **body.fields(Cluster, but=("devices", "links")),
    )


_RATES = ("half", "attention")


def _encode_device(device: Device) -> dict[str, Any]:
    rates = {key: plain(rates) for key in _RATES if (rates := getattr(device, key)) is not None}
    return {**plain(device, but=_RATES), **rates}


def _decode_device(body: Body) -> Device:
    rates: dict[str, Any] = {
        key: Rates(**body.body(key).fields(Rates)) for key in _RATES if body.has(key)
    }
    return Device(**body.fields(Device, but=_RATES), **rates)


_CONSUMERS = ("consumer_ptr", "consumer")


def _encode_problem(problem: PlacementProblem) -> dict[str, Any]:
    consumers = _split(problem.consumer_ptr, problem.consumer)
    return {**plain(problem, but=_CONSUMERS), "consumers": consumers}


def _decode_problem(body: Body) -> PlacementProblem:
    pointer, consumer = _join(body.items("consumers"), f'{body.where}: "consumers"')
    given = body.fields(PlacementProblem, but=_CONSUMERS)
    if not len(given["producer"]):  # a table without rows has lost its width
        given["transfer"] = given["transfer"].reshape(0, 1)
    return PlacementProblem(consumer_ptr=pointer, consumer=consumer, **given)


register(Codec("opgraph", OpGraph, _encode_graph, _decode_graph))
register(Codec("cluster", Cluster, _encode_cluster, _decode_cluster))
register(Codec("problem", PlacementProblem, _encode_problem, _decode_problem))
