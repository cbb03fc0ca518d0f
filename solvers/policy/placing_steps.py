"""Placing steps, compiled: a policy picks an op of the incumbent and a kind of step, and places a window of ops anew.

A placement is a device per op and a topological sequence. It is decoded op by op: each starts on its device as early as its
inputs allow, in a gap if one is long enough. An op outside the window keeps its device; for an op of the window the policy scores
the devices. A window of all ops is a placement from scratch; one of a single op is the move of a local search.

Each step may also shift the op in the sequence. Only what comes behind the first change is decoded again, and decoding is given
up as soon as a start plus the shortest possible rest passes what acceptance allows (drawn before).

References
----------
- X. Chen, Y. Tian. Learning to perform local rewriting for combinatorial optimization. NeurIPS 2019. (A policy picks a region
  of a solution, another rewrites it.)
- H. Topcuoglu, S. Hariri, M.-Y. Wu. Performance-effective and low-complexity task scheduling for heterogeneous computing. IEEE
  TPDS 13, 2002. (Insertion.)
- N. Metropolis et al. Equation of state calculations by fast computing machines. Journal of Chemical Physics 21, 1953.
"""

from __future__ import annotations

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from enum import IntEnum

import numpy as np

from placeopt.model.compiled import inlined, uncounted, uncounted_entry
from placeopt.model.random_bits import split_uniform
from placeopt.solvers.policy.step_arrays import NEVER


class Place(IntEnum):
    """Features of a device for an op; the first six are ticks."""

    START = 0  # earliest, in a gap or behind all
    FINISH = 1
    PAID = 2  # transfers of its inputs to there
    IDLE = 3  # left idle before it, where it goes behind all
    SIBLINGS = 4  # transfers to other producers of its consumers, there
    CONSUMERS = 5  # transfers to its consumers, there
    LOAD = 6  # over a device's share
    STAYING = 7  # whether the incumbent has it there
    CLUSTER = 8  # part of the work of its cluster that is there


class Pick(IntEnum):
    """Features of an op of the incumbent, each in [0, 1]."""

    CRITICAL = 0  # whether it is on a chain that ends last
    SLACK = 1  # between its start plus the longest rest and the makespan
    REMOTE = 2  # whether it starts when a tensor arrives from another device
    WAITS = 3  # for its device after all inputs are there
    SIZE = 4  # its work over the longest op's
    PAID = 5  # part of its inputs, by transfer time, that come from other devices
    SENT = 6  # part of its outputs that go to other devices
    TIME = 7  # when it starts
    IDLE = 8  # left idle before it
    LOAD = 9  # of its device over the largest


class Kind(IntEnum):
    """Kinds of steps around an op: where it moves in the sequence, and which ops go to which devices."""

    EARLIER = 0
    LATER = 1
    OVERTAKE = 2  # the op before it on its device
    JOIN = 3  # the device of the producer that it waits for
    JOIN_CLUSTER = 4  # with its cluster
    PULL = 5  # that producer to its device
    PULL_CLUSTER = 6
    EVICT = 7  # the op before it on its device, to another one, drawn by the policy
    MOVE = 8  # itself, likewise
    MOVE_CLUSTER = 9
    REPLACE = 10  # the ops that follow in the sequence
    REPLACE_CLUSTER = 11
    FOLLOW = 12  # move it, and place everything behind it anew
    FOLLOW_EARLIER = 13
    FOLLOW_LATER = 14


CHANGED, FIRST, LAST, LEADER = range(4)
"""Entries of `StepState.moved`: units that change, first and last place in the sequence, device of those that go together."""

KEPT, FREE, TOGETHER = range(3)
"""Roles of units in a step: they stay, are placed one by one, or go to one other device."""

CURRENT, BEST = range(2)
"""Entries of `StepState.value`."""

REJECTED = -1
"""Value of a step that was given up because the limit is passed."""

PATIENCE = 8
"""Accepted steps after which the policy looks at the incumbent again, if the value stays the same."""

STEP_WORK, OP_WORK, EDGE_WORK, DEVICE_WORK, ADOPT_WORK, LOOK_WORK = 1, 2, 1, 3, 3, 8
"""Units of work: of a step, for each op of the graph; of an op that is decoded, of each of its inputs, of each device that it may
go to (and again of each input there); of each op when a step is accepted, and when the policy looks at the incumbent."""

UNLIMITED, NOTHING = np.array([NEVER, 0])
"""Typed, for a plain number is a type of its own to numba."""

SIZES = NUM_PLACE, NUM_PICK, NUM_KINDS = len(Place), len(Pick), len(Kind)


# --- decoding --------------------------------------------------------------------------------------------


@uncounted
def _tails(g, p, s, first, last):
    """Shortest possible rest from the start of each op at the places from `first` to `last`; exact where nothing is free."""
    for i in range(last, first - 1, -1):
        op = s.sequence[i]
        d = s.home[g.units.unit[op]]
        longest = 0
        for e in range(g.successors.pointer[op], g.successors.pointer[op + 1]):
            x = g.successors.op[e]
            length = s.new_tail[x]
            there = s.home[g.units.unit[x]]
            if d >= 0 and there >= 0 and there != d:
                length += g.transfer[g.successors.tensor[e], g.link_class[d, there]]
            longest = max(longest, length)
        s.new_tail[op] = longest + (g.compute[op, d] if d >= 0 else p.least[op])


@inlined
def _ready(g, s, op, d):
    """When the inputs of an op are on device d."""
    time = 0
    for e in range(g.predecessors.pointer[op], g.predecessors.pointer[op + 1]):
        u = g.predecessors.op[e]
        source = s.home[g.units.unit[u]]
        arrival = s.new_finish[u]
        if source != d:
            arrival += g.transfer[g.predecessors.tensor[e], g.link_class[source, d]]
        time = max(time, arrival)
    return time


@inlined
def _gap(s, d, time, cost):
    """Return the place in device d's table where an op that is ready at `time` goes: the first gap that is long enough."""
    row = s.new_table[d]
    size = s.new_held[d]
    at = size
    while at > 0 and s.new_finish[row[at - 1]] > time:
        at -= 1
    while at < size and max(time, s.new_finish[row[at - 1]] if at > 0 else 0) + cost > s.new_start[row[at]]:
        at += 1
    return at


@inlined
def _surroundings(g, s, op):
    """Fill in what pulls an op to each device: its consumers, and the other producers of these."""
    for d in range(s.siblings.shape[0]):
        s.siblings[d] = s.consumers[d] = 0.0
    for e in range(g.successors.pointer[op], g.successors.pointer[op + 1]):
        x = g.successors.op[e]
        weight = g.weight[g.successors.tensor[e]]
        there = s.home[g.units.unit[x]]
        if there >= 0:
            s.consumers[there] += weight
        s.spent[1] += EDGE_WORK * (g.predecessors.pointer[x + 1] - g.predecessors.pointer[x])
        for o in range(g.predecessors.pointer[x], g.predecessors.pointer[x + 1]):
            u = g.predecessors.op[o]
            at = s.home[g.units.unit[u]]
            if u != op and at >= 0:
                s.siblings[at] += weight


@uncounted
def _choose(g, p, s, op):
    """Return the device that the policy gives an op: the best, or another than now, drawn, for those that go together; -1: none."""
    unit = g.units.unit[op]
    drawn = s.role[unit] == TOGETHER
    if drawn and s.moved[LEADER] >= 0:
        d = s.moved[LEADER]
        return d if g.units.allowed[unit, d] and s.used[d] + g.units.bytes[unit] <= g.units.capacity[d] else -1
    _surroundings(g, s, op)
    w = p.move if drawn else p.place
    cluster = p.cluster[op]
    best, top = -1, -np.inf
    s.option_score[:] = -np.inf
    for d in range(g.compute.shape[1]):
        full = s.used[d] + g.units.bytes[unit] > g.units.capacity[d]
        if full or not g.units.allowed[unit, d] or (drawn and d == s.device[op]):
            continue
        time, paid = 0, 0
        for e in range(g.predecessors.pointer[op], g.predecessors.pointer[op + 1]):
            u = g.predecessors.op[e]
            source = s.home[g.units.unit[u]]
            arrival = s.new_finish[u]
            if source != d:
                delay = g.transfer[g.predecessors.tensor[e], g.link_class[source, d]]
                paid += delay
                arrival += delay
            time = max(time, arrival)
        cost = g.compute[op, d]
        at = _gap(s, d, time, cost)
        open_at = s.new_finish[s.new_table[d, at - 1]] if at > 0 else 0
        time = max(time, open_at)
        f = s.option[d]
        f[Place.START], f[Place.FINISH], f[Place.PAID] = time, time + cost, paid
        f[Place.IDLE] = time - open_at if at == s.new_held[d] else 0.0
        f[Place.SIBLINGS], f[Place.CONSUMERS], f[Place.LOAD] = s.siblings[d], s.consumers[d], s.load[d] / p.share
        f[Place.STAYING] = 1.0 if d == s.device[op] else 0.0
        f[Place.CLUSTER] = s.cluster_on[cluster, d] / p.cluster_work[cluster]
        score = 0.0
        for i in range(NUM_PLACE):
            score += w[i] * f[i]
        s.option_score[d] = score
        if drawn:
            score -= np.log(-np.log(split_uniform(s.random) + 1e-300) + 1e-300)
        if score > top:
            best, top = d, score
    if drawn:
        s.moved[LEADER] = s.tried[2] = best
        for d in range(s.option.shape[0]):
            s.drawn_score[d] = s.option_score[d]
            for i in range(NUM_PLACE):
                s.drawn[d, i] = s.option[d, i]
    return best


@inlined
def _keep(g, s, first):
    """Begin with what the devices run of the ops before place `first`; return when the last of it ends."""
    makespan = 0
    for d in range(g.compute.shape[1]):
        kept = 0
        row = s.new_table[d]
        for i in range(s.held[d]):
            op = s.table[d, i]
            if s.position[op] < first:
                row[kept] = op
                kept += 1
        s.new_held[d] = kept
        if kept > 0:
            makespan = max(makespan, s.new_finish[row[kept - 1]])
    return makespan


@inlined
def _count_clusters(g, p, s):
    """Sum up the work of every cluster on every device, but for units that the policy has to place."""
    s.cluster_on[:] = 0.0
    for v in range(g.compute.shape[0]):
        d = s.home[g.units.unit[v]]
        if d >= 0:
            s.cluster_on[p.cluster[v], d] += p.work[v]


@inlined
def _put(g, p, s, op, d):
    """Give the unit of an op its device."""
    unit = g.units.unit[op]
    s.home[unit] = d
    s.used[d] += g.units.bytes[unit]
    for j in range(g.units.member_ptr[unit], g.units.member_ptr[unit + 1]):
        x = g.units.member[j]
        s.load[d] += g.compute[x, d]
        s.cluster_on[p.cluster[x], d] += p.work[x]


@uncounted
def _decode(g, p, s, first, limit):
    """Schedule the ops from place `first` on, placing those of free units; return the makespan, or REJECTED beyond `limit`."""
    n, k = g.compute.shape
    makespan = _keep(g, s, first)
    if s.moved[CHANGED] > 0:
        _count_clusters(g, p, s)
    for i in range(first, n):
        op = s.sequence[i]
        d = s.home[g.units.unit[op]]
        inputs = EDGE_WORK * (g.predecessors.pointer[op + 1] - g.predecessors.pointer[op])
        s.spent[1] += OP_WORK + inputs
        if d < 0:
            s.spent[1] += (DEVICE_WORK + inputs) * k
            d = _choose(g, p, s, op)
            if d < 0:
                return REJECTED
            _put(g, p, s, op, d)
        time, cost = _ready(g, s, op, d), g.compute[op, d]
        at = _gap(s, d, time, cost)
        row = s.new_table[d]
        if at > 0:
            time = max(time, s.new_finish[row[at - 1]])
        if time + s.new_tail[op] > limit:
            return REJECTED
        for j in range(s.new_held[d], at, -1):
            row[j] = row[j - 1]
        row[at] = op
        s.new_held[d] += 1
        s.new_start[op] = time
        s.new_finish[op] = time + cost
        makespan = max(makespan, time + cost)
    return makespan


@uncounted
def _adopt(g, p, s, first, value):
    """Make what was just decoded from place `first` on the incumbent."""
    n = s.sequence.shape[0]
    s.spent[1] += ADOPT_WORK * n
    _tails(g, p, s, 0, n - 1 if s.moved[CHANGED] > 0 else first - 1)
    for op in range(n):
        s.device[op] = s.home[g.units.unit[op]]
        s.start[op], s.finish[op], s.tail[op] = s.new_start[op], s.new_finish[op], s.new_tail[op]
    for d in range(s.held.shape[0]):
        s.held[d] = s.new_held[d]
        previous = -1
        for i in range(s.held[d]):
            op = s.new_table[d, i]
            s.table[d, i] = op
            s.before[op] = previous
            previous = op
    s.value[CURRENT] = value
    if value < s.value[BEST]:
        s.value[BEST] = value
        for i in range(n):
            s.best_device[i], s.best_sequence[i] = s.device[i], s.sequence[i]
            s.best_start[i], s.best_finish[i] = s.start[i], s.finish[i]
    for i in range(s.moved[CHANGED]):
        s.role[s.unit_list[i]] = KEPT


@uncounted_entry
def begin(g, p, s):
    """Schedule `s.sequence` from scratch: units with a home stay there, the policy places those with home -1.

    Returns
    -------
    The makespan, or REJECTED where the policy found no room for an op. The best so far is forgotten.
    """
    n, k = g.compute.shape
    for d in range(k):
        s.used[d] = s.load[d] = s.held[d] = 0
    for i in range(n):
        s.position[s.sequence[i]] = i
    s.cluster_on[:] = 0.0
    for unit in range(s.home.shape[0]):
        s.role[unit], d = FREE, s.home[unit]
        s.unit_list[unit] = unit
        for j in range(g.units.member_ptr[unit], g.units.member_ptr[unit + 1]):
            s.device[g.units.member[j]] = d
        if d >= 0:
            _put(g, p, s, g.units.member[g.units.member_ptr[unit]], d)
    s.moved[CHANGED], s.moved[LEADER] = s.home.shape[0], -1
    s.value[BEST] = NEVER
    _tails(g, p, s, 0, n - 1)
    value = _decode(g, p, s, NOTHING, UNLIMITED)
    if value != REJECTED:
        _adopt(g, p, s, NOTHING, value)
    return value


# --- what the policy sees --------------------------------------------------------------------------------


@inlined
def _mark_critical(g, s):
    """Mark the ops of all chains that end last, and note the producer that each op waits for longest."""
    n = s.sequence.shape[0]
    count = 0
    for op in range(n):
        s.critical[op] = s.finish[op] >= s.value[CURRENT]
        if s.critical[op]:
            s.members[count] = op
            count += 1
        latest = -1
        s.binding[op] = -1
        for e in range(g.predecessors.pointer[op], g.predecessors.pointer[op + 1]):
            u = g.predecessors.op[e]
            arrival = s.finish[u]
            if s.device[u] != s.device[op]:
                arrival += g.transfer[g.predecessors.tensor[e], g.link_class[s.device[u], s.device[op]]]
            if arrival > latest or (arrival == latest and s.device[u] != s.device[op]):
                latest, s.binding[op] = arrival, u
        s.new_tail[op] = max(0, latest)  # when the inputs are there; put right at the end of `_look`
    while count > 0:
        count -= 1
        op = s.members[count]
        u = s.before[op]
        if u >= 0 and not s.critical[u] and s.finish[u] == s.start[op]:
            s.critical[u] = True
            s.members[count] = u
            count += 1
        for e in range(g.predecessors.pointer[op], g.predecessors.pointer[op + 1]):
            u = g.predecessors.op[e]
            arrival = s.finish[u]
            if s.device[u] != s.device[op]:
                arrival += g.transfer[g.predecessors.tensor[e], g.link_class[s.device[u], s.device[op]]]
            if arrival == s.start[op] and not s.critical[u]:
                s.critical[u] = True
                s.members[count] = u
                count += 1


@inlined
def _remote_share(g, s, edges, op):
    """Part of the edges of an op, by transfer time, that lead to other devices."""
    total, far = 1e-9, 0.0
    for e in range(edges.pointer[op], edges.pointer[op + 1]):
        weight = g.weight[edges.tensor[e]]
        total += weight
        if s.device[edges.op[e]] != s.device[op]:
            far += weight
    return far / total


@uncounted
def _look(g, p, s, progress):
    """Score the ops of the incumbent and the kinds of steps."""
    n = s.sequence.shape[0]
    s.spent[1] += LOOK_WORK * n
    _mark_critical(g, s)
    value = max(1.0, float(s.value[CURRENT]))
    longest, heaviest = 1, 1
    for op in range(n):
        longest = max(longest, s.finish[op] - s.start[op])
    for d in range(s.load.shape[0]):
        heaviest = max(heaviest, s.load[d])
    total = 0.0
    s.mean[:] = 0.0
    for op in range(n):
        u, ready, f = s.binding[op], s.new_tail[op], s.features[op]
        open_at = s.finish[s.before[op]] if s.before[op] >= 0 else 0
        f[Pick.CRITICAL] = 1.0 if s.critical[op] else 0.0
        f[Pick.SLACK] = (value - s.start[op] - s.tail[op]) / value
        f[Pick.REMOTE] = 1.0 if u >= 0 and ready == s.start[op] and s.device[u] != s.device[op] else 0.0
        f[Pick.WAITS] = min(1.0, (s.start[op] - ready) / longest)
        f[Pick.SIZE] = (s.finish[op] - s.start[op]) / longest
        f[Pick.PAID] = _remote_share(g, s, g.predecessors, op)
        f[Pick.SENT] = _remote_share(g, s, g.successors, op)
        f[Pick.TIME] = s.start[op] / value
        f[Pick.IDLE] = min(1.0, (s.start[op] - open_at) / longest)
        f[Pick.LOAD] = s.load[s.device[op]] / heaviest
        score = 0.0
        for i in range(NUM_PICK):
            score += p.pick[i] * f[i]
        mass = np.exp(min(30.0, max(-30.0, score)))
        for i in range(NUM_PICK):
            s.mean[i] += mass * f[i]
        total += mass
        s.cumulated[op] = total
    for i in range(NUM_PICK):
        s.mean[i] /= total
    for op in range(n):
        s.new_tail[op] = s.tail[op]
    total = 0.0
    for kind in range(NUM_KINDS):
        total += np.exp(min(30.0, p.kind[kind] + progress * p.kind_late[kind] + s.preference[kind]))
        s.chance[kind] = total
    for kind in range(NUM_KINDS):
        s.chance[kind] /= total


@inlined
def _drawn(cumulated, total, random):
    """Return the place of a draw in cumulated masses."""
    left = split_uniform(random) * total
    low, high = 0, cumulated.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if cumulated[middle] > left:
            high = middle
        else:
            low = middle + 1
    return low


# --- steps -----------------------------------------------------------------------------------------------


@uncounted
def _change(g, s, op, role):
    """Take the unit of an op out of its device, to be placed in a role, unless it is out already."""
    unit = g.units.unit[op]
    if s.role[unit] != KEPT:
        return
    s.role[unit] = role
    s.unit_list[s.moved[CHANGED]] = unit
    s.moved[CHANGED] += 1
    d = s.home[unit]
    s.home[unit] = -1
    s.used[d] -= g.units.bytes[unit]
    for j in range(g.units.member_ptr[unit], g.units.member_ptr[unit + 1]):
        x = g.units.member[j]
        s.load[d] -= g.compute[x, d]
        s.moved[FIRST] = min(s.moved[FIRST], s.position[x])
        s.moved[LAST] = max(s.moved[LAST], s.position[x])


@uncounted
def _undo(g, s):
    """Put the changed units back where the incumbent has them."""
    for i in range(s.moved[CHANGED]):
        unit = s.unit_list[i]
        d, now = s.device[g.units.member[g.units.member_ptr[unit]]], s.home[unit]
        s.role[unit] = KEPT
        if now >= 0:
            s.used[now] -= g.units.bytes[unit]
        s.used[d] += g.units.bytes[unit]
        s.home[unit] = d
        for j in range(g.units.member_ptr[unit], g.units.member_ptr[unit + 1]):
            x = g.units.member[j]
            if now >= 0:
                s.load[now] -= g.compute[x, now]
            s.load[d] += g.compute[x, d]
    for op in range(s.device.shape[0]):
        s.new_start[op], s.new_finish[op], s.new_tail[op] = s.start[op], s.finish[op], s.tail[op]


@uncounted
def _grow(g, s, op, size, role, together):
    """Change up to `size` ops around `op`: along edges no lighter than one of its own; `together`: only ops of its device."""
    s.members[0] = op
    count, least = 1, -1.0
    for _ in range(3 * size):
        if count >= size:
            break
        x = s.members[int(split_uniform(s.random) * count)]
        before = g.predecessors.pointer[x + 1] - g.predecessors.pointer[x]
        degree = before + g.successors.pointer[x + 1] - g.successors.pointer[x]
        if degree == 0:
            break
        pick = int(split_uniform(s.random) * degree)
        if pick < before:
            e = g.predecessors.pointer[x] + pick
            y, weight = g.predecessors.op[e], g.weight[g.predecessors.tensor[e]]
        else:
            e = g.successors.pointer[x] + pick - before
            y, weight = g.successors.op[e], g.weight[g.successors.tensor[e]]
        if least < 0:
            least = weight * split_uniform(s.random)
        if weight >= least and s.role[g.units.unit[y]] == KEPT and (not together or s.device[y] == s.device[op]):
            s.members[count] = y
            count += 1
            _change(g, s, y, role)


@uncounted
def _clip(g, s, op, to):
    """Return the place nearest to `to` where `op` comes after its producers and before its consumers."""
    low, high = 0, s.sequence.shape[0] - 1
    for e in range(g.predecessors.pointer[op], g.predecessors.pointer[op + 1]):
        low = max(low, s.position[g.predecessors.op[e]] + 1)
    for e in range(g.successors.pointer[op], g.successors.pointer[op + 1]):
        high = min(high, s.position[g.successors.op[e]] - 1)
    return min(max(to, low), high)


@uncounted
def _shift(s, op, to):
    """Put `op` at place `to` of the sequence; those between move by one."""
    i = s.position[op]
    while i != to:
        j = i + 1 if to > i else i - 1
        s.sequence[i] = s.sequence[j]
        s.position[s.sequence[i]] = i
        i = j
    s.sequence[to] = op
    s.position[op] = to


@inlined
def _target(s, kind, op, size):
    """Return the place in the sequence that a step asks for."""
    to = s.position[op]
    if kind == Kind.EARLIER or kind == Kind.FOLLOW_EARLIER:
        to -= size
    elif kind == Kind.LATER or kind == Kind.FOLLOW_LATER:
        to += size
    elif kind == Kind.OVERTAKE and s.before[op] >= 0:
        to = min(to, s.position[s.before[op]])
    return to


@uncounted
def _free_window(g, s, kind, op, size):
    """Take the ops of a step out of their devices; `op` itself goes to another one, or, in a step that shifts it, anywhere."""
    n = s.sequence.shape[0]
    first = s.moved[FIRST]
    if kind >= Kind.FOLLOW:
        _change(g, s, op, TOGETHER if kind == Kind.FOLLOW else FREE)
        for i in range(first, n):
            _change(g, s, s.sequence[i], FREE)
    elif kind >= Kind.JOIN:
        subject, u = op, s.binding[op]
        far = u >= 0 and s.device[u] != s.device[op]
        if kind <= Kind.JOIN_CLUSTER:
            s.moved[LEADER] = s.device[u] if far else -1
        elif kind <= Kind.PULL_CLUSTER:
            subject, s.moved[LEADER] = u if far else -1, s.device[op]
        elif kind == Kind.EVICT:
            subject = s.before[op]
        if subject < 0:
            return
        _change(g, s, subject, TOGETHER)
        if kind == Kind.REPLACE:
            for i in range(s.position[op], min(n, s.position[op] + size)):
                _change(g, s, s.sequence[i], FREE)
        elif kind == Kind.REPLACE_CLUSTER:
            _grow(g, s, op, size, FREE, False)
        elif kind == Kind.JOIN_CLUSTER or kind == Kind.PULL_CLUSTER or kind == Kind.MOVE_CLUSTER:
            _grow(g, s, subject, size, TOGETHER, True)


@inlined
def _prefer(s, kind, reward, rate):
    """Raise the preference for a kind of step that was rewarded more than the average (a gradient bandit)."""
    step = rate * (reward - s.preference[NUM_KINDS])
    previous = 0.0
    for other in range(NUM_KINDS):
        s.preference[other] -= step * (s.chance[other] - previous)
        previous = s.chance[other]
    s.preference[kind] += step
    s.preference[NUM_KINDS] += 0.02 * (reward - s.preference[NUM_KINDS])


@uncounted
def _try(g, p, s, kind, limit):
    """Try a step; return its value, or REJECTED where nothing changes or the limit is passed (then all is as before)."""
    n = s.sequence.shape[0]
    op = _drawn(s.cumulated, s.cumulated[n - 1], s.random)
    s.tried[0], s.tried[1] = op, -np.log(1.0 - split_uniform(s.random))
    size = 1 + int(np.exp(min(np.log(n), s.tried[1] * p.reach[kind])))
    at = s.position[op]
    to = _clip(g, s, op, _target(s, kind, op, size))
    s.moved[CHANGED], s.moved[FIRST], s.moved[LAST], s.moved[LEADER] = 0, min(at, to), max(at, to), -1
    _shift(s, op, to)
    _free_window(g, s, kind, op, size)
    s.spent[1] += STEP_WORK * n
    if to == at and s.moved[CHANGED] == 0:
        return REJECTED
    _tails(g, p, s, s.moved[FIRST], s.moved[LAST])
    value = _decode(g, p, s, s.moved[FIRST], limit)
    if value == REJECTED:
        _shift(s, op, at)
        _undo(g, s)
    return value


@uncounted
def _learn(s, kind, progress, advantage):
    """Add advantage times the score function of the choices of the step that was tried to the slopes."""
    op = int(s.tried[0])
    for i in range(NUM_PICK):
        s.slope_pick[i] += advantage * (s.features[op, i] - s.mean[i])
    previous = 0.0
    for other in range(NUM_KINDS):
        pull = advantage * ((1.0 if other == kind else 0.0) - (s.chance[other] - previous))
        previous = s.chance[other]
        s.slope_kind[0, other] += pull
        s.slope_kind[1, other] += progress * pull
    s.slope_reach[kind] += advantage * (s.tried[1] - 1.0)
    d = int(s.tried[2])
    if d >= 0:
        total, top = 0.0, s.drawn_score[d]
        for other in range(s.drawn_score.shape[0]):
            total += np.exp(min(300.0, s.drawn_score[other] - top))
        for other in range(s.drawn_score.shape[0]):
            share = np.exp(min(300.0, s.drawn_score[other] - top)) / total
            for i in range(NUM_PLACE):
                s.slope_move[i] += advantage * ((1.0 if other == d else 0.0) - share) * s.drawn[other, i]


@uncounted_entry
def take_steps(g, p, s, leg):
    """Walk until a limit is met; return the number of steps, each of which counts as one evaluation."""
    begun, work, wait = s.spent[0], s.spent[1], 0
    while s.spent[0] - begun < leg.steps and s.spent[1] - work < leg.work:
        progress = max((s.spent[0] - begun) / leg.steps, (s.spent[1] - work) / leg.work)
        progress = leg.part[0] + (leg.part[1] - leg.part[0]) * progress
        if wait == 0:
            _look(g, p, s, progress)
            wait = PATIENCE
        kind = _drawn(s.chance, 1.0, s.random)
        now, best = s.value[CURRENT], s.value[BEST]
        heat = leg.hot * (leg.cold / leg.hot) ** progress * now
        limit = now + int(min(1e17, -heat * np.log(split_uniform(s.random) + 1e-300)))
        s.spent[0] += 1
        s.tally[kind, 0] += 1
        s.tried[2], cost = -1, s.spent[1]
        value = _try(g, p, s, kind, limit)
        gain = (now - value) / now if REJECTED != value < now else 0.0
        if leg.price >= 0.0:
            s.gained[0] += gain
            _learn(s, kind, progress, gain - leg.price * (s.spent[1] - cost))
        if value != REJECTED:
            _adopt(g, p, s, s.moved[FIRST], value)
            s.tally[kind, 1] += 1
            wait = wait - 1 if value == now else 0
            if value < best:
                s.tally[kind, 2] += 1
        if leg.rate > 0.0:
            _prefer(s, kind, 1.0 if gain > 0.0 else 0.0, leg.rate)
    return s.spent[0] - begun
