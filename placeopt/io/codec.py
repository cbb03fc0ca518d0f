"""Codecs: how each class becomes versioned JSON, `{"format": "placeopt/KIND", "version": 1, ...}`,
and back.

Reading checks kind, version, types and lengths before the object's own constructor checks the
values. A file written by version N is read by every later version. A package with solution types of
its own calls `register` in its module `codecs`, which is imported when such an object is first met.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placeopt.io.body import Body, kind_of, show
from placeopt.model.errors import InputError
from placeopt.model.files import MAX_BYTES, read_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREFIX = "placeopt/"
VERSION = 1


@dataclass(frozen=True)
class Codec:
    """How one class becomes JSON: `encode` gives the body, `decode` takes it back."""

    kind: str
    cls: type
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[Body], Any]
    version: int = VERSION


_by_kind: dict[str, Codec] = {}
_by_class: dict[type, Codec] = {}
_LATE = (
    *("streams.codecs", "sharding.codecs", "schedules.codecs"),
    *("plans.codecs", "splits.codecs"),
)
"""Modules above this one that register more of them, imported when an unknown class or kind is
met."""


def register(codec: Codec) -> None:
    """Make a class known to `to_dict`, `from_dict`, `save` and `load`."""
    _by_kind[codec.kind] = codec
    _by_class[codec.cls] = codec


def to_dict(value: Any) -> dict[str, Any]:
    """Return the JSON object of a graph, cluster, problem, placement, schedule, budget or result.

    Raises
    ------
    InputError
        If the class of `value` has no JSON form.
    """
    codec = _codec_of(type(value)) or (_register_late() and _codec_of(type(value)))
    if not codec:
        raise InputError(
            f"no JSON form for {type(value).__name__}; known: {', '.join(sorted(_by_kind))}"
        )
    return {"format": PREFIX + codec.kind, "version": codec.version, **codec.encode(value)}


def _codec_of(cls: type) -> Codec | None:
    return next((_by_class[base] for base in cls.__mro__ if base in _by_class), None)


def _register_late() -> bool:
    """Import the modules that register further codecs; those that are not installed are skipped."""
    for module in _LATE:
        if importlib.util.find_spec(f"placeopt.{module}") is not None:
            importlib.import_module(f"placeopt.{module}")
    return True


def from_dict(data: Any, kind: str | None = None, where: str = "JSON") -> Any:
    """Return the object that `to_dict` wrote.

    Parameters
    ----------
    kind : what is expected ("opgraph", "problem", ...); any kind if None.
    where : the file, for messages.

    Raises
    ------
    InputError
        If the format, the version, a type or a value is wrong; one line.
    """
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected a JSON object, received {kind_of(data)}")
    codec = _codec_for(data, kind, where)
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= codec.version:
        raise InputError(
            f'{where}: "version": expected 1..{codec.version}, received {show(version)}; '
            "a newer placeopt wrote the file, or it is damaged"
        )
    try:
        return codec.decode(Body(data, where))
    except InputError as error:
        text = str(error)
        raise error if text.startswith(where[:40]) else InputError(f"{where}: {text}") from error
    except OverflowError as error:
        raise InputError(f"{where}: a number passes the range of 64 bits") from error


def _codec_for(data: dict[str, Any], kind: str | None, where: str) -> Codec:
    """Return the codec that the format of an object names."""
    name = data.get("format")
    if not isinstance(name, str) or not name.startswith(PREFIX):
        known = ", ".join(PREFIX + k for k in sorted(_by_kind))
        expected = f'"{PREFIX}{kind}"' if kind else f"one of {known}"
        if "device" in data and name is None:
            raise InputError(f"{where}: this is a placement file; expected {expected}")
        raise InputError(f'{where}: "format": expected {expected}, received {show(name)}')
    found = name.removeprefix(PREFIX)
    if kind not in (None, found):
        raise InputError(f'{where}: "format": expected "{PREFIX}{kind}", received {show(name)}')
    if found not in _by_kind:
        _register_late()
    if found not in _by_kind:
        known = ", ".join(sorted(_by_kind))
        raise InputError(f'{where}: "format": {show(name)} is not known; known: {known}')
    return _by_kind[found]


def save(value: Any, path: str | Path) -> Path:
    """Write `value` as JSON; the file is replaced at once."""
    return write_text(
        path, json.dumps(to_dict(value), separators=(",", ":"), allow_nan=False) + "\n"
    )


def load(path: str | Path, kind: str | None = None, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read what `save` wrote; see `from_dict`."""
    return from_dict(read_json(path, max_bytes=max_bytes), kind, f"file '{path}'")
