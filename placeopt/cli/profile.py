"""`placeopt profile`: measure the ops of a model, or read what a profiler measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from placeopt.cli import common
from placeopt.cli.problem import GraphOptions
from placeopt.instances.op_cost_file import OpCosts, read_costs, write_costs
from placeopt.model.errors import ExecutionError, InputError
from placeopt.model.graph import OpGraph


def profile_command(
    model: Annotated[
        str, Argument(help="ONNX file, .pt2 archive or torch:FILE.py:NAME.", show_default=False)
    ],
    out: Annotated[Path, Option("--out", "-o", help="Cost file to write (JSON).")] = Path(
        "costs.json"
    ),
    trace: Annotated[
        Path | None, Option(help="Read this trace instead: ONNX Runtime, Kineto or Chakra (JSON).")
    ] = None,
    repeat: Annotated[int, Option(min=1, help="Executions to measure; the median is used.")] = 10,
    threads: Annotated[int, Option(min=1, help="Threads inside an operator.")] = 1,
    device: Annotated[str, Option(help="torch: cpu or cuda:0.")] = "cpu",
    kind: Annotated[
        str | None,
        Option(
            "--device-kind",
            help="Kind of device that was measured, as clusters name it: cpu, A100, ...",
        ),
    ] = None,
    inputs: Annotated[Path | None, Option(help="ONNX: .npz file of the inputs.")] = None,
    keep: Annotated[
        Path | None, Option("--keep-trace", help="Where to write the profiler's own trace.")
    ] = None,
    dim: common.Dim = None,
    trip_count: common.TripCount = None,
    format: common.Format = None,
    json: common.Json = False,
) -> None:
    """Measure every op of a model and write a cost file for `--costs`.

    Example: `placeopt profile torch:model.py:make --out costs.json`
    """
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "6"
    )  # else torch's profiler tells of its starts and ends
    for option, path in (("--out", out), ("--keep-trace", keep)):
        common.out_file(path, option, model, trace, inputs)
    graph, _ = GraphOptions(model, None, format, dim=dim, trip_count=trip_count).graph()
    try:
        if trace is not None:
            costs = read_costs(trace, graph, kind)
        else:
            how = {"repeat": repeat, "threads": threads, "keep": keep}
            costs = _measure(model, graph, how, device, kind, common.dims(dim), inputs)
    except ExecutionError as error:
        raise InputError(str(error)) from error
    try:
        write_costs(out, costs)
    finally:  # a full disk does not hide the outcome
        if json:
            common.print_json(
                {
                    "file": str(out),
                    "kind": costs.kind,
                    "counts": costs.counts(),
                    "seconds": sum(costs.seconds.values()),
                }
            )
        else:
            _print_costs(graph, costs)
    if not json:
        print(f"wrote {out}")


def _measure(
    model: str,
    graph: OpGraph,
    how: dict[str, Any],
    device: str,
    kind: str | None,
    dims: dict[str, int],
    inputs: Path | None,
) -> OpCosts:
    from placeopt.exports.export import alias_of
    from placeopt.programs.onnx_program import is_onnx_program, onnx_program
    from placeopt.programs.torch_program import is_torch_program, torch_program
    from placeopt.runtime.onnx_sessions import feeds_of
    from placeopt.runtime.profile_model import onnx_op_seconds, torch_op_seconds

    if is_torch_program(model):
        if inputs is not None:
            raise InputError(
                "--inputs is for ONNX models; a torch module brings its example inputs"
            )
        program = torch_program(model)
        return torch_op_seconds(
            program, graph, alias_of(model, graph, program), kind=kind or "", device=device, **how
        )
    if is_onnx_program(model):
        if device != "cpu":
            raise InputError(
                f"--device: ONNX models are profiled on the CPU, received '{device}'; give --trace "
                "for other devices"
            )
        onnx = onnx_program(model)
        return onnx_op_seconds(onnx, feeds_of(onnx, dims, inputs), graph, kind=kind or "cpu", **how)
    raise InputError(
        f"'{model}': expected a model that can be run (torch:FILE.py:NAME, .pt2 or .onnx); "
        "give --trace for what a profiler measured"
    )


def _print_costs(graph: OpGraph, costs: OpCosts) -> None:
    """Print the dearest ops and what is known of all."""
    say = common.say
    total = sum(costs.seconds.values())
    view = common.table("op", "type", "time", "share", "known")
    kinds = dict(zip(graph.op_names, graph.op_types, strict=True))
    # Ops that the table has
    shown = 12
    for name in sorted(costs.seconds, key=lambda name: -costs.seconds[name])[:shown]:
        seconds = costs.seconds[name]
        view.add_row(
            name,
            kinds.get(name, ""),
            common.time_text(seconds, 1.0),
            f"{100 * seconds / max(total, 1e-300):.1f} %",
            costs.how[name],
        )
    say(view)
    counts = ", ".join(f"{count} {word}" for word, count in costs.counts().items())
    say(
        f"{len(costs.seconds)} ops on {costs.kind}: {counts}; {common.time_text(total, 1.0)} one "
        "after the other"
    )
    if costs.device is not None:
        device = costs.device
        say(
            f"fitted: {common.count_text(device.peak_flops)}flop/s, "
            f"{common.bytes_text(device.memory_bandwidth)}/s, "
            f"{common.time_text(device.launch_overhead, 1.0)} per op"
        )
