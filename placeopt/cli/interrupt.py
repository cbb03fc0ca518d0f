"""SIGINT and SIGTERM: whatever runs, the best so far is kept and the process ends within three
seconds.

A signal raises KeyboardInterrupt in the main thread, which the commands turn into results. Python
can do that only between two of its own instructions; where a compiled call takes longer, a watching
thread, woken by the signal itself, lets the command rescue what it has and ends the process.

Two things would crash. An exception in the midst of numba's compiler leaves LLVM's modules half
made, and what then evaluates or compiles stumbles over them; one in the Python code with which a
kernel makes its named tuple of results is not looked for there. Inside numba, and in finalizers,
which drop exceptions, the signal is only noted, and told again when the main thread is out of it.
And the end of the interpreter takes LLVM and CP-SAT down while threads may still be inside them:
after a signal the process ends without.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from placeopt.model.threads import left_behind, start_thread

if TYPE_CHECKING:
    from io import RawIOBase
    from types import FrameType

WATCHER = "placeopt-signals"
"""Name of the watching thread."""

_NOT_INTERRUPTIBLE = ("numba", "llvmlite", "weakref", "_weakrefset")
"""Modules whose functions do not pass an exception on, or are left half done by it."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM: handled like Ctrl-C, with another exit code."""


class _SignalState:
    received: int = 0
    reacting = False  # whether the exception was raised in the main thread
    noted = False  # whether a signal came where the main thread could not take it
    rescue: Callable[[], object] | None = None
    said = threading.Event()


def received() -> bool:
    """Whether a signal asked the command to end."""
    return _SignalState.received != 0


def exit_code() -> int:
    """Return 130 after SIGINT, 143 after SIGTERM."""
    return 128 + (_SignalState.received or signal.SIGINT)


def claim_output() -> bool:
    """Claim the right to print the outcome; False where the other thread has it."""
    if _SignalState.said.is_set():
        return False
    _SignalState.said.set()
    return True


def may_print() -> bool:
    """Whether the outcome is this thread's to print: it claims that, or no signal came."""
    return claim_output() or not received()


@contextmanager
def rescued_by(rescue: Callable[[], object]) -> Iterator[None]:
    """Let `rescue` write and print what is known if a signal comes while the main thread cannot
    react.
    """
    before, _SignalState.rescue = _SignalState.rescue, rescue
    try:
        yield
    finally:
        _SignalState.rescue = before


@contextmanager
def signals_handled() -> Iterator[None]:
    """Handle SIGINT and SIGTERM inside the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _SignalState.received, _SignalState.reacting, _SignalState.noted, _SignalState.rescue = (
        0,
        False,
        False,
        None,
    )
    _SignalState.said.clear()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old = {number: signal.signal(number, _raise) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    over = threading.Event()
    start_thread(_watch, reader, over, name=WATCHER)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(wakeup)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(writer)  # ends the watching thread


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise the first signal; those that follow change nothing, for the end has begun."""
    if _SignalState.received:
        return
    _SignalState.noted = _must_not_raise(frame)
    if not _SignalState.noted:
        _SignalState.received, _SignalState.reacting = number, True
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _resend(number: signal.Signals) -> None:
    """Send the signal to the main thread once more, which may take it now."""
    if hasattr(signal, "pthread_kill"):  # also ends a call that waits
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(number)


def _must_not_raise(frame: FrameType | None) -> bool:
    """Whether an exception would do harm or be lost: inside numba (its compiler's lock counts), or
    in a finalizer.
    """
    module = sys.modules.get("numba.core.compiler_lock")
    if module is not None and module.global_compiler_lock.is_locked():
        return True
    while frame is not None:
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if (
            name.partition(".")[0] in _NOT_INTERRUPTIBLE
            or function == "__del__"
            or (function == "cb" and "importlib" in name)
        ):
            return True
        frame = frame.f_back
    return False


def _other_threads_run() -> bool:
    """Whether a thread runs besides this one and the one that watches for signals."""
    return any(
        t is not threading.current_thread() and t.name != WATCHER for t in threading.enumerate()
    )


def _threads_left_behind() -> bool:
    """Whether a signal or the end of the time may have left a thread inside a library."""
    return received() or left_behind()


def leave(code: int) -> NoReturn:
    """End the process; after a signal, and where a search was left behind, without taking down what
    threads are in.
    """
    if _threads_left_behind() and threading.current_thread() is threading.main_thread():
        end_process(code)
    sys.exit(code)


def end_process(code: int) -> NoReturn:
    """End the process, its exit functions called and its output written, without taking libraries
    down.
    """
    if not (_threads_left_behind() and _other_threads_run()):
        # exit functions release compiled code, also that which a thread is in
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a full disk, or one that is closed
            stream.flush()
    os._exit(code)


def _watch(
    reader: int,
    over: threading.Event,
    *,
    grace: float = 1.5,
    patience: float = 10.0,
    rescue: float = 1.2,
) -> None:
    """Wait for a signal, then for the main thread to leave the block, which sets `over`, and end
    the process if it does not.

    The main thread has `grace` seconds to react, and once it reacts `patience` seconds for an
    orderly end: two threads that write and draw at once may crash. What is known has `rescue`
    seconds to be rescued: evaluating may wait for a lock that never comes free.
    """
    pipe = os.fdopen(
        reader, "rb", buffering=0
    )  # stays open to the end: signals that follow are written to it, too
    number = _signal_told(pipe)
    if number is None:
        pipe.close()
        return
    end = time.monotonic() + grace
    while time.monotonic() < end and not _SignalState.reacting and not over.wait(0.05):
        if _SignalState.noted:
            _resend(signal.Signals(number))
    if over.wait(patience if _SignalState.reacting else 0):
        return
    _SignalState.received = number
    guard = threading.Timer(rescue, os._exit, (128 + number,))
    guard.daemon = True
    guard.start()
    _tell_what_is_known()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(128 + number)


def _signal_told(pipe: RawIOBase) -> int | None:
    """Wait for the number of a signal in the pipe; None where its other end is closed first."""
    while data := pipe.read(1):
        if data[0] in _SIGNALS:
            return int(data[0])
    return None


def _tell_what_is_known() -> None:
    """Rescue the best so far, once, and say that the command was interrupted."""
    rescue = _SignalState.rescue
    if rescue is not None and not _SignalState.said.is_set():
        try:
            rescue()
        except BaseException as error:
            print(f"placeopt: error: {error}", file=sys.stderr)
    if claim_output():
        print("placeopt: error: interrupted", file=sys.stderr)
