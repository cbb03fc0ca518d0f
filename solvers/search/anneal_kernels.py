"""Compiled simulated annealing on (device, rank): moves, and an incremental exact evaluation.

The walk lives on placements executed under `priority` without contention. A proposal changes the device or the
rank of some ops; its value is found by *replaying* only what can differ:

- An op is put into a queue when its last producer finishes. Before the earliest such moment among the changed
  ops nothing can differ, so the replay starts from the last of a few checkpoints of the simulation before it.
- The acceptance test is decided before the evaluation (a makespan limit is drawn), so the replay is given up as
  soon as a lower bound passes the limit: start + longest remaining path under the devices proposed, or time +
  work left on a device.

Both are exact: `anneal` accepts what a full evaluation would have accepted (tests hold `replay` against
`evaluate_batch`). Random numbers come from an explicit state, a combined Tausworthe generator (L'Ecuyer 1996)
in int64 arithmetic that never overflows, so that the walk is the same with and without compilation.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from placeopt.solvers.search.walk import NEVER

REJECTED = -1
"""Value of a replay that was given up because the limit is passed."""

RANK_GAP = 1024
"""Distance between neighbouring ranks, so that an op can be put between two others."""

MOVES = ("reassign", "join", "swap", "cluster", "gather", "exchange", "window", "critical", "reorder", "overtake")
"""Names of the moves, in the order of their weights."""

REASSIGN, JOIN, SWAP, CLUSTER, GATHER, EXCHANGE, WINDOW, CRITICAL, REORDER, OVERTAKE = range(10)


# --- random numbers --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _uniform(s):
    """Return a float in [0, 1) and advance the state."""
    s[0] = (((s[0] & 4294967294) << 12) & 4294967295) ^ ((((s[0] << 13) & 4294967295) ^ s[0]) >> 19)
    s[1] = (((s[1] & 4294967288) << 4) & 4294967295) ^ ((((s[1] << 2) & 4294967295) ^ s[1]) >> 25)
    s[2] = (((s[2] & 4294967280) << 17) & 4294967295) ^ ((((s[2] << 3) & 4294967295) ^ s[2]) >> 11)
    return (s[0] ^ s[1] ^ s[2]) * 2.3283064365386963e-10  # 2^-32


@njit(cache=True, nogil=True)
def _below(s, count):
    """Return an integer in [0, count)."""
    return int(_uniform(s) * count)


# --- simulation ------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _push(key, item, size, new_key, new_item):
    """Insert into a binary heap ordered by (key, item)."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        parent_key = key[parent]
        if parent_key < new_key or (parent_key == new_key and item[parent] < new_item):
            break
        key[at] = parent_key
        item[at] = item[parent]
        at = parent
    key[at] = new_key
    item[at] = new_item


@njit(cache=True, nogil=True, inline="always")
def _pop(key, item, size):
    """Remove the smallest of a binary heap; the caller has read it already."""
    last = size - 1
    last_key = key[last]
    last_item = item[last]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        child_key = key[child]
        other = child + 1
        if other < last:
            other_key = key[other]
            if other_key < child_key or (other_key == child_key and item[other] < item[child]):
                child = other
                child_key = other_key
        if last_key < child_key or (last_key == child_key and last_item < item[child]):
            break
        key[at] = child_key
        item[at] = item[child]
        at = child
    key[at] = last_key
    item[at] = last_item


@njit(cache=True, nogil=True)
def _save(g, w, slot, time, done):
    """Copy the simulation state into the spare copy of a checkpoint."""
    copy = 1 - w.side[slot]
    w.saved_clock[slot, copy, 0] = time
    w.saved_clock[slot, copy, 1] = done
    table = w.saved_op[slot, copy]
    table[0, :] = w.pending
    table[1, :] = w.ready
    at = 0
    for d in range(g.compute.shape[1]):
        row = w.saved_device[slot, copy, :, d]
        row[0], row[1], row[2] = w.size[d], w.later_size[d], w.running[d]
        row[3], row[4], row[5] = w.next_time[d], w.begun[d], w.last[d]
        for i in range(w.size[d]):
            table[2, at] = w.heap_key[d, i]
            table[3, at] = w.heap_op[d, i]
            at += 1
        for i in range(w.later_size[d]):
            table[2, at] = w.later_key[d, i]
            table[3, at] = w.later_op[d, i]
            at += 1
    w.valid[slot, copy] = True


@njit(cache=True, nogil=True)
def _restore(g, w, slot):
    """Load the current copy of a checkpoint; return (time, done)."""
    copy = w.side[slot]
    table = w.saved_op[slot, copy]
    w.pending[:] = table[0, :]
    w.ready[:] = table[1, :]
    at = 0
    for d in range(g.compute.shape[1]):
        row = w.saved_device[slot, copy, :, d]
        w.size[d], w.later_size[d], w.running[d] = row[0], row[1], row[2]
        w.next_time[d], w.begun[d], w.last[d] = row[3], row[4], row[5]
        for i in range(w.size[d]):
            w.heap_key[d, i] = table[2, at]
            w.heap_op[d, i] = table[3, at]
            at += 1
        for i in range(w.later_size[d]):
            w.later_key[d, i] = table[2, at]
            w.later_op[d, i] = table[3, at]
            at += 1
    return w.saved_clock[slot, copy, 0], w.saved_clock[slot, copy, 1]


@njit(cache=True, nogil=True)
def _arrivals(g, w, op, time):
    """Latest arrival at `op` of the tensors produced by `time`, under the devices proposed."""
    d = w.device[op]
    latest = 0
    for e in range(g.pred_ptr[op], g.pred_ptr[op + 1]):
        p = g.pred_op[e]
        # What ended by the checkpoint in the current schedule did so in the proposed one.
        if w.finish[p] <= time:
            arrival = w.finish[p]
            if w.device[p] != d:
                arrival += g.transfer[g.pred_tensor[e], g.link_class[w.device[p], d]]
            latest = max(latest, arrival)
    return latest


@njit(cache=True, nogil=True)
def _update_tails(g, w):
    """Longest path from the start of each op to the end, with the transfers that `device` implies."""
    for i in range(g.order.shape[0] - 1, -1, -1):
        op = g.order[i]
        source = w.device[op]
        longest = 0
        for e in range(g.edge_ptr[op], g.edge_ptr[op + 1]):
            length = w.tail[g.edge_op[e]]
            d = w.device[g.edge_op[e]]
            if d != source:
                length += g.transfer[g.edge_tensor[e], g.link_class[source, d]]
            longest = max(longest, length)
        w.tail[op] = longest + g.compute[op, source]


@njit(cache=True, nogil=True)
def replay(g, w, moment, moved, limit):
    """Makespan of (w.device, w.rank) under `priority`, or REJECTED once it must exceed `limit`.

    Parameters
    ----------
    moment : no op that changed enters a queue before this time, neither now nor in the current placement.
    moved : the first `moved` entries of `w.unit_list` have new devices.
    limit : give up above this value.

    Fills `w.new_start`, `w.new_finish`, `w.new_before` (which hold the current values on entry), and saves
    checkpoints into their spare copies. `w.value[2]` is the checkpoint that the replay started from.
    """
    n, k = g.compute.shape
    heap_key, heap_op, size = w.heap_key, w.heap_op, w.size
    later_key, later_op, later_size = w.later_key, w.later_op, w.later_size
    running, next_time, ready, pending, tail = w.running, w.next_time, w.ready, w.pending, w.tail
    device, rank = w.device, w.rank
    _update_tails(g, w)
    slot = g.checkpoints - 1
    while slot >= 0 and not (w.valid[slot, w.side[slot]] and w.saved_clock[slot, w.side[slot], 0] < moment):
        slot -= 1
    w.value[2] = slot
    next_slot = slot + 1
    for s in range(next_slot, g.checkpoints):
        w.valid[s, 1 - w.side[s]] = False
    num_touched = 0
    for d in range(k):
        w.is_touched[d] = False
    if slot >= 0:
        time, done = _restore(g, w, slot)
        for i in range(moved):
            for j in range(g.unit_ptr[w.unit_list[i]], g.unit_ptr[w.unit_list[i] + 1]):
                ready[g.unit_op[j]] = _arrivals(g, w, g.unit_op[j], time)
    else:
        time, done = 0, 0
        for d in range(k):
            size[d] = later_size[d] = w.begun[d] = 0
            running[d] = w.last[d] = -1
            next_time[d] = NEVER
        for op in range(n):
            pending[op] = g.indegree[op]
            ready[op] = 0
            if pending[op] == 0:
                if tail[op] > limit:
                    return REJECTED
                d = device[op]
                _push(heap_key[d], heap_op[d], size[d], rank[op], op)
                size[d] += 1
                if not w.is_touched[d]:
                    w.is_touched[d] = True
                    w.touched[num_touched] = d
                    num_touched += 1
    makespan = time

    while True:
        instant = False
        for i in range(num_touched):
            d = w.touched[i]
            w.is_touched[d] = False
            if running[d] >= 0:
                continue
            while later_size[d] > 0 and later_key[d, 0] <= time:
                op = later_op[d, 0]
                _pop(later_key[d], later_op[d], later_size[d])
                later_size[d] -= 1
                _push(heap_key[d], heap_op[d], size[d], rank[op], op)
                size[d] += 1
            if size[d] == 0:
                next_time[d] = later_key[d, 0] if later_size[d] > 0 else NEVER
                continue
            op = heap_op[d, 0]
            if time + tail[op] > limit or time + w.load[d] - w.begun[d] > limit:
                return REJECTED
            _pop(heap_key[d], heap_op[d], size[d])
            size[d] -= 1
            cost = g.compute[op, d]
            w.begun[d] += cost
            running[d] = op
            w.new_before[op] = w.last[d]
            w.last[d] = op
            w.new_start[op] = time
            w.new_finish[op] = time + cost
            next_time[d] = time + cost
            if cost == 0:
                instant = True
        num_touched = 0

        if not instant:
            if done == n:
                break
            if next_slot < g.checkpoints and done * (g.checkpoints + 1) >= (next_slot + 1) * n:
                # Skip checkpoints that would hold the same state.
                while next_slot + 1 < g.checkpoints and done * (g.checkpoints + 1) >= (next_slot + 2) * n:
                    next_slot += 1
                _save(g, w, next_slot, time, done)
                next_slot += 1
            time = NEVER
            for d in range(k):
                time = min(time, next_time[d])

        for source in range(k):
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
            next_time[source] = NEVER
            done += 1
            makespan = time
            for e in range(g.edge_ptr[u], g.edge_ptr[u + 1]):
                v = g.edge_op[e]
                d = device[v]
                arrival = time
                if d != source:
                    arrival += g.transfer[g.edge_tensor[e], g.link_class[source, d]]
                pending[v] -= 1
                if arrival > ready[v]:
                    ready[v] = arrival
                if pending[v] == 0:
                    at = ready[v]
                    if at + tail[v] > limit:
                        return REJECTED
                    if at <= time:
                        _push(heap_key[d], heap_op[d], size[d], rank[v], v)
                        size[d] += 1
                    else:
                        _push(later_key[d], later_op[d], later_size[d], at, v)
                        later_size[d] += 1
                    if running[d] < 0 and not w.is_touched[d]:
                        w.is_touched[d] = True
                        w.touched[num_touched] = d
                        num_touched += 1
    return makespan


@njit(cache=True, nogil=True)
def _adopt(g, w, value):
    """Make the placement just replayed the current one."""
    for slot in range(w.value[2] + 1, g.checkpoints):
        w.side[slot] = 1 - w.side[slot]
    w.start[:] = w.new_start
    w.finish[:] = w.new_finish
    w.before[:] = w.new_before
    w.value[0] = value
    if value < w.value[1]:
        w.value[1] = value
        w.best_device[:] = w.device
        w.best_rank[:] = w.rank


@njit(cache=True, nogil=True)
def settle(g, w):
    """Evaluate the current placement from scratch and derive everything from it."""
    for d in range(g.compute.shape[1]):
        w.used[d] = w.load[d] = 0
    for op in range(w.device.shape[0]):
        w.load[w.device[op]] += g.compute[op, w.device[op]]
    for op in range(w.device.shape[0]):
        w.visit[op] = 0
    for unit in range(w.home.shape[0]):
        w.home[unit] = w.device[g.unit_op[g.unit_ptr[unit]]]
        w.used[w.home[unit]] += g.unit_bytes[unit]
        w.unit_mark[unit] = 0
    w.stamp[0] = 0
    _adopt(g, w, replay(g, w, 0, 0, NEVER))


# --- moves -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _add(g, w, count, unit, d):
    """Append "unit goes to d" to the proposal, unless it is there, or d cannot run it; return the new count."""
    if w.unit_mark[unit] == w.stamp[0] or w.home[unit] == d or not g.allowed[unit, d]:
        return count
    w.unit_mark[unit] = w.stamp[0]
    w.unit_list[count] = unit
    w.unit_to[count] = d
    return count + 1


@njit(cache=True, nogil=True)
def _neighbour(g, w, op):
    """Return a random op that shares a tensor with `op`, -1 if there is none."""
    ins = g.pred_ptr[op + 1] - g.pred_ptr[op]
    outs = g.edge_ptr[op + 1] - g.edge_ptr[op]
    if ins + outs == 0:
        return -1
    pick = _below(w.random, ins + outs)
    return g.pred_op[g.pred_ptr[op] + pick] if pick < ins else g.edge_op[g.edge_ptr[op] + pick - ins]


@njit(cache=True, nogil=True)
def _grow(g, w, count, op, together, room, d):
    """Add to the proposal a connected cluster around `op`, which goes to device d; return the new count.

    Parameters
    ----------
    together : only ops on the device of `op` join; otherwise any does (their edges are zeroed).
    room : most ops to visit. Edges lighter than that of a random neighbour of the first op are not followed.
    """
    home = w.device[op]
    threshold = 0
    outs = g.edge_ptr[op + 1] - g.edge_ptr[op]
    ins = g.pred_ptr[op + 1] - g.pred_ptr[op]
    if ins + outs > 0 and _uniform(w.random) < 0.7:
        pick = _below(w.random, ins + outs)
        tensor = g.pred_tensor[g.pred_ptr[op] + pick] if pick < ins else g.edge_tensor[g.edge_ptr[op] + pick - ins]
        threshold = g.weight[tensor]
    stamp = w.stamp[0]
    w.visit[op] = stamp
    w.queue[0] = op
    filled = 1
    at = 0
    while at < filled:
        # A random frontier, so that clusters have many shapes.
        other = at + _below(w.random, filled - at)
        x = w.queue[other]
        w.queue[other] = w.queue[at]
        w.queue[at] = x
        at += 1
        count = _add(g, w, count, g.unit[x], d)
        for e in range(g.edge_ptr[x], g.edge_ptr[x + 1]):
            y = g.edge_op[e]
            if filled < room and w.visit[y] != stamp and g.weight[g.edge_tensor[e]] >= threshold:
                if not together or w.device[y] == home:
                    w.visit[y] = stamp
                    w.queue[filled] = y
                    filled += 1
        for e in range(g.pred_ptr[x], g.pred_ptr[x + 1]):
            y = g.pred_op[e]
            if filled < room and w.visit[y] != stamp and g.weight[g.pred_tensor[e]] >= threshold:
                if not together or w.device[y] == home:
                    w.visit[y] = stamp
                    w.queue[filled] = y
                    filled += 1
    return count


@njit(cache=True, nogil=True)
def _room(g, w):
    """Return a cluster size, log-uniform between 2 and twice a device's share of the ops."""
    n, k = g.compute.shape
    return int(2.0 * np.exp(_uniform(w.random) * np.log(max(1.5, n / k))))


@njit(cache=True, nogil=True)
def _other_device(g, w, d):
    """Return a random device that is not d (k > 1)."""
    return (d + 1 + _below(w.random, g.compute.shape[1] - 1)) % g.compute.shape[1]


@njit(cache=True, nogil=True)
def _set_rank(w, ranks, op, rank):
    w.op_list[ranks] = op
    w.op_rank[ranks] = rank
    return ranks + 1


@njit(cache=True, nogil=True)
def _critical(g, w):
    """Propose to shorten one step of the critical path; return (units, ranks) changed.

    The path is followed back from an op that ends last. A step is a transfer that arrives just when its
    reader starts, or an op that waited for the one before it on its device.
    """
    n = w.device.shape[0]
    op = 0
    for i in range(n):
        if w.finish[i] > w.finish[op] or (w.finish[i] == w.finish[op] and _uniform(w.random) < 0.2):
            op = i
    chosen, source, steps = -1, -1, 0
    by_data = False
    for _ in range(n):
        if w.start[op] == 0:
            break
        d = w.device[op]
        previous = -1
        paid = False
        for e in range(g.pred_ptr[op], g.pred_ptr[op + 1]):
            p = g.pred_op[e]
            cost = 0 if w.device[p] == d else g.transfer[g.pred_tensor[e], g.link_class[w.device[p], d]]
            if w.finish[p] + cost == w.start[op]:
                previous = p
                paid = cost > 0
                if paid:
                    break
        data = previous >= 0
        if not data:
            previous = w.before[op]
            if previous < 0:
                break
        if paid or not data:
            steps += 1
            if _uniform(w.random) * steps < 1.0:
                chosen, source, by_data = op, previous, data
        op = previous
    if chosen < 0:
        return 0, 0
    pick = _uniform(w.random)
    if by_data:
        room = 1 if _uniform(w.random) < 0.5 else _room(g, w)
        if pick < 0.5:
            return _grow(g, w, 0, chosen, True, room, w.device[source]), 0
        return _grow(g, w, 0, source, True, room, w.device[chosen]), 0
    if pick < 0.4:
        return 0, _set_rank(w, 0, chosen, w.rank[source] - 1)
    victim = chosen if pick < 0.7 else source
    d = _other_device(g, w, w.device[victim])
    room = 1 if _uniform(w.random) < 0.5 else _room(g, w)
    return _grow(g, w, 0, victim, True, room, d), 0


@njit(cache=True, nogil=True)
def _window(g, w):
    """Propose that two devices swap what they start within a window of time (often: from some time on)."""
    n, k = g.compute.shape
    first = w.start[_below(w.random, n)]
    last = NEVER if _uniform(w.random) < 0.5 else w.start[_below(w.random, n)]
    a = _below(w.random, k)
    b = _other_device(g, w, a)
    count = 0
    for unit in range(w.home.shape[0]):
        moment = w.start[g.unit_op[g.unit_ptr[unit]]]
        if first <= moment <= last:
            if w.home[unit] == a:
                count = _add(g, w, count, unit, b)
            elif w.home[unit] == b:
                count = _add(g, w, count, unit, a)
    return count


@njit(cache=True, nogil=True)
def _propose(g, w, move):
    """Fill the proposal with a random move of a kind; return (units, ranks) that change, both 0 if it failed."""
    n, k = g.compute.shape
    w.stamp[0] += 1
    op = _below(w.random, n)
    d = w.device[op]
    if move == REORDER:
        other = _below(w.random, n)
        shift = 1 if _uniform(w.random) < 0.5 else -1
        for _ in range(4):  # an op of the same device, if one comes up
            if w.device[other] == d:
                break
            other = _below(w.random, n)
        return 0, _set_rank(w, 0, op, w.rank[other] + shift) if other != op else 0
    if move == OVERTAKE:
        # An op that waited: ahead of the one before it, or exchange their ranks.
        for _ in range(8):
            if w.before[op] >= 0 and w.rank[w.before[op]] < w.rank[op]:
                break
            op = _below(w.random, n)
        previous = w.before[op]
        if previous < 0:
            return 0, 0
        if _uniform(w.random) < 0.5:
            return 0, _set_rank(w, 0, op, w.rank[previous] - 1)
        return 0, _set_rank(w, _set_rank(w, 0, op, w.rank[previous]), previous, w.rank[op])
    if k == 1:
        return 0, 0
    if move == CRITICAL:
        return _critical(g, w)
    if move == WINDOW:
        return _window(g, w), 0
    if move == REASSIGN:
        return _add(g, w, 0, g.unit[op], _other_device(g, w, d)), 0
    neighbour = _neighbour(g, w, op)
    if move == SWAP:
        other = _below(w.random, n)
        count = _add(g, w, 0, g.unit[op], w.device[other])
        return (_add(g, w, count, g.unit[other], d) if count else 0), 0
    if neighbour < 0:
        return _add(g, w, 0, g.unit[op], _other_device(g, w, d)), 0
    if move == JOIN:
        return _add(g, w, 0, g.unit[op], w.device[neighbour]), 0
    room = _room(g, w)
    if move == GATHER:
        return _grow(g, w, 0, op, False, room, w.device[neighbour]), 0
    to = w.device[neighbour] if w.device[neighbour] != d and _uniform(w.random) < 0.5 else _other_device(g, w, d)
    count = _grow(g, w, 0, op, True, room, to)
    if move == EXCHANGE and count > 0:
        back = _below(w.random, n)
        for _ in range(8):
            if w.device[back] == to:
                break
            back = _below(w.random, n)
        if w.device[back] == to:
            count = _grow(g, w, count, back, True, count, d)
    return count, 0


@njit(cache=True, nogil=True)
def _move_units(g, w, count):
    """Exchange the devices of the proposal's units with `unit_to`; doing it twice undoes it."""
    for i in range(count):
        unit = w.unit_list[i]
        old, new = w.home[unit], w.unit_to[i]
        for j in range(g.unit_ptr[unit], g.unit_ptr[unit + 1]):
            op = g.unit_op[j]
            w.device[op] = new
            w.load[old] -= g.compute[op, old]
            w.load[new] += g.compute[op, new]
        w.used[old] -= g.unit_bytes[unit]
        w.used[new] += g.unit_bytes[unit]
        w.home[unit] = new
        w.unit_to[i] = old


@njit(cache=True, nogil=True)
def _swap_ranks(w, count):
    """Exchange the ranks of the proposal with the current ones; doing it twice undoes it."""
    for i in range(count):
        op = w.op_list[i]
        w.rank[op], w.op_rank[i] = w.op_rank[i], w.rank[op]


@njit(cache=True, nogil=True)
def _moment(g, w, units, ranks):
    """Earliest time at which an op that changed enters a queue: when its last producer ends."""
    moment = NEVER
    for i in range(units):
        for j in range(g.unit_ptr[w.unit_list[i]], g.unit_ptr[w.unit_list[i] + 1]):
            op = g.unit_op[j]
            last = 0
            for e in range(g.pred_ptr[op], g.pred_ptr[op + 1]):
                last = max(last, w.finish[g.pred_op[e]])
            moment = min(moment, last)
    for i in range(ranks):
        last = 0
        for e in range(g.pred_ptr[w.op_list[i]], g.pred_ptr[w.op_list[i] + 1]):
            last = max(last, w.finish[g.pred_op[e]])
        moment = min(moment, last)
    return moment


@njit(cache=True, nogil=True)
def anneal(g, w, chance, steps, hot, cold, target, tally):
    """Walk `steps` proposals with the temperature falling geometrically from `hot` to `cold` ticks.

    Parameters
    ----------
    chance : cumulative probability of each move, shape (len(MOVES),).
    target : stop once the best value is at most this.
    tally : proposals, acceptances and improvements of the best per move, shape (len(MOVES), 3), added to.

    Returns
    -------
    Number of proposals made; each counts as one evaluation.
    """
    k = g.compute.shape[1]
    temperature = hot
    factor = (cold / hot) ** (1.0 / max(1, steps)) if hot > 0.0 else 0.0
    for step in range(steps):
        if w.value[1] <= target:
            return step
        temperature *= factor
        pick = _uniform(w.random)
        move = 0
        while move + 1 < chance.shape[0] and chance[move] <= pick:
            move += 1
        tally[move, 0] += 1
        units, ranks = _propose(g, w, move)
        limit = w.value[0]
        draw = _uniform(w.random)
        if units + ranks == 0:
            continue
        if temperature > 0.0:
            limit += int(min(-temperature * np.log(draw + 1e-12), 1e17))
        moment = _moment(g, w, units, ranks)
        _move_units(g, w, units)
        _swap_ranks(w, ranks)
        value = 0
        for d in range(k):
            if w.used[d] > g.capacity[d] or w.load[d] > limit:
                value = REJECTED
        if value != REJECTED:
            value = replay(g, w, moment, units, limit)
        if value == REJECTED:
            _swap_ranks(w, ranks)
            _move_units(g, w, units)
            w.new_start[:] = w.start
            w.new_finish[:] = w.finish
            w.new_before[:] = w.before
            continue
        tally[move, 1] += 1
        if value < w.value[1]:
            tally[move, 2] += 1
        _adopt(g, w, value)
    return steps
