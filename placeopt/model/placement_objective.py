"""The base of objectives of a placement: one value in ticks, no choice of execution, bounds one
after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.feasibility import infeasible_reason
from placeopt.model.objective import Finished, PlainObjective

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


class PlacementObjective(PlainObjective):
    """What objectives of a placement share: the constraints, and ticks as the unit."""

    __slots__ = ()

    kind: ClassVar[str] = "placement"

    def impossible(self, problem: PlacementProblem) -> str:
        """Why no placement can be valid, "" unless a simple reason proves it."""
        return infeasible_reason(problem)


def check_static(problem: PlacementProblem) -> None:
    """Refuse a limit on the bytes at a peak where no single run has one."""
    if problem.memory != "static":
        raise InputError(
            f"problem '{problem.name}': objective '{problem.objective}' expects memory='static', "
            f"received '{problem.memory}'; set memory='static'"
        )


class SteadyObjective(PlacementObjective, ABC):
    """What the period and the latency share: one value in ticks, no choice of execution."""

    __slots__ = ()

    ends_at_upper: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.bounded = f"the {cls.name}"

    def impossible(self, problem: PlacementProblem) -> str:
        """Why no placement can be valid, as for others; a limit on the peak, which it has none of,
        is refused.
        """
        check_static(problem)
        return super().impossible(problem)

    @abstractmethod
    def ticks(self, problem: PlacementProblem, solution: Placement) -> int:
        """Value of a placement.

        Raises
        ------
        InfeasiblePlacementError
            If it breaks a constraint.
        """

    @abstractmethod
    def judge(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> list[str]:
        """Violations of a placement."""

    @abstractmethod
    def prove(
        self, problem: PlacementProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield (method, ticks) of the bounds named that the time allows."""

    def value(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> tuple[int, str]:
        """Value of a placement; there is no choice of execution."""
        return self.ticks(problem, solution), ""

    def finish(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> Finished:
        """Value and judge a placement."""
        violations = self.judge(problem, solution)
        if violations:
            return Finished(None, "", tuple(violations))
        try:
            return Finished(self.ticks(problem, solution), "", ())
        except InfeasiblePlacementError as error:
            return Finished(None, "", (str(error),))
