"""`placeopt run`: execute a placement for real, and compare with the simulation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common

if TYPE_CHECKING:
    from placeopt.graph import OpGraph
    from placeopt.runtime import Measurement


def run_command(
    source: common.Source,
    placement: Annotated[
        str, typer.Argument(help="JSON or CSV: op,device[,priority]; or solver:NAME.", show_default=False)
    ],
    cluster: common.ClusterOption = None,
    runtime: Annotated[str, typer.Option("--runtime", help="dask or serial.")] = "dask",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Devices of the runtime; default: the cluster's, or 2.")
    ] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="Address of a running Dask scheduler.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Executions; the median counts.")] = 5,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare results with a serial execution.")] = True,
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    seed: common.Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for run.json.")] = None,
    json: common.Json = False,
) -> None:
    """Execute a placement on real workers: measured and simulated makespan, and the timeline of every op.

    Example: `placeopt run "gen:chain-mm?size=2000" solver:heft --workers 2 --repeat 5 --out run/`
    """
    from placeopt.errors import ExecutionError

    try:
        data = _run(source, placement, cluster, runtime, workers, scheduler, repeat, check, format, training, dim, seed, out)
    except ExecutionError as error:
        print(f"placeopt: error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if json:
        common.print_json(data)
        return
    say = common.console().print
    measured, simulated = data["measured"], data["simulated"]
    say(f"measured  {common.time_text(measured['makespan'], 1.0)}  (median of {repeat}, +-{100 * measured['spread']:.1f} %)")
    say(f"simulated {common.time_text(simulated['seconds'], 1.0)}  ({100 * simulated['relative_error']:+.1f} %)")
    for path in data.get("files", []):
        say(f"wrote {path}")


def _run(
    source: str, placement: str, cluster: str | None, runtime: str, workers: int | None, scheduler: str | None,
    repeat: int, check: bool, format: str | None, training: bool, dim: list[str] | None, seed: int, out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    from placeopt.cost_model import lower
    from placeopt.evaluation import evaluate
    from placeopt.runtime.simulation import with_ranks

    graph, bundled = common.load_graph(source, format=format, training=training, dim=dim)
    folder = common.out_folder(out)
    devices = bundled
    if cluster is not None:
        from placeopt.instances.clusters import make_cluster

        devices = make_cluster(cluster)
    count = workers or (devices.num_devices if devices is not None else 2)
    with open_runtime(runtime, count, scheduler) as engine:
        devices = devices or engine.cluster()
        problem = lower(graph, devices)
        given = with_ranks(problem, _placement(placement, problem, seed))
        measurement = engine.run(graph, given, repeat=repeat, check=check)
    simulated = evaluate(problem, given, "priority", check=False)
    seconds = simulated.makespan * problem.tick_seconds
    data: dict[str, Any] = {
        "problem": problem.name,
        "runtime": measurement.runtime,
        "measured": describe(measurement, graph),
        "simulated": {
            "makespan": simulated.makespan,
            "seconds": seconds,
            "relative_error": seconds / measurement.makespan - 1,
        },
    }
    if folder is not None:
        from placeopt.files import write_text

        path = folder / "run.json"
        write_text(path, common.json_text(data))
        data["files"] = [str(path)]
    return data


def open_runtime(name: str, count: int, scheduler: str | None) -> Any:
    """Return a runtime as a context manager."""
    from contextlib import nullcontext

    from placeopt.errors import InputError
    from placeopt.runtime import DaskRuntime, SerialRuntime

    if scheduler is not None and name != "dask":
        raise InputError(f"--scheduler: only the runtime 'dask' has one, received --runtime {name}")
    if name == "dask":
        return DaskRuntime(count, scheduler)
    if name == "serial":
        return nullcontext(SerialRuntime(count))
    raise InputError(f"--runtime: expected dask or serial, received '{name}'")


def _placement(placement: str, problem: Any, seed: int) -> Any:
    """Read a placement file, or run the solver that is named instead."""
    from placeopt.placement_file import read_placement

    if not placement.startswith("solver:"):
        return read_placement(placement, problem)
    from placeopt.api import solve
    from placeopt.errors import InputError

    result = solve(problem, solver=placement.removeprefix("solver:"), seed=seed)
    if result.solution is None:
        raise InputError(f"{placement}: found no placement of '{problem.name}' ({result.message or result.status})")
    return result.solution


def describe(measurement: Measurement, graph: OpGraph) -> dict[str, Any]:
    """Return a measurement for JSON; the timeline is that of the execution nearest to the median."""
    typical = measurement.typical
    rows = measurement.transfers[measurement.transfers[:, 0] == typical]
    return {
        "makespan": measurement.makespan,
        "makespans": measurement.makespans,
        "spread": measurement.spread,
        "wall": measurement.wall,
        "checked": measurement.checked,
        "timeline": [
            {"op": name, "device": measurement.device_names[d], "start": start, "finish": finish}
            for name, d, start, finish in zip(
                graph.op_names, measurement.placement.device.tolist(), measurement.start[typical].tolist(),
                measurement.finish[typical].tolist(), strict=True,
            )
        ],
        "transfers": [
            {"tensor": int(t), "destination": measurement.device_names[int(d)], "start": start, "finish": finish}
            for _, t, d, start, finish in rows.tolist()
        ],
    }  # fmt: skip
