"""The bound on the period by prices (`columns`): over the frontier of the graph, whose states
forget where they are many, or set by set.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from placeopt.period.bounds.closing import Closing, can_close
from placeopt.period.bounds.columns import ColumnBound
from placeopt.period.bounds.covering import CoverBound, thin_frontier
from placeopt.period.bounds.set_prices import OutOfTimeError
from placeopt.period.contracted import contract

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.arrays import Ints
    from placeopt.model.problem import PlacementProblem
    from placeopt.period.bounds.set_prices import Frontier
    from placeopt.period.contracted import ContractedProblem


def column_bound(problem: PlacementProblem, lower: int, upper: int | None, seconds: float) -> int:
    """Return the best bound by prices, from `lower` on; at most `upper`, the value of a known
    placement: over a frontier, of any sets and of convex ones, and then set by set where that may
    prove more.
    """
    prices, end = PriceBound(problem), time.perf_counter() + seconds
    if problem.contiguity == "none":
        lower = prices.raise_from(lower, upper, seconds)
    else:
        lower = prices.raise_from(lower, upper, seconds / 2)
        left = end - time.perf_counter()
        lower = PriceBound(problem, "convex").raise_from(lower, upper, left)
    if prices.one_by_one and (left := end - time.perf_counter()) > 0:
        lower = prices.raise_one_by_one(lower, upper, left)
    return lower


class PriceBound:
    """The bound by prices in several turns, each with a better value: the sets of earlier turns are
    kept.

    Parameters
    ----------
    contiguity : of the sets, "none" or "convex": a placement of chains has convex ones, too.

    Attributes
    ----------
    goes_on : whether a turn over the frontier was made, and another one would go on where it ended.
    one_by_one : whether sets one by one may prove more, or finish what they began.
    """

    def __init__(self, problem: PlacementProblem, contiguity: str = "none") -> None:
        self._problem, self._contiguity = problem, contiguity
        self._model: ContractedProblem | None = None  # for the first turn's value, above later ones
        self._frontier: Frontier | None = None
        self._columns: ColumnBound | None = None
        self.cover: CoverBound | None = None
        self.goes_on, self.one_by_one = False, True

    def raise_from(self, lower: int, upper: int | None, seconds: float) -> int:
        """Return the best bound from `lower` on; at most `upper`, which never rises from turn to
        turn.
        """
        deadline = time.perf_counter() + seconds
        model = self._contracted(upper)
        self._frontier = self._frontier or thin_frontier(model)
        self.goes_on = self._frontier is not None
        if self._frontier is None:
            return lower
        try:
            self.cover = self.cover or CoverBound(model, self._frontier, deadline)
        except OutOfTimeError:
            return lower
        self.cover.give_until(deadline)
        most = self._most(lower, upper)
        lower = self.cover.raise_from(lower, most)
        self.goes_on = self.cover.unfinished
        self.one_by_one = self.goes_on or (lower < most and not self.sees_all)
        return lower

    @property
    def sees_all(self) -> bool:
        """Whether turns over the frontier see every set and leave nothing out, as far as is known:
        sets one by one prove no more then.
        """
        return self.cover is None or (self.cover.exact and self.cover.fits_memory())

    def raise_one_by_one(self, lower: int, upper: int | None, seconds: float) -> int:
        """Do so with sets one by one: for wide frontiers, and for tight memory."""
        deadline = time.perf_counter() + seconds
        if self._columns is None:
            self._columns = ColumnBound(self._contracted(upper), deadline)
        self._columns.deadline = deadline
        lower = self._columns.raise_from(lower, self._most(lower, upper))
        self.one_by_one = self._columns.unfinished
        return lower

    def closing(self, value: Callable[[], int], offer: Callable[[Ints], None]) -> Closing | None:
        """Return what goes on with the sets found until bound and value meet; None where that is
        not possible, as for chains, or no turn was made.

        Parameters
        ----------
        value : asked for the best period known, not above the value of the first turn.
        offer : called with the device of every op of placements that are better.
        """
        cover, model = self.cover, self._model
        own = self._contiguity == self._problem.contiguity  # what was contracted holds for no other
        if cover is None or model is None or not own or not can_close(cover):
            return None
        return Closing(cover, value, lambda device: offer(model.expand(device)))

    def _contracted(self, upper: int | None) -> ContractedProblem:
        if self._model is None:
            self._model = contract(self._problem, contiguity=self._contiguity, limit=upper)
        return self._model

    def _most(self, lower: int, upper: int | None) -> int:
        """Return what no bound exceeds: the value, or what everything takes one after the other."""
        if upper is not None:
            return max(lower, upper)
        return max(lower, int(self._contracted(None).smallest_times.sum()) + 1)
