"""Critical path with the fastest device of every op and free communication.

Proof. Along a path every op starts after its predecessor ends and runs at least as long as on its
fastest device. Where two neighbours have no device in common, or their weights fit on none
together, the tensor between them must be sent, over a link no faster than the cheapest one between
two devices that they can use. The sum along the path is therefore at most the end of its last op,
in any schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.compiled import entry

if TYPE_CHECKING:
    from placeopt.makespan.bounds.relaxation import Direction, Relaxation
    from placeopt.model.arrays import Ints


def critical_path_bound(relaxation: Relaxation) -> int:
    """Return the length of the longest path in ticks."""
    return int((longest_before(relaxation, relaxation.forwards) + relaxation.min_compute).max())


def longest_before(relaxation: Relaxation, direction: Direction) -> Ints:
    """Return, per op, the longest path that ends at its start (or, backwards, begins at its
    end).
    """
    result: Ints = _longest(*direction[:4], relaxation.min_compute)
    return result


@entry
def _longest(order, ptr, op, free, fastest):  # type: ignore[no-untyped-def]
    before = np.zeros(len(order), np.int64)
    for v in order:
        for e in range(ptr[v], ptr[v + 1]):
            before[v] = max(before[v], before[op[e]] + fastest[op[e]] + free[e])
    return before
