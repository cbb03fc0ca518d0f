"""A search by tree moves on a compact problem, in slices that others can be run between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.random_bits import random_states
from placeopt.sharding.bounds.message_passing import factors_of, lift_trees
from placeopt.sharding.tree_moves import Manner, board_of, improve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.sharding.compact import Compact

    Ints = NDArray[np.int64]

TREE_SIZES = (3, 10, 30, 100, 300)
"""Most nodes of a tree, by turns."""

SCALES = (1.0, 1.0, 0.5, 0.0)
"""Of the prices of usage, by turns: a high price frees room that a low one gives to those who gain
most."""

URGENT_SCALE = 2.0
"""Of the prices while the best choice still uses what is all but forbidden: room has to be made for
what it lacks."""

JITTER = 0.2
"""Most part by which the prices of a turn are more or less: at prices a little off others gain and
lose."""

LOCAL_SIZE = 30
"""Turns of trees of at most so many nodes begin at nodes of hanging trees, too."""

SKIP = 0.05
"""Chance that a tree leaves out a node it could take."""

SWEEP = 3.0
"""Nodes that the trees of one turn have together, as a multiple of all nodes."""


class TreeSearch:
    """A choice and the moves that improve it.

    Attributes
    ----------
    best, best_cost : the cheapest choice so far and what it costs in the compact problem.
    prices : of usage, by node. urgent : whether the best choice uses what is all but forbidden.
    """

    def __init__(self, compact: Compact, choice: Ints, rng: np.random.Generator) -> None:
        self.compact, self.rng = compact, rng
        self.factors = factors_of(compact)
        self.state = random_states(rng, 1)[0]
        self.prices = np.zeros(compact.num_nodes)
        self.best, self.best_cost = choice, self.cost_of(choice)
        self.urgent = False
        self._turn, self._left, self._jitter = 0, 0, 1.0
        inner = np.flatnonzero(
            np.diff(self.factors.adj_ptr)[: compact.core] > 1
        )  # leaves move with their parents
        self._roots = np.concatenate([inner, np.arange(compact.core, compact.num_nodes)])
        self._inner = len(inner)
        self._rates = dict.fromkeys(TREE_SIZES, 1000.0)
        self.restart(choice)

    @property
    def cycles(self) -> int:
        """Times that all sizes and scales have gone by."""
        return self._turn // (len(TREE_SIZES) * len(SCALES))

    def restart(self, choice: Ints) -> None:
        """Go on from another choice."""
        self.board = board_of(self.compact, choice)
        self._keep_best()

    def cost_of(self, choice: Ints) -> int:
        """Return what a choice costs, edges and nodes that were decided before left out."""
        c = self.compact
        low, high = c.edge[:, 0], c.edge[:, 1]
        pairs = c.edge_ptr[:-1] + choice[low] * c.num_choices[high] + choice[high]
        return int(c.cost[c.node_ptr[:-1] + choice].sum()) + int(c.table[pairs].sum())

    def cost_below(self, choice: Ints, most: int) -> int:
        """Return what a choice costs, costs of `most` or more left out."""
        c = self.compact
        low, high = c.edge[:, 0], c.edge[:, 1]
        nodes = c.cost[c.node_ptr[:-1] + choice]
        edges = c.table[c.edge_ptr[:-1] + choice[low] * c.num_choices[high] + choice[high]]
        return int(nodes[nodes < most].sum()) + int(edges[edges < most].sum())

    def moves(self, count: int, most: int, scale: float, heat: float = 0.0) -> None:
        """Make `count` moves of trees of up to `most` nodes, usage priced at `scale` times the
        prices.
        """
        at = self.rng.integers(
            0 if most <= LOCAL_SIZE else self._inner, len(self._roots), size=count
        )
        roots = self._roots[at]
        manner = Manner(most, SKIP, float(heat))
        started = time.perf_counter()
        price = scale * self.prices
        lift_trees(self.factors, price)
        improve(self.factors, self.compact, self.board, roots, price, manner, self.state)
        self._rates[most] = count / max(1e-6, time.perf_counter() - started)
        self._keep_best()

    def moves_in(self, seconds: float) -> int:
        """Return about how many moves of the next size can be made in `seconds`."""
        return max(1, int(seconds * self._rates[TREE_SIZES[self._turn % len(TREE_SIZES)]]))

    def round(self, limit: int) -> int:
        """Make the moves of the next turn, at most `limit`; sizes go by, then scales. Return their
        number.
        """
        most = TREE_SIZES[self._turn % len(TREE_SIZES)]
        scale = SCALES[self._turn // len(TREE_SIZES) % len(SCALES)]
        if self.urgent and scale == 1.0:
            scale = URGENT_SCALE
        if self._left == 0:
            self._left = max(1, int(SWEEP * (self.compact.num_nodes - self.compact.core)) // most)
            self._jitter = 1.0 + JITTER * (2.0 * self.rng.random() - 1.0)
        count = min(limit, self._left)
        self.moves(count, most, scale * self._jitter)
        self._left -= count
        self._turn += self._left == 0
        return count

    def _keep_best(self) -> None:
        cost = self.cost_of(self.board.choice)
        if cost < self.best_cost:
            self.best, self.best_cost = self.board.choice.copy(), cost
