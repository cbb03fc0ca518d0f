"""Events of Chrome traces, which Perfetto opens, too. Times are microseconds."""

from __future__ import annotations

from placeopt.model.files import Data


def named(what: str, name: str, **track: int) -> Data:
    """Return the name of a track, "process_name" or "thread_name"; `track`: its pid and tid."""
    return {"ph": "M", "name": what, **track, "args": {"name": name}}


def slice_of(
    name: str, track: tuple[int, int], begin: int, ticks: int, scale: float, told: Data, **more: str
) -> Data:
    """Return a slice on a track (process, thread), which begins at a tick and lasts so many; a tick
    is `scale` microseconds. `told`: its arguments. `more`: a category (cat).
    """
    pid, tid = track
    where = {"pid": pid, "tid": tid, "ts": begin * scale, "dur": ticks * scale}
    return {"ph": "X", "name": name, **more, **where, "args": told}
