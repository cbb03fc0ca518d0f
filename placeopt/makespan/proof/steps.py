"""The steps of a derivation: lemmas that raise heads and tails, and steps that close a supposition.

Lemmas say which ops before an op prove that it cannot start earlier. Let op v, on a device of class
c, start at x or before. Every op u of a set B of ops before v runs on v's device between its head
and x - d0(u), or on another one between its head and x - d1(u); d0 is the least delay from its end
to the start of v in any case, d1 that between two devices
(`placeopt.makespan.bounds.communication`). If the work of B passes what fits into these two, v
starts after x. Three kinds of sets are tried for every op: one op that cannot be on v's device; the
ops whose results would come too late from any other, in the order of Jackson's schedule; and all
ops that start late enough, by the work of all devices, of which a tick counts as much as its class
weighs.

A supposition is closed by windows with too much work, by ops with late heads and long tails, by
pigeonholes and by cliques: each function returns the step that contradicts it, None if it finds
none. The proofs are those of `placeopt.makespan.bounds.energy` and `elementary`; ops that must
share a device count together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from placeopt.makespan.bounds.relaxation import sample
from placeopt.makespan.proof.supposition import INFINITE, Delay, Neighbours, Supposition
from placeopt.model.arrays import Floats, Ints, running_sums, stable_order, sums_by, together
from placeopt.model.bound import Step

Latest = tuple[Delay, list[int]]
"""How late an op starts at least, and the ops before it that show it."""


Lemma = list[Any]
"""[op, class, ticks, ops before it], and weights of the classes unless all are 1."""

OFF = np.iinfo(np.int64).max // 4
"""Ticks of what cannot be, in arrays."""


class Ancestors(NamedTuple):
    """The ops before one op v: delays to its start, in any case and between two devices."""

    ops: list[int]
    near: dict[int, Delay]
    apart: dict[int, Delay]


def sweep(
    state: Supposition,
    *,
    backwards: bool,
    goal: Ints | None = None,
    weights: Sequence[Ints] = (),
    end: float = math.inf,
) -> list[Lemma]:
    """Raise the heads (or tails) of all ops and return the lemmas that it took.

    Parameters
    ----------
    end : in seconds of `time.perf_counter`, after which no more lemmas are looked for.
    goal : heads that are known to hold, by op and class: lemmas are looked for where edges alone do
    not reach them.
    weights : of the classes of devices, to be tried beside equal ones.
    """
    far, order = (state.tail, state.order[::-1]) if backwards else (state.head, state.order)
    into, split = state.neighbours(backwards=backwards), state.splits()
    rows = _Rows(_as_floats(far), _as_floats(state.time))
    found: list[Lemma] = []
    for at, v in enumerate(order):
        _follow_edges(state, far, v, into)
        wanted = [
            c for c in state.classes(v) if into.get(v) and (goal is None or goal[v, c] > far[v][c])
        ]
        if wanted and time.perf_counter() < end:
            before = ancestors(state, order[: at + 1], into, split)
            for c in wanted:
                ticks, ops, *weighed = best_lemma(state, rows, (v, c), far[v][c], before, weights)
                if ticks > far[v][c]:
                    far[v][c] = int(ticks)
                    found.append([v, c, int(ticks), sorted(ops), *weighed])
        state.narrow(v)
        rows.far[v], rows.time[v] = far[v], _as_floats(state.time[v])
        if state.closed:
            break
    return found


def _follow_edges(state: Supposition, far: list[list[Delay]], v: int, into: Neighbours) -> None:
    """An op starts after those before it, and after their results have come from another class of
    devices.
    """
    for u, free, pay in into.get(v, ()):
        ends = [
            (d, far[u][d] + ticks) for d, ticks in enumerate(state.time[u]) if ticks is not None
        ]
        for c in state.classes(v):
            least = min(
                (end + (free if d == c else max(free, pay)) for d, end in ends), default=INFINITE
            )
            far[v][c] = max(far[v][c], least)


def ancestors(
    state: Supposition, order: list[int], into: Neighbours, split: set[tuple[int, int]]
) -> Ancestors:
    """Return the ops before the last one of an order, v, with their delays."""
    v, ops = order[-1], []
    near: dict[int, Delay] = {v: 0}
    apart: dict[int, Delay] = {v: INFINITE}
    for w in reversed(order):
        if w not in near:
            continue
        run: Delay = 0
        if w != v:
            ops.append(w)
            run = state.fastest(w)
            if state.group[w] is state.group[v]:
                apart[w] = INFINITE
            elif (state.group[w][0], state.group[v][0]) in split:
                near[w] = max(near[w], apart[w])
        for u, free, pay in into.get(w, ()):
            near[u] = max(near.get(u, 0), free + run + near[w])
            apart[u] = max(
                apart.get(u, 0), min(pay + run + near[w], INFINITE if free else run + apart[w])
            )
    return Ancestors(ops, near, apart)


class _Rows(NamedTuple):
    """Heads, and ticks, of every op by class, INFINITE where it cannot run."""

    far: Floats
    time: Floats


def _as_floats(rows: Sequence[Any]) -> Floats:
    """Return ticks as an array, INFINITE for None."""
    found = np.array(rows, np.float64)
    found[np.isnan(found)] = INFINITE
    return found


class _Table(NamedTuple):
    """The ops before v as arrays, for one class of v's device."""

    time: Floats  # ticks by class, INFINITE where it cannot run
    release: Floats  # head here
    length: Floats  # ticks here
    near: Floats
    apart: Floats
    key: Floats  # when its result comes from another device at the earliest
    start: Floats  # least head anywhere
    other: Floats  # least head on another device


def best_lemma(
    state: Supposition,
    rows: _Rows,
    at: tuple[int, int],
    known: Delay,
    before: Ancestors,
    weights: Sequence[Ints],
) -> tuple[Any, ...]:
    """Return the latest start of an op on a class, `at`, that some set of ops before it proves, and
    that set; the weights that it takes, where they are not equal.

    Parameters
    ----------
    known : start that is proved already.
    """
    c = at[1]
    table = _table(rows, c, before, several=state.count[c] > 1)
    best: Latest = (known, [])
    elsewhere = np.flatnonzero(
        (table.length == INFINITE) & (table.key > best[0]) & (table.key < INFINITE)
    )
    if elsewhere.size:
        last = int(elsewhere[table.key[elsewhere].argmax()])
        best = float(table.key[last]), [last]
    found = _serial_or_paid(table, best[0])
    if found is not None and found[0] > best[0]:
        best = found
    weighed: list[list[int]] = []
    for row in (np.ones(len(state.count), np.int64), *weights):
        found = _all_devices(table, state.count, c, row.tolist())
        if found is not None and found[0] > best[0]:
            best, weighed = found, [row.tolist()] if np.ptp(row) else []
    return best[0], [before.ops[i] for i in best[1]], *weighed


def _table(rows: _Rows, c: int, before: Ancestors, *, several: bool) -> _Table:
    """Return the ops before v, which is on class c; `several` says whether that has devices beside
    v's.
    """
    far, time = rows.far[before.ops], rows.time[before.ops]
    near, apart = (
        np.array([delay[u] for u in before.ops], np.float64)
        for delay in (before.near, before.apart)
    )
    start = np.where(time < INFINITE, far, INFINITE)
    other, ends = start.copy(), start + time
    if not several:
        other[:, c] = ends[:, c] = INFINITE
    return _Table(
        time,
        far[:, c],
        time[:, c],
        near,
        apart,
        ends.min(axis=1) + apart,
        start.min(axis=1),
        other.min(axis=1),
    )


def _serial_or_paid(t: _Table, floor: Delay) -> Latest | None:
    """Either the ops with the largest keys all run on v's device, or one of them delivers at its
    key.
    """
    usable = np.flatnonzero((t.length < INFINITE) & (t.key > floor))
    order = usable[stable_order(-t.key[usable])]
    low, high = 0, len(order)  # smallest number of ops that take longer than the next key
    while low < high:
        middle = (low + high) // 2
        if _one_machine(t, order[:middle])[0] >= t.key[order[middle]]:
            high = middle
        else:
            low = middle + 1
    best: Latest | None = None
    for size in {low, low - 1, low + 1}:
        if not 0 < size <= len(order):
            continue
        serial, ops = _one_machine(t, order[:size])
        value = min(serial, float(t.key[ops].min()))
        if best is None or value > best[0]:
            best = value, ops
    return best


def _one_machine(t: _Table, rows: Ints) -> Latest:
    """Return the optimum of the preemptive one-machine problem of some ops, and the ops that prove
    it.
    """
    if not len(rows):
        return 0, []
    by_tail = rows[stable_order(-t.near[rows])]
    release, length, tail = t.release[by_tail], t.length[by_tail], t.near[by_tail]
    levels = np.unique(release)
    inside = release[None, :] >= levels[:, None]
    total = np.cumsum(np.where(inside, length, 0.0), axis=1) + levels[:, None] + tail[None, :]
    total = np.where(inside, total, -1.0)
    level, last = np.unravel_index(int(total.argmax()), total.shape)
    chosen = np.flatnonzero(inside[level, : last + 1])
    return float(total[level, last]), by_tail[chosen].tolist()


def _all_devices(
    t: _Table, count: Sequence[int], c: int, weights: Sequence[int], most_levels: int = 24
) -> Latest | None:
    """Work that starts late, on v's device until shortly before v and on the others until the
    results can come; `most_levels` thresholds on heads are tried.

    Sets are compared in floating point; what the best one proves is counted in whole numbers.

    Parameters
    ----------
    count, weights : devices of each class, and what a tick of theirs counts. c : class of v's.
    """
    width = sum(x * y for x, y in zip(count, weights, strict=True))
    own, others = weights[c], width - weights[c]
    usable = np.flatnonzero(t.apart < INFINITE) if others else np.arange(len(t.apart))
    if len(usable) < 2 or not width:
        return None
    order = usable[stable_order(-t.apart[usable])]
    levels = sample(np.unique(t.start[order]), most_levels)
    inside = t.start[order][None, :] >= levels[:, None]
    able = t.time < INFINITE
    weighed = np.where(able, np.where(able, t.time, 0.0) * weights, INFINITE).min(axis=1)
    work = np.cumsum(np.where(inside, weighed[order], 0.0), axis=1)
    length = np.cumsum(np.where(inside, t.length[order], 0.0), axis=1)
    release = np.where(t.length < INFINITE, t.release, OFF)
    least = (
        np.minimum.accumulate(np.where(inside, np.minimum(ticks[order], OFF), OFF), axis=1)
        for ticks in (release, t.near, t.other, t.apart)
    )
    begin, near, begin_other, apart = least
    first, other = begin + near, begin_other + apart
    alone, ready = first + length, np.minimum(first, other)
    spread = np.maximum(other, (work + own * ready + others * other) / width)
    value = np.where(inside, np.where(alone <= other, alone, spread), -1.0)
    level, last = np.unravel_index(int(value.argmax()), value.shape)
    late, chosen = alone[level, last], order[np.flatnonzero(inside[level, : last + 1])].tolist()
    if late > other[level, last]:
        ends = own * int(ready[level, last]) + others * int(other[level, last])
        energy = sum(
            min(int(x) * y for x, y in zip(row, weights, strict=True) if x < INFINITE)
            for row in t.time[chosen].tolist()
        )
        spent = -(-(energy + ends) // width)
        late = max(other[level, last], spent)
    return float(late), chosen


class Columns:
    """A supposition as arrays: heads, tails and times by op and class, OFF where an op cannot
    run.
    """

    def __init__(self, state: Supposition) -> None:
        self.state = state
        self.time = _whole_ticks(state.time)
        self.on = on = self.time < OFF
        self.head, self.tail = (
            np.where(on, _whole_ticks(far), OFF) for far in (state.head, state.tail)
        )
        leaders = [members[0] for members in state.group]
        self.first, self.item = np.unique(leaders, return_inverse=True)
        self.resident = sums_by(self.item, state.problem.resident, len(self.first))
        self.possible = np.ones((len(self.first), on.shape[1]), np.bool_)
        np.logical_and.at(self.possible, self.item, on)

    @property
    def least(self) -> tuple[Ints, Ints, Ints]:
        """Head, time and tail of every op on its best class."""
        return self.head.min(axis=1), self.time.min(axis=1), self.tail.min(axis=1)

    def need(self, begin: int, end: int, weights: Ints, prices: Ints) -> int:
        """Weighted work that must lie in a window."""
        most = self.state.most
        inside = np.minimum(
            np.minimum(self.time, end - begin),
            np.minimum(self.head + self.time - begin, end - most + self.tail + self.time),
        )
        inside = np.where(self.on, np.maximum(inside, 0), 0)
        work = sums_by(self.item, inside, len(self.first))
        cost = work.astype(object) * weights.astype(object) + self.resident.astype(object)[
            :, None
        ] * prices.astype(object)
        return sum(
            min((x for x, ok in zip(row, here, strict=True) if ok), default=0)
            for row, here in together(cost, self.possible)
        )

    def needs(self, begin: int, ends: Ints, choices: Sequence[tuple[Ints, Ints]]) -> Floats:
        """Weighted work that must lie in windows from one begin to several ends, in floating point,
        shape (num_choices, num_ends).
        """
        length = (ends - begin)[:, None, None]
        left, right = self.head + self.time - begin, self.tail + self.time - self.state.most
        inside = np.minimum(
            np.minimum(self.time, left)[None], np.minimum(length, ends[:, None, None] + right[None])
        )
        inside = np.where(self.on, np.maximum(inside, 0), 0).astype(np.float64).swapaxes(0, 1)
        work = sums_by(self.item, inside, len(self.first)).swapaxes(0, 1)
        resident, rows = self.resident[:, None].astype(np.float64), []
        for weights, prices in choices:
            cost = work * weights.astype(np.float64) + resident * prices.astype(np.float64)
            rows.append(np.where(self.possible, cost, np.inf).min(axis=2).sum(axis=1))
        return np.array(rows)


def _whole_ticks(rows: Sequence[Sequence[Delay | None]]) -> Ints:
    """Return ticks by op and class, OFF for those of what cannot be."""
    return np.array(
        [[OFF if x is None or x == INFINITE else int(x) for x in row] for row in rows], np.int64
    )


def overfull_window(
    columns: Columns,
    choices: Sequence[tuple[Ints, Ints]],
    *,
    most_ends: int = 64,
    until: float = math.inf,
) -> Step | None:
    """Return a window whose work passes what the devices offer, under one of the choices of weights
    and prices.

    Windows between heads, ends, latest starts and latest ends, at most `most_ends` of their begins
    and ends, are compared in floating point; the fullest is then counted in whole numbers, if it is
    too full but for what rounding each number once may have changed.

    Parameters
    ----------
    until : in seconds of `time.perf_counter`, when no more begins are looked at.
    """
    state = columns.state
    head, run, tail = columns.least
    begins, ends = (
        sample(np.unique(np.clip(np.concatenate(times), 0, state.most)), most_ends)
        for times in (
            ([0], head, state.most - tail - run),
            ([state.most], state.most - tail, head + run),
        )
    )
    capacity = state.problem.capacity.tolist()
    room = [
        sum(m for m, kind in zip(capacity, state.kind, strict=True) if kind == c)
        for c in range(len(state.count))
    ]
    needs = list[Floats]()
    for a in begins.tolist():
        if needs and time.perf_counter() > until:
            break
        needs.append(columns.needs(a, ends, choices))
    begins = begins[: len(needs)]
    for (weights, prices), need in zip(choices, np.stack(needs, axis=1), strict=True):
        width = sum(int(s) * int(y) for s, y in zip(state.count, weights, strict=True))
        stock = sum(int(z) * m for z, m in zip(prices, room, strict=True))
        excess = need - float(width) * (ends - begins[:, None])
        excess[begins[:, None] >= ends[None, :]] = -np.inf
        at = np.unravel_index(int(excess.argmax()), excess.shape)
        begin, end = int(begins[at[0]]), int(ends[at[1]])
        rounding = columns.time.size * 2.0**-52 * (float(width) * state.most + stock)
        if (
            excess[at] > stock - 1 - rounding
            and columns.need(begin, end, weights, prices) > width * (end - begin) + stock
        ):
            return ["window", begin, end, weights.tolist(), prices.tolist()]
    return None


def late_and_early(columns: Columns, most_levels: int = 400) -> Step | None:
    """Return a set of ops with late heads and long tails that no number of devices runs in time;
    at most `most_levels` thresholds on heads are tried.
    """
    most, devices = columns.state.most, columns.state.problem.num_devices
    head, time, tail = columns.least
    order = stable_order(-tail)
    for level in sample(np.unique(head), most_levels).tolist():
        ops = order[head[order] >= level]
        work, tails = np.cumsum(time[ops]), np.cumsum(tail[ops])
        # the j smallest heads of a prefix are no smaller than those of the whole set
        low = np.cumsum(np.sort(head[ops]))
        refuted = np.ones(len(ops), np.bool_)
        for j in range(1, min(devices, len(ops)) + 1):  # on j devices a prefix has j ops at least
            # tails descend: the j smallest of a prefix are its last ones
            last = tails - np.concatenate([np.zeros(j, np.int64), tails[:-j]])
            refuted[j - 1 :] &= (low[j - 1] + work + last > j * most)[j - 1 :]
        found = np.flatnonzero(refuted)
        if found.size:
            return ["ends", sorted(ops[: int(found[0]) + 1].tolist())]
    return None


def pigeonhole(columns: Columns) -> Step | None:
    """Return h k + 1 ops of which no h + 1 fit on one device."""
    state = columns.state
    devices, time = state.problem.num_devices, columns.time.min(axis=1)
    order = stable_order(-time)
    total = running_sums(time[order])
    for few in range(1, (len(order) - 1) // devices + 1):
        last = few * devices + 1
        if total[last] - total[last - few - 1] > state.most:
            return ["pigeons", sorted(order[:last].tolist()), few]
    return None


def clique(state: Supposition, most_groups: int = 40) -> Step | None:
    """Return more ops than devices of which no two can share one; none is looked for among more
    than `most_groups` groups.
    """
    if len(state.apart) * 2 < state.problem.num_devices * (state.problem.num_devices + 1):
        return None
    split = state.splits()
    firsts = sorted({a for a, _ in split})
    if len(firsts) > most_groups:
        return None
    chosen: list[int] = []

    def extend(start: int) -> bool:
        if len(chosen) > state.problem.num_devices:
            return True
        for i in range(start, len(firsts)):
            if all((firsts[i], x) in split for x in chosen):
                chosen.append(firsts[i])
                if extend(i + 1):
                    return True
                chosen.pop()
        return False

    return ["clique", chosen[:]] if extend(0) else None


def critical_ops(state: Supposition, ops: list[int]) -> list[int] | None:
    """Return ops out of some that are too much for one device, None if none are."""
    by_tail = sorted(ops, key=lambda v: -state.least(state.tail, v))
    head = {v: state.least(state.head, v) for v in by_tail}
    for level in sorted(set(head.values())):
        late = [v for v in by_tail if head[v] >= level]
        for size in range(2, len(late) + 1):
            if state.too_much(late[:size]):
                return late[:size]
    return ops if state.too_much(ops) else None
