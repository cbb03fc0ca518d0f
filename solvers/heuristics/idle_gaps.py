"""Compiled lists of the idle gaps of devices, for list schedulers that insert ops."""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.compiled import inlined, inner_kernel, uncounted_kernel

FAR = 2**62
"""A time later than every schedule ends."""

NONE = np.int64(-1)
"""No op, device or gap; typed, for a plain number is a type of its own to numba, and its takers are
compiled once more."""


WIDTH = 256
"""Gaps of a leaf at most."""


class Gaps(NamedTuple):
    """Idle gaps of every device in time order: gaps stand in leaves, the leaves of a device are
    linked.

    A search reads few stretches of memory, each from one end to the other, where a binary tree
    would wait for memory at every step. The last gap of a device never ends.
    """

    start: Ints  # (num_leaves, WIDTH)
    end: Ints  # (num_leaves, WIDTH)
    op: Ints  # (num_leaves, WIDTH) op that ends where the gap starts, -1 for none
    count: Ints  # (num_leaves,) gaps in use
    longest: Ints  # (num_leaves,) length of the longest gap
    earlier: Ints  # (num_leaves,) leaf before, -1 for none
    later: Ints  # (num_leaves,) leaf behind, -1 for none
    last: Ints  # (num_devices,) last leaf
    used: Ints  # (1,) leaves in use


@inner_kernel
def empty_gaps(n: int, k: int) -> Gaps:
    """Return the gaps of k devices without ops, with room for n of them."""
    leaves = (
        k + n // (WIDTH // 2) + 1
    )  # a leaf is divided after at least WIDTH / 2 gaps were added to it
    gaps = Gaps(
        np.zeros((leaves, WIDTH), np.int64),
        np.zeros((leaves, WIDTH), np.int64),
        np.zeros((leaves, WIDTH), np.int64),
        np.ones(leaves, np.int64),
        np.full(leaves, FAR, np.int64),
        np.full(leaves, -1, np.int64),
        np.full(leaves, -1, np.int64),
        np.arange(k),
        np.full(1, k, np.int64),
    )
    gaps.end[:, 0], gaps.op[:, 0] = FAR, -1
    return gaps


@inlined
def _leaf_end(gaps: Gaps, leaf: int) -> int:
    """End of the last gap of a leaf."""
    return gaps.end[leaf, gaps.count[leaf] - 1]


@inlined
def _first_from(ends: Ints, count: int, due: int) -> int:
    """Place of the first of the rising `ends` that is no sooner than `due`: mostly the last, which
    is tried first.
    """
    if count == 1 or ends[count - 2] < due:
        return count - 1
    return np.searchsorted(ends[:count], due)


@uncounted_kernel
def first_fit(gaps: Gaps, device: int, due: int, length: int, limit: int) -> int:
    """First gap that ends no sooner than `due` and is as long as `length`, as leaf * WIDTH + place.

    NONE if it is in a leaf all of whose gaps start at `limit` or later.
    """
    leaf = gaps.last[device]
    while gaps.earlier[leaf] >= 0 and _leaf_end(gaps, gaps.earlier[leaf]) >= due:
        leaf = gaps.earlier[leaf]
    place = _first_from(gaps.end[leaf], gaps.count[leaf], due)
    while True:
        if gaps.longest[leaf] >= length:
            for i in range(place, gaps.count[leaf]):
                if gaps.end[leaf, i] - gaps.start[leaf, i] >= length:
                    return leaf * WIDTH + i
        if _leaf_end(gaps, leaf) >= limit:
            return NONE
        leaf, place = gaps.later[leaf], np.int64(0)


@inlined
def last_gap(gaps: Gaps, device: int) -> int:
    """The gap after the last op of a device."""
    return gaps.last[device] * WIDTH + gaps.count[gaps.last[device]] - 1


@inlined
def gap_start(gaps: Gaps, gap: int) -> int:
    """Time at which a gap starts."""
    return gaps.start[gap // WIDTH, gap % WIDTH]


@uncounted_kernel
def _measure(gaps: Gaps, leaf: int) -> None:
    """Write the longest gap of a leaf."""
    gaps.longest[leaf] = FAR
    if _leaf_end(gaps, leaf) < FAR:  # nothing is longer than a gap that never ends
        longest = np.int64(0)
        for i in range(gaps.count[leaf]):
            longest = max(longest, gaps.end[leaf, i] - gaps.start[leaf, i])
        gaps.longest[leaf] = longest


@uncounted_kernel
def _divide(gaps: Gaps, device: int, leaf: int) -> None:
    """Move the later half of a full leaf's gaps to a leaf behind it."""
    half, rest, behind = WIDTH // 2, gaps.used[0], gaps.later[leaf]
    gaps.used[0] += 1
    for i in range(half):
        gaps.start[rest, i], gaps.end[rest, i] = (
            gaps.start[leaf, half + i],
            gaps.end[leaf, half + i],
        )
        gaps.op[rest, i] = gaps.op[leaf, half + i]
    gaps.count[leaf] = gaps.count[rest] = half
    gaps.later[leaf], gaps.earlier[rest], gaps.later[rest] = rest, leaf, behind
    if behind >= 0:
        gaps.earlier[behind] = rest
    else:
        gaps.last[device] = rest
    _measure(gaps, leaf)
    _measure(gaps, rest)


@uncounted_kernel
def _add_gap(gaps: Gaps, device: int, gap: int, begin: int, end: int, op: int) -> None:
    """Add a gap behind `op` and right after another one."""
    leaf, place = gap // WIDTH, gap % WIDTH + 1
    for i in range(gaps.count[leaf], place, -1):
        gaps.start[leaf, i], gaps.end[leaf, i] = gaps.start[leaf, i - 1], gaps.end[leaf, i - 1]
        gaps.op[leaf, i] = gaps.op[leaf, i - 1]
    gaps.start[leaf, place], gaps.end[leaf, place], gaps.op[leaf, place] = begin, end, op
    gaps.count[leaf] += 1
    _measure(gaps, leaf)
    if gaps.count[leaf] == WIDTH:
        _divide(gaps, device, leaf)


@inlined
def fill_gap(gaps: Gaps, device: int, gap: int, begin: int, end: int, op: int) -> int:
    """Put `op` from `begin` to `end` into a gap; return the op before it."""
    leaf, place = gap // WIDTH, gap % WIDTH
    previous, limit = gaps.op[leaf, place], gaps.end[leaf, place]
    if begin > gaps.start[leaf, place]:
        gaps.end[leaf, place] = begin
        if end < limit:  # what remains behind the op is a gap of its own
            _add_gap(gaps, device, gap, end, limit, op)
        else:
            _measure(gaps, leaf)
    else:  # a gap that was filled stays, without length
        gaps.start[leaf, place], gaps.op[leaf, place] = end, op
        _measure(gaps, leaf)
    return previous
