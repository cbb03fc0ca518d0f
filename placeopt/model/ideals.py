"""The lattice of ideals of a partial order, stored by its covering relation.

An ideal (down-set) holds every predecessor of each of its nodes. `Lattice.child_*` lists for ideal
I its maximal nodes v and the ideal I - {v}, by falling v. With nodes numbered along a topological
order, every ideal I' inside I is reached from I by exactly one sequence of falling removals, so a
depth-first walk that only ever removes a smaller node than the last one meets every sub-ideal once,
without hashing and without a list of the pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Bits, Flags, Ints, SmallInts, pointers
from placeopt.model.compiled import entry, inlined, inner_kernel, row_of
from placeopt.model.threads import call_interruptibly


class Lattice(NamedTuple):
    """I ideals over N nodes, sorted by size; ideal 0 is empty, ideal I-1 is everything.

    Attributes
    ----------
    bits : members of each ideal, 64 nodes per word.
    child_ptr, child_node, child_ideal : per ideal the nodes that can be removed, and what is left.
    """

    bits: Bits  # (I, words)
    child_ptr: Ints  # (I + 1,)
    child_node: SmallInts
    child_ideal: SmallInts

    @property
    def num_ideals(self) -> int:
        """Number of ideals, I."""
        return len(self.bits)

    def members(self, ideal: int, num_nodes: int) -> Flags:
        """Which nodes belong to `ideal`, shape (num_nodes,)."""
        nodes = np.arange(num_nodes)
        found: Flags = (self.bits[ideal, nodes >> 6] >> (nodes & 63).astype(np.uint64)) & np.uint64(
            1
        ) > 0
        return found


@inner_kernel
def _find(bits, table, mask, row):  # type: ignore[no-untyped-def]
    """Slot of `row` in the open-addressed `table`: it holds the row's ideal, or -1 where it is
    new.
    """
    h = np.uint64(1469598103934665603)
    for w in range(len(row)):
        h = (h ^ row[w]) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
    # a product's low bits know nothing of the row's high ones
    slot = np.int64((h * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & np.uint64(mask))
    while table[slot] >= 0:
        same = True
        for w in range(len(row)):
            if bits[table[slot], w] != row[w]:
                same = False
                break
        if same:
            return slot
        slot = (slot + 1) & mask
    return slot


@entry
def _enumerate(num_nodes, words, predecessors, limit):  # type: ignore[no-untyped-def]
    """Grow all ideals breadth first; stop with one more than `limit` when there are more.

    Returns (count, bits, links): a link is (parent, node, child), parent = child + node.
    """
    one = np.uint64(1)
    room, link_room = 1024, 4096
    bits = np.zeros((room, words), np.uint64)
    table = np.full(4 * room, -1, np.int32)
    link = np.empty((3, link_room), np.int32)
    row = np.zeros(words, np.uint64)
    table[_find(bits, table, len(table) - 1, row)] = 0
    count, links, head = 1, 0, 0
    while head < count and count <= limit:
        for v in range(num_nodes):
            if bits[head, v >> 6] >> np.uint64(v & 63) & one:
                continue
            free = True
            for w in range(words):
                if predecessors[v, w] & ~bits[head, w]:
                    free = False
                    break
            if not free:
                continue
            row[:] = bits[head]
            row[v >> 6] |= one << np.uint64(v & 63)
            slot = _find(bits, table, len(table) - 1, row)
            if table[slot] < 0:
                if count == room:
                    room *= 2
                    larger = np.zeros((room, words), np.uint64)
                    larger[:count] = bits
                    bits = larger
                    table = np.full(4 * room, -1, np.int32)
                    for i in range(count):
                        table[_find(bits, table, len(table) - 1, bits[i])] = i
                    slot = _find(bits, table, len(table) - 1, row)
                bits[count] = row
                table[slot] = count
                count += 1
            if links == link_room:
                link_room *= 2
                grown = np.empty((3, link_room), np.int32)
                grown[:, :links] = link
                link = grown
            link[0, links] = table[slot]
            link[1, links] = v
            link[2, links] = head
            links += 1
        head += 1
    return count, bits[:count].copy(), link[:, :links]


def ideal_lattice(
    num_nodes: int, order_from: Ints, order_to: Ints, *, limit: int
) -> Lattice | None:
    """Enumerate the ideals of the order edges; None if there are more than `limit`.

    Nodes must be numbered along a topological order: every edge goes from a smaller to a larger
    number.
    """
    words = (num_nodes + 63) // 64
    predecessors = np.zeros((num_nodes, words), np.uint64)
    bits_from = np.uint64(1) << (order_from & 63).astype(np.uint64)
    np.bitwise_or.at(predecessors, (order_to, order_from >> 6), bits_from)
    count, bits, links = call_interruptibly(
        lambda: _enumerate(num_nodes, words, predecessors, limit)
    )
    if count > limit:
        return None
    # Links were made in order of the child; group them by parent, the removed node falling.
    parent, node, child = links
    order = np.lexsort((-node, parent))
    pointer = pointers(parent[order], count)
    return Lattice(bits, pointer, node[order], child[order])


def lattice_in_time(
    num_nodes: int,
    order_from: Ints,
    order_to: Ints,
    *,
    limit: int,
    left: Callable[[], float],
    first_steps: int = 2**31,
) -> tuple[Lattice | None, int]:
    """Enumerate the ideals as `ideal_lattice` does while there is time; return also the limit of
    the last try, which there are more than where there is no lattice.

    In tries that grow eightfold, as long as the next one seems to fit into half of the seconds that
    are `left`, so that as much remains for what follows; those before the last cost a seventh of
    it.

    Parameters
    ----------
    first_steps : of the first try at most, in about a second: each ideal looks at the words of all
    nodes.
    """
    each, tries = num_nodes * (num_nodes // 64 + 1), 2
    while each * (limit // 8**tries) > first_steps:
        tries += 1
    for enough in sorted({max(1, limit // 8**i) for i in range(tries + 1)}):
        begin = time.perf_counter()
        lattice = ideal_lattice(num_nodes, order_from, order_to, limit=enough)
        if lattice is not None or 8 * (time.perf_counter() - begin) > left() / 2:
            break
    return lattice, enough


def linear_lattice(num_nodes: int) -> Lattice:
    """Return the lattice of the total order 0, 1, ..: its ideals are the N + 1 prefixes."""
    words = (num_nodes + 63) // 64
    bits = np.zeros((num_nodes + 1, words), np.uint64)
    for v in range(num_nodes):
        bits[v + 1] = bits[v]
        bits[v + 1, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    nodes = np.arange(num_nodes, dtype=np.int32)
    return Lattice(bits, np.append(0, np.arange(num_nodes + 1)), nodes, nodes.copy())


@entry
def ideal_sums(lattice: Lattice, amount: Ints) -> Ints:
    """Sum of `amount` (Q, N) over each ideal, shape (Q, I)."""
    count = len(lattice.child_ptr) - 1
    total = np.zeros((amount.shape[0], count), np.int64)
    for ideal in range(1, count):
        e = lattice.child_ptr[ideal]
        for q in range(amount.shape[0]):
            total[q, ideal] = total[q, lattice.child_ideal[e]] + amount[q, lattice.child_node[e]]
    return total


@inlined
def contains(bits, row, node):  # type: ignore[no-untyped-def]
    """Whether a row of bits, such as those of an ideal, holds a node."""
    return bits[row, node >> 6] >> np.uint64(node & 63) & np.uint64(1) != 0


@inlined
def cross(made, t, size, inside, holds):  # type: ignore[no-untyped-def]
    """Put a node that made tensor t, or reads it, into a set; return whether the tensor crossed the
    border of the set before, and whether it does now.

    `size` is the number of its readers, `inside` how many of these the set has, `holds` whether it
    has its producer.
    """
    if made:
        before, after = inside[t] > 0, inside[t] < size
        holds[t] = True
    else:
        before = inside[t] < size if holds[t] else inside[t] > 0
        after = inside[t] + 1 < size if holds[t] else True
        inside[t] += 1
    return before, after


@inlined
def put_back(touching, node, inside, holds):  # type: ignore[no-untyped-def]
    """Take a node out of the set again; see `cross`."""
    for e in row_of(touching.touch_ptr, node):
        if touching.touch_role[e] == 1:
            holds[touching.touch_tensor[e]] = False
        else:
            inside[touching.touch_tensor[e]] -= 1
