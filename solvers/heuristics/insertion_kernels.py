"""Compiled list schedulers that take ops in a given order: HEFT, CPOP, PEFT, with insertion into
idle gaps.

A list scheduler takes ops one by one and gives each a device and a start. All of them follow the
model of `PlacementProblem`: incompatible devices, resident bytes and units are respected (a whole
unit is reserved on the device of its first member), links have classes, a tensor is sent once to
each device, and where transfers share channels the schedule may account for it.

`_nrt=False` leaves reference counting out of functions that allocate nothing: counting every array
of a NamedTuple at every call takes five times as long as the scheduling.
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, inner_kernel, row_of, uncounted_kernel
from placeopt.model.projection import CostArrays, GraphArrays, Units
from placeopt.solvers.heuristics.idle_gaps import (
    FAR,
    NONE,
    Gaps,
    empty_gaps,
    fill_gap,
    first_fit,
    gap_start,
    last_gap,
)
from placeopt.solvers.heuristics.unit_reservation import (
    data_ready,
    filled,
    fits,
    reserve,
    roomiest,
    settle,
)


class ListSchedule(NamedTuple):
    """A complete schedule of ops; `overflow` is set where a unit found no device with space."""

    device: Ints  # (num_ops,)
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    overflow: bool


# --- list scheduling in a given order (HEFT, CPOP, PEFT)
# ---------------------------------------------------


@uncounted_kernel
def _latest_last(graph: GraphArrays, finish: Ints, op: int, entries: Ints) -> int:
    """Write the in-edges of `op` to `entries` by finish of the producer; return how many there
    are.
    """
    count = 0
    for e in row_of(graph.predecessors.pointer, op):
        at = count
        while (
            at > 0
            and finish[graph.predecessors.op[entries[at - 1]]] > finish[graph.predecessors.op[e]]
        ):
            entries[at] = entries[at - 1]
            at -= 1
        entries[at] = e
        count += 1
    return count


TRY, KEEP = np.array([False, True])
"""Whether transfers stay on their channels."""


class Queues(NamedTuple):
    """Transfers queued on channels so far."""

    arrived: (
        Ints  # (num_tensors, num_devices) end of the tensor's transfer there, -1 until it was sent
    )
    busy: Ints  # (num_channels,) end of the last transfer
    trial: Ints  # (num_channels,) scratch
    entries: Ints  # in-edges of the op at hand, by finish of the producer


@inner_kernel
def _empty_queues(graph: GraphArrays, costs: CostArrays, contention: bool) -> Queues:
    channels = costs.channel.max() + 1 if contention else 0
    arrived = np.full(
        (len(costs.transfer), len(costs.channel)) if contention else (0, len(costs.channel)),
        -1,
        np.int64,
    )
    most = (graph.predecessors.pointer[1:] - graph.predecessors.pointer[:-1]).max()
    return Queues(arrived, filled(channels, 0), filled(channels, 0), filled(most, 0))


@uncounted_kernel
def _data_ready_on_channels(
    graph: GraphArrays,
    costs: CostArrays,
    device_of: Ints,
    finish: Ints,
    queues: Queues,
    count: int,
    device: int,
    commit: np.bool_,
) -> int:
    """Time at which all inputs are on `device` when each is appended to the queue of its channel.

    The inputs are the first `count` of `queues.entries`. With `commit` the transfers stay.
    """
    arrived, busy, trial, entries = queues.arrived, queues.busy, queues.trial, queues.entries
    ready = np.int64(0)
    for i in range(count):  # forget the trial of another device
        source = device_of[graph.predecessors.op[entries[i]]]
        if source != device and costs.channel[source, device] >= 0:
            trial[costs.channel[source, device]] = busy[costs.channel[source, device]]
    for i in range(count):
        e = entries[i]
        source, tensor = device_of[graph.predecessors.op[e]], graph.predecessors.tensor[e]
        arrival = finish[graph.predecessors.op[e]]
        if source != device:
            if arrived[tensor, device] >= 0:
                arrival = arrived[tensor, device]
            else:
                lane = costs.channel[source, device]
                if lane >= 0:
                    arrival = max(arrival, trial[lane])
                arrival += costs.transfer[tensor, costs.link_class[source, device]]
                if lane >= 0:
                    trial[lane] = arrival
                if commit:
                    arrived[tensor, device] = arrival
                    if lane >= 0:
                        busy[lane] = arrival
        ready = max(ready, arrival)
    return ready


class Timeline(NamedTuple):
    """Ops of each device in time order, as a doubly linked list, and the idle gaps between them."""

    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    before: Ints  # (num_ops,) op before, -1 for none
    behind: Ints  # (num_ops,) op behind, -1 for none
    first: Ints  # (num_devices,) first op, -1 for none
    last: Ints  # (num_devices,) last op, -1 for none
    gaps: Gaps


@inner_kernel
def _empty_timeline(n: int, k: int) -> Timeline:
    return Timeline(
        filled(n, 0),
        filled(n, 0),
        filled(n, -1),
        filled(n, -1),
        filled(k, -1),
        filled(k, -1),
        empty_gaps(n, k),
    )


@uncounted_kernel
def _earliest_gap(
    timeline: Timeline, device: int, ready: int, duration: int, limit: int
) -> tuple[int, int]:
    """Earliest start >= `ready` at which the device is idle for `duration`, and the gap it is in;
    from `limit` on any later one.

    An op that takes no time also fits where two ops meet: the gap is -1 then.
    """
    best_gap = first_fit(timeline.gaps, device, ready + duration, max(duration, 1), limit)
    best = FAR if best_gap == NONE else max(ready, gap_start(timeline.gaps, best_gap))
    if duration == 0 and best > ready:
        op = timeline.last[device]
        while op >= 0 and timeline.start[op] >= ready and timeline.before[op] >= 0:
            op = timeline.before[op]
        begin = ready
        if op >= 0 and timeline.start[op] < ready:
            begin = max(ready, timeline.finish[op])
        if begin < best:
            best, best_gap = begin, NONE
    return best, best_gap


@uncounted_kernel
def _insert(timeline: Timeline, device: int, op: int, begin: int, duration: int, gap: int) -> None:
    """Put `op` into `gap` of the device, or (gap -1) between two ops that meet at `begin`."""
    end = begin + duration
    timeline.start[op], timeline.finish[op] = begin, end
    if gap >= 0:
        previous = fill_gap(timeline.gaps, device, gap, begin, end, op)
    else:
        previous = timeline.last[device]
        while previous >= 0 and timeline.finish[previous] > begin:
            previous = timeline.before[previous]
    timeline.before[op] = previous
    if previous == timeline.last[device]:
        timeline.last[device] = op
    else:
        timeline.behind[op] = timeline.first[device] if previous < 0 else timeline.behind[previous]
        timeline.before[timeline.behind[op]] = op
    if previous >= 0:
        timeline.behind[previous] = op
    else:
        timeline.first[device] = op


class Partial(NamedTuple):
    """A schedule that grows."""

    device: Ints  # (num_ops,) -1 while not scheduled
    home: Ints  # (num_units,) device of each unit, -1 while open
    free: Ints  # (num_devices,) bytes left
    timeline: Timeline
    queues: Queues


@uncounted_kernel
def _schedule_ops(
    graph: GraphArrays,
    costs: CostArrays,
    units: Units,
    sequence: Ints,
    bias: Floats,
    partial: Partial,
    insertion: bool,
    contention: bool,
) -> bool:
    """Schedule the ops of `sequence` one by one; return whether a unit found no device with
    space.
    """
    device_of, home, free, timeline, queues = (
        partial.device,
        partial.home,
        partial.free,
        partial.timeline,
        partial.queues,
    )
    finish, biased, overflow = timeline.finish, len(bias) > 0, False
    for op in sequence:
        unit = units.unit[op]
        count = _latest_last(graph, finish, op, queues.entries) if contention else np.int64(0)
        best_device, best_start, best_gap = NONE, np.int64(FAR), NONE
        best_score, best_finish = np.inf, np.int64(FAR)
        forced = -1
        while best_device < 0:
            for device in range(len(free)):
                if device != forced and not fits(units, home, free, unit, device):
                    continue
                duration = costs.compute[op, device]
                if contention:
                    ready = _data_ready_on_channels(
                        graph, costs, device_of, finish, queues, count, device, TRY
                    )
                else:
                    ready = data_ready(graph, costs, device_of, finish, op, device)
                if not biased and ready + duration >= best_finish:
                    continue  # it cannot end earlier than the best device
                if insertion:
                    limit = np.int64(FAR) if biased else best_finish - duration
                    begin, gap = _earliest_gap(timeline, device, ready, duration, limit)
                else:
                    gap = last_gap(timeline.gaps, device)
                    begin = max(ready, gap_start(timeline.gaps, gap))
                end = begin + duration
                score = end + bias[op, device] if biased else 0.0
                if score < best_score or (score == best_score and end < best_finish):
                    best_score, best_finish = score, end
                    best_device, best_start, best_gap = device, begin, gap
            if best_device < 0:
                overflow = True
                forced = roomiest(units, free, unit)
        settle(units, home, free, unit, best_device)
        if contention:
            _data_ready_on_channels(
                graph, costs, device_of, finish, queues, count, best_device, KEEP
            )
        device_of[op] = best_device
        _insert(timeline, best_device, op, best_start, best_finish - best_start, best_gap)
    return overflow


@entry
def schedule_in_order(
    graph: GraphArrays,
    costs: CostArrays,
    units: Units,
    sequence: Ints,
    bias: Floats,
    pinned: Ints,
    insertion: bool,
    contention: bool,
) -> ListSchedule:
    """Give each op of `sequence` (topological) the device of its smallest finish + bias.

    Parameters
    ----------
    bias : ticks added to the finish when devices are compared, shape (num_ops, num_devices); shape
    (0, 0)
        for none. Ties go to the earlier finish, then to the lower device.
    pinned : device of each unit that is fixed beforehand, -1 elsewhere.
    insertion : use idle gaps between ops already scheduled.
    contention : queue transfers on their channels (in the order of scheduling).
    """
    n, k = costs.compute.shape
    home, free = reserve(units, pinned)
    partial = Partial(
        filled(n, -1), home, free, _empty_timeline(n, k), _empty_queues(graph, costs, contention)
    )
    overflow = _schedule_ops(graph, costs, units, sequence, bias, partial, insertion, contention)
    return ListSchedule(partial.device, partial.timeline.start, partial.timeline.finish, overflow)
