"""Distinct rows and columns: those that numpy finds by sorting, in its order."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.model.arrays import unique_columns, unique_rows


@pytest.mark.parametrize("seed", range(40))
def test_distinct_rows_and_columns(seed):
    """Random tables, some with few values, some of truth values, some empty."""
    rng = np.random.default_rng(seed)
    table = rng.integers(-1, rng.integers(1, 5), size=(rng.integers(0, 9), rng.integers(1, 7)))
    if seed % 3 == 0:
        table = table > 0
    row, kind = unique_rows(table)
    wanted, inverse = np.unique(table, axis=0, return_inverse=True)
    assert np.array_equal(table[row], wanted)
    assert np.array_equal(kind, inverse.reshape(-1))
    column, kind = unique_columns(table)
    if len(table):
        wanted, inverse = np.unique(table, axis=1, return_inverse=True)
        assert np.array_equal(table[:, column], wanted)
        assert np.array_equal(kind, inverse.reshape(-1))
    else:
        assert len(column) == 1
