"""The attribute names that networkx, GraphML, DOT and CSV share, and how foreign names map onto them.

Node attributes: the columns of `draft.DEFAULTS` and one `time:KIND` per kind of device, in ticks (-1 unknown,
-2 unsupported). Edge attributes: `tensor` (edges of one source with the same value are one tensor), `bytes`,
`ticks` (measured transfer, -1 unknown) and `shape` ("1x3x224x224"). Graph attributes: `name`,
`tick_seconds`.

A tensor that nobody reads has no edge: only placeopt's own JSON keeps it.

Files of other tools use many names for a weight; the first alias that is there counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.draft import DEFAULTS, Draft, ticks, whole
from placeopt.model.errors import InputError
from placeopt.model.files import one_line
from placeopt.model.graph import UNKNOWN, UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from placeopt.model.graph import OpGraph

TIME_ALIASES = ("time", "ticks", "weight", "cost", "duration", "work", "comp", "compute", "runtime", "exec_time")
TRANSFER_ALIASES = ("ticks", "weight", "cost", "comm", "time", "latency")
BYTES_ALIASES = ("bytes", "size", "data", "tensor_bytes")
TYPE_ALIASES = ("type", "op_type", "op", "kind")
LABEL_COLUMNS = ("type", "layer")


@dataclass(frozen=True)
class Names:
    """Which attribute holds what; "" means: the first alias that is there.

    Attributes
    ----------
    node_time : time of an op on any device, in ticks.
    edge_time : transfer time of an edge between different devices, in ticks.
    edge_bytes : size of the tensor of an edge.
    """

    node_time: str = ""
    edge_time: str = ""
    edge_bytes: str = ""


@lru_cache(maxsize=512)
def _op_plan(keys: tuple[Any, ...], node_time: str) -> tuple[list[tuple[Any, str]], list[tuple[Any, str]], list[Any]]:
    """Sort the attribute names of an op: columns, measured times by kind, and candidates for a plain time."""
    table = {str(key).strip().lower(): key for key in keys}
    columns = [(table[column], column) for column in DEFAULTS if column in table]
    columns += [(table[alias], "type") for alias in TYPE_ALIASES if alias in table and alias != "type"]
    split = [(key, str(key).strip().partition(":")) for key in keys]
    kinds = [(key, kind) for key, (head, colon, kind) in split if colon and head.lower() == "time"]
    times = [node_time.lower()] if node_time else TIME_ALIASES
    return columns, kinds, [table[name] for name in times if name in table]


def add_op(draft: Draft, key: Any, attributes: Mapping[str, Any], where: str, names: Names, **fixed: Any) -> None:
    """Add an op described by attributes; empty ones count as absent."""
    columns, kinds, plain = _op_plan(tuple(attributes), names.node_time)
    fields: dict[str, Any] = {}
    for name, column in columns:
        value = attributes[name]
        if value is None or value == "" or column in fields:
            continue
        default = DEFAULTS[column]
        if column in LABEL_COLUMNS:
            fields[column] = one_line(str(value), 200)
        elif isinstance(default, bool):
            fields[column] = flag(value, where, column)
        else:
            fields[column] = whole(value, where, column, least=min(default, 0))
    times = {kind: _measured(attributes[name], where, str(name)) for name, kind in kinds if _given(attributes[name])}
    if not times:
        name = next((name for name in plain if _given(attributes[name])), None)
        if name is not None:
            times["*"] = _measured(attributes[name], where, str(name))
    draft.op(key, where, times=times, **fields, **fixed)


@lru_cache(maxsize=512)
def _edge_plan(keys: tuple[Any, ...], edge_time: str, edge_bytes: str) -> tuple[list[Any], list[Any], Any, Any]:
    """Sort the attribute names of an edge: candidates for size and time, and the names of shape and tensor."""
    table = {str(key).strip().lower(): key for key in keys}
    sizes = [edge_bytes.lower()] if edge_bytes else BYTES_ALIASES
    times = [edge_time.lower()] if edge_time else [name for name in TRANSFER_ALIASES if name != edge_bytes.lower()]
    found = [[table[name] for name in names if name in table] for names in (sizes, times)]
    return found[0], found[1], table.get("shape"), table.get("tensor")


def add_edge(draft: Draft, source: Any, target: Any, attributes: Mapping[str, Any], where: str, names: Names) -> None:
    """Add an edge described by attributes; without `tensor` it is a tensor of its own."""
    sizes, times, shape_key, tensor_key = _edge_plan(tuple(attributes), names.edge_time, names.edge_bytes)
    size, time, shape, tensor = 0, UNKNOWN, None, None
    name = next((name for name in sizes if _given(attributes[name])), None)
    if name is not None:
        size = ticks(attributes[name], where, str(name))
    name = next((name for name in times if _given(attributes[name])), None)
    if name is not None and str(attributes[name]).strip() != str(UNKNOWN):
        time = ticks(attributes[name], where, str(name))
    if shape_key is not None and _given(attributes[shape_key]):
        shape = parse_shape(attributes[shape_key], where)
    if tensor_key is not None and _given(attributes[tensor_key]):
        tensor = str(attributes[tensor_key])
    draft.edge(source, target, where, tensor=tensor, size=size, ticks=time, shape=shape)


def _given(value: Any) -> bool:
    return value is not None and value != ""


def op_attributes(graph: OpGraph) -> Iterator[dict[str, str | int | bool]]:
    """Yield the attributes of each op that are not neutral, in op order."""
    columns = {"type": graph.op_types, "layer": graph.layer}
    arrays = {key: getattr(graph, key).tolist() for key in DEFAULTS if key not in columns}
    measured = graph.measured.tolist()
    for i in range(graph.num_ops):
        row: dict[str, str | int | bool] = {}
        for key, default in DEFAULTS.items():
            value = columns[key][i] if key in columns else arrays[key][i]
            if value != default:
                row[key] = value
        for kind, value in zip(graph.measured_kinds, measured[i], strict=True):
            if value != UNKNOWN:
                row[f"time:{kind}"] = value
        yield row


def edge_attributes(graph: OpGraph) -> Iterator[tuple[int, int, dict[str, str | int]]]:
    """Yield (producer, consumer, attributes) of each edge, tensor by tensor."""
    consumer, pointer = graph.consumer.tolist(), graph.consumer_ptr.tolist()
    sizes, times = graph.tensor_bytes.tolist(), graph.measured_transfer.tolist()
    for t, producer in enumerate(graph.producer.tolist()):
        row: dict[str, str | int] = {"tensor": t, "bytes": sizes[t]}
        if times[t] != UNKNOWN:
            row["ticks"] = times[t]
        if graph.shapes:
            row["shape"] = "x".join(map(str, graph.shapes[t])) or "scalar"
        for v in consumer[pointer[t] : pointer[t + 1]]:
            yield producer, v, row


def used_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the attribute names that occur, in the order of first use."""
    return list(dict.fromkeys(key for row in rows for key in row))


def flag(value: Any, where: str, what: str) -> bool:
    """Return a truth value given as such, as 0/1 or as a word."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    text = str(value).strip().lower()
    if text not in words:
        raise InputError(f"{where}: {what}: expected true or false, received {value!r:.40}")
    return words[text]


def parse_shape(value: Any, where: str) -> tuple[int, ...]:
    """Parse "1x3x224x224"; "scalar" is the empty shape."""
    text = str(value).strip()
    if text == "scalar":
        return ()
    return tuple(whole(part, where, "shape") for part in text.split("x"))


def _measured(value: Any, where: str, what: str) -> int:
    """Return measured ticks; -1 and -2 keep their meaning."""
    if str(value).strip() in (str(UNKNOWN), str(UNSUPPORTED)):
        return int(value)
    return ticks(value, where, what)
