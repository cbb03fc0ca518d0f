"""Grids of time on which a makespan is searched: the common divisor of all times, or a coarser
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem

COARSE_HORIZON = 2**40
"""Horizons (in units) beyond this are solved on a coarser grid only."""

FEWEST_UNITS, MOST_UNITS = 4, 256
"""Units of a natural grid in the horizon."""

KEPT, LEAST_KEPT = 0.99, 0.98
"""Share of the work that a natural grid keeps, of what the one that keeps most does, and of all
work."""


def common_unit(problem: PlacementProblem) -> int:
    """Return the greatest common divisor of all times: a coarser grid without any rounding."""
    times = np.concatenate(
        [problem.compute[problem.compute > 0], problem.transfer[problem.transfer > 0]]
    )
    return int(np.gcd.reduce(times)) if times.size else 1


def natural_grid(problem: PlacementProblem, horizon: int, longest_times: int = 40) -> int:
    """Return the coarsest unit that keeps nearly all of the ops' work when their times are rounded
    down.

    Blocks of sharded matrices take small multiples of one time. With that as the unit little is
    lost, and few distinct times are left.

    Parameters
    ----------
    horizon : ticks; the unit is a 256th of it to a fourth.
    longest_times : different times of ops, the longest, of which the unit may be a part.

    Returns
    -------
    int
        Ticks, a whole part of some op's time; 0 where every grid loses more.
    """
    times = np.where(problem.compute >= 0, problem.compute, np.iinfo(np.int64).max).min(axis=1)
    shortest, longest = max(1, horizon // MOST_UNITS), max(1, horizon // FEWEST_UNITS)
    units: set[int] = set()
    for ticks in np.unique(times[times >= shortest])[-longest_times:].tolist():
        units.update(ticks // parts for parts in range(-(-ticks // longest), ticks // shortest + 1))
    kept = {unit: int((times // unit).sum()) * unit for unit in units}
    least = max(KEPT * max(kept.values(), default=0), LEAST_KEPT * int(times.sum()), 1)
    return max((unit for unit in units if kept[unit] >= least), default=0)
