"""`placeopt plot`: pictures of a placement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placeopt.cli import common
from placeopt.cli.problem import ProblemOptions, takes_problem
from placeopt.model.errors import InputError
from placeopt.model.files import write_text

SUFFIXES = (".png", ".svg", ".pdf", ".json")


@takes_problem
def plot_command(
    options: ProblemOptions,
    placement: common.SolutionFile,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="PNG, SVG or PDF of the Gantt picture, or trace .json."),
    ] = Path("gantt.png"),
    queue: common.Queue = None,
    json: common.Json = False,
) -> None:
    """Draw the Gantt picture of a placement, or write its Chrome trace.

    Example: `placeopt plot onnx:inception_v1 out/placement.json --cluster 4xA100 --out gantt.svg`
    """
    from placeopt.certify.verify import read_solution
    from placeopt.makespan.evaluate import evaluate
    from placeopt.model.placement import Placement

    if out.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--out: expected a file ending in {', '.join(SUFFIXES)}, received '{out}'"
        )
    common.out_file(out)
    problem = options.load()
    given, named, _ = read_solution(problem, placement)
    if not isinstance(given, Placement):
        raise InputError(
            f"'{placement}' is no placement; draw a pipeline with placeopt schedule --out FOLDER"
        )
    run = evaluate(problem, given, queue or named or None, check=False)
    if out.suffix.lower() == ".json":
        import json as json_module

        from placeopt.plotting.trace import chrome_trace

        write_text(out, json_module.dumps(chrome_trace(run)) + "\n")
    else:
        from placeopt.plotting.files import write_figure
        from placeopt.plotting.gantt import gantt_figure
        from placeopt.solving.bound import bound

        lower = bound(problem.replace(objective="makespan"), seconds=0.0).value
        write_figure(gantt_figure(run, lower_bound=lower), out)
    if json:
        common.print_json({"file": str(out), "makespan": run.makespan})
    else:
        common.say(f"wrote {out}")
