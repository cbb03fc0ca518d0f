"""A search by tree moves on a compact problem, in slices that others can be run between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.random_bits import random_states
from placeopt.sharding.bounds.message_passing import factors_of
from placeopt.solvers.sharding.tree_moves import Manner, board_of, improve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.sharding.compact import Compact

    Ints = NDArray[np.int64]

TREE_SIZES = (3, 10, 30, 100, 300)
"""Most nodes of a tree, by turns."""

SKIP = 0.05
"""Chance that a tree leaves out a node it could take."""


class TreeSearch:
    """A choice and the moves that improve it.

    Attributes
    ----------
    best, best_cost : the cheapest choice so far and what it costs in the compact problem.
    """

    def __init__(self, compact: Compact, choice: Ints, rng: np.random.Generator) -> None:
        self.compact, self.rng = compact, rng
        self.factors = factors_of(compact)
        self.state = random_states(rng, 1)[0]
        self.prices = np.zeros(compact.num_nodes)
        self.best, self.best_cost = choice, self.cost_of(choice)
        self.restart(choice)

    def restart(self, choice: Ints) -> None:
        """Go on from another choice."""
        self.board = board_of(self.compact, choice, max(TREE_SIZES))
        self._keep_best()

    def cost_of(self, choice: Ints) -> int:
        """Return what a choice costs, edges and nodes that were decided before left out."""
        c = self.compact
        low, high = c.edge[:, 0], c.edge[:, 1]
        pairs = c.edge_ptr[:-1] + choice[low] * c.num_choices[high] + choice[high]
        return int(c.cost[c.node_ptr[:-1] + choice].sum()) + int(c.table[pairs].sum())

    def moves(self, count: int, most: int, scale: float, heat: float = 0.0) -> None:
        """Make `count` moves of trees of up to `most` nodes, usage priced at `scale` times the prices."""
        roots = self.rng.integers(self.compact.num_nodes, size=count)
        manner = Manner(most, float(scale), SKIP, float(heat))
        improve(self.factors, self.compact, self.board, roots, self.prices, manner, self.state)
        self._keep_best()

    def _keep_best(self) -> None:
        cost = self.cost_of(self.board.choice)
        if cost < self.best_cost:
            self.best, self.best_cost = self.board.choice.copy(), cost
