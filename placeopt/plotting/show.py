"""What a person or a notebook shows of a Result: a picture and a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InputError, needed_package
from placeopt.model.files import Data
from placeopt.model.objective import objective_of
from placeopt.model.placement import Placement
from placeopt.model.result import Result
from placeopt.plotting.gantt import gantt_figure
from placeopt.plotting.jobs import plot_occupancy
from placeopt.plotting.pipeline import draw_pipeline
from placeopt.plotting.style import new_figure, time_unit
from placeopt.schedules.solution import PipelineSchedule
from placeopt.streams.simulator import Episode


def plot_result(result: Result[Any], problem: Any) -> Any:
    """Return a matplotlib figure: the schedule in time where the solution is one, else value and
    bound over time.

    Raises
    ------
    InputError
        If the result has no solution and no trace.
    """
    solution = result.solution
    if isinstance(solution, PipelineSchedule):
        return draw_pipeline(solution)
    if isinstance(solution, Episode):
        return plot_occupancy(solution)
    if isinstance(solution, Placement) and objective_of(problem).drawn:
        run = evaluate(problem, solution, result.queue or None, check=False)
        return gantt_figure(run, lower_bound=result.lower_bound)
    return convergence_figure(result)


def convergence_figure(result: Result[Any]) -> Any:
    """Return a matplotlib figure of the best value and the proven bound over the seconds of the
    search.

    Raises
    ------
    InputError
        If the result has no trace.
    """
    if not result.trace:
        raise InputError(f"the result of '{result.solver}' has no trace to draw")
    points = result.trace
    unit, scale = time_unit(
        float(max(p.incumbent or p.lower_bound for p in points)), result.tick_seconds
    )
    figure = new_figure(7, 3.5)
    axes = figure.add_subplot()
    seconds = [p.seconds for p in points] + [max(result.runtime, points[-1].seconds)]
    bound = [float(p.lower_bound) for p in points]
    best = [np.nan if p.incumbent is None else float(p.incumbent) for p in points]
    for label, values in (("best value", best), ("proven lower bound", bound)):
        axes.step(seconds, np.array([*values, values[-1]]) / scale, where="post", label=label)
    axes.set_xlabel("seconds of the search")
    axes.set_ylabel(f"{result.objective_name} ({unit})")
    axes.set_title(f"{result.solver} on {result.problem}", fontsize=10)
    axes.legend(fontsize=8)
    return figure


def result_frame(result: Result[Any], problem: Any) -> Any:
    """Return a pandas DataFrame: a row per op, or per block and micro-batch of a pipeline.

    Raises
    ------
    InputError
        If the solution is of another kind, or there is none.
    MissingExtraError
        If pandas is not installed.
    """
    pandas = needed_package("pandas", "frame", "a table of a result")
    solution = result.solution
    if isinstance(solution, Placement):
        return pandas.DataFrame(_placement_columns(result, problem, solution))
    if isinstance(solution, PipelineSchedule):
        return pandas.DataFrame(_pipeline_columns(solution))
    what = "no solution" if solution is None else f"a {type(solution).__name__}"
    raise InputError(
        f"to_frame: expected a placement or a pipeline's schedule, the result of '{result.solver}' "
        f"has {what}"
    )


def _placement_columns(result: Result[Any], problem: Any, placement: Placement) -> Data:
    columns: Data = {
        "op": problem.op_names,
        "type": problem.op_types,
        "device": [problem.device_names[d] for d in placement.device.tolist()],
    }
    if placement.priority is not None:
        columns["priority"] = placement.priority
    if objective_of(problem).drawn:
        run = evaluate(problem, placement, result.queue or None, check=False)
        columns |= {
            "start_seconds": run.start * problem.tick_seconds,
            "finish_seconds": run.finish * problem.tick_seconds,
        }
    return columns


def _pipeline_columns(schedule: PipelineSchedule) -> Data:
    problem, n = schedule.problem, schedule.micro_batches
    start = schedule.start.ravel()
    devices = [
        ", ".join(problem.device_names[d] for d in problem.devices_of(b).tolist())
        for b in range(problem.num_blocks)
    ]
    return {
        "micro_batch": np.repeat(np.arange(n), problem.num_blocks),
        "block": list(problem.block_names) * n,
        "devices": devices * n,
        "start_seconds": start * problem.tick_seconds,
        "finish_seconds": (start + np.tile(problem.span, n)) * problem.tick_seconds,
    }
