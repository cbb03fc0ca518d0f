"""What passes at least between two ops of a graph: by what many branches between them cost (fork
and join), and by the small problem that the ops between them are (segments).

Each is an edge of the graph: with it the longest paths, and the communication-aware heads and tails
(`communication`, whose proof holds for edges with any delay), hold as before.

Fork and join, on one device or spread over several. Proof. Let op v come after op u, and let S be
ops that come after u and before v. For w in S let near(w) be the longest path from the end of u to
the start of w with free communication, and apart(w) and away(w) lower bounds on the same delay
where u and w are on different devices and on different islands (d0, d1 and d2 of `communication`,
read from u; away is no less than apart); likewise near', apart' and away' towards v. Let j devices
run S, and i be the largest number of devices on one island. One of the j at most is that of u, at
most i - 1 others are on its island, and their first ops differ; so before these they idle, counted
from the end of u, at least the least near of S, the min(i, j) - 1 smallest apart and the j -
min(i, j) smallest away (with fewer on the island of u no less, since away is no less than apart);
between their last ops and the start of v, likewise. With W the work of S,

    j (start(v) - end(u)) >= near + (smallest apart and away) + W + near' + (likewise),

so from u to v passes at least the least of this over j, whatever devices u and v are on. Each op
counts as fast as anywhere. Every fork is taken with the first op at which all of its branches have
met, every join with the last one before which they part; S is the best set by thresholds on away
and away'.

What it adds: a head pays for the way to its op and a tail for the way from it, but where one layer
fans out into experts or branches, neither pays for both ways at once.

Segments. Proof. Let B be all ops that come after u and before v. In any schedule the ops of B run
between the end of u and the start of v, one at a time on each device, each after those before it
and after their results have come where they are on another device; so do u's results and those that
v needs. Let d(u, v) be the least time from end to start in which that is possible for these ops
alone: on the same devices, each transfer over the cheapest link. Every schedule gives such a
schedule of the segment, so start(v) >= end(u) + d(u, v), whatever devices u and v are on. CP-SAT
solves the small problem, its lower bound is enough; segments that look alike are solved once. Small
segments are taken between every fork and every join nearby, wider ones where all branches of a fork
have met.

What it adds: heads weigh one device against many for every op by itself, and lose a little wherever
branches part and meet again. Along a recurrent network or a stack of modules that little is lost
every time; d(u, v) has none of it.

References
----------
E. B. Fernandez, B. Bussell, "Bounds on the number of processors and time for multiprocessor optimal
schedules", IEEE Transactions on Computers 22, 1973 (idle time before the first and after the last
ops).
"""

from __future__ import annotations

import math
import time
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.bounds.communication import HeadsTails, communication_bound
from placeopt.makespan.bounds.energy import head_tail_bound
from placeopt.makespan.bounds.relaxation import INFINITE, sample
from placeopt.makespan.bounds.segment_graph import (
    MOST_TICKS,
    Delay,
    Evidence,
    Neighbours,
    Segment,
    SegmentGraph,
    serial_ticks,
    too_large,
)
from placeopt.model.arrays import positions
from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortools.sat.python import cp_model

    from placeopt.model.arrays import Floats


class Spread(NamedTuple):
    """Ops between two others, and the ticks that pass there at least, however the ops are spread
    over devices.
    """

    ticks: int
    ops: tuple[int, ...]


def fork_join_bound(
    evidence: Evidence, end: float, work: float = math.inf
) -> tuple[int, HeadsTails, list[Delay]]:
    """Return the bound, at least `known`, with the delays found and the heads and tails that they
    give, each until half of the time to `end` has passed.

    Parameters
    ----------
    work : for the heads and tails, as for `heads_tails`.
    """
    found = spreads(evidence, half_way(end))
    delays = [Delay(segment, spread.ticks) for segment, spread in found]
    if not delays:
        return evidence.known, evidence.heads, []
    heads = evidence.heads_with(delays, end, work)
    return max(evidence.known, communication_bound(heads)), heads, delays


def half_way(end: float) -> float:
    """Return the middle between now and `end`, in seconds of `time.perf_counter`."""
    now = time.perf_counter()
    return now + (end - now) / 2


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
        spread, path = _spread(graph, segment)
        if spread.ticks > path:
            found[segment] = spread
    useful = graph.worthwhile(
        found, evidence.heads, evidence.known, lambda segment: found[segment].ticks
    )
    return [(segment, found[segment]) for segment in useful]


class _Delays(NamedTuple):
    """Least ticks from one end of a segment to its ops: in any case, where they are on another
    device, and where they are on another island.
    """

    near: dict[int, int]
    apart: dict[int, int]
    away: dict[int, int]

    def idle(self, ops: list[int], devices: int, island: int) -> int:
        """Return the ticks that so many devices idle in all on this side of ops, of which each
        runs some.
        """
        near, apart, away = (sorted(map(delay.__getitem__, ops)) for delay in self)
        beside = min(devices, island) - 1
        return near[0] + sum(apart[:beside]) + sum(away[: devices - 1 - beside])


def _spread(graph: SegmentGraph, segment: Segment) -> tuple[Spread, int]:
    """Return the ops that need most, and the longest path between the ends."""
    ops = segment.between
    sides = (
        _delays(segment.first, (*ops, segment.last), graph.before, graph.fastest),
        _delays(segment.last, ops[::-1], graph.behind, graph.fastest),
    )
    path = sides[0].near[segment.last]
    usable = [v for v in ops if max(side.apart[v] for side in sides) <= MOST_TICKS]
    if not usable:
        return Spread(0, ()), path
    usable.sort(key=lambda v: -sides[1].away[v])
    rows = [(graph.fastest[v], *(delay[v] for side in sides for delay in side)) for v in usable]
    counts = graph.island_size, graph.num_devices
    level, size = _thresholds(np.array(rows, np.float64).T, counts)
    chosen = [v for v in usable[:size] if sides[0].away[v] >= level]
    work = sum(graph.fastest[v] for v in chosen)
    ticks = min(
        -(-(work + sum(side.idle(chosen, j, graph.island_size) for side in sides)) // j)
        for j in range(1, min(graph.num_devices, len(chosen)) + 1)
    )
    return Spread(ticks, tuple(sorted(chosen, key=graph.place.__getitem__))), path


def _delays(
    end: int, ops: Iterable[int], before: Sequence[Neighbours], fastest: list[int]
) -> _Delays:
    """Return the delays from one end of a segment.

    Parameters
    ----------
    ops : each after those of `before`, its neighbours towards that end.
    """
    near, apart, away = {end: 0}, {end: INFINITE}, {end: INFINITE}
    for w in ops:
        near[w] = apart[w] = away[w] = 0
        for x, free, pay, far in before[w]:
            if x in near:
                run = fastest[x] if x != end else 0
                near[w] = max(near[w], free + run + near[x])
                apart[w] = max(
                    apart[w], min(pay + run + near[x], INFINITE if free else run + apart[x])
                )
                away[w] = max(away[w], min(far + run + near[x], free + run + away[x]))
        away[w] = max(apart[w], min(away[w], MOST_TICKS))
    return _Delays(near, apart, away)


def _thresholds(
    rows: Floats, counts: tuple[int, ...], *, most_levels: int = 24
) -> tuple[float, int]:
    """Return the least away of the best set, and of how many ops of `rows` it is taken: only the
    choice is in floating point.

    Parameters
    ----------
    counts : devices of an island, and all: the bound is least at one of these numbers, or at one.
    most_levels : thresholds on the delay from the fork to another island.
    """
    away = rows[3]
    levels = sample(np.unique(away), most_levels)
    inside = away >= levels[:, None]
    ticks, *delays = (np.where(inside, row, 2.0**62) for row in rows)
    near, apart, far = (
        np.minimum.accumulate(one, axis=1) + np.minimum.accumulate(other, axis=1)
        for one, other in zip(delays[:3], delays[3:], strict=True)
    )
    value = alone = np.cumsum(np.where(inside, ticks, 0.0), axis=1) + near
    several = np.maximum(1, np.cumsum(inside, axis=1))
    for count in counts:
        many = np.minimum(several, count)
        beside = np.minimum(many, counts[0]) - 1
        value = np.minimum(value, (alone + beside * apart + (many - 1 - beside) * far) / many)
    level, last = np.unravel_index(int(np.where(inside, value, -1.0).argmax()), value.shape)
    return float(levels[level]), int(last) + 1


def segments_bound(
    evidence: Evidence, end: float, solved: dict[tuple[int, ...], int], *, everything: bool
) -> tuple[int, HeadsTails]:
    """Return the bound, at least `known`, and heads and tails with the delays of the segments, each
    until half of the time to `end` has passed.

    Parameters
    ----------
    solved, everything : as for `segment_delays`.
    """
    relaxation, known = evidence.relaxation, evidence.known
    delays = segment_delays(evidence, half_way(end), solved, everything=everything)
    if not delays:
        return known, evidence.heads
    heads = evidence.heads_with(delays, end)
    return max(
        known, communication_bound(heads), head_tail_bound(relaxation, heads, evidence.weights)
    ), heads


def segment_delays(
    evidence: Evidence,
    end: float,
    solved: dict[tuple[int, ...], int] | None = None,
    *,
    everything: bool = True,
    most_wide: int = 24,
) -> list[Delay]:
    """Return the delays found until `end` (`time.perf_counter`) that are longer than every path
    between their ops.

    Paths count the delays of smaller segments.

    Parameters
    ----------
    solved : delays of segments by what makes them alike, which those found now are added to.
    everything : all small segments, most of which only raise heads and tails; otherwise those,
    small or wide, whose delays could
        help at once to pass what is known.
    most_wide : ops between a fork and the join where all of its branches meet: a module of a
    network.
    """
    if too_large(evidence.relaxation):
        return []
    graph = SegmentGraph(evidence.relaxation, end)
    known = {} if solved is None else solved
    found: dict[int, list[Delay]] = {}  # by their last op
    for segment in _chosen(graph, evidence, None if everything else most_wide):
        if time.perf_counter() >= end:
            break
        model = _model(graph, segment, found)
        if model.longest_path >= model.serial:
            continue
        ticks = known.get(model.key)
        if ticks is None:
            ticks = model.least(end)
            if time.perf_counter() < end:  # else it may have been cut short: asked again next time
                known[model.key] = ticks
        if ticks > model.longest_path:
            found.setdefault(segment.last, []).append(Delay(segment, ticks))
    return [delay for delays in found.values() for delay in delays]


def _chosen(graph: SegmentGraph, evidence: Evidence, most_wide: int | None) -> list[Segment]:
    """Return the segments whose delays are looked for: all small ones that are worth it, or, where
    `most_wide` is given, those of them and of wide ones that could help at once.
    """
    if most_wide is None:
        return graph.worthwhile(graph.small(), evidence.heads, evidence.known)
    small = graph.limits.small
    wide = (s for s in graph.nearest(most_wide) if len(s.between) > small)
    some = graph.worthwhile([*graph.small(), *wide], evidence.heads, evidence.known)
    return graph.worthwhile(some, evidence.heads, evidence.known, graph.listed)


def _model(graph: SegmentGraph, segment: Segment, known: dict[int, list[Delay]]) -> _Model:
    """Return the problem of a segment, its ops renumbered; `known` are delays by their last op."""
    ops = (segment.first, *segment.between, segment.last)
    number = positions(ops)
    edges = [
        (number[u], number[v], free, pay)
        for v in ops[1:]
        for u, free, pay, _ in graph.before[v]
        if u in number
    ]
    inner = [
        (number[x.segment.first], number[v], x.ticks)
        for v in ops
        for x in known.get(v, ())
        if x.segment.first in number
    ]
    ticks = [graph.ticks[v] for v in ops]
    for end in (0, -1):  # of the first op the end counts, of the last one the start
        ticks[end] = tuple(min(run, 0) for run in ticks[end])
    devices = tuple(min(size, len(ops) - 1) for size in graph.class_size)
    return _Model(ticks, sorted(edges), devices, inner)


class _Model:
    """Ops between the first and the last one, which take no time, on devices of some classes.

    Parameters
    ----------
    ticks : of each op on a device of each class, negative where it cannot run.
    edges : (op, op, ticks in any case, ticks between two devices). devices : of each class.
    inner : (op, op, least ticks between them).
    """

    def __init__(
        self,
        ticks: list[tuple[int, ...]],
        edges: list[tuple[int, int, int, int]],
        devices: tuple[int, ...],
        inner: list[tuple[int, int, int]],
    ) -> None:
        self.ticks, self.edges, self.devices = ticks, edges, devices
        self.serial = serial_ticks(ticks)
        fastest = [min(run for run in row if run >= 0) for row in ticks]
        start = [0] * len(ticks)
        least = [(v, u, free) for u, v, free, _ in edges] + [(v, u, delay) for u, v, delay in inner]
        for v, u, delay in sorted(least):
            start[v] = max(start[v], start[u] + fastest[u] + delay)
        self.longest_path = start[-1]

    @property
    def key(self) -> tuple[int, ...]:
        """What makes two segments alike."""
        return len(self.ticks), *self.devices, *chain(*self.ticks), *chain(*self.edges)

    def least(self, end: float, *, effort: float = 0.5) -> int:
        """Return the least time from the first op to the last one, or a bound on it.

        Parameters
        ----------
        effort : deterministic CP-SAT time (about seconds).
        """
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        model.minimize(self._add_to(model))
        solver = cp_solver(workers=1, effort=effort, seconds=end - time.perf_counter())
        status = solve_interruptibly(solver, model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return self.longest_path
        return max(self.longest_path, int(solver.response_proto.inner_objective_lower_bound))

    def _add_to(self, model: cp_model.CpModel) -> cp_model.IntVar:
        """Add the schedules of the segment to a model; return the start of the last op."""
        most = self.serial  # on one device, unless some ops cannot share one
        one = any(min(column) >= 0 for column in zip(*self.ticks, strict=True))
        if not one or any(free for _, _, free, _ in self.edges):
            most += sum(pay for _, _, _, pay in self.edges if pay < INFINITE)
        most = min(most, INFINITE // 2)  # longer ones have no model
        start = [
            model.new_int_var(0, 0 if v == 0 else most, f"s{v}") for v in range(len(self.ticks))
        ]
        devices = [(c, i) for c, size in enumerate(self.devices) for i in range(size)]
        runs = [
            {
                (c, i): model.new_bool_var(f"x{v}.{c}.{i}")
                for c, i in devices
                if i <= v and row[c] >= 0
            }
            for v, row in enumerate(self.ticks)
        ]
        for literals in runs:
            model.add_exactly_one(literals.values())
        for c, i in devices:
            model.add_no_overlap(
                [
                    model.new_optional_fixed_size_interval_var(
                        start[v], row[c], runs[v][c, i], f"i{v}.{c}.{i}"
                    )
                    for v, row in enumerate(self.ticks)
                    if row[c] > 0 and (c, i) in runs[v]
                ]
            )
        after = [
            start[v] + sum(run * x for (c, _), x in runs[v].items() if (run := row[c]))
            if len(set(row)) > 1
            else start[v] + row[0]
            for v, row in enumerate(self.ticks)
        ]
        for u, v, free, pay in self.edges:
            model.add(start[v] >= after[u] + free)
            if pay <= free:
                continue
            same = model.new_bool_var(f"same{u}.{v}")
            for device, there in runs[v].items():
                here = [runs[u][device]] if device in runs[u] else []
                model.add_bool_or([~same, ~there, *here])
            if pay >= INFINITE:
                model.add(same == 1)
            else:
                model.add(start[v] >= after[u] + pay).only_enforce_if(~same)
        return start[-1]
