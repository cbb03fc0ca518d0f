"""The attribute names that networkx, GraphML, DOT and CSV share, and how foreign names map onto
them.

Node attributes: the columns of `draft.DEFAULTS` and one `time:KIND` per kind of device, in ticks
(-1 unknown, -2 unsupported). Edge attributes: `tensor` (edges of one source with the same value are
one tensor), `bytes`, `ticks` (measured transfer, -1 unknown) and `shape` ("1x3x224x224"). Graph
attributes: `name`, `tick_seconds`.

A tensor that nobody reads has no edge: only placeopt's own JSON keeps it.

Files of other tools use many names for a weight; the first alias that is there counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar

from placeopt.instances.readers.draft import (
    DEFAULTS,
    Draft,
    Place,
    all_ticks,
    number,
    place,
    ticks,
    whole,
)
from placeopt.model.arrays import row_at
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import TRUTH, Data, one_line
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph

TIME_ALIASES = (
    "time",
    "ticks",
    "weight",
    "cost",
    "duration",
    "work",
    "comp",
    "compute",
    "runtime",
    "exec_time",
)
TRANSFER_ALIASES = ("ticks", "weight", "cost", "comm", "time", "latency")
BYTES_ALIASES = ("bytes", "size", "data", "tensor_bytes")
TYPE_ALIASES = ("type", "op_type", "op", "kind")

MAX_ATTRIBUTES = 200
"""Most attributes of one op or edge: defaults of a file apply to each of them."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Options of readers of attributes: which of these holds what, and what times count in.

    Attributes
    ----------
    node_time, edge_time, edge_bytes : attribute with the time of an op on any device, with that of
    a transfer between different devices, and with the bytes of a tensor; by default the first of
    the usual names that is there ("time", "weight", "cost", ...).
    unit : of these times: s, ms, us or ns; a tick by default.
    tick_seconds : length of a tick, by default that of the graph, else 1e-9.
    """

    node_time: str = ""
    edge_time: str = ""
    edge_bytes: str = ""
    unit: str = ""
    tick_seconds: float = 0.0


class Columns:
    """What attributes mean.

    Attributes
    ----------
    table : where each stands, by its name in small letters. unread : those that mean nothing here.
    options : those of `Names` that name one. lacking : what a graph without costs of them is told.
    """

    table: dict[str, int]
    unread: list[str]
    options: ClassVar[tuple[str, ...]]
    lacking: ClassVar[str]


class OpColumns(Columns):
    """What the attributes of an op mean, found once for all ops that have the same names of
    attributes.
    """

    options = ("node_time",)
    lacking = "no op has a time, flops or bytes"

    def __init__(self, keys: tuple[Any, ...], names: Names) -> None:
        table = self.table = _positions(keys, "an op")
        self.keys = keys
        self.fields = [(table[column], column) for column in DEFAULTS if column in table]
        self.fields += [(table[alias], "type") for alias in TYPE_ALIASES[1:] if alias in table]
        parts = [str(key).strip().partition(":") for key in keys]
        self.kinds = [
            (at, kind)
            for at, (head, colon, kind) in enumerate(parts)
            if colon and head.lower() == "time"
        ]
        self.plain = _places(table, names.node_time, TIME_ALIASES)
        self.unread = _unread(keys, {*dict(self.fields), *dict(self.kinds), *self.plain})

    def add(self, draft: AttributeDraft, key: Any, values: Sequence[Any], where: Place) -> None:
        """Add an op; `values` are in the order of the keys, empty ones count as absent."""
        draft.seen[self] = None
        fields: Data = {}
        for at, column in self.fields:
            value = values[at]
            if not _given(value) or column in fields:
                continue
            default = DEFAULTS[column]
            if isinstance(default, str):
                fields[column] = one_line(str(value), 200)
            elif isinstance(default, bool):
                fields[column] = flag(value, where, column)
            else:
                fields[column] = whole(value, where, column, least=min(default, 0))
        times = {
            kind: _measured(draft, values[at], where, str(self.keys[at]))
            for at, kind in self.kinds
            if _given(values[at])
        }
        at = -1 if times else _first_given(self.plain, values)
        if at >= 0:
            times["*"] = _measured(draft, values[at], where, str(self.keys[at]))
        draft.op(key, where, times=times, **fields)

    def add_all(
        self,
        draft: AttributeDraft,
        keys: Sequence[str],
        columns: Sequence[Sequence[str]],
        lines: Sequence[int],
    ) -> bool:
        """Add ops by column where every number is a plain whole one; False, and nothing added,
        where one is not.
        """
        if draft.unit != 1:
            return False
        fields: Data = {}
        for at, column in self.fields:
            if column in fields or isinstance(DEFAULTS[column], bool):
                return False
            if isinstance(DEFAULTS[column], str):
                fields[column] = _labels(columns[at])
            else:
                fields[column] = all_ticks(columns[at])
        kinds = self.kinds or [(at, "*") for at in self.plain[:1]]
        times = {kind: all_ticks(columns[at]) for at, kind in kinds}
        if None in fields.values() or None in times.values():
            return False
        draft.seen[self] = None
        draft.ops(keys, lines, times, **fields)  # type: ignore[arg-type]
        return True


class EdgeColumns(Columns):
    """What the attributes of an edge mean, found once for all edges that have the same names of
    attributes.
    """

    options = ("edge_time", "edge_bytes")
    lacking = "no edge has a time or bytes"

    def __init__(self, keys: tuple[Any, ...], names: Names) -> None:
        table = self.table = _positions(keys, "an edge")
        self.keys = keys
        size = names.edge_bytes.lower()
        times = [alias for alias in TRANSFER_ALIASES if alias != size]
        self.sizes = _places(table, size, BYTES_ALIASES)
        self.times = _places(table, names.edge_time, times)
        self.shape, self.tensor = table.get("shape"), table.get("tensor")
        self.unread = _unread(keys, {*self.sizes, *self.times, self.shape, self.tensor})

    def add(
        self, draft: AttributeDraft, source: Any, target: Any, values: Sequence[Any], where: Place
    ) -> None:
        """Add an edge; without `tensor` it is a tensor of its own."""
        draft.seen[self] = None
        size, time, shape, tensor = 0, UNKNOWN, None, None
        at = _first_given(self.sizes, values)
        if at >= 0:
            size = ticks(values[at], where, str(self.keys[at]))
        at = _first_given(self.times, values)
        if at >= 0 and str(values[at]).strip() != str(UNKNOWN):
            time = draft.rounded(values[at], where, str(self.keys[at]))
        if self.shape is not None and _given(values[self.shape]):
            shape = parse_shape(values[self.shape], where)
        if self.tensor is not None and _given(values[self.tensor]):
            tensor = str(values[self.tensor])
        draft.edge(source, target, where, tensor=tensor, size=size, ticks=time, shape=shape)

    def add_all(
        self, draft: AttributeDraft, columns: Sequence[Sequence[str]], lines: Sequence[int]
    ) -> bool:
        """Add edges by column (source, target, attributes) where every number is a plain whole one;
        else False.
        """
        if draft.unit != 1 or self.tensor is not None or self.shape is not None:
            return False
        numbers = {
            what: all_ticks(columns[2 + places[0]])
            for what, places in (("sizes", self.sizes), ("ticks", self.times))
            if places
        }
        if None in numbers.values() or not (all(columns[0]) and all(columns[1])):
            return False
        draft.seen[self] = None
        draft.edges(columns[0], columns[1], lines, **numbers)
        return True


def _positions(keys: tuple[Any, ...], what: str) -> dict[str, int]:
    """Return where each attribute stands, by its name in small letters."""
    if len(keys) > MAX_ATTRIBUTES:
        raise InputError(
            f"expected at most {MAX_ATTRIBUTES} attributes of {what}, received {len(keys)}"
        )
    return {str(key).strip().lower(): at for at, key in enumerate(keys)}


def _places(table: dict[str, int], name: str, aliases: Iterable[str]) -> list[int]:
    """Return where an attribute stands, or without its name all of its aliases that are there."""
    return [table[alias] for alias in ([name.lower()] if name else aliases) if alias in table]


LABELS = ("id", "name", "label", "key", "source", "target")
"""Attributes that are no costs."""


def _unread(keys: tuple[Any, ...], read: Collection[int | None]) -> list[str]:
    """Return the attributes at other places than those that are read."""
    unread = [str(key) for at, key in enumerate(keys) if at not in read]
    return [key for key in unread if key.lower() not in LABELS]


def _labels(values: Sequence[str]) -> list[str]:
    """Make one short line of each label; few are distinct."""
    label = {value: one_line(value, 200) for value in set(values)}
    return [label[value] for value in values]


op_columns = lru_cache(maxsize=512)(OpColumns)
edge_columns = lru_cache(maxsize=512)(EdgeColumns)


class AttributeDraft(Draft):
    """A draft whose ops and edges are described by attributes; `meaning` says which attribute holds
    what.
    """

    def __init__(self, name: str, meaning: Names, *, tick_seconds: Any, **options: Any) -> None:
        seconds = number(meaning.tick_seconds or tick_seconds, "graph", "tick_seconds")
        super().__init__(name, tick_seconds=seconds, unit=meaning.unit, **options)
        self.meaning = meaning
        self.seen: dict[Columns, None] = {}

    def add_op(self, key: Any, attributes: Mapping[str, Any], where: Place) -> None:
        """Add an op."""
        op_columns(tuple(attributes), self.meaning).add(
            self, key, tuple(attributes.values()), where
        )

    def add_edge(
        self, source: Any, target: Any, attributes: Mapping[str, Any], where: Place
    ) -> None:
        """Add an edge."""
        edge_columns(tuple(attributes), self.meaning).add(
            self, source, target, tuple(attributes.values()), where
        )

    def build(self) -> OpGraph:
        """Return the graph, and warn where attributes that are not read may be all its costs.

        Raises
        ------
        InputError
            If no op, or no edge, has the attribute that an option names; else as `Draft.build`.
        """
        graph = super().build()
        work = (graph.measured != UNKNOWN).any() or (graph.flops + graph.bytes_moved).any()
        sent = (graph.measured_transfer != UNKNOWN).any() or graph.tensor_bytes.any()
        found: dict[type[Columns], Any] = {OpColumns: work, EdgeColumns: sent}
        for kind, costs in found.items():
            seen = [columns for columns in self.seen if isinstance(columns, kind)]
            there = dict.fromkeys(chain(*(columns.table for columns in seen)))
            for option in kind.options:
                name = getattr(self.meaning, option)
                if seen and name:
                    check_choice(f"option {option}", name.lower(), there)
            unread = [one_line(key) for columns in seen for key in columns.unread]
            if unread and not costs:
                warnings.warn(
                    f"{self.name}: {kind.lacking}, and '{unread[0]}' is not read; if it is a cost, "
                    f"say so, as in FILE?{kind.options[-1]}={unread[0]}",
                    stacklevel=2,
                )
        return graph


def _given(value: Any) -> bool:
    return value is not None and value != ""


def _first_given(places: list[int], values: Sequence[Any]) -> int:
    """Return the first of the places that holds a value, -1 if none does."""
    return next((at for at in places if _given(values[at])), -1)


def op_attributes(graph: OpGraph) -> Iterator[dict[str, str | int | bool]]:
    """Yield the attributes of each op that are not neutral, in op order."""
    columns: Data = {"type": graph.op_types, "layer": graph.layer}
    columns |= {key: getattr(graph, key).tolist() for key in DEFAULTS if key not in columns}
    for i, times in enumerate(graph.measured.tolist()):
        row = {key: columns[key][i] for key in DEFAULTS}
        kinds = zip(graph.measured_kinds, times, strict=True)
        yield {key: value for key, value in row.items() if value != DEFAULTS[key]} | {
            f"time:{kind}": value for kind, value in kinds if value != UNKNOWN
        }


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
        for v in row_at(consumer, pointer, t):
            yield producer, v, row


def used_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the attribute names that occur, in the order of first use."""
    return list(dict.fromkeys(key for row in rows for key in row))


def flag(value: Any, where: Place, what: str) -> bool:
    """Return a truth value given as such, as 0/1 or as a word."""
    text = str(value).strip().lower()
    if text not in TRUTH:
        raise InputError(f"{place(where)}: {what}: expected true or false, received {value!r:.40}")
    return TRUTH[text]


def parse_shape(value: Any, where: Place) -> tuple[int, ...]:
    """Parse "1x3x224x224"; "scalar" is the empty shape."""
    text = str(value).strip()
    if text == "scalar":
        return ()
    return tuple(whole(part, where, "shape") for part in text.split("x"))


def _measured(draft: AttributeDraft, value: Any, where: Place, what: str) -> int:
    """Return measured ticks; -1 and -2 keep their meaning."""
    if str(value).strip() in (str(UNKNOWN), str(UNSUPPORTED)):
        return int(value)
    return draft.rounded(value, where, what)
