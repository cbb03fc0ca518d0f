"""Chrome trace JSON of a schedule, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.plotting.style import pack_lanes

if TYPE_CHECKING:
    from placeopt.makespan.evaluate import Evaluation

DEVICES, TRANSFERS = 1, 2


def chrome_trace(evaluation: Evaluation) -> dict[str, Any]:
    """Return the trace: one track per device, and one per pair of devices (per lane where transfers
    overlap).

    Times are microseconds, as the format wants; the exact ticks are in each slice's arguments.
    """
    problem = evaluation.problem
    scale = problem.tick_seconds * 1e6
    events: list[dict[str, Any]] = [
        _name("process_name", DEVICES, 0, "devices"),
        _name("process_name", TRANSFERS, 0, "transfers"),
    ]
    for d, name in enumerate(problem.device_names):
        events.append(_name("thread_name", DEVICES, d + 1, name))
    start, finish = evaluation.start.tolist(), evaluation.finish.tolist()
    for v, d in enumerate(evaluation.placement.device.tolist()):
        slice_ = _slice(
            problem.op_names[v],
            problem.op_types[v] or "op",
            DEVICES,
            d + 1,
            start[v],
            finish[v],
            scale,
        )
        slice_["args"]["op"] = v
        events.append(slice_)

    rows = evaluation.transfers
    source = evaluation.placement.device[problem.producer[rows[:, 0]]]
    tracks: dict[tuple[int, int, int], int] = {}
    for a, b in sorted({(int(x), int(y)) for x, y in zip(source, rows[:, 1], strict=True)}):
        here = np.flatnonzero((source == a) & (rows[:, 1] == b))
        lanes = pack_lanes(rows[here, 2], rows[here, 3])
        for lane in range(int(lanes.max()) + 1):
            tracks[a, b, lane] = len(tracks) + 1
            label = f"{problem.device_names[a]} -> {problem.device_names[b]}"
            events.append(
                _name(
                    "thread_name",
                    TRANSFERS,
                    tracks[a, b, lane],
                    label + (f" ({lane + 1})" if lane else ""),
                )
            )
        for i, lane in zip(here.tolist(), lanes.tolist(), strict=True):
            tensor, _, begin, end = rows[i].tolist()
            label = problem.op_names[int(problem.producer[tensor])]
            slice_ = _slice(label, "transfer", TRANSFERS, tracks[a, b, lane], begin, end, scale)
            slice_["args"] |= {"tensor": tensor, "bytes": int(problem.tensor_bytes[tensor])}
            events.append(slice_)
    other = {
        "problem": problem.name,
        "makespan_ticks": evaluation.makespan,
        "queue": evaluation.queue,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    name: str, kind: str, process: int, thread: int, begin: int, end: int, scale: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": thread,
        "ts": begin * scale,
        "dur": (end - begin) * scale,
        "args": {"start_ticks": begin, "end_ticks": end},
    }
