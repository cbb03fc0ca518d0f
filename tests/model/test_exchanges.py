"""Few nodes whose bytes lie between two numbers."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from placeopt.model.exchanges import few_between
from placeopt.model.interpreted import as_python


def test_the_least_nodes_are_found():
    """What is found lies between, no fewer nodes do, and nothing is found only where nothing is."""
    find, counts = as_python(few_between), [0] * 4
    for seed in range(300):
        rng = np.random.default_rng(seed)
        size, count = rng.integers(1, 60, 20), int(rng.integers(0, 8))
        some = rng.permutation(20)
        low = int(rng.integers(1, 150))
        high = low + int(rng.integers(0, 3))
        among = some[:count].tolist()
        least = next(
            (
                few
                for few in (1, 2, 3)
                for nodes in combinations(among, few)
                if low <= size[list(nodes)].sum() <= high
            ),
            0,
        )
        few = find(size, some, count, low, high)
        assert few == least
        counts[few] += 1
        if few:
            assert len({*some[:few].tolist()} & {*among}) == few
            assert low <= size[some[:few]].sum() <= high
    assert min(counts) > 5
