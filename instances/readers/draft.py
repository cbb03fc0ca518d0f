"""Draft: the ops and edges a reader collects, checked and turned into an OpGraph at the end.

Readers of text formats only translate lines into `op` and `edge` calls; duplicate ops, dangling edges and
bad numbers are refused here, once for all formats, with the place in the file.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placeopt.model.arrays import MAX_SUM
from placeopt.model.errors import InputError
from placeopt.model.files import one_line
from placeopt.model.graph import UNKNOWN, UNSUPPORTED, OpGraph

INT_COLUMNS = ("flops", "bytes_moved", "resident", "parameters", "colocation", "meta")
FLAG_COLUMNS = ("backward", "unshaped")
DEFAULTS: dict[str, Any] = {
    "type": "", "layer": "", "flops": 0, "bytes_moved": 0, "resident": 0, "parameters": 0,
    "colocation": -1, "meta": -1, "backward": False, "unshaped": False,
}  # fmt: skip


@dataclass
class DraftTensor:
    """One tensor: the edges that carry it and what they agree on."""

    producer: Any
    size: int  # bytes
    ticks: int  # measured transfer, or UNKNOWN
    shape: tuple[int, ...] | None  # None where unknown
    consumers: dict[Any, str] = field(default_factory=dict)  # op key -> where
    where: str = ""


class Draft:
    """Ops by key (any hashable: a name, a number) and tensors by (producer, key)."""

    def __init__(self, name: str, *, tick_seconds: float = 1e-9) -> None:
        self.name, self.tick_seconds = name, tick_seconds
        self.index: dict[Any, int] = {}
        self.names: list[str] = []
        self.fields: list[dict[str, Any]] = []
        self.times: list[dict[str, int]] = []
        self.tensors: dict[Any, DraftTensor] = {}

    def op(
        self,
        key: Any,
        where: str,
        *,
        name: str | None = None,
        times: dict[str, int] | None = None,
        **fields: Any,
    ) -> int:
        """Add an op and return its index.

        Parameters
        ----------
        where : the place in the file, for messages.
        times : measured ticks (or UNSUPPORTED) by kind of device.
        fields : entries of `DEFAULTS`.

        Raises
        ------
        InputError
            If an op with this key exists.
        """
        if key in self.index:
            raise InputError(f"{where}: op '{one_line(str(key))}' is there twice; op ids must be distinct")
        self.index[key] = len(self.names)
        self.names.append(str(key) if name is None else name)
        self.fields.append(fields)
        self.times.append(times or {})
        return self.index[key]

    def edge(
        self,
        source: Any,
        target: Any,
        where: str,
        *,
        tensor: Any = None,
        size: int = 0,
        ticks: int = UNKNOWN,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Add a consumer of a tensor; the ops may follow later.

        Edges of one source with the same `tensor` key are one tensor, sent once to each device; without a
        key the edge is a tensor of its own.

        Raises
        ------
        InputError
            If edges of one tensor disagree on its size or time.
        """
        key = (source, "key", tensor) if tensor is not None else ("edge", len(self.tensors))
        known = self.tensors.setdefault(key, DraftTensor(source, size, ticks, shape, where=where))
        if (known.size, known.ticks) != (size, ticks):
            raise InputError(
                f"{where}: edges of one tensor of op '{one_line(str(source))}' must agree on its size and time, "
                f"received {size} bytes, {ticks} ticks after {known.size} bytes, {known.ticks} ticks"
            )
        known.consumers.setdefault(target, where)

    def find(self, key: Any, where: str) -> int:
        """Return the index of an op; an unknown one is refused, with the nearest name."""
        if key in self.index:
            return self.index[key]
        near = difflib.get_close_matches(str(key), [str(k) for k in list(self.index)[:5000]], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"{where}: edge names op '{one_line(str(key))}', which is not in the graph{hint}")

    def build(self, **fields: Any) -> OpGraph:
        """Return the graph; `fields` are further attributes of OpGraph.

        Raises
        ------
        InputError
            If there is no op, an edge dangles, or the graph has a cycle.
        """
        tensors = list(self.tensors.values())
        triples = [
            (
                self.find(t.producer, t.where),
                t.size,
                [self.find(key, where) for key, where in t.consumers.items()],
            )
            for t in tensors
        ]
        kinds = list(dict.fromkeys(kind for row in self.times for kind in row))
        measured = np.array([[row.get(kind, UNKNOWN) for kind in kinds] for row in self.times], dtype=np.int64)
        columns: dict[str, Any] = {key: np.array(self._column(key), dtype=np.int64) for key in INT_COLUMNS}
        columns |= {key: np.array(self._column(key), dtype=np.bool_) for key in FLAG_COLUMNS}
        shapes = tuple(t.shape for t in tensors if t.shape is not None)
        return OpGraph.from_tensors(
            self.name,
            self.names,
            triples,
            op_types=tuple(self._column("type")),
            layer=tuple(self._column("layer")),
            measured_kinds=tuple(kinds),
            measured=measured.reshape(len(self.names), len(kinds)),
            measured_transfer=np.array([t.ticks for t in tensors], dtype=np.int64),
            shapes=shapes if len(shapes) == len(tensors) else (),
            tick_seconds=self.tick_seconds,
            **columns,
            **fields,
        )

    def _column(self, key: str) -> list[Any]:
        default = DEFAULTS[key]
        return [fields.get(key, default) for fields in self.fields]


# --- numbers --------------------------------------------------------------------------------------------


def number(value: Any, where: str, what: str) -> float:
    """Return a finite number >= 0 given as a number or as text.

    Raises
    ------
    InputError
        For anything else; NaN and infinity included.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        result = float(value)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {what}: expected a number, received {value!r:.40}") from None
    if not math.isfinite(result) or result < 0:
        raise InputError(f"{where}: {what}: expected a finite number >= 0, received {value!r:.40}")
    return result


def whole(value: Any, where: str, what: str, *, least: int = 0) -> int:
    """Return a whole number >= `least` given as a number (3 or 3.0) or as text."""
    if type(value) is int:
        result = value
    else:
        try:
            if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() and len(value) < 25:
                result = int(value)
            else:
                as_float = float(value) if isinstance(value, float | str) else math.nan
                result = int(as_float)
                if result != as_float:
                    raise ValueError
        except (ValueError, OverflowError):
            raise InputError(f"{where}: {what}: expected a whole number, received {value!r:.40}") from None
    if not least <= result < MAX_SUM:
        raise InputError(f"{where}: {what}: expected a whole number >= {least} below 2^62, received {value!r:.40}")
    return result


def ticks(value: Any, where: str, what: str, unit: float = 1.0) -> int:
    """Return `value` * `unit` rounded half up to ticks, never 0 for a positive value.

    `unit` is the number of ticks in one unit of the file.
    """
    if type(value) is int and unit == 1.0:
        return whole(value, where, what)
    scaled = number(value, where, what) * unit
    if scaled >= MAX_SUM:
        raise InputError(f"{where}: {what}: {value!r:.40} passes 2^62 ticks")
    return max(math.floor(scaled + 0.5), 1) if scaled > 0 else 0


__all__ = ["DEFAULTS", "UNKNOWN", "UNSUPPORTED", "Draft", "number", "ticks", "whole"]
