"""Lists of objects in the JSON of other tools: taken with a check, and one line for what is
wrong.
"""

from __future__ import annotations

from typing import Any

from placeopt.model.errors import InputError


def entry(row: dict[str, Any], key: str, where: str) -> Any:
    """Return an entry that must be there."""
    if key not in row:
        raise InputError(f'{where}: "{key}" is missing')
    return row[key]


def rows(
    table: dict[str, Any], key: str, where: str, *, optional: bool = False
) -> list[dict[str, Any]]:
    """Return a list of objects; an optional one may be absent."""
    found = table.get(key, [] if optional else None)
    if not isinstance(found, list):
        raise InputError(f'{where}: "{key}": expected a list of objects, received {found!r:.40}')
    for i, row in enumerate(found):
        if not isinstance(row, dict):
            raise InputError(f"{where}: {key}[{i}]: expected an object, received {row!r:.40}")
    return found
