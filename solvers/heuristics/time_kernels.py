"""Compiled list schedulers that choose op and device by time: ETF, favourite children, critical path.

See `insertion_kernels` for the model that all list schedulers follow.
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.compiled import entry, inlined, inner, uncounted
from placeopt.solvers.heuristics.insertion_kernels import FAR, ListSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.projection import CostArrays, GraphArrays
    from placeopt.model.units import Units

    Ints = NDArray[np.int64]

# --- shared by the schedulers ----------------------------------------------------------------------------


@inner
def _reserve(units: Units, pinned: Ints) -> tuple[Ints, Ints]:
    """Return (device of each unit or -1, free bytes of each device) with the pinned units charged."""
    home = pinned.copy()
    free = units.capacity.copy()
    for unit in range(len(home)):
        if home[unit] >= 0:
            free[home[unit]] -= units.bytes[unit]
    return home, free


@inlined
def _fits(units: Units, home: Ints, free: Ints, unit: int, device: int) -> bool:
    """Whether `unit` is on `device` or may still go there."""
    if home[unit] >= 0:
        return bool(home[unit] == device)
    return bool(units.allowed[unit, device] and units.bytes[unit] <= free[device])


@uncounted
def _roomiest(units: Units, free: Ints, unit: int) -> int:
    """Device for a unit that fits nowhere: the compatible one with the most bytes left; repaired later."""
    best = -1
    for device in range(len(free)):
        if units.allowed[unit, device] and (best < 0 or free[device] > free[best]):
            best = device
    return best


@inlined
def _settle(units: Units, home: Ints, free: Ints, unit: int, device: int) -> None:
    """Reserve the whole of `unit` on `device` at its first member."""
    if home[unit] < 0:
        home[unit] = device
        free[device] -= units.bytes[unit]


@inlined
def _data_ready(graph: GraphArrays, costs: CostArrays, device_of: Ints, finish: Ints, op: int, device: int) -> int:
    """Time at which all inputs of `op` are on `device`, transfers never waiting for each other."""
    ready = np.int64(0)
    for e in range(graph.predecessors.pointer[op], graph.predecessors.pointer[op + 1]):
        source = graph.predecessors.op[e]
        arrival = finish[source]
        if device_of[source] != device:
            arrival += costs.transfer[graph.predecessors.tensor[e], costs.link_class[device_of[source], device]]
        ready = max(ready, arrival)
    return ready


# --- list scheduling by time (ETF, m-ETF) ------------------------------------------------------------------


@inner
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


@entry
def schedule_by_time(graph: GraphArrays, costs: CostArrays, units: Units, position: Ints, pinned: Ints) -> ListSchedule:
    """Earliest task first: of all ready ops and devices start the pair that can start earliest.

    Ties go to the smallest `position`, then to the lowest device. Data-ready times are fixed once all
    producers are scheduled, so each device keeps its ready ops in two heaps: O(n k log n) instead of the
    textbook scan of all ready ops and devices at every step.
    """
    n, k = costs.compute.shape
    device_of = np.full(n, -1, np.int64)
    start, finish = np.zeros(n, np.int64), np.zeros(n, np.int64)
    home, free = _reserve(units, pinned)
    waiting = graph.predecessors.pointer[1:] - graph.predecessors.pointer[:-1]
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
                if costs.compute[op, device] >= 0:
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
            begin = max(open_at[device], _data_ready(graph, costs, device_of, finish, op, device))
        _settle(units, home, free, units.unit[op], device)
        device_of[op], start[op], finish[op] = device, begin, begin + costs.compute[op, device]
        open_at[device] = finish[op]
        unscheduled[op] = False
        for e in range(graph.successors.pointer[op], graph.successors.pointer[op + 1]):
            child = graph.successors.op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                ready[child] = True
                for there in range(k):
                    if costs.compute[child, there] >= 0:
                        arrival = _data_ready(graph, costs, device_of, finish, child, there)
                        heapq.heappush(pending[there], (arrival, position[child], child))
    return ListSchedule(device_of, start, finish, overflow)


class Favourites(NamedTuple):
    """What the devices wait for, and when data is where."""

    device_of: Ints  # (num_ops,) device, -1 until scheduled
    open_at: Ints  # (num_devices,) end of the last op
    awaited: Ints  # (num_devices,) favourite child that the device waits for, -1 for none
    awake_until: Ints  # (num_devices,)
    data_ready: Ints  # (num_ops, num_devices)
    latest: Ints  # (num_ops,) data is on every device from here on


@uncounted
def _earliest_wakeful_pair(
    graph: GraphArrays, costs: CostArrays, units: Units, home: Ints, free: Ints, state: Favourites, ready: Ints, position: Ints
) -> tuple[int, int, int]:
    """Return (slot in `ready`, device, start) of the earliest start, ties by position; slot -1 for none."""
    best_slot, best_device, best_start, best_position = -1, -1, np.int64(FAR), np.int64(FAR)
    for slot in range(len(ready)):
        op = ready[slot]
        for device in range(len(free)):
            if costs.compute[op, device] < 0 or not _fits(units, home, free, units.unit[op], device):
                continue
            begin = max(state.open_at[device], state.data_ready[op, device])
            child = state.awaited[device]
            waits = child >= 0 and child != op and state.device_of[child] < 0
            if waits and state.latest[op] > state.open_at[device]:  # awake, and op is not urgent
                begin = max(begin, state.awake_until[device])
            if begin < best_start or (begin == best_start and position[op] < best_position):
                best_slot, best_device, best_start, best_position = slot, device, begin, position[op]
    return best_slot, best_device, best_start


@uncounted
def _slowest_way(graph: GraphArrays, costs: CostArrays, op: int, child: int, device: int) -> int:
    """Longest time of a tensor from `op` on `device` to `child` on another device."""
    slowest = np.int64(0)
    for e in range(graph.successors.pointer[op], graph.successors.pointer[op + 1]):
        if graph.successors.op[e] == child:
            for there in range(len(costs.link_class)):
                if there != device:
                    slowest = max(slowest, costs.transfer[graph.successors.tensor[e], costs.link_class[device, there]])
    return slowest


@entry
def schedule_with_favourites(
    graph: GraphArrays, costs: CostArrays, units: Units, position: Ints, favourite: Ints, pinned: Ints
) -> ListSchedule:
    """Earliest task first with favourite children (SCT, Hanen and Munier; m-SCT of Baechi).

    After op i a device is *awake*: it waits for i's favourite child until that child's data could have come
    from elsewhere. Meanwhile it takes only *urgent* ops, whose data is already everywhere when it is free.
    `favourite[op]` is a child or -1; every op is the favourite of at most one.
    """
    n, k = costs.compute.shape
    start, finish = np.zeros(n, np.int64), np.zeros(n, np.int64)
    home, free = _reserve(units, pinned)
    waiting = graph.predecessors.pointer[1:] - graph.predecessors.pointer[:-1]
    state = Favourites(
        np.full(n, -1, np.int64), np.zeros(k, np.int64), np.full(k, -1, np.int64), np.zeros(k, np.int64),
        np.zeros((n, k), np.int64), np.zeros(n, np.int64),
    )  # fmt: skip
    device_of, open_at = state.device_of, state.open_at
    ready = np.empty(n, np.int64)
    count = 0
    for op in range(n):
        if waiting[op] == 0:
            ready[count] = op
            count += 1
    overflow = False
    for _ in range(n):
        slot, device, begin = _earliest_wakeful_pair(graph, costs, units, home, free, state, ready[:count], position)
        if slot < 0:  # every ready op found its devices full: take the first one all the same
            overflow = True
            slot = np.argmin(position[ready[:count]])
            device = _roomiest(units, free, units.unit[ready[slot]])
            begin = max(open_at[device], state.data_ready[ready[slot], device])
        op = ready[slot]
        ready[slot] = ready[count - 1]
        count -= 1
        _settle(units, home, free, units.unit[op], device)
        device_of[op], start[op], finish[op] = device, begin, begin + costs.compute[op, device]
        open_at[device] = finish[op]
        child = favourite[op]
        state.awaited[device] = -1
        if child >= 0 and device_of[child] < 0 and _fits(units, home, free, units.unit[child], device):
            state.awaited[device] = child
            state.awake_until[device] = finish[op] + _slowest_way(graph, costs, op, child, device)
        for e in range(graph.successors.pointer[op], graph.successors.pointer[op + 1]):
            child = graph.successors.op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                for there in range(k):
                    state.data_ready[child, there] = _data_ready(graph, costs, device_of, finish, child, there)
                    state.latest[child] = max(state.latest[child], state.data_ready[child, there])
                ready[count] = child
                count += 1
    return ListSchedule(device_of, start, finish, overflow)


# --- critical path with random ties (Doppler) --------------------------------------------------------------


@entry
def schedule_earliest_start(
    graph: GraphArrays, costs: CostArrays, units: Units, sequence: Ints, turn: Ints, pinned: Ints
) -> ListSchedule:
    """Give each op of `sequence` (topological) the device of its earliest start, without insertion.

    Ties are broken by trying the devices from `turn[op]` (mod num_devices) on.
    """
    n, k = costs.compute.shape
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
            begin = max(open_at[device], _data_ready(graph, costs, device_of, finish, op, device))
            if begin < best_start:
                best_device, best_start = device, begin
        if best_device < 0:
            overflow = True
            best_device = _roomiest(units, free, unit)
            best_start = max(open_at[best_device], _data_ready(graph, costs, device_of, finish, op, best_device))
        _settle(units, home, free, unit, best_device)
        device_of[op], start[op] = best_device, best_start
        finish[op] = best_start + costs.compute[op, best_device]
        open_at[best_device] = finish[op]
    return ListSchedule(device_of, start, finish, overflow)
