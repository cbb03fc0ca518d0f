"""The period as an objective: the largest device load of a steady-state pipeline."""

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


class Period:
    """The largest device load of a steady-state pipeline, in ticks."""

    name: ClassVar[str] = "period"
    kind: ClassVar[str] = "placement"
    default_solver: ClassVar[str] = "ideal-dp"
    comparison: ClassVar[tuple[str, ...]] = ("linear-dp", "ideal-dp")
    ordered: ClassVar[bool] = False
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
        """Values of many placements; `priorities` are ignored."""
        from placeopt.period.evaluate import period_batch

        return period_batch(problem, devices)

    def value(self, problem: PlacementProblem, solution: Placement, queue: str | None = None) -> tuple[int, str]:
        """Period of a placement; there is no choice of execution."""
        from placeopt.period.evaluate import period_value

        return period_value(problem, solution), ""

    def judge(self, problem: PlacementProblem, solution: Placement, queue: str | None = None) -> list[str]:
        """Violations of the placement."""
        from placeopt.period.evaluate import period_violations

        return period_violations(problem, solution)

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
        """Prove lower bounds on the period."""
        from placeopt.makespan.bounds.analysis import Analysis
        from placeopt.period.bounds.combinatorial import period_bounds

        started = time.perf_counter()
        found = {"load": Analysis(problem, seconds=seconds).run("load"), **period_bounds(problem, seconds)}
        if methods is not None:
            for name in methods:
                if name not in found:
                    raise InputError(f"bound method '{name}' is not known for period; known: {', '.join(found)}")
            found = {name: found[name] for name in methods}
        method = max(found, key=lambda name: found[name]) if found else "none"
        return BoundReport(found.get(method, 0), method, found, time.perf_counter() - started)

    def text(self, problem: PlacementProblem, value: float | None) -> str:
        """Return a period as a time."""
        return time_text(None if value is None else float(value) * problem.tick_seconds)


PERIOD = Period()
