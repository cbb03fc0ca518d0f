"""Grids of time on which a makespan is searched: the common divisor of all times, or a coarser one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem

COARSE_HORIZON = 2**40
"""Horizons (in units) beyond this are solved on a coarser grid only."""


def common_unit(problem: PlacementProblem) -> int:
    """Return the greatest common divisor of all times: a coarser grid without any rounding."""
    times = np.concatenate([problem.compute[problem.compute > 0], problem.transfer[problem.transfer > 0]])
    return int(np.gcd.reduce(times)) if times.size else 1
