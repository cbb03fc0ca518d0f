"""Draft: the ops and edges a reader collects, checked and turned into an OpGraph at the end.

Readers only translate lines into `op` and `edge` calls; duplicate ops, dangling and repeated edges
and bad numbers are refused here, once for all formats, with the place in the file: a text, or the
number of a line. Everything is kept by column, so that a million ops fit.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from array import array
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from placeopt.model.arrays import MAX_SUM, Ints, check_positive, pointers, stable_order
from placeopt.model.errors import InputError, check_choice, nearest
from placeopt.model.files import one_line
from placeopt.model.graph import OP_COLUMNS, UNKNOWN, OpGraph

DEFAULTS: dict[str, Any] = {"type": ""} | {
    key: column.default for key, column in OP_COLUMNS.items()
}
"""What the fields of an op are where nothing is said of them."""

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
"""Length of each unit of time that a file may have."""

Place = str | int
"""Where something stands in a file: a text, or the number of a line."""


def place(where: Place) -> str:
    """Return a place as text."""
    return f"line {where}" if isinstance(where, int) else where


class Draft:
    """Ops by key (any hashable: a name, a number) and tensors by (producer, key).

    Parameters
    ----------
    repeated : what an edge that is there twice means: "refuse" it, "merge" the two, or (for edges
    without a
        tensor key) "parallel" tensors.
    unit : of the times that `rounded` takes, one of NANOSECONDS; a tick by default.
    """

    def __init__(
        self, name: str, *, tick_seconds: float = 1e-9, repeated: str = "refuse", unit: str = ""
    ) -> None:
        self.name, self.tick_seconds, self.repeated = name, tick_seconds, repeated
        self.unit, self.told = 1.0, bool(unit)  # ticks in one unit
        if unit:
            check_choice("option unit", unit, NANOSECONDS)
            check_positive("tick_seconds", tick_seconds)
            self.unit = NANOSECONDS[unit] * (1e-9 / tick_seconds)
        self.index: dict[Any, int] = {}
        self.names: list[str] = []
        self._columns: dict[str, dict[int, Any]] = {
            key: {} for key in DEFAULTS
        }  # by op, where not neutral
        self._times: dict[str, tuple[array[int], array[int]]] = {}  # kind -> ops, ticks
        self._tensor: dict[Any, int] = {}
        self._producer: list[Any] = []
        self._size, self._ticks = array("q"), array("q")
        self._shapes: list[tuple[int, ...] | None] = []
        self._edge_tensor, self._target, self._where = array("q"), list[Any](), list[Place]()
        self._coarse: list[str] = []  # times that whole ticks change much

    def rounded(self, value: Any, where: Place, what: str) -> int:
        """Return a time in ticks, and note it where rounding changes it by more than a tenth."""
        found = ticks(value, where, what, self.unit)
        given = float(value) * self.unit
        if abs(found - given) > given / 10:
            self._coarse.append(f"{place(where)}: {what} {given:g} becomes {found}")
        return found

    def op(
        self,
        key: Any,
        where: Place,
        *,
        name: str | None = None,
        times: dict[str, int] | None = None,
        **fields: Any,
    ) -> None:
        """Add an op.

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
        op = len(self.names)
        if self.index.setdefault(key, op) != op:
            raise _twice(key, where)
        self.names.append(str(key) if name is None else name)
        for column, value in fields.items():
            if value != DEFAULTS[column]:
                self._columns[column][op] = value
        # Most kinds of device with measured times
        max_kinds = 1000
        for kind, ticks in (times or {}).items():
            if kind not in self._times:
                if len(self._times) == max_kinds:
                    raise InputError(
                        f"{place(where)}: more than {max_kinds} kinds of device have times"
                    )
                self._times[kind] = (array("q"), array("q"))
            ops, values = self._times[kind]
            ops.append(op)
            values.append(ticks)

    def cells_edge(self, cells: Sequence[Any], where: Place) -> None:
        """Add an edge that is a tensor of its own, given as (source, target, ticks)."""
        u, v = whole(cells[0], where, "source"), whole(cells[1], where, "destination")
        self.edge(u, v, where, ticks=self.rounded(cells[2], where, "cost"))

    def edge(
        self,
        source: Any,
        target: Any,
        where: Place,
        *,
        tensor: Any = None,
        size: int = 0,
        ticks: int = UNKNOWN,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Add a consumer of a tensor; the ops may follow later.

        Edges of one source with the same `tensor` key are one tensor, sent once to each device;
        without a key the edge is a tensor of its own.

        Raises
        ------
        InputError
            If edges of one tensor disagree on its size, time or shape.
        """
        fresh = len(self._producer)
        known = fresh if tensor is None else self._tensor.setdefault((source, tensor), fresh)
        if known == fresh:
            self._producer.append(source)
            self._size.append(size)
            self._ticks.append(ticks)
            self._shapes.append(shape)
        elif (self._size[known], self._ticks[known], self._shapes[known]) != (size, ticks, shape):
            raise InputError(
                f"{place(where)}: edges of one tensor of op '{one_line(str(source))}' must agree "
                f"on its size, time and shape, received {size} bytes, {ticks} ticks after "
                f"{self._size[known]} bytes, {self._ticks[known]} ticks"
            )
        self._edge_tensor.append(known)
        self._target.append(target)
        self._where.append(where)

    def ops(
        self,
        keys: Sequence[str],
        lines: Sequence[int],
        times: Mapping[str, Sequence[int]],
        **fields: Sequence[Any],
    ) -> None:
        """Add many ops at once: `times` by kind and `fields` have one entry per op."""
        first = len(self.names)
        self.index.update(zip(keys, range(first, first + len(keys)), strict=True))
        if len(self.index) != first + len(keys):
            seen = set(self.names)
            for key, line in zip(keys, lines, strict=True):
                if key in seen:
                    raise _twice(key, line)
                seen.add(key)
        self.names += keys
        for column, values in fields.items():
            neutral = DEFAULTS[column]
            self._columns[column] |= {
                op: value for op, value in enumerate(values, first) if value != neutral
            }
        for kind, values in times.items():
            ops, ticks = self._times.setdefault(kind, (array("q"), array("q")))
            ops.extend(range(first, first + len(keys)))
            ticks.extend(values)

    def edges(
        self,
        sources: Sequence[Any],
        targets: Sequence[Any],
        lines: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        ticks: Sequence[int] | None = None,
    ) -> None:
        """Add many edges at once, each a tensor of its own."""
        first, count = len(self._producer), len(sources)
        self._producer += sources
        self._size.extend(itertools.repeat(0, count) if sizes is None else sizes)
        self._ticks.extend(itertools.repeat(UNKNOWN, count) if ticks is None else ticks)
        self._shapes += [None] * count
        self._edge_tensor.extend(range(first, first + count))
        self._target += targets
        self._where += lines

    def build(self) -> OpGraph:
        """Return the graph.

        Raises
        ------
        InputError
            If there is no op, an edge dangles or is there twice, or the graph has a cycle.
        """
        if self._coarse:
            shorter = "take a shorter tick, as in FILE?tick_seconds=1e-12"
            hint = shorter if self.told else "tell their unit, as in FILE?unit=us"
            warnings.warn(
                f"{self.name}: times are whole ticks, and rounding changes {len(self._coarse)} of "
                f"them by more than a tenth ({one_line(self._coarse[0])}); {hint}",
                stacklevel=2,
            )
        tensor = np.array(self._edge_tensor, np.int64)
        num_tensors = len(self._producer)
        producer = self._find_all(self._producer, np.unique(tensor, return_index=True)[1])
        target = self._find_all(self._target, np.arange(len(tensor)))
        order = stable_order(tensor)
        order = order[~np.isin(order, self._repeated(tensor, producer, target))]
        kinds = tuple(self._times)
        measured = np.full((len(self.names), len(kinds)), UNKNOWN, np.int64)
        for column, (ops, values) in enumerate(self._times.values()):
            measured[np.array(ops), column] = values
        columns = {key: self._column(key) for key in DEFAULTS}
        shapes = tuple(shape for shape in self._shapes if shape is not None)
        return OpGraph(
            name=self.name,
            op_names=tuple(self.names),
            producer=producer,
            tensor_bytes=np.array(self._size, np.int64),
            consumer_ptr=pointers(tensor[order], num_tensors),
            consumer=target[order],
            op_types=columns.pop("type"),
            measured_kinds=kinds,
            measured=measured,
            measured_transfer=np.array(self._ticks, np.int64),
            shapes=shapes if len(shapes) == num_tensors else (),
            tick_seconds=self.tick_seconds,
            **columns,
        )

    def _find_all(self, keys: Sequence[Any], edge: Ints) -> Ints:
        """Return the indices of ops; `edge` says which edge names each. An unknown one is refused,
        with the nearest name.
        """
        try:
            return np.fromiter(map(self.index.__getitem__, keys), np.int64, count=len(keys))
        except KeyError:
            at = next(i for i, key in enumerate(keys) if key not in self.index)
        key, where = str(keys[at]), self._where[edge[at]]
        near = nearest(key, map(str, self.index))
        hint = f"; did you mean '{near}'?" if near else ""
        raise InputError(
            f"{place(where)}: edge names op '{one_line(key)}', which is not in the graph{hint}"
        )

    def _repeated(self, tensor: Ints, producer: Ints, target: Ints) -> Ints:
        """Return the edges that are there a second time and are merged; refuse them where that is
        asked for.
        """
        group = tensor
        # edges that are tensors of their own count as one group by source
        if self.repeated != "parallel":
            shared = np.isin(tensor, list(self._tensor.values()))
            group = np.where(shared, tensor, len(producer) + producer[tensor])
        order = np.lexsort((target, group))
        same = (np.diff(group[order]) == 0) & (np.diff(target[order]) == 0)
        again = np.sort(order[1:][same])
        if len(again) and self.repeated != "merge":
            edge = int(again[0])
            source, end = (
                one_line(self.names[i], 30)
                for i in (int(producer[tensor[edge]]), int(target[edge]))
            )
            raise InputError(
                f"{place(self._where[edge])}: edge {source} -> {end} is there twice; keep one"
            )
        return again

    def _column(self, key: str) -> Any:
        values, neutral = self._columns[key], DEFAULTS[key]
        if neutral == "":
            return tuple(values.get(op, "") for op in range(len(self.names)))
        result = np.full(len(self.names), neutral)
        result[list(values)] = list(values.values())
        return result


def abstract_draft(name: str, unit: str, tick_seconds: float) -> Draft:
    """Return a draft of times that have no unit of their own: a tick is one of them, said to be a
    second, and a nanosecond where `unit` tells theirs, unless `tick_seconds` says its length.
    """
    return Draft(name, tick_seconds=tick_seconds or (1e-9 if unit else 1.0), unit=unit)


def _twice(key: Any, where: Place) -> InputError:
    return InputError(
        f"{place(where)}: op '{one_line(str(key))}' is there twice; op ids must be distinct"
    )


# --- numbers
# --------------------------------------------------------------------------------------------


_WHOLE = re.compile("[+-]?[0-9]{1,24}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number, of numpy too: those beyond 2^53 are no floats."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _real(value: Any) -> float:
    """Return a number given as such, of numpy too, or as ASCII text (no 1_000, no digits of other
    scripts).
    """
    right = isinstance(value, Real) and not isinstance(value, bool)
    if not (_NUMBER.fullmatch(value.strip()) if isinstance(value, str) else right):
        raise ValueError
    return float(value)


def all_ticks(values: Sequence[str]) -> list[int] | None:
    """Return texts that are all whole numbers as such, fast; None where one is something else."""
    if not all(values):
        return None
    digits = "".join(values)
    if not (digits.isascii() and digits.isdecimal()) or max(map(len, values)) > 18:
        return None
    return list(map(int, values))


def number(value: Any, where: Place, what: str) -> float:
    """Return a finite number >= 0 given as a number or as text.

    Raises
    ------
    InputError
        For anything else; NaN and infinity included.
    """
    try:
        result = _real(value)
    except (ValueError, OverflowError):
        result = math.nan
    if not 0 <= result < math.inf:
        raise InputError(
            f"{place(where)}: {what}: expected a finite number >= 0, received {value!r:.40}"
        )
    return result


def whole(value: Any, where: Place, what: str, *, least: int = 0, below: int = MAX_SUM) -> int:
    """Return a whole number >= `least` and below a power of 2, given as a number (3 or 3.0) or as
    text.
    """
    try:
        if (isinstance(value, str) and _WHOLE.fullmatch(value.strip())) or _is_whole(value):
            result = int(value)
        else:
            as_float = _real(value)
            result = int(as_float)
            if result != as_float:
                raise ValueError
    except (ValueError, OverflowError):
        raise InputError(
            f"{place(where)}: {what}: expected a whole number, received {value!r:.40}"
        ) from None
    if not least <= result < below:
        raise InputError(
            f"{place(where)}: {what}: expected a whole number >= {least} below "
            f"2^{below.bit_length() - 1}, received {value!r:.40}"
        )
    return result


def ticks(value: Any, where: Place, what: str, unit: float = 1.0) -> int:
    """Return `value` * `unit` rounded half up to ticks, never 0 for a positive value.

    `unit` is the number of ticks in one unit of the file.
    """
    if unit == 1.0 and (
        (type(value) is str and value.isascii() and value.isdecimal()) or _is_whole(value)
    ):
        return whole(value, where, what)
    scaled = number(value, where, what) * unit
    if scaled >= MAX_SUM:
        raise InputError(f"{place(where)}: {what}: {value!r:.40} passes 2^62 ticks")
    return max(math.floor(scaled + 0.5), 1) if scaled > 0 else 0
