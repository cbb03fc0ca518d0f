"""Annealing in cycles of chunks: the frame that the period and the latency share.

A cycle cools from a temperature drawn at random to a fixed one, both relative to the value that it
starts from, in chunks of as many moves as the first cycle has. It is twice as long as the one
before where that found nothing; after one of the longest, as after every success, short ones
come again, which find more than ever longer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class Cycles:
    """How cycles cool, and how long they grow.

    Chosen on families of results/engine that choices are made on: with (0.03, 1e-5, 32) values end
    .35 % higher in the mean, 2 % on NASNet; shorter cycles do as well (constants.md there).

    Attributes
    ----------
    hot : the first temperature is drawn between a hundredth of this and this, as a share of the
    value.
    cold : last temperature, likewise.
    most_chunks : of the longest cycle, a power of two.
    """

    hot: float = 0.3
    cold: float = 1e-4
    most_chunks: int = 256


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
    tracker: Tracker[Any],
    rng: np.random.Generator,
    begin: Callable[[], Walk | None],
    *,
    cycles: Cycles = Cycles(),
) -> Iterator[None]:
    """Anneal until `begin` has nothing to begin with; one chunk per step, which counts as an
    evaluation.
    """
    chunks = 1
    while (walk := begin()) is not None:
        before, hot = tracker.value, cycles.hot * walk.value * 10.0 ** (-2 * rng.random())
        ends = hot * (cycles.cold * walk.value / hot) ** (np.arange(chunks + 1) / chunks)
        for first, last in pairwise(ends.tolist()):
            walk.cool(first, last, int(rng.integers(2**31)))
            tracker.count()
            yield
        chunks = 1 if tracker.value != before or chunks == cycles.most_chunks else 2 * chunks
