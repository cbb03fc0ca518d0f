"""Pictures of pipeline schedules: a Gantt chart in the manner people know, and memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import MissingExtraError

if TYPE_CHECKING:
    import os

    from placeopt.schedules.solution import PipelineSchedule

COLOURS = {"F": "#9dc3e6", "B": "#a9d18e", "I": "#8fd0c8", "W": "#f8cb9c", "other": "#d0cece"}
"""Forward blue, backward green, split backward teal (I) and orange (W)."""

LABELS = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights", "other": "other"}

MAX_CELLS_WITH_NUMBERS = 4000


def draw_pipeline(
    schedule: PipelineSchedule,
    path: str | os.PathLike[str] | None = None,
    *,
    memory: bool = True,
    until: int | None = None,
) -> Any:
    """Draw a schedule; return the matplotlib figure and write it to `path`, if given.

    One row per device, the micro-batch number in every cell, kinds by colour, darker for every second round of
    micro-batches; one repetition of the repetend is framed. Below: memory held by each device over time.

    Parameters
    ----------
    memory : whether to draw the memory panel.
    until : last tick to show, all by default.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "a picture of a schedule") from error
    problem = schedule.problem
    end = min(schedule.makespan, until) if until else schedule.makespan
    rows = problem.num_devices
    shortest = int(problem.span.min())
    width = float(np.clip(end / max(1, shortest) * 0.28, 7, 40))
    panels = 2 if memory and (problem.memory != 0).any() else 1
    heights = [max(1.2, 0.42 * rows), 1.6][:panels]
    figure = Figure(figsize=(width, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    gantt = axes[0]
    _draw_cells(schedule, gantt, end)
    if schedule.repetend is not None:
        _frame_repetend(schedule, gantt)
    gantt.set_ylim(rows - 0.5, -0.5)
    gantt.set_yticks(range(rows), problem.device_names)
    gantt.set_xlim(0, end)
    kinds = [kind for kind in COLOURS if kind in problem.kind]
    gantt.legend(handles=[Patch(facecolor=COLOURS[kind], edgecolor="#404040", label=LABELS[kind]) for kind in kinds],
                 ncols=len(kinds), loc="lower right", bbox_to_anchor=(1, 1.01), frameon=False, fontsize=8)  # fmt: skip
    period = float(schedule.period)
    gantt.set_title(
        f"{problem.name}: period {period:g}, "
        f"makespan {schedule.makespan}, bubble {schedule.bubble_period:.1%}",
        loc="left", fontsize=9,
    )  # fmt: skip
    if panels == 2:
        _draw_memory(schedule, axes[1], end)
    axes[-1].set_xlabel("ticks")
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _draw_cells(schedule: PipelineSchedule, axis: Any, end: int) -> None:
    """Draw a cell for every block that starts before `end`, with the number of its micro-batch where there is room."""
    from matplotlib.patches import Rectangle

    problem = schedule.problem
    numbered = schedule.micro_batches * problem.num_blocks <= MAX_CELLS_WITH_NUMBERS
    for j in range(schedule.micro_batches):
        for i in range(problem.num_blocks):
            start, span = int(schedule.start[j, i]), int(problem.span[i])
            if start >= end:
                continue
            for d in problem.devices_of(i).tolist():
                axis.add_patch(
                    Rectangle((start, d - 0.45), span, 0.9, facecolor=COLOURS[problem.kind[i]], edgecolor="#404040",
                              linewidth=0.5)
                )  # fmt: skip
                if numbered:
                    axis.text(start + span / 2, d, str(j), ha="center", va="center", fontsize=7, clip_on=True)


def _frame_repetend(schedule: PipelineSchedule, axis: Any) -> None:
    """Frame one repetition on every device: the runs of a whole period in the middle of the schedule.

    A device gets no frame where a greedy completion, which may be denser than the pattern, mixes in other runs.
    """
    from matplotlib.patches import Rectangle

    assert schedule.repetend is not None
    problem, period, size = schedule.problem, schedule.repetend.period, schedule.repetend.size
    turns = schedule.micro_batches // size
    index = schedule.repetend.index
    turn = max(turns // 2, int(index.max()))
    if turns <= turn:
        return  # too few micro-batches for a steady state
    # The run of block b in repetition `turn` belongs to micro-batch (turn - index_b) * size + member.
    member = (turn - index) * size + np.arange(size)[:, None]
    start = np.take_along_axis(schedule.start, member, axis=0)
    for d, blocks in enumerate(problem.on_device):
        here = list(blocks)
        if not here:
            continue
        left = int(start[:, here].min())
        right = int((start[:, here] + problem.span[here]).max())
        everything = schedule.start[:, here]
        inside = np.count_nonzero((everything >= left) & (everything < right))
        if right - left <= period and inside == size * len(here):
            axis.add_patch(
                Rectangle((left, d - 0.48), right - left, 0.96, fill=False, edgecolor="#c00000", linewidth=1.8, zorder=5)
            )


def _draw_memory(schedule: PipelineSchedule, axis: Any, end: int) -> None:
    problem = schedule.problem
    for d in range(problem.num_devices):
        profile = schedule.memory_profile(d)
        if not len(profile):
            continue
        times = np.concatenate(([0], profile[:, 0], [end]))
        held = np.concatenate(([0], profile[:, 1], profile[-1:, 1]))
        axis.step(times, held, where="post", linewidth=1, label=problem.device_names[d])
    limits = sorted({int(c) for c in problem.capacity if c < UNLIMITED})
    for limit in limits:
        axis.axhline(limit, color="#c00000", linestyle="--", linewidth=0.9)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("memory")
    if problem.num_devices <= 8:
        axis.legend(fontsize=7, ncols=min(8, problem.num_devices), frameon=False, loc="upper right")
