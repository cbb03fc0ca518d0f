"""Schedule a pipeline problem in one call: a thin convenience over `placeopt.solving.run`."""

from __future__ import annotations

import functools
from typing import Any

from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.errors import InputError
from placeopt.model.result import Budget, Result
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.completion import justify
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.evaluate import compact
from placeopt.schedules.period_walk import tighten
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.shapes import shape
from placeopt.schedules.solution import PipelineSchedule, relaunch
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run
from placeopt.solving.tracker import OnProgress


def schedule_result(
    problem: PipelineProblem,
    solver: str | Any = "repetend",
    *,
    micro_batches: int | None = None,
    memory: Any = None,
    seconds: float = 60.0,
    seed: int = 0,
    initial: PipelineSchedule | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Result[PipelineSchedule]:
    """Schedule the micro-batches of a pipeline problem.

    Parameters
    ----------
    solver : a registered name (`repetend`, `tessel`, `time-optimal`, `1f1b`, ...) or a solver
    object.
    micro_batches, memory : replace those of the problem (one capacity for every device, or one per
    device).
    seconds : time limit.
    initial : a schedule to start from; the result is never worse.
    on_progress : called with time, evaluations, incumbent and bound while the solver runs.
    options : fields of the solver's dataclass, such as `size=3` for `repetend`.

    Raises
    ------
    InputError
        If the solver does not fit the problem (Refused), or an option is wrong.
    """
    if micro_batches is not None:
        problem = problem.replace(micro_batches=micro_batches)
    if memory is not None:
        problem = problem.with_capacity(memory)
    chosen = make_solver(solver, "pipeline", **options) if isinstance(solver, str) else solver
    warm_up()
    return run(
        problem,
        chosen,
        Budget(seconds=seconds),
        seed=seed,
        initial=initial,
        on_progress=on_progress,
    )


def schedule(
    problem: PipelineProblem, solver: str | Any = "repetend", **settings: Any
) -> PipelineSchedule:
    """Return the schedule alone; see `schedule_result` for the settings.

    Raises
    ------
    InputError
        If the solver does not fit the problem, the memory limit is proved infeasible, or nothing
        was found.

    Examples
    --------
    >>> from placeopt.schedules import load_pipeline
    >>> schedule(load_pipeline("shape:V?devices=4&memory=4"), micro_batches=128).makespan
    524
    """
    result = schedule_result(problem, solver, **settings)
    if result.solution is None:
        raise InputError(
            f"solver '{result.solver}' found no schedule of '{result.problem}': {result.message}"
        )
    return result.solution


@functools.cache
def warm_up() -> None:
    """Load the compiled kernels and the solver library once, outside every timed region."""
    from ortools.sat.python import cp_model

    problem = shape("V", devices=1)
    justify(problem, compact(problem, problem.heads[None, :]))
    tighten(problem, relaunch(problem, problem.heads[None, :]))
    best_bound(shape("V", devices=2).with_capacity(2))
    DeviceTree(shape("V", devices=2).with_capacity(2)).decide(8)
    solve_interruptibly(cp_solver(workers=1), cp_model.CpModel())
