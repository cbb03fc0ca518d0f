"""What is known of a problem when a stronger bound begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.communication import heads_tails
from placeopt.makespan.bounds.segment_graph import with_delays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.relaxation import Relaxation
    from placeopt.makespan.bounds.segment_graph import Delay
    from placeopt.model.arrays import Ints


@dataclass(frozen=True, eq=False)
class Evidence:
    """The relaxation of a problem, and what cheaper bounds have proved.

    Attributes
    ----------
    weights : of the classes of devices, from the load bound.
    known : a bound on the makespan, ticks. upper : value of a known solution, None without one.
    delays : ticks that pass at least between two ops; the heads count them already.
    """

    relaxation: Relaxation
    heads: HeadsTails
    weights: Ints  # (num_classes,)
    known: int
    upper: int | None = None
    delays: Sequence[Delay] = ()

    @property
    def limit(self) -> int:
        """The smallest bound that closes the search: it meets a known solution, or proves that
        there is none.
        """
        longest = self.relaxation.serial + 1
        return longest if self.upper is None else min(self.upper, longest)

    def heads_with(self, delays: Sequence[Delay]) -> HeadsTails:
        """Return the heads and tails raised by delays, together with those that are known."""
        edges = [
            (delay.segment.first, delay.segment.last, delay.ticks)
            for delay in (*self.delays, *delays)
        ]
        longer = with_delays(self.relaxation, edges)
        return self.heads.raised(heads_tails(longer, weights=self.weights))
