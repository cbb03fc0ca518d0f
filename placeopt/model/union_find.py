"""Disjoint sets in an array of parents, for kernels.

Like the generator of random numbers this file is frozen: kernels of other files call it, and
numba's cache does not notice edits of a callee in another file. Never edit a body here; another
rule is a new function.

References
----------
R. E. Tarjan, J. van Leeuwen, "Worst-case analysis of set union algorithms", Journal of the ACM 31,
1984 (path halving).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from placeopt.model.compiled import uncounted_kernel


@uncounted_kernel
def root(parent, member):
    """Return the root of the set of a member, halving the path to it."""
    while parent[member] != member:
        parent[member] = parent[parent[member]]
        member = parent[member]
    return member


@uncounted_kernel
def number_sets(parent, label):
    """Write to `label` the number of every member's set, counted from 0 by first members; return
    how many sets there are.
    """
    count = 0
    for member in range(len(parent)):
        label[member] = -1
    for member in range(len(parent)):
        first = root(parent, member)
        if label[first] < 0:
            label[first] = count
            count += 1
        label[member] = label[first]
    return count
