"""The number of blocked jobs of a stream as an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.bound import BoundReport
from placeopt.model.errors import InputError
from placeopt.model.objective import Finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from placeopt.streams.problem import JobStreamProblem
    from placeopt.streams.simulator import Episode


class Blocking:
    """Blocked jobs: refused, not placed, late, or still running at the horizon."""

    name: ClassVar[str] = "blocking"
    kind: ClassVar[str] = "jobs"
    default_solver: ClassVar[str] = "feasible-first"
    comparison: ClassVar[tuple[str, ...]] = ("max-degree", "min-degree", "feasible-first")
    ordered: ClassVar[bool] = False
    prover: ClassVar[str] = ""
    baseline: ClassVar[str] = ""
    drawn: ClassVar[bool] = False

    def default_queue(self, solution: Episode) -> str:
        """Return "": there is no choice of execution."""
        return ""

    def impossible(self, problem: JobStreamProblem) -> str:
        """Nothing is impossible: every job may be refused."""
        return ""

    def evaluate_batch(
        self, problem: Any, devices: ArrayLike, priorities: ArrayLike | None = None, *, threads: int | None = None
    ) -> NDArray[np.int64]:
        """Refuse: an episode is no row of devices."""
        raise InputError(f"problem '{problem.name}' is a job stream: policies are evaluated by simulation")

    def value(self, problem: JobStreamProblem, solution: Episode, queue: str | None = None) -> tuple[int, str]:
        """Blocked jobs of an episode."""
        return solution.blocked, ""

    def judge(self, problem: JobStreamProblem, solution: Episode, queue: str | None = None) -> list[str]:
        """Violations of the episode."""
        return []

    def finish(self, problem: JobStreamProblem, solution: Episode, queue: str | None = None) -> Finished:
        """Value and judge an episode."""
        return Finished(solution.blocked, "", ())

    def bounds(
        self, problem: JobStreamProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove a lower bound on the jobs that any policy blocks."""
        from placeopt.streams.bound import offline_bound

        found = offline_bound(problem, method="lp", seconds=max(seconds, 1.0))
        return BoundReport(found.blocked, found.method, {found.method: found.blocked})

    def text(self, problem: JobStreamProblem, value: float | None) -> str:
        """Return the number of blocked jobs and the blocking rate."""
        return "-" if value is None else f"{int(value)} of {problem.num_jobs} blocked ({value / problem.num_jobs:.4f})"


BLOCKING = Blocking()
