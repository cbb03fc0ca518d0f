"""The bound on the period by prices (`columns`): over a thin frontier where there is one, else set
by set.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from placeopt.period.bounds.closing import Closing, can_close
from placeopt.period.bounds.columns import ColumnBound
from placeopt.period.bounds.covering import cover_bound
from placeopt.period.contracted import contract

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.problem import PlacementProblem
    from placeopt.period.bounds.covering import CoverBound
    from placeopt.period.contracted import ContractedProblem

COVER_SHARE = 0.6
"""Share of a turn for the sets of a thin frontier; where that is not done by then, the rest is for
sets one by one."""


def column_bound(problem: PlacementProblem, lower: int, upper: int | None, seconds: float) -> int:
    """Return the best bound by prices, from `lower` on; at most `upper`, the value of a known
    placement.
    """
    return PriceBound(problem).raise_from(lower, upper, seconds)


class PriceBound:
    """The bound by prices in several turns, each with a better value: the sets of earlier turns are
    kept.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._model: ContractedProblem | None = (
            None  # contracted for the first turn's value, which is above the later ones
        )
        self._cover: CoverBound | None = None

    @property
    def goes_on(self) -> bool:
        """Whether another turn would go on where the last one ended."""
        return self._cover is not None and self._cover.unfinished

    def raise_from(self, lower: int, upper: int | None, seconds: float) -> int:
        """Return the best bound from `lower` on; at most `upper`, which never rises from turn to
        turn.
        """
        deadline = time.perf_counter() + seconds
        if self._model is None:
            self._model = contract(self._problem, contiguity="none", limit=upper)
            self._cover = cover_bound(self._model, deadline)
        most = max(lower, int(self._model.smallest_times.sum()) + 1 if upper is None else upper)
        if self._cover is not None:
            self._cover.pricer.deadline = deadline - (1 - COVER_SHARE) * seconds
            lower = self._cover.raise_from(lower, most)
            if lower >= most or (not self._cover.unfinished and self._cover.fits_memory()):
                return lower
        return ColumnBound(self._model, deadline).raise_from(lower, most)

    def closing(
        self, value: Callable[[], int], offer: Callable[[NDArray[np.int64]], None]
    ) -> Closing | None:
        """Return what goes on with the sets found until bound and value meet; None where that is
        not possible, or no turn was made.

        Parameters
        ----------
        value : asked for the best period known, not above the value of the first turn.
        offer : called with the device of every op of placements that are better.
        """
        cover, model = self._cover, self._model
        if (
            cover is None
            or model is None
            or self._problem.contiguity != "none"
            or not can_close(cover)
        ):
            return None
        return Closing(cover, value, lambda device: offer(model.expand(device)))
