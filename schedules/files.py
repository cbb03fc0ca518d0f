"""Schedules as files: traces for chrome://tracing and Perfetto, CSV tables of starts, and what
PyTorch's pipelining runtime reads.

That is `_PipelineScheduleRuntime._load_csv`, format `compute_only`: no header, row i is rank i, the
i-th of the devices that have a stage, cells in execution order, each `<stage><action><micro-batch>`
with the actions F, B (whole backward), I (inputs) and W (weights). Sends and receives are added by
PyTorch's own lowering.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placeopt.io import serialize
from placeopt.model.errors import InputError
from placeopt.model.files import csv_text, read_text, write_text
from placeopt.model.result import Result
from placeopt.model.trace_events import named, slice_of
from placeopt.schedules.known.chains import Chain, chains_of
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule

_CELL = re.compile(r"([0-9]{1,6})([FBIW])([0-9]{1,6})")


def schedule_in(given: Any, where: str) -> PipelineSchedule:
    """Return a schedule, or that of a result or of a file with either.

    Raises
    ------
    InputError
        If it is none of these; the message begins with `where`.
    """
    found = serialize.load(given) if isinstance(given, str | Path) else given
    found = found.solution if isinstance(found, Result) else found
    if not isinstance(found, PipelineSchedule):
        raise InputError(
            f"{where}: expected a pipeline schedule or a result with one, received a "
            f"{type(found).__name__}"
        )
    return found


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
    events = [named("process_name", problem.name, pid=0)]
    for device, name in enumerate(problem.device_names):
        events.append(named("thread_name", name, pid=0, tid=device))
        for micro_batch, block in schedule.device_order(device):
            start, block_name = int(schedule.start[micro_batch, block]), problem.block_names[block]
            told = {"micro_batch": micro_batch, "block": block_name, "start_tick": start}
            title, ticks = f"{block_name} {micro_batch}", int(problem.span[block])
            kind = problem.kind[block]
            events.append(slice_of(title, (0, device), start, ticks, scale, told, cat=kind))
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


def write_trace(schedule: PipelineSchedule, path: str | Path) -> None:
    """Write the Chrome / Perfetto trace JSON."""
    write_text(path, json.dumps(trace_events(schedule)))


def write_starts_csv(schedule: PipelineSchedule, path: str | Path) -> None:
    """Write one line per run: micro_batch, block, kind, devices, start, end (ticks), ordered by
    start.
    """
    problem = schedule.problem
    runs = sorted(
        (int(schedule.start[j, i]), j, i)
        for j in range(schedule.micro_batches)
        for i in range(problem.num_blocks)
    )
    rows: list[list[Any]] = [["micro_batch", "block", "kind", "devices", "start", "end"]]
    for start, j, i in runs:
        devices = " ".join(problem.device_names[d] for d in problem.devices_of(i).tolist())
        end = start + int(problem.span[i])
        rows.append([j, problem.block_names[i], problem.kind[i], devices, start, end])
    write_text(path, csv_text(rows))


def torch_rows(schedule: PipelineSchedule) -> list[list[str]]:
    """Return the cells of every rank in execution order.

    Raises
    ------
    InputError
        With the reason, if PyTorch's runtime cannot run the schedule.
    """
    problem = schedule.problem
    chain = _runnable_chain(problem)
    label: dict[int, str] = {}
    for stage in range(chain.num_stages):
        label[chain.forward[stage]] = f"{stage}F"
        label[chain.backward[stage]] = f"{stage}{'I' if chain.weight[stage] >= 0 else 'B'}"
        if chain.weight[stage] >= 0:
            label[chain.weight[stage]] = f"{stage}W"
    return [
        [f"{label[block]}{micro_batch}" for micro_batch, block in schedule.device_order(rank)]
        for rank in sorted(set(chain.device))
    ]


def write_torch_csv(schedule: PipelineSchedule, path: str | Path) -> None:
    """Write the `compute_only` CSV that PyTorch loads; refuses what `torch_rows` refuses."""
    write_text(path, "".join(",".join(row) + "\n" for row in torch_rows(schedule)))


def _runnable_chain(problem: PipelineProblem) -> Chain:
    refusal = f"'{problem.name}' cannot run in PyTorch's pipeline runtime"
    if "F" not in problem.kind or not set(problem.kind) & {"B", "I"}:
        raise InputError(
            f"{refusal}: it is forward-only, and the runtime executes training schedules"
        )
    for i, name in enumerate(problem.block_names):
        if len(problem.devices_of(i)) > 1:
            raise InputError(
                f"{refusal}: block '{name}' runs on {len(problem.devices_of(i))} ranks at once, "
                "and a stage lives on one rank"
            )
    try:
        chains = chains_of(problem)
    except InputError as error:
        raise InputError(f"{refusal}: {error}") from error
    if len(chains) > 1:
        raise InputError(
            f"{refusal}: it has {len(chains)} independent chains (directions), and the runtime "
            "runs one; export each direction alone"
        )
    return chains[0]


def read_torch_csv(path: str | Path) -> list[list[str]]:
    """Return the cells of every rank of a `compute_only` CSV.

    Raises
    ------
    InputError
        If a cell is none, or a stage lies on two ranks, or misses a pass of a micro-batch.
    """
    where = f"schedule '{path}'"
    lines = read_text(path, what="schedule").splitlines()
    rows = [
        [cell.strip() for cell in line.split(",") if cell.strip()] for line in lines if line.strip()
    ]
    home: dict[int, int] = {}
    passes: defaultdict[tuple[int, int], str] = defaultdict(str)
    for rank, row in enumerate(rows):
        for cell in row:
            match = _CELL.fullmatch(cell)
            if match is None:
                raise InputError(
                    f"{where}: line {rank + 1}: expected cells such as 0F3 (stage, pass F, B, I or "
                    f"W, micro-batch), received '{cell[:20]}'"
                )
            stage, micro_batch = int(match[1]), int(match[3])
            if home.setdefault(stage, rank) != rank:
                raise InputError(
                    f"{where}: stage {stage} is on the ranks {home[stage]} and {rank}; a stage "
                    "lives on one"
                )
            passes[stage, micro_batch] += match[2]
    if not passes:
        raise InputError(f"{where}: expected one line per rank, received an empty file")
    _check_passes(passes, where)
    return rows


def _check_passes(passes: dict[tuple[int, int], str], where: str) -> None:
    """Refuse a (stage, micro-batch) that misses a pass, or has passes out of order."""
    stages, micro_batches = (1 + max(numbers) for numbers in zip(*passes, strict=True))
    for key in itertools.product(range(stages), range(micro_batches)):
        found = passes.get(key, "")
        if found not in ("FB", "FI", "FIW"):
            raise InputError(
                f"{where}: stage {key[0]}, micro-batch {key[1]}: expected F and then B, or I and "
                f"W, received '{found}'"
            )


def ranks_of_stages(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the rank of every stage."""
    home = {int(re.split("[FBIW]", cell)[0]): rank for rank, row in enumerate(rows) for cell in row}
    return [home[stage] for stage in range(len(home))]
