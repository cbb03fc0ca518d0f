"""A clock that runs out after some looks at it: what ends with the time ends at a place that the
seed decides.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
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
