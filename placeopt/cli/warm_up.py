"""`placeopt warm-up`: compile every kernel once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from placeopt.cli import common

if TYPE_CHECKING:
    from placeopt.solving.compilation import KernelGroup


def warm_up_command(
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="Groups of kernels; all by default.", show_default=False),
    ] = None,
    list_groups: Annotated[
        bool, typer.Option("--list", help="Show which groups are compiled, and stop.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Compile all kernels ahead, so that no later command waits for them.

    Example: `placeopt warm-up`
    """
    from placeopt.solving.compilation import GROUPS, cached, compile_cold, find_groups

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
    left = [group.name for group in cold if not cached(group)]
    _print_json(json, wanted, [group for group in cold if group.name in left], started)
    if left:
        say(
            f"could not compile or keep {', '.join(left)}: is the folder of numba's cache writable?"
        )
        raise typer.Exit(1)
    say(
        f"{len(wanted)} groups of kernels are compiled ({len(cold)} now, "
        f"{time.perf_counter() - started:.1f} s)"
    )


def _print_json(
    wanted: bool, groups: list[KernelGroup], cold: list[KernelGroup], started: float
) -> None:
    """Print which groups are compiled, where JSON is wanted."""
    if wanted:
        common.print_json(
            {
                "compiled": [group.name for group in groups if group not in cold],
                "not_compiled": [group.name for group in cold],
                "seconds": time.perf_counter() - started,
            }
        )
