"""Parts of the bounds of pipelines, worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from placeopt.schedules import bounds
from placeopt.schedules.bounds import _most_work, freed_while_running


def test_blocks_that_free_hold_until_they_end():
    """Only what is freed counts, each by the ticks of its block."""
    assert freed_while_running(np.array([3, -2, 0, -1]), np.array([5, 4, 3, 2])) == 10
    assert freed_while_running(np.array([3, 1]), np.array([5, 4])) == 0


def test_work_that_fits_is_the_relaxed_knapsack():
    """Two micro-batches: blocks without need all, then the longest per unit until the capacity is
    used, a part of the last.
    """
    span, need = np.array([6, 5, 4, 9]), np.array([3, 1, 0, -2])
    assert [_most_work(span, need, 2, capacity) for capacity in range(6)] == [
        8,
        8 + 5,
        8 + 10,
        8 + 10 + 2,
        8 + 10 + 4,
        8 + 10 + 6,
    ]
    assert _most_work(span, need, 2, 99) == 8 + 10 + 12


def test_the_best_bound_is_the_largest(monkeypatch):
    """Of those by name."""
    known = {"a": Fraction(3), "b": Fraction(7), "c": Fraction(5)}
    monkeypatch.setattr(bounds, "period_bounds", lambda problem: known)
    assert bounds.best_bound(None) == (7, "b")
