"""Devices filled one after another, where memory is so full that starts which balance times do not
fit.

A try takes the devices in some order. Each gets a set of nodes that no remaining node comes before
(an ideal of what remains, so that the devices are a chain), and may leave no more bytes free than
the devices have together beyond what all nodes take. The set grows from node to node at random, as
far as nodes fit. If too much is free, some last nodes of it give place to some first nodes of the
rest: of all subsets of some of both, the sums of bytes are made and sorted, and the best pair is
met in the middle. Without order edges, any nodes are first and last.

References
----------
E. Horowitz, S. Sahni: "Computing partitions with applications to the knapsack problem", Journal of
the ACM 21(2), 1974 (sums of subsets that meet in the middle).
R. E. Korf: "An improved algorithm for optimal bin packing", IJCAI 2003 (bins are completed one by
one, within the waste that is left).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, by_number, positions, stable_order, true_places
from placeopt.model.projection import Units
from placeopt.period.contracted import ContractedProblem

Near = list[list[int]]
"""Nodes near each node."""


SIDE = 12
"""Nodes of either side that are exchanged: 2^12 sums are sorted in less than a millisecond."""


class Filling(NamedTuple):
    """Nodes that fill devices; no edge leads back in the order in which they are filled."""

    size: Ints  # (N,) bytes
    able: Flags  # (N, k) whether a device can run a node
    capacity: Ints  # (k,) bytes
    after: Near  # of each node, where edges lead to
    before: Near  # and where they come from

    @classmethod
    def of_nodes(cls, model: ContractedProblem) -> Filling:
        """Return the nodes of a contracted problem, with its order edges."""
        ends = model.order_from.tolist(), model.order_to.tolist()
        before = by_number(model.num_nodes, zip(*reversed(ends), strict=True))
        able, capacity = model.allowed[:, model.type_of], model.capacity[model.type_of]
        return cls(model.resident, able, capacity, model.successors, before)

    @property
    def unordered(self) -> Filling:
        """The same nodes without edges."""
        none: Near = [[] for _ in self.after]
        return self._replace(after=none, before=none)

    @classmethod
    def of_units(cls, units: Units) -> Filling:
        """Return the units of a problem, without edges."""
        none: Near = [[] for _ in units.bytes]
        return cls(units.bytes, units.allowed, units.capacity, none, none)


class Growth(NamedTuple):
    """A set that grew on a device: the nodes taken, in turn, and the bytes free."""

    taken: list[int]
    free: int


def fillings(model: ContractedProblem, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield the device of every op, as `filled` does of every node."""
    for home in filled(Filling.of_nodes(model), rng):
        yield None if home is None else model.expand(home)


def first_filled(filling: Filling, rng: np.random.Generator, *, draws: int = 40_000) -> Ints | None:
    """Return the device of every node of the first that fits, None if none is found soon.

    Parameters
    ----------
    draws : nodes that are drawn, about a tenth of a second's.
    """
    sets = len(filling.capacity) + draws // len(filling.size)
    found = (home for home in islice(filled(filling, rng), sets) if home is not None)
    return next(found, None)


def filled(filling: Filling, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield the device of every node of what fits, None for a set that leaves too much free,
    without end; nothing where the devices have no room for all.

    Where no set is found for a device, the last one before it begins anew, or, half as often each,
    the last two, three, ...
    """
    capacity = np.minimum(filling.capacity, filling.size.sum())
    spare = int(capacity.sum() - filling.size.sum())
    devices, home = np.arange(len(capacity)), np.full(len(filling.size), -1, np.int64)
    free: list[int] = []  # bytes of the devices that are filled
    while spare >= 0:
        d, later = int(devices[len(free)]), devices[len(free) + 1 :]
        now = (home < 0) & ~filling.able[:, later].any(axis=1)  # nodes that have no other device
        grown = _grown(filling, home, now, d, int(capacity[d]), rng)
        if grown.free > spare - sum(free):
            grown = _exchanged(filling, home < 0, now, grown, d, rng)
        whole = now.sum() == now[grown.taken].sum()
        if len(grown.taken) == (home < 0).sum():
            home[grown.taken] = d
            yield home.copy()
            devices, home[:], free = rng.permutation(devices), -1, []
        elif whole and grown.free <= spare - sum(free) and len(later):
            home[grown.taken] = d
            free.append(grown.free)
        else:
            yield None
            back = max(0, len(free) + 1 - int(rng.geometric(0.5)))
            home[np.isin(home, devices[back:])] = -1
            del free[back:]
            if not free:
                devices = rng.permutation(devices)


def _grown(
    filling: Filling, home: Ints, now: Flags, d: int, free: int, rng: np.random.Generator
) -> Growth:
    """Take nodes that nothing left comes before while they fit, those first that have to go now;
    half of the time what the last one made ready, so that sets are not all broad.
    """
    left, size = home < 0, filling.size.tolist()
    waiting = [sum(map(left.item, ends)) for ends in filling.before]
    able = filling.able[:, d].tolist()
    urgent: list[int] = []
    ready: list[int] = []
    by_size: list[tuple[int, int]] = []  # of those ready, and of some that were
    taken: list[int] = []

    def add(v: int) -> None:
        (urgent if now[v] else ready).append(v)
        if not now[v]:
            heappush(by_size, (-size[v], v))

    for v in true_places(left):
        if not waiting[v] and able[v]:
            add(v)
    large, gone = rng.random(), set[int]()
    while urgent or ready:
        kind = rng.random()
        if urgent:
            v = urgent.pop()
        elif kind < large:
            v = heappop(by_size)[1]
            while v in gone:
                v = heappop(by_size)[1]
            ready.remove(v)
        else:
            v = ready.pop(-1 if kind < (1 + large) / 2 else int(rng.integers(len(ready))))
        gone.add(v)
        if size[v] > free:
            continue
        taken.append(v)
        free -= size[v]
        for w in filling.after[v]:
            waiting[w] -= 1
            if not waiting[w] and able[w]:
                add(w)
    return Growth(taken, free)


def _exchanged(
    filling: Filling, left: Flags, now: Flags, grown: Growth, d: int, rng: np.random.Generator
) -> Growth:
    """Exchange some last nodes of the set, but none that has to go now, for some first ones of the
    rest, so that least is free.
    """
    held = set(grown.taken)
    rest = {v for v in true_places(left) if v not in held}
    out = _drawn([v for v in grown.taken if not now[v]], held, filling.after, filling.before, rng)
    able = [v for v in rest if filling.able[v, d]]
    into = _drawn(able, rest | set(out), filling.before, filling.after, rng)
    which_out, less = _sums(filling.size, out, filling.after)
    which_in, more = _sums(filling.size, into, filling.before)
    order = stable_order(more)
    room = grown.free + less
    at = order[np.searchsorted(more[order], room, side="right") - 1]
    best = int(np.argmin(room - more[at]))
    gone = {v for i, v in enumerate(out) if which_out[best] >> i & 1}
    new = [v for i, v in enumerate(into) if which_in[at[best]] >> i & 1]
    taken = [v for v in grown.taken if v not in gone] + new
    return Growth(taken, int(room[best] - more[at[best]]))


def _drawn(
    nodes: list[int], there: set[int], behind: Near, ahead: Near, rng: np.random.Generator
) -> list[int]:
    """Draw at most `SIDE` of the nodes, each after all nodes behind it that are there."""
    waiting = {v: sum(u in there for u in behind[v]) for v in nodes}
    ready = [v for v in nodes if not waiting[v]]
    drawn: list[int] = []
    while ready and len(drawn) < SIDE:
        drawn.append(ready.pop(int(rng.integers(len(ready)))))
        for w in ahead[drawn[-1]]:
            if w in waiting:
                waiting[w] -= 1
                if not waiting[w]:
                    ready.append(w)
    return drawn


def _sums(size: Ints, nodes: list[int], behind: Near) -> tuple[Ints, Ints]:
    """Return the subsets of the nodes that hold what is behind each of theirs, as numbers whose
    bits say what is in them, and their bytes.
    """
    which, sums = np.zeros((2, 1), np.int64)
    place = positions(nodes)
    for i, v in enumerate(nodes):
        needs = sum(1 << place[u] for u in set(behind[v]) if u in place)
        ready = which & needs == needs
        which = np.concatenate([which, which[ready] | 1 << i])
        sums = np.concatenate([sums, sums[ready] + size[v]])
    return which, sums
