"""Fork and join: what many branches between two ops cost, on one device or spread over several.

Proof. Let op v come after op u, and let S be ops that come after u and before v. For w in S let
near(w) be the longest path from the end of u to the start of w with free communication, and
apart(w) a lower bound on the same delay where u and w are on different devices (d0 and d1 of
`communication`, read from u); likewise near' and apart' towards v. Let j devices run S. One of them
at most is that of u, so before their first ops they idle, counted from the end of u, at least the
least near of S and the j - 1 smallest apart; between their last ops and the start of v, likewise.
With W the work of S,

    j (start(v) - end(u)) >= near + (j - 1 smallest apart) + W + near' + (j - 1 smallest apart'),

so from u to v passes at least the least of this over j, whatever devices u and v are on. That is an
edge of the graph: with it the heads and tails of `communication` hold as before. Each op counts as
fast as anywhere.

What it adds: a head pays for the way to its op and a tail for the way from it, but where one layer
fans out into experts or branches, neither pays for both ways at once.

Every fork is taken with the first op at which all of its branches have met, every join with the
last one before which they part; S is the best set by thresholds on apart and apart'.

References
----------
E. B. Fernandez, B. Bussell, "Bounds on the number of processors and time for multiprocessor optimal
schedules", IEEE Transactions on Computers 22, 1973 (idle time before the first and after the last
ops).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.bounds.communication import communication_bound
from placeopt.makespan.bounds.relaxation import INFINITE, sample
from placeopt.makespan.bounds.segment_graph import MOST_TICKS, Delay, SegmentGraph, too_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.segment_graph import Evidence, Neighbours, Segment
    from placeopt.model.arrays import Floats


class Spread(NamedTuple):
    """Ops between two others, and the ticks that pass there at least, however the ops are spread
    over devices.
    """

    ticks: int
    ops: tuple[int, ...]


def fork_join_bound(evidence: Evidence, end: float) -> tuple[int, HeadsTails, list[Delay]]:
    """Return the bound, at least `known`, with the delays found until `end` and the heads and tails
    that they give.
    """
    delays = [Delay(segment, spread.ticks) for segment, spread in spreads(evidence, end)]
    if not delays:
        return evidence.known, evidence.heads, []
    heads = evidence.heads_with(delays)
    return max(evidence.known, communication_bound(heads)), heads, delays


def spreads(
    evidence: Evidence, end: float, *, most_between: int = 1000, most_visited: int = 40_000
) -> list[tuple[Segment, Spread]]:
    """Return the segments found until `end` (`time.perf_counter`) whose ops need more than the
    longest path among them.

    Only those that, all together, could help to pass what is known.

    Parameters
    ----------
    most_between : ops between a fork and its join.
    most_visited : ops between forks and joins that are visited in all, small segments first.
    """
    if too_large(evidence.relaxation):
        return []
    graph, visited = SegmentGraph(evidence.relaxation, end), 0
    found: dict[Segment, Spread] = {}
    for segment in graph.worthwhile(graph.nearest(most_between), evidence.heads, evidence.known):
        visited += len(segment.between)
        if visited > most_visited or time.perf_counter() >= end:
            break
        spread, path = _spread(graph, segment, evidence.relaxation.problem.num_devices)
        if spread.ticks > path:
            found[segment] = spread
    useful = graph.worthwhile(
        found, evidence.heads, evidence.known, lambda segment: found[segment].ticks
    )
    return [(segment, found[segment]) for segment in useful]


def _spread(graph: SegmentGraph, segment: Segment, num_devices: int) -> tuple[Spread, int]:
    """Return the ops that need most, and the longest path between the ends."""
    ops = segment.between
    near, apart = _delays(segment.first, (*ops, segment.last), graph.before, graph.fastest)
    near_end, apart_end = _delays(segment.last, ops[::-1], graph.behind, graph.fastest)
    usable = sorted(
        (v for v in ops if max(apart[v], apart_end[v]) <= MOST_TICKS), key=lambda v: -apart_end[v]
    )
    if not usable:
        return Spread(0, ()), near[segment.last]
    rows = [(near[v], apart[v], near_end[v], apart_end[v], graph.fastest[v]) for v in usable]
    level, size = _thresholds(np.array(rows, np.float64).T, num_devices)
    chosen = [v for v in usable[:size] if apart[v] >= level]
    idle = [
        (min(map(at.__getitem__, chosen)), sorted(map(far.__getitem__, chosen)))
        for at, far in ((near, apart), (near_end, apart_end))
    ]
    work = sum(graph.fastest[v] for v in chosen)
    ticks = min(
        -(-(work + sum(at + sum(far[: j - 1]) for at, far in idle)) // j)
        for j in range(1, min(num_devices, len(chosen)) + 1)
    )
    return Spread(ticks, tuple(sorted(chosen, key=graph.place.__getitem__))), near[segment.last]


def _delays(
    end: int, ops: Iterable[int], before: Sequence[Neighbours], fastest: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the least ticks from one end of a segment to its ops, in any case and where they are
    on another device.

    Parameters
    ----------
    ops : each after those of `before`, its neighbours towards that end.
    """
    near, apart = {end: 0}, {end: INFINITE}
    for w in ops:
        near[w] = apart[w] = 0
        for x, free, pay in before[w]:
            if x in near:
                run = fastest[x] if x != end else 0
                near[w] = max(near[w], free + run + near[x])
                apart[w] = max(
                    apart[w], min(pay + run + near[x], INFINITE if free else run + apart[x])
                )
    return near, apart


def _thresholds(rows: Floats, num_devices: int, *, most_levels: int = 24) -> tuple[float, int]:
    """Return the least apart of the best set, and of how many ops of `rows` it is taken: only the
    choice is in floating point.

    Parameters
    ----------
    most_levels : thresholds on the delay from the fork to another device.
    """
    near, apart, near_end, apart_end, ticks = rows
    levels = sample(np.unique(apart), most_levels)
    inside = apart >= levels[:, None]
    alone = np.cumsum(np.where(inside, ticks, 0.0), axis=1)
    for row in (near, near_end):
        alone += np.minimum.accumulate(np.where(inside, row, np.inf), axis=1)
    many = np.minimum(num_devices, np.maximum(1, np.cumsum(inside, axis=1)))
    spread = (alone + (many - 1) * (levels[:, None] + apart_end)) / many
    value = np.where(inside, np.minimum(alone, spread), -1.0)
    level, last = np.unravel_index(int(value.argmax()), value.shape)
    return float(levels[level]), int(last) + 1
