"""Rows of placements that change step by step: a random move each, kept where its value is within a
limit.

The local search of problems that only the batch evaluator can value: any objective, contention,
peak memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.objective import INFEASIBLE
from placeopt.solvers.search import population_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.placement import Placement
    from placeopt.solvers.search.evaluator import BudgetedEvaluator


class MutatedRows:
    """Several placements as rows of homes of units and, where order matters, ranks of ops.

    Parameters
    ----------
    orders : ops of each row in order, read where order matters.
    states : random state of each row, shape (rows, 3).

    Attributes
    ----------
    values : of the rows in ticks, INFEASIBLE where a constraint is broken.
    """

    def __init__(
        self, evaluator: BudgetedEvaluator, homes: Ints, orders: Sequence[Ints], states: Ints
    ) -> None:
        self.evaluator, self.homes, self.states = evaluator, homes, states
        self.ranks = np.zeros((len(homes), 0), np.int64)
        if evaluator.ordered:
            inverse = evaluator.space.context.inverse
            self.ranks = (
                np.stack([inverse(order) for order in orders]) * population_kernels.RANK_GAP
            )
        self.values = self._evaluate(self.homes, self.ranks)

    def step(self, limit: Ints | Floats) -> None:
        """Propose one random move per row and keep those whose value is at most `limit`, one per
        row.
        """
        homes, ranks = self.homes.copy(), self.ranks.copy()
        population_kernels.mutate(self.evaluator.space.graph, homes, ranks, self.states, 1)
        values = self._evaluate(homes, ranks)
        accept = (values <= limit) & (values != INFEASIBLE)
        self.homes[accept], self.ranks[accept], self.values[accept] = (
            homes[accept],
            ranks[accept],
            values[accept],
        )

    def orders(self) -> list[Ints]:
        """Ops of each row in order; empty where order does not matter."""
        return [np.argsort(rank, kind="stable").astype(np.int64) for rank in self.ranks]

    def _evaluate(self, homes: Ints, ranks: Ints) -> Ints:
        devices = self.evaluator.space.devices_of(homes)
        return self.evaluator.values(devices, ranks if self.evaluator.ordered else None)


def order_of(evaluator: BudgetedEvaluator, placement: Placement) -> Ints:
    """Ops of a placement by its ranks, else as its fastest execution starts them; empty where order
    does not matter.
    """
    if not evaluator.ordered:
        return np.zeros(0, np.int64)
    if placement.priority is not None and not evaluator.walkable:
        return np.argsort(placement.priority, kind="stable").astype(np.int64)
    return evaluator.space.sequence_of(placement)
