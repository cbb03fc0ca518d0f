"""Bounds on the period that take milliseconds.

`op`: some device runs op v (or its colocation class), so its load is at least the smallest time of
v.

`pigeonhole`: suppose the period is at most T. An op that takes longer than T on all types but one,
g, runs there. Of the q n_g + 1 longest such ops some q + 1 share a device, whose load is at least
the sum of the q + 1 shortest of them. If that exceeds T the supposition was wrong; bisection finds
the largest such T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.period.contracted import ContractedProblem


def largest_op(model: ContractedProblem) -> int:
    """Return the bound `op`."""
    return int(model.smallest_times.max())


def pigeonhole(model: ContractedProblem, lower: int) -> int:
    """Return the bound `pigeonhole`, at least `lower`."""
    upper = int(model.smallest_times.sum()) + 1
    # Refutation is monotone: a larger T leaves fewer ops bound to one type and a larger allowance.
    while lower < upper:
        middle = (lower + upper) // 2
        if _refuted(model, middle):
            lower = middle + 1
        else:
            upper = middle
    return lower


def _refuted(model: ContractedProblem, limit: int) -> bool:
    usable = model.allowed & (model.total <= limit)
    if not usable.any(axis=1).all():
        return True
    only = usable.sum(axis=1) == 1
    for g, devices in enumerate(model.types):
        times = np.sort(model.total[only & usable[:, g], g])[::-1]
        count = len(devices)
        running = np.concatenate([[0], np.cumsum(times)])
        q = np.arange(1, (len(times) - 1) // count + 1)
        last = (
            q * count
        )  # times[last - q .. last] are the q + 1 shortest of the first q * count + 1
        if (running[last + 1] - running[last - q] > limit).any():
            return True
    return False
