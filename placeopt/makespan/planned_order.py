"""Compiled preparation of planned execution: every device's ops and every channel's transfers, sorted by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.model.compiled import uncounted
from placeopt.model.heaps import pop, push

if TYPE_CHECKING:
    from placeopt.makespan.arrays import ProblemArrays
    from placeopt.makespan.workspace import Workspace


@uncounted
def order_ops(arrays: ProblemArrays, w: Workspace) -> None:
    """Sort every device's ops by rank, for planned execution."""
    n, k = arrays.compute.shape
    for d in range(k):
        w.plan_ptr[d] = w.offset[d]
    for op in range(n):
        push(w.later_key, w.later_op, 0, op, w.rank[op], op)
    for left in range(n, 0, -1):
        op = w.later_op[0]
        pop(w.later_key, w.later_op, 0, left)
        d = w.device[op]
        w.heap_op[w.plan_ptr[d]] = op
        w.plan_ptr[d] += 1
    for d in range(k):
        w.plan_ptr[d] = w.offset[d]


@uncounted
def order_transfers(arrays: ProblemArrays, w: Workspace) -> None:
    """Number every channel's requests and sort them by rank, for planned execution."""
    k, m = arrays.compute.shape[1], arrays.producer.shape[0]
    count = 0
    for c in range(arrays.num_channels + 1):
        w.lane_ptr[c] = 0
    for tensor in range(m):
        w.pair_ptr[tensor] = count
        source = w.device[arrays.producer[tensor]]
        for e in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            v = arrays.consumer[e]
            d = w.device[v]
            if d != source and arrays.channel[source, d] >= 0:
                if w.stamp[d] != tensor:
                    w.stamp[d] = tensor
                    w.best_rank[d] = w.rank[v]
                elif w.rank[v] < w.best_rank[d]:
                    w.best_rank[d] = w.rank[v]
        for d in range(k):
            if w.stamp[d] == tensor:
                w.request_key[count] = w.best_rank[d]
                w.request_tensor[count] = tensor
                w.request_destination[count] = d
                w.requested[count] = False
                w.lane_ptr[arrays.channel[source, d] + 1] += 1
                count += 1
    w.pair_ptr[m] = count
    for c in range(arrays.num_channels):
        w.lane_ptr[c + 1] += w.lane_ptr[c]
        w.lane_at[c] = w.lane_ptr[c]
    for r in range(count):  # no request has begun: its times are free to hold the heap
        push(w.request_start, w.request_finish, 0, r, w.request_key[r], r)
    for left in range(count, 0, -1):
        r = w.request_finish[0]
        pop(w.request_start, w.request_finish, 0, left)
        c = arrays.channel[w.device[arrays.producer[w.request_tensor[r]]], w.request_destination[r]]
        w.lane[w.lane_at[c]] = r
        w.lane_at[c] += 1
    for c in range(arrays.num_channels):
        w.lane_at[c] = w.lane_ptr[c]
    for d in range(k):
        w.stamp[d] = -1
