"""The number of blocked jobs of a stream as an objective."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.bound import BoundReport, check_methods
from placeopt.model.objective import Finished, PlainObjective
from placeopt.streams.bound import METHODS, hopeless_jobs, offline_bound
from placeopt.streams.judge import blocked_jobs, judge_episode
from placeopt.streams.simulator import Episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.streams.problem import JobStreamProblem


class Blocking(PlainObjective):
    """Blocked jobs: refused, not placed, late, or still running at the horizon."""

    name: ClassVar[str] = "blocking"
    kind: ClassVar[str] = "jobs"
    default_solver: ClassVar[str] = "feasible-first"
    comparison: ClassVar[tuple[str, ...]] = ("max-degree", "min-degree", "feasible-first")

    def judge(self, problem: JobStreamProblem, solution: Episode, queue: str | None = None) -> list[str]:
        """Violations of an episode in words, found without the simulator."""
        if not isinstance(solution, Episode):
            return [f"a solution of a job stream is an Episode, received {type(solution).__name__}"]
        return judge_episode(problem, solution)

    def finish(self, problem: JobStreamProblem, solution: Episode, queue: str | None = None) -> Finished:
        """Judge an episode and count the jobs that it blocks."""
        violations = tuple(self.judge(problem, solution))
        return Finished(None if violations else blocked_jobs(problem, solution), "", violations)

    def bounds(
        self, problem: JobStreamProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove lower bounds on the jobs that any policy blocks: "deadline" at once, "lp" unless `seconds` is 0.

        Raises
        ------
        InputError
            If a method is unknown or not applicable.
        """
        chosen = (("deadline", "lp") if seconds > 0 else ("deadline",)) if methods is None else tuple(methods)
        check_methods("a job stream", chosen, ("deadline", *METHODS))
        found: dict[str, int] = {}
        started = time.perf_counter()
        end = started + seconds
        for method in chosen:
            if method == "deadline":
                found[method] = hopeless_jobs(problem)
            elif upper is None or max(found.values(), default=0) < upper:
                left = max(0.1, end - time.perf_counter())
                found[method] = offline_bound(problem, method=method, seconds=left).blocked
        return BoundReport.of(found, started)

    def text(self, problem: JobStreamProblem, value: float | None) -> str:
        """Return the number of blocked jobs and the blocking rate."""
        return "-" if value is None else f"{int(value)} of {problem.num_jobs} blocked ({value / problem.num_jobs:.4f})"


BLOCKING = Blocking()
