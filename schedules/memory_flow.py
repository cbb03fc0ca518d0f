"""Memory that is freed before it is surely allocated: what no pipeline problem may ask for.

References
----------
.. [1] P. Hall, "On representatives of subsets", Journal of the London Mathematical Society 10(1),
1935.
.. [2] L. R. Ford, D. R. Fulkerson, "Maximal flow through a network", Canadian Journal of
Mathematics 8, 1956.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


def freed_too_early(
    memory: NDArray[np.int64], ancestors: Sequence[set[int]]
) -> tuple[int, int] | None:
    """Return a (block, device) that frees memory which no predecessor has surely allocated, or
    None.

    Each unit that a block frees is matched with a unit that an ancestor allocated (a maximum flow
    by augmenting paths); by Hall's theorem all are matched exactly when the memory of one
    micro-batch never drops below zero in any order.

    Parameters
    ----------
    memory : change of each device's memory at each block's start, shape (num_blocks, num_devices).
    ancestors : blocks that each block waits for, directly or not.
    """
    for device, column in enumerate(memory.T.tolist()):
        matching = _Matching(
            {i: change for i, change in enumerate(column) if change > 0}, ancestors
        )
        for block, change in enumerate(column):
            if change < 0 and not matching.add(block, -change):
                return block, device
    return None


class _Matching:
    """Units that blocks allocate on one device, matched with units that their descendants free.

    Attributes
    ----------
    flow : flow[u][v] units of allocating block u are freed by block v.
    """

    def __init__(self, allocated: dict[int, int], ancestors: Sequence[set[int]]) -> None:
        self.ancestors = ancestors
        self.spare = dict(sorted(allocated.items()))
        self.flow: dict[int, dict[int, int]] = {u: {} for u in self.spare}

    def add(self, block: int, units: int) -> bool:
        """Match `units` that `block` frees, moving earlier matches aside; return whether all could
        be.
        """
        while units > 0:
            path = self._augmenting_path(block)
            if path is None:
                return False
            first = path[0][0]
            moved = [(source, taker) for (_, taker), (source, _) in itertools.pairwise(path)]
            amount = min(
                [units, self.spare[first], *(self.flow[source][taker] for source, taker in moved)]
            )
            self.spare[first] -= amount
            for source, taker in moved:
                self.flow[source][taker] -= amount
            for source, taker in path:
                self.flow[source][taker] = self.flow[source].get(taker, 0) + amount
            units -= amount
        return True

    def _augmenting_path(self, block: int) -> list[tuple[int, int]] | None:
        """Return (allocating, freeing) pairs that get units: from an allocating block with some to
        spare to `block`.

        The freeing block of a pair no longer needs what the allocating block of the next pair gave
        it.
        """
        came_from: dict[
            int, tuple[int, int]
        ] = {}  # freeing block -> (allocating block it may lose, who takes that)
        reached, seen = deque([block]), {block}
        while reached:
            at = reached.popleft()
            for source in self.spare:
                if source not in self.ancestors[at]:
                    continue
                if self.spare[source] > 0:
                    path = [(source, at)]
                    while at != block:
                        path.append(came_from[at])
                        at = came_from[at][1]
                    return path
                for other, units in self.flow[source].items():
                    if units > 0 and other not in seen:
                        seen.add(other)
                        came_from[other] = (source, at)
                        reached.append(other)
        return None
