"""Long calls into compiled code that Ctrl-C can end: they run in a thread while the main thread
waits for signals.

A compiled library returns to Python only when it is done, and only then are signals handled; CP-SAT
even takes SIGINT for itself and returns as if its time were over.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from placeopt.model.threads import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def call_interruptibly(function: Callable[[], T], stop: Callable[[], object] | None = None) -> T:
    """Return `function()`; Ctrl-C raises KeyboardInterrupt at once, however long the call takes.

    Parameters
    ----------
    function : a call that gives up the interpreter lock while it works.
    stop : ends the call early; without it an interrupted call is left behind in a daemon thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = BackgroundCall(function)
    try:
        call.begin("placeopt-call")
        while not call.ended(0.5):
            pass
    except BaseException:  # whatever the handler of a signal raises: KeyboardInterrupt for SIGINT
        for _ in range(20):
            if stop is not None and not call.ended():
                stop()  # again and again: the call may not have begun when it is first told to stop
                call.ended(0.05)
        raise
    return call.result()
