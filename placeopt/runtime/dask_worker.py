"""What runs inside a Dask worker: the ops of a plan, and the clock.

The plan and the constants (weights, model inputs) are put into every worker before a run, so that a
task is only the number of an op and its inputs. Times are those of the host's clock (time.time_ns).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from placeopt.model.arrays import Array
from placeopt.model.threads import start_thread
from placeopt.runtime.serial_runtime import make_constants

if TYPE_CHECKING:
    from placeopt.runtime.execution_plan import Constant, ExecutionPlan

_plans: dict[str, ExecutionPlan] = {}
_constants: dict[Constant, Array] = {}
_records: dict[str, list[tuple[int, int, int]]] = {}


_polite = threading.local()


def dask_setup(worker: Any) -> None:
    """Let a worker that a runtime started end with the process that started it, even if that is
    killed.

    Dask calls this when the worker starts. Left alone, workers look for their scheduler for
    minutes.
    """
    if multiprocessing.parent_process() is not None:
        start_thread(_end_with, os.getppid(), name="placeopt-parent")


def _end_with(parent: int) -> None:
    parent_seconds = 0.5
    while os.getppid() == parent:
        time.sleep(parent_seconds)
    os._exit(1)


def own_session() -> None:
    """Put this worker into a session of its own.

    Linux shares the processor between sessions first, then between the processes of one
    (autogroups). Workers that share a session would slow each other down where other sessions are
    busy, as no two devices do.
    """
    if hasattr(os, "setsid") and os.getsid(0) != os.getpid():
        with contextlib.suppress(OSError):
            os.setsid()


def step_back() -> None:
    """Let this thread, which computes, give way to the one that talks to the engine, as hardware
    queues would.
    """
    compute_niceness = 5
    if sys.platform == "linux" and not getattr(_polite, "done", False):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), compute_niceness)
        _polite.done = True


class TransferLog(deque[dict[str, Any]]):
    """Dask's log of incoming transfers, with times by this host's clock.

    Dask shifts the times in its own log by an estimate of the difference to the scheduler's clock,
    which moves by a millisecond or more between heartbeats.
    """

    def append(self, entry: dict[str, Any]) -> None:
        """Add an entry at the moment the transfer ends."""
        now = time.time_ns()
        start = now - round(1e9 * (entry["stop"] - entry["start"]))
        super().append({"keys": tuple(entry["keys"]), "start_ns": start, "finish_ns": now})


def install(token: str, plan: ExecutionPlan, dask_worker: Any = None) -> None:
    """Keep a plan, and only this one; make transfers one tensor each, with times by the host's
    clock.
    """
    own_session()
    if token not in _plans:
        _plans.clear()
        _constants.clear()
        _plans[token] = plan
    dask_worker.state.transfer_message_bytes_limit = 1
    if not isinstance(dask_worker.transfer_incoming_log, TransferLog):
        dask_worker.transfer_incoming_log = TransferLog(maxlen=200_000)


def prepare(token: str, ops: dict[str, list[int]], dask_worker: Any = None) -> None:
    """Make the constants of the ops placed on this worker."""
    make_constants(_plans[token], ops[dask_worker.address], _constants)


def execute(token: str, run: str, op: int, *inputs: Any) -> Any:
    """Run one op; returns its output, a list where it has several, None where it has none."""
    if token not in _plans:
        raise RuntimeError("the worker restarted and has lost its plan")
    step_back()
    start = time.time_ns()
    plan = _plans[token]
    operands = plan.steps[op].operands
    values: dict[Any, Any] = dict(
        zip((x for x in operands if isinstance(x, int)), inputs, strict=True)
    )
    for key in plan.constants(op):
        values[key] = _constants[key]
    found = plan.run(op, values)
    _records.setdefault(run, []).append((op, start, time.time_ns()))
    if len(plan.steps[op].outputs) > 1:
        return found
    return found[0] if found else None


def pick(outputs: list[Any], position: int) -> Any:
    """Return one output of an op that has several."""
    return outputs[position]


def arrive(tensor: Any) -> None:
    """Do nothing: that this task waits for a tensor is what brings the tensor here."""


def collect(
    run: str, dask_worker: Any = None
) -> tuple[list[tuple[int, int, int]], list[tuple[str, int, int]]]:
    """Return and forget the ops (op, start, finish) and transfers (key, start, finish) of a run, in
    nanoseconds.
    """
    transfers = [
        (str(key), row["start_ns"], row["finish_ns"])
        for row in dask_worker.transfer_incoming_log
        for key in row["keys"]
        if str(key).startswith(run)
    ]
    dask_worker.transfer_incoming_log.clear()
    return _records.pop(run, []), transfers
