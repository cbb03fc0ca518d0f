"""Limits with other values: a clock that runs out after some looks at it, so that what ends with the
time ends at a place that the seed decides, and constants and options.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from inspect import isfunction
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 1e7
"""Seconds by which the clock jumps: more than any limit."""


@contextmanager
def clock(looks: int | None) -> Iterator[None]:
    """Let `time.perf_counter` run as ever for `looks` calls, and a long time later from then on;
    None: never.
    """
    if looks is None:
        yield
        return
    real, left = time.perf_counter, [looks]

    def now() -> float:
        left[0] -= 1
        return real() + (LONG if left[0] < 0 else 0.0)

    with mock.patch("time.perf_counter", now):
        yield


def current(owner: Any, name: str) -> Any:
    """Return the value of a constant of a module, of a field of the options of a class
    ("pace.warm"), or the default of a keyword of a function.
    """
    return owner.__kwdefaults__[name] if isfunction(owner) else attrgetter(name)(owner)


def patched(owner: Any, name: str, value: Any) -> Any:
    """Return a context in which what `current` returns has another value."""
    if isfunction(owner):
        return mock.patch.dict(owner.__kwdefaults__, {name: value})
    options, _, field = name.rpartition(".")
    if options:
        name, value = options, replace(getattr(owner, options), **{field: value})
    return mock.patch.object(owner, name, value)
