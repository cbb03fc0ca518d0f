"""`placeopt convert`: from any graph that can be read to any format that can be written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placeopt.cli import common
from placeopt.cli.problem import ProblemOptions
from placeopt.model.errors import InputError


def convert_command(
    source: common.Source,
    file: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="The same as --out.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write; its suffix chooses the format.", show_default=False
        ),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="json, dot, graphml, csv or stg.")] = None,
    cluster: common.ClusterOption = None,
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    trip_count: common.TripCount = None,
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
    if cluster is not None:
        problem = ProblemOptions(
            source, cluster, format=format, training=training, dim=dim, trip_count=trip_count
        ).load()
        save(problem, out)
        data = {
            "file": str(out),
            "ops": problem.num_ops,
            "devices": problem.num_devices,
            "hash": problem.hash,
        }
    else:
        from placeopt.instances.readers import write_graph

        graph, _ = common.load_graph(
            source, format=format, training=training, dim=dim, trip_count=trip_count
        )
        write_graph(graph, out, to)
        data = {"file": str(out), "ops": graph.num_ops, "tensors": graph.num_tensors}
    if json:
        common.print_json(data)
    else:
        common.say(f"wrote {out} ({data['ops']} ops)")
