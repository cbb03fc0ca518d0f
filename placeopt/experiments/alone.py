"""Run one cell in a process of its own: whatever it does, it ends with the cell's limit and takes
nobody along.

`python -m placeopt.experiments.alone` is that process: it reads the cell from stdin and writes the
row to stdout.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from placeopt.experiments.cell import failure, run_cell

if TYPE_CHECKING:
    from placeopt.experiments.study import Cell

START_UP = 30.0
"""Seconds that a fresh process may take before its cell begins."""


def run_alone(cell: Cell, reason: str = "") -> dict[str, Any]:
    """Run a cell in a process of its own; if that dies, the cell is to blame.

    Parameters
    ----------
    reason : why it runs alone, for the message.
    """
    started = time.time()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "placeopt.experiments.alone"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    limit = None if cell.hard_timeout is None else cell.hard_timeout + START_UP
    timer = threading.Timer(limit or 0.0, process.kill)
    try:
        if limit is not None:
            timer.start()
        data = pickle.dumps(cell)
        process.stdin.write(len(data).to_bytes(8, "big") + data)
        process.stdin.flush()  # left open: the process ends when it closes
        output = process.stdout.read()
        process.wait()
    except BrokenPipeError:
        output = b""
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdin.close()
        process.stdout.close()
    if output:
        row: dict[str, Any] = json.loads(output)
        return row
    return failure(
        cell, _cause(cell, process.returncode, time.time() - started, reason), time.time() - started
    )


def _cause(cell: Cell, code: int, age: float, reason: str) -> str:
    """Say why a process ended without a row."""
    limit = cell.hard_timeout
    if limit is not None and (
        age >= limit + START_UP if code < 0 else code == 1 and age >= 0.95 * limit
    ):
        return f"hard timeout: not finished after {limit:g} s, worker ended"
    if code < 0:
        return f"worker killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    return f"worker ended with exit code {code}" + (f" ({reason})" if reason else "")


def _main() -> None:
    """Read a cell, run it, write its row."""
    output = os.dup(1)
    os.dup2(2, 1)  # what a solver prints is no row
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    cell = pickle.loads(sys.stdin.buffer.read(size))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    row = run_cell(cell)
    with os.fdopen(output, "wb") as stream:
        stream.write(json.dumps(row).encode())
    os._exit(0)  # taking numba and CP-SAT down takes longer than many a cell


def _end_with_parent() -> None:
    """End this process when whoever started it is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    _main()
