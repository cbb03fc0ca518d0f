"""Compiled list schedulers that choose op and device by time: ETF, favourite children, critical
path.

See `insertion_kernels` for the model that all list schedulers follow.
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.compiled import entry, inlined, row_of, uncounted_kernel
from placeopt.model.heaps import pop, push
from placeopt.model.projection import CostArrays, GraphArrays, Units
from placeopt.solvers.heuristics.idle_gaps import FAR, NONE
from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
from placeopt.solvers.heuristics.unit_reservation import data_ready, filled, fits, roomiest, settle

BOTTOM = np.int64(0)
"""Where a heap begins in its array."""

# --- list scheduling by time (ETF, m-ETF)
# ------------------------------------------------------------------


class Waiting(NamedTuple):
    """Ready ops of each device in two heaps: those whose data is still to come by (time, position),
    the others by position.
    """

    later: Ints  # (num_devices,) number of entries
    later_time: Ints  # (num_devices, num_ops)
    later_place: Ints  # (num_devices, num_ops) position
    now: Ints  # (num_devices,) number of entries
    now_place: Ints  # (num_devices, num_ops) position
    now_op: Ints  # (num_devices, num_ops)


class TimeSchedule(NamedTuple):
    """A schedule that grows by time."""

    device: Ints  # (num_ops,) -1 while not scheduled
    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    home: Ints  # (num_units,) device of each unit, -1 while open
    free: Ints  # (num_devices,) bytes left
    open_at: Ints  # (num_devices,) end of the last op
    missing: Ints  # (num_ops,) producers not scheduled yet
    waiting: Waiting


@uncounted_kernel
def _earliest_pair(units: Units, order: Ints, s: TimeSchedule) -> tuple[int, int, int]:
    """Return (op, device, start) of the earliest start, ties by list position, then device; op -1
    for none.

    Entries of scheduled ops and of ops that no longer fit are dropped here; `order` has the op of
    each position.
    """
    w = s.waiting
    best_op, best_device, best_start, best_position = NONE, NONE, np.int64(FAR), np.int64(FAR)
    for device in range(len(s.open_at)):
        while w.later[device] > 0 and w.later_time[device, 0] <= s.open_at[device]:
            place = w.later_place[device, 0]
            pop(w.later_time[device], w.later_place[device], BOTTOM, w.later[device])
            w.later[device] -= 1
            push(w.now_place[device], w.now_op[device], BOTTOM, w.now[device], place, order[place])
            w.now[device] += 1
        while w.now[device] > 0 and not _may_start(units, s, w.now_op[device, 0], device):
            pop(w.now_place[device], w.now_op[device], BOTTOM, w.now[device])
            w.now[device] -= 1
        begin, position = s.open_at[device], w.now_place[device, 0]
        if w.now[device] == 0:
            while w.later[device] > 0 and not _may_start(
                units, s, order[w.later_place[device, 0]], device
            ):
                pop(w.later_time[device], w.later_place[device], BOTTOM, w.later[device])
                w.later[device] -= 1
            if w.later[device] == 0:
                continue
            begin, position = w.later_time[device, 0], w.later_place[device, 0]
        if begin < best_start or (begin == best_start and position < best_position):
            best_op, best_device, best_start, best_position = (
                order[position],
                device,
                begin,
                position,
            )
    return best_op, best_device, best_start


@inlined
def _may_start(units: Units, s: TimeSchedule, op: int, device: int) -> bool:
    """Whether an op is still to be scheduled and fits on the device."""
    return bool(s.device[op] < 0 and fits(units, s.home, s.free, units.unit[op], device))


@uncounted_kernel
def _await(graph: GraphArrays, costs: CostArrays, position: Ints, s: TimeSchedule, op: int) -> None:
    """Put an op whose producers are all scheduled into the heaps of the devices that can run it."""
    for device in range(len(s.open_at)):
        if costs.compute[op, device] >= 0:
            w = s.waiting
            arrival = data_ready(graph, costs, s.device, s.finish, op, device)
            push(
                w.later_time[device],
                w.later_place[device],
                BOTTOM,
                w.later[device],
                arrival,
                position[op],
            )
            w.later[device] += 1


@uncounted_kernel
def _schedule_ops_by_time(
    graph: GraphArrays,
    costs: CostArrays,
    units: Units,
    position: Ints,
    order: Ints,
    s: TimeSchedule,
) -> bool:
    """Schedule all ops; return whether a unit found no device with space."""
    overflow = False
    for op in range(len(position)):
        if s.missing[op] == 0:
            _await(graph, costs, position, s, op)
    for _ in range(len(position)):
        op, device, begin = _earliest_pair(units, order, s)
        if op < 0:  # every ready op found its devices full: take the first one all the same
            overflow = True
            op = _first_ready(order, s)
            device = roomiest(units, s.free, units.unit[op])
            begin = max(s.open_at[device], data_ready(graph, costs, s.device, s.finish, op, device))
        settle(units, s.home, s.free, units.unit[op], device)
        s.device[op], s.start[op], s.finish[op] = device, begin, begin + costs.compute[op, device]
        s.open_at[device] = s.finish[op]
        for e in row_of(graph.successors.pointer, op):
            child = graph.successors.op[e]
            s.missing[child] -= 1
            if s.missing[child] == 0:
                _await(graph, costs, position, s, child)
    return overflow


@uncounted_kernel
def _first_ready(order: Ints, s: TimeSchedule) -> int:
    """Return the first op of the order that waits for nothing, -1 for none."""
    for op in order:
        if s.missing[op] == 0 and s.device[op] < 0:
            return op
    return np.int64(-1)


@entry
def schedule_by_time(
    graph: GraphArrays, costs: CostArrays, units: Units, position: Ints
) -> ListSchedule:
    """Earliest task first: of all ready ops and devices start the pair that can start earliest.

    Ties go to the smallest `position`, a permutation, then to the lowest device. Data-ready times
    are fixed once all producers are scheduled, so each device keeps its ready ops in two heaps: O(n
    k log n) instead of the textbook scan of all ready ops and devices at every step.
    """
    n, k = costs.compute.shape
    home, free = filled(len(units.bytes), -1), units.capacity.copy()
    order, missing = np.empty(n, np.int64), np.empty(n, np.int64)
    for op in range(n):
        order[position[op]] = op
        missing[op] = graph.predecessors.pointer[op + 1] - graph.predecessors.pointer[op]
    waiting = Waiting(
        filled(k, 0),
        np.empty((k, n), np.int64),
        np.empty((k, n), np.int64),
        filled(k, 0),
        np.empty((k, n), np.int64),
        np.empty((k, n), np.int64),
    )
    s = TimeSchedule(
        filled(n, -1), filled(n, 0), filled(n, 0), home, free, filled(k, 0), missing, waiting
    )
    overflow = _schedule_ops_by_time(graph, costs, units, position, order, s)
    return ListSchedule(s.device, s.start, s.finish, overflow)


class Favourites(NamedTuple):
    """What the devices wait for, and when data is where."""

    device_of: Ints  # (num_ops,) device, -1 until scheduled
    open_at: Ints  # (num_devices,) end of the last op
    awaited: Ints  # (num_devices,) favourite child that the device waits for, -1 for none
    awake_until: Ints  # (num_devices,)
    data_ready: Ints  # (num_ops, num_devices)
    latest: Ints  # (num_ops,) data is on every device from here on


@uncounted_kernel
def _earliest_wakeful_pair(
    costs: CostArrays,
    units: Units,
    home: Ints,
    free: Ints,
    state: Favourites,
    ready: Ints,
    position: Ints,
) -> tuple[int, int, int]:
    """Return (slot in `ready`, device, start) of the earliest start, ties by position; slot -1 for
    none.
    """
    best_slot, best_device, best_start, best_position = -1, -1, np.int64(FAR), np.int64(FAR)
    for slot in range(len(ready)):
        op = ready[slot]
        for device in range(len(free)):
            if costs.compute[op, device] < 0 or not fits(units, home, free, units.unit[op], device):
                continue
            begin = max(state.open_at[device], state.data_ready[op, device])
            child = state.awaited[device]
            waits = child >= 0 and child != op and state.device_of[child] < 0
            if waits and state.latest[op] > state.open_at[device]:  # awake, and op is not urgent
                begin = max(begin, state.awake_until[device])
            if begin < best_start or (begin == best_start and position[op] < best_position):
                best_slot, best_device, best_start, best_position = (
                    slot,
                    device,
                    begin,
                    position[op],
                )
    return best_slot, best_device, best_start


@uncounted_kernel
def _slowest_way(graph: GraphArrays, costs: CostArrays, op: int, child: int, device: int) -> int:
    """Longest time of a tensor from `op` on `device` to `child` on another device."""
    slowest = np.int64(0)
    for e in row_of(graph.successors.pointer, op):
        for there in range(len(costs.link_class) if graph.successors.op[e] == child else 0):
            if there != device:
                tensor = graph.successors.tensor[e]
                slowest = max(slowest, costs.transfer[tensor, costs.link_class[device, there]])
    return slowest


@entry
def schedule_with_favourites(
    graph: GraphArrays, costs: CostArrays, units: Units, position: Ints, favourite: Ints
) -> ListSchedule:
    """Earliest task first with favourite children (SCT, Hanen and Munier; m-SCT of Baechi).

    After op i a device is *awake*: it waits for i's favourite child until that child's data could
    have come from elsewhere. Meanwhile it takes only *urgent* ops, whose data is already everywhere
    when it is free. `favourite[op]` is a child or -1; every op is the favourite of at most one.
    """
    n, k = costs.compute.shape
    start, finish = filled(n, 0), filled(n, 0)
    home, free = filled(len(units.bytes), -1), units.capacity.copy()
    waiting = graph.predecessors.pointer[1:] - graph.predecessors.pointer[:-1]
    state = Favourites(
        filled(n, -1),
        filled(k, 0),
        filled(k, -1),
        filled(k, 0),
        np.zeros((n, k), np.int64),
        filled(n, 0),
    )
    device_of, open_at = state.device_of, state.open_at
    ready = np.empty(n, np.int64)
    count = 0
    for op in range(n):
        if waiting[op] == 0:
            ready[count] = op
            count += 1
    overflow = False
    for _ in range(n):
        slot, device, begin = _earliest_wakeful_pair(
            costs, units, home, free, state, ready[:count], position
        )
        if slot < 0:  # every ready op found its devices full: take the first one all the same
            overflow = True
            slot = np.argmin(position[ready[:count]])
            device = roomiest(units, free, units.unit[ready[slot]])
            begin = max(open_at[device], state.data_ready[ready[slot], device])
        op = ready[slot]
        ready[slot] = ready[count - 1]
        count -= 1
        settle(units, home, free, units.unit[op], device)
        device_of[op], start[op], finish[op] = device, begin, begin + costs.compute[op, device]
        open_at[device] = finish[op]
        child = favourite[op]
        state.awaited[device] = -1
        if (
            child >= 0
            and device_of[child] < 0
            and fits(units, home, free, units.unit[child], device)
        ):
            state.awaited[device] = child
            state.awake_until[device] = finish[op] + _slowest_way(graph, costs, op, child, device)
        for e in row_of(graph.successors.pointer, op):
            child = graph.successors.op[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                for there in range(k):
                    state.data_ready[child, there] = data_ready(
                        graph, costs, device_of, finish, child, there
                    )
                    state.latest[child] = max(state.latest[child], state.data_ready[child, there])
                ready[count] = child
                count += 1
    return ListSchedule(device_of, start, finish, overflow)


# --- critical path with random ties (Doppler)
# --------------------------------------------------------------


@entry
def schedule_earliest_start(
    graph: GraphArrays, costs: CostArrays, units: Units, sequence: Ints, turn: Ints
) -> ListSchedule:
    """Give each op of `sequence` (topological) the device of its earliest start, without insertion.

    Ties are broken by trying the devices from `turn[op]` (mod num_devices) on.
    """
    n, k = costs.compute.shape
    device_of = filled(n, -1)
    start, finish = filled(n, 0), filled(n, 0)
    home, free = filled(len(units.bytes), -1), units.capacity.copy()
    open_at = filled(k, 0)
    overflow = False
    for op in sequence:
        unit = units.unit[op]
        best_device, best_start = -1, np.int64(FAR)
        for offset in range(k):
            device = (turn[op] + offset) % k
            if not fits(units, home, free, unit, device):
                continue
            begin = max(open_at[device], data_ready(graph, costs, device_of, finish, op, device))
            if begin < best_start:
                best_device, best_start = device, begin
        if best_device < 0:
            overflow = True
            best_device = roomiest(units, free, unit)
            best_start = max(
                open_at[best_device], data_ready(graph, costs, device_of, finish, op, best_device)
            )
        settle(units, home, free, unit, best_device)
        device_of[op], start[op] = best_device, best_start
        finish[op] = best_start + costs.compute[op, best_device]
        open_at[best_device] = finish[op]
    return ListSchedule(device_of, start, finish, overflow)
