"""Statistics of a graph's shape, and its picture: the graph itself if small, its level profile if
large.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.graph import OpGraph, depths
from placeopt.plotting.style import COLOURS, GREY, new_figure


def levels(graph: OpGraph) -> Ints:
    """Return the number of edges on the longest path from a source to each op, shape (num_ops,)."""
    return depths(graph.num_ops, graph.edge_source, graph.consumer, graph.op_names)


def graph_statistics(graph: OpGraph) -> dict[str, Any]:
    """Return ops, tensors, edges, depth, width, parameters, flops, unshaped ops and the count of
    each op type.
    """
    count = np.bincount(levels(graph))
    return {
        "name": graph.name,
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": graph.num_edges,
        "depth": len(count),
        "width": int(count.max()),
        "parameters": int(graph.parameters.sum()),
        "flops": int(graph.flops.sum()),
        "bytes": int(graph.tensor_bytes.sum()),
        "unshaped_ops": int(graph.unshaped.sum()),
        "backward_ops": int(graph.backward.sum()),
        "op_types": dict(
            sorted(Counter(graph.op_types).items(), key=lambda item: (-item[1], item[0]))
        ),
    }


def graph_figure(graph: OpGraph) -> Any:
    """Return a matplotlib figure: ops by level with their edges, or ops per level for more than 150
    ops.
    """
    level = levels(graph)
    max_drawn = 150
    if graph.num_ops > max_drawn:
        return _profile(graph, level)
    count = np.bincount(level)
    figure = new_figure(min(24.0, 2.5 + 0.55 * len(count)), 2.0 + 0.42 * int(count.max()))
    axes = figure.add_subplot()
    place: Floats = np.zeros((graph.num_ops, 2))
    for at in range(len(count)):
        ops = np.flatnonzero(level == at)
        place[ops, 0] = at
        place[ops, 1] = np.arange(len(ops)) - (len(ops) - 1) / 2
    for u, v in graph.edges.tolist():
        axes.annotate(
            "",
            place[v],
            place[u],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#999999",
                "lw": 0.6,
                "shrinkA": 6,
                "shrinkB": 6,
            },
        )
    ranked = [name for name, _ in Counter(graph.op_types).most_common(len(COLOURS))]
    colours = [COLOURS[ranked.index(x)] if x in ranked else GREY for x in graph.op_types]
    axes.scatter(place[:, 0], place[:, 1], s=110, c=colours, zorder=3)
    for v, name in enumerate(graph.op_names):
        axes.annotate(
            name.rsplit("/", 1)[-1][:14],
            place[v],
            (0, -11),
            textcoords="offset points",
            ha="center",
            fontsize=5,
        )
    axes.set_axis_off()
    axes.set_title(f"{graph.name}: {graph.num_ops} ops", fontsize=10)
    return figure


def _profile(graph: OpGraph, level: Ints) -> Any:
    figure = new_figure(11, 4)
    axes = figure.add_subplot()
    count = np.bincount(level)
    axes.fill_between(
        np.arange(len(count)), count, step="mid", color=COLOURS[0], alpha=0.8, linewidth=0
    )
    axes.set_xlabel("level (edges from a source)")
    axes.set_ylabel("ops")
    axes.set_title(f"{graph.name}: {graph.num_ops} ops in {len(count)} levels", fontsize=10)
    axes.set_ylim(0)
    axes.set_xlim(0, max(1, len(count) - 1))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
