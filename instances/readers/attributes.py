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
from typing import TYPE_CHECKING, Any

from placeopt.errors import InputError
from placeopt.files import one_line
from placeopt.graph import UNKNOWN, UNSUPPORTED
from placeopt.instances.readers.draft import DEFAULTS, Draft, ticks, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from placeopt.graph import OpGraph

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


def add_op(draft: Draft, key: Any, attributes: Mapping[str, Any], where: str, names: Names, **fixed: Any) -> None:
    """Add an op described by attributes; empty ones count as absent."""
    table = {str(k).strip().lower(): v for k, v in attributes.items() if v is not None and v != ""}
    fields: dict[str, Any] = {}
    for column, default in DEFAULTS.items():
        if column not in table:
            continue
        value = table[column]
        if column in LABEL_COLUMNS:
            fields[column] = one_line(str(value), 200)
        elif isinstance(default, bool):
            fields[column] = flag(value, where, column)
        else:
            fields[column] = whole(value, where, column, least=default if default < 0 else 0)
    if "type" not in fields and (alias := _first(table, TYPE_ALIASES)):
        fields["type"] = one_line(str(table[alias]), 200)
    times = {}
    for key_name, value in attributes.items():
        head, colon, kind = str(key_name).strip().partition(":")
        if colon and head.lower() == "time" and value not in (None, ""):
            times[kind] = _measured(value, where, str(key_name))
    alias = names.node_time.lower() or _first(table, TIME_ALIASES)
    if not times and alias and alias in table:
        times["*"] = _measured(table[alias], where, alias)
    draft.op(key, where, times=times, **fields, **fixed)


def add_edge(draft: Draft, source: Any, target: Any, attributes: Mapping[str, Any], where: str, names: Names) -> None:
    """Add an edge described by attributes; without `tensor` it is a tensor of its own."""
    table = {str(k).strip().lower(): v for k, v in attributes.items() if v is not None and v != ""}
    size_key = names.edge_bytes.lower() or _first(table, BYTES_ALIASES)
    time_key = names.edge_time.lower() or _first(table, [x for x in TRANSFER_ALIASES if x != size_key])
    size = ticks(table[size_key], where, size_key) if size_key and size_key in table else 0
    time = UNKNOWN
    if time_key and time_key in table and str(table[time_key]).strip() != str(UNKNOWN):
        time = ticks(table[time_key], where, time_key)
    shape = parse_shape(table["shape"], where) if "shape" in table else None
    tensor = str(table["tensor"]) if "tensor" in table else None
    draft.edge(source, target, where, tensor=tensor, size=size, ticks=time, shape=shape)


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


def _first(table: Mapping[str, Any], aliases: Iterable[str]) -> str:
    return next((alias for alias in aliases if alias in table), "")


def _measured(value: Any, where: str, what: str) -> int:
    """Return measured ticks; -1 and -2 keep their meaning."""
    if str(value).strip() in (str(UNKNOWN), str(UNSUPPORTED)):
        return int(value)
    return ticks(value, where, what)
