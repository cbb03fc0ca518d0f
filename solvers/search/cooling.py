"""How a temperature falls over a search, and which worse values it accepts: the parts that papers
on annealing vary.

A cooling gives the temperature after a share of the steps. An acceptance gives the largest value
that a proposal may have, from the current value, the best one, the temperature and a random number
in [0, 1): drawn before the proposal is valued, so that its evaluation can be given up early.

References
----------
S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983
(metropolis, geometric). M. Lundy, A. Mees, "Convergence of an annealing algorithm", Mathematical
Programming 34, 1986. G. Dueck, T. Scheuer, "Threshold accepting: a general purpose optimization
algorithm appearing superior to simulated annealing", Journal of Computational Physics 90, 1990.
G. Dueck, "New optimization heuristics: the great deluge algorithm and the record-to-record travel",
Journal of Computational Physics 104, 1993.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placeopt.solvers.search.walk_kernels import METROPOLIS, RECORD, THRESHOLD

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from placeopt.model.arrays import Floats, Ints


@dataclass(frozen=True)
class Cooling(ABC):
    """Temperature that falls from `hot` to `cold`."""

    hot: float
    cold: float

    @abstractmethod
    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""

    def scaled(self, scale: float) -> Self:
        """Return the same cooling in other units."""
        return replace(self, hot=self.hot * scale, cold=self.cold * scale)

    def reheated(self, share: float) -> Self:
        """Return the same cooling from a share of its first temperature."""
        return replace(self, hot=max(self.cold, self.hot * share))


class GeometricCooling(Cooling):
    """A constant factor per step."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return self.hot * (self.cold / self.hot) ** progress


class LinearCooling(Cooling):
    """A constant difference per step."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return self.hot + (self.cold - self.hot) * progress


class LundyMeesCooling(Cooling):
    """T / (1 + beta T) per step: the inverse of the temperature grows by a constant."""

    def at(self, progress: float) -> float:
        """Temperature after a share of the steps."""
        return 1.0 / ((1.0 - progress) / self.hot + progress / self.cold)


COOLINGS: dict[str, type[Cooling]] = {
    "geometric": GeometricCooling,
    "linear": LinearCooling,
    "lundy-mees": LundyMeesCooling,
}

ACCEPTANCES = {"metropolis": METROPOLIS, "threshold": THRESHOLD, "record-to-record": RECORD}
"""Rules by name: the number by which the compiled walk knows them."""


def _metropolis(values: Floats, best: float, temperature: float, draw: Floats) -> Floats:
    """Accept what is worse by x with probability exp(-x / temperature)."""
    limit: Floats = values - temperature * np.log(draw + 1e-300)
    return limit


def _threshold(values: Floats, best: float, temperature: float, draw: Floats) -> Floats:
    """Accept what is worse by at most the temperature."""
    return values + temperature


def _record_to_record(values: Floats, best: float, temperature: float, draw: Floats) -> Floats:
    """Accept what is worse than the best by at most the temperature, or not worse than the current
    value.
    """
    return np.maximum(values, best + temperature)


_LIMITS: dict[str, Callable[[Floats, float, float, Floats], Floats]] = {
    "metropolis": _metropolis,
    "threshold": _threshold,
    "record-to-record": _record_to_record,
}


def limits(
    acceptance: str, values: Ints, best: int | None, temperature: float, draw: Floats
) -> Floats:
    """Return the largest value that the next proposal of each row may have.

    Parameters
    ----------
    acceptance : one of ACCEPTANCES.
    best : the best value known, None before there is one. draw : a random number per row.
    """
    now = np.minimum(values, 2**61)
    record = float(now.min()) if best is None else float(best)
    return _LIMITS[acceptance](now, record, temperature, draw)
