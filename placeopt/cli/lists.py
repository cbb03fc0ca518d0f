"""`placeopt solvers` and `placeopt clusters`: what can be named."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer

from placeopt.cli import common


def solvers_command(
    kind: Annotated[str | None, typer.Option("--kind", help="placement, pipeline or jobs.")] = None,
    options: Annotated[str | None, typer.Option("--options", help="Show the options of this solver.")] = None,
    json: common.Json = False,
) -> None:
    """List the solvers: name, problem, objectives. Example: `placeopt solvers --options annealing`."""
    from placeopt.model.errors import InputError
    from placeopt.solving.registry import specs

    if kind not in (None, "placement", "pipeline", "jobs"):
        raise InputError(f"--kind: expected placement, pipeline or jobs, received '{kind}'")
    table = specs(kind)
    if options is not None:
        _options(options, json)
        return
    if json:
        rows = [
            {"name": s.name, "kind": s.kind, "objectives": list(s.objectives), "summary": s.summary, "search": s.search}
            for s in table.values()
        ]
        common.print_json({"solvers": rows})
        return
    from rich.table import Table

    view = Table("solver", "problem", "objectives", "what it does", box=None, pad_edge=False)
    for spec in table.values():
        view.add_row(spec.name, spec.kind, ", ".join(spec.objectives), spec.summary)
    common.console().print(view)


def _options(name: str, json: bool) -> None:
    from placeopt.model.errors import InputError
    from placeopt.solving.registry import solver_class, specs

    spec = specs().get(name)
    if spec is None:
        raise InputError(f"solver '{name}' is not known; 'placeopt solvers' lists them")
    cls: Any = solver_class(name, spec.kind)
    rows = [(f.name, str(f.type), getattr(cls(), f.name)) for f in fields(cls)]
    if json:
        common.print_json({"solver": name, "options": [{"name": a, "type": b, "default": repr(c)} for a, b, c in rows]})
        return
    from rich.table import Table

    view = Table("option", "type", "default", box=None, pad_edge=False)
    for option, kind, default in rows:
        view.add_row(option, kind, repr(default))
    common.console().print(view)


def clusters_command(json: common.Json = False) -> None:
    """List ready-made clusters. Example: `placeopt clusters`."""
    from placeopt.instances.clusters import cluster_names, make_cluster

    names = cluster_names()
    if json:
        rows = []
        for name, words in names.items():
            cluster = make_cluster(name)
            devices = [
                {"name": d.name, "kind": d.kind, "peak_flops": d.peak_flops, "memory_bandwidth": d.memory_bandwidth,
                 "memory": d.memory} for d in cluster.devices
            ]  # fmt: skip
            rows.append({"name": name, "summary": words, "devices": devices})
        common.print_json({"clusters": rows})
        return
    from rich.table import Table

    view = Table("cluster", "devices", "what it is", box=None, pad_edge=False)
    for name, words in names.items():
        view.add_row(name, str(make_cluster(name).num_devices), words)
    common.console().print(view)
    common.console().print(
        "\nAlso NxKIND, NxKIND-pcie, HxNxKIND, cpu+NxKIND, uniform:N and FILE.toml, each with "
        "?contention=none|pair|source|host&precision=fp32|tf32|fp16&memory=GIB&efficiency=FRACTION"
    )
