"""Compiled count of the bytes on every device over a schedule: tensors live from their producer to
their last reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.compiled import inner
from placeopt.model.heaps import pop, push

if TYPE_CHECKING:
    from placeopt.makespan.arrays import ProblemArrays
    from placeopt.makespan.workspace import Workspace
    from placeopt.model.arrays import Ints


@inner
def _sorted(values: Ints) -> Ints:
    """Indices of `values` by value, ties by index."""
    count = len(values)
    key, item, order = (
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    for i in range(count):
        push(key, item, 0, i, values[i], i)
    for i in range(count):
        order[i] = item[0]
        pop(key, item, 0, count - i)
    return order


@inner
def _transfers_by_tensor(w: Workspace, num_tensors: int, num_requests: int) -> tuple[Ints, Ints]:
    """Return (pointer of num_tensors + 1, request): the contended transfers of each tensor."""
    first = np.zeros(num_tensors + 1, np.int64)
    for r in range(num_requests):
        first[w.requests.tensor[r] + 1] += 1
    for tensor in range(num_tensors):
        first[tensor + 1] += first[tensor]
    request = np.empty(num_requests, np.int64)
    cursor = first.copy()
    for r in range(num_requests):
        request[cursor[w.requests.tensor[r]]] = r
        cursor[w.requests.tensor[r]] += 1
    return first, request


@inner
def _lives(arrays: ProblemArrays, w: Workspace, num_requests: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (begin, end, device, bytes) of every stay of a tensor on a device."""
    m = arrays.producer.shape[0]
    room = m + arrays.consumer.shape[0]
    begin = np.empty(room, np.int64)
    end = np.empty(room, np.int64)
    where = np.empty(room, np.int64)
    size = np.empty(room, np.int64)
    first, by_tensor = _transfers_by_tensor(w, m, num_requests)
    slot = np.full(arrays.compute.shape[1], -1, np.int64)
    count = 0
    for tensor in range(m):
        u = arrays.producer[tensor]
        source = w.device[u]
        home = count
        begin[home], end[home], where[home] = w.start[u], w.finish[u], source
        count += 1
        slot[source] = home
        for r in range(first[tensor], first[tensor + 1]):
            request = by_tensor[r]
            d = w.requests.destination[request]
            begin[count], end[count], where[count] = (
                w.requests.start[request],
                w.requests.finish[request],
                d,
            )
            slot[d] = count
            end[home] = max(end[home], end[count])
            count += 1
        for e in range(arrays.consumer_ptr[tensor], arrays.consumer_ptr[tensor + 1]):
            v = arrays.consumer[e]
            d = w.device[v]
            if slot[d] < home:
                begin[count], where[count] = w.finish[u], d
                end[count] = w.finish[u] + arrays.transfer[tensor, arrays.link_class[source, d]]
                slot[d] = count
                end[home] = max(end[home], end[count])
                count += 1
            end[slot[d]] = max(end[slot[d]], w.finish[v])
        for i in range(home, count):
            size[i] = arrays.tensor_bytes[tensor]
    return begin[:count], end[:count], where[:count], size[:count]


@inner
def peak_memory(arrays: ProblemArrays, w: Workspace, num_requests: int) -> Ints:
    """Return the largest number of bytes on each device over the schedule in `w`, shape (k,).

    A tensor lives on its producer's device from its producer's start, on another from its
    transfer's start, in both cases until the last reader there, or the transfer, ends.
    """
    n, k = arrays.compute.shape
    begin, end, where, size = _lives(arrays, w, num_requests)
    now = np.zeros(k, np.int64)
    for op in range(n):
        now[w.device[op]] += arrays.resident[op]
    peak = now.copy()
    by_begin, by_end = _sorted(begin), _sorted(end)
    j = 0
    for i in range(len(begin)):
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


@inner
def too_full(arrays: ProblemArrays, w: Workspace, num_requests: int) -> bool:
    """Whether some device ever holds more than its capacity in the schedule in `w`."""
    peak = peak_memory(arrays, w, num_requests)
    for d in range(len(peak)):
        if peak[d] > arrays.capacity[d]:
            return True
    return False
