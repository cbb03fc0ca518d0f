"""Compiled simulated annealing on (device, sequence): moves, and an incremental exact evaluation.

A sequence is a topological order, and decoding says which schedule it is. A proposal changes the
device or the place in the sequence of some ops. Two things make its value cheap, both exact:

- Nothing changes for the ops before the first changed one in the sequence: only the rest is decoded
  again.
- The acceptance test is drawn before the evaluation, as a limit on the makespan; decoding is given
  up as soon as a start plus the longest remaining path under the proposed devices passes it.

Where transfers contend, a sequence is executed by `priority` instead, its places as ranks: the
simulator keeps channels and devices busy, while a list of transfers in the order of the sequence
makes each wait for those before it whose data come late. Such a value is found from scratch, and
the simulation is given up as soon as an op starts with too long a path, or with too much work
left on its device, before it.

Random numbers come from an explicit state, a combined Tausworthe generator (L'Ecuyer 1996) in int64
arithmetic that never overflows, so that the walk is the same with and without compilation.

A sequence is *decoded* by the serial schedule generation scheme: op by op, each starts on its
device as early as its inputs allow, in a gap between the ops there if one is long enough. The
schedules reachable are the active ones of the devices, which contain an optimal one; those of
`priority` execution (never idle) need not. Executed as `planned`, ranked by start, such a schedule
reproduces itself where transfers do not contend. (Kolisch, Serial and parallel resource-constrained
project scheduling methods revisited, 1996.)

References
----------
P. L'Ecuyer, "Maximally equidistributed combined Tausworthe generators", Mathematics of Computation
65, 1996.

R. Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited",
European Journal of Operational Research 90, 1996.
"""

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from placeopt.makespan.simulator import DEADLOCK, PRIORITY, execute
from placeopt.model.compiled import row_of, uncounted_entry, uncounted_kernel
from placeopt.model.exchanges import MANY, few_between
from placeopt.model.random_bits import below, uniform
from placeopt.solvers.heuristics.unit_reservation import data_ready
from placeopt.solvers.search.walk_state import NEVER, random_neighbour

# Typed, for a plain number is a type of its own to numba, and a kernel that takes it is compiled
# once more.
NONE, START, UNLIMITED = np.array([0, 0, NEVER])
"""An empty proposal, the first place in the sequence, no limit on the makespan."""

MOVES = (
    "reassign",
    "join",
    "swap",
    "cluster",
    "gather",
    "exchange",
    "window",
    "critical",
    "reorder",
    "overtake",
)
"""Names of the moves, in the order of their weights."""

REASSIGN, JOIN, SWAP, CLUSTER, GATHER, EXCHANGE, WINDOW, CRITICAL, REORDER, OVERTAKE = range(10)

PROPOSED, ACCEPTED, BEST, EMPTY = range(4)
"""Columns of a walk's tally of each kind of move: proposals, and of these accepted, better than all
before, without any change."""

METROPOLIS, THRESHOLD, RECORD = range(3)
"""Rules of acceptance; see `annealing.limits`."""


@uncounted_kernel
def _settle(g, w, run):
    """Evaluate the current placement from scratch and derive everything from it."""
    n, k = g.compute.shape
    for d in range(k):
        w.used[d] = w.load[d] = w.held[d] = 0
    for i in range(n):
        op = w.sequence[i]
        w.position[op] = i
        w.visit[op] = 0
        w.load[w.device[op]] += g.compute[op, w.device[op]]
    for unit in range(w.home.shape[0]):
        w.home[unit] = w.device[g.units.member[g.units.member_ptr[unit]]]
        w.used[w.home[unit]] += g.units.bytes[unit]
        w.unit_mark[unit] = 0
    w.stamp[0] = 0
    update_tails(g, w, n - 1)
    if run.arrays.num_channels > 0:
        adopt(w, START, executed(g, w, run, UNLIMITED))
    else:
        adopt(w, START, decode(g, w, START, UNLIMITED))


# --- moves
# -----------------------------------------------------------------------------------------------


@uncounted_kernel
def _add(g, w, count, unit, d):
    """Append "unit goes to d" to the proposal, unless it is there, or d cannot run it; return the
    new count.
    """
    if w.unit_mark[unit] == w.stamp[0] or w.home[unit] == d or not g.units.allowed[unit, d]:
        return count
    w.unit_mark[unit] = w.stamp[0]
    w.unit_list[count] = unit
    w.unit_to[count] = d
    return count + 1


@uncounted_kernel
def _grow(g, w, count, op, together, room, d):
    """Add to the proposal a connected cluster around `op`, which goes to device d; return the new
    count.

    Parameters
    ----------
    together : only ops on the device of `op` join; otherwise any does (their edges are zeroed).
    room : most ops to visit. Edges lighter than that of a random neighbour of the first op are not
    followed.
    """
    home = w.device[op]
    threshold = 0
    ins, outs = g.predecessors, g.successors
    before = ins.pointer[op + 1] - ins.pointer[op]
    degree = before + outs.pointer[op + 1] - outs.pointer[op]
    if degree > 0 and uniform(w.random) < 0.7:
        pick = below(w.random, degree)
        near = (
            ins.tensor[ins.pointer[op] + pick]
            if pick < before
            else outs.tensor[outs.pointer[op] + pick - before]
        )
        threshold = g.weight[near]
    stamp = w.stamp[0]
    w.visit[op] = stamp
    w.queue[0] = op
    filled = 1
    at = 0
    while at < filled:
        # A random frontier, so that clusters have many shapes.
        other = at + below(w.random, filled - at)
        x = w.queue[other]
        w.queue[other] = w.queue[at]
        w.queue[at] = x
        at += 1
        count = _add(g, w, count, g.units.unit[x], d)
        for side in range(2):
            edges = outs if side == 0 else ins
            for e in row_of(edges.pointer, x):
                y = edges.op[e]
                heavy = (
                    filled < room and w.visit[y] != stamp and g.weight[edges.tensor[e]] >= threshold
                )
                if heavy and (not together or w.device[y] == home):
                    w.visit[y] = stamp
                    w.queue[filled] = y
                    filled += 1
    return count


@uncounted_kernel
def _room(g, w):
    """Return a cluster size, log-uniform between 2 and twice a device's share of the ops."""
    n, k = g.compute.shape
    return int(2.0 * np.exp(uniform(w.random) * np.log(max(1.5, n / k))))


@uncounted_kernel
def _other_device(g, w, d):
    """Return a random device that is not d (k > 1)."""
    return (d + 1 + below(w.random, g.compute.shape[1] - 1)) % g.compute.shape[1]


@uncounted_kernel
def _shift(w, op, to):
    """Put `op` at position `to` of the sequence; those between move by one."""
    at = w.position[op]
    step = 1 if to > at else -1
    while at != to:
        w.sequence[at] = w.sequence[at + step]
        w.position[w.sequence[at]] = at
        at += step
    w.sequence[to] = op
    w.position[op] = to


@uncounted_kernel
def _clip(g, w, op, to):
    """Return the position nearest to `to` where `op` comes after its producers and before its
    consumers.
    """
    low, high = 0, w.device.shape[0] - 1
    for e in row_of(g.predecessors.pointer, op):
        low = max(low, w.position[g.predecessors.op[e]] + 1)
    for e in row_of(g.successors.pointer, op):
        high = min(high, w.position[g.successors.op[e]] - 1)
    return min(max(to, low), high)


@uncounted_kernel
def _critical(g, w):
    """Choose a step of the critical path; return (reader, source, whether data binds them), -1 for
    none.

    The path is followed back from an op that ends last. A step is a transfer that arrives just when
    its reader starts, or an op that waited for the one before it on its device.
    """
    n = w.device.shape[0]
    op = 0
    for i in range(n):
        if w.finish[i] > w.finish[op] or (w.finish[i] == w.finish[op] and uniform(w.random) < 0.2):
            op = i
    chosen, source, steps = -1, -1, 0
    by_data = False
    for _ in range(n):
        if w.start[op] == 0:
            break
        d = w.device[op]
        previous = -1
        paid = False
        for e in row_of(g.predecessors.pointer, op):
            p = g.predecessors.op[e]
            cost = (
                0
                if w.device[p] == d
                else g.transfer[g.predecessors.tensor[e], g.link_class[w.device[p], d]]
            )
            if w.finish[p] + cost == w.start[op]:
                previous = p
                paid = cost > 0
                if paid:
                    break
        data = previous >= 0
        if not data:
            previous = w.before[op]
            if previous < 0 or w.finish[previous] < w.start[op]:
                # it waited for a transfer that waited for its channel
                previous = _last_input(g, w, op)
                data = paid = True
                if previous < 0:
                    break
        if paid or not data:
            steps += 1
            if uniform(w.random) * steps < 1.0:
                chosen, source, by_data = op, previous, data
        op = previous
    return chosen, source, by_data


@uncounted_kernel
def _last_input(g, w, op):
    """Return the op on another device whose data would arrive last if no transfer waited."""
    d = w.device[op]
    last, source = -1, -1
    for e in row_of(g.predecessors.pointer, op):
        p = g.predecessors.op[e]
        if w.device[p] != d:
            time = w.finish[p] + g.transfer[g.predecessors.tensor[e], g.link_class[w.device[p], d]]
            if time > last:
                last, source = time, p
    return source


@uncounted_kernel
def _window(g, w):
    """Propose that two devices swap what they start within a window of time (often: from some time
    on).
    """
    n, k = g.compute.shape
    first = w.start[below(w.random, n)]
    last = NEVER if uniform(w.random) < 0.5 else w.start[below(w.random, n)]
    a = below(w.random, k)
    b = _other_device(g, w, a)
    count = NONE
    for unit in range(w.home.shape[0]):
        moment = w.start[g.units.member[g.units.member_ptr[unit]]]
        if first <= moment <= last:
            if w.home[unit] == a:
                count = _add(g, w, count, unit, b)
            elif w.home[unit] == b:
                count = _add(g, w, count, unit, a)
    return count


@uncounted_kernel
def _overtake(w, op):
    """Return (op to shift, its position): an op ahead of the one just before it on its device, or
    the other behind.
    """
    for _ in range(8):
        if w.before[op] >= 0:
            break
        op = below(w.random, w.device.shape[0])
    previous = w.before[op]
    if previous < 0:
        return -1, 0
    if uniform(w.random) < 0.5:
        return op, w.position[previous]
    return previous, w.position[op]


@uncounted_kernel
def _choose_cluster(g, w, move, op):
    """Return (op at the centre, device it goes to, ops to visit, whether only its device's, op that
    goes back or -1).
    """
    n, d = g.compute.shape[0], w.device[op]
    neighbour = random_neighbour(g, w.random, op)
    to, room, together, back = _other_device(g, w, d), 1, True, -1
    if move == SWAP:
        back = below(w.random, n)
        to = w.device[back]
    elif neighbour >= 0 and move == JOIN:
        to = w.device[neighbour]
    elif neighbour >= 0 and move != REASSIGN:
        room = _room(g, w)
        together = move != GATHER
        if move == GATHER or (w.device[neighbour] != d and uniform(w.random) < 0.5):
            to = w.device[neighbour]
        if move == EXCHANGE:
            for _ in range(8):
                back = below(w.random, n)
                if w.device[back] == to:
                    break
            if w.device[back] != to:
                back = -1
    return op, to, room, together, back


@uncounted_kernel
def _propose(g, w, move):
    """Fill the proposal with a random move of a kind; return (units that move, op to shift or -1,
    its position).
    """
    n, k = g.compute.shape
    w.stamp[0] += 1
    op = below(w.random, n)
    d = w.device[op]
    # A move shifts an op in the sequence, or takes a cluster to a device (and maybe another one
    # back). Each helper
    # is called from one place: they are inlined, and the compiler's time grows with every copy.
    shifted, place = -1, 0
    seed, to, room, together, back = -1, 0, 1, True, -1
    if move == REORDER:
        reach = int(np.exp(uniform(w.random) * np.log(n)))
        shifted, place = op, w.position[op] + (reach if uniform(w.random) < 0.5 else -reach)
    elif move == OVERTAKE:
        shifted, place = _overtake(w, op)
    elif k == 1:
        return 0, -1, 0
    elif move == WINDOW:
        return _window(g, w), -1, 0
    elif move == CRITICAL:
        reader, source, by_data = _critical(g, w)
        if reader < 0:
            return 0, -1, 0
        pick = uniform(w.random)
        if not by_data and pick < 0.4:
            shifted, place = reader, w.position[source]
        else:
            room = 1 if uniform(w.random) < 0.5 else _room(g, w)
            seed = reader if pick < (0.5 if by_data else 0.7) else source
            to = w.device[source if seed == reader else reader]
            if not by_data:
                to = _other_device(g, w, w.device[seed])
    else:
        seed, to, room, together, back = _choose_cluster(g, w, move, op)
    if shifted >= 0:
        return 0, shifted, _clip(g, w, shifted, place)
    count = NONE
    for turn in range(2):
        if turn == 1:
            if back < 0 or count == 0:
                break
            seed, to, room = back, d, count
        count = _grow(g, w, count, seed, together, room, to)
    return count, -1, 0


@uncounted_kernel
def _move_units(g, w, begin, count):
    """Exchange the devices of the proposal's units from `begin` on with `unit_to`; doing it twice
    undoes it.
    """
    for i in range(begin, count):
        unit = w.unit_list[i]
        old, new = w.home[unit], w.unit_to[i]
        for j in row_of(g.units.member_ptr, unit):
            op = g.units.member[j]
            w.device[op] = new
            w.load[old] -= g.compute[op, old]
            w.load[new] += g.compute[op, new]
        w.used[old] -= g.units.bytes[unit]
        w.used[new] += g.units.bytes[unit]
        w.home[unit] = new
        w.unit_to[i] = old


@uncounted_kernel
def _give_back(g, w, count):
    """Move a few units away from each device that the proposal makes too full, to the one with most
    room, if that makes both fit; return the number of units that moved.
    """
    size, capacity = g.units.bytes, g.units.capacity
    for d in range(capacity.shape[0]):
        above = w.used[d] - capacity[d]
        if above <= 0:
            continue
        to = 0
        for e in range(capacity.shape[0]):
            if capacity[e] - w.used[e] > capacity[to] - w.used[to]:
                to = e
        first, found = below(w.random, w.home.shape[0]), 0
        for i in range(w.home.shape[0]):
            unit = (first + i) % w.home.shape[0]
            free = w.unit_mark[unit] != w.stamp[0] and g.units.allowed[unit, to]
            if found < MANY and free and w.home[unit] == d:
                w.queue[found] = unit
                found += 1
        few = few_between(size, w.queue, found, above, capacity[to] - w.used[to])
        if few == 0:
            break
        for i in range(few):
            w.unit_list[count + i], w.unit_to[count + i] = w.queue[i], to
            w.unit_mark[w.queue[i]] = w.stamp[0]
        _move_units(g, w, count, count + few)
        count += few
    return count


@uncounted_kernel
def _extent(g, w, units):
    """First and last place in the sequence of the ops of the first `units` of `w.unit_list`."""
    first, last = g.compute.shape[0], -1
    for i in range(units):
        for j in row_of(g.units.member_ptr, w.unit_list[i]):
            first = min(first, w.position[g.units.member[j]])
            last = max(last, w.position[g.units.member[j]])
    return first, last


@uncounted_kernel
def _overloaded(g, w, run, limit):
    """Whether some device holds more than fits, or the ops of a device or the transfers of a
    channel take longer than `limit`.
    """
    for d in range(w.used.shape[0]):
        if w.used[d] > g.units.capacity[d] or w.load[d] > limit:
            return True
    if run.arrays.num_channels == 0:
        return False
    arrays, stamp, load = run.arrays, run.memory.stamp, run.memory.cutoff.load
    load[:] = 0
    stamp[:] = -1
    for tensor in range(arrays.producer.shape[0]):
        source = w.device[arrays.producer[tensor]]
        stamp[source] = tensor
        for e in row_of(arrays.consumer_ptr, tensor):
            d = w.device[arrays.consumer[e]]
            if stamp[d] != tensor:
                stamp[d] = tensor
                c = arrays.channel[source, d]
                if c >= 0:
                    load[c] += arrays.transfer[tensor, arrays.link_class[source, d]]
                    if load[c] > limit:
                        return True
    return False


@uncounted_kernel
def _limit(acceptance, value, best, temperature, draw):
    """Return the largest value that a proposal may have; `annealing.limits` does so for rows."""
    if temperature <= 0.0:
        return value
    if acceptance == THRESHOLD:
        return value + int(min(temperature, 1e17))
    if acceptance == RECORD:
        return max(value, best + int(min(temperature, 1e17)))
    return value + int(min(-temperature * np.log(draw + 1e-12), 1e17))


@uncounted_entry
def anneal(g, w, run, leg, tally):
    """Walk one leg; first of all evaluate the placement, if its value is NEVER.

    Parameters
    ----------
    run : what executes placements where transfers contend.
    tally : per move PROPOSED, ACCEPTED, BEST and EMPTY, shape (len(MOVES), 4), added to.

    Returns
    -------
    Number of proposals made; each counts as one evaluation.
    """
    if w.value[0] == NEVER:
        _settle(g, w, run)
    temperature = leg.hot
    factor = (leg.cold / leg.hot) ** (1.0 / max(1, leg.steps)) if leg.hot > 0.0 else 0.0
    for step in range(leg.steps):
        if w.value[1] <= leg.target:
            return step
        temperature *= factor
        pick = uniform(w.random)
        move = 0
        while move + 1 < leg.chance.shape[0] and leg.chance[move] <= pick:
            move += 1
        tally[move, PROPOSED] += 1
        units, op, to = _propose(g, w, move)
        draw = uniform(w.random)
        at = w.position[op] if op >= 0 else 0
        if units == 0 and (op < 0 or at == to):
            tally[move, EMPTY] += 1
            continue
        limit = _limit(leg.acceptance, w.value[0], w.value[1], temperature, draw)
        _move_units(g, w, NONE, units)
        if units > 0:
            units = _give_back(g, w, units)
        first, last = _extent(g, w, units)
        if op >= 0:
            _shift(w, op, to)
            first = min(first, at, to)
        value = REJECTED if _overloaded(g, w, run, limit) else 0
        if value != REJECTED:
            update_tails(g, w, last)
            if run.arrays.num_channels > 0:
                first = 0
                value = executed(g, w, run, limit)
            else:
                value = decode(g, w, first, limit)
            if value == REJECTED:
                for i in range(w.device.shape[0]):
                    w.new_start[i], w.new_finish[i], w.new_tail[i] = (
                        w.start[i],
                        w.finish[i],
                        w.tail[i],
                    )
        if value == REJECTED:
            if op >= 0:
                _shift(w, op, at)
            _move_units(g, w, NONE, units)
            continue
        tally[move, ACCEPTED] += 1
        if value < w.value[1]:
            tally[move, BEST] += 1
        adopt(w, first, value)
    return leg.steps


REJECTED = -1
"""Value of a decoding that was given up because the limit is passed."""


@uncounted_kernel
def update_tails(g, w, last):
    """Longest path from the start of each op to the end, for the ops at positions `last` and
    before.
    """
    for i in range(last, -1, -1):
        op = w.sequence[i]
        source = w.device[op]
        longest = 0
        for e in row_of(g.successors.pointer, op):
            length = w.new_tail[g.successors.op[e]]
            d = w.device[g.successors.op[e]]
            if d != source:
                length += g.transfer[g.successors.tensor[e], g.link_class[source, d]]
            longest = max(longest, length)
        w.new_tail[op] = longest + g.compute[op, source]


@uncounted_kernel
def decode(g, w, first, limit):
    """Schedule the ops from position `first` on; return the makespan, REJECTED once it must exceed
    `limit`.

    The ops before keep the start they have in the current schedule. Needs `w.new_tail`; fills
    `w.new_start`, `w.new_finish` and `w.new_table`.
    """
    n, k = g.compute.shape
    device, start, finish = w.device, w.new_start, w.new_finish
    makespan = 0
    for d in range(k):
        kept = end = longest = latest = 0
        row = w.new_table[d]
        for i in range(w.held[d]):
            op = w.table[d, i]
            if w.position[op] < first:
                row[kept] = op
                kept += 1
                if start[op] > end:
                    longest, latest = max(longest, start[op] - end), start[op]
                end = finish[op]
        w.new_held[d], w.gap[0, d], w.gap[1, d] = kept, longest, latest
        makespan = max(makespan, end)
    for i in range(first, n):
        op = w.sequence[i]
        d = device[op]
        time = data_ready(g, g, device, finish, op, d)
        row = w.new_table[d]
        size = w.new_held[d]
        cost = g.compute[op, d]
        end = finish[row[size - 1]] if size > 0 else 0
        at = size
        if cost > 0 and (cost > w.gap[0, d] or time + cost > w.gap[1, d]):
            time = max(time, end)  # no gap is long enough, or ends late enough
        else:
            while at > 0 and finish[row[at - 1]] > time:
                at -= 1
            while at < size and time + cost > start[row[at]]:
                time = max(time, finish[row[at]])
                at += 1
        if at == size and time > end:
            w.gap[0, d], w.gap[1, d] = max(w.gap[0, d], time - end), time
        if time + w.new_tail[op] > limit:
            return REJECTED
        for j in range(size, at, -1):
            row[j] = row[j - 1]
        row[at] = op
        w.new_held[d] = size + 1
        start[op] = time
        finish[op] = time + cost
        makespan = max(makespan, time + cost)
    return makespan


@uncounted_kernel
def executed(g, w, run, limit):
    """Execute the placement by `priority`, ranked by the sequence; return the makespan, REJECTED if
    it exceeds `limit`. Needs and fills what `decode` does.
    """
    n = g.compute.shape[0]
    run.memory.cutoff.limit[0] = limit
    for op in range(n):
        if w.new_tail[op] > limit:
            return REJECTED
        run.memory.device[op] = w.device[op]
        run.memory.rank[op] = w.position[op]
        run.memory.cutoff.tail[op] = w.new_tail[op]
    makespan, _ = execute(run.arrays, run.memory, np.int64(PRIORITY))
    if makespan == DEADLOCK:
        return REJECTED
    w.new_held[:] = 0
    for i in range(n):
        op = w.sequence[i]
        d = w.device[op]
        start, finish = run.memory.start[op], run.memory.finish[op]
        w.new_start[op], w.new_finish[op] = start, finish
        row = w.new_table[d]
        at = w.new_held[d]
        while at > 0 and (w.new_start[row[at - 1]] > start or w.new_finish[row[at - 1]] > finish):
            row[at] = row[at - 1]
            at -= 1
        row[at] = op
        w.new_held[d] += 1
    return makespan


@uncounted_kernel
def adopt(w, first, value):
    """Make the schedule just decoded the current one."""
    n = w.sequence.shape[0]
    for i in range(first, n):
        op = w.sequence[i]
        w.start[op] = w.new_start[op]
        w.finish[op] = w.new_finish[op]
    for op in range(n):
        w.tail[op] = w.new_tail[op]
    for d in range(w.held.shape[0]):
        w.held[d] = w.new_held[d]
        previous = -1
        for i in range(w.held[d]):
            op = w.new_table[d, i]
            w.table[d, i] = op
            w.before[op] = previous
            previous = op
    w.value[0] = value
    if value < w.value[1]:
        w.value[1] = value
        for i in range(n):
            w.best_device[i] = w.device[i]
            w.best_sequence[i] = w.sequence[i]
