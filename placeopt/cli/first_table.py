"""A first table while kernels are compiled: the list heuristics, run by the interpreter in another process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, SolverError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.cli.comparison import Comparison

LARGEST = 2000
"""Ops above which interpreted heuristics would not be quick."""

SECONDS = 0.5
"""Time of each heuristic; a sweep gives what it has found by then."""

PATIENCE = 30.0
"""Seconds after which the table is shown as far as it is known."""


def first_table(comparison: Comparison, names: Sequence[str], *, quiet: bool) -> None:
    """Fill `comparison.first` with what the list heuristics among `names` find, and print it on the error stream."""
    from placeopt.solving.registry import specs

    known = specs(comparison.problem.problem_kind)
    quick = [name for name in names if name in known and known[name].target.startswith("placeopt.solvers.heuristics.")]
    if not quick or getattr(comparison.problem, "num_ops", LARGEST + 1) > LARGEST:
        return
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    code = "from placeopt.cli.first_table import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        thread = threading.Thread(target=_exchange, args=(process, comparison, quick), daemon=True)
        thread.start()
        end = time.monotonic() + PATIENCE
        while thread.is_alive() and time.monotonic() < end:
            time.sleep(0.05)  # in steps in which a signal is noticed
    finally:
        process.kill()
        process.wait()
    if comparison.first and not quiet:
        _show(comparison)


def _exchange(process: subprocess.Popen[bytes], comparison: Comparison, names: list[str]) -> None:
    """Hand the problem over and collect the results, one by one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump((comparison.problem, names), process.stdin)
        process.stdin.close()
        while True:
            comparison.first.append(pickle.load(process.stdout))
    except (EOFError, OSError, pickle.PickleError, ValueError):
        return


def serve() -> None:
    """Run the heuristics that the standard input names on the problem that it holds; results go to the standard output."""
    from placeopt.solving.registry import make_solver
    from placeopt.solving.run import run

    problem, names = pickle.load(sys.stdin.buffer)
    for name in names:
        try:
            result: Any = run(problem, make_solver(name), Budget(SECONDS))
        except (InputError, SolverError):  # what a solver refuses it says when its turn comes
            continue
        pickle.dump(result, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _show(comparison: Comparison) -> None:
    from rich.console import Console

    from placeopt.cli.comparison import Comparison as Table
    from placeopt.cli.outcome import table

    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140, highlight=False)
    console.print("first results, by interpreted heuristics:")
    console.print(table(Table(comparison.problem, results=list(comparison.first))))
