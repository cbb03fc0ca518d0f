"""`placeopt shard`: a layout for every op and weight of a model on a mesh of devices, with its
proven gap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common

if TYPE_CHECKING:
    from placeopt.model.result import Result
    from placeopt.sharding.from_model import ShardingModel

DEFAULT_CLUSTER = "8xA100"


def shard_command(
    source: common.Source,
    mesh: Annotated[
        str,
        typer.Option(
            "--mesh",
            "-m",
            help="Sizes of the mesh axes, such as 2x4; the last axis lies within a host.",
        ),
    ] = "2x4",
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="Devices of the mesh, in order.")
    ] = DEFAULT_CLUSTER,
    training: Annotated[
        bool, typer.Option("--training", help="Count forward and backward pass.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option("--memory", min=0, help="GiB per device, if not the device's.")
    ] = None,
    seconds: common.Seconds = 10.0,
    seed: common.Seed = 0,
    format: common.Format = None,
    dim: common.Dim = None,
    trip_count: common.TripCount = None,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Shard a model: choose how to split every op and weight over a mesh, with a proven gap.

    Example: `placeopt shard gen:llama?layers=1 --mesh 2x4 --cluster 8xA100 --training`
    """
    from placeopt.api import solve
    from placeopt.instances.clusters import make_cluster
    from placeopt.sharding.from_model import sharding_model
    from placeopt.sharding.layout_table import layout_rows, megatron_layout
    from placeopt.sharding.layouts import parse_mesh

    folder = common.out_folder(out)
    graph, _ = common.load_graph(
        source, format=format, training=False, dim=dim, trip_count=trip_count
    )
    limit = None if memory is None else int(memory * 2**30)
    model = sharding_model(
        graph, make_cluster(cluster), parse_mesh(mesh), training=training, memory=limit
    )
    with common.search_progress(model.problem, json) as (announce, show):
        announce("sharding")
        result = solve(model.problem, seconds=seconds, seed=seed, on_progress=show)
    rows = [] if result.solution is None else layout_rows(model, result.solution)
    data = _summary(model, result, megatron_layout(model), rows)
    if folder is not None:
        data["files"] = _write(folder, model, result, rows)
    if json:
        common.print_json(data)
    else:
        _print(model, result, data)
    raise typer.Exit(0 if result.solution is not None else 1)


def _summary(
    model: ShardingModel, result: Result[Any], reference: Any, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    from placeopt.io.serialize import result_fields
    from placeopt.model.objective import objective_of
    from placeopt.sharding.evaluate import total_cost, usage_profile

    problem = model.problem
    objective: Any = objective_of(problem)
    details = {} if result.solution is None else objective.details(problem, result.solution)
    return {
        **result_fields(result),
        **details,
        "table": rows,
        "training": model.training,
        "mesh": [axis.size for axis in model.axes],
        "megatron": {
            "value": total_cost(problem, reference),
            "usage_peak": usage_profile(problem, reference).peak,
        },
    }


def _write(
    folder: Path, model: ShardingModel, result: Result[Any], rows: list[dict[str, Any]]
) -> list[str]:
    """Write problem and result as JSON and the table as CSV; return the paths."""
    import csv
    import io

    from placeopt.io.serialize import save
    from placeopt.model.files import write_text

    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, ["op", "type", "strategy", "torch", "jax", "bytes"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    paths = [
        save(model.problem, folder / "problem.json"),
        save(result, folder / "result.json"),
        write_text(folder / "layouts.csv", stream.getvalue()),
    ]
    return [str(path) for path in paths]


def _print(model: ShardingModel, result: Result[Any], data: dict[str, Any]) -> None:
    from rich.table import Table

    from placeopt.model.objective import objective_of

    say, problem = common.console().print, model.problem
    text = objective_of(problem).text
    if result.solution is None:
        say(f"{result.status}: {result.message}", markup=False)
        return
    view = Table(
        "op",
        "type",
        "strategy per axis",
        "torch placements",
        "jax",
        "per device",
        box=None,
        pad_edge=False,
    )
    for row in data["table"]:
        view.add_row(
            *(
                str(row[key]).replace("[", "\\[")
                for key in ("op", "type", "strategy", "torch", "jax")
            ),
            common.bytes_text(row["bytes"]),
        )
    say(view)
    word = "step" if model.training else "forward pass"
    say(
        f"\n{word}: {text(problem, result.value)}, proven lower bound "
        f"{text(problem, result.lower_bound)} "
        f"({result.bound_method}), gap {common.percent(result.gap)}"
    )
    kept = sum(row["bytes"] for row in data["table"] if row["type"] == "weight")
    what = "weights, gradients and optimizer state" if model.training else "weights"
    limit = f"of {common.gib_text(problem.usage_limit)}" if problem.limited else "(no limit)"
    say(
        f"memory per device in GiB: {common.gib_text(data['usage_peak'])} at the peak {limit}: "
        f"{what} {common.gib_text(kept)}, activations {common.gib_text(data['usage_peak'] - kept)}"
    )
    other = data["megatron"]
    fits = (
        ""
        if not problem.limited or other["usage_peak"] <= problem.usage_limit
        else ", which does not fit"
    )
    say(
        f"Megatron's layout: {text(problem, other['value'])}, "
        f"{common.bytes_text(other['usage_peak'])} per device{fits}"
    )
    for path in data.get("files", []):
        say(f"wrote {path}")


def describe_problem(source: str, *, json: bool) -> None:
    """Print the sizes of a sharding file, what its reductions leave, and its quick bound."""
    import numpy as np

    from placeopt.api import load
    from placeopt.sharding.compact import condense, draft_of
    from placeopt.solving.bound import bound

    problem = load(source)
    draft, fits = draft_of(problem)
    report = bound(problem, seconds=0.0)
    data: dict[str, Any] = {
        "problem": problem.name,
        "nodes": problem.num_nodes,
        "edges": problem.num_edges,
        "strategies": problem.num_strategies,
        "edge_costs": len(problem.edge_cost),
        "usage_limit": problem.usage_limit if problem.limited else None,
        "mean_strategies": float(np.mean(problem.num_choices)),
        "bounds": report.bounds,
        "infeasible": report.infeasible,
    }
    if not report.infeasible:
        left = condense(draft, fits).compact
        data["reduced"] = {
            "nodes": left.num_nodes,
            "edges": len(left.edge),
            "strategies": len(left.cost),
            "edge_costs": len(left.table),
            "time_points": len(left.capacity),
        }
    if json:
        common.print_json(data)
        return
    for key, value in data.items():
        common.console().print(f"{key.replace('_', ' ')}: {value}", markup=False)
