"""`placeopt shard`: a layout for every op and weight of a model on a mesh of devices, with its
proven gap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from placeopt.cli import common
from placeopt.cli.problem import GraphOptions
from placeopt.exports.sharded import FILES, dtensor_program_file
from placeopt.io.serialize import result_fields, save
from placeopt.model.errors import InputError
from placeopt.model.files import Data, csv_text, write_text
from placeopt.model.objective import objective_of
from placeopt.model.result import Result
from placeopt.model.sizes import parse_bytes
from placeopt.programs.onnx_program import is_onnx_program, onnx_program, stored_sizes
from placeopt.programs.torch_program import TorchProgram, attribute, is_torch_program, torch_program
from placeopt.sharding.from_model import ShardingModel, sharding_model
from placeopt.sharding.layout_table import (
    ParameterLayout,
    collectives,
    input_layouts,
    layout_rows,
    megatron_layout,
    parameter_layouts,
    summarised,
    torch_parameter_layouts,
)

DEFAULT_CLUSTER = "8xA100"


def shard_command(
    source: common.Source,
    mesh: Annotated[
        str,
        Option(
            "--mesh",
            "-m",
            help="Sizes of the mesh axes, such as 2x4; the last axis lies within a host.",
        ),
    ] = "2x4",
    cluster: Annotated[
        str, Option("--cluster", "-c", help="Devices of the mesh, in order.")
    ] = DEFAULT_CLUSTER,
    training: Annotated[
        bool, Option("--training", help="Count forward and backward pass.")
    ] = False,
    memory_limit: common.MemoryLimit = None,
    seconds: common.Seconds = 10.0,
    seed: common.Seed = 0,
    format: common.Format = None,
    dim: common.Dim = None,
    trip_count: common.TripCount = None,
    to: Annotated[
        str | None, Option(help="Write layouts that run: dtensor (torch) or jax; with --out.")
    ] = None,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Shard a model: choose how to split every op and weight over a mesh, with a proven gap.

    A torch module or archive gets the rules of torch.distributed.tensor (DTensor). With
    `--to dtensor` the file runs the module's calls in the layouts that were chosen: the collectives
    of a forward pass are those that were priced. Other sources get rules read off the shapes.

    Example: `placeopt shard gen:llama?layers=1 --mesh 2x4 --cluster 8xA100 --training`
    """
    from placeopt.api import solve
    from placeopt.instances.clusters import make_cluster
    from placeopt.sharding.layouts import parse_mesh

    if to is not None and (to not in FILES or out is None):
        raise InputError(
            f"--to: expected {' or '.join(FILES)}, and --out FOLDER, received --to {to}"
            f"{'' if out else ' without --out'}"
        )
    folder = common.out_folder(out)
    graph, _ = GraphOptions(source, None, format, dim=dim, trip_count=trip_count).graph()
    limit = None if memory_limit is None else min(parse_bytes(memory_limit, "--memory-limit"))
    program = torch_program(source) if is_torch_program(source) else None
    model = sharding_model(
        graph,
        make_cluster(cluster),
        parse_mesh(mesh),
        training=training,
        memory=limit,
        program=program,
    )
    with common.search_progress(model.problem, json) as (announce, show):
        announce("sharding")
        result = solve(model.problem, seconds=seconds, seed=seed, on_progress=show)
    rows, layouts = [], None
    if result.solution is not None:
        rows = layout_rows(model, result.solution)
        layouts = _parameters(source, model, result.solution, program, to)
    data = _summary(model, result, rows, layouts)
    try:
        if folder is not None:
            data["files"] = _write(folder, model, result, rows)
            data["files"] += _write_parameters(folder, model, result, layouts, to, program)
    finally:  # a full disk does not hide the outcome
        if json:
            common.print_json(data)
        else:
            _print(model, result, data)
    raise Exit(int(result.solution is None))


def _parameters(
    source: str, model: ShardingModel, solution: Any, given: TorchProgram | None, to: str | None
) -> list[ParameterLayout] | None:
    """Return the layout of every parameter by its name; where the source tells no names, None, or
    a refusal if a framework's file was asked for.
    """
    if model.calls is not None:
        return torch_parameter_layouts(model, solution)
    if given is not None:
        tensors = {name: attribute(given.graph_module, name) for name in given.program.weights}
        stored = {
            name: (tuple(map(int, x.shape)), x.numel() * x.element_size())
            for name, x in tensors.items()
        }
        return parameter_layouts(model, solution, given.program, stored)
    if is_onnx_program(source):
        found = onnx_program(source)
        return parameter_layouts(model, solution, found.program, stored_sizes(found))
    if to is not None:
        raise InputError(
            f"--to {to}: '{source}' names no parameters; give a torch module, a .pt2 archive "
            "or an ONNX file"
        )
    return None


def _write_parameters(
    folder: Path,
    model: ShardingModel,
    result: Result[Any],
    layouts: list[ParameterLayout] | None,
    to: str | None,
    program: TorchProgram | None,
) -> list[str]:
    """Write the layouts by parameter, and the file that a framework runs."""
    from placeopt.experiments.studies import write_csv

    if layouts is None:
        return []
    path = folder / "parameters.csv"
    write_csv(path, [row.row() for row in layouts])
    if to is None:
        return [str(path)]
    name, text = FILES[to]
    assert result.solution is not None
    if to == "dtensor" and program is not None and model.calls is not None:
        words = dtensor_program_file(layouts, model, result.solution, program)
    else:
        inputs = input_layouts(model, result.solution)
        words = text(layouts, inputs, [axis.size for axis in model.axes])
    return [str(path), str(write_text(folder / name, words))]


def _summary(
    model: ShardingModel,
    result: Result[Any],
    rows: list[Data],
    layouts: list[ParameterLayout] | None,
) -> Data:
    from placeopt.sharding.evaluate import total_cost, usage_profile

    problem, reference = model.problem, megatron_layout(model)
    objective: Any = objective_of(problem)
    details: Data = {}
    moved: Data = {}
    if result.solution is not None:
        details = objective.details(problem, result.solution)
        moved = {"collectives": collectives(model, result.solution)}
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
        "parameters": [row.row() for row in layouts or ()],
        **moved,
    }


def _write(folder: Path, model: ShardingModel, result: Result[Any], rows: list[Data]) -> list[str]:
    """Write problem and result as JSON and the table as CSV; return the paths."""
    columns = ["op", "type", "strategy", "torch", "jax", "bytes"]
    table = [columns, *([row[key] for key in columns] for row in rows)]
    paths = [
        save(model.problem, folder / "problem.json"),
        save(result, folder / "result.json"),
        write_text(folder / "layouts.csv", csv_text(table)),
    ]
    return [str(path) for path in paths]


def _print(model: ShardingModel, result: Result[Any], data: Data) -> None:
    say, problem = common.say, model.problem
    text = objective_of(problem).text
    if result.solution is None:
        say(f"{result.status}: {result.message}")
        return
    say(_table(data))
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
    counts = [f"{count} {kind.replace('_', '-')}" for kind, count in data["collectives"].items()]
    say(f"collectives of a forward pass: {', '.join(counts) or 'none'}")
    other = data["megatron"]
    fits = "" if other["usage_peak"] <= problem.usage_limit else ", which does not fit"
    say(
        f"Megatron's layout: {text(problem, other['value'])}, "
        f"{common.bytes_text(other['usage_peak'])} per device{fits}"
    )
    for path in data.get("files", []):
        say(f"wrote {path}")


def _table(data: Data) -> Any:
    """Return the layouts by parameter, else by op and weight, equal ones of all layers in a row."""
    view = common.table("", "layouts", "torch placements", "jax", "per device")
    # Most rows on the screen; `--out` writes all of them
    most_rows = 40
    for row in summarised(data["parameters"] or data["table"], most_rows):
        view.add_row(
            *(str(row[key]) for key in ("name", "count", "torch", "jax")),
            common.bytes_text(row["bytes"]),
        )
    return view


def describe_problem(source: str, *, json: bool) -> None:
    """Print the sizes of a sharding file, what its reductions leave, and its quick bound."""
    import numpy as np

    from placeopt.api import load
    from placeopt.sharding.compact import condense, draft_of
    from placeopt.solving.bound import bound

    problem = load(source)
    draft, fits = draft_of(problem)
    report = bound(problem, seconds=0.0)
    data: Data = {
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
        common.say(f"{key.replace('_', ' ')}: {value}")
