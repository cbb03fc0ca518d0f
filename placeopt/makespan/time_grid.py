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


def common_unit(problem: PlacementProblem) -> int:
    """Return the greatest common divisor of all times: a coarser grid without any rounding."""
    times = np.concatenate(
        [problem.compute[problem.compute > 0], problem.transfer[problem.transfer > 0]]
    )
    return int(np.gcd.reduce(times)) if times.size else 1


def natural_grid(
    problem: PlacementProblem,
    horizon: int,
    longest_times: int = 40,
    *,
    fewest_units: int = 4,
    most_units: int = 256,
    kept_of_best: float = 0.99,
    kept_of_all: float = 0.98,
) -> int:
    """Return the coarsest unit that keeps nearly all of the ops' work when their times are rounded
    down.

    Blocks of sharded matrices take small multiples of one time. With that as the unit little is
    lost, and few distinct times are left.

    Parameters
    ----------
    horizon : ticks. fewest_units, most_units : into which the grid divides it.
    longest_times : different times of ops, the longest, of which the unit may be a part.
    kept_of_best, kept_of_all : share of the work that the grid keeps at least, of what the one that
    keeps most does, and of all work.

    Returns
    -------
    int
        Ticks, a whole part of some op's time; 0 where every grid loses more.
    """
    times = np.where(problem.compute >= 0, problem.compute, np.iinfo(np.int64).max).min(axis=1)
    shortest, longest = max(1, horizon // most_units), max(1, horizon // fewest_units)
    units: set[int] = set()
    for ticks in np.unique(times[times >= shortest])[-longest_times:].tolist():
        units.update(ticks // parts for parts in range(-(-ticks // longest), ticks // shortest + 1))
    kept = {unit: int((times // unit).sum()) * unit for unit in units}
    most = max(kept.values(), default=0)
    least = max(kept_of_best * most, kept_of_all * int(times.sum()), 1)
    return max((unit for unit in units if kept[unit] >= least), default=0)
