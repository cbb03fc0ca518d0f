"""The event-driven evaluator in numba: the schedule of a placement under `fifo`, `priority` or
`planned`, and the bytes on every device over it.

The semantics are those of docs/concepts.md. At each distinct time t: (1) complete every op and
transfer that ends at t; (2) every idle channel with requests starts one, back to 1 if any takes no
time; (3) every idle device with ready ops starts one, back to 1 if any takes no time; (4) advance
to the next completion. For `planned` every device's ops and every channel's transfers are sorted by
rank first. Tensors live from their producer to their last reader.

Three things make it fast. An op is put into its device's queue as soon as its last input's *arrival
time* is known, which may be in the future, so uncontended transfers are never events. Queues are
binary heaps that live in one array, in the region of their device (its size is the number of ops
there). The next event is found by scanning one number per device.

Kernels read the placement from the workspace, which is allocated once a thread, so that each is
compiled once. The pieces of `simulate` are inlined: passing a workspace to a function costs more
than most pieces do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Ints, SmallInts, distinct, frozen
from placeopt.model.compiled import entry, inlined, inner_kernel, row_of, uncounted_kernel
from placeopt.model.heaps import argsort, merge, pop, push
from placeopt.model.objective import INFEASIBLE
from placeopt.model.problem import PlacementProblem


class ProblemArrays(NamedTuple):
    """What the kernels need of a PlacementProblem (n ops, k devices, m tensors, c link classes).

    Every array is read-only, int64 and C-contiguous, so that each kernel is compiled once.
    """

    compute: Ints  # (n, k)
    indegree: Ints  # (n,) number of input tensors
    edge_ptr: Ints  # (n + 1,) out-edges of each op
    edge_op: Ints  # (edges,) consumer
    edge_tensor: Ints  # (edges,) tensor, edges of one tensor are adjacent
    consumer_ptr: Ints  # (m + 1,)
    consumer: Ints  # (edges,)
    producer: Ints  # (m,)
    transfer: Ints  # (m, c)
    link_class: Ints  # (k, k)
    channel: Ints  # (k, k)
    num_channels: int  # 0 without contention
    resident: Ints  # (n,)
    capacity: Ints  # (k,)
    colocation: Ints  # (n,)
    tensor_bytes: Ints  # (m,)
    num_groups: int  # colocation groups, numbered from 0
    peak_memory: bool  # whether capacity bounds the dynamic peak


def problem_arrays(problem: PlacementProblem) -> ProblemArrays:
    """Return the arrays that kernels take; computed once per problem."""
    cached: ProblemArrays | None = problem.__dict__.get("_kernel_arrays")
    if cached is None:
        edge_ptr, edge_op, edge_tensor = problem.successors
        groups = distinct(problem.colocation[problem.colocation >= 0])  # ids may be huge
        group = np.searchsorted(groups, problem.colocation)
        cached = ProblemArrays(
            compute=problem.compute,
            indegree=frozen(np.bincount(problem.consumer, minlength=problem.num_ops)),
            edge_ptr=edge_ptr,
            edge_op=edge_op,
            edge_tensor=edge_tensor,
            consumer_ptr=problem.consumer_ptr,
            consumer=problem.consumer,
            producer=problem.producer,
            transfer=problem.transfer,
            link_class=problem.link_class,
            channel=problem.lanes,
            num_channels=problem.num_channels,
            resident=problem.resident,
            capacity=problem.capacity,
            colocation=frozen(np.where(problem.colocation < 0, -1, group)),
            tensor_bytes=problem.tensor_bytes,
            num_groups=len(groups),
            peak_memory=problem.memory == "peak",
        )
        problem.__dict__["_kernel_arrays"] = cached
    return cached


TOUCHED, ACTIVE, EVENTS, REQUESTS, DONE, LATE = np.arange(6)
"""Entries of `Workspace.counter`: touched devices, active channels, running transfers, requests so
far, ops completed, ops that start too late for the limit."""


class Queues(NamedTuple):
    """The ops of every device that are ready, or become so later: heaps in the device's region."""

    first: Ints  # (k + 1,) region of each device in the heaps
    size: Ints  # (k,) entries in the ready heap
    key: Ints  # (n,)
    op: Ints  # (n,)
    later_size: Ints  # (k,) entries in the heap of ops that become ready later
    later_key: Ints  # (n,)
    later_op: Ints  # (n,)


class Channels(NamedTuple):
    """The channels, what they carry, and the heap of the transfers that are under way."""

    root: Ints  # (channels,) request heap
    running: Ints  # (channels,) request or -1
    event_key: Ints  # (channels,) heap of transfer completions
    event_channel: Ints  # (channels,)
    active: Ints  # (channels,) channels that may start a transfer now
    is_active: Flags  # (channels,)


class Requests(NamedTuple):
    """The contended transfers: one per tensor and destination."""

    key: Ints  # (edges,)
    tensor: Ints  # (edges,)
    destination: Ints  # (edges,)
    left: Ints  # (edges,) skew-heap children
    right: Ints  # (edges,)
    start: Ints  # (edges,)
    finish: Ints  # (edges,)


class PlannedOrder(NamedTuple):
    """What is planned: the next op of every device, and every channel's requests in order."""

    op_at: Ints  # (k,) next position of each device in Queues.op
    pair_ptr: Ints  # (m + 1,) first request of each tensor
    lane_ptr: Ints  # (channels + 1,) region of each channel in lane
    lane_at: Ints  # (channels,) next position
    lane: Ints  # (edges,) requests in planned order
    requested: Flags  # (edges,)


class Cutoff(NamedTuple):
    """When an execution is given up: the ops that are left on a device, or the transfers on a
    channel, one after the other from now on, or the longest path from an op that starts now, end
    later than the limit.
    """

    limit: Ints  # (1,) on the makespan, _NEVER at first
    tail: Ints  # (n,) longest path from the start of each op to the end, 0 at first
    left: Ints  # (k,) ticks of the ops that have not started
    load: Ints  # (channels,) ticks of all transfers, 0 at first
    carried: Ints  # (channels,) ticks of those that have started


class Workspace(NamedTuple):
    """Scratch memory of one thread; nothing is allocated per evaluation."""

    device: Ints  # (n,) the placement
    rank: Ints  # (n,) its priorities, 0 without
    counter: Ints  # (6,) see TOUCHED
    pending: Ints  # (n,) inputs still missing
    cost: Ints  # (n,) ticks of each op on its device
    ready: Ints  # (n,) time the inputs are available
    running: Ints  # (k,) op or -1
    next_time: Ints  # (k,) time of the device's next event
    touched: Ints  # (k,) devices that may start an op now
    is_touched: Flags  # (k,)
    start: Ints  # (n,)
    finish: Ints  # (n,)
    stamp: Ints  # (k,) last tensor that met this destination
    best_rank: Ints  # (k,) smallest rank among its consumers there
    spots: Ints  # (k,) destinations of the tensor at hand
    group_device: Ints  # (groups,)
    load: Ints  # (k,) bytes
    queues: Queues
    channels: Channels
    requests: Requests
    plan: PlannedOrder
    cutoff: Cutoff


@inner_kernel
def _ints(count: int) -> Ints:
    """Return memory for so many numbers."""
    return np.empty(count, np.int64)


@inner_kernel
def _empty_queues(n: int, k: int) -> Queues:
    return Queues(
        first=_ints(k + 1),
        size=_ints(k),
        key=_ints(n),
        op=_ints(n),
        later_size=_ints(k),
        later_key=_ints(n),
        later_op=_ints(n),
    )


@inner_kernel
def _empty_channels(channels: int) -> Channels:
    return Channels(
        _ints(channels),
        _ints(channels),
        _ints(channels),
        _ints(channels),
        _ints(channels),
        np.empty(channels, np.bool_),
    )


@inner_kernel
def _empty_requests(edges: int) -> Requests:
    return Requests(
        _ints(edges),
        _ints(edges),
        _ints(edges),
        _ints(edges),
        _ints(edges),
        _ints(edges),
        _ints(edges),
    )


@inner_kernel
def _empty_plan(k: int, tensors: int, channels: int, edges: int) -> PlannedOrder:
    return PlannedOrder(
        op_at=_ints(k),
        pair_ptr=_ints(tensors + 1),
        lane_ptr=_ints(channels + 1),
        lane_at=_ints(channels),
        lane=_ints(edges),
        requested=np.empty(edges, np.bool_),
    )


@inner_kernel
def make_workspace(arrays: ProblemArrays) -> Workspace:
    """Allocate the scratch memory of one thread."""
    n, k = arrays.compute.shape
    edges = arrays.consumer.shape[0]
    tensors = arrays.producer.shape[0]
    channels = arrays.num_channels
    groups = arrays.num_groups
    return Workspace(
        device=_ints(n),
        rank=np.zeros(n, np.int64),
        counter=_ints(6),
        pending=_ints(n),
        cost=_ints(n),
        ready=_ints(n),
        running=_ints(k),
        next_time=_ints(k),
        touched=_ints(k),
        is_touched=np.empty(k, np.bool_),
        start=_ints(n),
        finish=_ints(n),
        stamp=_ints(k),
        best_rank=_ints(k),
        spots=_ints(k),
        group_device=_ints(groups),
        load=_ints(k),
        queues=_empty_queues(n, k),
        channels=_empty_channels(channels),
        requests=_empty_requests(edges),
        plan=_empty_plan(k, tensors, channels, edges),
        cutoff=Cutoff(
            np.full(1, _NEVER),
            np.zeros(n, np.int64),
            _ints(k),
            np.zeros(channels, np.int64),
            _ints(channels),
        ),
    )


@uncounted_kernel
def order_ops(arrays: ProblemArrays, w: Workspace) -> None:
    """Sort every device's ops by rank, for planned execution."""
    queues = w.queues
    n, k = arrays.compute.shape
    for d in range(k):
        w.plan.op_at[d] = queues.first[d]
    for op in range(n):
        push(queues.later_key, queues.later_op, 0, op, w.rank[op], op)
    for left in range(n, 0, -1):
        op = queues.later_op[0]
        pop(queues.later_key, queues.later_op, 0, left)
        d = w.device[op]
        queues.op[w.plan.op_at[d]] = op
        w.plan.op_at[d] += 1
    for d in range(k):
        w.plan.op_at[d] = queues.first[d]


@uncounted_kernel
def order_transfers(arrays: ProblemArrays, w: Workspace) -> None:
    """Number every channel's requests and sort them by rank, for planned execution."""
    requests = w.requests
    plan = w.plan
    k, m = arrays.compute.shape[1], arrays.producer.shape[0]
    count = 0
    plan.lane_ptr[:] = 0
    for tensor in range(m):
        plan.pair_ptr[tensor] = count
        source = w.device[arrays.producer[tensor]]
        for e in row_of(arrays.consumer_ptr, tensor):
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
                requests.key[count] = w.best_rank[d]
                requests.tensor[count] = tensor
                requests.destination[count] = d
                plan.requested[count] = False
                plan.lane_ptr[arrays.channel[source, d] + 1] += 1
                count += 1
    plan.pair_ptr[m] = count
    for c in range(arrays.num_channels):
        plan.lane_ptr[c + 1] += plan.lane_ptr[c]
        plan.lane_at[c] = plan.lane_ptr[c]
    for r in range(count):  # no request has begun: its times are free to hold the heap
        push(requests.start, requests.finish, 0, r, requests.key[r], r)
    for left in range(count, 0, -1):
        r = requests.finish[0]
        pop(requests.start, requests.finish, 0, left)
        c = arrays.channel[w.device[arrays.producer[requests.tensor[r]]], requests.destination[r]]
        plan.lane[plan.lane_at[c]] = r
        plan.lane_at[c] += 1
    for c in range(arrays.num_channels):
        plan.lane_at[c] = plan.lane_ptr[c]
    w.stamp[:] = -1


FIFO, PRIORITY, PLANNED = 0, 1, 2
MODES = {"fifo": FIFO, "priority": PRIORITY, "planned": PLANNED}
DEADLOCK = np.int64(-1)
"""Makespan of a planned order that can never be executed."""

_NEVER = np.iinfo(np.int64).max


# --- queues
# --------------------------------------------------------------------------------------------


@inlined
def _add(members: Ints, inside: Flags, count: Ints, which: int, x: int) -> None:
    """Put x into a set: the touched devices or the active channels, which look for something to
    start now.
    """
    if not inside[x]:
        inside[x] = True
        members[count[which]] = x
        count[which] += 1


@inlined
def _arrive(w: Workspace, mode: int, v: int, d: int, arrival: int, time: int) -> None:
    """One input of op v is available on its device d from `arrival` on; the last one puts v into
    its queue.
    """
    queues = w.queues
    w.pending[v] -= 1
    if arrival > w.ready[v]:
        w.ready[v] = arrival
    if w.pending[v] == 0:
        at = w.ready[v]  # other inputs may still be on their way, uncontended
        if mode == PRIORITY and at > time:
            push(queues.later_key, queues.later_op, queues.first[d], queues.later_size[d], at, v)
            queues.later_size[d] += 1
        elif mode != PLANNED:
            push(
                queues.key,
                queues.op,
                queues.first[d],
                queues.size[d],
                at if mode == FIFO else w.rank[v],
                v,
            )
            queues.size[d] += 1
        if (
            w.running[d] < 0
        ):  # a device whose own completion at this time is still ahead is touched then
            _add(w.touched, w.is_touched, w.counter, TOUCHED, d)


@uncounted_kernel
def _reset(arrays: ProblemArrays, w: Workspace, mode: int) -> None:
    """Prepare the workspace: nothing has run, ops without inputs are queued."""
    queues = w.queues
    n, k = arrays.compute.shape
    queues.first[:] = 0
    w.cutoff.left[:] = 0
    for op in range(n):
        w.pending[op] = arrays.indegree[op]
        w.ready[op] = 0
        w.cost[op] = arrays.compute[op, w.device[op]]
        w.cutoff.left[w.device[op]] += w.cost[op]
        queues.first[w.device[op] + 1] += 1
    for d in range(k):
        queues.first[d + 1] += queues.first[d]
        queues.size[d] = 0
        queues.later_size[d] = 0
        w.running[d] = -1
        w.next_time[d] = _NEVER
        w.stamp[d] = -1
        w.is_touched[d] = False
    w.channels.root[:] = -1
    w.channels.running[:] = -1
    w.channels.is_active[:] = False
    w.cutoff.carried[:] = 0
    w.counter[:] = 0
    if mode == PLANNED:
        for d in range(k):
            _add(w.touched, w.is_touched, w.counter, TOUCHED, d)
        return
    for op in range(n):
        if w.pending[op] == 0:
            d = w.device[op]
            push(queues.key, queues.op, queues.first[d], queues.size[d], w.rank[op], op)
            queues.size[d] += 1
            _add(w.touched, w.is_touched, w.counter, TOUCHED, d)


# --- the simulation
# ------------------------------------------------------------------------------------


@inlined
def _merged(w: Workspace, a: int, b: int) -> np.int64:
    """Merge two heaps of requests; return the root."""
    requests = w.requests
    return merge(
        requests.key, requests.tensor, requests.destination, requests.left, requests.right, a, b
    )


@inlined
def _next_transfer(w: Workspace, mode: int, c: int) -> np.int64:
    """Take the next request of channel c, -1 if it has none that may start."""
    plan = w.plan
    r = np.int64(-1)
    if mode == PLANNED:
        if plan.lane_at[c] < plan.lane_ptr[c + 1] and plan.requested[plan.lane[plan.lane_at[c]]]:
            r = plan.lane[plan.lane_at[c]]
            plan.lane_at[c] += 1
    else:
        r = w.channels.root[c]
        if r >= 0:
            w.channels.root[c] = _merged(w, w.requests.left[r], w.requests.right[r])
    return r


@inlined
def _start_transfers(arrays: ProblemArrays, w: Workspace, mode: int, time: int) -> bool:
    """Step 2: idle channels start one transfer each; return whether one takes no time."""
    channels = w.channels
    instant = False
    for i in range(w.counter[ACTIVE]):
        c = channels.active[i]
        channels.is_active[c] = False
        if channels.running[c] >= 0:
            continue
        r = _next_transfer(w, mode, c)
        if r < 0:
            continue
        tensor = w.requests.tensor[r]
        source = w.device[arrays.producer[tensor]]
        cost = arrays.transfer[tensor, arrays.link_class[source, w.requests.destination[r]]]
        if time + w.cutoff.load[c] - w.cutoff.carried[c] > w.cutoff.limit[0]:
            w.counter[LATE] += 1
        w.cutoff.carried[c] += cost
        channels.running[c] = r
        w.requests.start[r] = time
        w.requests.finish[r] = time + cost
        push(channels.event_key, channels.event_channel, 0, w.counter[EVENTS], time + cost, c)
        w.counter[EVENTS] += 1
        if cost == 0:
            instant = True
    w.counter[ACTIVE] = 0
    return instant


@inlined
def _next_op(w: Workspace, mode: int, d: int, time: int) -> np.int64:
    """Take the next op of device d; -1 if none may start now, then `next_time` says when to look
    again.
    """
    queues = w.queues
    base = queues.first[d]
    op = np.int64(-1)
    if mode == PLANNED:
        at = w.plan.op_at[d]
        w.next_time[d] = _NEVER
        if at < queues.first[d + 1] and w.pending[queues.op[at]] == 0:
            if w.ready[queues.op[at]] > time:
                w.next_time[d] = w.ready[queues.op[at]]
            else:
                op = np.int64(queues.op[at])
                w.plan.op_at[d] += 1
        return op
    if mode == PRIORITY:
        while queues.later_size[d] > 0 and queues.later_key[base] <= time:
            later = queues.later_op[base]
            pop(queues.later_key, queues.later_op, base, queues.later_size[d])
            queues.later_size[d] -= 1
            push(queues.key, queues.op, base, queues.size[d], w.rank[later], later)
            queues.size[d] += 1
    if queues.size[d] == 0:
        w.next_time[d] = (
            queues.later_key[base] if mode == PRIORITY and queues.later_size[d] > 0 else _NEVER
        )
    elif mode == FIFO and queues.key[base] > time:
        w.next_time[d] = queues.key[base]
    else:
        op = np.int64(queues.op[base])
        pop(queues.key, queues.op, base, queues.size[d])
        queues.size[d] -= 1
    return op


@inlined
def _start_ops(w: Workspace, mode: int, time: int) -> bool:
    """Step 3: idle devices start one op each; return whether one takes no time.

    The order of devices cannot matter: starts do not interact.
    """
    instant = False
    for i in range(w.counter[TOUCHED]):
        d = w.touched[i]
        w.is_touched[d] = False
        if w.running[d] >= 0:
            continue
        op = _next_op(w, mode, d, time)
        if op < 0:
            continue
        cost = w.cost[op]
        if time + max(w.cutoff.left[d], w.cutoff.tail[op]) > w.cutoff.limit[0]:
            w.counter[LATE] += 1
        w.cutoff.left[d] -= cost
        w.running[d] = op
        w.start[op] = time
        w.finish[op] = time + cost
        w.next_time[d] = time + cost
        if cost == 0:
            instant = True
    w.counter[TOUCHED] = 0
    return instant


@inlined
def _advance(w: Workspace, k: int) -> tuple[int, int, int]:
    """Step 4: return the time of the next event and the range of devices that it may concern."""
    soonest = _NEVER
    first = 0
    together = 0
    for d in range(k):
        if w.next_time[d] < soonest:
            soonest = w.next_time[d]
            first = d
            together = 1
        elif w.next_time[d] == soonest:
            together += 1
    if w.counter[EVENTS] > 0 and w.channels.event_key[0] < soonest:
        soonest = w.channels.event_key[0]
        together = 0
    if together == 1:
        return soonest, first, first + 1
    return soonest, 0, k if together > 0 else 0


@inlined
def _complete_transfers(arrays: ProblemArrays, w: Workspace, mode: int, time: int) -> None:
    """Step 1 for transfers: free their channels; their tensor is available to its readers there."""
    channels = w.channels
    while w.counter[EVENTS] > 0 and channels.event_key[0] == time:
        c = channels.event_channel[0]
        pop(channels.event_key, channels.event_channel, 0, w.counter[EVENTS])
        w.counter[EVENTS] -= 1
        r = channels.running[c]
        channels.running[c] = -1
        _add(channels.active, channels.is_active, w.counter, ACTIVE, c)
        tensor = w.requests.tensor[r]
        d = w.requests.destination[r]
        for e in row_of(arrays.consumer_ptr, tensor):
            v = arrays.consumer[e]
            if w.device[v] == d:
                _arrive(w, mode, v, d, time, time)


@inlined
def _request(
    arrays: ProblemArrays, w: Workspace, mode: int, tensor: int, source: int, spots: int, time: int
) -> None:
    """Queue the transfers of a tensor to the first `spots` destinations in `w.spots`."""
    requests = w.requests
    for i in range(spots):
        d = w.spots[i]
        c = arrays.channel[source, d]
        if mode == PLANNED:
            r = w.plan.pair_ptr[tensor]
            while requests.destination[r] != d:
                r += 1
            w.plan.requested[r] = True
        else:
            r = w.counter[REQUESTS]
            requests.key[r] = time if mode == FIFO else w.best_rank[d]
            requests.tensor[r] = tensor
            requests.destination[r] = d
            requests.left[r] = -1
            requests.right[r] = -1
            w.channels.root[c] = _merged(w, w.channels.root[c], r)
        w.counter[REQUESTS] += 1
        _add(w.channels.active, w.channels.is_active, w.counter, ACTIVE, c)


@inlined
def _complete_op(
    arrays: ProblemArrays, w: Workspace, mode: int, u: int, source: int, time: int
) -> None:
    """Step 1 for one op: its outputs arrive at its own device, travel, or ask for a channel."""
    spots = 0
    last = arrays.edge_ptr[u + 1]
    one_class = arrays.transfer.shape[1] == 1
    contended = arrays.num_channels > 0
    for e in range(arrays.edge_ptr[u], last):
        v = arrays.edge_op[e]
        d = w.device[v]
        arrival = time
        if d != source:
            tensor = arrays.edge_tensor[e]
            if contended and arrays.channel[source, d] >= 0:
                # A request appears once per (tensor, destination); it is queued at the tensor's
                # last edge.
                if w.stamp[d] != tensor:
                    w.stamp[d] = tensor
                    w.best_rank[d] = w.rank[v]
                    w.spots[spots] = d
                    spots += 1
                elif w.rank[v] < w.best_rank[d]:
                    w.best_rank[d] = w.rank[v]
                arrival = -1
            else:
                arrival = (
                    time + arrays.transfer[tensor, 0 if one_class else arrays.link_class[source, d]]
                )
        if arrival >= 0:
            _arrive(w, mode, v, d, arrival, time)
        if spots > 0 and (e + 1 == last or arrays.edge_tensor[e + 1] != arrays.edge_tensor[e]):
            _request(arrays, w, mode, arrays.edge_tensor[e], source, spots, time)
            spots = 0


@inlined
def _complete_ops(
    arrays: ProblemArrays, w: Workspace, mode: int, time: int, begin: int, end: int
) -> None:
    """Step 1 for the ops on devices begin..end, and wake devices whose next op is ready now."""
    for source in range(begin, end):
        if w.next_time[source] != time:
            continue
        _add(w.touched, w.is_touched, w.counter, TOUCHED, source)
        u = w.running[source]
        if u >= 0:
            w.running[source] = -1
            w.next_time[source] = _NEVER
            w.counter[DONE] += 1
            _complete_op(arrays, w, mode, u, source, time)


@uncounted_kernel
def simulate(arrays: ProblemArrays, w: Workspace, mode: int) -> tuple[np.int64, np.int64]:
    """Execute the placement in `w`; fill `w.start` and `w.finish`; return (makespan, number of
    contended requests).

    `w.device` must be compatible with every op; `w.rank` is 0 in the mode FIFO. The makespan is
    DEADLOCK if a planned order cannot be executed, or not within the limit of `w.cutoff`.
    """
    n, k = arrays.compute.shape
    time = np.int64(0)
    while True:
        instant = False
        if w.counter[ACTIVE] > 0:
            instant = _start_transfers(arrays, w, mode, time)
        if not instant:
            instant = _start_ops(w, mode, time)
            if w.counter[LATE] > 0:
                return DEADLOCK, w.counter[REQUESTS]
        begin, end = 0, k
        if not instant:
            if w.counter[DONE] == n:
                break
            time, begin, end = _advance(w, k)
            if time == _NEVER:
                return DEADLOCK, w.counter[REQUESTS]
        _complete_transfers(arrays, w, mode, time)
        _complete_ops(arrays, w, mode, time, begin, end)
    return time, w.counter[REQUESTS]


# --- one placement after the other
# ---------------------------------------------------------------------


@uncounted_kernel
def execute(arrays: ProblemArrays, w: Workspace, mode: int) -> tuple[np.int64, np.int64]:
    """Prepare the workspace and simulate the placement in it."""
    _reset(arrays, w, mode)
    if mode == PLANNED:
        order_ops(arrays, w)
        if arrays.num_channels > 0:
            order_transfers(arrays, w)
    return simulate(arrays, w, mode)


@inlined
def _allowed(arrays: ProblemArrays, w: Workspace) -> bool:
    """Whether the placement in `w` satisfies compatibility, colocation and static capacity."""
    n, k = arrays.compute.shape
    w.group_device[:] = -1
    w.load[:] = 0
    for op in range(n):
        d = w.device[op]
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


@uncounted_kernel
def _load(w: Workspace, devices: SmallInts, ranks: Ints, row: int) -> None:
    """Copy one row of placements into the workspace; one row of ranks for all is copied once."""
    for op in range(devices.shape[1]):
        w.device[op] = devices[row, op]
    if ranks.shape[0] > row:
        for op in range(devices.shape[1]):
            w.rank[op] = ranks[row, op]


class Trace(NamedTuple):
    """What happens in the execution of one placement; empty arrays where only the makespans of many
    are asked for.
    """

    start: Ints  # (n,)
    finish: Ints  # (n,)
    requests: Ints  # (4, edges) tensor, destination, start, finish of the contended transfers
    num_requests: Ints  # (1,) how many of them there are
    peak: Ints  # (k,) bytes


@inner_kernel
def _keep(arrays: ProblemArrays, w: Workspace, num_requests: int, trace: Trace) -> None:
    """Copy the execution in `w`."""
    trace.start[:], trace.finish[:] = w.start, w.finish
    for r in range(num_requests):
        trace.requests[0, r], trace.requests[1, r] = w.requests.tensor[r], w.requests.destination[r]
        trace.requests[2, r], trace.requests[3, r] = w.requests.start[r], w.requests.finish[r]
    trace.num_requests[0] = num_requests
    trace.peak[:] = peak_memory(arrays, w, num_requests)


@entry
def batch(
    arrays: ProblemArrays, devices: SmallInts, ranks: Ints, mode: int, out: Ints, trace: Trace
) -> None:
    """Makespan of every row of `devices` into `out`; INFEASIBLE where a constraint is broken or
    nothing can be executed.

    `ranks` has no row (mode FIFO), one row for all placements, or one row each. With a trace the
    one placement is executed whatever constraints it breaks.
    """
    w = make_workspace(arrays)
    traced = len(trace.start) > 0
    for row in range(devices.shape[0]):
        out[row] = INFEASIBLE
        _load(w, devices, ranks, row)
        if traced or _allowed(arrays, w):
            makespan, requests = execute(arrays, w, mode)
            if makespan == DEADLOCK:
                continue
            if traced:
                _keep(arrays, w, requests, trace)
            elif arrays.peak_memory and too_full(arrays, w, requests):
                continue
            out[row] = makespan


RISING = np.int64(-1)
"""A sign of `argsort`; typed, for a plain number is a type of its own to numba."""


@inner_kernel
def _sorted(values: Ints) -> Ints:
    """Indices of `values` by value, ties by index."""
    key, order = _ints(len(values)), _ints(len(values))
    argsort(values, len(values), RISING, key, order)
    return order


@inner_kernel
def _lives(arrays: ProblemArrays, w: Workspace, num_requests: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (begin, end, device, bytes) of every stay of a tensor on a device."""
    m = arrays.producer.shape[0]
    room = m + arrays.consumer.shape[0]
    begin = _ints(room)
    end = _ints(room)
    where = _ints(room)
    size = _ints(room)
    slot = np.full(arrays.compute.shape[1], -1, np.int64)
    by_tensor = _sorted(w.requests.tensor[:num_requests])
    count = r = 0
    for tensor in range(m):
        u = arrays.producer[tensor]
        source = w.device[u]
        home = count
        begin[home], end[home], where[home] = w.start[u], w.finish[u], source
        count += 1
        slot[source] = home
        while r < num_requests and w.requests.tensor[by_tensor[r]] == tensor:
            request = by_tensor[r]
            r += 1
            d = w.requests.destination[request]
            begin[count], end[count], where[count] = (
                w.requests.start[request],
                w.requests.finish[request],
                d,
            )
            slot[d] = count
            end[home] = max(end[home], end[count])
            count += 1
        for e in row_of(arrays.consumer_ptr, tensor):
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


@inner_kernel
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


@inner_kernel
def too_full(arrays: ProblemArrays, w: Workspace, num_requests: int) -> bool:
    """Whether some device ever holds more than its capacity in the schedule in `w`."""
    peak = peak_memory(arrays, w, num_requests)
    for d in range(len(peak)):
        if peak[d] > arrays.capacity[d]:
            return True
    return False
