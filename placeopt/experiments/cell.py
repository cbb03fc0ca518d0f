"""Run one cell, in whatever process it lands, and return its row; failures are rows too."""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import json
import os
import platform
import re
import signal
import subprocess
import threading
import time
import traceback
import zlib
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.experiments.study import Cell, load_cell_problem
from placeopt.io.body import plain
from placeopt.io.serialize import result_fields
from placeopt.model.errors import InputError, SolverError
from placeopt.model.files import MAX_BYTES, one_line, parse_json
from placeopt.model.objective import named_objective
from placeopt.model.placement import Placement
from placeopt.solving.registry import make_solver
from placeopt.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.experiments.store import Row

RESULT_FIELDS = (
    "problem",
    "status",
    "value",
    "value_exact",
    "lower_bound",
    "lower_bound_exact",
    "bound_method",
    "gap",
    "stop_reason",
    "evaluations",
    "runtime",
    "queue",
    "tick_seconds",
    "message",
)
"""Fields of a Result that a row has under the same name."""


def run_cell(cell: Cell, running: str | None = None, guard: bool = True) -> Row:
    """Solve one cell.

    Parameters
    ----------
    running : folder in which the process notes which cell it works on, so that the parent can tell
    what a dead
        worker was doing.
    guard : enforce the hard timeout by ending the process (impossible where cells share one
    process).
    """
    prepare([cell])  # what a fresh worker imports, compiles and loads is not the solver's time
    started = time.monotonic()
    note = _note(cell, running)
    guard = guard and threading.current_thread() is threading.main_thread()
    with _hard_timeout(cell.hard_timeout if guard else None), _signals_noted() as signals:
        try:
            row = _solve(cell)
            if row["stop_reason"] == "interrupted" and signals:
                raise KeyboardInterrupt
            if row["stop_reason"] == "interrupted":
                words = "the solver interrupted itself (KeyboardInterrupt)"
                row = failure(cell, words, time.monotonic() - started)
        except BaseException as error:  # a solver may raise anything; the grid goes on
            if isinstance(error, KeyboardInterrupt) and signals:
                raise
            row = failure(cell, _words(error), time.monotonic() - started)
        finally:
            if note is not None:
                note.unlink(missing_ok=True)
    return row


def _note(cell: Cell, running: str | None) -> Path | None:
    """Write down in the folder of running cells that this process has started one; a cell runs
    without where the disk is full.
    """
    if running is None:
        return None
    note = Path(running) / str(os.getpid())
    with contextlib.suppress(OSError):
        note.write_text(json.dumps({"key": cell.key, "started": time.time()}))
    return note


def prepare(cells: Sequence[Cell]) -> None:
    """Compile and load the kernels of some cells; what is wrong with a cell it says itself when it
    runs.
    """
    from placeopt.solving.compilation import ensure, kernels_of

    needed: list[str] = []
    for cell in cells:
        with contextlib.suppress(InputError, SolverError):
            objective = named_objective(cell.kind, cell.objective)
            needed += kernels_of(
                objective, [make_solver(cell.solver, cell.kind, **cell.options)], bounds=True
            )
    ensure(needed)


def _words(error: BaseException) -> str:
    """Say in one line what was raised, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    origin = f"({Path(where.filename).name}:{where.lineno})"
    kind = "" if isinstance(error, InputError | SolverError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error} {origin}", 400)


@contextmanager
def _hard_timeout(limit: float | None) -> Iterator[None]:
    """End the process after `limit` seconds, even if a solver never returns to Python."""
    if limit is None:
        yield
        return
    with open(os.devnull, "w") as devnull:
        faulthandler.dump_traceback_later(
            limit, exit=True, file=devnull
        )  # in C, without the interpreter lock
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Yield the signals that arrive: they tell a person's Ctrl-C from a solver that raises
    KeyboardInterrupt.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    old = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        old[signal.Signals(number)](number, frame)

    for number in old:
        signal.signal(number, note)
    try:
        yield arrived
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def failure(cell: Cell, message: str, runtime: float) -> Row:
    """Return the row of a cell that has no result."""
    return {
        **cell.spec(),
        **_where(),
        "status": "failed",
        "error": message,
        "value": None,
        "lower_bound": 0,
        "bound_method": "none",
        "gap": None,
        "stop_reason": "",
        "evaluations": 0,
        "runtime": runtime,
        "trace": [],
    }


@lru_cache(maxsize=64)
def _problem(text: str) -> Any:

    return load_cell_problem(**json.loads(text))


@lru_cache(maxsize=256)
def _bound(text: str) -> Any:
    from placeopt.solving.bound import bound

    return bound(_problem(text), seconds=0.0)


def _solve(cell: Cell) -> Row:
    from placeopt.model.result import Budget
    from placeopt.solving.run import run

    source = plain(cell, "instance", "cluster", "objective", "kind", "training", "fields")
    text = json.dumps(source, sort_keys=True)
    problem = _problem(text)
    solver = make_solver(cell.solver, cell.kind, **cell.options)
    began = time.process_time()
    result = run(
        problem, solver, Budget(cell.seconds, cell.evaluations, cell.target), seed=cell.seed
    )
    cpu = time.process_time() - began  # of the process: of all cells where they share one
    result = result.with_bound(_bound(text))
    found = result_fields(result)
    trace = [[round(point[0], 4), *point[1:]] for point in found["trace"]]
    row = {
        **cell.spec(),
        **_where(),
        **{key: found[key] for key in RESULT_FIELDS if key in found},
        "cpu": round(cpu, 4),
        "trace": thin(trace),
    }
    if cell.keep_placement and getattr(result.solution, "device", None) is not None:
        row["placement"] = pack_placement(result.solution)
    return row


def _where() -> Row:
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {
        "version": __version__,
        "commit": commit(),
        "host": platform.node(),
        "python": platform.python_version(),
        "load": load,
        "finished": time.time(),
    }


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the tree that placeopt is imported from, with a plus sign where its
    tracked files differ from it, but for results and pages; empty outside of a git checkout.
    """
    tree = Path(__file__).resolve().parents[2]
    if not (tree / ".git").exists():
        return ""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!results", ":!*.md")
        return git("rev-parse", "--short=9", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


ROOMS = ("placeopt", "solvers", "schedules", "instances")
"""Folders of the package in its tree."""


@lru_cache
def same_package(commit: str) -> bool:
    """Return whether no file of the package differs between a commit and this tree; of a tree that
    was changed (a plus sign) and of an unknown commit nobody knows.
    """
    if re.fullmatch("[0-9a-f]{7,40}", commit) is None:
        return False
    tree = Path(__file__).resolve().parents[2]
    command = ["git", "diff", "--quiet", commit, "--", *(f":/{room}" for room in ROOMS)]
    return subprocess.run(command, cwd=tree, capture_output=True, check=False).returncode == 0


def thin(trace: list[Any]) -> list[Any]:
    """Keep at most 60 points of a trace, the first and the last among them."""
    max_trace = 60
    if len(trace) <= max_trace:
        return trace
    step = (len(trace) - 1) / (max_trace - 1)
    return [trace[round(i * step)] for i in range(max_trace)]


def pack_placement(placement: Any) -> str:
    """Return a placement as compressed text."""
    data = {"device": placement.device.tolist()}
    if placement.priority is not None:
        data["priority"] = placement.priority.tolist()
    return base64.b85encode(zlib.compress(json.dumps(data).encode(), 9)).decode()


def unpack_placement(text: str) -> Any:
    """Return the placement that `pack_placement` wrote.

    Raises
    ------
    InputError
        If it is damaged.
    """
    try:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(base64.b85decode(text), MAX_BYTES)
        if not unpacker.eof:
            raise ValueError(f"cut off, or more than {MAX_BYTES} bytes")
        data = parse_json(unpacked.decode(), "its text")
        return Placement(data["device"], data.get("priority"))
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise InputError(f"the placement is damaged ({one_line(str(error))})") from error
