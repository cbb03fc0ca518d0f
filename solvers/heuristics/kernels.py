"""Compiled kernels of the list schedulers, and the arrays that they read.

A list scheduler takes ready ops one by one and gives each a device and a start. All of them here follow
the model of `PlacementProblem`: incompatible devices, resident bytes and colocation groups are respected
(a whole group is reserved on the device of its first member), links have classes, a tensor is sent once to
each device, and where transfers share channels the schedule may account for it.

Everything that a jitted function calls lives in this file, because numba's cache does not notice edits in
another one.
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from placeopt.solvers.heuristics.ranks import priority_list as priority_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.units import Units

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FAR = 2**62
"""A time later than every schedule ends."""

NONE = -1


class GraphArrays(NamedTuple):
    """The arrays of a problem that the kernels read."""

    compute: Ints  # (num_ops, num_devices) ticks, -1 where incompatible
    order: Ints  # (num_ops,) a topological order
    pred_ptr: Ints  # (num_ops + 1,)
    pred_op: Ints  # (num_edges,)
    pred_tensor: Ints  # (num_edges,)
    succ_ptr: Ints  # (num_ops + 1,)
    succ_op: Ints  # (num_edges,)
    succ_tensor: Ints  # (num_edges,)
    transfer: Ints  # (num_tensors, num_classes) ticks
    link_class: Ints  # (num_devices, num_devices)
    channel: Ints  # (num_devices, num_devices), -1 for no contention


class Plan(NamedTuple):
    """A complete schedule of ops; `overflow` is set where a unit found no device with space."""

    device: Ints  # (num_ops,)
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    overflow: bool


# --- shared by the schedulers ----------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _reserve(units: Units, pinned: Ints) -> tuple[Ints, Ints]:
    """Return (device of each unit or -1, free bytes of each device) with the pinned units charged."""
    home = pinned.copy()
    free = units.capacity.copy()
    for unit in range(len(home)):
        if home[unit] >= 0:
            free[home[unit]] -= units.bytes[unit]
    return home, free


@njit(cache=True, nogil=True, inline="always")
def _fits(units: Units, home: Ints, free: Ints, unit: int, device: int) -> bool:
    """Whether `unit` is on `device` or may still go there."""
    if home[unit] >= 0:
        return bool(home[unit] == device)
    return bool(units.allowed[unit, device] and units.bytes[unit] <= free[device])


@njit(cache=True, nogil=True)
def _roomiest(units: Units, free: Ints, unit: int) -> int:
    """Device for a unit that fits nowhere: the compatible one with the most bytes left; repaired later."""
    best = -1
    for device in range(len(free)):
        if units.allowed[unit, device] and (best < 0 or free[device] > free[best]):
            best = device
    return best


@njit(cache=True, nogil=True)
def _settle(units: Units, home: Ints, free: Ints, unit: int, device: int) -> None:
    """Reserve the whole of `unit` on `device` at its first member."""
    if home[unit] < 0:
        home[unit] = device
        free[device] -= units.bytes[unit]


@njit(cache=True, nogil=True, inline="always")
def _data_ready(graph: GraphArrays, device_of: Ints, finish: Ints, op: int, device: int) -> int:
    """Time at which all inputs of `op` are on `device`, transfers never waiting for each other."""
    ready = np.int64(0)
    for e in range(graph.pred_ptr[op], graph.pred_ptr[op + 1]):
        source = graph.pred_op[e]
        arrival = finish[source]
        if device_of[source] != device:
            arrival += graph.transfer[graph.pred_tensor[e], graph.link_class[device_of[source], device]]
        ready = max(ready, arrival)
    return ready


# --- list scheduling in a given order (HEFT, CPOP, PEFT) ---------------------------------------------------


@njit(cache=True, nogil=True)
def _latest_last(graph: GraphArrays, finish: Ints, op: int, entries: Ints) -> int:
    """Write the in-edges of `op` to `entries` by finish of the producer; return how many there are."""
    count = 0
    for e in range(graph.pred_ptr[op], graph.pred_ptr[op + 1]):
        at = count
        while at > 0 and finish[graph.pred_op[entries[at - 1]]] > finish[graph.pred_op[e]]:
            entries[at] = entries[at - 1]
            at -= 1
        entries[at] = e
        count += 1
    return count


@njit(cache=True, nogil=True)
def _data_ready_on_channels(
    graph: GraphArrays, device_of: Ints, finish: Ints, arrived: Ints, busy: Ints, trial: Ints, entries: Ints,
    count: int, device: int, commit: bool,
) -> int:  # fmt: skip
    """Time at which all inputs are on `device` when each is appended to the queue of its channel.

    `arrived[tensor, device]` is -1 until a tensor was sent there; `busy` is the end of the last transfer of
    each channel, `trial` scratch of its size. With `commit` the transfers stay.
    """
    ready = np.int64(0)
    for i in range(count):  # forget the trial of another device
        source = device_of[graph.pred_op[entries[i]]]
        if source != device and graph.channel[source, device] >= 0:
            trial[graph.channel[source, device]] = busy[graph.channel[source, device]]
    for i in range(count):
        e = entries[i]
        source, tensor = device_of[graph.pred_op[e]], graph.pred_tensor[e]
        arrival = finish[graph.pred_op[e]]
        if source != device:
            if arrived[tensor, device] >= 0:
                arrival = arrived[tensor, device]
            else:
                lane = graph.channel[source, device]
                if lane >= 0:
                    arrival = max(arrival, trial[lane])
                arrival += graph.transfer[tensor, graph.link_class[source, device]]
                if lane >= 0:
                    trial[lane] = arrival
                if commit:
                    arrived[tensor, device] = arrival
                    if lane >= 0:
                        busy[lane] = arrival
        ready = max(ready, arrival)
    return ready


class Timeline(NamedTuple):
    """Ops of each device in time order, and the idle gaps between them, as doubly linked lists.

    The gaps are kept beside the ops because a busy device has many ops and few gaps.
    """

    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    before: Ints  # (num_ops,) op before, -1 for none
    behind: Ints  # (num_ops,) op behind, -1 for none
    last: Ints  # (num_devices,) last op, -1 for none
    gap_start: Ints  # (num_ops + num_devices,)
    gap_end: Ints
    gap_before: Ints  # earlier gap of the device, -1 for none
    gap_behind: Ints
    gap_op: Ints  # op that ends where the gap starts, -1 for the start of time
    last_gap: Ints  # (num_devices,) the gap after the last op; it never ends
    gaps: Ints  # (1,) number of gap records in use


@njit(cache=True, nogil=True)
def _empty_timeline(n: int, k: int) -> Timeline:
    timeline = Timeline(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64), np.full(n, -1, np.int64),
        np.full(k, -1, np.int64), np.zeros(n + k, np.int64), np.full(n + k, FAR, np.int64),
        np.full(n + k, -1, np.int64), np.full(n + k, -1, np.int64), np.full(n + k, -1, np.int64),
        np.arange(k), np.zeros(1, np.int64),
    )  # fmt: skip
    timeline.gaps[0] = k
    return timeline


@njit(cache=True, nogil=True, inline="always")
def _earliest_gap(timeline: Timeline, device: int, ready: int, duration: int) -> tuple[int, int]:
    """Earliest start >= `ready` at which the device is idle for `duration`, and the gap it is in.

    Gaps are tried from the last one back, as ops come roughly in time order; the walk ends at the first gap
    that starts no later than `ready`. An op that takes no time also fits where two ops meet: the gap is -1 then.
    """
    gap = timeline.last_gap[device]
    best, best_gap = np.int64(FAR), np.int64(NONE)
    while gap >= 0:
        begin = max(ready, timeline.gap_start[gap])
        if begin + duration <= timeline.gap_end[gap]:
            best, best_gap = begin, gap
        if timeline.gap_start[gap] <= ready:
            break
        gap = timeline.gap_before[gap]
    if duration == 0:
        op = timeline.last[device]
        while op >= 0 and timeline.start[op] >= ready and timeline.before[op] >= 0:
            op = timeline.before[op]
        begin = ready
        if op >= 0 and timeline.start[op] < ready:
            begin = max(ready, timeline.finish[op])
        if begin < best:
            best, best_gap = begin, np.int64(NONE)
    return best, best_gap


@njit(cache=True, nogil=True)
def _insert(timeline: Timeline, device: int, op: int, begin: int, duration: int, gap: int) -> None:
    """Put `op` into `gap` of the device, or (gap -1) between two ops that meet at `begin`."""
    end = begin + duration
    timeline.start[op], timeline.finish[op] = begin, end
    if gap >= 0:
        previous = timeline.gap_op[gap]
        limit, later = timeline.gap_end[gap], timeline.gap_behind[gap]
        if begin > timeline.gap_start[gap]:
            timeline.gap_end[gap] = begin
            if end < limit:  # what remains behind the op is a gap of its own
                rest = timeline.gaps[0]
                timeline.gaps[0] += 1
                timeline.gap_start[rest], timeline.gap_end[rest], timeline.gap_op[rest] = end, limit, op
                timeline.gap_before[rest], timeline.gap_behind[rest] = gap, later
                timeline.gap_behind[gap] = rest
                if later >= 0:
                    timeline.gap_before[later] = rest
                else:
                    timeline.last_gap[device] = rest
        elif end < limit:
            timeline.gap_start[gap], timeline.gap_op[gap] = end, op
        else:  # filled exactly
            earlier = timeline.gap_before[gap]
            if earlier >= 0:
                timeline.gap_behind[earlier] = later
            if later >= 0:
                timeline.gap_before[later] = earlier
    else:
        previous = timeline.last[device]
        while previous >= 0 and timeline.finish[previous] > begin:
            previous = timeline.before[previous]
    timeline.before[op] = previous
    if previous == timeline.last[device]:
        timeline.last[device] = op
    elif previous >= 0:
        timeline.behind[op] = timeline.behind[previous]
        timeline.before[timeline.behind[op]] = op
    else:
        first = timeline.last[device]
        while timeline.before[first] >= 0:
            first = timeline.before[first]
        timeline.behind[op] = first
        timeline.before[first] = op
    if previous >= 0:
        timeline.behind[previous] = op


@njit(cache=True, nogil=True)
def schedule_in_order(
    graph: GraphArrays, units: Units, sequence: Ints, bias: Floats, pinned: Ints, insertion: bool,
    contention: bool,
) -> Plan:  # fmt: skip
    """Give each op of `sequence` (topological) the device of its smallest finish + bias.

    Parameters
    ----------
    bias : ticks added to the finish when devices are compared, shape (num_ops, num_devices); shape (0, 0)
        for none. Ties go to the earlier finish, then to the lower device.
    pinned : device of each unit that is fixed beforehand, -1 elsewhere.
    insertion : use idle gaps between ops already scheduled.
    contention : queue transfers on their channels (in the order of scheduling).
    """
    n, k = graph.compute.shape
    device_of = np.full(n, -1, np.int64)
    timeline = _empty_timeline(n, k)
    finish = timeline.finish
    home, free = _reserve(units, pinned)
    lanes = graph.channel.max() + 1 if contention else 0
    arrived = np.full((len(graph.transfer), k) if contention else (0, k), -1, np.int64)
    busy, trial = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    entries = np.zeros((graph.pred_ptr[1:] - graph.pred_ptr[:-1]).max(), np.int64)
    biased = len(bias) > 0
    overflow = False
    for op in sequence:
        unit = units.unit[op]
        count = _latest_last(graph, finish, op, entries) if contention else 0
        best_device, best_start, best_gap = -1, np.int64(FAR), np.int64(NONE)
        best_score, best_finish = np.inf, np.int64(FAR)
        forced = -1
        while best_device < 0:
            for device in range(k):
                if device != forced and not _fits(units, home, free, unit, device):
                    continue
                if contention:
                    ready = _data_ready_on_channels(
                        graph, device_of, finish, arrived, busy, trial, entries, count, device, False
                    )
                else:
                    ready = _data_ready(graph, device_of, finish, op, device)
                duration = graph.compute[op, device]
                if insertion:
                    begin, gap = _earliest_gap(timeline, device, ready, duration)
                else:
                    gap = timeline.last_gap[device]
                    begin = max(ready, timeline.gap_start[gap])
                end = begin + duration
                score = end + bias[op, device] if biased else 0.0
                if score < best_score or (score == best_score and end < best_finish):
                    best_score, best_finish = score, end
                    best_device, best_start, best_gap = device, begin, gap
            if best_device < 0:
                overflow = True
                forced = _roomiest(units, free, unit)
        _settle(units, home, free, unit, best_device)
        if contention:
            _data_ready_on_channels(
                graph, device_of, finish, arrived, busy, trial, entries, count, best_device, True
            )
        device_of[op] = best_device
        _insert(timeline, best_device, op, best_start, best_finish - best_start, best_gap)
    return Plan(device_of, timeline.start, finish, overflow)


# --- list scheduling by time (ETF, m-ETF) ------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _earliest_pair(
    units: Units, home: Ints, free: Ints, unscheduled: Any, open_at: Ints, pending: Any, available: Any
) -> tuple[int, int, int]:
    """Return (op, device, start) of the earliest start, ties by list position, then device; op -1 for none.

    `pending[device]` holds (data ready, position, op) not before the device is open, `available[device]`
    (position, op) whose data is there; entries of scheduled ops and of ops that no longer fit are dropped here.
    """
    best_op, best_device, best_start, best_position = -1, -1, np.int64(FAR), np.int64(FAR)
    for device in range(len(open_at)):
        later, now = pending[device], available[device]
        while len(later) > 0 and later[0][0] <= open_at[device]:
            entry = heapq.heappop(later)
            heapq.heappush(now, (entry[1], entry[2]))
        while len(now) > 0 and not (
            unscheduled[now[0][1]] and _fits(units, home, free, units.unit[now[0][1]], device)
        ):
            heapq.heappop(now)
        if len(now) > 0:
            position, op = now[0]
            begin = open_at[device]
        else:
            while len(later) > 0 and not (
                unscheduled[later[0][2]] and _fits(units, home, free, units.unit[later[0][2]], device)
            ):
                heapq.heappop(later)
            if len(later) == 0:
                continue
            begin, position, op = later[0]
        if begin < best_start or (begin == best_start and position < best_position):
            best_op, best_device, best_start, best_position = op, device, begin, position
    return best_op, best_device, best_start


@njit(cache=True, nogil=True)
def schedule_by_time(graph: GraphArrays, units: Units, position: Ints, pinned: Ints) -> Plan:
    """Earliest task first: of all ready ops and devices start the pair that can start earliest.

    Ties go to the smallest `position`, then to the lowest device. Data-ready times are fixed once all
    producers are scheduled, so each device keeps its ready ops in two heaps: O(n k log n) instead of the
    textbook scan of all ready ops and devices at every step.
    """
    n, k = graph.compute.shape
    device_of = np.full(n, -1, np.int64)
    start, finish = np.zeros(n, np.int64), np.zeros(n, np.int64)
    home, free = _reserve(units, pinned)
    waiting = graph.pred_ptr[1:] - graph.pred_ptr[:-1]
    open_at = np.zeros(k, np.int64)
    unscheduled = np.ones(n, np.bool_)
    pending = [[(np.int64(0), np.int64(0), np.int64(0))] for _ in range(k)]
    available = [[(np.int64(0), np.int64(0))] for _ in range(k)]
    for device in range(k):
        pending[device].clear()
        available[device].clear()
    ready = np.zeros(n, np.bool_)
    for op in range(n):
        if waiting[op] == 0:
            ready[op] = True
            for device in range(k):
                if graph.compute[op, device] >= 0:
                    heapq.heappush(pending[device], (np.int64(0), position[op], np.int64(op)))
    overflow = False
    for _ in range(n):
        op, device, begin = _earliest_pair(units, home, free, unscheduled, open_at, pending, available)
        if op < 0:  # every ready op found its devices full: take the first one all the same
            overflow = True
            for candidate in range(n):
                if ready[candidate] and unscheduled[candidate] and (op < 0 or position[candidate] < position[op]):
                    op = candidate
            device = _roomiest(units, free, units.unit[op])
            begin = max(open_at[device], _data_ready(graph, device_of, finish, op, device))
        _settle(units, home, free, units.unit[op], device)
        device_of[op], start[op], finish[op] = device, begin, begin + graph.compute[op, device]
        open_at[device] = finish[op]
        unscheduled[op] = False
        for e in range(graph.succ_ptr[op], graph.succ_ptr[op + 1]):
            child = graph.succ_op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                ready[child] = True
                for there in range(k):
                    if graph.compute[child, there] >= 0:
                        arrival = _data_ready(graph, device_of, finish, child, there)
                        heapq.heappush(pending[there], (arrival, position[child], child))
    return Plan(device_of, start, finish, overflow)


@njit(cache=True, nogil=True)
def schedule_with_favourites(
    graph: GraphArrays, units: Units, position: Ints, favourite: Ints, pinned: Ints
) -> Plan:
    """Earliest task first with favourite children (SCT, Hanen and Munier; m-SCT of Baechi).

    After op i a device is *awake*: it waits for i's favourite child until that child's data could have come
    from elsewhere. Meanwhile it takes only *urgent* ops, whose data is already everywhere when it is free.
    `favourite[op]` is a child or -1; every op is the favourite of at most one.
    """
    n, k = graph.compute.shape
    device_of = np.full(n, -1, np.int64)
    start, finish = np.zeros(n, np.int64), np.zeros(n, np.int64)
    home, free = _reserve(units, pinned)
    waiting = graph.pred_ptr[1:] - graph.pred_ptr[:-1]
    open_at = np.zeros(k, np.int64)
    awaited = np.full(k, -1, np.int64)  # favourite child that the device waits for
    awake_until = np.zeros(k, np.int64)
    data_ready = np.zeros((n, k), np.int64)
    latest = np.zeros(n, np.int64)  # data is on every device from here on
    ready = np.empty(n, np.int64)
    count = 0
    for op in range(n):
        if waiting[op] == 0:
            ready[count] = op
            count += 1
    overflow = False
    for _ in range(n):
        best_slot, best_device, best_start, best_position = -1, -1, np.int64(FAR), np.int64(FAR)
        for slot in range(count):
            op = ready[slot]
            for device in range(k):
                if graph.compute[op, device] < 0 or not _fits(units, home, free, units.unit[op], device):
                    continue
                begin = max(open_at[device], data_ready[op, device])
                waits = awaited[device] >= 0 and awaited[device] != op and device_of[awaited[device]] < 0
                if waits and latest[op] > open_at[device]:  # awake, and op is not urgent
                    begin = max(begin, awake_until[device])
                if begin < best_start or (begin == best_start and position[op] < best_position):
                    best_slot, best_device, best_start, best_position = slot, device, begin, position[op]
        if best_slot < 0:
            overflow = True
            for slot in range(count):
                if position[ready[slot]] < best_position:
                    best_slot, best_position = slot, position[ready[slot]]
            op = ready[best_slot]
            best_device = _roomiest(units, free, units.unit[op])
            best_start = max(open_at[best_device], data_ready[op, best_device])
        op, device = ready[best_slot], best_device
        ready[best_slot] = ready[count - 1]
        count -= 1
        _settle(units, home, free, units.unit[op], device)
        device_of[op], start[op], finish[op] = device, best_start, best_start + graph.compute[op, device]
        open_at[device] = finish[op]
        child = favourite[op]
        if child >= 0 and device_of[child] < 0 and _fits(units, home, free, units.unit[child], device):
            awaited[device] = child
            slowest = np.int64(0)
            for e in range(graph.succ_ptr[op], graph.succ_ptr[op + 1]):
                if graph.succ_op[e] == child:
                    for there in range(k):
                        if there != device:
                            link = graph.link_class[device, there]
                            slowest = max(slowest, graph.transfer[graph.succ_tensor[e], link])
            awake_until[device] = finish[op] + slowest
        else:
            awaited[device] = -1
        for e in range(graph.succ_ptr[op], graph.succ_ptr[op + 1]):
            child = graph.succ_op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                for there in range(k):
                    data_ready[child, there] = _data_ready(graph, device_of, finish, child, there)
                    latest[child] = max(latest[child], data_ready[child, there])
                ready[count] = child
                count += 1
    return Plan(device_of, start, finish, overflow)


# --- critical path with random ties (Doppler) --------------------------------------------------------------


@njit(cache=True, nogil=True)
def schedule_earliest_start(
    graph: GraphArrays, units: Units, sequence: Ints, turn: Ints, pinned: Ints
) -> Plan:
    """Give each op of `sequence` (topological) the device of its earliest start, without insertion.

    Ties are broken by trying the devices from `turn[op]` (mod num_devices) on.
    """
    n, k = graph.compute.shape
    device_of = np.full(n, -1, np.int64)
    start, finish = np.zeros(n, np.int64), np.zeros(n, np.int64)
    home, free = _reserve(units, pinned)
    open_at = np.zeros(k, np.int64)
    overflow = False
    for op in sequence:
        unit = units.unit[op]
        best_device, best_start = -1, np.int64(FAR)
        for offset in range(k):
            device = (turn[op] + offset) % k
            if not _fits(units, home, free, unit, device):
                continue
            begin = max(open_at[device], _data_ready(graph, device_of, finish, op, device))
            if begin < best_start:
                best_device, best_start = device, begin
        if best_device < 0:
            overflow = True
            best_device = _roomiest(units, free, unit)
            best_start = max(open_at[best_device], _data_ready(graph, device_of, finish, op, best_device))
        _settle(units, home, free, unit, best_device)
        device_of[op], start[op] = best_device, best_start
        finish[op] = best_start + graph.compute[op, best_device]
        open_at[best_device] = finish[op]
    return Plan(device_of, start, finish, overflow)
