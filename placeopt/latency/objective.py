"""The latency as an objective: the end of one sample where accelerators run convex slots."""

from __future__ import annotations

from numpy.typing import ArrayLike

from placeopt.latency.bounds import METHODS, latency_bounds
from placeopt.model.arrays import Ints
from placeopt.model.placement import Placement
from placeopt.model.placement_objective import PlacementObjective
from placeopt.model.problem import PlacementProblem


class Latency(PlacementObjective):
    """The end of one sample where accelerators run convex slots, in ticks."""

    __slots__ = ()

    name = "latency"
    default_solver = "cp-sat"
    ordered = True
    prover = "cp-sat"
    kernels = ("latency", "ranks")
    bounded = "the latency"
    bound_methods = METHODS
    prove = staticmethod(latency_bounds)
    ends_at_upper = True
    peaks = False

    def evaluate_batch(
        self,
        problem: PlacementProblem,
        devices: ArrayLike,
        priorities: ArrayLike | None = None,
        *,
        threads: int | None = None,
    ) -> Ints:
        """Values of many placements; `priorities` are the slots (0 by default)."""
        from placeopt.latency.evaluate import latency_batch

        return latency_batch(problem, devices, priorities)

    def value(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> tuple[int, str]:
        """Return the latency of a placement; there is no choice of execution."""
        from placeopt.latency.evaluate import latency_value

        return latency_value(problem, solution), ""

    def judge(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> list[str]:
        """Violations of the placement."""
        from placeopt.latency.judge import latency_violations

        return latency_violations(problem, solution)


LATENCY = Latency()
