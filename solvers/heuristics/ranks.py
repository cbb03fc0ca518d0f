# mypy: disable-error-code="assignment"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

"""Compiled ranks of ops (levels, optimistic costs) and the topological lists that they induce."""

from __future__ import annotations

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, row_of
from placeopt.model.heaps import pop, push
from placeopt.model.projection import CostArrays, GraphArrays

BOTTOM = np.int64(0)
"""Where a heap begins in its array."""


@entry
def upward_rank(graph: GraphArrays, work: Floats, delay: Floats) -> tuple[Floats, Ints]:
    """Longest path from the start of each op to the end of the graph (b-level), and the next op on
    it.

    `work` is ticks per op, `delay` ticks per tensor (zeros give static levels). Ties keep the first
    edge.
    """
    n = len(work)
    rank = np.zeros(n)
    following = np.full(n, -1, np.int64)
    for position in range(n - 1, -1, -1):
        op = graph.order[position]
        tail = 0.0
        for e in row_of(graph.successors.pointer, op):
            length = delay[graph.successors.tensor[e]] + rank[graph.successors.op[e]]
            if length > tail or following[op] < 0:
                tail = length
                following[op] = graph.successors.op[e]
        rank[op] = work[op] + tail
    return rank, following


@entry
def clustered_rank(graph: GraphArrays, work: Floats, delay: Floats, cluster: Ints) -> Floats:
    """b-levels when transfers inside a cluster take no time."""
    n = len(work)
    rank = np.zeros(n)
    for position in range(n - 1, -1, -1):
        op = graph.order[position]
        for e in row_of(graph.successors.pointer, op):
            length = rank[graph.successors.op[e]]
            if cluster[graph.successors.op[e]] != cluster[op]:
                length += delay[graph.successors.tensor[e]]
            rank[op] = max(rank[op], length)
        rank[op] += work[op]
    return rank


@entry
def placed_rank(graph: GraphArrays, costs: CostArrays, device_of: Ints) -> Floats:
    """b-levels of a given assignment: its own compute times, transfers only between different
    devices.
    """
    n = len(device_of)
    rank = np.zeros(n)
    for position in range(n - 1, -1, -1):
        op = graph.order[position]
        home = device_of[op]
        for e in row_of(graph.successors.pointer, op):
            length = rank[graph.successors.op[e]]
            there = device_of[graph.successors.op[e]]
            if there != home:
                length += costs.transfer[graph.successors.tensor[e], costs.link_class[home, there]]
            rank[op] = max(rank[op], length)
        rank[op] += costs.compute[op, home]
    return rank


@entry
def downward_rank(graph: GraphArrays, work: Floats, delay: Floats) -> Floats:
    """Longest path from a source to the start of each op (t-level)."""
    n = len(work)
    rank = np.zeros(n)
    for position in range(n):
        op = graph.order[position]
        for e in row_of(graph.predecessors.pointer, op):
            source = graph.predecessors.op[e]
            rank[op] = max(
                rank[op], rank[source] + work[source] + delay[graph.predecessors.tensor[e]]
            )
    return rank


@entry
def optimistic_cost(graph: GraphArrays, costs: CostArrays, delay: Floats) -> Floats:
    """Optimistic cost table of PEFT, shape (num_ops, num_devices).

    OCT(t_i, p_k) = max over children t_j of min over p_w of OCT(t_j, p_w) + w(t_j, p_w) + c_ij [w
    != k] (eq. 3). Since the minimum over w != k of x_w + c is only needed where it is below x_k,
    one minimum over all w serves every k. A device that cannot run a child gives no candidate; one
    that cannot run t_i keeps a value (unused).
    """
    n, k = costs.compute.shape
    table = np.zeros((n, k))
    for position in range(n - 1, -1, -1):
        op = graph.order[position]
        for e in row_of(graph.successors.pointer, op):
            child = graph.successors.op[e]
            cheapest = np.inf
            for device in range(k):
                if costs.compute[child, device] >= 0:
                    cheapest = min(cheapest, table[child, device] + costs.compute[child, device])
            cheapest += delay[graph.successors.tensor[e]]
            for device in range(k):
                cost = cheapest
                if costs.compute[child, device] >= 0:
                    cost = min(cost, table[child, device] + costs.compute[child, device])
                table[op, device] = max(table[op, device], cost)
    return table


@entry
def priority_list(graph: GraphArrays, position: Ints) -> Ints:
    """Order ops topologically, always taking the ready op with the smallest `position`."""
    n = len(position)
    waiting, result = np.empty(n, np.int64), np.empty(n, np.int64)
    place, ready = np.empty(n, np.int64), np.empty(n, np.int64)
    size = np.int64(0)
    for op in range(n):
        waiting[op] = graph.predecessors.pointer[op + 1] - graph.predecessors.pointer[op]
        if waiting[op] == 0:
            push(place, ready, BOTTOM, size, position[op], op)
            size += 1
    for step in range(n):
        op = ready[0]
        pop(place, ready, BOTTOM, size)
        size -= 1
        result[step] = op
        for e in row_of(graph.successors.pointer, op):
            child = graph.successors.op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                push(place, ready, BOTTOM, size, position[child], child)
                size += 1
    return result
