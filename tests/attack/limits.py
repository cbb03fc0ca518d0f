"""Limits with other values: a clock that runs out after some looks at it, so that what ends with the
time ends at a place that the seed decides, and constants and options.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
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


def patched(owner: Any, name: str, value: Any) -> Any:
    """Return a context in which a constant of a module, or a field of the options of a class
    ("pace.warm"), has another value.
    """
    options, _, field = name.rpartition(".")
    if options:
        name, value = options, replace(getattr(owner, options), **{field: value})
    return mock.patch.object(owner, name, value)
