"""Starts of the latency: segments one after the other, the parts of each side by side.

The parts of a segment of a topological order (its weakly connected components) wait for nothing of
each other: several accelerators hold them at the same time, or the pool of the CPUs does, where a
part takes as long as its longest path. Let T(i, j, A) be what the nodes i..j-1 take on the
accelerators A and in the pool at least, for one of some numbers of parts that stay out of the pool:
as long as the largest of those on its fastest type, or all of those spread evenly, transfers
counted, or as another part in the pool. With the accelerators in one order, once for each slot,

    f[j][a] = min over i < j, b <= a of f[i][b] + T(i, j, {b, ..., a - 1})

over some ends i, j of segments says which segments get which accelerators. There the largest parts
come first, each where it ends first, in the pool if that takes no longer than T. Orders are by the
earliest end of every node, by its latest one, and by both: a tree falls into parts behind its
first nodes, or before its last ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints, stable_order, together
from placeopt.model.compiled import entry, row_of
from placeopt.model.problem import PlacementProblem
from placeopt.model.union_find import number_sets, root
from placeopt.period.contracted import ContractedProblem
from placeopt.solvers.exact.ideal_program import MAX_CELLS

NEVER = 2.0**62


class Nodes(NamedTuple):
    """What the kernel reads (N nodes in a topological order, G types, m tensors)."""

    ticks: Floats  # (N, G), NEVER where a type cannot run the node
    pool: int  # type of the CPUs, -1 without any
    resident: Ints  # (N,) bytes
    capacity: Ints  # (G,) bytes
    order_from: Ints  # rising
    order_to: Ints
    producer: Ints  # (m,)
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints
    weight: Ints  # (m, G) ticks


def side_by_side(
    problem: PlacementProblem, model: ContractedProblem, turn: Ints
) -> Iterator[tuple[Ints, Ints]]:
    """Yield device and slot of every op along each order where something fits.

    Parameters
    ----------
    model : contracted for chains.
    turn : 1 for the ops that come back through the last slots, as backward ops do, else 0.
    """
    ordered = [d for devices in model.types for d in devices if problem.io_class[d] >= 0]
    for key in _keys(model):
        along = model.renumbered(stable_order(key))
        cuts = _cuts(along)
        most = isqrt(MAX_CELLS // len(cuts) ** 2)  # f takes that many steps for all pairs of ends
        units = [(d, s) for s in range(problem.slots // (1 + turn.max())) for d in ordered][:most]
        found = _segments(along, cuts, units, len(ordered)) if units else None
        if found is not None:
            slot = along.expand(found[1])
            yield along.expand(found[0]), np.where(turn > 0, problem.slots - 1 - slot, slot)


def _keys(model: ContractedProblem) -> Iterator[Ints]:
    """Yield the sum of the earliest end of every node and its latest one, on the fastest types, and
    each by itself.
    """
    edges = list(together(model.order_from, model.order_to))
    ticks = np.maximum(1, model.smallest_times).tolist()
    early, late = list(ticks), list(ticks)
    for u, v in sorted(edges):
        early[v] = max(early[v], early[u] + ticks[v])
    for u, v in sorted(edges, reverse=True):
        late[u] = max(late[u], late[v] + ticks[u])
    first, last = np.array(early), np.array(ticks) - np.array(late)
    yield from (first + last, first, last)


def _cuts(model: ContractedProblem, *, bins: int = 16) -> Ints:
    """Return the ends of segments that are tried: near the first and the last node, ever closer,
    and on both sides of the node behind which the fewest tensors are open, in each of `bins` equal
    parts of the order; fewer where all edges for every pair of them would take more than a second.
    """
    n = model.num_nodes
    readers = np.maximum.reduceat(model.consumer, model.consumer_ptr[:-1])
    change = np.bincount(model.producer + 1, minlength=n + 1)
    opened = (change - np.bincount(readers + 1, minlength=n + 1)).cumsum()
    borders = np.linspace(1, n, min(bins, n) + 1).astype(np.int64).tolist()
    narrow = [a + int(opened[a:b].argmin()) for a, b in itertools.pairwise(borders) if a < b]
    close = n >> np.arange(0, n.bit_length(), 2)
    found = np.unique([0, n, *close, *(n - close), *narrow, *(x - 1 for x in narrow)])
    most = max(3, isqrt(2 * MAX_CELLS // (n + len(model.order_from))))
    return found[np.unique(np.linspace(0, len(found) - 1, most).astype(np.int64))]


@entry
def parts_between(a: Nodes, first: int, last: int) -> tuple[Ints, Floats, Ints]:
    """Return the part of each of the nodes first..last-1, the ticks of each part with transfers on
    every type (of its longest path in the pool), NEVER where it cannot hold the part, and the bytes
    of each part.
    """
    size, types = last - first, a.ticks.shape[1]
    first_of = np.arange(size)
    for e in range(len(a.order_from)):
        u, v = a.order_from[e] - first, a.order_to[e] - first
        if u >= 0 and v < size:
            u, v = root(first_of, u), root(first_of, v)
            first_of[max(u, v)] = min(u, v)
    part = np.empty(size, np.int64)
    count = number_sets(first_of, part)
    ticks, held = np.zeros((count, types)), np.zeros(count, np.int64)
    for v in range(size):
        held[part[v]] += a.resident[first + v]
        ticks[part[v]] += a.ticks[first + v]
    if a.pool >= 0:
        ticks[:, a.pool] = 0.0
        path = a.ticks[first:last, a.pool].copy()
        for e in range(len(a.order_from)):
            u, v = a.order_from[e] - first, a.order_to[e] - first
            if u >= 0 and v < size:
                path[v] = max(path[v], path[u] + a.ticks[first + v, a.pool])
        for v in range(size):
            ticks[part[v], a.pool] = max(ticks[part[v], a.pool], path[v])
    read_by = np.full(count, -1)
    for t in range(len(a.producer)):
        u, leaves = a.producer[t] - first, False
        inside = 0 <= u < size
        for e in row_of(a.consumer_ptr, t):
            v = a.consumer[e] - first
            if 0 <= v < size and not inside and read_by[part[v]] != t:
                read_by[part[v]] = t
                ticks[part[v]] += a.weight[t]
            leaves = leaves or v >= size
        if inside and leaves:
            ticks[part[u]] += a.weight[t]
    for i in range(count):
        for g in range(types):
            if held[i] > a.capacity[g]:
                ticks[i, g] = NEVER
    return part, ticks, held


def _segments(
    model: ContractedProblem, cuts: Ints, units: list[tuple[int, int]], width: int
) -> tuple[Ints, Ints] | None:
    """Return device and slot of every node where f is least; None where nothing fits.

    Parameters
    ----------
    units : device and slot. width : units that a segment may have, all of other devices.
    """
    by_from = stable_order(model.order_from)
    kind = model.type_of[[d for d, _ in units]]
    pools = [g for g, devices in enumerate(model.types) if model.problem.io_class[devices[0]] < 0]
    nodes = Nodes(
        np.where(model.allowed, model.total, NEVER),
        pools[0] if pools else -1,
        model.resident,
        model.capacity,
        model.order_from[by_from],
        model.order_to[by_from],
        model.producer,
        model.consumer_ptr,
        model.consumer,
        model.weight,
    )
    size = len(units) + 1
    span = np.arange(size) - np.arange(size)[:, None]
    room = np.concatenate([[0.0], np.cumsum(model.capacity[kind].astype(np.float64))])
    room = np.where((span >= 0) & (span <= width), room - room[:, None], -1.0)
    least = np.full((len(cuts), size), NEVER)
    back = np.zeros((len(cuts), size, 2), np.int64)
    least[0] = 0.0
    for j in range(1, len(cuts)):
        for i in range(j):
            ticks = np.full((size, size), NEVER)
            for rest, largest, work, held in _shares(nodes, kind, cuts[i], cuts[j]):
                speed = np.concatenate([[0.0], np.cumsum(1.0 / np.maximum(1.0, work))])
                with np.errstate(divide="ignore"):
                    spread = 1.0 / (speed - speed[:, None]) if work.any() else 0.0
                took = np.maximum(max(rest, largest), spread)
                np.minimum(ticks, took, out=ticks, where=room >= held)
            through = least[i][:, None] + ticks
            b = through.argmin(axis=0)
            value = through[b, np.arange(size)]
            better = value < least[j]
            least[j][better] = value[better]
            back[j][better] = np.column_stack([np.full(size, i), b])[better]
    return _read(model, nodes, cuts, units, least, back) if least[-1].min() < NEVER else None


def _shares(
    nodes: Nodes, kind: Ints, first: int, last: int
) -> Iterator[tuple[float, float, Floats, int]]:
    """Yield, for some numbers of parts out of the pool, twice as many each: ticks of the longest
    one in the pool, ticks of the largest one out of it, ticks of all out of it for each unit, and
    their bytes.
    """
    _, ticks, held = parts_between(nodes, first, last)
    least = ticks[:, kind].min(axis=1)
    pooled = ticks[:, nodes.pool] if nodes.pool >= 0 else np.full(len(held), NEVER)
    order = stable_order(np.where(least < NEVER, -pooled, 0))
    rest = np.append(np.maximum.accumulate(pooled[order][::-1])[::-1], 0.0)
    largest = np.maximum.accumulate(least[order])
    work, total = ticks[order][:, kind].cumsum(axis=0).clip(1.0), held[order].cumsum()
    count = len(held)
    yield float(rest[0]), 0.0, np.zeros(len(kind)), 0
    for r in sorted({int((pooled >= NEVER).sum()), count, *(2 ** np.arange(count.bit_length()))}):
        if 0 < r <= count and rest[r] < NEVER:
            yield float(rest[r]), float(largest[r - 1]), work[r - 1], int(total[r - 1])


def _read(
    model: ContractedProblem,
    nodes: Nodes,
    cuts: Ints,
    units: list[tuple[int, int]],
    least: Floats,
    back: Ints,
) -> tuple[Ints, Ints] | None:
    """Return device and slot of every node, segment by segment from the last one; None where the
    parts do not fit the room that is left.
    """
    pool = [(d, 0) for d in model.types[nodes.pool][:1] if nodes.pool >= 0]
    device, slot = np.array([*units, *pool]).T
    kind = model.type_of[device]
    room = model.capacity[model.type_of]
    j, a = len(cuts) - 1, int(least[-1].argmin())
    chosen = np.zeros(model.num_nodes, np.int64)
    while j > 0:
        i, b = back[j, a].tolist()
        of_node, ticks, held = parts_between(nodes, cuts[i], cuts[j])
        given = np.append(np.arange(b, a), np.arange(len(units), len(kind)))
        load, home = np.zeros(len(given)), np.zeros_like(held)
        for part in stable_order(-ticks[:, kind].min(axis=1)).tolist():
            end = load + ticks[part, kind[given]]
            end[room[device[given]] < held[part]] = NEVER
            in_time = pool and end[-1] <= least[j, a] - least[i, b]
            at = len(given) - 1 if in_time else int(end.argmin())
            if end[at] >= NEVER:
                return None
            home[part] = given[at]
            load[at] = end[at] if given[at] < len(units) else 0.0
            room[device[given[at]]] -= held[part]
        chosen[cuts[i] : cuts[j]] = home[of_node]
        j, a = i, b
    return device[chosen], slot[chosen]
