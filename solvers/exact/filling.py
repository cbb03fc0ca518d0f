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

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import by_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.arrays import Ints
    from placeopt.period.contracted import ContractedProblem

SIDE = 12
"""Nodes of either side that are exchanged: 2^12 sums are sorted in less than a millisecond."""


class Growth(NamedTuple):
    """A set that grew on a device: the nodes taken, in turn, those that could follow, and the bytes
    free.
    """

    taken: list[int]
    beside: list[int]
    free: int


def fillings(model: ContractedProblem, rng: np.random.Generator) -> Iterator[Ints | None]:
    """Yield the device of every op of what fits, None for a set that leaves too much free, without
    end; nothing where the devices have no room for all.

    Where no set is found for a device, the last one before it begins anew, or, half as often each,
    the last two, three, ...
    """
    capacity = np.minimum(model.capacity, model.resident.sum())[model.type_of]
    spare = int(capacity.sum() - model.resident.sum())
    edges = zip(model.order_from.tolist(), model.order_to.tolist(), strict=True)
    before = by_number(model.num_nodes, ((v, u) for u, v in edges))
    devices, home = np.arange(len(capacity)), np.full(model.num_nodes, -1, np.int64)
    free: list[int] = []  # bytes of the devices that are filled
    while spare >= 0:
        d = int(devices[len(free)])
        grown = _grown(model, home, d, int(capacity[d]), rng)
        if grown.free > spare - sum(free):
            grown = _exchanged(model, before, grown, rng)
        if len(grown.taken) == (home < 0).sum():
            home[grown.taken] = d
            yield model.expand(home)
            devices, home[:], free = rng.permutation(devices), -1, []
        elif grown.free <= spare - sum(free) and len(free) + 1 < len(devices):
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
    model: ContractedProblem, home: Ints, d: int, free: int, rng: np.random.Generator
) -> Growth:
    """Take nodes that nothing left comes before while they fit; half of the time what the last one
    made ready, so that sets are not all broad.
    """
    left, size = home < 0, model.resident.tolist()
    waiting = np.bincount(model.order_to[left[model.order_from]], minlength=len(home)).tolist()
    able = model.allowed[:, model.type_of[d]].tolist()
    ready = [v for v in np.flatnonzero(left).tolist() if not waiting[v] and able[v]]
    taken: list[int] = []
    beside: list[int] = []
    large = rng.random()
    while ready:
        kind = rng.random()
        if kind < large:
            at = max(range(len(ready)), key=lambda i: size[ready[i]])
        elif kind < (1 + large) / 2:
            at = len(ready) - 1
        else:
            at = int(rng.integers(len(ready)))
        v = ready.pop(at)
        if size[v] > free:
            beside.append(v)
            continue
        taken.append(v)
        free -= size[v]
        for w in model.successors[v]:
            waiting[w] -= 1
            if not waiting[w] and able[w]:
                ready.append(w)
    return Growth(taken, beside, free)


def _exchanged(
    model: ContractedProblem, before: list[list[int]], grown: Growth, rng: np.random.Generator
) -> Growth:
    """Exchange some last nodes of the set for some that could follow, so that least is free."""
    held = set(grown.taken)
    last = [v for v in grown.taken if held.isdisjoint(model.successors[v])]
    out = _some(last, rng)
    bound = {v for v in grown.beside if not set(out).isdisjoint(before[v])}
    into = _some([v for v in grown.beside if v not in bound], rng)
    less, more = _sums(model.resident[out]), _sums(model.resident[into])
    order = np.argsort(more, kind="stable")
    room = grown.free + less
    at = order[np.searchsorted(more[order], room, side="right") - 1]
    best = int(np.argmin(room - more[at]))
    gone = {v for i, v in enumerate(out) if best >> i & 1}
    new = [v for i, v in enumerate(into) if at[best] >> i & 1]
    taken = [v for v in grown.taken if v not in gone] + new
    return Growth(taken, grown.beside, int(room[best] - more[at[best]]))


def _some(nodes: list[int], rng: np.random.Generator) -> list[int]:
    """Return at most `SIDE` of the nodes."""
    return rng.permutation(np.array(nodes, np.int64))[:SIDE].tolist()


def _sums(sizes: Ints) -> Ints:
    """Return the sum of every subset, at the number whose bits say what is in it."""
    sums = np.zeros(1, np.int64)
    for size in sizes.tolist():
        sums = np.concatenate([sums, sums + size])
    return sums
