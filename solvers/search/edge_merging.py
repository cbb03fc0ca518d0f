"""Groups of units by merging along heavy edges: what talks much stays together, and no group
outgrows a device.

References
----------
Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM
Journal on Scientific Computing 1998 (heavy edges first).
"""

# mypy: disable-error-code="no-untyped-def"
# (kernels of flat arrays, see `groups_along`)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.compiled import entry, uncounted
from placeopt.model.union_find import root as find_root

REACHES = (1, 2, 4, 8)
"""Distances in the topological order at which what is left over is merged."""


class Groups(NamedTuple):
    """Groups that grow; what a root has holds for its whole group."""

    parent: np.ndarray  # (u,) a unit of the same group, nearer to its root
    work: np.ndarray  # (u,) ticks
    size: np.ndarray  # (u,) bytes
    allowed: np.ndarray  # (u, k) devices that can run every member


@uncounted
def _merge(groups, capacity, most, first, second):
    """Merge the groups of two units, unless that is too much work or no device can hold it; return
    whether it was done.
    """
    x, y = find_root(groups.parent, first), find_root(groups.parent, second)
    a, b = min(x, y), max(x, y)
    if a == b or groups.work[a] + groups.work[b] > most:
        return False
    together = groups.size[a] + groups.size[b]
    somewhere = False
    for d in range(len(capacity)):
        somewhere |= groups.allowed[a, d] and groups.allowed[b, d] and capacity[d] >= together
    if not somewhere:
        return False
    groups.parent[b] = a
    for d in range(len(capacity)):
        groups.allowed[a, d] &= groups.allowed[b, d]
    groups.work[a] += groups.work[b]
    groups.size[a] = together
    return True


@entry
def groups_along(source, target, order, groups, capacity, most, count):
    """Return a label per unit: groups in the order of their first units, about `count` of them
    where that can be.

    Parameters
    ----------
    source, target : units that an edge joins, heaviest edge first. order : units, topologically.
    groups : every unit a group of its own; changed in place. most : most ticks of a group.
    """
    left = len(groups.parent)
    for e in range(len(source)):
        if left <= count:
            break
        left -= _merge(groups, capacity, most, source[e], target[e])
    for reach in REACHES:
        for i in range(len(order) - reach):
            if left <= count:
                break
            left -= _merge(groups, capacity, most, order[i], order[i + reach])
    label = np.full(len(groups.parent), -1, np.int64)
    number = 0
    for unit in range(len(label)):
        root = find_root(groups.parent, unit)
        if label[root] < 0:
            label[root] = number
            number += 1
        label[unit] = label[root]
    return label
