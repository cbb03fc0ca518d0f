"""`placeopt plot`: pictures of a placement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placeopt.cli import common


def plot_command(
    source: common.Source,
    placement: Annotated[Path, typer.Argument(help="JSON or CSV: op,device[,priority].", show_default=False)],
    cluster: common.ClusterOption = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="PNG, SVG or PDF of the Gantt picture, or trace .json.")
    ] = Path("gantt.png"),
    queue: Annotated[str | None, typer.Option("--queue", help="fifo, priority or planned.")] = None,
    format: common.Format = None,
    training: common.Training = False,
    dim: common.Dim = None,
    json: common.Json = False,
) -> None:
    """Draw the Gantt picture of a placement, or write its Chrome trace.

    Example: `placeopt plot onnx:inception_v1 out/placement.json --cluster 4xA100 --out gantt.svg`
    """
    import json as json_module

    from placeopt.io.placement_file import read_placement, read_queue
    from placeopt.makespan.evaluate import evaluate
    from placeopt.model.errors import InputError
    from placeopt.model.files import write_text
    from placeopt.solving.bound import bound

    if out.suffix.lower() not in (".png", ".svg", ".pdf", ".json"):
        raise InputError(f"--out: expected a file ending in .png, .svg, .pdf or .json, received '{out}'")
    problem = common.load_problem(source, cluster, format=format, training=training, dim=dim)
    given = read_placement(placement, problem)
    if queue is None and given.priority is not None:
        queue = read_queue(placement)
    run = evaluate(problem, given, queue, check=False)
    if out.suffix.lower() == ".json":
        from placeopt.plotting.trace import chrome_trace

        write_text(out, json_module.dumps(chrome_trace(run)) + "\n")
    else:
        from placeopt.plotting.files import write_figure
        from placeopt.plotting.gantt import gantt_figure

        write_figure(gantt_figure(run, lower_bound=bound(problem, seconds=0.0).value), out)
    if json:
        common.print_json({"file": str(out), "makespan": run.makespan})
    else:
        common.console().print(f"wrote {out}")
