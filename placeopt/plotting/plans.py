"""Picture of a plan: a step in time, the layers of its stages, and the memory of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.model.objective import time_text
from placeopt.plans.timeline import step_timeline
from placeopt.plotting.style import new_figure, time_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.planning.plan_model import Planned
    from placeopt.plans.plan import PlanStage

COLOURS = {"F": "#4878a8", "B": "#a8c4dd", "W": "#d8c27a"}
LABELS = {"F": "forward", "B": "backward", "W": "gradients of weights"}
MEMORY_COLOUR = "#7a9a5a"


def plan_figure(planned: Planned) -> Any:
    """Draw a step of a plan: forward and backward passes per stage, and beside them memory of a
    device and its limit.

    Raises
    ------
    InputError
        If there is no plan.
    """
    plan, price = planned.plan, planned.price
    if plan is None or price is None:
        raise InputError(f"'{planned.problem.name}' has no plan to draw: {planned.result.message}")
    count, tick = len(plan.on_devices), planned.problem.tick_seconds
    figure = new_figure(11, 1.8 + 0.42 * count)
    from matplotlib.patches import Patch

    time, memory = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    passes, end = step_timeline(planned.problem, plan)
    unit, size = time_unit(end, tick)
    work = sum(one.end - one.start for one in passes)
    bubble = 1 - work / max(1, count * end)
    most_passes = 4000
    for one in passes[:most_passes]:
        colour = COLOURS[one.kind]
        time.barh(
            one.device,
            (one.end - one.start) / size,
            left=one.start / size,
            color=colour,
            height=0.8,
            linewidth=0,
        )
    labels = []
    for i, stage in enumerate(plan.on_devices):
        priced = max(price.stages[i::count], key=lambda stage: stage.memory)
        labels.append(f"stage {i}: {_label(stage, plan.stages[i::count])}")
        limit = planned.problem.pool(priced.kind).memory / 2**30
        memory.barh(i, priced.memory / 2**30, color=MEMORY_COLOUR, height=0.6)
        memory.plot([limit, limit], [i - 0.4, i + 0.4], color="black", linewidth=1)
    time.set_yticks(range(count), labels, fontsize=7)
    time.invert_yaxis()
    time.set_xlim(0, end / size)
    time.set_xlabel(f"time ({unit})")
    memory.set_xlabel("memory per device and limit (GiB)", fontsize=8)
    kinds = [kind for kind in COLOURS if any(one.kind == kind for one in passes)]
    figure.legend(
        handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in kinds],
        loc="outside lower center",
        ncols=len(kinds),
        fontsize=7,
        frameon=False,
    )
    gap = "" if planned.result.gap is None else f", gap {100 * planned.result.gap:.2f} %"
    time.set_title(
        f"{planned.problem.name}: {time_text(planned.step_seconds)} per step{gap}, bubble "
        f"{bubble:.1%} of the wall clock",
        fontsize=9,
    )
    return figure


def _label(stage: PlanStage, held: Sequence[PlanStage]) -> str:
    """Return the layers that the devices of a stage hold, and the devices."""
    spans = ", ".join(f"{part.layers[0]}-{part.layers[-1]}" for part in held)
    groups = " + ".join(f"{group.count}x{group.tensor} {group.kind}" for group in stage.replicas)
    return f"layers {spans}\n{groups}"
