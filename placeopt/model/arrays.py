"""The read-only integer arrays that problems and solutions hold.

A class declares what each of its columns must be where the field stands, and `settle` makes and
checks them all::

    compute: Ints = ints("ops", "devices")
    capacity: Ints = ints("devices", default=UNLIMITED, low=0)
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cmp_to_key
from itertools import chain, pairwise
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeopt.model.errors import InputError, brief, twice_in
from placeopt.model.shown import Shown

Ints = NDArray[np.int64]
"""Ticks, bytes, indices, counts."""

Floats = NDArray[np.float64]
"""Seconds, and what searches reckon with."""

Flags = NDArray[np.bool_]
"""Masks."""

SmallInts = NDArray[np.int32]
"""Devices and indices where many rows of them are held or read by kernels."""

Bits = NDArray[np.uint64]
"""Sets of numbers as bits of words, and states of random generators."""

Array = NDArray[Any]
"""Of any type."""

MAX_SUM = 2**62
"""Sums of ticks or bytes beyond this are refused, so that int64 arithmetic never overflows."""

UNLIMITED = 2**62
"""Capacity in bytes of a device without a memory limit."""

NO_VALUE = 2**62
"""Entry of a table of values (ticks) where there is none; a sum of ticks may be added to it."""


K = TypeVar("K")
V = TypeVar("V")

UNSET: Any = None
"""Default of an array field that the constructor replaces by a neutral array of the right shape."""


def frozen(array: Array) -> Array:
    """Return `array` as a C-contiguous view of immutable bytes (a copy unless it is one already).

    Writing to it raises, and so does `setflags(write=True)`, which would undo a mere flag. Kernels
    see what they see of any array that is read-only: the same type.
    """
    return array if array.flags.c_contiguous and _immutable(array) else frozen_copy(array)


def frozen_copy(array: ArrayLike) -> Array:
    """Return a copy of `array` that is immutable and that nobody else holds; see `frozen`."""
    array = np.asarray(array)
    return np.ndarray(array.shape, array.dtype, buffer=array.tobytes())


def own_links(link_class: Ints, num_classes: int, where: str = "") -> Ints:
    """Return link classes of pairs of devices in which those of a device and itself, which decide
    nothing, can be looked up as well.

    Raises
    ------
    InputError
        If another pair has a class that is not there; the message begins with `where`.
    """
    wrong = (link_class < 0) | (link_class >= num_classes)
    others = link_class[wrong & ~np.eye(len(link_class), dtype=np.bool_)]
    if others.size:
        raise InputError(f"{where}link_class: expected 0..{num_classes - 1}, received {others[0]}")
    return frozen(np.where(wrong, 0, link_class)) if wrong.any() else link_class


def _immutable(array: Any) -> bool:
    """Whether the memory is that of a `bytes` object; classes derived from arrays may say of
    themselves what they like.

    The flag counts too: large arrays that numpy unpickles are writeable, on top of bytes.
    """
    while type(array) is np.ndarray and not array.flags.writeable:
        array = array.base
    return type(array) is bytes


def tells_types(cls: type[K]) -> type[K]:
    """Make a dataclass say which field is not of its declared type, where its checks stumble over
    that.
    """
    check: Any = cls.__dict__.get("__post_init__")

    def post_init(self: Any) -> None:
        try:
            check(self)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            if not isinstance(error, InputError):
                refuse_types(self)
            raise

    if check is not None:
        cls.__post_init__ = post_init  # type: ignore[attr-defined]
    return cls


def refuse_types(holder: Any) -> None:
    """Refuse a dataclass with a field that is not of its declared type."""
    for item in fields(holder):
        value, declared = getattr(holder, item.name), str(item.type)
        if value is not item.default and not _fits(value, declared):
            raise InputError(
                f"{type(holder).__name__}: {item.name}: expected {_WORDS.get(declared, declared)}, "
                f"received {value!r:.40}"
            )


_WORDS = {"Ints": "an array of whole numbers", "Flags": "an array of True and False"}
_PLAIN: dict[str, Any] = {"int": Integral, "float": Real, "bool": (bool, np.bool_), "str": str}


def _fits(value: Any, declared: str) -> bool:
    """Whether a value is of a type that a field names."""
    if value is None:
        return declared.endswith("None")
    declared = declared.removesuffix(" | None")
    if declared in _PLAIN:
        whole = declared == "int" and isinstance(value, Real) and value == value // 1
        return whole or isinstance(value, _PLAIN[declared])
    if declared in _WORDS or declared.startswith("tuple["):
        return _all_fit(value, declared)
    return declared == "Any" or any(one.__name__ == declared for one in type(value).__mro__)


def _all_fit(values: Any, declared: str) -> bool:
    """Whether values are an array of numbers, or members that fit each."""
    try:
        members = list(values)
        if declared in _WORDS:
            return np.asarray(values).dtype.kind in "iufb"
    except (TypeError, ValueError):
        return False
    if isinstance(values, str | bytes | dict):
        return False
    each, _, last = declared[6:-1].rpartition(", ")
    kinds = [each] * len(members) if last == "..." else [each, last]
    return len(kinds) == len(members) and all(map(_fits, members, kinds))


class ArrayHolder(Shown):
    """Base of what holds read-only arrays: they are still immutable after pickling and copying."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        tells_types(cls)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            object.__setattr__(self, key, _refrozen(value))


def _refrozen(value: Any) -> Any:
    """Return arrays, and named tuples of them, immutable again; a file that is mapped read-only is
    left where it is.
    """
    if isinstance(value, np.ndarray):
        mapped = isinstance(value, np.memmap) and not value.flags.writeable
        return value if mapped or value.dtype.hasobject else frozen(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_refrozen, value))
    return value


def as_array(values: ArrayLike, what: str) -> Array:
    """Return `values` as an array.

    Raises
    ------
    InputError
        If they are none: rows of unlike lengths, a tensor that numpy does not take, masked entries.
    """
    if np.ma.is_masked(values):
        raise InputError(f"{what}: expected an array of whole numbers, received masked entries")
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{what}: expected an array of whole numbers ({brief(str(error))})"
        ) from error


def int_array(values: ArrayLike, shape: tuple[int, ...], what: str) -> Ints:
    """Convert `values` to a read-only int64 array of `shape`.

    Raises
    ------
    InputError
        If the shape differs, or a value is not finite or not a whole number.
    """
    array = as_array(values, what)
    if array.size == 0 and 0 in shape:
        array = array.reshape(shape)
    _check_shape(array, shape, what)
    if array.dtype == np.int64:
        return frozen(array)
    if array.dtype.kind == "f":
        _check_whole(array, what)
    elif array.dtype.kind not in "iub" and array.size:
        raise InputError(f"{what}: expected whole numbers, received {array.dtype}")
    if array.dtype.kind == "u" and int(array.max(initial=0)) >= MAX_SUM:
        raise InputError(f"{what}: expected whole numbers below 2^62")
    return frozen(array.astype(np.int64))


def device_rows(devices: ArrayLike) -> SmallInts:
    """Return the devices of many placements as kernels read them.

    A number that int32 cannot hold stays what it is, no device: -1.
    """
    table = as_array(devices, "devices")
    if table.dtype.kind not in "iu":
        table = int_array(table, table.shape, "devices")
    rows = np.ascontiguousarray(table, np.int32)
    if table.dtype.itemsize >= rows.dtype.itemsize and table.dtype != rows.dtype:
        wrapped = rows != table
        if wrapped.any():
            rows = np.where(wrapped, np.int32(-1), rows)
    return rows


def _check_whole(array: Array, what: str) -> None:
    """Refuse real numbers that are not whole, or too large."""
    if not np.isfinite(array).all():
        raise InputError(f"{what}: expected whole numbers, received NaN or infinity")
    wrong = array[(array != np.floor(array)) | (np.abs(array) >= MAX_SUM)]
    if wrong.size:
        raise InputError(
            f"{what}: expected whole numbers below 2^62 (times in ticks), received {wrong[0]:g}"
        )


_KEY = "column"


@dataclass(frozen=True)
class Column:
    """What an array, a mask or a column of names must be.

    Attributes
    ----------
    shape : lengths: numbers, or names of sizes that `settle` is given.
    kind : int, bool or str.
    default : entry where nothing is given; for names their stem: op0, op1, .., or "" for none.
    low : smallest entry, None for any. expected : in words; ">= low" by default.
    summed : whether the sum has to stay below 2^62.
    """

    shape: tuple[str | int, ...]
    kind: type
    default: Any = None
    low: int | None = None
    expected: str = ""
    summed: bool = False

    def settled(self, key: str, value: Any, shape: tuple[int, ...]) -> Any:
        """Return the column `key` as it is held."""
        if self.kind is str:
            return self._names(key, tuple(value), shape[0])
        if value is None:
            value = np.full(shape, self.default)
        if self.kind is bool:
            mask = np.asarray(value, np.bool_)
            _check_shape(mask, shape, key)
            return frozen(mask)
        array = int_array(value, shape, key)
        if self.low is not None and int(array.min(initial=self.low)) < self.low:
            at = np.unravel_index(array.argmin(), array.shape)
            raise InputError(
                f"{key}[{', '.join(map(str, at))}]: expected {self.expected or f'>= {self.low}'}, "
                f"received {int(array[at])}"
            )
        if self.summed and float(array.sum(dtype=np.float64)) >= MAX_SUM:
            raise InputError(f"{key}: the sum passes 2^62; use larger units")
        return array

    def _names(self, key: str, names: tuple[str, ...], count: int) -> tuple[str, ...]:
        names = names or numbered(self.default, count)
        if len(names) != count:
            raise InputError(f"{key}: expected {count} names, received {len(names)}")
        for name in names:
            if not isinstance(name, str):
                raise InputError(f"{key}: expected texts, received {name!r:.40}")
        if self.default and len(set(names)) != count:
            raise InputError(f"{key}: names must be distinct, '{twice_in(names)}' occurs twice")
        return names


def ints(*shape: str | int, default: int | None = None, **limits: Any) -> Any:
    """Declare an int64 column, which must be given unless it has a default; see `Column`."""
    metadata = {_KEY: Column(shape, int, default, **limits)}
    return field(metadata=metadata) if default is None else field(default=None, metadata=metadata)


def flags(size: str) -> Any:
    """Declare a mask; no entry is set by default."""
    return field(default=None, metadata={_KEY: Column((size,), bool, False)})


def names(size: str, stem: str = "") -> Any:
    """Declare a column of names, made of `stem` by default: those are distinct; empty ones for
    none.
    """
    return field(default=(), metadata={_KEY: Column((size,), str, stem)})


def columns_of(holder: Any) -> dict[str, Column]:
    """Return what the columns of a class were declared to be, in order."""
    return {item.name: item.metadata[_KEY] for item in fields(holder) if _KEY in item.metadata}


def settle(holder: Any, **sizes: int) -> None:
    """Make every declared column of a frozen dataclass what it was declared to be.

    Raises
    ------
    InputError
        If a shape, a type or a value is wrong; the message begins with the name of the field.
    """
    for key, column in columns_of(holder).items():
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in column.shape)
        object.__setattr__(holder, key, column.settled(key, getattr(holder, key), shape))


def numbered(stem: str, count: int) -> tuple[str, ...]:
    """Return the names of what was given none: op0, op1, ...; empty ones for an empty stem."""
    return tuple(f"{stem}{i}" if stem else "" for i in range(count))


def _check_shape(array: Array, shape: tuple[int, ...], what: str) -> None:
    if array.shape != shape:
        raise InputError(f"{what}: expected shape {shape}, received {array.shape}")


def check_positive(what: str, value: float) -> float:
    """Return a number, which has to be positive."""
    if not (isinstance(value, Real) and 0 < value <= sys.float_info.max):
        raise InputError(f"{what}: expected a positive number, received {value!r:.40}")
    return float(value)


def check_count(what: str, value: int) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{what}: expected a whole number of at least 1, received {value!r:.40}")


def to_ticks(seconds: ArrayLike, tick_seconds: float, what: str = "time") -> Ints:
    """Round times in seconds to ticks: half up, and never to 0 for a positive input.

    Raises
    ------
    InputError
        If a time is negative or NaN, or too large for int64 ticks.
    """
    with np.errstate(over="ignore"):  # what is endless is refused
        return round_half_up(np.asarray(seconds, np.float64) / tick_seconds, what)


def round_half_up(values: ArrayLike, what: str = "value") -> Ints:
    """Round non-negative numbers half up to int64, and never to 0 for a positive input."""
    array = np.asarray(values, np.float64)
    bad = ~np.isfinite(array) | (array < 0) | (array >= MAX_SUM)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0])
        value = np.atleast_1d(array)[index]
        raise InputError(
            f"{what} at index {index}: expected a finite number >= 0, received {value}"
        )
    rounded = np.floor(array + 0.5).astype(np.int64)
    return np.where((array > 0) & (rounded == 0), np.int64(1), rounded)


def running_sums(values: ArrayLike) -> Array:
    """Return the sums of the first 0, 1, 2, .. values."""
    return np.append(0, np.cumsum(values))


def pointers(numbers: Ints, count: int) -> Ints:
    """Return where each of the numbers 0, 1, .. below `count` begins in rising ones, and the end of
    the last.
    """
    return np.searchsorted(numbers, np.arange(count + 1)).astype(np.int64)


def row_at(values: Array, pointer: Ints, row: int) -> Array:
    """Return a row of values that a pointer cuts into rows."""
    return values[pointer[row] : pointer[row + 1]]


def row_numbers(pointer: Ints) -> Ints:
    """Return the row of each entry of rows that begin at a pointer."""
    return np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))


def as_pairs(pairs: Sequence[Sequence[float]]) -> Ints:
    """Return pairs as rows of two numbers, also where there are none."""
    return np.array(pairs, np.int64).reshape(-1, 2)


def value_ranks(values: ArrayLike) -> Ints:
    """Return which of the distinct values, as they rise, each one is."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def stable_order(keys: ArrayLike, axis: int = -1) -> Ints:
    """Return the order that sorts, in which equal keys stay as they are: ties are broken alike
    wherever a program runs.
    """
    return np.argsort(keys, axis, kind="stable").astype(np.int64, copy=False)


def true_places(marks: ArrayLike) -> list[int]:
    """Return where marks are true, or numbers are not zero."""
    return np.flatnonzero(marks).tolist()


def positions(values: Iterable[K]) -> dict[K, int]:
    """Return where each value stands."""
    return {value: at for at, value in enumerate(values)}


def csr(groups: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return (pointer, flat index) arrays of a list of lists."""
    pointer = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return pointer, np.fromiter(chain.from_iterable(groups), np.int64, count=int(pointer[-1]))


def rows_of(pointer: Ints, flat: Ints) -> list[list[int]]:
    """Return the rows that `csr` made a pointer and one array of."""
    values = flat.tolist()
    return [values[first:last] for first, last in pairwise(pointer.tolist())]


def together(*columns: Array) -> Iterator[tuple[Any, ...]]:
    """Return the rows of some arrays of the same length, as plain numbers."""
    return zip(*(column.tolist() for column in columns), strict=True)


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_number(count: int, pairs: Iterable[tuple[int, V]]) -> list[list[V]]:
    """Return the values of each of the numbers below `count`, in the order in which they come."""
    found: list[list[V]] = [[] for _ in range(count)]
    for number, value in pairs:
        found[number].append(value)
    return found


def sums_by(group: Ints, values: Array, count: int) -> Array:
    """Return the sum of the values, or of their rows, of each of `count` groups."""
    total = np.zeros((count, *values.shape[1:]), values.dtype)
    np.add.at(total, group, values)
    return total


def neighbours(count: int, one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return, by number, whom pairs join it with: (pointer of count + 1, each once, rising)."""
    pairs = np.column_stack([np.append(one, other), np.append(other, one)])
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    pointer = pointers(pairs[:, 0], count)
    return pointer, np.ascontiguousarray(pairs[:, 1])


def touching_tensors(
    num_nodes: int, producer: Ints, consumer_ptr: Ints, consumer: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return, by node, the tensors that it makes or reads: (pointer of num_nodes + 1, tensor, 1
    made or 0 read).
    """
    made = np.arange(len(producer))
    node = np.concatenate([producer, consumer])
    tensor = np.concatenate([made, np.repeat(made, np.diff(consumer_ptr))])
    role = np.repeat([1, 0], [len(producer), len(consumer)])
    order = np.lexsort((role, tensor, node))
    pointer = pointers(node[order], num_nodes)
    return pointer, tensor[order], role[order]


def fastest(times: Ints) -> Ints:
    """Return the least of each row of times, without those below 0; -1 where there is none."""
    best = np.where(times < 0, NO_VALUE, times).min(axis=1, initial=NO_VALUE)
    return np.where(best == NO_VALUE, -1, best)


def place_in(order: Ints, count: int | None = None) -> Ints:
    """Return where each of the numbers 0, 1, .. stands in an order of them, the inverse; or each of
    `count` numbers in an order of some of them, -1 where it does not.
    """
    place = np.full(len(order) if count is None else count, -1, np.int64)
    place[order] = np.arange(len(order))
    return place


def arrays_digest(owner: Any, names: Iterable[str], rest: Any) -> Any:
    """Return a SHA-256 of the named arrays of an object, their shapes, and what else decides its
    values.
    """
    digest = hashlib.sha256()
    for name in names:
        array = getattr(owner, name)
        digest.update(f"{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).data)
    digest.update(repr(rest).encode())
    return digest


def distinct(values: Ints) -> Ints:
    """Return each value once, in order, as `np.unique` does; sorting millions takes a tenth of its
    time.
    """
    ordered = np.sort(values)
    kept = np.ones(len(ordered), np.bool_)
    kept[1:] = ordered[1:] != ordered[:-1]
    return ordered[kept]


def unique_columns(table: Array) -> tuple[Ints, Ints]:
    """Return (one column of each kind, kind of every column), as `np.unique(table, axis=1)` orders
    them.

    That sorts whole columns, which takes a minute for a million rows; here only those that differ
    are compared.
    """
    columns = np.ascontiguousarray(table.T)
    number: dict[bytes, int] = {}
    kind = np.array(
        [number.setdefault(column.tobytes(), len(number)) for column in columns], np.int64
    )
    first = np.unique(kind, return_index=True)[1]

    def order(a: int, b: int) -> int:
        at = int((columns[first[a]] != columns[first[b]]).argmax())
        return -1 if columns[first[a], at] < columns[first[b], at] else 1

    ranked = np.array(sorted(range(len(first)), key=cmp_to_key(order)), np.int64)
    return first[ranked], place_in(ranked)[kind]


def unique_rows(table: Array) -> tuple[Ints, Ints]:
    """Return (one row of each kind, kind of every row), as `np.unique(table, axis=0)` orders them;
    see `unique_columns`.

    Column by column, and equal columns only once.
    """
    kind = np.zeros(len(table), np.int64)
    for at in np.sort(np.unique(unique_columns(table)[1], return_index=True)[1]):
        values, rank = np.unique(table[:, at], return_inverse=True)
        kind = np.unique(kind * len(values) + rank.reshape(-1), return_inverse=True)[1].reshape(-1)
    row = np.zeros(int(kind.max(initial=-1)) + 1, np.int64)
    row[kind] = np.arange(len(table))
    return row, kind
