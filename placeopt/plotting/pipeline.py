"""Pictures of pipeline schedules: a Gantt chart with a lane per pass, the steady state framed, and
memory over time.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import UNLIMITED, Ints
from placeopt.plotting.style import new_figure, time_unit, write_figure

if TYPE_CHECKING:
    import os

    from placeopt.schedules.solution import PipelineSchedule

COLOURS = {"F": "#9dc3e6", "B": "#a9d18e", "I": "#8fd0c8", "W": "#f8cb9c", "other": "#d0cece"}
"""Forward blue, backward green, split backward teal (I) and orange (W)."""

LABELS = {
    "F": "forward",
    "B": "backward",
    "I": "backward, inputs",
    "W": "backward, weights",
    "other": "other",
}

LANE_WORDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weights", "other": "other"}
"""Passes of a lane, written at its right end."""

FRAME, STEADY, STEADY_EDGE = "#c00000", "#fff2cc", "#bf9000"
"""Colours of the frame around one repetition, of the ground behind the steady state, and of the
frame around that."""

LANES = (("F",), ("B", "I"), ("W",), ("other",))
"""Kinds of passes that share a lane, from the top; a device has the lanes that its problem
needs."""

BAND = 0.92
"""Height of a device's lanes together; devices are 1 apart."""


def draw_pipeline(schedule: PipelineSchedule, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw a schedule; return the matplotlib figure and write it to `path`, if given.

    A row per device with a lane for forward, backward and weight passes, the micro-batch number in
    every cell that has room for it. One repetition of the repetend is framed on every device, and
    the ground of the steady state coloured. Below: memory that the micro-batches hold on each
    device over time, scaled to its values.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    problem = schedule.problem
    rows, lanes = problem.num_devices, _lanes(schedule)
    width = _inches(schedule)
    panels = 2 if (problem.memory != 0).any() else 1
    heights = [max(1.2, 0.22 * len(lanes) * rows + 0.1 * rows), 1.8][:panels]
    figure = new_figure(width, sum(heights) + 1.5)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    gantt = axes[0]
    framed, steady = _frame_repetend(schedule, gantt), _steady_state(schedule)
    if steady is not None:
        for axis in axes:
            axis.axvspan(*steady, facecolor=STEADY, edgecolor=STEADY_EDGE, zorder=0, gid="steady")
    _draw_cells(schedule, gantt, lanes, width / schedule.makespan)
    gantt.set_ylim(rows - 0.5, -0.5)
    gantt.set_xlim(0, schedule.makespan)
    _name_rows(schedule, gantt, lanes)
    _add_legend(schedule, gantt, framed, steady=steady is not None)
    unit, size = _unit(schedule)
    gantt.set_title(
        f"{problem.name}: {schedule.micro_batches} micro-batches, period "
        f"{float(schedule.period) / size:.4g} {unit}, makespan {schedule.makespan / size:.4g} "
        f"{unit}\nbubble: {schedule.bubble_period:.1%} of a period (busiest device), "
        f"{np.mean(schedule.bubble_wall):.1%} of the wall clock (mean of the devices)",
        loc="left",
        fontsize=9,
        pad=24,
    )
    if panels == 2:
        _draw_memory(schedule, axes[1])
    axes[-1].xaxis.set_major_formatter(lambda ticks, _: f"{ticks / size:g}")
    axes[-1].set_xlabel(f"time ({unit})")
    if path is not None:
        write_figure(figure, Path(path), dpi=130)
    return figure


def _unit(schedule: PipelineSchedule) -> tuple[str, float]:
    """Return the unit of times and its ticks."""
    if not _timed(schedule):
        return "ticks", 1.0
    return time_unit(schedule.makespan, schedule.problem.tick_seconds)


def _timed(schedule: PipelineSchedule) -> bool:
    """Whether ticks are times: schedules of less than a microsecond are of shapes and block tables,
    whose ticks and memory have units of their own.
    """
    return schedule.makespan * schedule.problem.tick_seconds >= 1e-6


def _inches(schedule: PipelineSchedule) -> float:
    """Return a width that leaves room for the numbers of the micro-batches: so many inches for
    every cell of a device, and for every micro-batch, within limits.
    """
    cells = max(map(len, schedule.problem.on_device))
    period = max(0.55, 0.24 * cells)
    return float(np.clip(schedule.makespan / float(schedule.period) * period, 8.0, 34.0))


def _lanes(schedule: PipelineSchedule) -> list[tuple[str, ...]]:
    """Return the lanes that the problem needs, with the kinds that it has."""
    kinds = set(schedule.problem.kind)
    return [found for lane in LANES if (found := tuple(kind for kind in lane if kind in kinds))]


def _draw_cells(
    schedule: PipelineSchedule, axis: Any, lanes: list[tuple[str, ...]], inches_per_tick: float
) -> None:
    """Draw a cell for every block, with the number of its micro-batch where there is room."""
    from matplotlib.patches import Rectangle

    problem = schedule.problem
    lane_of = {kind: number for number, lane in enumerate(lanes) for kind in lane}
    height = BAND / len(lanes)
    for i in range(problem.num_blocks):
        kind, span = problem.kind[i], int(problem.span[i])
        cells = itertools.product(enumerate(schedule.start[:, i].tolist()), problem.devices_of(i))
        for (j, start), d in cells:
            top = int(d) - BAND / 2 + lane_of[kind] * height
            axis.add_patch(
                Rectangle(
                    (start, top),
                    span,
                    height,
                    facecolor=COLOURS[kind],
                    edgecolor="#404040",
                    linewidth=0.4,
                    gid="cell",
                    zorder=2,
                )
            )
            font = _font(len(str(j)), span * inches_per_tick)
            if font is not None:
                axis.text(
                    start + span / 2,
                    top + height / 2,
                    str(j),
                    ha="center",
                    va="center",
                    fontsize=font,
                    clip_on=True,
                    zorder=3,
                )


def _font(digits: int, inches: float) -> float | None:
    """Return the first size in points in which a number fits into a cell so wide, None if none
    does.
    """
    room, width = inches - 0.02, 0.0088 * digits  # a digit is so many inches wide per point
    return next((size for size in (6.5, 5.0) if room >= width * size), None)


def _name_rows(schedule: PipelineSchedule, axis: Any, lanes: list[tuple[str, ...]]) -> None:
    """Write the names of devices, and the passes of their lanes where there is room."""
    rows, height = schedule.problem.num_devices, BAND / len(lanes)
    axis.set_yticks(range(rows), [_row_text(schedule, d) for d in range(rows)], fontsize=8)
    for d in range(rows - 1):
        axis.axhline(d + 0.5, color="#bfbfbf", linewidth=0.5, zorder=1)
    if rows > 16 or len(lanes) == 1:
        return
    centres = [
        d - BAND / 2 + (lane + 0.5) * height for d in range(rows) for lane in range(len(lanes))
    ]
    right = axis.secondary_yaxis("right")
    words = ["/".join(dict.fromkeys(LANE_WORDS[kind] for kind in lane)) for lane in lanes]
    right.set_yticks(centres, words * rows, fontsize=6)
    right.tick_params(length=0)


def _row_text(schedule: PipelineSchedule, device: int) -> str:
    """Return the name of a device and, where so many fit, of the stages that it holds."""
    problem = schedule.problem
    name = problem.device_names[device]
    forward = [i for i in problem.on_device[device] if problem.kind[i] == "F"]
    stages = ", ".join(problem.block_names[i].removeprefix("F") for i in forward)
    several = "s" if len(forward) > 1 else ""
    room = forward and problem.num_devices <= 16 and len(stages) <= 14
    return f"{name}\nstage{several} {stages}" if room else name


def _add_legend(schedule: PipelineSchedule, axis: Any, framed: int, *, steady: bool) -> None:
    """Name the colours and the frames; `framed` devices have one around a repetition."""
    from matplotlib.patches import Patch

    problem = schedule.problem
    kinds = [kind for kind in COLOURS if kind in problem.kind]
    handles = [
        Patch(facecolor=COLOURS[kind], edgecolor="#404040", label=LABELS[kind]) for kind in kinds
    ]
    if framed and schedule.repetend is not None:
        size = schedule.repetend.size
        words = f"one repetition of {size} micro-batch{'es' if size > 1 else ''}"
        if framed < sum(map(bool, problem.on_device)):
            words += ", where the schedule is not denser"
        handles.append(Patch(fill=False, edgecolor=FRAME, linewidth=1.8, label=words))
    if steady:
        handles.append(Patch(facecolor=STEADY, edgecolor=STEADY_EDGE, label="steady state"))
    axis.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
    )


def _frame_repetend(schedule: PipelineSchedule, axis: Any) -> int:
    """Frame one repetition on every device; return how many devices have a frame.

    The frame is around the runs of a whole period, as near to the middle of the schedule as
    possible. A device gets no frame where a greedy completion, which may be denser than the
    pattern, mixes in other runs everywhere.
    """
    from matplotlib.patches import Rectangle

    if schedule.repetend is None:
        return 0
    whole = _whole_turns(schedule)
    middle = whole[len(whole) // 2] if whole else 0
    framed = 0
    for d in range(schedule.problem.num_devices):
        for turn in sorted(whole, key=lambda turn: (abs(turn - middle), turn)):
            if found := _repetition(schedule, turn, d):
                left, right = found
                axis.add_patch(
                    Rectangle(
                        (left, d - 0.48),
                        right - left,
                        0.96,
                        fill=False,
                        edgecolor=FRAME,
                        linewidth=1.8,
                        zorder=5,
                        gid="repetend",
                    )
                )
                framed += 1
                break
    return framed


def _whole_turns(schedule: PipelineSchedule) -> range:
    """Return the repetitions whose every run belongs to a micro-batch of the schedule."""
    assert schedule.repetend is not None
    return range(
        int(schedule.repetend.index.max()), schedule.micro_batches // schedule.repetend.size
    )


def _steady_state(schedule: PipelineSchedule) -> tuple[int, int] | None:
    """Return from when until when all devices are in whole repetitions, None where there is no such
    time.
    """
    turns = _whole_turns(schedule) if schedule.repetend is not None else range(0)
    if not turns:
        return None
    used = [d for d, blocks in enumerate(schedule.problem.on_device) if blocks]
    begin = max(_extent(schedule, turns[0], d)[0] for d in used)
    end = min(_extent(schedule, turns[-1], d)[1] for d in used)
    return (begin, end) if begin < end else None


def _repetition(schedule: PipelineSchedule, turn: int, device: int) -> tuple[int, int] | None:
    """Return from when until when a device runs repetition `turn`, None if it runs something else
    meanwhile.
    """
    assert schedule.repetend is not None
    here = list(schedule.problem.on_device[device])
    if not here:
        return None
    left, right = _extent(schedule, turn, device)
    inside = np.count_nonzero((schedule.start[:, here] >= left) & (schedule.start[:, here] < right))
    fits = right - left <= schedule.repetend.period and inside == schedule.repetend.size * len(here)
    return (left, right) if fits else None


def _extent(schedule: PipelineSchedule, turn: int, device: int) -> tuple[int, int]:
    """Return the first start and the last end of repetition `turn` on a device."""
    assert schedule.repetend is not None
    size, here = schedule.repetend.size, list(schedule.problem.on_device[device])
    # The run of block b in repetition `turn` belongs to micro-batch (turn - index_b) * size +
    # member.
    member: Ints = (turn - schedule.repetend.index) * size + np.arange(size)[:, None]
    start = np.take_along_axis(schedule.start, member, axis=0)[:, here]
    return int(start.min()), int((start + schedule.problem.span[here]).max())


def _draw_memory(schedule: PipelineSchedule, axis: Any) -> None:
    """Draw what micro-batches hold on every device; the panel ends a little above the most that is
    held.
    """
    problem = schedule.problem
    most = max(schedule.peak_memory)
    unit, size = _memory_unit(schedule, most)
    for d, name in enumerate(problem.device_names):
        profile = schedule.memory_profile(d)
        if not len(profile):
            continue
        times = np.concatenate(([0], profile[:, 0], [schedule.makespan]))
        held = np.concatenate(([0], profile[:, 1], profile[-1:, 1])) / size
        axis.step(times, held, where="post", linewidth=1.2, label=f"{name}: {held.max():.3g}")
    limits = sorted({int(c) for c in problem.capacity if c < UNLIMITED})
    # A capacity is drawn up to so many times the most memory held; a line far above would press
    # the curves flat
    near_capacity = 1.6
    near = [limit for limit in limits if limit <= near_capacity * most]
    for limit in near:
        axis.axhline(limit / size, color=FRAME, linestyle="--", linewidth=0.9)
    far = _far_text(schedule, limits[len(near) :])
    axis.set_ylim(0, 1.12 * max([most, *near]) / size or 1)
    axis.set_ylabel(f"held by micro-\nbatches{unit}{far}", fontsize=8)
    if problem.num_devices <= 8:
        axis.legend(
            title="most held",
            title_fontsize=7,
            fontsize=7,
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
        )


def _far_text(schedule: PipelineSchedule, limits: list[int]) -> str:
    """Tell the least capacity that is beyond the panel, "" if none is."""
    if not limits:
        return ""
    unit, size = _memory_unit(schedule, limits[0])
    return f"\n(room for {limits[0] / size:.3g}{unit.replace(',', '')})"


def _memory_unit(schedule: PipelineSchedule, most: int) -> tuple[str, float]:
    """Return the unit of memory, with a comma before it, and its bytes; none for block tables and
    shapes, and where less is held.
    """
    if not _timed(schedule) or most < 4096:
        return "", 1.0
    return next(
        (f", {name}", float(size))
        for name, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
        if most >= size
    )
