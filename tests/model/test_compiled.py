"""How kernels are compiled: signals while they pack their results, and caches that notice edits of
other files.
"""

from __future__ import annotations

import os
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

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
"""

INTERRUPTED = """
interrupted = 0
for turn in range({turns}):
    with {handled}():
        try:
            threading.Timer(0.001 + turn * {later}, os.kill, (os.getpid(), signal.SIGINT)).start()
            end = time.monotonic() + 3
            while time.monotonic() < end:
                {work}
        except KeyboardInterrupt:
            interrupted += 1
print(interrupted)
"""


def interrupted(handled: str, work: str, turns: int) -> subprocess.CompletedProcess[str]:
    """Interrupt a process again and again, a little later each time."""
    first = "pair(1)\n" if work == "pair(1)" else ""
    program = (
        PREPARED
        + first
        + INTERRUPTED.format(handled=handled, work=work, turns=turns, later=0.02 / turns)
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    "handled", ["nullcontext", "signals_handled"]
)  # Python's own handler raises wherever it is called
def test_a_signal_in_a_call_of_a_kernel_is_an_interruption(handled):
    """KeyboardInterrupt is raised, unless Python itself drops it in a finalizer, and the process
    lives.
    """
    run = interrupted(handled, "pair(1)", 40)
    assert run.returncode == 0, run.stderr
    assert 30 <= int(run.stdout) <= 40


def test_a_signal_while_a_kernel_is_compiled_and_packs_for_the_first_time_is_one():
    """The same, or the process is ended in words where compiling takes longer than a signal
    waits.
    """
    run = interrupted(
        "signals_handled", "njit(lambda first: Pair(first, first))(1), time.sleep(0.1)", 12
    )
    if run.returncode == 130:
        assert run.stderr.strip() == "placeopt: error: interrupted"
    else:
        assert (run.returncode, run.stdout.strip()) == (0, "12"), run.stderr


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"), reason="looks at compiled kernels"
)
def test_a_kernel_is_compiled_again_when_what_it_calls_in_other_files_changes(tmp_path):
    """Edits of a file reach the callers in a second and a third one, whose own files are as they
    were.
    """
    (tmp_path / "far.py").write_text(
        "from placeopt.model.compiled import inner_kernel\n@inner_kernel\ndef step(x):\n    return x + 1\n"
    )
    (tmp_path / "near.py").write_text(
        "from placeopt.model.compiled import inlined\nfrom far import step\n@inlined\ndef "
        "twice(x):\n    return step(step(x))\n"
    )
    (tmp_path / "caller.py").write_text(
        "from placeopt.model.compiled import entry\nfrom near import twice\n@entry\ndef run(x):\n  "
        "  return twice(x)\n"
    )
    program = "from caller import run; print(run(1), sum(run.stats.cache_hits.values()))"

    def result() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout.strip()

    assert [result(), result()] == ["3 0", "3 1"]
    (tmp_path / "far.py").write_text((tmp_path / "far.py").read_text().replace("x + 1", "x + 5"))
    assert [result(), result()] == ["11 0", "11 1"]
