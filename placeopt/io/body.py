"""A JSON or TOML object whose entries are taken with a type; what is wrong is said in one line.

`Body.fields` reads the fields of a dataclass as they are declared there, and `plain` writes them:
no class lists its fields a second time.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numpy as np

from placeopt.model.arrays import Flags, Floats, Ints
from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import Data

T = TypeVar("T")

MAX_FLOAT = sys.float_info.max

FRACTION = re.compile(r"[0-9]{1,19}/[1-9][0-9]{0,18}")
"""How a number of ticks that is not whole is written exactly."""

CLAIM = 2**127
"""Values and bounds are below this, as in the plain checker: costs of sharding pass 64 bits."""


class Body:
    """An object and where it stands; `where` begins every message."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise InputError(f"{where}: expected an object, received {kind_of(data)}")
        self.data, self.where = data, where

    def only(self, known: Collection[str]) -> Body:
        """Refuse entries that are not known, with the nearest that is; return the object itself."""
        for key in self.data:
            if key not in known:
                raise InputError(
                    f"{self.where}: '{key}' is not known; {did_you_mean(str(key), known)}"
                )
        return self

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self.data.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, which must be there unless there is a default."""
        if key not in self.data and default is None:
            raise InputError(f'{self.where}: "{key}" is missing')
        return self.data.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def integer(self, key: str, default: int | None = None, below: int = 2**63) -> int:
        """Return a whole number, of at most 63 bits unless more are allowed."""
        value = self.get(key, default)
        if type(value) is not int or abs(value) >= below:
            raise self.wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.get(key, default)
        if not is_number(value):
            raise self.wrong(key, "a finite number", value)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def fields(self, cls: type, *names: str, but: Collection[str] = ()) -> Data:
        """Return the fields of a dataclass that stand here, each read as its annotation says.

        A field that has a default may be missing, or null.

        Parameters
        ----------
        names : fields to read; all if none is named. but : fields that the caller reads.
        """
        found: Data = {}
        for field in dataclasses.fields(cls):
            left_out = field.name in but or (names and field.name not in names)
            if left_out or (has_default(field) and not self.has(field.name)):
                continue
            found[field.name] = _READERS[str(field.type).removesuffix(" | None")](self, field.name)
        return found

    def made(self, cls: type[T], *, but: Collection[str] = (), **own: Any) -> T:
        """Return an object of a class from the fields that stand here, and `own`."""
        return cls(**self.fields(cls, but=but), **own)

    def items(self, key: str, expected: str = "a list") -> list[Any]:
        """Return a list."""
        value = self.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, expected, value)
        return value

    def body(self, key: str) -> Body:
        """Return a nested object."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return Body(value, f'{self.where}: "{key}"')

    def bodies(self, key: str) -> list[Body]:
        """Return a list of objects."""
        values = self.items(key, "a list of objects")
        return [Body(item, f"{self.where}: {key}[{i}]") for i, item in enumerate(values)]

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        return tuple(self._each(key, "a string", lambda value: isinstance(value, str)))

    def integers(self, key: str) -> Ints:
        """Return a list of whole numbers (or a table of equally long rows) as an int64 array."""
        return int_table(self.items(key), f'{self.where}: "{key}"')

    def numbers(self, key: str) -> Floats:
        """Return a list of numbers."""
        return np.array(self._each(key, "a number", is_number), np.float64)

    def flags(self, key: str) -> Flags:
        """Return a list of 0/1 or true/false as a mask."""
        return np.array(self._each(key, "true or false", lambda value: value in (0, 1)), np.bool_)

    def _each(self, key: str, expected: str, right: Callable[[Any], bool]) -> list[Any]:
        """Return a list of which every entry is what is expected."""
        values = self.items(key)
        for i, value in enumerate(values):
            if not right(value):
                raise self.wrong(f"{key}[{i}]", expected, value)
        return values

    def wrong(self, key: str, expected: str, value: Any) -> InputError:
        """Return the error for an entry of the wrong type."""
        return InputError(f'{self.where}: "{key}": expected {expected}, received {show(value)}')


_READERS: dict[str, Callable[[Body, str], Any]] = {
    "str": Body.text,
    "int": Body.integer,
    "float": Body.number,
    "bool": Body.flag,
    "tuple[str, ...]": Body.texts,
    "tuple[int, ...]": lambda body, key: tuple(body.integers(key).tolist()),
    "Ints": Body.integers,
    "Floats": Body.numbers,
    "Flags": Body.flags,
}
"""How a field is read, by its annotation."""


def plain(value: Any, *names: str, but: Collection[str] = ()) -> Data:
    """Return the fields of a dataclass as JSON, as `Body.fields` reads them; columns of empty texts
    and masks without an entry are left out.
    """
    found = {}
    for field in dataclasses.fields(value):
        entry = getattr(value, field.name)
        entry = entry.item() if isinstance(entry, np.generic) else entry
        if field.name in but or (names and field.name not in names):
            continue
        if isinstance(entry, np.ndarray):
            mask = entry.dtype == np.bool_
            entry = entry.astype(int).tolist() if mask else entry.tolist()
            neutral = mask and not any(entry)
        elif isinstance(entry, tuple):
            entry, neutral = list(entry), not any(entry)
        else:
            neutral = False
        if not neutral:
            found[field.name] = entry
    return found


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of JSON, which true and false are not."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -MAX_FLOAT <= value <= MAX_FLOAT


def has_default(field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a dataclass may be left out."""
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def int_table(values: list[Any], where: str) -> Ints:
    """Convert a list of ints, or of equally long lists of ints, checking every entry."""
    if not (values and isinstance(values[0], list)):
        return _ints(values, where, lambda i: f"[{i}]")
    width = len(values[0])
    for i, row in enumerate(values):
        if not isinstance(row, list) or len(row) != width:
            raise InputError(
                f"{where}[{i}]: expected a row of {width} numbers, received {show(row)}"
            )
    flat = list(itertools.chain.from_iterable(values))
    array = _ints(flat, where, lambda i: f"[{i // width}][{i % width}]")
    return array.reshape(len(values), width)


def _ints(values: list[Any], where: str, at: Callable[[int], str]) -> Ints:
    if set(map(type, values)) - {int}:
        i = next(i for i, x in enumerate(values) if type(x) is not int)
        raise InputError(f"{where}{at(i)}: expected a whole number, received {show(values[i])}")
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise InputError(f"{where}: a number passes the range of 64 bits") from error


def kind_of(value: Any) -> str:
    """Return what a value is, for a message."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a truth value",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def show(value: Any) -> str:
    """Return a value for a message: short, on one line."""
    if isinstance(value, dict | list):
        return f"{kind_of(value)} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
