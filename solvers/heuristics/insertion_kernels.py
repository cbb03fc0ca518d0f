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
R. Bayer, E. McCreight, "Organization and maintenance of large ordered indexes", Acta Informatica 1, 1972 (B-trees, here for
the idle gaps of a device).
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


WIDTH, BRANCHES = 64, 256
"""Gaps of a leaf and leaves of a node at most."""


class Gaps(NamedTuple):
    """Idle gaps of every device in time order: gaps stand in leaves, leaves in nodes, the nodes of a device are linked.

    A B-tree of fixed height: a search reads few stretches of memory, each from one end to the other, where a binary tree would
    wait for memory at every step. The last gap of a device never ends.
    """

    start: Ints  # (num_leaves, WIDTH)
    end: Ints  # (num_leaves, WIDTH)
    op: Ints  # (num_leaves, WIDTH) op that ends where the gap starts, -1 for none
    count: Ints  # (num_leaves,) gaps in use
    leaf: Ints  # (num_nodes, BRANCHES)
    leaf_end: Ints  # (num_nodes, BRANCHES) end of the last gap of each leaf
    leaf_longest: Ints  # (num_nodes, BRANCHES) length of the longest gap of each leaf
    leaves: Ints  # (num_nodes,) leaves in use
    longest: Ints  # (num_nodes,) length of the longest gap
    earlier: Ints  # (num_nodes,) node before, -1 for none
    later: Ints  # (num_nodes,) node behind, -1 for none
    last: Ints  # (num_devices,) last node
    used: Ints  # (2,) leaves and nodes in use


class Timeline(NamedTuple):
    """Ops of each device in time order, as a doubly linked list, and the idle gaps between them."""

    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    before: Ints  # (num_ops,) op before, -1 for none
    behind: Ints  # (num_ops,) op behind, -1 for none
    first: Ints  # (num_devices,) first op, -1 for none
    last: Ints  # (num_devices,) last op, -1 for none
    gaps: Gaps


@inner
def _empty_gaps(n: int, k: int) -> Gaps:
    leaves = k + n // (WIDTH // 2) + 1  # a leaf is divided after at least WIDTH / 2 gaps were added to it, and a node likewise
    nodes = k + leaves // (BRANCHES // 2) + 1
    gaps = Gaps(
        np.zeros((leaves, WIDTH), np.int64), np.zeros((leaves, WIDTH), np.int64), np.zeros((leaves, WIDTH), np.int64),
        np.zeros(leaves, np.int64), np.zeros((nodes, BRANCHES), np.int64), np.zeros((nodes, BRANCHES), np.int64),
        np.zeros((nodes, BRANCHES), np.int64), np.zeros(nodes, np.int64), np.zeros(nodes, np.int64),
        np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64), np.arange(k), np.full(2, k, np.int64),
    )  # fmt: skip
    for d in range(k):
        gaps.end[d, 0], gaps.op[d, 0], gaps.count[d] = FAR, -1, 1
        gaps.leaf[d, 0], gaps.leaf_end[d, 0], gaps.leaf_longest[d, 0], gaps.leaves[d] = d, FAR, FAR, 1
        gaps.longest[d] = FAR
    return gaps


@inner
def _empty_timeline(n: int, k: int) -> Timeline:
    return Timeline(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64), np.full(n, -1, np.int64),
        np.full(k, -1, np.int64), np.full(k, -1, np.int64), _empty_gaps(n, k),
    )  # fmt: skip


@inlined
def _first_from(ends: Ints, count: int, due: int) -> int:
    """Place of the first of the rising `ends` that is no sooner than `due`: mostly the last, which is tried first."""
    low, high = np.int64(0), count
    if count == 1 or ends[count - 2] < due:
        return count - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] < due:
            low = middle + 1
        else:
            high = middle
    return low


@uncounted
def _first_fit(gaps: Gaps, device: int, due: int, length: int, limit: int) -> int:
    """First gap that ends no sooner than `due` and is as long as `length`, as (node * BRANCHES + slot of the leaf) * WIDTH + place.

    NONE if it is in a leaf all of whose gaps start at `limit` or later.
    """
    node = gaps.last[device]
    while gaps.earlier[node] >= 0 and gaps.leaf_end[gaps.earlier[node], gaps.leaves[gaps.earlier[node]] - 1] >= due:
        node = gaps.earlier[node]
    slot = _first_from(gaps.leaf_end[node], gaps.leaves[node], due)
    leaf = gaps.leaf[node, slot]
    place = _first_from(gaps.end[leaf], gaps.count[leaf], due)
    while True:
        if gaps.longest[node] >= length:
            for at in range(slot, gaps.leaves[node]):
                if gaps.leaf_longest[node, at] >= length:
                    if at > slot and gaps.leaf_end[node, at - 1] >= limit:
                        return NONE
                    leaf = gaps.leaf[node, at]
                    for i in range(place, gaps.count[leaf]):
                        if gaps.end[leaf, i] - gaps.start[leaf, i] >= length:
                            return (node * BRANCHES + at) * WIDTH + i
                place = np.int64(0)
        if gaps.leaf_end[node, gaps.leaves[node] - 1] >= limit:
            return NONE
        node, slot, place = gaps.later[node], np.int64(0), np.int64(0)


@inlined
def _last_gap(gaps: Gaps, device: int) -> int:
    """The gap after the last op of a device."""
    node = gaps.last[device]
    slot = gaps.leaves[node] - 1
    return (node * BRANCHES + slot) * WIDTH + gaps.count[gaps.leaf[node, slot]] - 1


@inlined
def _gap_start(gaps: Gaps, gap: int) -> int:
    """Time at which a gap starts."""
    return gaps.start[gaps.leaf[gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES], gap % WIDTH]


@uncounted
def _earliest_gap(timeline: Timeline, device: int, ready: int, duration: int, limit: int) -> tuple[int, int]:
    """Earliest start >= `ready` at which the device is idle for `duration`, and the gap it is in; from `limit` on any later one.

    An op that takes no time also fits where two ops meet: the gap is -1 then.
    """
    best_gap = _first_fit(timeline.gaps, device, ready + duration, max(duration, 1), limit)
    best = FAR if best_gap == NONE else max(ready, _gap_start(timeline.gaps, best_gap))
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


@uncounted
def _measure(gaps: Gaps, node: int, slot: int) -> None:
    """Write the end of a leaf and the longest gap of the leaf and of its node."""
    leaf, longest = gaps.leaf[node, slot], np.int64(0)
    last = gaps.count[leaf] - 1
    if gaps.end[leaf, last] == FAR:  # nothing is longer than a gap that never ends
        gaps.leaf_end[node, slot] = FAR
        gaps.leaf_longest[node, slot] = gaps.longest[node] = FAR - gaps.start[leaf, last]
        return
    for i in range(gaps.count[leaf]):
        longest = max(longest, gaps.end[leaf, i] - gaps.start[leaf, i])
    gaps.leaf_end[node, slot], gaps.leaf_longest[node, slot] = gaps.end[leaf, gaps.count[leaf] - 1], longest
    longest = np.int64(0)
    for at in range(gaps.leaves[node]):
        longest = max(longest, gaps.leaf_longest[node, at])
    gaps.longest[node] = longest


@uncounted
def _divide_node(gaps: Gaps, device: int, node: int) -> None:
    """Move the later half of a full node's leaves to a node behind it."""
    half, rest, behind = BRANCHES // 2, gaps.used[1], gaps.later[node]
    gaps.used[1] += 1
    for at in range(half):
        gaps.leaf[rest, at], gaps.leaf_end[rest, at] = gaps.leaf[node, half + at], gaps.leaf_end[node, half + at]
        gaps.leaf_longest[rest, at] = gaps.leaf_longest[node, half + at]
    gaps.leaves[node], gaps.leaves[rest] = half, half
    gaps.later[node], gaps.earlier[rest], gaps.later[rest] = rest, node, behind
    if behind >= 0:
        gaps.earlier[behind] = rest
    else:
        gaps.last[device] = rest
    _measure(gaps, node, np.int64(0))
    _measure(gaps, rest, np.int64(0))


@uncounted
def _divide_leaf(gaps: Gaps, device: int, node: int, slot: int) -> None:
    """Move the later half of a full leaf's gaps to a leaf behind it; the node has room for that."""
    half, leaf, rest = WIDTH // 2, gaps.leaf[node, slot], gaps.used[0]
    gaps.used[0] += 1
    for i in range(half):
        gaps.start[rest, i], gaps.end[rest, i] = gaps.start[leaf, half + i], gaps.end[leaf, half + i]
        gaps.op[rest, i] = gaps.op[leaf, half + i]
    gaps.count[leaf], gaps.count[rest] = half, half
    for at in range(gaps.leaves[node], slot + 1, -1):
        gaps.leaf[node, at], gaps.leaf_end[node, at] = gaps.leaf[node, at - 1], gaps.leaf_end[node, at - 1]
        gaps.leaf_longest[node, at] = gaps.leaf_longest[node, at - 1]
    gaps.leaf[node, slot + 1] = rest
    gaps.leaves[node] += 1
    _measure(gaps, node, slot)
    _measure(gaps, node, slot + 1)


@uncounted
def _add_gap(gaps: Gaps, device: int, gap: int, begin: int, end: int, op: int) -> None:
    """Add a gap behind `op` and right after another one."""
    node, slot, place = gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES, gap % WIDTH + 1
    leaf = gaps.leaf[node, slot]
    for i in range(gaps.count[leaf], place, -1):
        gaps.start[leaf, i], gaps.end[leaf, i] = gaps.start[leaf, i - 1], gaps.end[leaf, i - 1]
        gaps.op[leaf, i] = gaps.op[leaf, i - 1]
    gaps.start[leaf, place], gaps.end[leaf, place], gaps.op[leaf, place] = begin, end, op
    gaps.count[leaf] += 1
    _measure(gaps, node, slot)
    if gaps.count[leaf] == WIDTH:
        _divide_leaf(gaps, device, node, slot)
        if gaps.leaves[node] == BRANCHES:
            _divide_node(gaps, device, node)


@uncounted
def _insert(timeline: Timeline, device: int, op: int, begin: int, duration: int, gap: int) -> None:
    """Put `op` into `gap` of the device, or (gap -1) between two ops that meet at `begin`."""
    gaps, end = timeline.gaps, begin + duration
    timeline.start[op], timeline.finish[op] = begin, end
    if gap >= 0:
        node, slot, place = gap // (BRANCHES * WIDTH), gap // WIDTH % BRANCHES, gap % WIDTH
        leaf = gaps.leaf[node, slot]
        previous, limit = gaps.op[leaf, place], gaps.end[leaf, place]
        if begin > gaps.start[leaf, place]:
            gaps.end[leaf, place] = begin
            if end < limit:  # what remains behind the op is a gap of its own
                _add_gap(gaps, device, gap, end, limit, op)
            else:
                _measure(gaps, node, slot)
        else:  # a gap that was filled stays, without length
            gaps.start[leaf, place], gaps.op[leaf, place] = end, op
            _measure(gaps, node, slot)
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
                    limit = np.int64(FAR) if biased else best_finish - duration
                    begin, gap = _earliest_gap(timeline, device, ready, duration, limit)
                else:
                    gap = _last_gap(timeline.gaps, device)
                    begin = max(ready, _gap_start(timeline.gaps, gap))
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
