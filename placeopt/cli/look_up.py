"""What is looked up and set up: `placeopt solvers`, `placeopt clusters` and `placeopt
generators`, what can be named; and `placeopt warm-up`, which compiles every kernel once.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

from typer import Argument, Exit, Option

from placeopt.cli import common
from placeopt.cli.common import print_json, say
from placeopt.model.errors import InputError, check_choice, did_you_mean
from placeopt.solving.compilation import GROUPS, KernelGroup, cached, compile_cold, find_groups
from placeopt.solving.registry import SolverSpec, solver_class, specs


def solvers_command(
    name: Annotated[
        str | None, Argument(help="Solver to explain: its paper, use and options.")
    ] = None,
    kind: Annotated[
        str | None, Option(help="placement, split, pipeline, jobs, sharding or plan.")
    ] = None,
    options: Annotated[str | None, Option(help="The same as naming the solver.")] = None,
    json: common.Json = False,
) -> None:
    """List the solvers, or explain one. Example: `placeopt solvers annealing`."""
    if kind is not None:
        check_choice("--kind", kind, dict.fromkeys(spec.kind for spec in specs().values()))
    name = name or options
    if name is not None:
        _explain(_spec(name), json=json)
        return
    usable = []
    for spec in specs(kind).values():
        if spec.broken:
            print(f"placeopt: solver '{spec.name}' {spec.broken}", file=sys.stderr)
        else:
            usable.append(spec)
    if json:
        print_json({"solvers": [_fields(spec) for spec in usable]})
        return
    view = common.table("solver", "problem", "objectives", "what it does")
    for spec in usable:
        view.add_row(spec.name, spec.kind, ", ".join(spec.objectives), spec.summary)
    say(view)


def _fields(spec: SolverSpec) -> dict[str, Any]:
    return {key: x for key, x in vars(spec).items() if key not in ("target", "broken")}


def _spec(name: str) -> SolverSpec:
    """Return what the registry says of a solver."""
    table = specs()
    if name not in table:
        raise InputError(f"solver '{name}' is not known; {did_you_mean(name, table)}")
    return table[name]


def _explain(spec: SolverSpec, *, json: bool) -> None:
    """Print what a solver does, its paper, when to use it, and its options."""
    from placeopt.solving.options import declared_options, default_of

    rows = [
        {
            "name": key,
            "type": str(item.type),
            "default": default_of(item),
            "expected": declared.expected if declared else "",
            "meaning": declared.meaning if declared else "",
        }
        for key, (item, declared) in declared_options(solver_class(spec.name, spec.kind)).items()
    ]
    if json:
        print_json({"solver": spec.name, **_fields(spec), "options": rows})
        return
    say(f"{spec.name}: {spec.summary}")
    say(f"for {spec.kind} problems, objective {' or '.join(spec.objectives)}")
    if spec.paper:
        say(f"paper: {spec.paper}")
    if spec.use:
        say(f"use it {spec.use}")
    if not rows:
        say("it has no options")
        return
    view = common.table("option", "type", "default", "expected", "meaning")
    for row in rows:
        view.add_row(*(str(row[key]) for key in ("name", "type", "default", "expected", "meaning")))
    say(view)


def clusters_command(
    example: Annotated[
        bool, Option("--example", help="Print a cluster file to start from.")
    ] = False,
    json: common.Json = False,
) -> None:
    """List ready-made clusters. Examples: `placeopt clusters`, `placeopt clusters --example >
    lab.toml`.
    """
    from placeopt.instances.clusters import EXAMPLE, cluster_names, make_cluster
    from placeopt.io.body import plain

    if example and json:
        print_json({"example": EXAMPLE})
        return
    if example:
        print(EXAMPLE, end="")
        return
    names = cluster_names()
    if json:
        rows = []
        for name, words in names.items():
            shown = ("name", "kind", "peak_flops", "memory_bandwidth", "memory")
            devices = [plain(device, *shown) for device in make_cluster(name).devices]
            rows.append({"name": name, "summary": words, "devices": devices})
        print_json({"clusters": rows})
        return
    view = common.table("cluster", "devices", "what it is")
    for name, words in names.items():
        view.add_row(name, str(make_cluster(name).num_devices), words)
    say(view)
    say(
        "\nAlso NxKIND, NxKIND-pcie, HxNxKIND, parts joined by +, cpu+NxKIND, uniform:N and "
        "FILE.toml ('placeopt clusters --example' prints one), each with "
        "?contention=none|pair|source|host|hardware&precision=fp32|tf32|fp16|bf16&memory=GIB"
        "&efficiency=FRACTION"
    )


def generators_command(
    name: Annotated[
        str | None, Argument(help="Generator to explain: its options and their defaults.")
    ] = None,
    json: common.Json = False,
) -> None:
    """List the workloads that can be generated, or explain one. Example: `placeopt generators
    llama`.
    """
    from placeopt.instances.generators import generator_help, generator_names

    names = (name.removeprefix("gen:"),) if name is not None else generator_names()
    found = {known: generator_help(known) for known in names}
    if json:
        print_json(
            {
                "generators": [
                    {"name": key, "summary": s, "options": o} for key, (s, o) in found.items()
                ]
            }
        )
        return
    if name is not None:
        ((summary, options),) = found.values()
        say(f"gen:{names[0]}: {summary}")
        view = common.table("option", "default")
        for key, value in options.items():
            view.add_row(key, str(value))
    else:
        view = common.table("generator", "what it builds")
        for key, (summary, _) in found.items():
            view.add_row(f"gen:{key}", summary)
    say(view)
    if name is None:
        say(
            "\nOptions follow a question mark: gen:llama?layers=4&training=1; name a generator to "
            "see its own."
        )


def warm_up_command(
    groups: Annotated[
        list[str] | None, Argument(help="Groups of kernels; all by default.", show_default=False)
    ] = None,
    list_groups: Annotated[
        bool, Option("--list", help="Show which groups are compiled, and stop.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Compile all kernels ahead, so that no later command waits for them.

    Example: `placeopt warm-up`
    """
    wanted = find_groups(groups or GROUPS)
    cold = [group for group in wanted if not cached(group)]
    say = common.console(quiet=json).print
    started = time.perf_counter()
    if list_groups:
        for group in wanted:
            say(f"{group.name}: {'not compiled' if group in cold else 'compiled'}")
        _print_json(json, wanted, cold, started)
        return

    def done(name: str, seconds: float) -> None:
        say(f"{name}: compiled in {seconds:.1f} s")

    compile_cold(cold, done)
    left = [group for group in cold if not cached(group)]
    _print_json(json, wanted, left, started)
    if left:
        names = ", ".join(group.name for group in left)
        say(f"could not compile or keep {names}: is the folder of numba's cache writable?")
        raise Exit(1)
    say(
        f"{len(wanted)} groups of kernels are compiled ({len(cold)} now, "
        f"{time.perf_counter() - started:.1f} s)"
    )


def _print_json(
    wanted: bool, groups: list[KernelGroup], cold: list[KernelGroup], started: float
) -> None:
    """Print which groups are compiled, where JSON is wanted."""
    if wanted:
        print_json(
            {
                "compiled": [group.name for group in groups if group not in cold],
                "not_compiled": [group.name for group in cold],
                "seconds": time.perf_counter() - started,
            }
        )
