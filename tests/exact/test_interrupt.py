"""Ctrl-C during CP-SAT, without CP-SAT: an early end is not an interruption, a signal is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from placeopt.solvers.exact.interrupt import solve_interruptibly


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
    assert solve_interruptibly(FakeSolver("ends"), None) == "unknown"
    answers = []
    thread = threading.Thread(target=lambda: answers.append(solve_interruptibly(FakeSolver("ends"), None)))
    thread.start()
    thread.join()
    assert answers == ["unknown"]


def test_errors_reach_the_caller():
    """What the solver raises is raised."""
    with pytest.raises(ValueError, match="bad model"):
        solve_interruptibly(FakeSolver("fails"), None)


SIGNALLED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from test_interrupt import FakeSolver
from placeopt.solvers.exact.interrupt import solve_interruptibly
solver = FakeSolver("searches")
try:
    solve_interruptibly(solver, None)
except KeyboardInterrupt:
    print("interrupted", solver.stopped.is_set())
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_signal_stops_the_search():
    """SIGINT stops the search before KeyboardInterrupt is raised (in a process of its own: signals are per process)."""
    folder = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", SIGNALLED, folder], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["interrupted", "True"], done.stderr
