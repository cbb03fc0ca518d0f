"""How a genetic algorithm chooses parents, and what a child has of them: the parts that papers
vary.

A selection draws the place of a member among `count` that are sorted, best first. A crossover
draws, for each group of ops, whether a child has it from the second parent; groups are numbered
along the graph.

References
----------
D. E. Goldberg, K. Deb, "A comparative analysis of selection schemes used in genetic algorithms",
FOGA 1991. G. Syswerda, "Uniform crossover in genetic algorithms", ICGA 1989.
J. H. Holland, "Adaptation in natural and artificial systems", 1975 (crossover at a point).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Flags


def tournament(rng: np.random.Generator, count: int) -> int:
    """Take the better one of two."""
    return int(min(rng.integers(count, size=2)))


def linear_ranking(rng: np.random.Generator, count: int) -> int:
    """Draw the member at place i with a probability proportional to count - i."""
    weight = np.arange(count, 0, -1, dtype=np.float64)
    return int(rng.choice(count, p=weight / weight.sum()))


def anyone(rng: np.random.Generator, count: int) -> int:
    """Draw every member with the same probability."""
    return int(rng.integers(count))


SELECTIONS: dict[str, Callable[[np.random.Generator, int], int]] = {
    "tournament": tournament,
    "linear-ranking": linear_ranking,
    "anyone": anyone,
}


def uniform(rng: np.random.Generator, groups: int) -> Flags:
    """Take every group with probability one half."""
    taken: Flags = rng.random(groups) < 0.5
    return taken


def one_point(rng: np.random.Generator, groups: int) -> Flags:
    """Take the groups behind a random point."""
    taken: Flags = np.arange(groups) >= rng.integers(groups + 1)
    return taken


def two_point(rng: np.random.Generator, groups: int) -> Flags:
    """Take the groups between two random points."""
    first, last = np.sort(rng.integers(groups + 1, size=2))
    place = np.arange(groups)
    taken: Flags = (place >= first) & (place < last)
    return taken


CROSSOVERS: dict[str, Callable[[np.random.Generator, int], Flags]] = {
    "uniform": uniform,
    "one-point": one_point,
    "two-point": two_point,
}
