"""Annealing in cycles of chunks: the frame that the period and the latency share.

A cycle cools from a temperature drawn at random below `HOT` to `COLD`, both relative to the value
that it starts from, in chunks of as many moves as the first cycle has. It is twice as long as the
one before where that found nothing; after one of the longest, as after every success, short ones
come again, which find more than ever longer ones.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from placeopt.solving.tracker import Tracker

HOT, COLD, MOST_CHUNKS = 0.3, 1e-4, 256
"""Chosen on families of results/engine that choices are made on: with (0.03, 1e-5, 32) values end
.35 % higher in the mean, 2 % on NASNet; shorter cycles do as well (constants.md there)."""


class Walk(Protocol):
    """Where a cycle is.

    Attributes
    ----------
    value : ticks of the placement that it starts from.
    """

    value: int

    def cool(self, hot: float, cold: float, seed: int) -> None:
        """Walk one chunk between two temperatures (ticks), and offer what is better."""


def anneal_in_cycles(
    tracker: Tracker[Any], rng: np.random.Generator, begin: Callable[[], Walk | None]
) -> Iterator[None]:
    """Anneal until `begin` has nothing to begin with; one chunk per step, which counts as an
    evaluation.
    """
    chunks = 1
    while (walk := begin()) is not None:
        before, hot = tracker.value, HOT * walk.value * 10.0 ** (-2 * rng.random())
        ends = hot * (COLD * walk.value / hot) ** (np.arange(chunks + 1) / chunks)
        for first, last in pairwise(ends.tolist()):
            walk.cool(first, last, int(rng.integers(2**31)))
            tracker.count()
            yield
        chunks = 1 if tracker.value != before or chunks == MOST_CHUNKS else 2 * chunks
