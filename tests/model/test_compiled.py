"""Signals while kernels pack their results: numba looks for no exception there, and crashed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARED = """
import os, signal, threading, time
from contextlib import nullcontext
from typing import NamedTuple
from numba import njit
import placeopt.model.compiled
from placeopt.cli.interrupt import signals_handled

class Pair(NamedTuple):
    first: int
    second: int

@njit
def pair(first):
    return Pair(first, first)
"""

INTERRUPTED = """
interrupted = 0
for turn in range({turns}):
    with {handled}():
        threading.Timer(0.001 + turn * {later}, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                {work}
        except KeyboardInterrupt:
            interrupted += 1
print(interrupted)
"""


@pytest.mark.parametrize(
    ("handled", "work", "turns"),
    [
        ("nullcontext", "pair(1)", 40),  # Python's own handler raises wherever it is called
        ("signals_handled", "pair(1)", 40),
        (
            "signals_handled",
            "njit(lambda first: Pair(first, first))(1), time.sleep(0.1)",
            12,
        ),  # compiling, the first packing
    ],
)
def test_a_signal_in_a_call_of_a_kernel_is_an_interruption(handled, work, turns):
    """KeyboardInterrupt is raised each time, and the process lives."""
    first = "pair(1)\n" if work == "pair(1)" else ""
    program = PREPARED + first + INTERRUPTED.format(handled=handled, work=work, turns=turns, later=0.02 / turns)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout.strip()) == (0, str(turns)), run.stderr
