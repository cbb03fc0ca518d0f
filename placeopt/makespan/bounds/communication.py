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

Devices of one host are joined by cheaper links than hosts are. Let d2(u) be a lower bound on the
delay from the end of u to the start of v if they are on different islands (`islands`): on a path u
-> w -> ... -> v either u and w are on different islands, which delays v by far(u, w) + p_w + d0(w),
or w is not on v's island either, which delays it by free(u, w) + p_w + d2(w). The key of u is then
the least of its end on another device of v's island plus d1(u) and its end elsewhere plus max(d1,
d2)(u), and v starts no earlier than the least of that and of u's end on v's device plus d0(u).

Second part. Let S be a set of ancestors and t = start(v). On v's device they run in [a0, t - b0],
on another one of its island in [a1, t - b1], on any other one in [a2, t - b2], where a0, a1, a2 are
the earliest starts of S on the classes of these devices and b0, b1, b2 the least d0, d1, max(d1,
d2). So if t < min(a1 + b1, a2 + b2), all run on v's device and t >= a0 + W0 + b0, with W0 the sum
of their times there. If t < a2 + b2, all run on v's island: give class D the weight y_D >= 0 and
let W1 be the sum over S of the least y_D p on that island, Y0 the weight of v's device and Y1 that
of the others there; then W1 <= Y0 max(0, t - a0 - b0) + Y1 max(0, t - a1 - b1). With W2 the sum of
the least y_D p anywhere and Y2 the weight of the other islands, always W2 <= Y0 max(0, t - a0 - b0)
+ Y1 max(0, t - a1 - b1) + Y2 max(0, t - a2 - b2). So t is no less than the least that one of the
three cases allows. The sets of all ancestors with earliest starts of a and more, for a sample of a,
and delays d1 of b1 and more are tried.

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
from typing import NamedTuple

import numpy as np

from placeopt.makespan.bounds.relaxation import INFINITE, Direction, Relaxation, fits
from placeopt.model.arrays import Ints, frozen
from placeopt.model.compiled import entry, row_of, uncounted_entry, uncounted_kernel
from placeopt.model.heaps import argsort, pop, push


class HeadsTails(NamedTuple):
    """Lower bounds per op and device class; -1 where the op cannot run."""

    head: Ints  # (num_ops, num_classes) ticks from 0 to the start
    tail: Ints  # (num_ops, num_classes) ticks from the end of the op to the end of the schedule
    compute: Ints  # (num_ops, num_classes) ticks or -1

    def raised(self, other: HeadsTails) -> HeadsTails:
        """Return the larger heads and tails of two that hold for the same schedules."""
        return self._replace(
            head=np.maximum(self.head, other.head), tail=np.maximum(self.tail, other.tail)
        )

    def minima(self) -> tuple[Ints, Ints]:
        """Return head and tail of each op on its best class, shape (num_ops,) each."""
        off = self.compute < 0
        head, tail = (np.where(off, INFINITE, far).min(axis=1) for far in (self.head, self.tail))
        return head, tail

    def through(self) -> Ints:
        """Return what each op proves about the makespan: min over classes of head + compute +
        tail.
        """
        total = self.head + self.compute + self.tail
        return np.where(self.compute < 0, INFINITE, total).min(axis=1)


def heads_tails(
    relaxation: Relaxation,
    window: int | None = None,
    end: float = math.inf,
    weights: Ints | None = None,
    *,
    work: float = math.inf,
    uncut_seconds: float = 10.0,
    most_work: int = 400_000_000,
    work_a_second: int = 20_000_000,
) -> HeadsTails:
    """Compute the communication-aware heads and tails.

    Parameters
    ----------
    window : how many topological positions before an op its ancestors are looked for; None chooses
    it by the time
        left.
    end : when to stop, in seconds of `time.perf_counter`; the ops that are left get the longest
    path only.
    weights : of the classes in the second part; equal ones where None, or too large.
    work : steps of a direction after which it stops, too; a few nanoseconds each.
    uncut_seconds : the most time that the choice of the window supposes, as where there is no
    limit.
    most_work, work_a_second : ops visited per direction, in all and by the time left, before the
    ancestors of large graphs are cut off at a window.
    """
    n, now = relaxation.num_ops, time.perf_counter()
    left = min(uncut_seconds, max(0.0, end - now))
    if window is None:
        limit = int(min(most_work, work_a_second * (1.0 + left)))
        window = n if n * n <= limit else max(64, limit // n)
    head = _run(relaxation, relaxation.forwards, weights, window, end - 0.5 * left, work)
    tail = _run(relaxation, relaxation.backwards, weights, window, end, work)
    return HeadsTails(head, tail, relaxation.compute)


def communication_bound(heads: HeadsTails) -> int:
    """Return the largest head + compute + tail of an op."""
    return int(heads.through().max())


def energies(compute: Ints, beside: Ints, weights: Ints) -> Ints:
    """Return the least weighted times of ops anywhere, and on the island of each class; INFINITE
    where they cannot run. Shape (num_choices, 1 + num_classes, num_ops).
    """
    everywhere = np.vstack([np.ones(len(beside), np.bool_), beside > 0])
    found = np.empty((len(weights), len(everywhere), len(compute)), np.int64)
    for row, weight in zip(found, weights, strict=True):
        cost = np.where(compute < 0, INFINITE, compute * weight)
        for least, here in zip(row, everywhere, strict=True):
            least[:] = cost[:, here].min(axis=1, initial=INFINITE)
    return found


def _run(
    relaxation: Relaxation,
    direction: Direction,
    weights: Ints | None,
    window: int,
    end: float,
    work: float,
    *,
    energy_work: int = 1_000_000_000,
    stretch_work: int = 20_000_000,
) -> Ints:
    """Return the heads of one direction, in stretches between which the clock is read.

    Parameters
    ----------
    energy_work : of the second part of the proof; for large graphs it is thinned out, then left
    out.
    stretch_work : steps between two looks at the clock.
    """
    n = relaxation.num_ops
    costs = relaxation.compute, relaxation.class_size, relaxation.min_compute
    equal = np.ones(len(relaxation.class_size), np.int64)
    given = () if weights is None else (weights,)
    table = np.array([row for row in (*given, equal) if fits(relaxation, row)][:1], np.int64)
    table = table.reshape(-1, len(equal))
    energy = energies(relaxation.compute, relaxation.beside, table)
    arrays = (*direction, *costs, relaxation.beside, table, energy)
    graph = Graph(*(frozen(array) for array in arrays))
    heads = np.full(relaxation.compute.shape, -1, np.int64)
    earliest, ends = np.zeros(n, np.int64), np.zeros(n, np.int64)
    steps = min(24, energy_work // (n * max(1, window)))
    at, stretch = 0, 1
    while at < n and work > 0 and time.perf_counter() < end:
        after = min(n, at + stretch)
        spent = earliest_starts(graph, heads, earliest, ends, at, after, window, steps)
        at, work = after, work - spent
        stretch = max(1, min(2 * stretch, stretch * stretch_work // spent))
    earliest_starts(graph, heads, earliest, ends, at, n, 0, 0)
    return heads


class Graph(NamedTuple):
    """What the kernel reads: a direction of the relaxed graph, and the ops' times."""

    order: Ints  # (num_ops,)
    ptr: Ints  # (num_ops + 1,)
    op: Ints  # (num_pairs,)
    free: Ints  # (num_pairs,)
    pay: Ints  # (num_pairs,)
    far: Ints  # (num_pairs,)
    compute: Ints  # (num_ops, num_classes)
    class_size: Ints  # (num_classes,)
    fastest: Ints  # (num_ops,)
    beside: Ints  # (num_classes, num_classes)
    weights: Ints  # (num_choices, num_classes)
    energy: Ints  # (num_choices, 1 + num_classes, num_ops)


RELEASE, LENGTH, TAIL, ORDER, KEY, REST, PICKED, NEXT_KEY = np.arange(8)
"""Rows of the jobs of a one-machine problem: three that describe them, three of scratch memory, two
of the caller's."""

JOB_ROWS = 6

OFF = INFINITE // 2
"""What cannot be, where two of it are added."""

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


@uncounted_kernel
def _soonest(work, begin, delay, offer):  # type: ignore[no-untyped-def]
    """Least start that one of the three cases of the second part allows; 0 if none does.

    `work` is W0, W1, W2 or OFF, `begin` a0, a1, a2, `delay` b0, b1, b2, `offer` Y0, Y1, Y2. Devices
    that offer nothing weigh nothing, and neither does the work that they may do: 0 of 0 is 0.
    """
    last = min(begin[2] + delay[2], np.int64(OFF))
    middle = min(begin[1] + delay[1], last)
    first = begin[0] + delay[0]
    if work[0] < OFF and first + work[0] <= middle:
        return first + work[0]
    if middle < OFF and work[1] < OFF:
        least, width = middle, offer[0] + offer[1]
        total = work[1] + offer[0] * min(first, middle) + offer[1] * middle
        least = max(least, -(-total // max(width, 1)))
        if least <= last:
            return least
    if last < OFF and work[2] < OFF:
        least, width = last, offer[0] + offer[1] + offer[2]
        total = work[2] + offer[0] * min(first, middle) + offer[1] * middle + offer[2] * last
        return max(least, -(-total // max(width, 1)))
    return np.int64(0)


@uncounted_kernel
def _all_devices(  # type: ignore[no-untyped-def]
    graph, kind, ancestors, count, heads, delays, steps, scratch
):
    """Earliest start on class c that the work of all ancestors allows: the second part of the
    module's proof.

    `kind` is the weights' number and v's class, `delays` has d0, d1, the larger of d1 and d2 by op;
    `scratch` is memory, its jobs[RELEASE] the ancestors' earliest starts.
    """
    choice, c = kind
    jobs, cases, rows = scratch
    earliest, distinct, keys, order = jobs[RELEASE], jobs[LENGTH], jobs[TAIL], jobs[ORDER]
    work, begin, delay, offer = cases[0], cases[1], cases[2], cases[3]
    offer[1:] = 0
    offer[0] = graph.weights[choice, c]
    for other in range(graph.compute.shape[1]):
        offer[1] += graph.beside[c, other] * graph.weights[choice, other]
        offer[2] += graph.class_size[other] * graph.weights[choice, other]
    offer[2] -= offer[1]
    offer[1] -= offer[0]
    argsort(earliest, count, RISING, jobs[KEY], order)
    size = 0
    for i in range(count):
        if size == 0 or earliest[order[i]] > distinct[size - 1]:
            distinct[size] = earliest[order[i]]
            size += 1
        keys[i] = delays[1, ancestors[i]]
    argsort(keys, count, FALLING, jobs[KEY], order)
    for i in range(count):
        u = ancestors[order[i]]
        rows[i, 0], rows[i, 1:] = earliest[order[i]], OFF
        if graph.compute[u, c] >= 0:
            rows[i, 1], rows[i, 4] = graph.compute[u, c], heads[u, c]
        rows[i, 2], rows[i, 3] = (
            min(OFF, graph.energy[choice, 1 + c, u]),
            min(OFF, graph.energy[choice, 0, u]),
        )
        for other in range(graph.compute.shape[1]):
            near = graph.beside[c, other]
            if graph.compute[u, other] >= 0 and near > (other == c):
                rows[i, 5] = min(rows[i, 5], heads[u, other])
            if graph.compute[u, other] >= 0 and graph.class_size[other] > near:
                rows[i, 6] = min(rows[i, 6], heads[u, other])
        for case in range(3):
            rows[i, 7 + case] = min(delays[case, u], OFF)
    steps = min(steps, size)
    best = np.int64(0)
    for step in range(steps):
        a = distinct[step * (size - 1) // max(1, steps - 1)]
        work[:], begin[:], delay[:] = 0, OFF, OFF
        for i in range(count):  # the longest delays first
            row = rows[i]
            for case in range(3 if row[0] >= a else 0):
                work[case] = min(work[case] + row[1 + case], OFF)
                begin[case] = min(begin[case], row[4 + case])
                delay[case] = min(delay[case], row[7 + case])
            if i + 1 < count and rows[i + 1, 8] == row[8]:
                continue
            best = max(best, _soonest(work, begin, delay, offer))
    return best


@uncounted_kernel
def _delays(graph, position, window, ends, mark, ancestors, delays):  # type: ignore[no-untyped-def]
    """Fill d0, d1 and d2 of the ancestors of the op at `position` within the window, the latest
    ancestor first.

    Returns (number of ancestors, start of the op that the ends of its ancestors allow).
    """
    d0, d1, d2 = delays[0], delays[1], delays[2]
    v = graph.order[position]
    mark[v] = position
    d0[v], d1[v], d2[v] = 0, INFINITE, INFINITE
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
        for e in row_of(graph.ptr, w):
            u = graph.op[e]
            with_free = graph.free[e] + run + d0[w]
            here = INFINITE if graph.pay[e] >= INFINITE else graph.pay[e] + run + d0[w]
            later = INFINITE if (d1[w] >= INFINITE or graph.free[e] > 0) else run + d1[w]
            paid = min(here, later)
            there = INFINITE if graph.far[e] >= INFINITE else graph.far[e] + run + d0[w]
            beyond = INFINITE if d2[w] >= INFINITE else graph.free[e] + run + d2[w]
            crossed = max(paid, min(there, beyond))
            if mark[u] != position:
                mark[u] = position
                pending += 1
                d0[u], d1[u], d2[u] = with_free, paid, crossed
            else:
                d0[u] = max(d0[u], with_free)
                d1[u] = max(d1[u], paid)
                d2[u] = max(d2[u], crossed)
    for e in row_of(graph.ptr, v):  # direct predecessors beyond the window still count
        base = max(base, ends[graph.op[e]] + graph.free[e])
    return count, base


@uncounted_kernel
def _keys(graph, c, ancestors, count, heads, delays, keys, floor):  # type: ignore[no-untyped-def]
    """Fill the keys of the ancestors if they are on another device than v, which is of class c;
    return the new floor.
    """
    for i in range(count):
        u = ancestors[i]
        elsewhere = np.int64(INFINITE)
        for other in range(graph.compute.shape[1]):
            if graph.compute[u, other] < 0:
                continue
            near, end = graph.beside[c, other], heads[u, other] + graph.compute[u, other]
            if near > (other == c) and delays[1, u] < INFINITE:
                elsewhere = min(elsewhere, end + delays[1, u])
            if graph.class_size[other] > near and delays[2, u] < INFINITE:
                elsewhere = min(elsewhere, end + delays[2, u])
        keys[i] = elsewhere
        here = elsewhere
        if graph.compute[u, c] >= 0:
            here = min(here, heads[u, c] + graph.compute[u, c] + delays[0, u])
        if here < INFINITE:  # else v cannot run on this class
            floor = max(floor, here)
    return floor


@uncounted_kernel
def _serial_or_paid(  # type: ignore[no-untyped-def]
    graph, c, ancestors, keys, size, heads, d0, jobs
):
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
def earliest_starts(  # type: ignore[no-untyped-def]
    graph, heads, earliest, ends, begin, end, window, steps
):
    """Fill the heads of the ops at topological positions begin..end, one after the other, as in the
    module text.

    `earliest` and `ends` are the earliest start and end of every op before them, on any device.
    Returns about how many steps that takes, at least 1.
    """
    n, num_classes = graph.compute.shape
    delays, mark = np.zeros((3, n), np.int64), np.full(n, -1, np.int64)
    cases, rows = np.empty((4, 3), np.int64), np.empty((n, 10), np.int64)
    ancestors, keys, jobs = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty((JOB_ROWS + 2, n), np.int64),
    )
    work = np.int64(1)
    for position in range(begin, end):
        v = graph.order[position]
        count, base = _delays(graph, position, window, ends, mark, ancestors, delays)
        work += count * num_classes * (10 + steps + num_classes)
        ends[v] = INFINITE
        earliest[v] = INFINITE
        for c in range(num_classes):
            if graph.compute[v, c] < 0:
                continue
            floor = _keys(graph, c, ancestors, count, heads, delays, keys, base)
            for i in range(count):
                jobs[RELEASE, i] = earliest[ancestors[i]]
            for choice in range(len(graph.weights) if steps > 0 and count > 1 else 0):
                found = _all_devices(
                    graph, (choice, c), ancestors, count, heads, delays, steps, (jobs, cases, rows)
                )
                floor = max(floor, found)
            size = np.int64(0)
            for i in range(count):
                if keys[i] > floor and graph.compute[ancestors[i], c] >= 0:
                    jobs[PICKED, size] = i
                    size += 1
            if size > 0:
                work += 4 * size * np.int64(np.log2(size + 1)) ** 2  # heaps in a bisection
                floor = max(
                    floor, _serial_or_paid(graph, c, ancestors, keys, size, heads, delays[0], jobs)
                )
            heads[v, c] = floor
            earliest[v] = min(earliest[v], floor)
            ends[v] = min(ends[v], floor + graph.compute[v, c])
    return work
