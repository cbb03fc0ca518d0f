"""Numbers of bytes as people write and read them: "16GiB", and one limit per device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from placeopt.model.errors import InputError

UNITS = {
    "B": 1,
    **{f"{letter}iB": 2 ** (10 * i) for i, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 10 ** (3 * i) for i, letter in enumerate("KMGT", 1)},
}
"""Bytes of every unit that is understood."""

MemoryLimit = int | str | Sequence[int | str]
"""Bytes per device: a number, a text such as "16GiB" or "16GiB,40GiB", or one for each device."""


def bytes_text(size: float) -> str:
    """Return a number of bytes with its unit, in four digits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.4g} {unit}"
    return f"{size:.0f} B"


def parse_bytes(text: str, option: str, *, bare: bool = False) -> list[int]:
    """Return the numbers of bytes in a text, separated by commas.

    Parameters
    ----------
    option : name of the option, for the message.
    bare : whether a number without a unit is a number of bytes; else a unit is asked for.

    Raises
    ------
    InputError
        If a part is no size of at least one byte.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)\s*", part)
        size = 0.0
        if match and (match[2] in UNITS or (bare and not match[2])):
            try:
                size = float(match[1]) * UNITS.get(match[2], 1)
            except ValueError:
                size = 0.0
        if not 1 <= size < 2**62:
            example = "16GiB or 4e9" if bare else "16GiB or 800MB, with a unit"
            raise InputError(
                f"{option}: expected bytes per device such as {example}, received "
                f"'{part.strip()[:40]}'"
            )
        found.append(int(size))
    return found


def _whole(size: Any) -> int:
    """Return a whole number of bytes, 0 for what is none."""
    number = isinstance(size, int | float | np.number) and 0 <= size < 2**62
    return int(size) if number and int(size) == size else 0


def device_limits(limit: MemoryLimit, num_devices: int) -> tuple[int, ...]:
    """Return the bytes of every device.

    Raises
    ------
    InputError
        If there are neither one nor `num_devices` sizes, or one is none.
    """
    parts = limit if isinstance(limit, Iterable) and not isinstance(limit, str) else [limit]
    sizes: list[int] = []
    for part in parts:
        sizes += parse_bytes(part, "--memory-limit") if isinstance(part, str) else [_whole(part)]
    if min(sizes, default=0) < 1:
        raise InputError(f"memory_limit: expected bytes >= 1 per device, received {limit}")
    if len(sizes) == 1:
        return tuple(sizes * num_devices)
    if len(sizes) != num_devices:
        raise InputError(
            f"--memory-limit: expected one size for all or one for each of {num_devices} devices, "
            f"received {len(sizes)}"
        )
    return tuple(sizes)
