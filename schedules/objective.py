"""The period of a pipeline schedule as an objective: ticks per micro-batch in the steady state, a
rational.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, cast

from placeopt.model.bound import BoundReport, Witness, check_methods
from placeopt.model.errors import InputError
from placeopt.model.objective import Objective
from placeopt.schedules.bounds import memory_shortage, period_bounds, relaxations, work_between_ends
from placeopt.schedules.judge import (
    makespan_of,
    makespan_of_pattern,
    pattern_violations,
    pipeline_violations,
)
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule


class PipelinePeriod(Objective):
    """Ticks per micro-batch of the steady state (initiation interval); a Fraction where several
    share a pattern.

    The value of a schedule is the period of the pattern that it repeats, judged as an infinite
    schedule of its own. A schedule without a pattern repeats as a whole: its value is the longest
    time of a device from its first start to its last end, per micro-batch. No average is taken for
    a period. That not one micro-batch fits into memory takes a search, which solvers and `bounds`
    make.
    """

    __slots__ = ()

    name = "period"
    kind = "pipeline"
    default_solver = "repetend"
    kernels = ("pipelines",)

    def judge(
        self, problem: PipelineProblem, solution: PipelineSchedule, queue: str | None = None
    ) -> list[str]:
        """Violations of the finite schedule, of its pattern, and of what joins them."""
        if not isinstance(solution, PipelineSchedule):
            raise InputError(
                f"expected a schedule of pipeline '{problem.name}', received "
                f"{type(solution).__name__}"
            )
        if solution.problem.hash != problem.hash:
            return [f"it is a schedule of another problem ('{solution.problem.name}')"]
        if len(solution.start) != problem.micro_batches:
            return [
                f"it has {len(solution.start)} micro-batches; '{problem.name}' has "
                f"{problem.micro_batches}"
            ]
        pattern = solution.pattern
        found = pipeline_violations(problem, solution.start)
        found += pattern_violations(problem, pattern.period, pattern.start)
        if found:
            return found
        total = makespan_of(problem, solution.start)
        repeated = makespan_of_pattern(
            problem, pattern.period, pattern.start, problem.micro_batches
        )
        if total > repeated:
            found.append(
                f"it takes {total} ticks, longer than its pattern repeated ({repeated} ticks)"
            )
        if total < solution.makespan_bound:
            found.append(
                f"it takes {total} ticks, below the bound of {solution.makespan_bound} that it "
                "claims"
            )
        if Fraction(pattern.period, len(pattern.start)) < solution.size_bound:
            found.append(
                f"its period is below the bound of {solution.size_bound} ticks that it claims"
            )
        return found

    def measured(self, problem: PipelineProblem, solution: PipelineSchedule) -> int:
        """Return the period of the pattern of a schedule, both of which were judged."""
        pattern = solution.pattern
        return _ticks(Fraction(pattern.period, len(pattern.start)))

    def bounds(
        self,
        problem: PipelineProblem,
        seconds: float,
        methods: Sequence[str] | None = None,
        upper: int | None = None,
    ) -> BoundReport:
        """Prove lower bounds on the period per micro-batch that hold for every number of
        micro-batches per pattern.
        """
        started = time.perf_counter()
        found = period_bounds(problem)
        check_methods("pipelines", methods, found)
        ticks = {
            name: _ticks(value)
            for name, value in found.items()
            if methods is None or name in methods
        }
        shortage = memory_shortage(problem, seconds) if seconds > 0 and upper is None else ""
        return BoundReport.of(ticks, started, shortage)

    def witness(self, problem: PipelineProblem, bound: Any, method: str, seconds: float) -> Witness:
        """Name the busiest device: the work bound, or less of it where `bound` is less."""
        busiest = int(problem.work.argmax())
        return Witness(min(bound, int(problem.work[busiest])), "load", {"device": busiest})

    def timetable(
        self, problem: PipelineProblem, solution: PipelineSchedule, queue: str
    ) -> dict[str, Any]:
        """Return the starts of all micro-batches from 0 on, the makespan, and the bound on it that
        the checker follows: work, heads and tails.
        """
        whole = relaxations(problem)[0]
        return {
            "start": (solution.start - solution.start.min()).tolist(),
            "makespan": makespan_of(problem, solution.start),
            "least": work_between_ends(whole, problem.micro_batches),
        }

    def proof_parts(
        self, problem: PipelineProblem, solution: PipelineSchedule, value: Any, witness: Witness
    ) -> dict[str, Any]:
        """Return the pattern as the solution: its value and bound are ticks of all its
        micro-batches.
        """
        pattern = solution.pattern
        return {
            "objective": "pipeline-period",
            "solution": {"period": pattern.period, "starts": pattern.start.tolist()},
            "value": pattern.period,
            "lower_bound": math.ceil(witness.bound * len(pattern.start)),
        }


def _ticks(value: Fraction) -> int:
    """Return a whole number of ticks as int; other values stay fractions, behind the type that
    objectives have.
    """
    return int(value) if value.denominator == 1 else cast("int", value)


PIPELINE_PERIOD = PipelinePeriod()
