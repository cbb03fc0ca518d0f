"""Export a schedule as a trace for chrome://tracing and Perfetto, and as a CSV table of starts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from placeopt.schedules.solution import PipelineSchedule


def trace_events(schedule: PipelineSchedule) -> dict[str, Any]:
    """Return a trace object: one thread per device, one event per run, one counter per device's
    memory.

    Trace times are microseconds.
    """
    problem = schedule.problem
    scale = problem.tick_seconds * 1e6
    # Traces of problems without a real unit would be crushed to nanoseconds: show one tick as one
    # microsecond.
    scale = 1.0 if schedule.makespan * scale < 1.0 else scale
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": problem.name}}
    ]
    for device, name in enumerate(problem.device_names):
        events.append(
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": device, "args": {"name": name}}
        )
        for micro_batch, block in schedule.device_order(device):
            start = int(schedule.start[micro_batch, block])
            events.append(
                {
                    "name": f"{problem.block_names[block]} {micro_batch}",
                    "cat": problem.kind[block],
                    "ph": "X",
                    "pid": 0,
                    "tid": device,
                    "ts": start * scale,
                    "dur": int(problem.span[block]) * scale,
                    "args": {
                        "micro_batch": micro_batch,
                        "block": problem.block_names[block],
                        "start_tick": start,
                    },
                }
            )
        for time, held in schedule.memory_profile(device).tolist():
            events.append(
                {
                    "name": f"memory {name}",
                    "ph": "C",
                    "pid": 0,
                    "ts": time * scale,
                    "args": {"held": held},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(schedule: PipelineSchedule, path: str | os.PathLike[str]) -> None:
    """Write the Chrome / Perfetto trace JSON."""
    Path(path).write_text(json.dumps(trace_events(schedule)))


def write_starts_csv(schedule: PipelineSchedule, path: str | os.PathLike[str]) -> None:
    """Write one line per run: micro_batch, block, kind, devices, start, end (ticks), ordered by
    start.
    """
    problem = schedule.problem
    runs = sorted(
        (int(schedule.start[j, i]), j, i)
        for j in range(schedule.micro_batches)
        for i in range(problem.num_blocks)
    )
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["micro_batch", "block", "kind", "devices", "start", "end"])
        for start, j, i in runs:
            devices = " ".join(problem.device_names[d] for d in problem.devices_of(i).tolist())
            end = start + int(problem.span[i])
            writer.writerow([j, problem.block_names[i], problem.kind[i], devices, start, end])
