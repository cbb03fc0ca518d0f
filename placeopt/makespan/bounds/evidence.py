"""What is known of a problem when a stronger bound begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.relaxation import Relaxation


@dataclass(frozen=True, eq=False)
class Evidence:
    """The relaxation of a problem, and what cheaper bounds have proved.

    Attributes
    ----------
    weights : of the classes of devices, from the load bound.
    known : a bound on the makespan, ticks. upper : value of a known solution, None without one.
    """

    relaxation: Relaxation
    heads: HeadsTails
    weights: NDArray[np.int64]  # (num_classes,)
    known: int
    upper: int | None = None

    @property
    def limit(self) -> int:
        """The smallest bound that closes the search: it meets a known solution, or proves that there is none."""
        longest = self.relaxation.serial + 1
        return longest if self.upper is None else min(self.upper, longest)
