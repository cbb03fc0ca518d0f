"""A placement in time: its Gantt picture (devices, transfers, ops coloured by type), its Chrome
trace JSON, which Perfetto and chrome://tracing open, and the files of both.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import together
from placeopt.model.errors import MissingExtraError
from placeopt.model.files import Data, write_json
from placeopt.model.trace_events import named, slice_of
from placeopt.plotting.style import (
    ATTENTION,
    COLOURS,
    GREY,
    new_figure,
    pack_lanes,
    time_unit,
    write_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from placeopt.makespan.evaluate import Evaluation
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.runtime.measurement import Timeline


def gantt_figure(evaluation: Evaluation, *, lower_bound: int | None = None, title: str = "") -> Any:
    """Return a matplotlib figure of the schedule.

    One row per device with its ops (coloured by type, named where there is room) and below it the
    tensors it receives. Idle time is white; the proven lower bound is a dashed line.
    """
    problem = evaluation.problem
    unit, scale = time_unit(evaluation.makespan, problem.tick_seconds)
    figure = new_figure(14, min(24.0, 1.6 + 0.95 * problem.num_devices))
    axes = figure.add_subplot()
    colours = colour_of_types([evaluation])
    end = evaluation.makespan / scale
    _draw(axes, evaluation, scale, colours, end)
    if lower_bound:
        axes.axvline(lower_bound / scale, color="black", linestyle=(0, (4, 3)), linewidth=1.0)
        axes.annotate(
            "proven lower bound",
            (lower_bound / scale, 0),
            xytext=(-3, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7,
            annotation_clip=False,
        )
    axes.set_xlabel(f"time ({unit}); tensors that a device receives are drawn below its ops")
    axes.set_title(
        title or f"{problem.name}: makespan {end:.4g} {unit}, {evaluation.queue} execution",
        fontsize=10,
    )
    _add_legend(figure, [evaluation], colours)
    return figure


def comparison_figure(runs: Sequence[tuple[str, Evaluation | Timeline]]) -> Any:
    """Return a matplotlib figure of several executions of one problem, one above the other on the
    same axis of time.

    Parameters
    ----------
    runs : pairs (title, execution).
    """
    executions = [run for _, run in runs]
    problem = executions[0].problem
    longest = max(run.makespan for run in executions)
    unit, scale = time_unit(longest, problem.tick_seconds)
    figure = new_figure(14, min(30.0, 1.2 + len(runs) * (0.7 + 0.95 * problem.num_devices)))
    colours = colour_of_types(executions)
    for row, (title, run) in enumerate(runs, start=1):
        axes = figure.add_subplot(len(runs), 1, row)
        _draw(axes, run, scale, colours, longest / scale)
        axes.axvline(run.makespan / scale, color="#444444", linewidth=0.8)
        axes.set_title(f"{title}: {run.makespan / scale:.4g} {unit}", fontsize=10)
    axes.set_xlabel(f"time ({unit}); tensors that a device receives are drawn below its ops")
    _add_legend(figure, executions, colours)
    return figure


def chrome_trace(evaluation: Evaluation) -> Data:
    """Return the trace: one track per device, and one per pair of devices (per lane where transfers
    overlap).

    Times are microseconds, as the format wants; the exact ticks are in each slice's arguments.
    """
    problem = evaluation.problem
    scale = problem.tick_seconds * 1e6
    devices, transfers = 1, 2  # the processes of the trace
    events: list[Data] = [
        named("process_name", "devices", pid=devices, tid=0),
        named("process_name", "transfers", pid=transfers, tid=0),
    ]
    for d, name in enumerate(problem.device_names):
        events.append(named("thread_name", name, pid=devices, tid=d + 1))
    start, finish = evaluation.start.tolist(), evaluation.finish.tolist()
    for v, d in enumerate(evaluation.placement.device.tolist()):
        told = {"start_ticks": start[v], "end_ticks": finish[v], "op": v}
        track, ticks = (devices, d + 1), finish[v] - start[v]
        kind = problem.op_types[v] or "op"
        events.append(slice_of(problem.op_names[v], track, start[v], ticks, scale, told, cat=kind))

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
            events.append(named("thread_name", label, pid=transfers, tid=tracks[a, b, lane]))
        for i, lane in together(here, lanes):
            tensor, _, begin, end = rows[i].tolist()
            name = problem.op_names[int(problem.producer[tensor])]
            told = {"start_ticks": begin, "end_ticks": end, "tensor": tensor}
            told |= {"bytes": int(problem.tensor_bytes[tensor])}
            track = transfers, tracks[a, b, lane]
            events.append(slice_of(name, track, begin, end - begin, scale, told, cat="transfer"))
    other = {
        "problem": problem.name,
        "makespan_ticks": evaluation.makespan,
        "queue": evaluation.queue,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def write_pictures(
    folder: Path,
    problem: PlacementProblem,
    placement: Placement,
    queue: str | None = None,
    lower_bound: int | None = None,
) -> list[Path]:
    """Write gantt.png and trace.json of a placement into `folder`; return what was written.

    Without matplotlib the picture is left out: the trace needs nothing.
    """
    from placeopt.makespan.evaluate import evaluate

    run = evaluate(problem, placement, queue, check=False)
    written = [write_json(folder / "trace.json", chrome_trace(run), None)]
    with suppress(MissingExtraError):
        written.insert(
            0, write_figure(gantt_figure(run, lower_bound=lower_bound), folder / "gantt.png")
        )
    return written


def _draw(
    axes: Any, evaluation: Evaluation | Timeline, scale: float, colours: dict[str, str], end: float
) -> None:
    """Draw the devices of one execution, on an axis of time that ends at `end`."""
    problem = evaluation.problem
    k, n = problem.num_devices, problem.num_ops
    max_labelled = 260
    for d in range(k):
        ops = np.flatnonzero(evaluation.placement.device == d)
        spans = (
            np.column_stack([evaluation.start[ops], evaluation.finish[ops] - evaluation.start[ops]])
            / scale
        )
        axes.broken_barh(
            spans.tolist(),
            (d + 0.02, 0.56),
            facecolors=[colours.get(problem.op_types[v], GREY) for v in ops],
            edgecolors="white",
            linewidths=0.4 if n <= max_labelled else 0.12 if n <= 3000 else 0.0,
        )
        labelled = together(ops, spans) if n <= max_labelled else ()
        for v, (begin, width) in labelled:
            name = problem.op_names[v].rsplit("/", 1)[-1]
            if width > end * 0.0072 * len(name) and len(name) <= 18:
                axes.text(
                    begin + width / 2,
                    d + 0.3,
                    name,
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white",
                )
        _draw_arrivals(axes, evaluation, d, scale)
        busy = evaluation.busy[d] / max(1, evaluation.makespan)
        axes.text(
            end * 1.006, d + 0.3, f"{100 * busy:.0f} %", va="center", fontsize=8, color="#444444"
        )

    axes.text(end * 1.006, -0.06, "busy", va="bottom", fontsize=8, color="#444444")
    axes.set_yticks(np.arange(k) + 0.4, problem.device_names)
    axes.set_ylim(k, -0.12)
    axes.set_xlim(0, end * 1.045 if end > 0 else 1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)


def colour_of_types(runs: Sequence[Evaluation | Timeline]) -> dict[str, str]:
    """Return a colour for the types that take most of the time; the rest share grey.

    Attention has a colour of its own in every picture. Types whose ops take no time have none.
    """
    ticks = _ticks_of_types(runs)
    own = {name: ATTENTION for name in ticks if is_attention(name)}
    max_legend = 11
    others = [name for name in ticks if name not in own][: max_legend - bool(own)]
    return own | dict(zip(others, COLOURS, strict=False))


def is_attention(name: str) -> bool:
    """Whether a type of ops is attention as a whole, as frameworks call it."""
    return "attention" in name.lower() or name.lower() in ("sdpa", "flash_attn")


def _ticks_of_types(runs: Sequence[Evaluation | Timeline]) -> dict[str, int]:
    """Return the ticks of every type that takes time in a run, the longest first."""
    ticks: Counter[str] = Counter()
    for run in runs:
        spans = (run.finish - run.start).tolist()
        for name, span in zip(run.problem.op_types, spans, strict=True):
            ticks[name] += span
    ranked = sorted(ticks.items(), key=lambda item: (-item[1], item[0]))
    return {name: total for name, total in ranked if total > 0}


def _draw_arrivals(axes: Any, evaluation: Evaluation | Timeline, device: int, scale: float) -> None:
    """Draw the transfers into one device as thin bars; overlapping ones in lanes."""
    rows = evaluation.transfers
    rows = rows[(rows[:, 1] == device) & (rows[:, 3] > rows[:, 2])]
    if not len(rows):
        return
    lanes = pack_lanes(rows[:, 2], rows[:, 3])
    max_transfer_lanes = 3
    count = min(max_transfer_lanes, int(lanes.max()) + 1)
    height = 0.24 / count
    for lane in range(count):
        here = rows[lanes % count == lane]
        spans = np.column_stack([here[:, 2], here[:, 3] - here[:, 2]]) / scale
        bottom = device + 0.62 + lane * height
        axes.broken_barh(
            spans.tolist(), (bottom, height * 0.85), facecolors="#777777", alpha=0.55, linewidths=0
        )


def _add_legend(
    figure: Any, runs: Sequence[Evaluation | Timeline], colours: dict[str, str]
) -> None:
    """Name the colours of what can be seen: ops that take time, and transfers that do."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name or "op") for name, colour in colours.items()]
    if len(_ticks_of_types(runs)) > len(colours):
        handles.append(Patch(color=GREY, label="other"))
    if any((run.transfers[:, 3] > run.transfers[:, 2]).any() for run in runs):
        handles.append(Patch(color="#777777", alpha=0.55, label="transfer"))
    if not handles:
        return
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(8, len(handles)),
        fontsize=8,
        frameon=False,
    )
