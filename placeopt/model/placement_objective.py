"""The base of objectives of a placement: a simple reason proves that none can be valid."""

from __future__ import annotations

from typing import ClassVar

from placeopt.model.errors import InputError
from placeopt.model.feasibility import infeasible_reason
from placeopt.model.objective import Objective
from placeopt.model.problem import PlacementProblem


class PlacementObjective(Objective):
    """What objectives of a placement share: the constraints, and ticks as the unit.

    Attributes
    ----------
    peaks : whether a run has a peak of bytes, so that there may be a limit on it.
    """

    __slots__ = ()

    kind = "placement"
    peaks: ClassVar[bool] = True

    def impossible(self, problem: PlacementProblem) -> str:
        """Why no placement can be valid, "" unless a simple reason proves it; a limit on a peak
        that there is none of is refused.
        """
        if not self.peaks:
            check_static(problem)
        return infeasible_reason(problem)

    def least_value(self, problem: PlacementProblem, bound: int) -> int:
        """Return the least multiple of the common unit of all times that is no less than a bound.

        Loads are sums of given times, and so are slots one after the other. Of a best schedule keep
        the order of all starts and ends, and let each be as early as that allows: it is valid and
        no longer, and all its times are sums of given ones.
        """
        return -(-bound // problem.common_unit) * problem.common_unit


def check_static(problem: PlacementProblem) -> None:
    """Refuse a limit on the bytes at a peak where no single run has one."""
    if problem.memory != "static":
        raise InputError(
            f"problem '{problem.name}': objective '{problem.objective}' expects memory='static', "
            f"received '{problem.memory}'; set memory='static'"
        )
