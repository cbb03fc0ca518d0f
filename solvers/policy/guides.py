"""Guides of local steps: an incumbent with its critical ops, and the windows of ops that are placed
anew.

A window begins at an op of a longest chain of the incumbent's schedule, where something has to
change if the makespan is to fall, and grows: along expensive edges, along any edges, or over ops
that run at about the same time.

References
----------
- P. Shaw. Using constraint programming and local search methods to solve vehicle routing problems.
  CP 1998. (Large neighbourhoods of related decisions.)
- J. E. Kelley, M. R. Walker. Critical-path planning and scheduling. 1959.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Bits, Flags, Floats, Ints, SmallInts
from placeopt.model.compiled import entry, inlined, row_of, uncounted_entry, uncounted_kernel
from placeopt.model.random_bits import split_uniform
from placeopt.solvers.policy.episode_arrays import Graph, Guide

KINDS = HEAVY, NEAR, SAME_TIME = range(3)
"""How a window grows: along expensive edges, along any edges, over ops that run at the same
time."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A placement that local steps change, by topological place.

    Attributes
    ----------
    value : ticks. start, finish : of every op, when the ops run in the guide's order without
    contention.
    critical : whether an op is on a chain that ends last.
    """

    value: int
    guide: Guide
    start: Floats
    finish: Floats
    critical: Flags

    @classmethod
    def of(cls, graph: Graph, value: int, device: SmallInts, rank: Ints) -> Incumbent:
        """Describe a placement; `device` and `rank` by topological place."""
        n = len(device)
        order = np.argsort(rank, kind="stable").astype(np.int64)
        place = np.empty(n)
        place[order] = 1.0 - np.arange(n) / n
        home = device.astype(np.int64)
        start, finish, tail, critical = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, np.bool_)
        follow(graph, home, order, start, finish, tail, critical)
        return cls(
            value,
            Guide(home, order, place, tail / max(1e-300, float(tail.max()))),
            start,
            finish,
            critical,
        )


def no_guide(num_ops: int) -> Guide:
    """Return the guide of an episode that has none."""
    return Guide(
        np.full(num_ops, -1, np.int64),
        np.zeros(num_ops, np.int64),
        np.zeros(num_ops),
        np.zeros(num_ops),
    )


@uncounted_kernel
def _run(graph: Graph, device: Ints, order: Ints, start: Floats, finish: Floats) -> None:
    """Let the ops run in `order`, each as early as it can behind what its device runs before it."""
    for i in range(order.shape[0]):
        v = order[i]
        begin = 0.0
        j = i - 1
        while j >= 0 and device[order[j]] != device[v]:
            j -= 1
        if j >= 0:
            begin = finish[order[j]]
        for e in row_of(graph.predecessors.pointer, v):
            begin = max(
                begin,
                finish[graph.predecessors.op[e]]
                + _delay(graph, device, graph.predecessors.op[e], v, e),
            )
        start[v] = begin
        finish[v] = begin + graph.compute[v, device[v]]


@inlined
def _delay(graph: Graph, device: Ints, u: int, v: int, e: int) -> float:
    """Ticks from the end of u to its tensor's arrival at v, over in-edge e."""
    if device[u] == device[v]:
        return 0.0
    return graph.transfer[graph.predecessors.tensor[e], graph.link_class[device[u], device[v]]]


@uncounted_kernel
def _mark(
    graph: Graph, device: Ints, order: Ints, start: Floats, finish: Floats, critical: Flags
) -> None:
    """Mark the ops of the chains that end last: whatever an op of a chain waited for longest is on
    it, too.
    """
    last = 0.0
    for v in range(order.shape[0]):
        last = max(last, finish[v])
    for v in range(order.shape[0]):
        critical[v] = finish[v] >= last
    for i in range(order.shape[0] - 1, -1, -1):
        v = order[i]
        if not critical[v]:
            continue
        j = i - 1
        while j >= 0 and device[order[j]] != device[v]:
            j -= 1
        if j >= 0 and finish[order[j]] >= start[v]:
            critical[order[j]] = True
        for e in row_of(graph.predecessors.pointer, v):
            u = graph.predecessors.op[e]
            if finish[u] + _delay(graph, device, u, v, e) >= start[v]:
                critical[u] = True


@uncounted_entry
def follow(
    graph: Graph,
    device: Ints,
    order: Ints,
    start: Floats,
    finish: Floats,
    tail: Floats,
    critical: Flags,
) -> None:
    """Fill when the ops start and finish, the longest path from each start to the end, and which
    ops are critical.
    """
    _run(graph, device, order, start, finish)
    for v in range(order.shape[0] - 1, -1, -1):
        tail[v] = 0.0
        for e in row_of(graph.successors.pointer, v):
            x = graph.successors.op[e]
            path = tail[x]
            if device[x] != device[v]:
                path += graph.transfer[
                    graph.successors.tensor[e], graph.link_class[device[v], device[x]]
                ]
            tail[v] = max(tail[v], path)
        tail[v] += graph.compute[v, device[v]]
    _mark(graph, device, order, start, finish, critical)


@entry
def critical_rows(graph: Graph, devices: SmallInts, ranks: Ints) -> Flags:
    """Return which ops of every row are critical, shape (batch, n)."""
    batch, n = devices.shape
    critical = np.zeros((batch, n), np.bool_)
    order, device, start, finish = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n),
        np.empty(n),
    )
    for b in range(batch):
        for v in range(n):
            order[ranks[b, v]] = v
            device[v] = devices[b, v]
        _run(graph, device, order, start, finish)
        _mark(graph, device, order, start, finish, critical[b])
    return critical


@inlined
def _reach(graph: Graph, v: int, near: Floats, window: Flags) -> None:
    """Note how expensive the dearest edge is from the window to each neighbour of op v."""
    for e in row_of(graph.successors.pointer, v):
        x = graph.successors.op[e]
        near[x] = max(near[x], graph.weight[graph.successors.tensor[e]] + 1e-9)
    for e in row_of(graph.predecessors.pointer, v):
        x = graph.predecessors.op[e]
        near[x] = max(near[x], graph.weight[graph.predecessors.tensor[e]] + 1e-9)
    window[v] = True


@inlined
def _draw_neighbour(near: Floats, window: Flags, heavy: bool, random: Bits) -> int:
    """Draw an op next to the window: by the cost of the edge (with a little for all), or uniformly;
    -1 if there is none.
    """
    top, count, total = 0.0, 0, 0.0
    for v in range(near.shape[0]):
        if near[v] > 0 and not window[v]:
            top = max(top, near[v])
            total += near[v]
            count += 1
    if count == 0:
        return -1
    least = 0.02 * top
    left = split_uniform(random) * (total + least * count if heavy else count)
    chosen = -1
    for v in range(near.shape[0]):
        if near[v] > 0 and not window[v]:
            chosen = v
            left -= near[v] + least if heavy else 1.0
            if left < 0:
                break
    return chosen


@inlined
def _grow_over_time(start: Floats, finish: Floats, op: int, size: int, window: Flags) -> None:
    """Add the ops whose middle is nearest to that of `op`."""
    middle = start[op] + finish[op]
    for _ in range(size):
        best = -1
        for v in range(window.shape[0]):
            if not window[v] and (
                best < 0
                or abs(start[v] + finish[v] - middle) < abs(start[best] + finish[best] - middle)
            ):
                best = v
        if best < 0:
            break
        window[best] = True


@entry
def grow_windows(
    graph: Graph, start: Floats, finish: Floats, seeds: Ints, sizes: Ints, kinds: Ints, random: Bits
) -> Flags:
    """Return a window for each op of `seeds`, of about `sizes` ops, grown in a way of `kinds`;
    whole units only.

    Parameters
    ----------
    random : state of the generator (uint64[1]), advanced.
    """
    n = graph.compute.shape[0]
    windows = np.zeros((seeds.shape[0], n), np.bool_)
    near, taken = np.zeros(n), np.zeros(graph.unit_bytes.shape[0], np.bool_)
    for b in range(seeds.shape[0]):
        window = windows[b]
        window[seeds[b]] = True
        if kinds[b] == SAME_TIME:
            _grow_over_time(start, finish, seeds[b], sizes[b] - 1, window)
        else:
            near[:] = 0.0
            v = seeds[b]
            for _ in range(sizes[b] - 1):
                _reach(graph, v, near, window)
                v = _draw_neighbour(near, window, kinds[b] == HEAVY, random)
                if v < 0:
                    break
                window[v] = True
        taken[:] = False
        for v in range(n):
            taken[graph.unit[v]] |= window[v]
        for v in range(n):
            window[v] = taken[graph.unit[v]]
    return windows
