"""Run a pipeline solver by name and build its Result."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, SolverError
from placeopt.schedules.validate import pipeline_violations
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from placeopt.model.result import Result
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule
    from placeopt.solving.solver import OnProgress
    from placeopt.solving.tracker import Tracker

DEFAULT_SECONDS = 60.0


def schedule_result(
    problem: PipelineProblem,
    solver: str | Any = "repetend",
    *,
    micro_batches: int | None = None,
    memory: Any = None,
    seconds: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Result[PipelineSchedule]:
    """Schedule `problem` and return the Result (see `schedule` for the parameters)."""
    if micro_batches is not None:
        problem = problem.replace(micro_batches=micro_batches)
    if memory is not None:
        problem = problem.with_capacity(memory)
    chosen = make_solver(solver, "pipeline", **options) if isinstance(solver, str) else solver
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    return chosen.solve(problem, Budget(seconds=seconds, evaluations=evaluations), seed=seed, on_progress=on_progress)


def schedule(
    problem: PipelineProblem,
    solver: str | Any = "repetend",
    *,
    micro_batches: int | None = None,
    memory: Any = None,
    seconds: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> PipelineSchedule:
    """Schedule the micro-batches of a pipeline problem.

    Parameters
    ----------
    solver : a registered name (`repetend`, `tessel`, `time-optimal`, `1f1b`, ...) or a solver object.
    micro_batches, memory : replace those of the problem (one capacity for every device, or one per device).
    seconds : time limit, 60 unless given.
    options : fields of the solver's dataclass, such as `size=3` for `repetend`.

    Raises
    ------
    InputError
        If the solver does not fit the problem, the memory limit is proved infeasible, or nothing was found.

    Examples
    --------
    >>> from placeopt.schedules.problem import load_pipeline
    >>> schedule(load_pipeline("shape:V?devices=4&memory=4"), micro_batches=128).makespan
    524
    """
    result = schedule_result(
        problem,
        solver,
        micro_batches=micro_batches,
        memory=memory,
        seconds=seconds,
        evaluations=evaluations,
        seed=seed,
        on_progress=on_progress,
        **options,
    )
    if result.solution is None:
        raise InputError(f"solver '{result.solver}' found no schedule of '{result.problem}': {result.message}")
    return result.solution


@functools.cache
def warm_up() -> None:
    """Load the compiled kernels and the solver library once, outside every timed region."""
    from ortools.sat.python import cp_model

    from placeopt.schedules.completion import justify
    from placeopt.schedules.device_tree import DeviceTree
    from placeopt.schedules.evaluate import compact
    from placeopt.schedules.shapes import shape

    problem = shape("V", devices=1)
    justify(problem, compact(problem, problem.heads[None, :]))
    DeviceTree(shape("V", devices=2).with_capacity(2)).decide(8)
    cp_model.CpSolver().solve(cp_model.CpModel())


def finish_pipeline(
    tracker: Tracker[Any], schedule: PipelineSchedule | None, *, message: str = "", status: str | None = None
) -> Result[PipelineSchedule]:
    """Judge the schedule with the independent validator and build the Result; its value is ticks per micro-batch."""
    problem = tracker.problem
    if schedule is None:
        tracker.solution = tracker.value = None
        return tracker.result(status=status or "unknown", message=message)
    violations = pipeline_violations(problem, schedule.start)
    if violations:
        raise SolverError(f"solver '{tracker.solver}' returned an invalid schedule: {violations[0]}")
    tracker.raise_bound(schedule.period if schedule.period_status == "optimal" else schedule.period_bound, schedule.bound_method)
    return tracker.result(solution=schedule, objective=schedule.period,  # type: ignore[arg-type]
        message=message)
