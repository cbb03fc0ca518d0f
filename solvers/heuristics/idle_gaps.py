"""Compiled search trees of the idle gaps of devices, for list schedulers that insert ops.

References
----------
R. Bayer, E. McCreight, "Organization and maintenance of large ordered indexes", Acta Informatica 1,
1972 (B-trees).
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import inlined, inner_kernel, uncounted_kernel

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints


FAR = 2**62
"""A time later than every schedule ends."""

NONE = np.int64(-1)
"""No op, device or gap; typed, for a plain number is a type of its own to numba, and its takers are
compiled once more."""


WIDTH, BRANCHES = 64, 256
"""Gaps of a leaf and leaves of a node at most."""


class Gaps(NamedTuple):
    """Idle gaps of every device in time order: gaps stand in leaves, leaves in nodes, the nodes of
    a device are linked.

    A B-tree of fixed height: a search reads few stretches of memory, each from one end to the
    other, where a binary tree would wait for memory at every step. The last gap of a device never
    ends.
    """

    start: Ints  # (num_leaves, WIDTH)
    end: Ints  # (num_leaves, WIDTH)
    op: Ints  # (num_leaves, WIDTH) op that ends where the gap starts, -1 for none
    count: Ints  # (num_leaves,) gaps in use
    leaf: Ints  # (num_nodes, BRANCHES)
    leaf_end: Ints  # (num_nodes, BRANCHES) end of the last gap of each leaf
    leaf_longest: Ints  # (num_nodes, BRANCHES) length of the longest gap of each leaf
    leaves: Ints  # (num_nodes,) leaves in use
    longest: Ints  # (num_nodes,) length of the longest gap
    earlier: Ints  # (num_nodes,) node before, -1 for none
    later: Ints  # (num_nodes,) node behind, -1 for none
    last: Ints  # (num_devices,) last node
    used: Ints  # (2,) leaves and nodes in use


@inner_kernel
def empty_gaps(n: int, k: int) -> Gaps:
    """Return the gaps of k devices without ops, with room for n of them."""
    leaves = (
        k + n // (WIDTH // 2) + 1
    )  # a leaf is divided after at least WIDTH / 2 gaps were added to it, and a node likewise
    nodes = k + leaves // (BRANCHES // 2) + 1
    gaps = Gaps(
        np.zeros((leaves, WIDTH), np.int64),
        np.zeros((leaves, WIDTH), np.int64),
        np.zeros((leaves, WIDTH), np.int64),
        np.zeros(leaves, np.int64),
        np.zeros((nodes, BRANCHES), np.int64),
        np.zeros((nodes, BRANCHES), np.int64),
        np.zeros((nodes, BRANCHES), np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.full(nodes, -1, np.int64),
        np.full(nodes, -1, np.int64),
        np.arange(k),
        np.full(2, k, np.int64),
    )
    for d in range(k):
        gaps.end[d, 0], gaps.op[d, 0], gaps.count[d] = FAR, -1, 1
        gaps.leaf[d, 0], gaps.leaf_end[d, 0], gaps.leaf_longest[d, 0], gaps.leaves[d] = (
            d,
            FAR,
            FAR,
            1,
        )
        gaps.longest[d] = FAR
    return gaps


@inlined
def _first_from(ends: Ints, count: int, due: int) -> int:
    """Place of the first of the rising `ends` that is no sooner than `due`: mostly the last, which
    is tried first.
    """
    low, high = np.int64(0), count
    if count == 1 or ends[count - 2] < due:
        return count - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] < due:
            low = middle + 1
        else:
            high = middle
    return low


@uncounted_kernel
def first_fit(gaps: Gaps, device: int, due: int, length: int, limit: int) -> int:
    """First gap that ends no sooner than `due` and is as long as `length`, as (node * BRANCHES +
    slot of the leaf) * WIDTH + place.

    NONE if it is in a leaf all of whose gaps start at `limit` or later.
    """
    node = gaps.last[device]
    while (
        gaps.earlier[node] >= 0
        and gaps.leaf_end[gaps.earlier[node], gaps.leaves[gaps.earlier[node]] - 1] >= due
    ):
        node = gaps.earlier[node]
    slot = _first_from(gaps.leaf_end[node], gaps.leaves[node], due)
    leaf = gaps.leaf[node, slot]
    place = _first_from(gaps.end[leaf], gaps.count[leaf], due)
    while True:
        if gaps.longest[node] >= length:
            for at in range(slot, gaps.leaves[node]):
                if gaps.leaf_longest[node, at] >= length:
                    if at > slot and gaps.leaf_end[node, at - 1] >= limit:
                        return NONE
                    leaf = gaps.leaf[node, at]
                    for i in range(place, gaps.count[leaf]):
                        if gaps.end[leaf, i] - gaps.start[leaf, i] >= length:
                            return (node * BRANCHES + at) * WIDTH + i
                place = np.int64(0)
        if gaps.leaf_end[node, gaps.leaves[node] - 1] >= limit:
            return NONE
        node, slot, place = gaps.later[node], np.int64(0), np.int64(0)


@inlined
def last_gap(gaps: Gaps, device: int) -> int:
    """The gap after the last op of a device."""
    node = gaps.last[device]
    slot = gaps.leaves[node] - 1
    return (node * BRANCHES + slot) * WIDTH + gaps.count[gaps.leaf[node, slot]] - 1


@inlined
def gap_start(gaps: Gaps, gap: int) -> int:
    """Time at which a gap starts."""
    return gaps.start[gaps.leaf[gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES], gap % WIDTH]


@uncounted_kernel
def _measure(gaps: Gaps, node: int, slot: int) -> None:
    """Write the end of a leaf and the longest gap of the leaf and of its node."""
    leaf, longest = gaps.leaf[node, slot], np.int64(0)
    last = gaps.count[leaf] - 1
    if gaps.end[leaf, last] == FAR:  # nothing is longer than a gap that never ends
        gaps.leaf_end[node, slot] = FAR
        gaps.leaf_longest[node, slot] = gaps.longest[node] = FAR - gaps.start[leaf, last]
        return
    for i in range(gaps.count[leaf]):
        longest = max(longest, gaps.end[leaf, i] - gaps.start[leaf, i])
    gaps.leaf_end[node, slot], gaps.leaf_longest[node, slot] = (
        gaps.end[leaf, gaps.count[leaf] - 1],
        longest,
    )
    longest = np.int64(0)
    for at in range(gaps.leaves[node]):
        longest = max(longest, gaps.leaf_longest[node, at])
    gaps.longest[node] = longest


@uncounted_kernel
def _divide_node(gaps: Gaps, device: int, node: int) -> None:
    """Move the later half of a full node's leaves to a node behind it."""
    half, rest, behind = BRANCHES // 2, gaps.used[1], gaps.later[node]
    gaps.used[1] += 1
    for at in range(half):
        gaps.leaf[rest, at], gaps.leaf_end[rest, at] = (
            gaps.leaf[node, half + at],
            gaps.leaf_end[node, half + at],
        )
        gaps.leaf_longest[rest, at] = gaps.leaf_longest[node, half + at]
    gaps.leaves[node], gaps.leaves[rest] = half, half
    gaps.later[node], gaps.earlier[rest], gaps.later[rest] = rest, node, behind
    if behind >= 0:
        gaps.earlier[behind] = rest
    else:
        gaps.last[device] = rest
    _measure(gaps, node, np.int64(0))
    _measure(gaps, rest, np.int64(0))


@uncounted_kernel
def _divide_leaf(gaps: Gaps, device: int, node: int, slot: int) -> None:
    """Move the later half of a full leaf's gaps to a leaf behind it; the node has room for that."""
    half, leaf, rest = WIDTH // 2, gaps.leaf[node, slot], gaps.used[0]
    gaps.used[0] += 1
    for i in range(half):
        gaps.start[rest, i], gaps.end[rest, i] = (
            gaps.start[leaf, half + i],
            gaps.end[leaf, half + i],
        )
        gaps.op[rest, i] = gaps.op[leaf, half + i]
    gaps.count[leaf], gaps.count[rest] = half, half
    for at in range(gaps.leaves[node], slot + 1, -1):
        gaps.leaf[node, at], gaps.leaf_end[node, at] = (
            gaps.leaf[node, at - 1],
            gaps.leaf_end[node, at - 1],
        )
        gaps.leaf_longest[node, at] = gaps.leaf_longest[node, at - 1]
    gaps.leaf[node, slot + 1] = rest
    gaps.leaves[node] += 1
    _measure(gaps, node, slot)
    _measure(gaps, node, slot + 1)


@uncounted_kernel
def _add_gap(gaps: Gaps, device: int, gap: int, begin: int, end: int, op: int) -> None:
    """Add a gap behind `op` and right after another one."""
    node, slot, place = gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES, gap % WIDTH + 1
    leaf = gaps.leaf[node, slot]
    for i in range(gaps.count[leaf], place, -1):
        gaps.start[leaf, i], gaps.end[leaf, i] = gaps.start[leaf, i - 1], gaps.end[leaf, i - 1]
        gaps.op[leaf, i] = gaps.op[leaf, i - 1]
    gaps.start[leaf, place], gaps.end[leaf, place], gaps.op[leaf, place] = begin, end, op
    gaps.count[leaf] += 1
    _measure(gaps, node, slot)
    if gaps.count[leaf] == WIDTH:
        _divide_leaf(gaps, device, node, slot)
        if gaps.leaves[node] == BRANCHES:
            _divide_node(gaps, device, node)


@inlined
def fill_gap(gaps: Gaps, device: int, gap: int, begin: int, end: int, op: int) -> int:
    """Put `op` from `begin` to `end` into a gap; return the op before it."""
    node, slot, place = gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES, gap % WIDTH
    leaf = gaps.leaf[node, slot]
    previous, limit = gaps.op[leaf, place], gaps.end[leaf, place]
    if begin > gaps.start[leaf, place]:
        gaps.end[leaf, place] = begin
        if end < limit:  # what remains behind the op is a gap of its own
            _add_gap(gaps, device, gap, end, limit, op)
        else:
            _measure(gaps, node, slot)
    else:  # a gap that was filled stays, without length
        gaps.start[leaf, place], gaps.op[leaf, place] = end, op
        _measure(gaps, node, slot)
    return previous
