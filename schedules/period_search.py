"""The least period of repeating patterns of K micro-batches: which periods are tried, by which
method, for how long.

Each period is decided by a dynamic program over the devices where these form a tree
(`placeopt.schedules.device_tree`), by CP-SAT otherwise (`placeopt.schedules.cyclic`). Feasibility
is monotone in the period, so the search climbs from a proven bound and bisects towards the best
pattern found. Periods that are whole units of the problem come first: on a grid of units each is
decided as fast as if a tick were as long (seconds, where ticks took minutes).

References
----------
.. [1] B. R. Rau, "Iterative modulo scheduling: an algorithm for software pipelining loops", MICRO
1994.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache, partial
from math import ceil, gcd, inf

import numpy as np

from placeopt.model.arrays import Ints, true_places
from placeopt.model.random_bits import random_states
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.completion import cp_limits, offer_pattern
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.evaluate import dispatch
from placeopt.schedules.period_walk import tighten, walk
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend, relaunch
from placeopt.solving.tracker import Tracker


class PeriodSearch:
    """Finds the least period of patterns of one size.

    Attributes
    ----------
    low : proven lower bound on the period of the pattern in ticks.
    pattern : the best pattern found.
    """

    def __init__(
        self,
        problem: PipelineProblem,
        size: int,
        num_workers: int,
        tracker: Tracker[PipelineSchedule],
        share: float = 1,
        kept: float = 0,
    ) -> None:
        self.problem, self.size, self.num_workers = problem, size, num_workers
        self.tracker = tracker
        self._end = tracker.elapsed + share * (tracker.seconds_left - kept)
        self.trees: dict[int, DeviceTree] = {}
        self.low = ceil(best_bound(problem)[0] * size)
        self.pattern: Repetend | None = None
        self._step: int | None = (
            None  # how far to climb from the bound while the device tree decides
        )
        self._state = random_states(tracker.rng(), 1)[0]
        # The same periods are asked for after every one that nothing decides
        self._placed = cache(partial(placed_pattern, problem))
        self._wide = bool((np.diff(problem.device_ptr) > 1).any())

    @property
    def value(self) -> Fraction | float:
        """Ticks per micro-batch of the best pattern, infinity without one."""
        return inf if self.pattern is None else self.pattern.per_micro_batch

    @property
    def seconds_left(self) -> float:
        """Seconds left of this search's share of the time."""
        return max(0.0, min(self.tracker.seconds_left, self._end - self.tracker.elapsed))

    def run(self, known: Iterable[Repetend | None]) -> None:
        """Try the lower bound first, then bisect between bound and pattern until they meet or time
        is up.

        A period that takes too long to decide is left for a later round with more time: the pattern
        gets good early, and the rest of the time goes into the proof. `known` are patterns of this
        or fewer micro-batches; repeated as often as it takes, one is a pattern of this size if its
        own divides it.
        """
        size = self.size
        self._offer(greedy_pattern(self.problem, size))
        for pattern in known:
            if pattern is not None and size % pattern.size == 0:
                starts = pattern.unroll(size)
                self._offer(Repetend(pattern.period * (size // pattern.size), starts))
        for side_by_side in (False, True):
            self._offer_placed(wide_first=side_by_side, flush=side_by_side)
        # The most time for one period before others are tried; later rounds have 4 times as long
        first = min(2.0, 1 / 6 * self.seconds_left)
        timed = self.tracker.budget.evaluations is None
        seconds, wanted = first, self._whole(self.low, self.low)
        while not self._done():
            floor = self.low
            while not self._done():
                # Deciding the period just below the pattern's ends the search, or shortens the
                # pattern.
                last = (
                    timed
                    and self.pattern is not None
                    and wanted == self.pattern.period - 1
                    and seconds > first
                )
                # what takes longer counts as more, so that a limit of evaluations limits the work
                times = min(round(seconds / first), self.tracker.evaluations_left)
                self.tracker.count(times)
                decided = self._try(wanted, times * first, last=last)
                floor = self.low if decided else max(floor, wanted + 1)
                if self.pattern is not None and floor >= self.pattern.period:
                    break
                wanted = self._whole(floor, self._next(floor))
            seconds, wanted = seconds * 4, self._whole(self.low, self._next(self.low))

    def _next(self, floor: int) -> int:
        """Return the period to try: half-way, or one less than the pattern's where only the proof
        is missing.

        The device tree is fast just above the bound, where it climbs in steps that double.
        """
        if self.pattern is None:
            return 2 * floor
        gap = self.pattern.period - floor
        if self._step is not None:
            return floor + min((self._step - 1) * self.problem.unit, gap // 2)
        return max(floor, self.pattern.period - 1 if gap * 50 < floor else floor + gap // 2)

    def _whole(self, floor: int, period: int) -> int:
        """Return the next period of whole units, the one before where the pattern's is no longer,
        the same one where neither is from `floor` to below the pattern's.
        """
        unit = self.problem.unit
        above = -(-period // unit) * unit
        end = inf if self.pattern is None else self.pattern.period
        return next((p for p in (above, above - unit) if floor <= p < end), period)

    def _done(self) -> bool:
        if self.pattern is not None and self.pattern.period <= self.low:
            return True
        return self.tracker.stop() or self.seconds_left == 0

    def _try(self, period: int, seconds: float, *, last: bool) -> bool:
        """Decide one period, or a shorter one, in about `seconds` (all that are left for the last
        one).

        Return whether one was decided.
        """
        period, answer = self._by_device_tree(period, seconds)
        if answer is None:
            model = CyclicModel(self.problem, period, self.size)
            time = self.seconds_left if last else min(self.seconds_left, seconds)
            status, pattern = model.solve(**cp_limits(self.tracker, time, self.num_workers))
            if status == "unknown":
                self._offer_placed(wide_first=True, flush=False)
                self._walk(time)
                return self.pattern is not None and self.pattern.period <= period
            answer = pattern is not None, pattern
        feasible, found = answer
        if not feasible:
            self.low = max(self.low, period + 1)
        if found is not None:
            self._offer(tighten(self.problem, found))
        return True

    def _by_device_tree(
        self, period: int, seconds: float
    ) -> tuple[int, tuple[bool, Repetend | None] | None]:
        """Return the period that was decided and the answer: while climbing, one nearer to the
        bound if this is too far.
        """
        wanted, answer = period, self._listed(period, seconds)
        while answer is None and self._step is not None and wanted > self.low:
            wanted = (self.low + wanted) // 2
            answer = self._listed(wanted, seconds)
        self._step = None if answer is None else 2 * (self._step or 1)
        return period if answer is None else wanted, answer

    def _listed(self, period: int, seconds: float) -> tuple[bool, Repetend | None] | None:
        """Ask the device tree on the coarsest grid that has the period."""
        unit = gcd(period, self.problem.unit)
        if unit not in self.trees:
            self.trees[unit] = DeviceTree(self.problem.in_units(unit), self.size)
        answer = self.trees[unit].decide(period // unit, min(seconds, self.seconds_left))
        if answer is None or answer[1] is None:
            return answer
        return answer[0], answer[1].in_ticks(unit)

    def _offer_placed(self, *, wide_first: bool, flush: bool) -> None:
        """Offer the first pattern made by placing block after block, at periods from the bound
        upwards in steps of 2 %: a longer one may leave less room.
        """
        if self.size > 1 or self.pattern is None:
            return
        period, found = self.low, None
        while found is None and period < self.pattern.period and not self._done():
            found = self._placed(period, wide_first=wide_first and self._wide, flush=flush)
            period += 1 + period // 50
        if found is not None:
            self._offer(tighten(self.problem, found))

    def _walk(self, seconds: float) -> None:
        """Walk from the best pattern again and again, each time twice as far, for about so many
        seconds.
        """
        # Counted, not timed: the walks do not depend on the machine
        arcs_per_second, walks = 200_000_000, 4
        total = int(min(seconds, self.seconds_left) * arcs_per_second)
        for number in range(walks):
            if self.pattern is not None and not self._done():
                effort = total * 2**number // (2**walks - 1)
                self._offer(walk(self.problem, self.pattern, self._state, self.low, effort))

    def _offer(self, pattern: Repetend | None) -> None:
        if pattern is not None and (self.pattern is None or pattern.period < self.pattern.period):
            self.pattern = pattern
            offer_pattern(self.problem, self.tracker, pattern)


def greedy_pattern(problem: PipelineProblem, size: int) -> Repetend | None:
    """Return a valid pattern at once: one micro-batch after another, or a greedy schedule of `size`
    of them.

    A finite schedule repeats as soon as every device is done with it; memory is back to zero by
    then.
    """
    rank = np.arange(size * problem.num_blocks).reshape(size, -1) // problem.num_blocks
    candidates = [
        dispatch(problem, rank),
        dispatch(problem, rank + problem.forward * size),
        _serial(problem, size),
    ]
    found = [relaunch(problem, np.sort(start, axis=0)) for start in candidates if start is not None]
    return min(found, key=lambda pattern: pattern.period, default=None)


def placed_pattern(
    problem: PipelineProblem, period: int, *, wide_first: bool, flush: bool
) -> Repetend | None:
    """Return a pattern of one micro-batch in which every block starts as early as its predecessors,
    and what runs on its devices every `period` ticks, allow (without the backtracking of [1]_).

    None where a block finds no room, or memory does not suffice.

    Parameters
    ----------
    wide_first : whether blocks on several devices have places in the period before others, side by
        side: what all those devices have room for at once is rare later.
    flush : whether blocks only start where something on their devices ends, or end where something
        starts: no holes are left that are too short for others.

    Either leaves more time between blocks, in which memory is held.
    """
    start = np.zeros(problem.num_blocks, np.int64)
    runs: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_devices)]
    order = problem.topological_order.tolist()

    def place(v: int, ready: int, *, flush: bool) -> bool:
        span, devices = int(problem.span[v]), problem.devices_of(v).tolist()
        here = [run for d in devices for run in runs[d]]
        at = _first_room(ready, span, period, here, flush=flush)
        if at is None:
            return False
        start[v] = at
        for d in devices:
            runs[d].append((at, span))
        return True

    wide = (np.diff(problem.device_ptr) > 1) & wide_first
    if not all(place(v, 0, flush=False) for v in order if wide[v]):
        return None
    for v in order:
        ready = max(
            (int(start[u] + problem.span[u]) + lag for u, lag in problem.predecessors_of(v)),
            default=0,
        )
        if wide[v]:
            start[v] += -(-(ready - start[v]) // period) * period
        elif not place(v, ready, flush=flush):
            return None
    for d in true_places(problem.limited):
        here = list(problem.on_device[d])
        begun = (start[here, None] - start[None, here]) // period
        held = begun.astype(object) @ problem.memory[here, d]  # may pass 64 bits
        if held.max() > problem.capacity[d]:
            return None
    return Repetend(period, start[None, :])


def _first_room(
    ready: int, span: int, period: int, runs: list[tuple[int, int]], *, flush: bool
) -> int | None:
    """Return the first tick from `ready` on at which a span meets none of the (start, span) of
    `runs`, modulo the period, and touches one if it is to be flush; None if there is none.
    """
    if not runs:
        return ready
    begin, ticks = np.array(runs).T
    place = np.concatenate([begin + ticks, begin - span] if flush else [[ready], begin + ticks])
    since = (place[:, None] - begin) % period
    free = ((since >= ticks) & (period - since >= span)).all(axis=1)
    return min((ready + (place[free] - ready) % period).tolist(), default=None)


def _serial(problem: PipelineProblem, size: int) -> Ints | None:
    """Return the schedule that runs one block at a time, newest ready block first, where that fits
    into memory.
    """
    waiting = np.diff(problem.pred_ptr)
    ready = np.flatnonzero(waiting == 0)[::-1].tolist()
    start, now = np.zeros(problem.num_blocks, np.int64), 0
    held = np.zeros(problem.num_devices, np.int64)
    while ready:
        v = ready.pop()
        held += problem.memory[v]
        if (held > problem.capacity).any():
            return None
        start[v] = max(
            [now, *(int(start[u] + problem.span[u]) + lag for u, lag in problem.predecessors_of(v))]
        )
        now = int(start[v] + problem.span[v])
        for successor in problem.successors[v]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return start[None, :] + now * np.arange(size, dtype=np.int64)[:, None]
