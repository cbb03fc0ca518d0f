"""The event-driven evaluator in numba: the schedule of a placement under `fifo`, `priority` or `planned`.

The semantics are those of docs/concepts.md. At each distinct time t: (1) complete every op and transfer that
ends at t; (2) every idle channel with requests starts one, back to 1 if any takes no time; (3) every idle
device with ready ops starts one, back to 1 if any takes no time; (4) advance to the next completion.

Three things make it fast. An op is put into its device's queue as soon as its last input's *arrival time* is
known, which may be in the future, so uncontended transfers are never events. Queues are binary heaps that
live in one array, in the region of their device (its size is the number of ops there). The next event is
found by scanning one number per device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from placeopt.model.objective import INFEASIBLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.makespan.arrays import ProblemArrays

FIFO, PRIORITY, PLANNED = 0, 1, 2
MODES = {"fifo": FIFO, "priority": PRIORITY, "planned": PLANNED}
DEADLOCK = -1
"""Makespan of a planned order that can never be executed."""

_NEVER = np.iinfo(np.int64).max


class Workspace(NamedTuple):
    """Scratch memory of one thread; nothing is allocated per evaluation."""

    pending: NDArray[np.int64]  # (n,) inputs still missing
    cost: NDArray[np.int64]  # (n,) ticks of each op on its device
    ready: NDArray[np.int64]  # (n,) time the inputs are available
    offset: NDArray[np.int64]  # (k + 1,) region of each device in the heaps
    size: NDArray[np.int64]  # (k,) entries in the ready heap
    heap_key: NDArray[np.int64]  # (n,)
    heap_op: NDArray[np.uint32]  # (n,)
    later_size: NDArray[np.int64]  # (k,) entries in the heap of ops that become ready later
    later_key: NDArray[np.int64]  # (n,)
    later_op: NDArray[np.uint32]  # (n,)
    running: NDArray[np.int64]  # (k,) op or -1
    next_time: NDArray[np.int64]  # (k,) time of the device's next event
    touched: NDArray[np.int64]  # (k,) devices that may start an op now
    is_touched: NDArray[np.bool_]  # (k,)
    start: NDArray[np.int64]  # (n,)
    finish: NDArray[np.int64]  # (n,)
    # channels
    channel_root: NDArray[np.int64]  # (channels,) request heap
    channel_running: NDArray[np.int64]  # (channels,) request or -1
    event_key: NDArray[np.int64]  # (channels,) heap of transfer completions
    event_channel: NDArray[np.int64]  # (channels,)
    active: NDArray[np.int64]  # (channels,) channels that may start a transfer now
    is_active: NDArray[np.bool_]  # (channels,)
    # requests: one per (tensor, destination)
    request_key: NDArray[np.int64]  # (edges,)
    request_tensor: NDArray[np.int64]  # (edges,)
    request_destination: NDArray[np.int64]  # (edges,)
    request_left: NDArray[np.int64]  # (edges,) skew-heap children
    request_right: NDArray[np.int64]  # (edges,)
    request_start: NDArray[np.int64]  # (edges,)
    request_finish: NDArray[np.int64]  # (edges,)
    stamp: NDArray[np.int64]  # (k,) last tensor that met this destination
    best_rank: NDArray[np.int64]  # (k,) smallest rank among its consumers there
    spots: NDArray[np.int64]  # (k,) destinations of the tensor at hand
    # planned order
    plan_ptr: NDArray[np.int64]  # (k,) next position of each device in heap_op
    pair_ptr: NDArray[np.int64]  # (m + 1,) first request of each tensor
    lane_ptr: NDArray[np.int64]  # (channels + 1,) region of each channel in lane
    lane_at: NDArray[np.int64]  # (channels,) next position
    lane: NDArray[np.int64]  # (edges,) requests in planned order
    requested: NDArray[np.bool_]  # (edges,)
    group_device: NDArray[np.int64]  # (groups,)
    load: NDArray[np.int64]  # (k,) bytes


@njit(cache=True, nogil=True)
def make_workspace(arrays: ProblemArrays) -> Workspace:
    """Allocate the scratch memory of one thread."""
    n, k = arrays.compute.shape
    edges = arrays.consumer.shape[0]
    tensors = arrays.producer.shape[0]
    channels = arrays.num_channels
    groups = arrays.num_groups
    i64 = np.int64
    return Workspace(
        pending=np.empty(n, i64),
        cost=np.empty(n, i64),
        ready=np.empty(n, i64),
        offset=np.empty(k + 1, i64),
        size=np.empty(k, i64),
        heap_key=np.empty(n, i64),
        heap_op=np.empty(n, np.uint32),
        later_size=np.empty(k, i64),
        later_key=np.empty(n, i64),
        later_op=np.empty(n, np.uint32),
        running=np.empty(k, i64),
        next_time=np.empty(k, i64),
        touched=np.empty(k, i64),
        is_touched=np.empty(k, np.bool_),
        start=np.empty(n, i64),
        finish=np.empty(n, i64),
        channel_root=np.empty(channels, i64),
        channel_running=np.empty(channels, i64),
        event_key=np.empty(channels, i64),
        event_channel=np.empty(channels, i64),
        active=np.empty(channels, i64),
        is_active=np.empty(channels, np.bool_),
        request_key=np.empty(edges, i64),
        request_tensor=np.empty(edges, i64),
        request_destination=np.empty(edges, i64),
        request_left=np.empty(edges, i64),
        request_right=np.empty(edges, i64),
        request_start=np.empty(edges, i64),
        request_finish=np.empty(edges, i64),
        stamp=np.empty(k, i64),
        best_rank=np.empty(k, i64),
        spots=np.empty(k, i64),
        plan_ptr=np.empty(k, i64),
        pair_ptr=np.empty(tensors + 1, i64),
        lane_ptr=np.empty(channels + 1, i64),
        lane_at=np.empty(channels, i64),
        lane=np.empty(edges, i64),
        requested=np.empty(edges, np.bool_),
        group_device=np.empty(groups, i64),
        load=np.empty(k, i64),
    )


# --- heaps ---------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _push(key: NDArray[np.int64], item: NDArray[np.int64], base: int, size: int, new_key: int, new_item: int) -> None:
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


@njit(cache=True, nogil=True, inline="always")
def _pop(key: NDArray[np.int64], item: NDArray[np.int64], base: int, size: int) -> None:
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
            if other_key < child_key or (other_key == child_key and item[base + other] < item[base + child]):
                child = other
                child_key = other_key
        if last_key < child_key or (last_key == child_key and last_item < item[base + child]):
            break
        key[base + at] = child_key
        item[base + at] = item[base + child]
        at = child
    key[base + at] = last_key
    item[base + at] = last_item


@njit(cache=True, nogil=True)
def _earlier(w: Workspace, a: int, b: int) -> bool:
    """Whether request a comes before request b: by (key, tensor, destination)."""
    if w.request_key[a] != w.request_key[b]:
        return w.request_key[a] < w.request_key[b]
    if w.request_tensor[a] != w.request_tensor[b]:
        return w.request_tensor[a] < w.request_tensor[b]
    return w.request_destination[a] < w.request_destination[b]


@njit(cache=True, nogil=True)
def _merge(w: Workspace, a: int, b: int) -> int:
    """Merge two skew heaps of requests (-1 is the empty heap), top down."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _earlier(w, b, a):
        a, b = b, a
    root = a
    while True:
        # a is the smaller root: its right child joins b and becomes its left child.
        right = w.request_right[a]
        w.request_right[a] = w.request_left[a]
        if right < 0:
            w.request_left[a] = b
            return root
        if _earlier(w, b, right):
            right, b = b, right
        w.request_left[a] = right
        a = right


# --- the simulation ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _plan(arrays: ProblemArrays, w: Workspace, device: NDArray[np.int64], rank: NDArray[np.int64]) -> None:
    """Sort every device's ops and every channel's requests by rank, for planned execution."""
    n, k = arrays.compute.shape
    for d in range(k):
        w.plan_ptr[d] = w.offset[d]
    order = np.argsort(rank, kind="mergesort")
    for i in range(n):
        op = order[i]
        d = device[op]
        w.heap_op[w.plan_ptr[d]] = op
        w.plan_ptr[d] += 1
    for d in range(k):
        w.plan_ptr[d] = w.offset[d]
    if arrays.num_channels == 0:
        return
    m = arrays.producer.shape[0]
    count = 0
    for c in range(arrays.num_channels + 1):
        w.lane_ptr[c] = 0
    for d in range(k):
        w.stamp[d] = -1
    for tensor in range(m):
        w.pair_ptr[tensor] = count
        source = device[arrays.producer[tensor]]
        for e in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            v = arrays.consumer[e]
            d = device[v]
            if d != source and arrays.channel[source, d] >= 0:
                if w.stamp[d] != tensor:
                    w.stamp[d] = tensor
                    w.best_rank[d] = rank[v]
                elif rank[v] < w.best_rank[d]:
                    w.best_rank[d] = rank[v]
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
    by_rank = np.argsort(w.request_key[:count], kind="mergesort")
    for i in range(count):
        r = by_rank[i]
        c = arrays.channel[device[arrays.producer[w.request_tensor[r]]], w.request_destination[r]]
        w.lane[w.lane_at[c]] = r
        w.lane_at[c] += 1
    for c in range(arrays.num_channels):
        w.lane_at[c] = w.lane_ptr[c]
    for d in range(k):
        w.stamp[d] = -1


@njit(cache=True, nogil=True)
def simulate(
    arrays: ProblemArrays, w: Workspace, device: NDArray[np.int64], rank: NDArray[np.int64], mode: int
) -> tuple[int, int]:
    """Execute one placement; fill `w.start` and `w.finish` and return (makespan, number of contended requests).

    `device` must be compatible with every op. `rank` is read in the modes PRIORITY and PLANNED only.
    Returns makespan DEADLOCK if a planned order cannot be executed.
    """
    compute, transfer, link_class, channel = arrays.compute, arrays.transfer, arrays.link_class, arrays.channel
    edge_ptr, edge_op, edge_tensor = arrays.edge_ptr, arrays.edge_op, arrays.edge_tensor
    pending, ready, offset, size = w.pending, w.ready, w.offset, w.size
    heap_key, heap_op, next_time, running = w.heap_key, w.heap_op, w.next_time, w.running
    n, k = compute.shape
    num_classes = transfer.shape[1]
    num_channels = arrays.num_channels
    contended = num_channels > 0

    for d in range(k + 1):
        offset[d] = 0
    for op in range(n):
        pending[op] = arrays.indegree[op]
        ready[op] = 0
        w.cost[op] = compute[op, device[op]]
        offset[device[op] + 1] += 1
    for d in range(k):
        offset[d + 1] += offset[d]
        size[d] = 0
        w.later_size[d] = 0
        running[d] = -1
        next_time[d] = _NEVER
        w.stamp[d] = -1
        w.is_touched[d] = False
    num_requests = 0
    num_events = 0
    num_active = 0
    num_touched = 0
    if mode == PLANNED:
        _plan(arrays, w, device, rank)
    for c in range(num_channels):
        w.channel_root[c] = -1
        w.channel_running[c] = -1
        w.is_active[c] = False

    time = 0
    done = 0
    makespan = 0
    if mode == PLANNED:
        for d in range(k):
            w.is_touched[d] = True
            w.touched[num_touched] = d
            num_touched += 1
    else:
        for op in range(n):
            if pending[op] == 0:
                d = device[op]
                _push(heap_key, heap_op, offset[d], size[d], rank[op] if mode == PRIORITY else 0, op)
                size[d] += 1
                if not w.is_touched[d]:
                    w.is_touched[d] = True
                    w.touched[num_touched] = d
                    num_touched += 1

    while True:
        # (2) idle channels start one transfer each.
        instant = False
        if num_active > 0:
            for i in range(num_active):
                c = w.active[i]
                w.is_active[c] = False
                if w.channel_running[c] >= 0:
                    continue
                if mode == PLANNED:
                    if w.lane_at[c] == w.lane_ptr[c + 1] or not w.requested[w.lane[w.lane_at[c]]]:
                        continue
                    r = w.lane[w.lane_at[c]]
                    w.lane_at[c] += 1
                else:
                    r = w.channel_root[c]
                    if r < 0:
                        continue
                    w.channel_root[c] = _merge(w, w.request_left[r], w.request_right[r])
                tensor = w.request_tensor[r]
                source = device[arrays.producer[tensor]]
                cost = transfer[tensor, link_class[source, w.request_destination[r]]]
                w.channel_running[c] = r
                w.request_start[r] = time
                w.request_finish[r] = time + cost
                _push(w.event_key, w.event_channel, 0, num_events, time + cost, c)
                num_events += 1
                if cost == 0:
                    instant = True
            num_active = 0

        # (3) idle devices start one op each (the order of devices cannot matter: starts do not interact).
        if not instant and num_touched > 0:
            for i in range(num_touched):
                d = w.touched[i]
                w.is_touched[d] = False
                if running[d] >= 0:
                    continue
                base = offset[d]
                if mode == FIFO:
                    if size[d] == 0:
                        next_time[d] = _NEVER
                        continue
                    if heap_key[base] > time:
                        next_time[d] = heap_key[base]
                        continue
                    op = heap_op[base]
                    _pop(heap_key, heap_op, base, size[d])
                    size[d] -= 1
                elif mode == PRIORITY:
                    while w.later_size[d] > 0 and w.later_key[base] <= time:
                        op = w.later_op[base]
                        _pop(w.later_key, w.later_op, base, w.later_size[d])
                        w.later_size[d] -= 1
                        _push(heap_key, heap_op, base, size[d], rank[op], op)
                        size[d] += 1
                    if size[d] == 0:
                        next_time[d] = w.later_key[base] if w.later_size[d] > 0 else _NEVER
                        continue
                    op = heap_op[base]
                    _pop(heap_key, heap_op, base, size[d])
                    size[d] -= 1
                else:
                    at = w.plan_ptr[d]
                    if at == offset[d + 1] or pending[heap_op[at]] > 0:
                        next_time[d] = _NEVER
                        continue
                    op = heap_op[at]
                    if ready[op] > time:
                        next_time[d] = ready[op]
                        continue
                    w.plan_ptr[d] += 1
                cost = w.cost[op]
                running[d] = op
                w.start[op] = time
                w.finish[op] = time + cost
                next_time[d] = time + cost
                if cost == 0:
                    instant = True
            num_touched = 0

        # (4) advance to the next event.
        if not instant:
            if done == n:
                break
            soonest = _NEVER
            first = 0
            together = 0
            for d in range(k):
                if next_time[d] < soonest:
                    soonest = next_time[d]
                    first = d
                    together = 1
                elif next_time[d] == soonest:
                    together += 1
            if num_events > 0 and w.event_key[0] < soonest:
                soonest = w.event_key[0]
                together = 0
            if soonest == _NEVER:
                return DEADLOCK, num_requests
            time = soonest
            begin, end = (first, first + 1) if together == 1 else (0, k if together > 0 else 0)
        else:
            begin, end = 0, k

        # (1) complete everything that ends now.
        while num_events > 0 and w.event_key[0] == time:
            c = w.event_channel[0]
            _pop(w.event_key, w.event_channel, 0, num_events)
            num_events -= 1
            r = w.channel_running[c]
            w.channel_running[c] = -1
            if not w.is_active[c]:
                w.is_active[c] = True
                w.active[num_active] = c
                num_active += 1
            tensor = w.request_tensor[r]
            d = w.request_destination[r]
            for e in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
                v = arrays.consumer[e]
                if device[v] != d:
                    continue
                pending[v] -= 1
                if time > ready[v]:
                    ready[v] = time
                if pending[v] == 0:
                    # Other inputs may still be on their way, uncontended.
                    if mode == FIFO:
                        _push(heap_key, heap_op, offset[d], size[d], ready[v], v)
                        size[d] += 1
                    elif mode == PRIORITY:
                        if ready[v] <= time:
                            _push(heap_key, heap_op, offset[d], size[d], rank[v], v)
                            size[d] += 1
                        else:
                            _push(w.later_key, w.later_op, offset[d], w.later_size[d], ready[v], v)
                            w.later_size[d] += 1
                    if running[d] < 0 and not w.is_touched[d]:
                        w.is_touched[d] = True
                        w.touched[num_touched] = d
                        num_touched += 1
        for source in range(begin, end):
            if next_time[source] != time:
                continue
            if not w.is_touched[source]:
                w.is_touched[source] = True
                w.touched[num_touched] = source
                num_touched += 1
            u = running[source]
            if u < 0:
                continue
            running[source] = -1
            next_time[source] = _NEVER
            done += 1
            makespan = time
            first_spot = 0
            last = edge_ptr[u + 1]
            for e in range(edge_ptr[u], last):
                v = edge_op[e]
                d = device[v]
                arrival = time
                if d != source:
                    tensor = edge_tensor[e]
                    if contended and channel[source, d] >= 0:
                        # A request appears once per (tensor, destination); it is queued at the tensor's last edge.
                        if w.stamp[d] != tensor:
                            w.stamp[d] = tensor
                            w.best_rank[d] = rank[v] if mode != FIFO else 0
                            w.spots[first_spot] = d
                            first_spot += 1
                        elif mode != FIFO and rank[v] < w.best_rank[d]:
                            w.best_rank[d] = rank[v]
                        arrival = -1
                    else:
                        arrival = time + transfer[tensor, link_class[source, d] if num_classes > 1 else 0]
                if arrival >= 0:
                    pending[v] -= 1
                    if arrival > ready[v]:
                        ready[v] = arrival
                    if pending[v] == 0:
                        at = ready[v]
                        if mode == FIFO:
                            _push(heap_key, heap_op, offset[d], size[d], at, v)
                            size[d] += 1
                        elif mode == PRIORITY:
                            if at <= time:
                                _push(heap_key, heap_op, offset[d], size[d], rank[v], v)
                                size[d] += 1
                            else:
                                _push(w.later_key, w.later_op, offset[d], w.later_size[d], at, v)
                                w.later_size[d] += 1
                        if running[d] < 0 and not w.is_touched[d]:
                            # A device whose own completion at this time is still ahead is touched then.
                            w.is_touched[d] = True
                            w.touched[num_touched] = d
                            num_touched += 1
                if first_spot > 0 and (e + 1 == last or edge_tensor[e + 1] != edge_tensor[e]):
                    tensor = edge_tensor[e]
                    for i in range(first_spot):
                        d = w.spots[i]
                        c = channel[source, d]
                        if mode == PLANNED:
                            r = w.pair_ptr[tensor]
                            while w.request_destination[r] != d:
                                r += 1
                            w.requested[r] = True
                        else:
                            r = num_requests
                            w.request_key[r] = time if mode == FIFO else w.best_rank[d]
                            w.request_tensor[r] = tensor
                            w.request_destination[r] = d
                            w.request_left[r] = -1
                            w.request_right[r] = -1
                            w.channel_root[c] = _merge(w, w.channel_root[c], r)
                        num_requests += 1
                        if not w.is_active[c]:
                            w.is_active[c] = True
                            w.active[num_active] = c
                            num_active += 1
                    first_spot = 0
    return makespan, num_requests


# --- memory and constraints ----------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def peak_memory(arrays: ProblemArrays, w: Workspace, device: NDArray[np.int64], num_requests: int) -> NDArray[np.int64]:
    """Return the largest number of bytes on each device over the schedule in `w`, shape (k,).

    A tensor lives on its producer's device from its producer's start, on another from its transfer's start,
    in both cases until the last reader there, or the transfer, ends.
    """
    n, k = arrays.compute.shape
    m = arrays.producer.shape[0]
    room = m + arrays.consumer.shape[0]
    begin = np.empty(room, np.int64)
    end = np.empty(room, np.int64)
    where = np.empty(room, np.int64)
    size = np.empty(room, np.int64)
    # Start and end of every contended transfer, found by (tensor, destination).
    first = np.zeros(m + 1, np.int64)
    for r in range(num_requests):
        first[w.request_tensor[r] + 1] += 1
    for tensor in range(m):
        first[tensor + 1] += first[tensor]
    by_tensor = np.empty(num_requests, np.int64)
    cursor = first.copy()
    for r in range(num_requests):
        by_tensor[cursor[w.request_tensor[r]]] = r
        cursor[w.request_tensor[r]] += 1

    slot = np.full(k, -1, np.int64)
    count = 0
    for tensor in range(m):
        u = arrays.producer[tensor]
        source = device[u]
        home = count
        begin[home], end[home], where[home] = w.start[u], w.finish[u], source
        size[home] = arrays.tensor_bytes[tensor]
        count += 1
        slot[source] = home
        for r in range(first[tensor], first[tensor + 1]):
            request = by_tensor[r]
            d = w.request_destination[request]
            begin[count], end[count] = w.request_start[request], w.request_finish[request]
            where[count], size[count] = d, arrays.tensor_bytes[tensor]
            slot[d] = count
            end[home] = max(end[home], end[count])
            count += 1
        for e in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            v = arrays.consumer[e]
            d = device[v]
            if slot[d] < home:
                begin[count] = w.finish[u]
                end[count] = w.finish[u] + arrays.transfer[tensor, arrays.link_class[source, d]]
                where[count], size[count] = d, arrays.tensor_bytes[tensor]
                slot[d] = count
                end[home] = max(end[home], end[count])
                count += 1
            end[slot[d]] = max(end[slot[d]], w.finish[v])

    now = np.zeros(k, np.int64)
    for op in range(n):
        now[device[op]] += arrays.resident[op]
    peak = now.copy()
    by_begin = np.argsort(begin[:count], kind="mergesort")
    by_end = np.argsort(end[:count], kind="mergesort")
    j = 0
    for i in range(count):
        x = by_begin[i]
        if begin[x] == end[x]:
            continue
        while end[by_end[j]] <= begin[x]:
            y = by_end[j]
            if begin[y] < end[y]:
                now[where[y]] -= size[y]
            j += 1
        now[where[x]] += size[x]
        peak[where[x]] = max(peak[where[x]], now[where[x]])
    return peak


@njit(cache=True, nogil=True)
def allowed(arrays: ProblemArrays, w: Workspace, device: NDArray[np.int64]) -> bool:
    """Whether a placement satisfies compatibility, colocation and static capacity."""
    n, k = arrays.compute.shape
    for g in range(arrays.num_groups):
        w.group_device[g] = -1
    for d in range(k):
        w.load[d] = 0
    for op in range(n):
        d = device[op]
        if d < 0 or d >= k or arrays.compute[op, d] < 0:
            return False
        w.load[d] += arrays.resident[op]
        g = arrays.colocation[op]
        if g >= 0:
            if w.group_device[g] < 0:
                w.group_device[g] = d
            elif w.group_device[g] != d:
                return False
    for d in range(k):
        if w.load[d] > arrays.capacity[d]:
            return False
    return True


@njit(cache=True, nogil=True)
def batch(arrays: ProblemArrays, devices: NDArray[np.int32], ranks: NDArray[np.int64], mode: int, out: NDArray[np.int64]) -> None:
    """Makespan of every row of `devices` into `out`; INFEASIBLE where a constraint is broken.

    `ranks` has one row for all placements, or one row each.
    """
    w = make_workspace(arrays)
    n, k = arrays.compute.shape
    device = np.empty(n, np.int64)
    shared = ranks.shape[0] == 1
    for b in range(devices.shape[0]):
        for op in range(n):
            device[op] = devices[b, op]
        if not allowed(arrays, w, device):
            out[b] = INFEASIBLE
            continue
        makespan, requests = simulate(arrays, w, device, ranks[0] if shared else ranks[b], mode)
        if makespan == DEADLOCK:
            makespan = INFEASIBLE
        elif arrays.peak_memory:
            peak = peak_memory(arrays, w, device, requests)
            for d in range(k):
                if peak[d] > arrays.capacity[d]:
                    makespan = INFEASIBLE
        out[b] = makespan


@njit(cache=True, nogil=True)
def single(
    arrays: ProblemArrays, device: NDArray[np.int64], rank: NDArray[np.int64], mode: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (makespan, start, finish, requests, peak memory) of one placement.

    `requests` has the rows tensor, destination, start and finish of the contended transfers.
    """
    w = make_workspace(arrays)
    makespan, count = simulate(arrays, w, device, rank, mode)
    requests = np.empty((4, count), np.int64)
    if makespan == DEADLOCK:
        return makespan, w.start, w.finish, requests, np.zeros(arrays.compute.shape[1], np.int64)
    for r in range(count):
        requests[0, r] = w.request_tensor[r]
        requests[1, r] = w.request_destination[r]
        requests[2, r] = w.request_start[r]
        requests[3, r] = w.request_finish[r]
    return makespan, w.start, w.finish, requests, peak_memory(arrays, w, device, count)
