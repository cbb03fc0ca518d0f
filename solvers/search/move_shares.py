"""How often a walk takes each kind of move: at first as it is told, then by what the kinds gained.

A kind comes as often as it did at first, times what its proposals gained over what all did
(probability matching), where a gain is a new best placement and older proposals count less.

References
----------
- D. Thierens. An adaptive pursuit strategy for allocating operator probabilities. GECCO 2005.
  (Probability matching, section 2.)
- A. Fialho. Adaptive operator selection for optimization. PhD thesis, Universite Paris-Sud, 2010.
  (Credit by what was gained lately.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.search.walk_kernels import BEST, EMPTY, PROPOSED

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats, Ints


MEMORY = 0.9
"""Weight of what was gained before one look at the gains, at the next."""

DOUBT = 50.0
"""Proposals of the average gain that every kind of move is credited with."""

RAREST = 0.02
"""Least share of a kind of move that is taken at all."""


class MoveShares:
    """Shares of the kinds of moves, and what each kind has gained lately.

    Parameters
    ----------
    first : relative frequency of each kind before anything is learned; kinds of 0 never come.
    learn : whether gains change them.

    Attributes
    ----------
    tried, better : evaluated proposals of each kind, and new best placements among them.
    """

    def __init__(self, first: Floats, *, learn: bool = True) -> None:
        self.first, self.learn = first / first.sum(), learn
        self.tried, self.better = np.zeros(len(first)), np.zeros(len(first))

    def count(self, tally: Ints) -> int:
        """Learn from new proposals, a tally of them; return how many were evaluated."""
        tried = tally[:, PROPOSED] - tally[:, EMPTY]
        if self.learn:
            self.tried = MEMORY * self.tried + tried
            self.better = MEMORY * self.better + tally[:, BEST]
        return int(tried.sum())

    def now(self) -> Floats:
        """Return the probability of each kind of move."""
        total = float(self.better.sum())
        if total <= 0:
            return self.first
        mean = total / float(self.tried.sum())
        weight = self.first * (self.better + DOUBT * mean) / (self.tried + DOUBT)
        share = np.where(self.first > 0, np.maximum(weight / weight.sum(), RAREST), 0.0)
        return np.asarray(share / share.sum())
