"""A first table while kernels are compiled: the list heuristics, run by the interpreter."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from placeopt.cli.comparison import INTERPRETED_SECONDS, interpretable
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, SolverError
from placeopt.solving.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.cli.comparison import SolverComparison

LARGEST = 2000
"""Ops above which interpreted heuristics would not be quick."""

PATIENCE = 5.0
"""Seconds after which no other heuristic begins."""


def first_table(
    comparison: SolverComparison, solvers: Sequence[tuple[str, Any]], *, quiet: bool
) -> None:
    """Fill `comparison.first` with what the heuristics among the solvers find, and print it on the
    error stream.
    """
    problem, end = comparison.problem, time.monotonic() + PATIENCE
    if getattr(problem, "num_ops", LARGEST + 1) > LARGEST:
        return
    for _, solver in solvers:
        if not interpretable(solver, problem) or time.monotonic() > end:
            continue
        try:
            result: Any = run(problem, solver, Budget(INTERPRETED_SECONDS))
        except (InputError, SolverError):  # what a solver refuses it says when its turn comes
            continue
        interrupted = result.stop_reason == "interrupted"
        if result.value is not None or not interrupted:
            comparison.first.append(result)
        if interrupted:
            raise KeyboardInterrupt
    if comparison.first and not quiet:
        _show(comparison)


def _show(comparison: SolverComparison) -> None:
    from rich.console import Console

    from placeopt.cli.comparison import SolverComparison as Found
    from placeopt.cli.outcome import table

    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140, highlight=False)
    console.print("first results, by interpreted heuristics:")
    console.print(table(Found(comparison.problem, results=list(comparison.first))))
