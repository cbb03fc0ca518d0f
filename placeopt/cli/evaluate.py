"""`placeopt evaluate`: the value of a solution made anywhere, and what its devices do."""

from __future__ import annotations

from typing import Any

from placeopt.cli import common
from placeopt.cli.model_notes import over_limit
from placeopt.cli.problem import ProblemOptions, takes_problem
from placeopt.model.errors import InfeasiblePlacementError
from placeopt.model.objective import objective_of


@takes_problem
def evaluate_command(
    options: ProblemOptions,
    placement: common.SolutionFile,
    queue: common.Queue = None,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Simulate a placement: makespan, busy time and peak memory of every device.

    Example: `placeopt evaluate onnx:inception_v1 placement.csv --cluster 4xA100`
    """
    from placeopt.certify.verify import read_solution

    folder = common.out_folder(out)
    problem = options.load()
    objective = objective_of(problem)
    given, named, _ = read_solution(problem, options.given(problem, placement))
    queue = queue or named
    finished = objective.finish(problem, given, queue or objective.default_queue(given) or None)
    if finished.value is None:
        raise InfeasiblePlacementError(f"the solution is not valid: {finished.violations[0]}")
    data: dict[str, Any] = {
        "problem": problem.name,
        "objective": objective.name,
        "value": finished.value,
        "seconds": float(finished.value) * problem.tick_seconds,
        "queue": finished.queue,
    }
    execution = _execution(problem, given, queue)
    if execution is not None:
        data |= {
            "makespan": execution.makespan,
            "queue": execution.queue,
            "busy": execution.busy,
            "peak_memory": execution.peak_memory,
            "transfers": len(execution.transfers),
        }
        if folder is not None:
            from placeopt.plotting.files import write_pictures

            paths = write_pictures(folder, problem, given, execution.queue)
            data["files"] = list(map(str, paths))
    data[objective.name] = data["value"]
    data["warning"] = over_limit(problem, given, queue)
    if json:
        common.print_json(data)
        return
    common.say(
        f"{objective.name} {objective.text(problem, finished.value)}  ({finished.value} ticks)"
    )
    if execution is not None:
        _print_execution(problem, given, execution)
    if data["warning"]:
        common.say(data["warning"], markup=False)


def _execution(problem: Any, placement: Any, queue: str | None) -> Any:
    """Return one run of a placement, None of a solution that is none."""
    from placeopt.makespan.evaluate import evaluate

    if not hasattr(placement, "device"):
        return None
    return evaluate(problem, placement, queue or None, check=False)


def _print_execution(problem: Any, placement: Any, run: Any) -> None:
    say = common.say
    tick = problem.tick_seconds
    say(
        f"one run takes {common.time_text(run.makespan, tick)}  ({run.makespan} ticks, {run.queue} "
        f"execution, {len(run.transfers)} transfers)"
    )
    view = common.table("device", "ops", "busy", "utilisation", "peak memory")
    for d, name in enumerate(problem.device_names):
        view.add_row(
            name,
            str(int((placement.device == d).sum())),
            common.time_text(int(run.busy[d]), tick),
            f"{100 * run.busy[d] / max(1, run.makespan):.1f} %",
            common.bytes_text(int(run.peak_memory[d])),
        )
    say(view)
