"""`placeopt evaluate`, `bound` and `verify`: judge a placement made anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from placeopt.cli import common

PlacementFile = Annotated[Path, typer.Argument(help="JSON or CSV: op,device[,priority].", show_default=False)]
Queue = Annotated[str | None, typer.Option("--queue", help="fifo, priority or planned.")]


def evaluate_command(
    source: common.Source,
    placement: PlacementFile,
    cluster: common.ClusterOption = None,
    queue: Queue = None,
    objective: common.Objective = "makespan",
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    memory: common.Memory = None,
    contiguity: common.Contiguity = None,
    pipeline: common.Pipeline = None,
    slots: common.Slots = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the Gantt picture and the trace.")] = None,
    json: common.Json = False,
) -> None:
    """Execute a placement: makespan, busy time and peak memory of every device.

    Example: `placeopt evaluate onnx:inception_v1 placement.csv --cluster 4xA100`
    """
    from placeopt.io.placement_file import read_placement, read_queue
    from placeopt.makespan.evaluate import evaluate
    from placeopt.model.errors import InfeasiblePlacementError

    problem = common.load_problem(
        source, cluster, objective=objective, format=format, training=training, dim=dim, memory=memory,
        contiguity=contiguity, pipeline=pipeline, slots=slots,
    )  # fmt: skip
    given = read_placement(placement, problem)
    if queue is None and given.priority is not None:
        queue = read_queue(placement)
    run = evaluate(problem, given, queue)
    data: dict[str, Any] = {
        "problem": problem.name,
        "makespan": run.makespan,
        "seconds": run.makespan * problem.tick_seconds,
        "queue": run.queue,
        "busy": run.busy,
        "peak_memory": run.peak_memory,
        "transfers": len(run.transfers),
    }
    if objective == "period":
        from placeopt.period.evaluate import period_value, period_violations

        if broken := period_violations(problem, given):
            raise InfeasiblePlacementError(f"the placement is not valid: {broken[0]}")
        data["period"] = period_value(problem, given)
    folder = common.out_folder(out)
    if folder is not None:
        from placeopt.plotting.files import write_pictures

        data["files"] = [str(path) for path in write_pictures(folder, problem, given, run.queue)]
    if json:
        common.print_json(data)
        return
    from rich.table import Table

    say = common.console().print
    tick = problem.tick_seconds
    if objective == "period":
        say(f"period {common.time_text(data['period'], tick)}  ({data['period']} ticks per sample)")
    say(f"makespan {common.time_text(run.makespan, tick)}  ({run.makespan} ticks, {run.queue} execution, "
        f"{len(run.transfers)} transfers)")  # fmt: skip
    view = Table("device", "ops", "busy", "utilisation", "peak memory", box=None, pad_edge=False)
    counts = [int((given.device == d).sum()) for d in range(problem.num_devices)]
    for d, name in enumerate(problem.device_names):
        view.add_row(
            name, str(counts[d]), common.time_text(int(run.busy[d]), tick),
            f"{100 * run.busy[d] / max(1, run.makespan):.1f} %", common.bytes_text(int(run.peak_memory[d])),
        )  # fmt: skip
    say(view)


def bound_command(
    source: common.Source,
    cluster: common.ClusterOption = None,
    seconds: common.Seconds = 10.0,
    objective: common.Objective = "makespan",
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    memory: common.Memory = None,
    contiguity: common.Contiguity = None,
    pipeline: common.Pipeline = None,
    slots: common.Slots = None,
    json: common.Json = False,
) -> None:
    """Prove a lower bound: no placement on this cluster is faster.

    Example: `placeopt bound gen:llama-block --cluster uniform:4 --seconds 30`
    """
    from placeopt.solving.bound import bound

    problem = common.load_problem(
        source, cluster, objective=objective, format=format, training=training, dim=dim, memory=memory,
        contiguity=contiguity, pipeline=pipeline, slots=slots,
    )  # fmt: skip
    report = bound(problem, seconds=seconds)
    data = {
        "problem": problem.name,
        "objective": problem.objective,
        "value": report.value,
        "seconds": report.value * problem.tick_seconds,
        "method": report.method,
        "bounds": report.bounds,
        "infeasible": report.infeasible,
        "runtime": report.seconds,
    }
    if json:
        common.print_json(data)
        return
    from rich.table import Table

    say = common.console().print
    if report.infeasible:
        say(f"infeasible: {report.infeasible}")
        return
    say(f"{problem.objective} >= {common.time_text(report.value, problem.tick_seconds)}  "
        f"({report.value} ticks, proved by {report.method})")  # fmt: skip
    view = Table("method", "ticks", "time", box=None, pad_edge=False)
    for method, value in report.bounds.items():
        view.add_row(method, str(value), common.time_text(value, problem.tick_seconds))
    say(view)


def verify_command(
    source: common.Source,
    placement: Annotated[Path | None, typer.Argument(help="JSON or CSV: op,device[,priority].")] = None,
    cluster: common.ClusterOption = None,
    seconds: common.Seconds = 10.0,
    queue: Queue = None,
    objective: common.Objective = "makespan",
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    memory: common.Memory = None,
    contiguity: common.Contiguity = None,
    pipeline: common.Pipeline = None,
    slots: common.Slots = None,
    out: Annotated[Path | None, typer.Option("--out", help="File for the certificate (JSON).")] = None,
    recheck: Annotated[Path | None, typer.Option("--recheck", help="Certificate to check again.")] = None,
    json: common.Json = False,
) -> None:
    """Verify a placement made elsewhere: violations, or a certificate with its gap to the proven bound.

    Exit code 1 if the placement is not valid. Example:
    `placeopt verify onnx:inception_v1 learned.csv --cluster 4xA100 --seconds 60 --out certificate.json`
    """
    from placeopt.certify.certificate import recheck as check_again
    from placeopt.certify.certificate import verify
    from placeopt.model.errors import InputError
    from placeopt.model.files import write_text

    if placement is None:
        raise InputError("verify: expected a placement file after the source (JSON or CSV with op,device[,priority])")
    problem = common.load_problem(
        source, cluster, objective=objective, format=format, training=training, dim=dim, memory=memory,
        contiguity=contiguity, pipeline=pipeline, slots=slots,
    )  # fmt: skip
    if recheck is not None:
        differences = check_again(recheck, problem, placement, seconds=seconds)
        if json:
            common.print_json({"certificate": str(recheck), "holds": not differences, "differences": differences})
        else:
            say = common.console().print
            say("the certificate holds" if not differences else "the certificate does not hold:")
            for line in differences:
                say(f"  {line}")
        raise typer.Exit(1 if differences else 0)
    report = verify(problem, placement, seconds=seconds, queue=queue)
    data = report.to_dict()
    if out is not None:
        import json as json_module

        write_text(out, json_module.dumps(data, indent=1) + "\n")
    if json:
        common.print_json(data)
    else:
        say = common.console().print
        tick = problem.tick_seconds
        if not report.feasible:
            say(f"not valid: {len(report.violations)} violation(s)")
            for line in report.violations[:20]:
                say(f"  {line}")
            if len(report.violations) > 20:
                say(f"  ... and {len(report.violations) - 20} more")
        else:
            word = "optimal" if report.status == "optimal" else "valid"
            say(f"{word}: {problem.objective} {common.time_text(report.value, tick)} ({report.queue or 'loads'})")
            say(f"proven lower bound {common.time_text(report.lower_bound, tick)} by {report.bound_method}; "
                f"gap {common.percent(report.gap)}")  # fmt: skip
        if out is not None:
            say(f"certificate: {out}")
    raise typer.Exit(0 if report.feasible else 1)
