"""Spread overlapping intervals over lanes."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints


def pack_lanes(start: Ints, finish: Ints) -> Ints:
    """Return a lane for each interval, as few lanes as possible, so that none overlaps another in
    its lane.
    """
    lanes = np.zeros(len(start), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for i in np.lexsort((finish, start)).tolist():
        while busy and busy[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lanes[i] = lane
        heapq.heappush(busy, (int(finish[i]), lane))
    return lanes
