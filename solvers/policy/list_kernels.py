"""Compiled decoding of a learned list scheduler: a ready op by a learned priority, then a device by
a learned score.

Any topological order can be drawn, and an op goes into the first idle gap of its device that holds
it: the schedules that can be reached are the active ones, an optimal one among them (see
`walk_decoding`). Scores are a linear part, which alone can be HEFT's, ETF's or PEFT's rule, plus a
hidden layer of tanh.
"""

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.compiled import entry, inlined, uncounted
from placeopt.model.random_bits import split_uniform
from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
from placeopt.solvers.heuristics.unit_reservation import data_ready, fits, reserve, roomiest, settle

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats, Ints
    from placeopt.model.projection import CostArrays, GraphArrays
    from placeopt.model.units import Units


FAR = 2**62

OP = (
    "upward rank",
    "downward rank",
    "criticality",
    "static level",
    "work",
    "data sent",
    "data received",
    "consumers",
    "producers",
    "spread of work",
    "communication of the graph",
    "parallelism of the graph",
    "devices",
    "spread of the graph",
    "one",
)
"""What is said of an op, whatever is scheduled: ranks as parts of the longest path, times as parts
of their mean, squashed to [0, 1)."""

TURN = ("wait", "wait, squashed", "regret")
"""What is said of a ready op at a step: how long after the first idle device it can start, and what
the second-best device would cost it."""

DEVICE = (
    "finish",
    "start",
    "data ready",
    "idle before",
    "device free",
    "load",
    "work here",
    "inputs here",
    "siblings here",
    "latest producer here",
    "optimistic rest",
    "finish, squashed",
    "start, squashed",
    "data ready, squashed",
    "optimistic rest, squashed",
)
"""What is said of a device for an op: times are excesses over the best device, in mean times of an
op with its transfers."""

(
    FINISH,
    START,
    READY,
    IDLE,
    FREE,
    LOAD,
    WORK,
    INPUTS,
    SIBLINGS,
    LATEST,
    REST,
    FINISH_SOFT,
    START_SOFT,
    READY_SOFT,
    REST_SOFT,
) = range(15)

PROGRESS = len(OP)
"""Place of the share of the ops that are scheduled, behind what is said of the op."""


class ListWeights(NamedTuple):
    """Weights of both scores."""

    op_linear: Floats  # (OP,)
    op_hidden: Floats  # (OP, hidden)
    op_out: Floats  # (hidden,)
    turn: Floats  # (TURN,)
    linear: Floats  # (DEVICE,)
    hidden: Floats  # (DEVICE, hidden)
    context: Floats  # (OP + 1, hidden)
    out: Floats  # (hidden,)


class ListFacts(NamedTuple):
    """What a problem is to the scores."""

    op: Floats  # (num_ops, OP)
    rest: Floats  # (num_ops, num_devices) optimistic cost from the end of the op to the last end
    weight: Floats  # (num_tensors,) mean ticks of a tensor between devices
    mean: Floats  # (num_ops,) mean ticks of the op
    unit: Floats  # (2,) ticks of an op with its transfers, and of all work per device


class ListTask(NamedTuple):
    """What is scheduled, and by which scores."""

    graph: GraphArrays
    costs: CostArrays
    units: Units
    facts: ListFacts
    weights: ListWeights


class Lesson(NamedTuple):
    """What is learned from a schedule."""

    credit: Floats  # (num_ops,) weight of the choices about each op; (0,) learns nothing
    grad: ListWeights  # to which the gradient of the log-probability of the choices is added


class _Growing(NamedTuple):
    """A schedule that grows."""

    device: Ints  # (num_ops,) -1 while not scheduled
    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    table: Ints  # (num_devices, num_ops) ops of each device by start
    held: Ints  # (num_devices,)
    load: Floats  # (num_devices,)
    arrival: Ints  # (num_ops, num_devices) when the inputs of a ready op are there
    home: Ints  # (num_units,)
    free: Ints  # (num_devices,) bytes
    said: Floats  # (num_devices, DEVICE)
    hidden: Floats  # (hidden,)
    begin: Ints  # (num_devices,)
    seen: Floats  # (num_devices, hidden) the hidden layer for each device
    turn: Floats  # (num_ops, TURN) of the ready ops
    odds: Floats  # (max(num_ops, num_devices),) scores of what is chosen from
    pull: Floats  # (num_ops,) gradient of the log-probability of all choices in each priority


@inlined
def _soft(x):
    """Squash a number to (-1, 1)."""
    return x / (1.0 + abs(x))


@inlined
def _gumbel(random):
    """Return a standard Gumbel number: adding it to log-odds and taking the largest draws by
    them.
    """
    return -np.log(-np.log(split_uniform(random) * (1.0 - 2e-12) + 1e-12))


@uncounted
def _priorities(task, score):
    """Fill the part of every op's priority that no step changes."""
    facts, w = task.facts, task.weights
    hidden = w.op_out.shape[0]
    for v in range(score.shape[0]):
        total = 0.0
        for i in range(w.op_linear.shape[0]):
            total += w.op_linear[i] * facts.op[v, i]
        for j in range(hidden):
            x = 0.0
            for i in range(w.op_linear.shape[0]):
                x += w.op_hidden[i, j] * facts.op[v, i]
            total += w.op_out[j] * np.tanh(x)
        score[v] = total


@uncounted
def _last_end(s, d):
    """When device d has done all it holds."""
    return s.finish[s.table[d, s.held[d] - 1]] if s.held[d] > 0 else 0


@uncounted
def _earliest(s, d, ready, ticks):
    """Return the earliest start on a device, in a gap if one is long enough."""
    at = s.held[d]
    while at > 0 and s.finish[s.table[d, at - 1]] > ready:
        at -= 1
    time = ready
    while at < s.held[d] and time + ticks > s.start[s.table[d, at]]:
        time = max(time, s.finish[s.table[d, at]])
        at += 1
    return time


@uncounted
def _say_of_turn(task, s, v, first, said):
    """Fill TURN of a ready op; `first`: when the first device is idle."""
    costs, units, facts = task.costs, task.units, task.facts
    start, one, two = FAR, FAR, FAR
    for d in range(costs.compute.shape[1]):
        if fits(units, s.home, s.free, units.unit[v], d):
            begin = max(s.arrival[v, d], _last_end(s, d))
            start = min(start, begin)
            end = begin + costs.compute[v, d]
            if end < one:
                one, two = end, one
            elif end < two:
                two = end
    wait = min(50.0, max(0.0, (start - first) / facts.unit[0])) if start < FAR else 0.0
    said[0], said[1] = wait, _soft(wait)
    said[2] = _soft((two - one) / facts.unit[0]) if two < FAR else 0.0


@uncounted
def _choose_op(task, s, ready, count, score, heat, random):
    """Return the place of the next op among the ready ones; fills `s.turn` and `s.odds`."""
    costs, w = task.costs, task.weights
    first = FAR
    for d in range(costs.compute.shape[1]):
        first = min(first, _last_end(s, d))
    best, chosen = -np.inf, 0
    for i in range(count):
        v = ready[i]
        said = s.turn[i]
        _say_of_turn(task, s, v, first, said)
        total = score[v] + w.turn[0] * said[0] + w.turn[1] * said[1] + w.turn[2] * said[2]
        s.odds[i] = total
        if heat > 0.0:
            total += heat * _gumbel(random)
        if total > best:
            best, chosen = total, i
    return chosen


@uncounted
def _to_surprise(odds, count, heat, chosen):
    """Turn log-odds times `heat` into what the gradient of the chosen one's log-probability is in
    each; -inf stays out.
    """
    top, mass = -np.inf, 0.0
    for i in range(count):
        top = max(top, odds[i])
    for i in range(count):
        odds[i] = np.exp((odds[i] - top) / heat)
        mass += odds[i]
    for i in range(count):
        odds[i] = ((1.0 if i == chosen else 0.0) - odds[i] / mass) / heat


@uncounted
def _learn_op(s, grad, ready, count, chosen, heat, credit):
    """Add the gradient of the choice of an op: that of priorities to `s.pull`."""
    _to_surprise(s.odds, count, heat, chosen)
    for i in range(count):
        x = credit * s.odds[i]
        s.pull[ready[i]] += x
        for j in range(s.turn.shape[1]):
            grad.turn[j] += x * s.turn[i, j]


@uncounted
def _learn_priorities(task, s, grad):
    """Pass the gradient of the priorities on to their weights."""
    facts, w = task.facts, task.weights
    for v in range(s.pull.shape[0]):
        x = s.pull[v]
        if x == 0.0:
            continue
        for i in range(w.op_linear.shape[0]):
            grad.op_linear[i] += x * facts.op[v, i]
        for j in range(w.op_out.shape[0]):
            y = 0.0
            for i in range(w.op_linear.shape[0]):
                y += w.op_hidden[i, j] * facts.op[v, i]
            y = np.tanh(y)
            grad.op_out[j] += x * y
            y = x * w.op_out[j] * (1.0 - y * y)
            for i in range(w.op_linear.shape[0]):
                grad.op_hidden[i, j] += y * facts.op[v, i]


@uncounted
def _learn_device(task, s, grad, v, progress, chosen, heat, credit):
    """Add the gradient of the choice of a device, whose log-odds are in `s.odds`."""
    facts, w = task.facts, task.weights
    k = s.begin.shape[0]
    _to_surprise(s.odds, k, heat, chosen)
    for d in range(k):
        if s.begin[d] < 0:
            continue
        x = credit * s.odds[d]
        for i in range(w.linear.shape[0]):
            grad.linear[i] += x * s.said[d, i]
        for j in range(w.out.shape[0]):
            y = s.seen[d, j]
            grad.out[j] += x * y
            y = x * w.out[j] * (1.0 - y * y)
            for i in range(w.linear.shape[0]):
                grad.hidden[i, j] += y * s.said[d, i]
            for i in range(PROGRESS):
                grad.context[i, j] += y * facts.op[v, i]
            grad.context[PROGRESS, j] += y * progress


@uncounted
def _say(task, s, v):
    """Fill what is said of every device for op v; return how many devices may take it."""
    g, costs, units, facts = task.graph, task.costs, task.units, task.facts
    k = costs.compute.shape[1]
    unit, tau = units.unit[v], facts.unit[0]
    said = s.said
    inputs, latest, last = 1e-9, -1, -1
    said[:, :] = 0.0
    for e in range(g.predecessors.pointer[v], g.predecessors.pointer[v + 1]):
        u, size = g.predecessors.op[e], facts.weight[g.predecessors.tensor[e]]
        inputs += size
        said[s.device[u], INPUTS] += size
        if s.finish[u] + size > last:
            last, latest = s.finish[u] + size, s.device[u]
    siblings = 1e-9
    for e in range(g.successors.pointer[v], g.successors.pointer[v + 1]):
        c, size = g.successors.op[e], facts.weight[g.successors.tensor[e]]
        siblings += size
        for f in range(g.predecessors.pointer[c], g.predecessors.pointer[c + 1]):
            u = g.predecessors.op[f]
            if s.device[u] >= 0:
                said[s.device[u], SIBLINGS] += facts.weight[g.predecessors.tensor[f]]
    finish, start, arrival, free, rest, count = FAR, FAR, FAR, FAR, np.inf, 0
    for d in range(k):
        s.begin[d] = -1
        if not fits(units, s.home, s.free, unit, d):
            continue
        count += 1
        s.begin[d] = _earliest(s, d, s.arrival[v, d], costs.compute[v, d])
        finish = min(finish, s.begin[d] + costs.compute[v, d])
        start = min(start, s.begin[d])
        arrival = min(arrival, s.arrival[v, d])
        free = min(free, _last_end(s, d))
        rest = min(rest, facts.rest[v, d])
    for d in range(k):
        if s.begin[d] < 0:
            continue
        end = _last_end(s, d)
        said[d, FINISH] = (s.begin[d] + costs.compute[v, d] - finish) / tau
        said[d, START] = (s.begin[d] - start) / tau
        said[d, READY] = (s.arrival[v, d] - arrival) / tau
        said[d, IDLE] = _soft(max(0, s.begin[d] - end) / tau)
        said[d, FREE] = _soft((end - free) / tau)
        said[d, LOAD] = _soft(s.load[d] / facts.unit[1])
        said[d, WORK] = _soft(costs.compute[v, d] / (facts.mean[v] + 1e-9) - 1.0)
        said[d, INPUTS] /= inputs
        said[d, SIBLINGS] = _soft(said[d, SIBLINGS] / siblings)
        said[d, LATEST] = 1.0 if d == latest else 0.0
        said[d, REST] = (facts.rest[v, d] - rest) / tau
        said[d, FINISH_SOFT] = _soft(said[d, FINISH])
        said[d, START_SOFT] = _soft(said[d, START])
        said[d, READY_SOFT] = _soft(said[d, READY])
        said[d, REST_SOFT] = _soft(said[d, REST])
    return count


@uncounted
def _choose_device(task, s, v, progress, heat, random):
    """Return the device of the highest score, of those that may take op v; fills `s.odds` and
    `s.seen`.
    """
    facts, w = task.facts, task.weights
    hidden = w.out.shape[0]
    for j in range(hidden):
        x = w.context[PROGRESS, j] * progress
        for i in range(PROGRESS):
            x += w.context[i, j] * facts.op[v, i]
        s.hidden[j] = x
    best, chosen = -np.inf, -1
    for d in range(s.begin.shape[0]):
        s.odds[d] = -np.inf
        if s.begin[d] < 0:
            continue
        total = 0.0
        for i in range(w.linear.shape[0]):
            total += w.linear[i] * s.said[d, i]
        for j in range(hidden):
            x = s.hidden[j]
            for i in range(w.linear.shape[0]):
                x += w.hidden[i, j] * s.said[d, i]
            s.seen[d, j] = np.tanh(x)
            total += w.out[j] * s.seen[d, j]
        s.odds[d] = total
        if heat > 0.0:
            total += heat * _gumbel(random)
        if total > best:
            best, chosen = total, d
    return chosen


@uncounted
def _put(s, v, d, begin, ticks):
    """Put op v on device d."""
    at = s.held[d]
    while at > 0 and s.start[s.table[d, at - 1]] >= begin + ticks and at > 0:
        s.table[d, at] = s.table[d, at - 1]
        at -= 1
    s.table[d, at] = v
    s.held[d] += 1
    s.device[v], s.start[v], s.finish[v] = d, begin, begin + ticks
    s.load[d] += ticks


@uncounted
def _grow(task, s, ready, left, score, heats, random, lesson):
    """Schedule all ops; return whether a unit found no device with space."""
    g, costs, units, credit = task.graph, task.costs, task.units, lesson.credit
    grad = lesson.grad
    learn = credit.shape[0] > 0
    n, k = costs.compute.shape
    count, overflow = 0, False
    for v in range(n):
        left[v] = g.indegree[v]
    for i in range(n):
        v = g.order[i]
        if left[v] == 0:
            ready[count] = v
            count += 1
            for d in range(k):
                s.arrival[v, d] = 0
    for done in range(n):
        at = _choose_op(task, s, ready, count, score, heats[0], random)
        v = ready[at]
        if learn:
            _learn_op(s, grad, ready, count, at, heats[0], credit[v])
        count -= 1
        ready[at] = ready[count]
        if _say(task, s, v) == 0:
            overflow = True
            d = roomiest(units, s.free, units.unit[v])
            begin = _earliest(s, d, s.arrival[v, d], costs.compute[v, d])
        else:
            d = _choose_device(task, s, v, done / n, heats[1], random)
            begin = s.begin[d]
            if learn:
                _learn_device(task, s, grad, v, done / n, d, heats[1], credit[v])
        settle(units, s.home, s.free, units.unit[v], d)
        _put(s, v, d, begin, costs.compute[v, d])
        for e in range(g.successors.pointer[v], g.successors.pointer[v + 1]):
            c = g.successors.op[e]
            left[c] -= 1
            if left[c] == 0:
                ready[count] = c
                count += 1
                for x in range(k):
                    s.arrival[c, x] = data_ready(g, costs, s.device, s.finish, c, x)
    if learn:
        _learn_priorities(task, s, grad)
    return overflow


@entry
def learned_schedule(task, heats, random, pinned, lesson):
    """Schedule by the scores.

    Parameters
    ----------
    task : a `ListTask`. lesson : a `Lesson`.
    heats : temperatures of the choices of ops and of devices, (2,); 0 takes the best.
    random : state of the generator (uint64[1]), advanced. pinned : (num_units,), -1 where open.
    """
    n, k = task.costs.compute.shape
    home, free = reserve(task.units, pinned)
    w = task.weights
    s = _Growing(
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros((k, n), np.int64),
        np.zeros(k, np.int64),
        np.zeros(k),
        np.zeros((n, k), np.int64),
        home,
        free,
        np.zeros((k, w.linear.shape[0])),
        np.zeros(w.out.shape[0]),
        np.zeros(k, np.int64),
        np.zeros((k, w.out.shape[0])),
        np.zeros((n, w.turn.shape[0])),
        np.zeros(max(n, k)),
        np.zeros(n),
    )
    score = np.zeros(n)
    _priorities(task, score)
    ready, left = np.zeros(n, np.int64), np.zeros(n, np.int64)
    overflow = _grow(task, s, ready, left, score, heats, random, lesson)
    return ListSchedule(s.device, s.start, s.finish, overflow)
