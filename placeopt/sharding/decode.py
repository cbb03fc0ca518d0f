"""Choices that keep the capacity: the one that a bound's messages decode, and the least usage.

The room is kept in a segment tree: `least` holds the smallest room of a node's part, less what was
added above it, and `added` what was added to its part as a whole.

References
----------
J. L. Bentley, "Solutions to Klee's rectangle problems", 1977 (segment trees).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from placeopt.model.compiled import entry, inlined, inner_kernel
from placeopt.sharding.compact import size_of

NO_LIMIT = 2**62


@entry
def room_of(capacity):
    """Return a segment tree over the time points, all of the capacity free."""
    size = 1
    while size < len(capacity):
        size *= 2
    least = np.full(2 * size, NO_LIMIT, np.int64)
    added = np.zeros(2 * size, np.int64)
    for t in range(len(capacity)):
        least[size + t] = capacity[t]
    for i in range(size - 1, 0, -1):
        least[i] = min(least[2 * i], least[2 * i + 1])
    return least, added


@inner_kernel
def take(least, added, first, last, amount):
    """Take an amount (give, if negative) at the time points first .. last - 1."""
    if first >= last or amount == 0:
        return
    size = len(least) // 2
    left, right = first + size, last + size
    while left < right:
        if left & 1:
            least[left] -= amount
            added[left] -= amount
            left += 1
        if right & 1:
            right -= 1
            least[right] -= amount
            added[right] -= amount
        left >>= 1
        right >>= 1
    for end in (first + size, last - 1 + size):
        i = end >> 1
        while i > 0:
            least[i] = min(least[2 * i], least[2 * i + 1]) + added[i]
            i >>= 1


@inner_kernel
def least_room(least, added, first, last):
    """Return the smallest room at the time points first .. last - 1."""
    if first >= last:
        return NO_LIMIT
    size = len(least) // 2
    left, right = first + size, last - 1 + size
    a, b = least[left], least[right]
    while left >> 1 != right >> 1 and left != right:
        if not left & 1:
            a = min(a, least[left + 1])
        if right & 1:
            b = min(b, least[right - 1])
        left >>= 1
        right >>= 1
        a += added[left]
        b += added[right]
    a = min(a, b)
    i = left >> 1
    while i > 0:
        a += added[i]
        i >>= 1
    return a


@entry
def take_all(least, added, first, last, amounts):
    """Take the usage of every node."""
    for v in range(len(first)):
        take(least, added, first[v], last[v], amounts[v])


@inlined
def add_fixed(f, choice, v, e, w, belief):
    """Add to `belief` of v the costs of its edge to w, which has its choice."""
    size = size_of(f, v)
    at = f.edge_ptr[e] + choice[w] * size
    table = f.table if w < v else f.turned
    for x in range(size):
        belief[x] += table[at + x]


@entry
def least_usage(c):
    """Return the choice of the smallest usage of every node, the cheapest among equals."""
    choice = np.zeros(len(c.node_ptr) - 1, np.int64)
    for v in range(len(choice)):
        start = c.node_ptr[v]
        best = start
        for x in range(start, c.node_ptr[v + 1]):
            if c.usage[x] < c.usage[best] or (
                c.usage[x] == c.usage[best] and c.cost[x] < c.cost[best]
            ):
                best = x
        choice[v] = best - start
    return choice


@entry
def decode(f, c, width):
    """Return a choice that fits, after sweeps: each node the cheapest by the choices before and the
    messages from behind.

    The nodes of the core in order, then those of trees from their roots down.
    """
    n = len(f.node_ptr) - 1
    least, added = room_of(c.capacity)
    choice = np.zeros(n, np.int64)
    b = np.empty(width)
    for k in range(n):
        v = f.core + k if f.core + k < n else n - 1 - k
        start = f.node_ptr[v]
        size = size_of(f, v)
        for x in range(size):
            b[x] = f.base[start + x]
        for i in range(f.core_ptr[v], f.adj_ptr[v + 1]):
            e, w = f.adj_edge[i], f.adj_node[i]
            if w < v or v < f.core:
                add_fixed(f, choice, v, e, w, b)
            else:
                at = f.low_ptr[e]
                for x in range(size):
                    b[x] += f.to_low[at + x]
        best = cheapest(b, c.usage, start, size, least_room(least, added, c.first[v], c.last[v]))
        choice[v] = best
        take(least, added, c.first[v], c.last[v], c.usage[start + best])
    return choice


@inner_kernel
def cheapest(b, usage, start, size, room):
    """Return the strategy of the smallest b among those that fit into the room."""
    best, value = -1, np.inf
    for x in range(size):
        if usage[start + x] <= room and (best < 0 or b[x] < value):
            best, value = x, b[x]
    return best
