"""Whether few disjoint sets out of a list, and a rest for one more device, hold every node: a
depth-first search.

Every set has an excess (by how much it is cheaper than the dearest) and the excesses of those
chosen share a budget. The node that the fewest sets of those left hold is decided next: one of
these sets is chosen, or the node joins the rest, which has room for some ticks and whose nodes cost
of the budget, too. Sets that meet a chosen one, hold a node of the rest, or exceed what is left of
the budget are dropped from the list of the next level. Nothing else is: where the search ends
without an answer there is none.

References
----------
D. E. Knuth: "Dancing links", 2000 (branch on the element that the fewest sets hold).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import inlined, uncounted_entry
from placeopt.period.bounds.set_prices import OutOfTimeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.model.arrays import Ints

NONE, FOUND, WORKING, FULL = range(4)
"""How the search stopped: for good, at an answer, to look at the clock, or for want of room."""

_WORK = 20_000_000


class Choice(NamedTuple):
    """What may be chosen (S sets by rising excess, N nodes)."""

    bits: NDArray[np.uint64]  # (S, words) nodes of every set
    excess: Ints  # (S,)
    rest_ticks: Ints  # (N,) of a node in the rest
    rest_cost: Ints  # (N,) of the budget for it


class Levels(NamedTuple):
    """The search's levels (F of them) and the lists of sets left at each, one behind the other."""

    sets: Ints  # (room,)
    first: Ints  # (F,) the list of a level
    end: Ints  # (F,)
    node: Ints  # (F,) that is decided, -1: not chosen yet
    at: Ints  # (F,) next set in the list, -1: the node joins the rest first
    taken: NDArray[
        np.int64
    ]  # (F,) the set that led to the next level, -1: the node joined the rest
    budget: Ints  # (F,)
    room: Ints  # (F,) ticks left for the rest
    devices: Ints  # (F,) left
    held: NDArray[np.uint64]  # (F, words) nodes that are decided
    ways: Ints  # (N,) scratch


@inlined
def _has(bits, row, v):
    """Whether a set holds a node."""
    return (bits[row, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0


@inlined
def _count(choice, levels, d):
    """Count the sets of a level's list by node."""
    nodes = len(levels.ways)
    for v in range(nodes):
        levels.ways[v] = 0
    for j in range(levels.first[d], levels.end[d]):
        for k in range(choice.bits.shape[1]):
            word, v = choice.bits[levels.sets[j], k], 64 * k
            while word != 0:
                while word & np.uint64(255) == 0:
                    word >>= np.uint64(8)
                    v += 8
                levels.ways[v] += np.int64(word & np.uint64(1))
                word >>= np.uint64(1)
                v += 1


@inlined
def _joins_rest(choice, levels, d, v):
    """Whether a node may join the rest."""
    return choice.rest_ticks[v] <= levels.room[d] and choice.rest_cost[v] <= levels.budget[d]


@inlined
def _choose_node(choice, levels, d):
    """Return the open node with the fewest ways, -1 if all are decided, -2 if one has none."""
    best, fewest = -1, 0
    for v in range(len(levels.ways)):
        if _has(levels.held, d, v):
            continue
        ways = levels.ways[v] if levels.devices[d] > 0 else 0
        if _joins_rest(choice, levels, d, v):
            ways += 1
        if ways == 0:
            return -2
        if best < 0 or ways < fewest:
            best, fewest = v, ways
    return best


@inlined
def _push(choice, levels, d, taken, budget):
    """Make the next level's list: sets that go with the one taken, or (-1) without the node."""
    v, end, meets = levels.node[d], levels.end[d], False
    levels.first[d + 1], levels.node[d + 1], levels.at[d + 1] = end, -1, -1
    levels.budget[d + 1] = budget
    levels.room[d + 1], levels.devices[d + 1] = levels.room[d], levels.devices[d]
    for k in range(levels.held.shape[1]):
        levels.held[d + 1, k] = levels.held[d, k]
    if taken < 0:
        levels.room[d + 1] -= choice.rest_ticks[v]
        levels.held[d + 1, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    else:
        levels.devices[d + 1] -= 1
        for k in range(levels.held.shape[1]):
            levels.held[d + 1, k] |= choice.bits[taken, k]
    for j in range(levels.first[d], levels.end[d]):
        other = levels.sets[j]
        if choice.excess[other] > budget or levels.devices[d + 1] == 0:
            break
        if taken < 0:
            meets = _has(choice.bits, other, v)
        else:
            meets = False
            for k in range(choice.bits.shape[1]):
                meets = meets or choice.bits[taken, k] & choice.bits[other, k] != 0
        if not meets:
            levels.sets[end] = other
            end += 1
    levels.end[d + 1] = end
    levels.taken[d] = taken


@uncounted_entry
def search_disjoint(choice, levels, d, work):
    """Go on at level `d`; return (how it stopped, level)."""
    while d >= 0:
        if levels.node[d] < 0:
            _count(choice, levels, d)
            work -= 16 * (levels.end[d] - levels.first[d])
            v = _choose_node(choice, levels, d)
            if v == -1:
                return FOUND, d
            if v == -2:
                d -= 1
                continue
            levels.node[d], levels.at[d] = v, -1
        if levels.end[d] + levels.end[d] - levels.first[d] > len(levels.sets):
            return FULL, d
        if work <= 0:
            return WORKING, d
        v, moved = levels.node[d], False
        if levels.at[d] < 0:
            levels.at[d] = levels.first[d]
            if _joins_rest(choice, levels, d, v):
                _push(choice, levels, d, -1, levels.budget[d] - choice.rest_cost[v])
                moved = True
        while not moved and levels.at[d] < levels.end[d] and levels.devices[d] > 0:
            taken = levels.sets[levels.at[d]]
            levels.at[d] += 1
            work -= 1
            if _has(choice.bits, taken, v) and choice.excess[taken] <= levels.budget[d]:
                _push(choice, levels, d, taken, levels.budget[d] - choice.excess[taken])
                moved = True
        work -= levels.end[d] - levels.first[d]
        d += 1 if moved else -1
    return NONE, d


def disjoint_sets(
    choice: Choice, devices: int, budget: int, room: int, deadline: float
) -> Iterator[Ints]:
    """Yield the sets (rows of `choice`) of every answer; nodes in none of them are the rest's.

    Parameters
    ----------
    devices : most sets of an answer. budget : that their excesses and the rest's nodes share.
    room : ticks for the rest, -1 if there is no device for it.

    Raises
    ------
    OutOfTimeError
        At the deadline.
    """
    nodes, size = len(choice.rest_ticks), len(choice.excess)
    depth = nodes + 2
    first, end, node, at, taken, left, ticks, free = (np.zeros(depth, np.int64) for _ in range(8))
    held, ways = (
        np.zeros((depth, choice.bits.shape[1]), np.uint64),
        np.zeros(nodes, np.int64),
    )
    levels = Levels(
        np.zeros(4 * size + 1024, np.int64),
        first,
        end,
        node,
        at,
        taken,
        left,
        ticks,
        free,
        held,
        ways,
    )
    levels.sets[:size] = np.arange(size)
    levels.end[0], levels.node[0], levels.at[0] = size, -1, -1
    levels.budget[0], levels.room[0], levels.devices[0] = budget, room, devices
    stopped, d = WORKING, 0
    while stopped != NONE and d >= 0:
        stopped, d = search_disjoint(choice, levels, np.int64(d), np.int64(_WORK))
        if stopped == FULL:
            levels = levels._replace(sets=np.concatenate([levels.sets, np.zeros_like(levels.sets)]))
        elif stopped == FOUND:
            chosen = levels.taken[:d]
            yield chosen[chosen >= 0].copy()
            d -= 1
        elif stopped == WORKING and time.perf_counter() >= deadline:
            raise OutOfTimeError
