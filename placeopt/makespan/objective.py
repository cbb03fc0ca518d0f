"""The makespan as an objective: the end of the last op of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from placeopt.makespan.judge import placement_violations, schedule_violations
from placeopt.model.arrays import Ints
from placeopt.model.bound import BoundReport, Witness
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.model.feasibility import impossible_reason
from placeopt.model.objective import INFEASIBLE, Finished
from placeopt.model.placement import Placement
from placeopt.model.placement_objective import PlacementObjective
from placeopt.model.problem import PlacementProblem


class Makespan(PlacementObjective):
    """End of the last op in ticks; ops and transfers run as docs/concepts.md says."""

    __slots__ = ()

    name = "makespan"
    default_solver = "portfolio"
    comparison = (
        "single-device",
        "round-robin",
        "m-etf",
        "heft",
        "etf",
        "critical-path",
        "edge-zeroing",
        "portfolio",
    )
    ordered = True
    prover = "cp-sat"
    baseline = "single-device"
    drawn = True
    kernels = ("evaluator", "ranks")
    bound_kernels = ("bounds",)

    def impossible(self, problem: PlacementProblem) -> str:
        """Why no schedule can be valid, "" unless a simple reason proves it."""
        return impossible_reason(problem)

    def default_queue(self, solution: Placement) -> str:
        """Queues sorted by priority where there are priorities, else first in, first out."""
        return "fifo" if solution.priority is None else "priority"

    def evaluate_batch(
        self,
        problem: PlacementProblem,
        devices: ArrayLike,
        priorities: ArrayLike | None = None,
        *,
        threads: int | None = None,
    ) -> Ints:
        """Makespans of many placements; INFEASIBLE where a constraint is broken."""
        from placeopt.makespan.evaluate import evaluate_batch

        return evaluate_batch(problem, devices, priorities, threads=threads)

    def value(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> tuple[int, str]:
        """Makespan and execution: that of `queue`, else the fastest of fifo, priority and
        planned.
        """
        from placeopt.makespan.evaluate import best_queue, evaluate

        if queue:
            evaluation = evaluate(problem, solution, queue)
            return evaluation.makespan, evaluation.queue
        violations = placement_violations(problem, solution)
        if violations:
            raise InfeasiblePlacementError(violations[0])
        value, fastest = best_queue(problem, solution)
        if value == INFEASIBLE:
            raise InfeasiblePlacementError(
                (self.judge(problem, solution) or ["no execution of it is feasible"])[0]
            )
        return value, fastest

    def judge(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> list[str]:
        """Violations of the placement, or of its schedule under `queue`."""
        from placeopt.makespan.evaluate import evaluate

        violations = placement_violations(problem, solution)
        if violations:
            return violations
        try:
            schedule = evaluate(problem, solution, queue or None, check=False).schedule
        except InfeasiblePlacementError as error:  # planned orders that wait for each other
            return [str(error)]
        return schedule_violations(problem, schedule)

    def finish(
        self, problem: PlacementProblem, solution: Placement, queue: str | None = None
    ) -> Finished:
        """Value and judge a placement in its fastest execution, or under `queue`."""
        try:
            value, queue = self.value(problem, solution, queue)
        except InfeasiblePlacementError as error:
            return Finished(
                None, queue or "", tuple(self.judge(problem, solution, queue) or [str(error)])
            )
        violations = self.judge(problem, solution, queue)
        return Finished(None if violations else value, queue, tuple(violations))

    def bounds(
        self,
        problem: PlacementProblem,
        seconds: float,
        methods: Sequence[str] | None = None,
        upper: int | None = None,
    ) -> BoundReport:
        """Prove lower bounds on the makespan; see `placeopt.makespan.bounds`."""
        from placeopt.makespan.bounds import bound

        report = bound(problem, seconds=seconds, methods=methods, upper=upper)
        return replace(report, value=self.least_value(problem, report.value))

    def quick_bounds(
        self, problem: PlacementProblem, seconds: float, upper: int | None = None
    ) -> BoundReport:
        """Lower bounds that take little time."""
        return self.bounds(problem, seconds, upper=upper)

    def witness(
        self, problem: PlacementProblem, bound: int, method: str, seconds: float
    ) -> Witness:
        """Steps from the supposition that a schedule is shorter to a contradiction; see
        `placeopt.makespan.proof`.
        """
        from placeopt.makespan.proof.witness import makespan_witness

        return makespan_witness(problem, bound, method, seconds)

    def timetable(
        self, problem: PlacementProblem, solution: Placement, queue: str
    ) -> dict[str, Any]:
        """Start of every op, and [tensor, destination, start] of every transfer."""
        from placeopt.makespan.evaluate import evaluate

        evaluation = evaluate(problem, solution, queue or None)
        return {
            "start": evaluation.start.tolist(),
            "transfers": evaluation.transfers[:, :3].tolist(),
        }


MAKESPAN = Makespan()
