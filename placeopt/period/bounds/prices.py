"""The bound on the period by prices (`columns`), over the frontier of the graph, whose states
forget where they are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from placeopt.model.arrays import Ints
from placeopt.model.problem import PlacementProblem
from placeopt.period.bounds.closing import Closing, can_close
from placeopt.period.bounds.covering import CoverBound, thin_frontier
from placeopt.period.bounds.set_prices import Frontier, OutOfTimeError
from placeopt.period.contracted import ContractedProblem, contract


def column_bound(problem: PlacementProblem, lower: int, upper: int | None, seconds: float) -> int:
    """Return the best bound by prices, from `lower` on; at most `upper`, the value of a known
    placement: of any sets, and of convex ones.
    """
    prices, end = PriceBound(problem), time.perf_counter() + seconds
    if problem.contiguity == "none":
        return prices.raise_from(lower, upper, seconds)
    lower = prices.raise_from(lower, upper, seconds / 2)
    return PriceBound(problem, "convex").raise_from(lower, upper, end - time.perf_counter())


class PriceBound:
    """The bound by prices in several turns, each with a better value: the sets of earlier turns are
    kept.

    Parameters
    ----------
    contiguity : of the sets, "none" or "convex": a placement of chains has convex ones, too.

    Attributes
    ----------
    goes_on : whether a turn was made, and another one would go on where it ended.
    """

    def __init__(self, problem: PlacementProblem, contiguity: str = "none") -> None:
        self._problem, self._contiguity = problem, contiguity
        self._model: ContractedProblem | None = None  # for the first turn's value, above later ones
        self._frontier: Frontier | None = None
        self.cover: CoverBound | None = None
        self.goes_on = False

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
        lower = self.cover.raise_from(lower, self._most(lower, upper))
        self.goes_on = self.cover.unfinished
        return lower

    @property
    def sees_all(self) -> bool:
        """Whether turns see every set and leave nothing out, as far as is known."""
        return self.cover is not None and self.cover.exact and self.cover.fits_memory()

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
