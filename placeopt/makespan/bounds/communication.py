"""Communication-aware earliest start: heads and tails that pay for transfers or for serial
execution.

Proof. Fix an op v and a device for it. For an ancestor u let d0(u) be the longest path from the end
of u to the start of v with free communication, and d1(u) a lower bound on the same delay if u and v
are on different devices. On a path u -> w -> ... -> v between different devices either the edge (u,
w) is paid, which delays v by pay(u, w) + p_w + d0(w), or u and w share a device and w differs from
v, which delays it by p_w + d1(w): so d1(u) = max over the children w of min(pay(u, w) + p_w +
d0(w), p_w + d1(w)), and pay(u, v) for the direct edge. Let key(u) be the earliest end of u on
another device plus d1(u), and sort the ancestors by key, largest first. In any schedule let the
(j+1)-th be the first one that is not on v's device: it delivers no earlier than its key; and the
first j run on v's device one after the other, each released at its own earliest start and followed
by at least d0 before v, so v starts no earlier than the optimum of the preemptive one-machine
problem with these heads and tails (Jackson's schedule, which is optimal for it). Hence start(v) >=
min over j of max(jackson(first j), key(j+1)). Everything uses the fastest device and the cheapest
link, the ancestors' earliest starts are themselves lower bounds, and leaving out ancestors or paths
only weakens the result, so it holds for unrelated devices, several consumers per tensor, link
classes and any contention.

Second part. Let S be a set of ancestors with earliest start >= a, d0 >= b0 and d1 >= b, and W the
sum of their fastest times. On v's device they run in [a, start(v) - b0], on each of the other k - 1
devices in [a, start(v) - b], so W <= x - b0 + (k - 1) max(0, x - b) for x = start(v) - a: x >= W +
b0 if that is at most b, else x >= (W + b0 + (k - 1) b) / k. The sets of all b, and of a sample of
a, are tried.

Time reversed, the same arguments give tails: the least time from the end of v to the end of the
schedule.

References
----------
J. Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11, 1982
(heads, tails and Jackson's preemptive schedule).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.bounds.relaxation import INFINITE
from placeopt.model.arrays import Ints, frozen
from placeopt.model.compiled import entry, uncounted, uncounted_entry
from placeopt.model.heaps import argsort, pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.makespan.bounds.relaxation import Direction, Relaxation

ENERGY_LIMIT = 1_000_000_000
"""Work of the second part of the proof per direction; for large graphs it is thinned out, then left
out."""

WORK_LIMIT = 400_000_000
WORK_PER_SECOND = 20_000_000
"""Ops visited per direction before the ancestors of large graphs are cut off at a window."""

STRETCH = 500_000
"""Ops times window between two looks at the clock."""

UNCUT_SECONDS = 10.0
"""Time that the choice of the window supposes where there is no limit."""


class HeadsTails(NamedTuple):
    """Lower bounds per op and device class; -1 where the op cannot run."""

    head: Ints  # (num_ops, num_classes) ticks from 0 to the start
    tail: NDArray[
        np.int64
    ]  # (num_ops, num_classes) ticks from the end of the op to the end of the schedule
    compute: Ints  # (num_ops, num_classes) ticks or -1

    def raised(self, other: HeadsTails) -> HeadsTails:
        """Return the larger heads and tails of two that hold for the same schedules."""
        return self._replace(
            head=np.maximum(self.head, other.head), tail=np.maximum(self.tail, other.tail)
        )

    def minima(self) -> tuple[Ints, Ints]:
        """Return head and tail of each op on its best class, shape (num_ops,) each."""
        off = self.compute < 0
        return np.where(off, INFINITE, self.head).min(axis=1), np.where(
            off, INFINITE, self.tail
        ).min(axis=1)

    def through(self) -> Ints:
        """Return what each op proves about the makespan: min over classes of head + compute +
        tail.
        """
        total = self.head + self.compute + self.tail
        return np.asarray(np.where(self.compute < 0, INFINITE, total).min(axis=1))


def heads_tails(
    relaxation: Relaxation, window: int | None = None, end: float = math.inf
) -> HeadsTails:
    """Compute the communication-aware heads and tails.

    Parameters
    ----------
    window : how many topological positions before an op its ancestors are looked for; None chooses
    it by the time
        left.
    end : when to stop, in seconds of `time.perf_counter`; the ops that are left get the longest
    path only.
    """
    n, now = relaxation.num_ops, time.perf_counter()
    left = min(UNCUT_SECONDS, max(0.0, end - now))
    if window is None:
        limit = int(min(WORK_LIMIT, WORK_PER_SECOND * (1.0 + left)))
        window = n if n * n <= limit else max(64, limit // n)
    head = _run(
        relaxation, relaxation.forwards, window, end - 0.5 * left if math.isfinite(end) else end
    )
    tail = _run(relaxation, relaxation.backwards, window, end)
    return HeadsTails(head, tail, relaxation.compute)


def communication_bound(heads: HeadsTails) -> int:
    """Return the largest head + compute + tail of an op."""
    return int(heads.through().max())


def _run(relaxation: Relaxation, direction: Direction, window: int, end: float) -> Ints:
    """Return the heads of one direction, in stretches between which the clock is read."""
    n = relaxation.num_ops
    arrays = (*direction, relaxation.compute, relaxation.class_size, relaxation.min_compute)
    graph = Graph(*(frozen(array) for array in arrays))
    heads = np.full(relaxation.compute.shape, -1, np.int64)
    earliest, ends = np.zeros(n, np.int64), np.zeros(n, np.int64)
    steps = min(24, ENERGY_LIMIT // (n * max(1, window)))
    at, stretch = 0, max(1, STRETCH // min(n, max(1, window)))
    while at < n and time.perf_counter() < end:
        after = min(n, at + stretch)
        earliest_starts(graph, heads, earliest, ends, at, after, window, steps)
        at = after
    earliest_starts(graph, heads, earliest, ends, at, n, 0, 0)
    return heads


class Graph(NamedTuple):
    """What the kernel reads: a direction of the relaxed graph, and the ops' times."""

    order: Ints  # (num_ops,)
    ptr: Ints  # (num_ops + 1,)
    op: Ints  # (num_pairs,)
    free: Ints  # (num_pairs,)
    pay: Ints  # (num_pairs,)
    compute: Ints  # (num_ops, num_classes)
    class_size: Ints  # (num_classes,)
    fastest: Ints  # (num_ops,)


RELEASE, LENGTH, TAIL, ORDER, KEY, REST, PICKED, NEXT_KEY = np.arange(8)
"""Rows of the jobs of a one-machine problem: three that describe them, three of scratch memory, two
of the caller's."""

JOB_ROWS = 6

FALLING, RISING = np.array([1, -1])


@uncounted_entry
def jackson(count, jobs):  # type: ignore[no-untyped-def]
    """Value of Jackson's preemptive schedule of the first `count` jobs: the optimum of 1|pmtn, r,
    q|Cmax.

    `jobs` has JOB_ROWS rows.
    """
    by_release, waiting, rest_of = jobs[ORDER], jobs[KEY], jobs[REST]
    argsort(jobs[RELEASE], count, RISING, waiting, by_release)
    t = np.int64(0)
    best = np.int64(0)
    at, size = np.int64(0), np.int64(0)
    while at < count or size > 0:
        if size == 0 and jobs[RELEASE, by_release[at]] > t:
            t = jobs[RELEASE, by_release[at]]
        while at < count and jobs[RELEASE, by_release[at]] <= t:
            push(
                waiting, rest_of, 0, size, -jobs[TAIL, by_release[at]], jobs[LENGTH, by_release[at]]
            )
            size += 1
            at += 1
        minus_tail, rest = waiting[0], rest_of[0]
        if at < count and t + rest > jobs[RELEASE, by_release[at]]:
            rest_of[0] = rest - (
                jobs[RELEASE, by_release[at]] - t
            )  # still the first: its rest is only smaller
            t = jobs[RELEASE, by_release[at]]
        else:
            pop(waiting, rest_of, 0, size)
            size -= 1
            t += rest
            best = max(best, t - minus_tail)
    return best


@uncounted
def _all_devices(ancestors, count, fastest, d0, d1, num_devices, steps, jobs):  # type: ignore[no-untyped-def]
    """Earliest start that the work of all ancestors allows: the second part of the module's proof.

    jobs[RELEASE] has their earliest starts; the other rows are scratch memory here.
    """
    heads, distinct, delays, order = jobs[RELEASE], jobs[LENGTH], jobs[TAIL], jobs[ORDER]
    argsort(heads, count, RISING, jobs[KEY], order)
    size = 0
    for i in range(count):
        if size == 0 or heads[order[i]] > distinct[size - 1]:
            distinct[size] = heads[order[i]]
            size += 1
        delays[i] = d1[ancestors[i]]
    argsort(delays, count, FALLING, jobs[KEY], order)
    steps = min(steps, size)
    best = np.int64(0)
    for step in range(steps):
        a = distinct[step * (size - 1) // max(1, steps - 1)]
        work = np.int64(0)
        least = np.int64(INFINITE)
        for i in range(count):  # delays to other devices, longest first
            u = ancestors[order[i]]
            if heads[order[i]] < a:
                continue
            work += fastest[u]
            least = min(least, d0[u])
            delay = d1[u]
            alone = work + least
            if num_devices == 1 or alone <= delay:
                best = max(best, a + alone)
            elif delay < INFINITE // num_devices:
                spread = alone + (num_devices - 1) * delay
                best = max(best, a + (spread + num_devices - 1) // num_devices)
    return best


@uncounted
def _delays(graph, position, window, ends, mark, ancestors, d0, d1):  # type: ignore[no-untyped-def]
    """Fill d0 and d1 of the ancestors of the op at `position` within the window, the latest
    ancestor first.

    Returns (number of ancestors, start of the op that the ends of its ancestors allow).
    """
    v = graph.order[position]
    mark[v] = position
    d0[v], d1[v] = 0, INFINITE
    pending, count, base = 1, 0, np.int64(0)
    at = position
    stop = max(-1, position - window)
    while at > stop and pending > 0:
        w = graph.order[at]
        at -= 1
        if mark[w] != position:
            continue
        pending -= 1
        run = np.int64(0)
        if w != v:
            run = graph.fastest[w]
            ancestors[count] = w
            count += 1
            base = max(base, ends[w] + d0[w])
        for e in range(graph.ptr[w], graph.ptr[w + 1]):
            u = graph.op[e]
            with_free = graph.free[e] + run + d0[w]
            here = INFINITE if graph.pay[e] >= INFINITE else graph.pay[e] + run + d0[w]
            later = INFINITE if (d1[w] >= INFINITE or graph.free[e] > 0) else run + d1[w]
            paid = min(here, later)
            if mark[u] != position:
                mark[u] = position
                pending += 1
                d0[u], d1[u] = with_free, paid
            else:
                d0[u] = max(d0[u], with_free)
                d1[u] = max(d1[u], paid)
    for e in range(
        graph.ptr[v], graph.ptr[v + 1]
    ):  # direct predecessors beyond the window still count
        base = max(base, ends[graph.op[e]] + graph.free[e])
    return count, base


@uncounted
def _keys(graph, c, ancestors, count, heads, d1, keys, floor):  # type: ignore[no-untyped-def]
    """Fill the keys of the ancestors if they are on another device than v, which is of class c;
    return the new floor.
    """
    num_classes = graph.compute.shape[1]
    several = num_classes > 1 or graph.class_size[0] > 1
    for i in range(count):
        u = ancestors[i]
        elsewhere = np.int64(INFINITE)
        if several and d1[u] < INFINITE:
            for other in range(num_classes):
                if graph.compute[u, other] >= 0 and (other != c or graph.class_size[c] > 1):
                    elsewhere = min(elsewhere, heads[u, other] + graph.compute[u, other])
            if elsewhere < INFINITE:
                elsewhere += d1[u]
        keys[i] = elsewhere
        if graph.compute[u, c] < 0 and elsewhere < INFINITE:
            floor = max(floor, elsewhere)  # cannot share v's device
    return floor


@uncounted
def _serial_or_paid(graph, c, ancestors, keys, size, heads, d0, jobs):  # type: ignore[no-untyped-def]
    """Return min over j of max(jackson(first j), key(j + 1)) for the first `size` ancestors of
    jobs[PICKED], at least one, whose keys are above 0.
    """
    picked, next_key = jobs[PICKED], jobs[NEXT_KEY]
    for i in range(size):
        jobs[LENGTH, i] = keys[picked[i]]
    argsort(jobs[LENGTH], size, FALLING, jobs[KEY], jobs[ORDER])
    for i in range(size):
        at = picked[jobs[ORDER, i]]
        u = ancestors[at]
        next_key[i] = keys[at]
        jobs[RELEASE, i], jobs[LENGTH, i], jobs[TAIL, i] = heads[u, c], graph.compute[u, c], d0[u]
    # smallest j with jackson(first j) >= next key: the minimum is there or one before; that of no
    # job is 0 and below any key, so that low ends above 0
    low, high = np.int64(0), size
    value = np.int64(-1)
    while low < high:
        middle = (low + high) // 2
        serial = jackson(middle, jobs)
        if serial >= next_key[middle]:
            high, value = middle, serial
        else:
            low = middle + 1
    if value < 0 or high == size:
        value = jackson(low, jobs)
    return min(value, next_key[low - 1])


@entry
def earliest_starts(graph, heads, earliest, ends, begin, end, window, steps):  # type: ignore[no-untyped-def]
    """Fill the heads of the ops at topological positions begin..end, one after the other, as in the
    module text.

    `earliest` and `ends` are the earliest start and end of every op before them, on any device.
    """
    n, num_classes = graph.compute.shape
    num_devices = np.int64(0)
    for c in range(num_classes):
        num_devices += graph.class_size[c]
    d0, d1, mark = np.zeros(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    ancestors, keys, jobs = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty((JOB_ROWS + 2, n), np.int64),
    )
    for v in range(n):
        mark[v] = -1
    for position in range(begin, end):
        v = graph.order[position]
        count, base = _delays(graph, position, window, ends, mark, ancestors, d0, d1)
        if steps > 0 and count > 1:
            for i in range(count):
                jobs[RELEASE, i] = earliest[ancestors[i]]
            base = max(
                base,
                _all_devices(ancestors, count, graph.fastest, d0, d1, num_devices, steps, jobs),
            )
        ends[v] = INFINITE
        earliest[v] = INFINITE
        for c in range(num_classes):
            if graph.compute[v, c] < 0:
                continue
            floor = _keys(graph, c, ancestors, count, heads, d1, keys, base)
            size = np.int64(0)
            for i in range(count):
                if keys[i] > floor and graph.compute[ancestors[i], c] >= 0:
                    jobs[PICKED, size] = i
                    size += 1
            if size > 0:
                floor = max(
                    floor, _serial_or_paid(graph, c, ancestors, keys, size, heads, d0, jobs)
                )
            heads[v, c] = floor
            earliest[v] = min(earliest[v], floor)
            ends[v] = min(ends[v], floor + graph.compute[v, c])
