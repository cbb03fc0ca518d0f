"""Segments: between a fork and the join where its branches meet passes at least what the ops
between them need.

Proof. Let op v come after op u, and let B be ops that come after u and before v. In any schedule
the ops of B run between the end of u and the start of v, one at a time on each device, each after
those before it and after their results have come where they are on another device; so do u's
results and those that v needs. Let d(u, v) be the least time from end to start in which that is
possible for these ops alone: on as many devices, each op as fast as anywhere, each transfer over
the cheapest link. Every schedule gives such a schedule of the segment, so start(v) >= end(u) + d(u,
v), whatever devices u and v are on. That is an edge of the graph: with it the longest paths, and
the communication-aware heads and tails (`communication`, whose proof holds for edges with any
delay), hold as before. CP-SAT solves the small problem, its lower bound is enough; segments that
look alike are solved once.

Small segments are taken between every fork and every join nearby, wider ones where all branches of
a fork have met.

What it adds: heads weigh one device against many for every op by itself, and lose a little wherever
branches part and meet again. Along a recurrent network or a stack of modules that little is lost
every time; d(u, v) has none of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.communication import communication_bound
from placeopt.makespan.bounds.energy import head_tail_bound
from placeopt.makespan.bounds.relaxation import INFINITE
from placeopt.makespan.bounds.segment_graph import Delay, SegmentGraph, too_large
from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from placeopt.makespan.bounds.communication import HeadsTails
    from placeopt.makespan.bounds.segment_graph import Evidence, Segment


def segments_bound(
    evidence: Evidence, end: float, solved: dict[tuple[int, ...], int], *, everything: bool = True
) -> tuple[int, HeadsTails]:
    """Return the bound, at least `known`, and heads and tails with the delays of the segments found
    until `end`.

    Parameters
    ----------
    solved, everything : as for `segment_delays`.
    """
    relaxation, known = evidence.relaxation, evidence.known
    delays = segment_delays(evidence, end, solved, everything=everything)
    if not delays:
        return known, evidence.heads
    heads = evidence.heads_with(delays)
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
    graph, k = SegmentGraph(evidence.relaxation, end), evidence.relaxation.problem.num_devices
    known = {} if solved is None else solved
    found: dict[int, list[Delay]] = {}  # by their last op
    for segment in _chosen(graph, evidence, k, None if everything else most_wide):
        if time.perf_counter() >= end:
            break
        model = _model(graph, segment, min(k, len(segment.between) + 1), found)
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


def _chosen(
    graph: SegmentGraph, evidence: Evidence, num_devices: int, most_wide: int | None
) -> list[Segment]:
    """Return the segments whose delays are looked for: all small ones that are worth it, or, where
    `most_wide` is given, those of them and of wide ones that could help at once.
    """
    if most_wide is None:
        return graph.worthwhile(graph.small(), evidence.heads, evidence.known)
    small = graph.limits.small
    wide = (s for s in graph.nearest(most_wide) if len(s.between) > small)
    some = graph.worthwhile([*graph.small(), *wide], evidence.heads, evidence.known)
    return graph.worthwhile(
        some, evidence.heads, evidence.known, lambda s: graph.listed(s, num_devices)
    )


def _model(
    graph: SegmentGraph, segment: Segment, num_devices: int, known: dict[int, list[Delay]]
) -> _Model:
    """Return the problem of a segment, its ops renumbered; `known` are delays by their last op."""
    ops = (segment.first, *segment.between, segment.last)
    number = {v: i for i, v in enumerate(ops)}
    edges = [
        (number[u], number[v], free, pay)
        for v in ops[1:]
        for u, free, pay in graph.before[v]
        if u in number
    ]
    inner = [
        (number[x.segment.first], number[v], x.ticks)
        for v in ops
        for x in known.get(v, ())
        if x.segment.first in number
    ]
    return _Model(
        [0, *(graph.fastest[v] for v in segment.between), 0], sorted(edges), num_devices, inner
    )


class _Model:
    """Ops between the first and the last one, which take no time, on devices that are alike."""

    def __init__(
        self,
        ticks: list[int],
        edges: list[tuple[int, int, int, int]],
        num_devices: int,
        inner: list[tuple[int, int, int]],
    ) -> None:
        self.ticks, self.edges, self.num_devices = ticks, edges, num_devices
        self.serial = sum(ticks)
        start = [0] * len(ticks)
        least = [(v, u, free) for u, v, free, _ in edges] + [(v, u, delay) for u, v, delay in inner]
        for v, u, delay in sorted(least):
            start[v] = max(start[v], start[u] + ticks[u] + delay)
        self.longest_path = start[-1]

    @property
    def key(self) -> tuple[int, ...]:
        """What makes two segments alike."""
        return (self.num_devices, *self.ticks, *(x for edge in self.edges for x in edge))

    def least(self, end: float, *, effort: float = 0.5) -> int:
        """Return the least time from the first op to the last one, or a bound on it.

        Parameters
        ----------
        effort : deterministic CP-SAT time (about seconds).
        """
        from ortools.sat.python import cp_model

        model = cp_model.CpModel()
        most = self.serial  # on one device, unless some ops cannot share one
        if any(free for _, _, free, _ in self.edges):
            most += sum(pay for _, _, _, pay in self.edges if pay < INFINITE)
        start = [
            model.new_int_var(0, 0 if v == 0 else most, f"s{v}") for v in range(len(self.ticks))
        ]
        runs = [
            [model.new_bool_var(f"x{v}.{d}") for d in range(min(v + 1, self.num_devices))]
            for v in range(len(self.ticks))
        ]
        for literals in runs:
            model.add_exactly_one(literals)
        for d in range(self.num_devices):
            model.add_no_overlap(
                [
                    model.new_optional_fixed_size_interval_var(
                        start[v], length, runs[v][d], f"i{v}.{d}"
                    )
                    for v, length in enumerate(self.ticks)
                    if length and d < len(runs[v])
                ]
            )
        for u, v, free, pay in self.edges:
            model.add(start[v] >= start[u] + self.ticks[u] + free)
            if pay <= free:
                continue
            same = model.new_bool_var(f"same{u}.{v}")
            for d, there in enumerate(runs[v]):
                model.add_bool_or([~same, ~there, *runs[u][d : d + 1]])
            if pay >= INFINITE:
                model.add(same == 1)
            else:
                model.add(start[v] >= start[u] + self.ticks[u] + pay).only_enforce_if(~same)
        model.minimize(start[-1])
        solver = cp_solver(workers=1, effort=effort, seconds=end - time.perf_counter())
        status = solve_interruptibly(solver, model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return self.longest_path
        return max(self.longest_path, int(solver.response_proto.inner_objective_lower_bound))
