"""The period of a pipeline schedule as an objective: ticks per micro-batch in the steady state, a rational."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from placeopt.model.bound import BoundReport
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import Finished, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule


class PipelinePeriod:
    """Ticks between two micro-batches of the steady state (initiation interval); a Fraction where K > 1."""

    name: ClassVar[str] = "period"
    kind: ClassVar[str] = "pipeline"
    default_solver: ClassVar[str] = "repetend"
    comparison: ClassVar[tuple[str, ...]] = ("repetend",)
    ordered: ClassVar[bool] = False
    prover: ClassVar[str] = ""
    baseline: ClassVar[str] = ""
    drawn: ClassVar[bool] = False

    def default_queue(self, solution: PipelineSchedule) -> str:
        """Return "": there is no choice of execution."""
        return ""

    def impossible(self, problem: PipelineProblem) -> str:
        """Why no schedule can exist; the solvers prove memory infeasible."""
        return ""

    def evaluate_batch(
        self, problem: Any, devices: ArrayLike, priorities: ArrayLike | None = None, *, threads: int | None = None
    ) -> NDArray[np.int64]:
        """Refuse: a pipeline schedule is no row of devices."""
        raise InputError(f"problem '{problem.name}' is a pipeline: its schedules are evaluated one by one")

    def value(
        self, problem: PipelineProblem, solution: PipelineSchedule, queue: str | None = None
    ) -> tuple[int, str]:
        """Period per micro-batch of a schedule."""
        violations = self.judge(problem, solution)
        if violations:
            raise InfeasiblePlacementError(violations[0])
        return cast("int", solution.period), ""

    def judge(self, problem: PipelineProblem, solution: PipelineSchedule, queue: str | None = None) -> list[str]:
        """Violations of the schedule."""
        from placeopt.schedules.validate import pipeline_violations

        return pipeline_violations(problem, solution.start)

    def finish(self, problem: PipelineProblem, solution: PipelineSchedule, queue: str | None = None) -> Finished:
        """Value and judge a schedule."""
        violations = self.judge(problem, solution)
        return Finished(None if violations else cast("int", solution.period), "", tuple(violations))

    def bounds(
        self, problem: PipelineProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove lower bounds on the period per micro-batch, for every number of micro-batches per repetend."""
        from placeopt.schedules.bounds import best_bound

        value, method = best_bound(problem)
        return BoundReport(cast("int", value), method, {method: int(np.ceil(float(value)))})

    def text(self, problem: PipelineProblem, value: float | None) -> str:
        """Return a period as a time."""
        return time_text(None if value is None else float(value) * problem.tick_seconds)


PIPELINE_PERIOD = PipelinePeriod()
