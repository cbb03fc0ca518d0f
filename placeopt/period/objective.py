"""The period as an objective: the largest device load of a steady-state pipeline."""

from __future__ import annotations

from numpy.typing import ArrayLike

from placeopt.model.arrays import Ints
from placeopt.model.bound import Witness
from placeopt.model.placement import Placement
from placeopt.model.placement_objective import PlacementObjective
from placeopt.model.problem import PlacementProblem
from placeopt.period.bounds import METHODS, period_bounds


class Period(PlacementObjective):
    """The largest device load of a steady-state pipeline, in ticks."""

    __slots__ = ()

    name = "period"
    default_solver = "ideal-dp"
    comparison = ("linear-dp", "ideal-dp")
    prover = "cp-sat"
    kernels = ("period", "ranks")
    bound_kernels = ("period-columns",)
    bounded = "the period"
    bound_methods = METHODS
    prove = staticmethod(period_bounds)
    ends_at_upper = True
    peaks = False

    def default_for(self, problem: PlacementProblem) -> str:
        """Return what can prove the best placement: a chain is the best of its kind only."""
        return self.default_solver if problem.contiguity == "chain" else self.prover

    def evaluate_batch(
        self,
        problem: PlacementProblem,
        devices: ArrayLike,
        priorities: ArrayLike | None = None,
        *,
        threads: int | None = None,
    ) -> Ints:
        """Values of many placements; `priorities` are ignored."""
        from placeopt.period.evaluate import period_batch

        return period_batch(problem, devices)

    def value(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> tuple[int, str]:
        """Return the period of a placement; there is no choice of execution."""
        from placeopt.period.evaluate import period_value

        return period_value(problem, solution), ""

    def judge(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> list[str]:
        """Violations of the placement."""
        from placeopt.period.judge import period_violations

        return period_violations(problem, solution)

    def witness(
        self, problem: PlacementProblem, bound: int, method: str, seconds: float
    ) -> Witness:
        """A step from the supposition that all loads are smaller to a contradiction; see
        `placeopt.period.bounds.congestion`.
        """
        from placeopt.period.bounds.congestion import period_witness

        return period_witness(problem, bound, method, seconds)


PERIOD = Period()
