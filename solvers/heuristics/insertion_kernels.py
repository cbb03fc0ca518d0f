"""Compiled list schedulers that take ops in a given order: HEFT, CPOP, PEFT, with insertion into idle gaps.

A list scheduler takes ops one by one and gives each a device and a start. All of them follow the model of
`PlacementProblem`: incompatible devices, resident bytes and units are respected (a whole unit is reserved on the device
of its first member), links have classes, a tensor is sent once to each device, and where transfers share channels the
schedule may account for it.

Everything that a jitted function calls lives in its file, because numba's cache does not notice edits in another one; so
the first helpers stand in `time_kernels` too. `_nrt=False` leaves reference counting out of functions that allocate nothing:
counting every array of a NamedTuple at every call takes five times as long as the scheduling.

References
----------
R. Seidel, C. R. Aragon, "Randomized search trees", Algorithmica 16, 1996 (the idle gaps of a device).
"""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import entry, inlined, inner, uncounted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.projection import CostArrays, GraphArrays
    from placeopt.model.units import Units

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FAR = 2**62
"""A time later than every schedule ends."""

NONE = np.int64(-1)
"""No op, device or gap; typed, for a plain number is a type of its own to numba, and its takers are compiled once more."""


class ListSchedule(NamedTuple):
    """A complete schedule of ops; `overflow` is set where a unit found no device with space."""

    device: Ints  # (num_ops,)
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    overflow: bool


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
def _data_ready(graph: GraphArrays, costs: CostArrays, device_of: Ints, finish: Ints, op: int, ready: Ints) -> None:
    """Write the time at which all inputs of `op` are on each device, transfers never waiting for each other."""
    ready[:] = 0
    for e in range(graph.predecessors.pointer[op], graph.predecessors.pointer[op + 1]):
        source, tensor = graph.predecessors.op[e], graph.predecessors.tensor[e]
        home, done = device_of[source], finish[source]
        for device in range(len(ready)):
            arrival = done
            if home != device:
                arrival += costs.transfer[tensor, costs.link_class[home, device]]
            ready[device] = max(ready[device], arrival)


# --- list scheduling in a given order (HEFT, CPOP, PEFT) ---------------------------------------------------


@uncounted
def _latest_last(graph: GraphArrays, finish: Ints, op: int, entries: Ints) -> int:
    """Write the in-edges of `op` to `entries` by finish of the producer; return how many there are."""
    count = 0
    for e in range(graph.predecessors.pointer[op], graph.predecessors.pointer[op + 1]):
        at = count
        while at > 0 and finish[graph.predecessors.op[entries[at - 1]]] > finish[graph.predecessors.op[e]]:
            entries[at] = entries[at - 1]
            at -= 1
        entries[at] = e
        count += 1
    return count


TRY, KEEP = np.array([False, True])
"""Whether transfers stay on their channels."""


class Queues(NamedTuple):
    """Transfers queued on channels so far."""

    arrived: Ints  # (num_tensors, num_devices) end of the tensor's transfer there, -1 until it was sent
    busy: Ints  # (num_channels,) end of the last transfer
    trial: Ints  # (num_channels,) scratch
    entries: Ints  # in-edges of the op at hand, by finish of the producer


@inner
def _empty_queues(graph: GraphArrays, costs: CostArrays, contention: bool) -> Queues:
    channels = costs.channel.max() + 1 if contention else 0
    arrived = np.full((len(costs.transfer), len(costs.channel)) if contention else (0, len(costs.channel)), -1, np.int64)
    most = (graph.predecessors.pointer[1:] - graph.predecessors.pointer[:-1]).max()
    return Queues(arrived, np.zeros(channels, np.int64), np.zeros(channels, np.int64), np.zeros(most, np.int64))


@uncounted
def _data_ready_on_channels(
    graph: GraphArrays, costs: CostArrays, device_of: Ints, finish: Ints, queues: Queues, count: int, device: int, commit: np.bool_
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


GAP_START, GAP_END, GAP_OP, GAP_LEFT, GAP_RIGHT, GAP_ABOVE, GAP_LONGEST, GAP_RANK = range(8)
"""Of a gap: its start and end, the op that ends where it starts; its place in the tree of its device, where -1 is none:
earlier and later gaps below it, the gap above it, the longest gap of what hangs from it, and the number that no gap
below it exceeds. A gap that was filled stays, without length."""


class Timeline(NamedTuple):
    """Ops of each device in time order, as a doubly linked list, and the idle gaps between them, as a treap in time order.

    A gap that is long enough is found in O(log n) expected steps, however many small ones lie behind it.
    """

    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    before: Ints  # (num_ops,) op before, -1 for none
    behind: Ints  # (num_ops,) op behind, -1 for none
    first: Ints  # (num_devices,) first op, -1 for none
    last: Ints  # (num_devices,) last op, -1 for none
    gap: Ints  # (num_ops + num_devices, 8) a row of GAP_START to GAP_RANK, so that a step reads one line of memory
    top: Ints  # (num_devices,) gap from which all others hang
    last_gap: Ints  # (num_devices,) the gap after the last op; it never ends
    gaps: Ints  # (1,) number of gap records in use


@inner
def _empty_timeline(n: int, k: int) -> Timeline:
    timeline = Timeline(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64), np.full(n, -1, np.int64),
        np.full(k, -1, np.int64), np.full(k, -1, np.int64), np.full((n + k, 8), -1, np.int64), np.arange(k), np.arange(k),
        np.zeros(1, np.int64),
    )  # fmt: skip
    for gap in range(n + k):  # a number that looks random
        mixed = (gap * 2654435761) & 4294967295
        mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 4294967295
        timeline.gap[gap, GAP_RANK] = mixed ^ (mixed >> 13)
    for d in range(k):
        timeline.gap[d, GAP_START], timeline.gap[d, GAP_END], timeline.gap[d, GAP_LONGEST] = 0, FAR, FAR
    timeline.gaps[0] = k
    return timeline


@inlined
def _holds(gap: Ints, top: int, length: int) -> bool:
    """Whether a gap of `length` hangs from `top`."""
    return bool(top >= 0 and gap[top, GAP_LONGEST] >= length)


@uncounted
def _first_fit(gap: Ints, top: int, due: int, length: int) -> int:
    """First gap that ends no sooner than `due` and is as long as `length`; the last one of a device always is."""
    turn, node = top, top
    while _holds(gap, node, length):  # the way to where `due` is; what lies to its right ends late enough
        if gap[node, GAP_END] < due:
            node = gap[node, GAP_RIGHT]
            continue
        if gap[node, GAP_END] - gap[node, GAP_START] >= length or _holds(gap, gap[node, GAP_RIGHT], length):
            turn = node
        node = gap[node, GAP_LEFT]
    if gap[turn, GAP_END] - gap[turn, GAP_START] >= length:
        return turn
    node = gap[turn, GAP_RIGHT]
    while True:
        if _holds(gap, gap[node, GAP_LEFT], length):
            node = gap[node, GAP_LEFT]
        elif gap[node, GAP_END] - gap[node, GAP_START] >= length:
            return node
        else:
            node = gap[node, GAP_RIGHT]


@uncounted
def _earliest_gap(timeline: Timeline, device: int, ready: int, duration: int) -> tuple[int, int]:
    """Earliest start >= `ready` at which the device is idle for `duration`, and the gap it is in.

    An op that takes no time also fits where two ops meet: the gap is -1 then.
    """
    best_gap = _first_fit(timeline.gap, timeline.top[device], ready + duration, max(duration, 1))
    best = max(ready, timeline.gap[best_gap, GAP_START])
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


@inlined
def _longest(gap: Ints, node: int) -> int:
    """Length of the longest gap that hangs from `node`."""
    longest = gap[node, GAP_END] - gap[node, GAP_START]
    if gap[node, GAP_LEFT] >= 0:
        longest = max(longest, gap[gap[node, GAP_LEFT], GAP_LONGEST])
    if gap[node, GAP_RIGHT] >= 0:
        longest = max(longest, gap[gap[node, GAP_RIGHT], GAP_LONGEST])
    return longest


@uncounted
def _measure_upwards(gap: Ints, node: int) -> None:
    """Correct the longest lengths from a gap that has changed upwards."""
    while node >= 0:
        longest = _longest(gap, node)
        if longest == gap[node, GAP_LONGEST]:
            return
        gap[node, GAP_LONGEST] = longest
        node = gap[node, GAP_ABOVE]


@uncounted
def _turn_up(gap: Ints, top: Ints, device: int, node: int) -> None:
    """Exchange a gap with the one above it, time order kept."""
    above = gap[node, GAP_ABOVE]
    higher = gap[above, GAP_ABOVE]
    near, far = (GAP_LEFT, GAP_RIGHT) if gap[above, GAP_LEFT] == node else (GAP_RIGHT, GAP_LEFT)
    moved = gap[node, far]
    gap[above, near], gap[node, far] = moved, above
    if moved >= 0:
        gap[moved, GAP_ABOVE] = above
    gap[above, GAP_ABOVE], gap[node, GAP_ABOVE] = node, higher
    if higher < 0:
        top[device] = node
    else:
        gap[higher, GAP_LEFT if gap[higher, GAP_LEFT] == above else GAP_RIGHT] = node
    gap[above, GAP_LONGEST] = _longest(gap, above)
    gap[node, GAP_LONGEST] = _longest(gap, node)


@uncounted
def _add_gap(timeline: Timeline, device: int, gap: int, begin: int, end: int, op: int) -> None:
    """Add a gap behind `op` and right after another one."""
    tree, rest = timeline.gap, timeline.gaps[0]
    timeline.gaps[0] += 1
    tree[rest, GAP_START], tree[rest, GAP_END], tree[rest, GAP_OP] = begin, end, op
    above, side = gap, GAP_RIGHT
    if tree[gap, GAP_RIGHT] >= 0:
        above, side = tree[gap, GAP_RIGHT], GAP_LEFT
        while tree[above, GAP_LEFT] >= 0:
            above = tree[above, GAP_LEFT]
    tree[above, side], tree[rest, GAP_ABOVE] = rest, above
    _measure_upwards(tree, rest)
    while tree[rest, GAP_ABOVE] >= 0 and tree[tree[rest, GAP_ABOVE], GAP_RANK] < tree[rest, GAP_RANK]:
        _turn_up(tree, timeline.top, device, rest)
    if timeline.last_gap[device] == gap:
        timeline.last_gap[device] = rest


@uncounted
def _insert(timeline: Timeline, device: int, op: int, begin: int, duration: int, gap: int) -> None:
    """Put `op` into `gap` of the device, or (gap -1) between two ops that meet at `begin`."""
    end = begin + duration
    timeline.start[op], timeline.finish[op] = begin, end
    if gap >= 0:
        previous, limit = timeline.gap[gap, GAP_OP], timeline.gap[gap, GAP_END]
        if begin > timeline.gap[gap, GAP_START]:
            timeline.gap[gap, GAP_END] = begin
            _measure_upwards(timeline.gap, gap)
            if end < limit:  # what remains behind the op is a gap of its own
                _add_gap(timeline, device, gap, end, limit, op)
        else:
            timeline.gap[gap, GAP_START], timeline.gap[gap, GAP_OP] = end, op
            _measure_upwards(timeline.gap, gap)
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
    ready: Ints  # (num_devices,) when the inputs of the op at hand are there, transfers not waiting
    timeline: Timeline
    queues: Queues


@uncounted
def _schedule_ops(
    graph: GraphArrays, costs: CostArrays, units: Units, sequence: Ints, bias: Floats, partial: Partial, insertion: bool,
    contention: bool,
) -> bool:  # fmt: skip
    """Schedule the ops of `sequence` one by one; return whether a unit found no device with space."""
    device_of, home, free, timeline, queues = partial.device, partial.home, partial.free, partial.timeline, partial.queues
    finish, biased, overflow = timeline.finish, len(bias) > 0, False
    for op in sequence:
        unit = units.unit[op]
        count = np.int64(0)
        if contention:
            count = _latest_last(graph, finish, op, queues.entries)
        else:
            _data_ready(graph, costs, device_of, finish, op, partial.ready)
        best_device, best_start, best_gap = NONE, np.int64(FAR), NONE
        best_score, best_finish = np.inf, np.int64(FAR)
        forced = -1
        while best_device < 0:
            for device in range(len(free)):
                if device != forced and not _fits(units, home, free, unit, device):
                    continue
                duration, ready = costs.compute[op, device], partial.ready[device]
                if contention:
                    ready = _data_ready_on_channels(graph, costs, device_of, finish, queues, count, device, TRY)
                if not biased and ready + duration >= best_finish:
                    continue  # it cannot end earlier than the best device
                if insertion:
                    begin, gap = _earliest_gap(timeline, device, ready, duration)
                else:
                    gap = timeline.last_gap[device]
                    begin = max(ready, timeline.gap[gap, GAP_START])
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
            _data_ready_on_channels(graph, costs, device_of, finish, queues, count, best_device, KEEP)
        device_of[op] = best_device
        _insert(timeline, best_device, op, best_start, best_finish - best_start, best_gap)
    return overflow


@entry
def schedule_in_order(
    graph: GraphArrays, costs: CostArrays, units: Units, sequence: Ints, bias: Floats, pinned: Ints, insertion: bool,
    contention: bool,
) -> ListSchedule:  # fmt: skip
    """Give each op of `sequence` (topological) the device of its smallest finish + bias.

    Parameters
    ----------
    bias : ticks added to the finish when devices are compared, shape (num_ops, num_devices); shape (0, 0)
        for none. Ties go to the earlier finish, then to the lower device.
    pinned : device of each unit that is fixed beforehand, -1 elsewhere.
    insertion : use idle gaps between ops already scheduled.
    contention : queue transfers on their channels (in the order of scheduling).
    """
    n, k = costs.compute.shape
    home, free = _reserve(units, pinned)
    partial = Partial(
        np.full(n, -1, np.int64), home, free, np.zeros(k, np.int64), _empty_timeline(n, k),
        _empty_queues(graph, costs, contention),
    )  # fmt: skip
    overflow = _schedule_ops(graph, costs, units, sequence, bias, partial, insertion, contention)
    return ListSchedule(partial.device, partial.timeline.start, partial.timeline.finish, overflow)
