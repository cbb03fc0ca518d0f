"""Run one cell, in whatever process it lands, and return its row; failures are rows too."""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import platform
import threading
import time
import traceback
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeopt.experiments.study import Cell

MAX_TRACE = 60


def run_cell(cell: Cell, running: str | None = None, guard: bool = True) -> dict[str, Any]:
    """Solve one cell.

    Parameters
    ----------
    running : folder in which the process notes which cell it works on, so that the parent can tell what a dead
        worker was doing.
    guard : enforce the hard timeout by ending the process (impossible where cells share one process).
    """
    note = None if running is None else Path(running) / str(os.getpid())
    limit = cell.hard_timeout
    guard = guard and threading.current_thread() is threading.main_thread()
    if cell.kind == "placement":
        from placeopt.makespan.evaluate import warm_up

        warm_up()  # a fresh worker's imports and kernels are not the solver's time
    started = time.time()
    if note is not None:
        note.write_text(json.dumps({"key": cell.key, "started": started}))
    devnull = None
    if guard and limit is not None:
        # In C, without the interpreter lock: it ends the process even if a solver never returns to Python.
        devnull = open(os.devnull, "w")  # noqa: SIM115
        faulthandler.dump_traceback_later(limit, exit=True, file=devnull)
    try:
        row = _solve(cell)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a solver may raise anything; the grid goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        row = failure(cell, message, time.time() - started)
    finally:
        if devnull is not None:
            faulthandler.cancel_dump_traceback_later()
            devnull.close()
        if note is not None:
            note.unlink(missing_ok=True)
    return row


def failure(cell: Cell, message: str, runtime: float) -> dict[str, Any]:
    """Return the row of a cell that has no result."""
    return {
        **cell.spec(), **_where(), "status": "failed", "error": message, "value": None, "lower_bound": 0,
        "bound_method": "none", "gap": None, "stop_reason": "", "evaluations": 0, "runtime": runtime, "trace": [],
    }  # fmt: skip


@lru_cache(maxsize=64)
def _problem(text: str) -> Any:
    from placeopt.experiments.study import load_cell_problem

    return load_cell_problem(**json.loads(text))


@lru_cache(maxsize=256)
def _bound(text: str) -> Any:
    from placeopt.solving.bound import bound

    return bound(_problem(text), seconds=0.0)


def _solve(cell: Cell) -> dict[str, Any]:
    from placeopt.model.budget import Budget
    from placeopt.solving.registry import make_solver

    text = json.dumps({"instance": cell.instance, "cluster": cell.cluster, "objective": cell.objective, "kind": cell.kind,
                       "training": cell.training, "fields": cell.fields}, sort_keys=True)  # fmt: skip
    problem = _problem(text)
    solver = make_solver(cell.solver, cell.kind, **cell.options)
    budget = Budget(cell.seconds, cell.evaluations, cell.target)
    result = solver.solve(problem, budget, seed=cell.seed)
    if cell.kind == "placement":
        result = result.with_bound(_bound(text))
    trace = [[round(p.seconds, 4), p.evaluations, p.incumbent, p.lower_bound] for p in result.trace]
    row = {
        **cell.spec(), **_where(), "problem": result.problem, "status": result.status, "value": result.objective,
        "lower_bound": result.lower_bound, "bound_method": result.bound_method, "gap": result.gap,
        "stop_reason": result.stop_reason, "evaluations": result.evaluations, "runtime": result.runtime,
        "queue": result.queue, "tick_seconds": result.tick_seconds, "message": result.message, "trace": thin(trace),
    }  # fmt: skip
    if cell.keep_placement and getattr(result.solution, "device", None) is not None:
        row["placement"] = pack_placement(result.solution)
    return row


def _where() -> dict[str, Any]:
    from placeopt.version import __version__

    return {
        "version": __version__,
        "host": platform.node(),
        "python": platform.python_version(),
        "finished": time.time(),
    }


def thin(trace: list[Any]) -> list[Any]:
    """Keep at most 60 points of a trace, the first and the last among them."""
    if len(trace) <= MAX_TRACE:
        return trace
    step = (len(trace) - 1) / (MAX_TRACE - 1)
    return [trace[round(i * step)] for i in range(MAX_TRACE)]


def pack_placement(placement: Any) -> str:
    """Return a placement as compressed text."""
    data = {"device": placement.device.tolist()}
    if placement.priority is not None:
        data["priority"] = placement.priority.tolist()
    return base64.b85encode(zlib.compress(json.dumps(data).encode(), 9)).decode()


def unpack_placement(text: str) -> Any:
    """Return the placement that `pack_placement` wrote."""
    from placeopt.model.placement import Placement

    data = json.loads(zlib.decompress(base64.b85decode(text)))
    return Placement(data["device"], data.get("priority"))
