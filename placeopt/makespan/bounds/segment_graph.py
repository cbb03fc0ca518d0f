"""Segments of a graph: two ops and all ops between them, and delays that pass between their ends.
With them, what is known of a problem when a stronger bound begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from placeopt.makespan.bounds.communication import HeadsTails, heads_tails
from placeopt.makespan.bounds.relaxation import INFINITE, Relaxation
from placeopt.model.arrays import Ints, by_number, frozen, stable_order

MOST_TICKS = 2**50
"""Work beyond which no segments are looked for."""

Neighbours = list[tuple[int, int, int, int]]
"""Ops before an op, or after it: (op, least delay in any case, between two devices, between two
islands)."""


class Segment(NamedTuple):
    """Two ops and all ops between them, in topological order."""

    first: int
    last: int
    between: tuple[int, ...]


class Delay(NamedTuple):
    """Ticks that pass at least between the end of the first op of a segment and the start of the
    last one.
    """

    segment: Segment
    ticks: int


@dataclass(frozen=True, eq=False)
class Evidence:
    """The relaxation of a problem, and what cheaper bounds have proved.

    Attributes
    ----------
    weights : of the classes of devices, from the load bound.
    known : a bound on the makespan, ticks. upper : value of a known solution, None without one.
    delays : ticks that pass at least between two ops; the heads count them already.
    """

    relaxation: Relaxation
    heads: HeadsTails
    weights: Ints  # (num_classes,)
    known: int
    upper: int | None = None
    delays: Sequence[Delay] = ()

    @property
    def limit(self) -> int:
        """The smallest bound that closes the search: it meets a known solution, or proves that
        there is none.
        """
        longest = self.relaxation.serial + 1
        return longest if self.upper is None else min(self.upper, longest)

    def heads_with(
        self, delays: Sequence[Delay], end: float = math.inf, work: float = math.inf
    ) -> HeadsTails:
        """Return the heads and tails raised by delays, together with those that are known.

        Parameters
        ----------
        end, work : as for `heads_tails`.
        """
        edges = [
            (delay.segment.first, delay.segment.last, delay.ticks)
            for delay in (*self.delays, *delays)
        ]
        longer = with_delays(self.relaxation, edges)
        return self.heads.raised(heads_tails(longer, None, end, self.weights, work=work))


@dataclass(frozen=True)
class Limits:
    """Which segments are looked at.

    Attributes
    ----------
    small : most ops between the ends of a small segment.
    segments : the most that are looked at in all, small ones first.
    """

    small: int = 12
    segments: int = 20_000


def too_large(relaxation: Relaxation, *, most_ops: int = 6_000) -> bool:
    """Whether no segments are looked for; on one device there is nothing to find either."""
    many = relaxation.num_ops > most_ops or relaxation.problem.num_devices < 2
    return many or int(relaxation.min_compute.sum()) > MOST_TICKS


def with_delays(relaxation: Relaxation, delays: list[tuple[int, int, int]]) -> Relaxation:
    """Return the relaxation with an edge for every delay (op, op, ticks), of which there is one at
    least.
    """
    first, last, ticks = np.array(delays, np.int64).T
    target = np.concatenate([relaxation.target, last])
    order = stable_order(target)
    source = frozen(np.concatenate([relaxation.source, first])[order])
    free, pay, far = (
        frozen(np.concatenate([old, ticks])[order])
        for old in (relaxation.free, relaxation.pay, relaxation.far)
    )
    return replace(
        relaxation, source=source, target=frozen(target[order]), free=free, pay=pay, far=far
    )


class SegmentGraph:
    """The ops after and before each op, as bits by topological position.

    Attributes
    ----------
    island_size : devices of the largest island.
    """

    limits = Limits()

    def __init__(self, relaxation: Relaxation, end: float) -> None:
        r, self.end = relaxation, end
        self.order = r.problem.topological_order.tolist()
        self.fastest = r.min_compute.tolist()
        self.ticks = list(map(tuple, r.compute.tolist()))
        self.class_size = r.class_size.tolist()
        self.num_devices, self.island_size = r.problem.num_devices, int(r.beside.sum(axis=1).max())
        self.place = np.argsort(self.order).tolist()
        self.before: list[Neighbours] = [[] for _ in self.order]
        self.behind: list[Neighbours] = [[] for _ in self.order]
        self.children = [0] * r.num_ops
        self.parents = [0] * r.num_ops
        far = r.far if self.island_size < self.num_devices else r.pay
        rows = (row.tolist() for row in (r.source, r.target, r.free, r.pay, far))
        for u, v, *delays in zip(*rows, strict=True):
            self.before[v].append((u, *delays))
            self.behind[u].append((v, *delays))
            self.children[u] |= 1 << self.place[v]
            self.parents[v] |= 1 << self.place[u]
        self.after, self.above = [0] * r.num_ops, [0] * r.num_ops
        for v in self.order:
            for u, *_ in self.before[v]:
                self.above[v] |= self.above[u] | 1 << self.place[u]
        for v in reversed(self.order):
            self.after[v] |= self.children[v]
            for u, *_ in self.before[v]:
                self.after[u] |= self.after[v]

    def small(self) -> Iterator[Segment]:
        """Yield from every fork to every join nearby at which branches of it meet."""
        most = self.limits.small
        for u in self.order:
            if time.perf_counter() >= self.end:
                return
            waiting = self.children[u] if self.children[u].bit_count() > 1 else 0
            while waiting:
                bit = waiting & -waiting  # the first one: what is added comes after it
                v = self.order[bit.bit_length() - 1]
                waiting ^= bit
                inside = self.after[u] & self.above[v]
                if inside.bit_count() > most:
                    continue  # and so it is for all ops after v
                waiting |= self.children[v]
                branches = self.children[u] & (inside | bit)
                ends = self.parents[v] & (inside | 1 << self.place[u])
                if inside.bit_count() > 1 and branches.bit_count() > 1 and ends.bit_count() > 1:
                    yield Segment(u, v, tuple(self.order[at] for at in bits(inside)))

    def nearest(self, most: int) -> Iterator[Segment]:
        """Yield from every fork to the first op at which all of its branches have met, and to every
        join likewise.

        Parameters
        ----------
        most : ops between them.
        """
        seen = set()
        for v in self.order:
            if time.perf_counter() >= self.end:
                return
            joins = self._common(self.children[v], self.after)
            if joins:
                seen.add((v, self.order[(joins & -joins).bit_length() - 1]))
            forks = self._common(self.parents[v], self.above)
            if forks:
                seen.add((self.order[forks.bit_length() - 1], v))
        for u, v in sorted(seen):
            inside = self.after[u] & self.above[v]
            if inside.bit_count() <= most:
                yield Segment(u, v, tuple(self.order[at] for at in bits(inside)))

    def _common(self, branches: int, onwards: list[int]) -> int:
        """Return, as bits, the ops at which all branches have met; none where there is one branch
        only.
        """
        common = -1 if branches.bit_count() > 1 else 0
        for at in bits(branches):
            common &= onwards[self.order[at]] | 1 << at
        return common

    def serial(self, segment: Segment) -> int:
        """Return the time of a segment in which nothing runs beside anything."""
        return serial_ticks([self.ticks[v] for v in segment.between])

    def listed(self, segment: Segment) -> int:
        """Return the time of a segment whose ops go one after the other to where they end first, or
        all to one device.
        """
        end, home = {segment.first: 0}, {segment.first: 0}
        kinds = [c for c, size in enumerate(self.class_size) for _ in range(size)]
        idle = [0] * len(kinds)
        for v in (*segment.between, segment.last):
            inputs = [
                (end[u], home[u], free, max(free, pay))
                for u, free, pay, _ in self.before[v]
                if u in end
            ]
            ends = []
            for d, c in enumerate(kinds):
                there = (t + (free if d == e else pay) for t, e, free, pay in inputs)
                start = max(there, default=0)
                if v != segment.last:
                    start = max(start, idle[d]) + self.ticks[v][c]
                ends.append(INFINITE if self.ticks[v][c] < 0 else start)
            home[v] = ends.index(min(ends))
            end[v] = idle[home[v]] = ends[home[v]]
        return min(end[segment.last], self.serial(segment))

    def worthwhile(
        self,
        segments: Iterable[Segment],
        heads: HeadsTails,
        known: int,
        most: Callable[[Segment], int] | None = None,
    ) -> list[Segment]:
        """Return the segments, small ones first, that could help to pass a known bound.

        Parameters
        ----------
        most : what a segment may need, by default its time if nothing runs beside anything.
        """
        found = sorted(segments, key=lambda s: len(s.between))[: self.limits.segments]
        needed = {s: (most or self.serial)(s) for s in found}
        head, tail = self._longest(heads, needed)
        ends = [at + run for at, run in zip(head, self.fastest, strict=True)]
        return [
            s
            for s in found
            if ends[s.first] + needed[s] + self.fastest[s.last] + tail[s.last] > known
        ]

    def _longest(
        self, heads: HeadsTails, needed: dict[Segment, int]
    ) -> tuple[list[int], list[int]]:
        """Return heads and tails where segments take what they may need."""
        head, tail = (list(map(int, row)) for row in heads.minima())
        into = by_number(len(head), ((s.last, s) for s in needed))
        out = by_number(len(head), ((s.first, s) for s in needed))
        for v in self.order:
            for u, free, *_ in self.before[v]:
                head[v] = max(head[v], head[u] + self.fastest[u] + free)
            for s in into[v]:
                head[v] = max(head[v], head[s.first] + self.fastest[s.first] + needed[s])
        for v in reversed(self.order):
            for s in out[v]:
                tail[v] = max(tail[v], tail[s.last] + self.fastest[s.last] + needed[s])
            for u, free, *_ in self.before[v]:
                tail[u] = max(tail[u], tail[v] + self.fastest[v] + free)
        return head, tail


def serial_ticks(ticks: Sequence[tuple[int, ...]]) -> int:
    """Return the time of ops one after the other on the best device for all of them; where none can
    run them all, each on its slowest.

    Parameters
    ----------
    ticks : of each op on each class of devices, negative where it cannot run.
    """
    able = [sum(column) for column in zip(*ticks, strict=True) if min(column) >= 0]
    return min(able, default=sum(map(max, ticks)))


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
