"""Time limits that hold where one step of a search may take longer than what is left of the time.

Searches look at the clock between their steps. On large problems a single step, such as one pass of
a list scheduler over 10^6 ops and 64 devices, may outlast the limit; there a search runs in a
thread of its own. When the time is over, what it has offered by then counts, and it is left behind:
its tracker is closed, so that it ends at its next look at the clock, and nothing that it finds
later is taken. A reserve of the time is kept for judging the answer.

Searches of others may never look at the clock. On small problems, too, they run in a thread of
their own, and are left behind when their time has been over for as long again.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any

from placeopt.model.threads import BackgroundCall, leave_behind, left_behind

LARGE = 300_000
"""Ops times devices from which a search is watched: on smaller problems every step is short."""

PATIENCE = 10.0
"""Seconds after its limit that somebody else's search on a small problem has at least: what it
imports and compiles at first may take so long.
"""


def is_large(problem: Any, least: int = LARGE) -> bool:
    """Whether one step of a search may take long."""
    return bool(getattr(problem, "num_ops", 0) * getattr(problem, "num_devices", 0) >= least)


def reserve(problem: Any, seconds: float | None) -> float:
    """Return the seconds of a limit that are kept for judging what was found."""
    if seconds is None or not is_large(problem):
        return 0.0
    # Seconds that valuing and judging an answer takes per op and edge, and the problem's hash per
    # op and device, about; and the share of the time that is kept at most
    judging, hashing, most = 1.6e-6, 3e-9, 0.4
    needed = judging * (problem.num_ops + getattr(problem, "num_edges", 0))
    return min(most * seconds, needed + hashing * problem.num_ops * problem.num_devices)


def search_within(
    search: Callable[[], object], tracker: Any, least: int, *, foreign: bool = False
) -> None:
    """Call `search`, which offers to `tracker`, and return when it ends or the time of the tracker
    is over.

    Parameters
    ----------
    least : ops times devices from which the search is watched.
    foreign : whether it is somebody else's, which is watched on smaller problems, too.
    """
    seconds, large = tracker.budget.seconds, is_large(tracker.problem, least)
    if seconds is None or not (large or foreign):
        search()
        return
    more = 0.0 if large else max(seconds, PATIENCE)
    end = tracker.elapsed + tracker.seconds_left + more
    call = BackgroundCall(search)
    call.begin("placeopt-search")
    try:
        while not call.ended(min(0.2, max(0.0, end - tracker.elapsed))) and tracker.elapsed < end:
            pass
    except KeyboardInterrupt:
        tracker.interrupt()
        call.ended(0.5)  # it hands over what it has found
        raise
    finally:
        if not call.ended():
            tracker.message = "it did not come back when its time was over, and was left behind"
            tracker.stop()
            tracker.close()
            leave_behind(call, 3.0 if foreign else 30.0)
    if call.ended():
        call.result()


def wait_for_left_behind() -> None:
    """Wait for searches left behind, which are inside compiled code: the interpreter's end would
    take it away under them. Those of others may be anywhere, and get a moment only.
    """
    start = time.monotonic()
    while left_behind(time.monotonic() - start):
        time.sleep(0.05)


atexit.register(wait_for_left_behind)
