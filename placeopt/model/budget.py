"""Budget: when a search has to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placeopt.model.errors import InputError


@dataclass(frozen=True)
class Budget:
    """Limits of a search; None means no limit.

    Attributes
    ----------
    seconds : wall-clock time.
    evaluations : number of candidate solutions evaluated.
    target : stop as soon as the objective is at most this many ticks.
    """

    seconds: float | None = None
    evaluations: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise InputError(f"budget seconds: expected a number >= 0, received {self.seconds}")
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(
                f"budget evaluations: expected at least 1, received {self.evaluations}"
            )

    @property
    def unlimited(self) -> bool:
        """Whether nothing limits the search."""
        return self.seconds is None and self.evaluations is None and self.target is None
