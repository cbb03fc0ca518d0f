"""Compiled preparation of planned execution: every device's ops and every channel's transfers,
sorted by rank.
"""

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
        w.plan.op_at[d] = w.queues.first[d]
    for op in range(n):
        push(w.queues.later_key, w.queues.later_op, 0, op, w.rank[op], op)
    for left in range(n, 0, -1):
        op = w.queues.later_op[0]
        pop(w.queues.later_key, w.queues.later_op, 0, left)
        d = w.device[op]
        w.queues.op[w.plan.op_at[d]] = op
        w.plan.op_at[d] += 1
    for d in range(k):
        w.plan.op_at[d] = w.queues.first[d]


@uncounted
def order_transfers(arrays: ProblemArrays, w: Workspace) -> None:
    """Number every channel's requests and sort them by rank, for planned execution."""
    k, m = arrays.compute.shape[1], arrays.producer.shape[0]
    count = 0
    for c in range(arrays.num_channels + 1):
        w.plan.lane_ptr[c] = 0
    for tensor in range(m):
        w.plan.pair_ptr[tensor] = count
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
                w.requests.key[count] = w.best_rank[d]
                w.requests.tensor[count] = tensor
                w.requests.destination[count] = d
                w.plan.requested[count] = False
                w.plan.lane_ptr[arrays.channel[source, d] + 1] += 1
                count += 1
    w.plan.pair_ptr[m] = count
    for c in range(arrays.num_channels):
        w.plan.lane_ptr[c + 1] += w.plan.lane_ptr[c]
        w.plan.lane_at[c] = w.plan.lane_ptr[c]
    for r in range(count):  # no request has begun: its times are free to hold the heap
        push(w.requests.start, w.requests.finish, 0, r, w.requests.key[r], r)
    for left in range(count, 0, -1):
        r = w.requests.finish[0]
        pop(w.requests.start, w.requests.finish, 0, left)
        c = arrays.channel[
            w.device[arrays.producer[w.requests.tensor[r]]], w.requests.destination[r]
        ]
        w.plan.lane[w.plan.lane_at[c]] = r
        w.plan.lane_at[c] += 1
    for c in range(arrays.num_channels):
        w.plan.lane_at[c] = w.plan.lane_ptr[c]
    for d in range(k):
        w.stamp[d] = -1
