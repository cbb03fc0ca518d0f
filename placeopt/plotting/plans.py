"""Picture of a plan: a step in time, the layers of its stages, and the memory of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError
from placeopt.plans.timeline import step_timeline
from placeopt.plotting.style import new_figure

if TYPE_CHECKING:
    from placeopt.planning.planned import Planned

COLOURS = {"F": "#4878a8", "B": "#a8c4dd", "W": "#d8c27a"}
MEMORY_COLOUR = "#7a9a5a"
MOST_PASSES = 4000


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
    figure = new_figure(11, 1.6 + 0.42 * count)
    time, memory = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    passes, end = step_timeline(planned.problem, plan)
    for one in passes[:MOST_PASSES]:
        colour = COLOURS[one.kind]
        time.barh(
            one.device,
            (one.end - one.start) * tick,
            left=one.start * tick,
            color=colour,
            height=0.8,
            linewidth=0,
        )
    labels = []
    for i, stage in enumerate(plan.on_devices):
        priced = max(price.stages[i::count], key=lambda stage: stage.memory)
        groups = " + ".join(
            f"{group.count}x{group.tensor} {group.kind}" for group in stage.replicas
        )
        spans = ", ".join(f"{held.layers[0]}-{held.layers[-1]}" for held in plan.stages[i::count])
        labels.append(f"layers {spans}\n{groups}")
        limit = planned.problem.pool(priced.kind).memory / 2**30
        memory.barh(i, priced.memory / 2**30, color=MEMORY_COLOUR, height=0.6)
        memory.plot([limit, limit], [i - 0.4, i + 0.4], color="black", linewidth=1)
    time.set_yticks(range(count), labels, fontsize=7)
    time.invert_yaxis()
    time.set_xlim(0, end * tick)
    time.set_xlabel("seconds (dark: forward, light: backward, yellow: gradients of weights)")
    memory.set_xlabel("GiB of a device and its limit")
    gap = "" if planned.result.gap is None else f", gap {100 * planned.result.gap:.2f} %"
    time.set_title(
        f"{planned.problem.name}: {planned.step_seconds:.4g} s per step{gap}", fontsize=9
    )
    return figure
