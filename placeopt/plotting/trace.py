"""Chrome trace JSON of a schedule, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.plotting.style import pack_lanes

if TYPE_CHECKING:
    from placeopt.makespan.evaluate import Evaluation


def chrome_trace(evaluation: Evaluation) -> dict[str, Any]:
    """Return the trace: one track per device, and one per pair of devices (per lane where transfers
    overlap).

    Times are microseconds, as the format wants; the exact ticks are in each slice's arguments.
    """
    problem = evaluation.problem
    scale = problem.tick_seconds * 1e6
    devices, transfers = 1, 2  # the processes of the trace
    events: list[dict[str, Any]] = [
        _name("process_name", devices, 0, "devices"),
        _name("process_name", transfers, 0, "transfers"),
    ]
    for d, name in enumerate(problem.device_names):
        events.append(_name("thread_name", devices, d + 1, name))
    start, finish = evaluation.start.tolist(), evaluation.finish.tolist()
    for v, d in enumerate(evaluation.placement.device.tolist()):
        what = problem.op_names[v], problem.op_types[v] or "op"
        events.append(_slice(what, (devices, d + 1), start[v], finish[v], scale, op=v))

    rows = evaluation.transfers
    source = evaluation.placement.device[problem.producer[rows[:, 0]]]
    tracks: dict[tuple[int, int, int], int] = {}
    for a, b in sorted({(int(x), int(y)) for x, y in zip(source, rows[:, 1], strict=True)}):
        here = np.flatnonzero((source == a) & (rows[:, 1] == b))
        lanes = pack_lanes(rows[here, 2], rows[here, 3])
        for lane in range(int(lanes.max()) + 1):
            tracks[a, b, lane] = len(tracks) + 1
            label = f"{problem.device_names[a]} -> {problem.device_names[b]}"
            label += f" ({lane + 1})" if lane else ""
            events.append(_name("thread_name", transfers, tracks[a, b, lane], label))
        for i, lane in zip(here.tolist(), lanes.tolist(), strict=True):
            tensor, _, begin, end = rows[i].tolist()
            what = problem.op_names[int(problem.producer[tensor])], "transfer"
            told = {"tensor": tensor, "bytes": int(problem.tensor_bytes[tensor])}
            track = transfers, tracks[a, b, lane]
            events.append(_slice(what, track, begin, end, scale, **told))
    other = {
        "problem": problem.name,
        "makespan_ticks": evaluation.makespan,
        "queue": evaluation.queue,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    what: tuple[str, str], track: tuple[int, int], begin: int, end: int, scale: float, **told: int
) -> dict[str, Any]:
    """Return a slice of a name and category, on the track (process, thread)."""
    return {
        "ph": "X",
        "name": what[0],
        "cat": what[1],
        "pid": track[0],
        "tid": track[1],
        "ts": begin * scale,
        "dur": (end - begin) * scale,
        "args": {"start_ticks": begin, "end_ticks": end, **told},
    }
