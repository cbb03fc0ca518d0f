"""Heaps in arrays, for kernels: binary ones with the smallest (key, item) at the front, and skew
heaps, which merge.

Like the generator of random numbers this file is frozen: kernels of other files call it, and
numba's cache does not notice edits of a callee in another file. Never edit a body here; another
heap is a new function.

References
----------
D. D. Sleator, R. E. Tarjan, "Self-adjusting heaps", SIAM Journal on Computing 15, 1986 (skew
heaps).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from placeopt.model.compiled import inlined, uncounted_kernel


@inlined
def push(key, item, base, size, new_key, new_item):
    """Insert (new_key, new_item) into the heap at key[base:base + size], ordered by (key, item)."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        parent_key = key[base + parent]
        if parent_key < new_key or (parent_key == new_key and item[base + parent] < new_item):
            break
        key[base + at] = parent_key
        item[base + at] = item[base + parent]
        at = parent
    key[base + at] = new_key
    item[base + at] = new_item


@inlined
def pop(key, item, base, size):
    """Remove the smallest of the heap at key[base:base + size]; the caller has read it already."""
    last = size - 1
    last_key = key[base + last]
    last_item = item[base + last]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        child_key = key[base + child]
        other = child + 1
        if other < last:
            other_key = key[base + other]
            if other_key < child_key or (
                other_key == child_key and item[base + other] < item[base + child]
            ):
                child = other
                child_key = other_key
        if last_key < child_key or (last_key == child_key and last_item < item[base + child]):
            break
        key[base + at] = child_key
        item[base + at] = item[base + child]
        at = child
    key[base + at] = last_key
    item[base + at] = last_item


@inlined
def _earlier(key, tensor, destination, a, b):
    """Whether entry a comes before entry b: by (key, tensor, destination)."""
    if key[a] != key[b]:
        return key[a] < key[b]
    if tensor[a] != tensor[b]:
        return tensor[a] < tensor[b]
    return destination[a] < destination[b]


@uncounted_kernel
def merge(key, tensor, destination, left, right, a, b):
    """Merge two skew heaps with the roots a and b (-1 is the empty heap), top down; return the
    root.
    """
    if a < 0:
        return b
    if b < 0:
        return a
    if _earlier(key, tensor, destination, b, a):
        a, b = b, a
    root = a
    while True:
        # a is the smaller root: its right child joins b and becomes its left child.
        child = right[a]
        right[a] = left[a]
        if child < 0:
            left[a] = b
            return root
        if _earlier(key, tensor, destination, b, child):
            child, b = b, child
        left[a] = child
        a = child


@uncounted_kernel
def argsort(values, count, sign, key, order):
    """Fill `order` with the places of values[:count]: falling for sign 1, rising for -1, equal ones
    by place.

    `key` is scratch memory of that length.
    """
    for i in range(count):
        push(key, order, 0, i, sign * values[i], -i)
    for left in range(count, 0, -1):
        at = order[0]
        pop(key, order, 0, left)
        order[left - 1] = at
    for i in range(count):
        order[i] = -order[i]
