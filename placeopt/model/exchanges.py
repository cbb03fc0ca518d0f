"""Exchanges of a few nodes for others of about the same bytes, as moves of walks over devices that
are full: what fits nowhere by itself fits where something comes back.

What has moved leaves too many bytes on one of two devices. A few nodes of that one, with at least
as many bytes as it has too many and at most as many as the other one has room for, make both fit.
Of 16 nodes there are 696 sets of at most three: where sizes are small numbers, more than their sums
have values, so that some fit to the byte; else a share of them as large as that of the bytes free.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from placeopt.model.compiled import uncounted_kernel

MANY, FEW = 16, 3
"""Nodes that are looked at, within a microsecond, and most of them that come back."""


@uncounted_kernel
def few_between(size, some, count, low, high):
    """Put a set of the first `count` nodes of `some` first that has between `low` and `high` bytes:
    the first one among those of least nodes; return how many, 0 where no set of at most three has.
    """
    for i in range(count):
        if low <= size[some[i]] <= high:
            return _put_first(some, i, i, i, 1)
    for i in range(count):
        for j in range(i):
            if low <= size[some[i]] + size[some[j]] <= high:
                return _put_first(some, i, j, j, 2)
    for i in range(count):
        for j in range(i):
            two = size[some[i]] + size[some[j]]
            for k in range(j):
                if low <= two + size[some[k]] <= high:
                    return _put_first(some, i, j, k, 3)
    return 0


@uncounted_kernel
def _put_first(some, i, j, k, few):
    """Put three nodes first; return how many of them count."""
    some[0], some[1], some[2] = some[i], some[j], some[k]
    return few
