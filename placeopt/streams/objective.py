"""The number of blocked jobs of a stream as an objective."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from placeopt.model.objective import JudgedObjective
from placeopt.streams.bound import METHODS, hopeless_jobs, offline_bound
from placeopt.streams.judge import blocked_jobs, judge_episode
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import Episode


class Blocking(JudgedObjective):
    """Blocked jobs: refused, not placed, late, or still running at the horizon."""

    __slots__ = ()

    name = "blocking"
    kind = "jobs"
    default_solver = "feasible-first"
    comparison = ("max-degree", "min-degree", "feasible-first")
    bounded = "a job stream"
    bound_methods = ("deadline", *METHODS)
    solution_class = Episode
    expected = "a solution of a job stream is an Episode"
    violations = staticmethod(judge_episode)
    measured = staticmethod(blocked_jobs)

    def usual_methods(self, seconds: float) -> tuple[str, ...]:
        """Return the bounds that any stream allows: "deadline" at once, "lp" unless `seconds` is
        0.
        """
        return ("deadline", "lp") if seconds > 0 else ("deadline",)

    def prove(
        self, problem: JobStreamProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield lower bounds on the jobs that any policy blocks.

        Raises
        ------
        InputError
            If a method is not applicable.
        """
        end, best = time.perf_counter() + seconds, 0
        for method in methods:
            if method == "deadline":
                value = hopeless_jobs(problem)
            elif upper is None or best < upper:
                value = offline_bound(
                    problem, method=method, seconds=max(0.1, end - time.perf_counter())
                ).blocked
            else:
                continue
            best = max(best, value)
            yield method, value

    def text(self, problem: JobStreamProblem, value: float | None) -> str:
        """Return the number of blocked jobs and the blocking rate."""
        return (
            "-"
            if value is None
            else f"{int(value)} of {problem.num_jobs} blocked ({value / problem.num_jobs:.4f})"
        )


BLOCKING = Blocking()
