"""Options behind the question mark of a source: `gen:bert?layers=4&training=1`; and what objects
tell by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from placeopt.model.errors import InputError
from placeopt.model.files import TRUTH, Data


def parse_query(query: str, where: str, given: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the options of `key=value&key=value`; `given` are others, by which none is given
    twice.

    Raises
    ------
    InputError
        If a part is no key=value, or an option is given twice; the message begins with `where`.
    """
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = map(unquote, part.partition("="))
        key = key.strip().replace("-", "_")
        if not key or not equals:
            raise InputError(f"{where}: expected key=value, received '{part[:40]}'")
        if key in found or (given or {}).get(key) is not None:
            raise InputError(f"{where}: option '{key}' is given twice; keep one")
        found[key] = value.strip()
    return found


def without_none(options: Mapping[str, Any]) -> Data:
    """Return the options that are given: those that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def told(value: Any, names: str) -> Data:
    """Return some attributes by their names, which blanks separate."""
    return {name: getattr(value, name) for name in names.split()}


def typed(text: str, default: Any, where: str) -> Any:
    """Return the value of an option, of the type of its default; of None, a whole number.

    Raises
    ------
    InputError
        If it is none; the message begins with `where`.
    """
    if isinstance(default, str):
        return text
    value: Any = math.nan
    if isinstance(default, bool):
        expected, value = "true, false, 0 or 1", TRUTH.get(text.lower(), value)
    else:
        kind = float if isinstance(default, float) else int
        expected = "a finite number" if kind is float else "a whole number"
        with suppress(ValueError):
            value = kind(text)
    if not -math.inf < value < math.inf or "_" in text or not text.isascii():
        raise InputError(f"{where}: expected {expected}, received '{text[:40]}'")
    return value
