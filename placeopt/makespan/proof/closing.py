"""Steps that close a supposition: windows with too much work, ops with late heads and long tails,
pigeonholes, cliques.

Each function returns the step that contradicts the supposition, None if it finds none. The proofs
are those of `placeopt.makespan.bounds.energy`, `head_tail` and `load`; ops that must share a device
count together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.relaxation import sample
from placeopt.makespan.proof.supposition import INFINITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.makespan.proof.supposition import Supposition
    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.bound import Step

OFF = np.iinfo(np.int64).max // 4
"""Ticks of what cannot be, in arrays."""


class Columns:
    """A supposition as arrays: heads, tails and times by op and class, OFF where an op cannot
    run.
    """

    def __init__(self, state: Supposition) -> None:
        self.state = state
        self.time = np.array(
            [[OFF if t is None else t for t in row] for row in state.time], np.int64
        )
        on = self.time < OFF
        self.head, self.tail = (
            np.where(
                on,
                np.array(
                    [[OFF if x == INFINITE else int(x) for x in row] for row in far], np.int64
                ),
                OFF,
            )
            for far in (state.head, state.tail)
        )
        self.on = on
        leaders = [members[0] for members in state.group]
        self.first, self.item = np.unique(leaders, return_inverse=True)
        self.resident = np.zeros(len(self.first), np.int64)
        np.add.at(self.resident, self.item, state.problem.resident)
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
        work = np.zeros(self.possible.shape, np.int64)
        np.add.at(work, self.item, inside)
        cost = work.astype(object) * weights.astype(object) + self.resident.astype(object)[
            :, None
        ] * prices.astype(object)
        return sum(
            min((x for x, ok in zip(row, here, strict=True) if ok), default=0)
            for row, here in zip(cost.tolist(), self.possible.tolist(), strict=True)
        )

    def needs(
        self,
        begin: int,
        ends: Ints,
        weights: Ints,
        prices: Ints,
    ) -> Floats:
        """Weighted work that must lie in windows from one begin to several ends, in floating
        point.
        """
        length = (ends - begin)[:, None, None]
        left, right = self.head + self.time - begin, self.tail + self.time - self.state.most
        inside = np.minimum(
            np.minimum(self.time, left)[None], np.minimum(length, ends[:, None, None] + right[None])
        )
        work = np.zeros((len(self.possible), len(ends), self.possible.shape[1]))
        np.add.at(
            work,
            self.item,
            np.where(self.on, np.maximum(inside, 0), 0).astype(np.float64).swapaxes(0, 1),
        )
        work = work.swapaxes(0, 1)
        cost = work * weights + self.resident[:, None].astype(np.float64) * prices
        return np.where(self.possible, cost, np.inf).min(axis=2).sum(axis=1)


def overfull_window(
    columns: Columns, choices: Sequence[tuple[Ints, Ints]], most_ends: int = 64
) -> Step | None:
    """Return a window whose work passes what the devices offer, under one of the choices of weights
    and prices.

    Windows between heads, ends, latest starts and latest ends, at most `most_ends` of their begins
    and ends, are compared in floating point; the fullest is then counted in whole numbers.
    """
    state = columns.state
    head, time, tail = columns.least
    begins, ends = (
        sample(np.unique(np.clip(np.concatenate(times), 0, state.most)), most_ends)
        for times in (
            ([0], head, state.most - tail - time),
            ([state.most], state.most - tail, head + time),
        )
    )
    capacity = state.problem.capacity.tolist()
    room = [
        sum(m for m, kind in zip(capacity, state.kind, strict=True) if kind == c)
        for c in range(len(state.count))
    ]
    for weights, prices in choices:
        width = sum(int(s) * int(y) for s, y in zip(state.count, weights, strict=True))
        stock = sum(int(z) * m for z, m in zip(prices, room, strict=True))
        excess = np.stack(
            [
                columns.needs(a, ends, weights, prices) - float(width) * (ends - a)
                for a in begins.tolist()
            ]
        )
        excess[begins[:, None] >= ends[None, :]] = -np.inf
        at = np.unravel_index(int(excess.argmax()), excess.shape)
        begin, end = int(begins[at[0]]), int(ends[at[1]])
        if (
            excess[at] > stock - 1
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
    order = np.argsort(-tail, kind="stable")
    for level in sample(np.unique(head), most_levels).tolist():
        ops = order[head[order] >= level]
        work = np.cumsum(time[ops])
        fewest = np.sort(
            head[ops]
        )  # the j smallest heads of a prefix are no smaller than those of the whole set
        low = np.cumsum(fewest)
        refuted = np.ones(len(ops), np.bool_)
        for j in range(1, devices + 1):
            # tails descend: the j smallest of a prefix are its last ones
            last = np.cumsum(tail[ops])
            last = (
                last - np.concatenate([np.zeros(min(j, len(ops)), np.int64), last[:-j]])[: len(ops)]
            )
            enough = np.arange(1, len(ops) + 1) >= j
            refuted &= ~enough | (low[min(j, len(ops)) - 1] + work + last > j * most)
        found = np.flatnonzero(refuted)
        if found.size:
            return ["ends", sorted(ops[: int(found[0]) + 1].tolist())]
    return None


def pigeonhole(columns: Columns) -> Step | None:
    """Return h k + 1 ops of which no h + 1 fit on one device."""
    state = columns.state
    devices, time = state.problem.num_devices, columns.time.min(axis=1)
    order = np.argsort(-time, kind="stable")
    total = np.concatenate([[0], np.cumsum(time[order])])
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
