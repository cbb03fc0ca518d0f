"""Signals during CP-SAT: an early end is not an interruption, a signal is, and none is lost
afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ortools.sat.python.cp_model import CpModel

from placeopt.model.cp_sat import solve_interruptibly


class FakeSolver:
    """Answers at once, fails, or searches until it is told to stop."""

    def __init__(self, kind):
        self.kind, self.parameters, self.stopped = kind, SimpleNamespace(), threading.Event()

    def solve(self, model, callback):
        """Behave as `kind` says."""
        if self.kind == "fails":
            raise ValueError("bad model")
        if self.kind == "searches":
            os.kill(os.getpid(), signal.SIGINT)
            assert self.stopped.wait(20)
        return "unknown"

    def stop_search(self):
        """End `solve`."""
        self.stopped.set()


def test_an_early_end_is_an_answer():
    """A solver that ends before its limit just returns; from another thread too."""
    assert solve_interruptibly(FakeSolver("ends"), CpModel()) == "unknown"
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(solve_interruptibly(FakeSolver("ends"), CpModel()))
    )
    thread.start()
    thread.join()
    assert answers == ["unknown"]


def test_errors_reach_the_caller():
    """What the solver raises is raised."""
    with pytest.raises(ValueError, match="bad model"):
        solve_interruptibly(FakeSolver("fails"), CpModel())


SIGNALLED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from ortools.sat.python.cp_model import CpModel
from test_interruptible import FakeSolver
from placeopt.model.cp_sat import solve_interruptibly
solver = FakeSolver("searches")
try:
    solve_interruptibly(solver, CpModel())
except KeyboardInterrupt:
    print("interrupted", solver.stopped.is_set())
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_signal_stops_the_search():
    """SIGINT stops the search before KeyboardInterrupt is raised (in a process of its own: signals
    are per process).
    """
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, folder], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["interrupted", "True"], done.stderr


REAL = """
import os, signal, sys, threading
from ortools.sat.python import cp_model
from placeopt.model.cp_sat import solve_interruptibly
signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_interrupt(*_):
    raise KeyboardInterrupt


signal.signal(signal.SIGTERM, raise_interrupt)
solve_interruptibly(cp_model.CpSolver(), cp_model.CpModel())
for name in ("SIGINT", "SIGTERM"):
    try:
        os.kill(os.getpid(), getattr(signal, name))
        threading.Event().wait(20)
    except KeyboardInterrupt:
        print("after", name)
    model = cp_model.CpModel()
    n = 40
    x = [[model.new_bool_var("") for _ in range(n - 1)] for _ in range(n)]  # pigeons: no quick proof
    for row in x:
        model.add(sum(row) == 1)
    for j in range(n - 1):
        for i in range(n):
            for k in range(i):
                model.add_bool_or([~x[i][j], ~x[k][j]])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = False
    solver.parameters.max_time_in_seconds = 60
    threading.Timer(0.3, os.kill, (os.getpid(), getattr(signal, name))).start()
    try:
        solve_interruptibly(solver, model)
    except KeyboardInterrupt:
        print("during", name)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_signals_reach_python_during_and_after_a_solve():
    """After a solve SIGINT is not at its default, which would kill the process; during one it ends
    the search.
    """
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=120)
    wanted = "after SIGINT during SIGINT after SIGTERM during SIGTERM"
    assert done.stdout.split() == wanted.split(), done.stderr
