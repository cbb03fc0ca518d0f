"""The latency as an objective: the end of one sample where accelerators run convex slots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.bound import BoundReport
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import Finished, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


class Latency:
    """The end of one sample where accelerators run convex slots, in ticks."""

    name: ClassVar[str] = "latency"
    kind: ClassVar[str] = "placement"
    default_solver: ClassVar[str] = "cp-sat"
    comparison: ClassVar[tuple[str, ...]] = ("cp-sat",)
    ordered: ClassVar[bool] = True
    prover: ClassVar[str] = "cp-sat"
    baseline: ClassVar[str] = ""
    drawn: ClassVar[bool] = False

    def default_queue(self, solution: Placement) -> str:
        """Return "": there is no choice of execution."""
        return ""

    def impossible(self, problem: PlacementProblem) -> str:
        """Why no placement can be valid; solvers prove it where there is no simple reason."""
        return ""

    def evaluate_batch(
        self, problem: PlacementProblem, devices: ArrayLike, priorities: ArrayLike | None = None, *,
        threads: int | None = None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Values of many placements; `priorities` are the slots (0 by default)."""
        from placeopt.latency.evaluate import latency_batch

        return latency_batch(problem, devices, priorities)

    def value(self, problem: PlacementProblem, solution: Placement, queue: str | None = None) -> tuple[int, str]:
        """Latency of a placement; there is no choice of execution."""
        from placeopt.latency.evaluate import latency_value

        return latency_value(problem, solution), ""

    def judge(self, problem: PlacementProblem, solution: Placement, queue: str | None = None) -> list[str]:
        """Violations of the placement."""
        from placeopt.latency.evaluate import latency_violations

        return latency_violations(problem, solution)

    def finish(self, problem: PlacementProblem, solution: Placement, queue: str | None = None) -> Finished:
        """Value and judge a placement."""
        violations = self.judge(problem, solution)
        if violations:
            return Finished(None, "", tuple(violations))
        try:
            return Finished(self.value(problem, solution)[0], "", ())
        except InfeasiblePlacementError as error:
            return Finished(None, "", (str(error),))

    def bounds(
        self, problem: PlacementProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove lower bounds on the latency."""
        from placeopt.latency.bounds import latency_bounds
        from placeopt.makespan.bounds.analysis import Analysis

        started = time.perf_counter()
        found = {"critical-path": Analysis(problem, seconds=seconds).run("critical-path"), **latency_bounds(problem, seconds)}
        if methods is not None:
            for name in methods:
                if name not in found:
                    raise InputError(f"bound method '{name}' is not known for latency; known: {', '.join(found)}")
            found = {name: found[name] for name in methods}
        method = max(found, key=lambda name: found[name]) if found else "none"
        return BoundReport(found.get(method, 0), method, found, time.perf_counter() - started)

    def text(self, problem: PlacementProblem, value: float | None) -> str:
        """Return a latency as a time."""
        return time_text(None if value is None else float(value) * problem.tick_seconds)


LATENCY = Latency()
