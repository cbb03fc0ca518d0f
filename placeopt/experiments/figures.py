"""Pictures of a study: performance profile, gaps to the bound, convergence with bands over
seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.experiments import analysis
from placeopt.plotting.style import COLOURS, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PANELS = 12
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.4)))


def _look(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def profile_figure(table: analysis.SolverTable) -> Any:
    """Share of instances (y) that a solver brings within a percentage (x) of the best median."""
    figure = new_figure(8, 4.4)
    axes = figure.add_subplot()
    value = np.where(np.isnan(table.median), np.nan, table.median)
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = np.nanmax(value / np.nanmin(value, axis=1, keepdims=True))
    most = 100 * (float(np.clip(worst, 1.05, 10.0)) - 1) if np.isfinite(worst) else 5.0
    excess = np.concatenate([np.linspace(0, 1, 101), np.geomspace(1, most, 400)[1:]])
    for j, share in enumerate(analysis.profile(table, 1 + excess / 100)):
        axes.step(excess, share, where="post", label=table.solvers[j], **_look(j))
    axes.set_xscale(
        "symlog", linthresh=1
    )  # from a tenth of a per cent to twice as long on one axis
    axes.set_xlim(0, most)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("above the best median, at most (%)")
    axes.set_ylabel("share of instances")
    axes.set_ylim(0, 1.02)
    axes.set_title("Performance profile", fontsize=10)
    _finish(figure, axes, len(table.solvers))
    return figure


def gap_figure(table: analysis.SolverTable) -> Any:
    """Gap of every solver's median to the proven bound: one dot per instance, a bar for the
    mean.
    """
    figure = new_figure(8, 1.2 + 0.32 * len(table.solvers))
    axes = figure.add_subplot()
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = 100 * (table.median - table.lower_bound[:, None]) / table.median
    means = 100 * analysis.mean_gaps(table)
    order = np.argsort(np.where(np.isnan(means), np.inf, means), kind="stable")
    for row, j in enumerate(order):
        if not np.isnan(means[j]):
            axes.barh(row, means[j], color=COLOURS[0], alpha=0.35, height=0.7)
            axes.plot(
                gaps[:, j], np.full(len(gaps), row), "o", markersize=3, color=COLOURS[0], alpha=0.7
            )
    axes.set_yticks(range(len(order)), [table.solvers[j] for j in order])
    axes.invert_yaxis()
    axes.set_xlabel("gap to the proven lower bound (%); bar: mean, dots: instances")
    axes.set_xlim(0)
    axes.set_title("Gaps", fontsize=10)
    _finish(figure, axes, 0)
    return figure


def convergence_figure(rows: Sequence[dict[str, Any]], solvers: Sequence[str]) -> Any:
    """Incumbent against evaluations, median and quartiles over seeds; None if no run has a
    trace.
    """
    curves = analysis.convergence(rows)
    names = [name for name in curves if curves[name]][:MAX_PANELS]
    if not names:
        return None
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    figure = new_figure(4.4 * columns, 3.0 * height + 0.6)
    grid = figure.subplots(height, columns, squeeze=False)
    for at, name in enumerate(names):
        axes = grid[at // columns][at % columns]
        starts, ends = [], []
        for j, label in enumerate(solvers):
            if label in curves[name]:
                x, (low, middle, high) = curves[name][label]
                axes.plot(x, middle, label=label, linewidth=1.3, **_look(j))
                axes.fill_between(x, low, high, color=_look(j)["color"], alpha=0.18, linewidth=0)
                starts.append(np.nanmax(high))
                ends.append(middle[-1])
        _zoom(axes, np.array(starts), np.array(ends))
        axes.set_xscale("log")
        axes.set_title(name, fontsize=7)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#E8E8E8", linewidth=0.5)
        if at + columns >= len(names):
            axes.set_xlabel("evaluations", fontsize=8)
    for at in range(len(names), height * columns):
        grid[at // columns][at % columns].set_visible(False)
    handles: dict[str, Any] = {}
    for axes in grid.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.supylabel("incumbent (ticks)", fontsize=8)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=4,
        fontsize=7,
        frameon=False,
    )
    return figure


def _zoom(axes: Any, starts: Any, ends: Any) -> None:
    """Set the y axis to where solvers end, not to where a bad start would draw it."""
    starts, ends = starts[np.isfinite(starts)], ends[np.isfinite(ends)]
    if not len(ends):
        return
    low, high = ends.min(), np.quantile(ends, 0.8)
    room = max(high - low, 0.02 * low, 1)
    top = min(starts.max(), high + room)
    axes.set_ylim(low - 0.08 * room, top + 0.05 * room)


def _finish(figure: Any, axes: Any, entries: int) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    if entries:
        figure.legend(loc="outside lower center", ncols=min(4, entries), fontsize=8, frameon=False)
