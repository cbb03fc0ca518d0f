"""`placeopt info`: what a person wants to know about a graph first; `placeopt convert`: from any
graph that can be read to any format that can be written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from placeopt.cli import common
from placeopt.cli.model_notes import control_note, cost_notes
from placeopt.cli.problem import GraphOptions, ProblemOptions, takes_options
from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError
from placeopt.model.files import Data
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem
from placeopt.plotting.graph import graph_figure, graph_statistics

DEFAULT_CLUSTER = "4xA100"


@takes_options
def info_command(
    options: GraphOptions,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="PNG, SVG or PDF: the graph if it is small, else its levels."),
    ] = None,
    json: common.Json = False,
) -> None:
    """Describe a graph: sizes, parallelism, communication, memory and quick bounds.

    Example: `placeopt info onnx:resnet50 --cluster 4xA100`
    """
    from placeopt.instances.clusters import make_cluster
    from placeopt.model.cost_model import lower
    from placeopt.sharding.contest_format import holds_sharding

    if out is not None:
        common.check_suffix(out, (".png", ".svg", ".pdf"))
    common.out_file(out)
    if holds_sharding(options.source):
        from placeopt.cli.shard import describe_problem

        describe_problem(options.source, json=json)
        return
    graph, bundled = options.graph()
    devices = (
        make_cluster(options.cluster)
        if options.cluster
        else bundled or make_cluster(DEFAULT_CLUSTER)
    )
    problem = lower(graph, devices)
    data = {
        **graph_statistics(graph),
        **_costs(problem),
        "cluster": devices.name or "of the file",
        "training_memory": _training_memory(graph, problem),
    }
    if out is not None:
        from placeopt.plotting.style import write_figure

        write_figure(graph_figure(graph), out)
        data["plot"] = str(out)
    if json:
        common.print_json(data)
    else:
        _print(graph, problem, data)


def _costs(problem: PlacementProblem) -> Data:
    """Return work, critical path, ratios and bounds of a graph on its cluster."""
    from placeopt.solving.bound import bound

    # Graphs beyond this many ops get only the bounds that take milliseconds, so that info stays
    # instant
    slow_bound_ops = 5_000
    quick = ("critical-path", "load") if problem.num_ops > slow_bound_ops else None
    report = bound(problem, seconds=0.0, methods=quick)
    work = int(problem.min_compute.sum())
    path = report.bounds.get("critical-path", 0)
    traffic, resident = int(problem.min_transfer.sum()), int(problem.resident.sum())
    return {
        "problem": problem.name,
        "devices": problem.num_devices,
        "tick_seconds": problem.tick_seconds,
        "work": work,
        "critical_path": path,
        "parallelism": work / path if path else None,
        "communication_to_computation": traffic / work if work else None,
        "resident_bytes": resident,
        "resident_per_device": -(-resident // problem.num_devices),
        "capacity": problem.capacity,
        "bounds": report.bounds,
        "infeasible": report.infeasible,
    }


def _training_memory(graph: OpGraph, problem: PlacementProblem) -> list[Data]:
    """Return the bytes of training by precision."""
    from placeopt.instances.training import training_memory

    return [
        {
            **common.told(need, "precision weights gradients"),
            "optimizer_states": need.states,
            **common.told(need, "activations total"),
            "per_device": -(-need.total // problem.num_devices),
        }
        for need in training_memory(graph)
    ]


def _print(graph: OpGraph, problem: PlacementProblem, data: Data) -> None:
    tick = problem.tick_seconds
    view = common.table(show_header=False)
    view.add_row("graph", graph.name)
    view.add_row("ops, tensors, edges", f"{data['ops']}, {data['tensors']}, {data['edges']}")
    view.add_row("depth, width", f"{data['depth']} levels, at most {data['width']} ops in one")
    view.add_row("parameters", common.count_text(data["parameters"]))
    view.add_row("flops", common.count_text(data["flops"]))
    view.add_row("op types", _types_text(data["op_types"]))
    for note in filter(None, (control_note(graph), *cost_notes(graph))):
        view.add_row("costs", note)
    view.add_row(f"on {data['cluster']}", f"{data['devices']} devices")
    view.add_row(
        "work, critical path",
        f"{common.time_text(data['work'], tick)}, {common.time_text(data['critical_path'], tick)}",
    )
    if data["parallelism"] is not None:
        view.add_row("parallelism", f"{data['parallelism']:.3g} (work / critical path)")
    if data["communication_to_computation"] is not None:
        view.add_row(
            "communication",
            f"{data['communication_to_computation']:.3g} x computation, each tensor sent once",
        )
    kind = "weights, gradients and optimizer state" if graph.backward.any() else "weights"
    view.add_row(
        "memory",
        f"{common.bytes_text(data['resident_bytes'])} of {kind}, "
        f"{common.bytes_text(data['resident_per_device'])} per device when spread evenly",
    )
    for need in data["training_memory"]:
        view.add_row(f"training, {need['precision']}", _training_text(need, problem))
    for method, value in data["bounds"].items():
        view.add_row(f"bound: {method}", common.time_text(value, tick))
    if data["infeasible"]:
        view.add_row("infeasible", data["infeasible"])
    common.say(view)


def _types_text(counts: dict[str, int]) -> str:
    """Return the most frequent types of ops, as many as fit into a line or two."""
    shown = 8
    words = [f"{count} {name or '?'}" for name, count in counts.items()]
    return ", ".join(words[:shown]) + (", ..." if len(words) > shown else "")


def _training_text(need: Data, problem: PlacementProblem) -> str:
    """Say what training needs, in GiB."""
    gib = common.gib_text
    saved = (
        "activations not counted"
        if need["activations"] is None
        else f"activations {gib(need['activations'])}"
    )
    least = min(problem.capacity.tolist())
    room = f", of {gib(least)}" if least < UNLIMITED else ""
    return (
        f"weights {gib(need['weights'])} + gradients {gib(need['gradients'])} + optimizer states "
        f"(Adam) {gib(need['optimizer_states'])} + {saved} = {gib(need['total'])} GiB; per device "
        f"{gib(need['per_device'])} GiB when spread evenly{room}"
    )


@takes_options
def convert_command(
    options: GraphOptions,
    file: Annotated[
        Path | None, Argument(metavar="[OUT]", help="The same as --out.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            "--out", "-o", help="File to write; its suffix chooses the format.", show_default=False
        ),
    ] = None,
    to: Annotated[str | None, Option(help="json, dot, graphml, csv or stg.")] = None,
    json: common.Json = False,
) -> None:
    """Convert a computation graph; with --cluster, write the placement problem (JSON).

    Example: `placeopt convert onnx:resnet50 --out resnet50.json`
    """
    from placeopt.io.serialize import save

    out = out or file
    if out is None:
        raise InputError("convert: expected the file to write: --out GRAPH.json")
    common.out_file(out)
    if options.cluster is not None:
        problem = ProblemOptions(**vars(options)).load()
        save(problem, out)
        data = {
            "file": str(out),
            "ops": problem.num_ops,
            "devices": problem.num_devices,
            "hash": problem.hash,
        }
    else:
        from placeopt.instances.readers import write_graph

        graph, _ = options.graph()
        write_graph(graph, out, to)
        data = {"file": str(out), "ops": graph.num_ops, "tensors": graph.num_tensors}
    if json:
        common.print_json(data)
    else:
        common.say(f"wrote {out} ({data['ops']} ops)")
