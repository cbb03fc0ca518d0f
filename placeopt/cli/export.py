"""`placeopt export`: a placement in the form that a framework loads."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from placeopt.cli import common
from placeopt.cli.problem import GraphOptions, takes_options
from placeopt.instances.clusters import make_cluster
from placeopt.io.placement_file import open_placement, placement_rows, read_placement, read_stages
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph


@takes_options
def export_command(
    options: GraphOptions,
    given: Annotated[
        Path | None,
        Argument(
            metavar="PLACEMENT",
            help="Placement (JSON or CSV: op,device[,priority]) or saved result.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str,
        Option(
            help="device-map, torch, torch-pipeline, onnxruntime, jax or csv.", show_default=False
        ),
    ] = "",
    out: Annotated[
        Path | None, Option("--out", "-o", help="File or folder to write.", show_default=False)
    ] = None,
    model_option: Annotated[
        str | None, Option("--model", hidden=True, help="The former place of MODEL.")
    ] = None,
    devices: Annotated[
        str | None, Option(help="The framework's names: cuda:0,cpu or gpu0=cuda:0,cpu=cpu.")
    ] = None,
    parameters: Annotated[
        Path | None,
        Option(
            help="device-map, jax: names of parameters that the ONNX file may have folded away "
            "(model.safetensors, its index, or a JSON list)."
        ),
    ] = None,
    schedule: Annotated[
        Path | None,
        Option(help="torch-pipeline: schedule.json or schedule.torch.csv of 'schedule'."),
    ] = None,
    micro_batches: Annotated[
        int | None,
        Option("--micro-batches", "-n", min=1, help="torch-pipeline: micro-batches of a step."),
    ] = None,
    solver: Annotated[
        str | None, Option("--solver", "-s", help="torch-pipeline: repetend (default), 1f1b, ...")
    ] = None,
    seconds: Annotated[
        float | None,
        Option("--seconds", "-t", min=0, help="torch-pipeline: time limit of the schedule."),
    ] = None,
    json: common.Json = False,
) -> None:
    """Export a placement: device map, torch module, pipeline stages, ONNX parts, JAX shardings or
    CSV.

    Example: `placeopt export torch:model.py:make out/placement.json --to device-map --out
    device_map.json`
    """
    from placeopt.exports.export import TARGETS, make, target
    from placeopt.model.cost_model import lower

    if model_option is not None:
        options, given = replace(options, source=model_option), Path(options.source)
    if given is None:
        raise InputError(
            f"export: expected the placement after the model: placeopt export {options.source} "
            "out/placement.json --to device-map --out device_map.json"
        )
    if not to:
        raise InputError(f"--to: expected one of {', '.join(TARGETS)}")
    target(to)
    if out is None:
        raise InputError("--out: expected the file or folder to write, as --out exported/")
    graph, bundled = options.graph()
    problem = lower(graph, cluster_of(given, options.cluster, bundled, graph))
    done = make(
        problem,
        read_placement(given, problem),
        to,
        model=options.source,
        devices=_framework_devices(devices),
        parameters=parameters,
        schedule=schedule,
        micro_batches=micro_batches,
        solver=solver,
        seconds=seconds,
        stage=read_stages(given, problem) if to == "torch-pipeline" else None,
    )
    files = [str(path) for path in done.write(out)]
    if json:
        common.print_json({"target": to, "files": files, "notes": list(done.notes)})
        return
    print(*done.notes, *(f"wrote {file}" for file in files), sep="\n")


def cluster_of(
    placement: Path, cluster: str | None, bundled: Cluster | None, graph: OpGraph
) -> Cluster:
    """Return the cluster that is named, else the one of the problem that the placement was made
    for.

    A placement that tells no problem brings the names of its devices; they are then alike.
    """
    if cluster is not None:
        return make_cluster(cluster)
    if bundled is not None:
        return bundled
    name, devices = _names_in_file(placement, set(graph.op_names))
    if name:
        try:
            return make_cluster(name)
        except InputError:
            pass
    if not devices:
        raise InputError(f"placement '{placement}': it does not tell its devices; give --cluster")
    if all(device.isdecimal() for device in devices):  # numbers of devices, not all of them used
        return make_cluster(f"uniform:{1 + int(devices[-1])}")
    return _equal_devices(devices)


def _names_in_file(path: Path, ops: set[str]) -> tuple[str, list[str]]:
    """Return the name of the cluster and the names of the devices that a placement file tells, in
    the order of their numbers; "" and [] if none.
    """
    where, text, data = open_placement(path)
    if data is None:
        rows: list[list[str]] = []
        with suppress(InputError):  # whoever reads the placement says what is wrong with it
            rows = [row for _, row in placement_rows(text, where)[1:] if len(row) > 1]
        return "", sorted({row[1].strip() for row in rows if row[0].strip() in ops}, key=_numbered)
    data = data if isinstance(data, dict) else {}
    problem, table = data.get("problem"), data.get("device")
    values = table.values() if isinstance(table, dict) else table if isinstance(table, list) else ()
    cluster = (
        problem.rpartition(" on ")[2] if isinstance(problem, str) and " on " in problem else ""
    )
    return cluster, sorted({str(x) for x in values if type(x) in (str, int)}, key=_numbered)


def _numbered(name: str) -> list[tuple[str, int]]:
    """Key that sorts gpu2 before gpu10."""
    return [(word, int(number or -1)) for word, number in re.findall(r"(\D*)([0-9]{0,18})", name)]


def _equal_devices(names: list[str]) -> Cluster:
    from dataclasses import replace

    made = make_cluster(f"uniform:{len(names)}")
    return replace(
        made,
        devices=tuple(replace(x, name=name) for x, name in zip(made.devices, names, strict=True)),
    )


def _framework_devices(text: str | None) -> Any:
    """Return devices as a list, or as a mapping where they are named."""
    if text is None:
        return None
    parts = common.words([text])
    if all("=" in part for part in parts):
        return {
            name.strip(): device.strip()
            for name, _, device in (part.partition("=") for part in parts)
        }
    return parts
