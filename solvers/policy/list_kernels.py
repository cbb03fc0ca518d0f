"""Compiled decoding of a learned list scheduler: a ready op by a learned priority, then a device by
a learned score.

Any topological order can be drawn, and an op goes into the first idle gap of its device that holds
it: the schedules that can be reached are the active ones, an optimal one among them (see
`walk_kernels`). Scores are a linear part, which alone can be HEFT's, ETF's or PEFT's rule, plus a
hidden layer of softsign, x / (1 + |x|), into which what was learned of the op is added.
"""

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints
from placeopt.model.compiled import entry, inlined, row_of, uncounted_kernel
from placeopt.model.projection import CostArrays, GraphArrays, Units
from placeopt.model.random_bits import split_uniform
from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
from placeopt.solvers.heuristics.unit_reservation import data_ready, filled, fits, roomiest, settle

FAR = 2**62

LONG = 8.0
"""A time is said twice, squashed: in mean times of an op with its transfers, and in so many."""

TURN = (
    "wait",
    "wait, long",
    "finish",
    "regret",
    "overrun",
    "overrun, long",
    "rank behind",
    "rank behind, long",
    "releases",
    "ready ops",
    "progress",
)
"""What is said of a ready op at a step: how long after the first idle device it can start; its
earliest finish over that of the other ready ops; what the second-best device would cost; how far
its finish and optimistic rest pass the end that is known to be needed; its upward rank behind the
largest; the share of its consumers that wait for it alone; ready ops per device; ops done."""

WAIT, WAIT_LONG, SOONEST, REGRET, OVER, OVER_LONG, BEHIND, BEHIND_LONG, RELEASES, CROWD, DONE = (
    np.arange(11)
)

DEVICE = (
    "finish",
    "finish, long",
    "start",
    "start, long",
    "data ready",
    "data ready, long",
    "idle before",
    "device free",
    "device free, long",
    "load",
    "work here",
    "inputs here",
    "siblings here",
    "latest producer here",
    "optimistic rest",
    "optimistic rest, long",
    "next op",
    "next op, long",
    "overrun",
    "overrun, long",
    "in a gap",
    "beyond the last end",
    "progress",
)
"""What is said of a device for an op: times are excesses over the best device. `next op`: the
optimistic end if the next op on the longest path follows at once, where that is best; `overrun` as
of a ready op; the last end is that of all that is scheduled."""

(
    FINISH,
    FINISH_LONG,
    START,
    START_LONG,
    READY,
    READY_LONG,
    IDLE,
    FREE,
    FREE_LONG,
    LOAD,
    WORK,
    INPUTS,
    SIBLINGS,
    LATEST,
    REST,
    REST_LONG,
    NEXT,
    NEXT_LONG,
    OVERRUN,
    OVERRUN_LONG,
    GAP,
    BEYOND,
    PROGRESS,
) = np.arange(23)


class ListWeights(NamedTuple):
    """Weights of both scores; an encoder makes a `ListEmbedding` first."""

    first: Floats  # (OP, encoded)
    second: Floats  # (OP + 3 encoded, encoded)
    score_linear: Floats  # (OP,)
    score_out: Floats  # (encoded,)
    turn_context: Floats  # (OP + encoded, turn_hidden)
    context: Floats  # (OP + encoded, hidden)
    turn: Floats  # (TURN,)
    turn_hidden: Floats  # (TURN, turn_hidden)
    turn_out: Floats  # (turn_hidden,)
    linear: Floats  # (DEVICE,)
    hidden: Floats  # (DEVICE, hidden)
    out: Floats  # (hidden,)


class ListEmbedding(NamedTuple):
    """What was learned of each op of a problem, whatever is scheduled."""

    score: Floats  # (num_ops,) the part of its priority that no step changes
    turn: Floats  # (num_ops, turn_hidden) added to the hidden layer of its priority
    device: Floats  # (num_ops, hidden) and of the scores of devices


class ListFacts(NamedTuple):
    """What a problem is to the scores."""

    op: Floats  # (num_ops, OP)
    rest: Floats  # (num_ops, num_devices) optimistic cost from the end of the op to the last end
    weight: Floats  # (num_tensors,) mean ticks of a tensor between devices
    mean: Floats  # (num_ops,) mean ticks of the op
    rank: Floats  # (num_ops,) upward rank
    following: Ints  # (num_ops,) the next op on the longest path, -1 at its end
    unit: Floats  # (3,) ticks: an op with its transfers, all work per device, least end known


class ListTask(NamedTuple):
    """What is scheduled, and by which scores."""

    graph: GraphArrays
    costs: CostArrays
    units: Units
    facts: ListFacts
    embedding: ListEmbedding
    weights: ListWeights
    bias: Floats  # (num_ops, num_devices) added to the scores of devices


class Lesson(NamedTuple):
    """What is learned from a schedule."""

    credit: Floats  # (num_ops,) weight of the choices about each op; (0,) learns nothing
    embedding: ListEmbedding  # to which the gradient of the log-probability of the choices is added
    grad: ListWeights  # likewise; the encoder's part stays as it is


class _Growing(NamedTuple):
    """A schedule that grows."""

    device: Ints  # (num_ops,) -1 while not scheduled
    start: Ints  # (num_ops,)
    finish: Ints  # (num_ops,)
    table: Ints  # (num_devices, num_ops) ops of each device by start
    held: Ints  # (num_devices,)
    load: Floats  # (num_devices,)
    ends: Floats  # (2,) the last end, and the least end known
    left: Ints  # (num_ops,) producers that are not scheduled
    arrival: Ints  # (num_ops, num_devices) when the inputs of a ready op are there
    home: Ints  # (num_units,)
    free: Ints  # (num_devices,) bytes
    said: Floats  # (num_devices, DEVICE)
    begin: Ints  # (num_devices,)
    seen: Floats  # (num_devices, hidden) the hidden layer for each device
    next: Floats  # (num_devices,) when the next op can start there, but for the op's own output
    turn: Floats  # (num_ops, TURN) of the ready ops
    turn_seen: Floats  # (num_ops, turn_hidden)
    odds: Floats  # (max(num_ops, num_devices),) scores of what is chosen from


@inlined
def _soft(x):
    """Squash a number to (-1, 1)."""
    return x / (1.0 + abs(x))


@inlined
def _say_twice(said, at, x):
    """Say a time, in mean times of an op with its transfers, and behind it the long one."""
    said[at], said[at + 1] = _soft(x), _soft(x / LONG)


@inlined
def _gumbel(random):
    """Return a standard Gumbel number: adding it to log-odds and taking the largest draws by
    them.
    """
    return -np.log(-np.log(split_uniform(random) * (1.0 - 2e-12) + 1e-12))


@entry
def shares_of_work(graph, work):
    """Return the work above and below each op, its own not counted, each (num_ops,): an op's goes
    in equal parts to its producers, or its consumers, with what came to it.
    """
    n = work.shape[0]
    above, below = np.zeros(n), np.zeros(n)
    for i in range(n):
        v = graph.order[i]
        begin, stop = graph.successors.pointer[v], graph.successors.pointer[v + 1]
        for e in range(begin, stop):
            above[graph.successors.op[e]] += (work[v] + above[v]) / (stop - begin)
    for i in range(n - 1, -1, -1):
        v = graph.order[i]
        begin, stop = graph.predecessors.pointer[v], graph.predecessors.pointer[v + 1]
        for e in range(begin, stop):
            below[graph.predecessors.op[e]] += (work[v] + below[v]) / (stop - begin)
    return above, below


@uncounted_kernel
def _scored(said, known, linear, hidden, out, seen):
    """Return a score; fills the hidden layer `seen`, to which the op adds `known`."""
    total = 0.0
    for j in range(seen.shape[0]):
        seen[j] = known[j]
    for i in range(said.shape[0]):
        x = said[i]
        if x != 0.0:
            total += linear[i] * x
            for j in range(seen.shape[0]):
                seen[j] += hidden[i, j] * x
    for j in range(seen.shape[0]):
        seen[j] = _soft(seen[j])
        total += out[j] * seen[j]
    return total


@uncounted_kernel
def _learn_score(x, said, out, seen, linear, hidden, out_grad, embedding):
    """Add x times the gradient of a score to those of its weights and of the op's embedding."""
    for j in range(seen.shape[0]):
        out_grad[j] += x * seen[j]
        seen[j] = x * out[j] * (1.0 - abs(seen[j])) ** 2
        embedding[j] += seen[j]
    for i in range(said.shape[0]):
        y = said[i]
        if y != 0.0:
            linear[i] += x * y
            for j in range(seen.shape[0]):
                hidden[i, j] += y * seen[j]


@uncounted_kernel
def _last_end(s, d):
    """When device d has done all it holds."""
    return s.finish[s.table[d, s.held[d] - 1]] if s.held[d] > 0 else 0


@uncounted_kernel
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


@uncounted_kernel
def _releases(graph, s, v):
    """Return the share of the consumers of a ready op that wait for it alone."""
    begin, stop = graph.successors.pointer[v], graph.successors.pointer[v + 1]
    alone = 0
    for e in range(begin, stop):
        if s.left[graph.successors.op[e]] == 1:
            alone += 1
    return alone / max(1, stop - begin)


@uncounted_kernel
def _say_of_turns(task, s, ready, count, progress):
    """Fill TURN of the ready ops."""
    costs, units, facts = task.costs, task.units, task.facts
    k = costs.compute.shape[1]
    tau = facts.unit[0]
    first, soonest, rank = FAR, FAR, 0.0
    for d in range(k):
        first = min(first, _last_end(s, d))
    for i in range(count):
        v, said = ready[i], s.turn[i]
        start, one, two, end = FAR, FAR, FAR, np.inf
        for d in range(k):
            if fits(units, s.home, s.free, units.unit[v], d):
                begin = max(s.arrival[v, d], _last_end(s, d))
                start = min(start, begin)
                stop = begin + costs.compute[v, d]
                end = min(end, stop + facts.rest[v, d])
                if stop < one:
                    one, two = stop, one
                elif stop < two:
                    two = stop
        if start == FAR:  # fits nowhere
            start = one = two = first
            end = s.ends[1]
        soonest, rank = min(soonest, one), max(rank, facts.rank[v])
        _say_twice(said, WAIT, max(0, start - first) / tau)
        _say_twice(said, OVER, (end - s.ends[1]) / tau)
        said[REGRET] = _soft((two - one) / tau)
        said[SOONEST] = one
        said[RELEASES] = _releases(task.graph, s, v)
        said[CROWD], said[DONE] = _soft(count / k), progress
    for i in range(count):
        said = s.turn[i]
        _say_twice(said, BEHIND, (rank - facts.rank[ready[i]]) / tau)
        said[SOONEST] = _soft((said[SOONEST] - soonest) / tau)


@uncounted_kernel
def _choose_op(task, s, ready, count, progress, heat, random):
    """Return the place of the next op among the ready ones; fills `s.turn` and `s.odds`."""
    w, embedding = task.weights, task.embedding
    _say_of_turns(task, s, ready, count, progress)
    best, chosen = -np.inf, 0
    for i in range(count):
        v = ready[i]
        total = embedding.score[v] + _scored(
            s.turn[i], embedding.turn[v], w.turn, w.turn_hidden, w.turn_out, s.turn_seen[i]
        )
        s.odds[i] = total
        if heat > 0.0:
            total += heat * _gumbel(random)
        if total > best:
            best, chosen = total, i
    return chosen


@uncounted_kernel
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


@uncounted_kernel
def _learn_op(task, s, lesson, ready, count, chosen, heat):
    """Add the gradient of the choice of an op."""
    w, grad, embedding = task.weights, lesson.grad, lesson.embedding
    _to_surprise(s.odds, count, heat, chosen)
    for i in range(count):
        v = ready[i]
        x = lesson.credit[ready[chosen]] * s.odds[i]
        embedding.score[v] += x
        _learn_score(
            x,
            s.turn[i],
            w.turn_out,
            s.turn_seen[i],
            grad.turn,
            grad.turn_hidden,
            grad.turn_out,
            embedding.turn[v],
        )


@uncounted_kernel
def _learn_device(task, s, lesson, v, chosen, heat):
    """Add the gradient of the choice of a device, whose log-odds are in `s.odds`."""
    w, grad = task.weights, lesson.grad
    k = s.begin.shape[0]
    _to_surprise(s.odds, k, heat, chosen)
    for d in range(k):
        if s.begin[d] >= 0:
            _learn_score(
                lesson.credit[v] * s.odds[d],
                s.said[d],
                w.out,
                s.seen[d],
                grad.linear,
                grad.hidden,
                grad.out,
                lesson.embedding.device[v],
            )


@uncounted_kernel
def _say_of_neighbours(task, s, v):
    """Say where the inputs of an op and its consumers' other inputs are."""
    g, facts, said = task.graph, task.facts, s.said
    inputs, latest, last = 1e-9, -1, -1.0
    for e in row_of(g.predecessors.pointer, v):
        u, size = g.predecessors.op[e], facts.weight[g.predecessors.tensor[e]]
        inputs += size
        said[s.device[u], INPUTS] += size
        if s.finish[u] + size > last:
            last, latest = s.finish[u] + size, s.device[u]
    siblings = 1e-9
    for e in row_of(g.successors.pointer, v):
        c, size = g.successors.op[e], facts.weight[g.successors.tensor[e]]
        siblings += size
        for f in row_of(g.predecessors.pointer, c):
            u = g.predecessors.op[f]
            if s.device[u] >= 0:
                said[s.device[u], SIBLINGS] += facts.weight[g.predecessors.tensor[f]]
    for d in range(said.shape[0]):
        said[d, INPUTS] /= inputs
        said[d, SIBLINGS] = _soft(said[d, SIBLINGS] / siblings)
        said[d, LATEST] = 1.0 if d == latest else 0.0


@uncounted_kernel
def _say_of_next(task, s, v):
    """Say when the next op on the longest path could let all end, for each device of op v.

    Its other producers that are not scheduled yet are left out.
    """
    g, costs, facts = task.graph, task.costs, task.facts
    c, k, tensor = facts.following[v], s.begin.shape[0], -1
    if c < 0:
        return
    for e in row_of(g.successors.pointer, v):
        if g.successors.op[e] == c:
            tensor = g.successors.tensor[e]
    for d in range(k):
        s.next[d] = 0.0
        for e in row_of(g.predecessors.pointer, c):
            u = g.predecessors.op[e]
            if s.device[u] >= 0:
                lag = 0
                if s.device[u] != d:
                    lag = costs.transfer[g.predecessors.tensor[e], costs.link_class[s.device[u], d]]
                s.next[d] = max(s.next[d], s.finish[u] + lag)
    least = np.inf
    for d in range(k):
        if s.begin[d] < 0:
            continue
        finish, end = s.begin[d] + costs.compute[v, d], np.inf
        for x in range(k):
            if costs.compute[c, x] >= 0:
                begin = max(s.next[x], _last_end(s, x))
                lag = 0 if x == d else costs.transfer[tensor, costs.link_class[d, x]]
                begin = max(begin, finish + lag)
                end = min(end, begin + costs.compute[c, x] + facts.rest[c, x])
        s.said[d, NEXT] = end
        least = min(least, end)
    for d in range(k):
        if s.begin[d] >= 0:
            _say_twice(s.said[d], NEXT, (s.said[d, NEXT] - least) / facts.unit[0])


@uncounted_kernel
def _say(task, s, v, progress):
    """Fill what is said of every device for op v; return how many devices may take it."""
    begin = s.begin
    costs, units, facts, said = task.costs, task.units, task.facts, s.said
    k = costs.compute.shape[1]
    tau = facts.unit[0]
    said[:, :] = 0.0
    _say_of_neighbours(task, s, v)
    finish, start, arrival, free, rest, load, count = FAR, FAR, FAR, FAR, np.inf, np.inf, 0
    for d in range(k):
        begin[d] = -1
        if not fits(units, s.home, s.free, units.unit[v], d):
            continue
        count += 1
        begin[d] = _earliest(s, d, s.arrival[v, d], costs.compute[v, d])
        finish = min(finish, begin[d] + costs.compute[v, d])
        start = min(start, begin[d])
        arrival = min(arrival, s.arrival[v, d])
        free = min(free, _last_end(s, d))
        rest = min(rest, facts.rest[v, d])
        load = min(load, s.load[d])
    for d in range(k):
        if begin[d] < 0:
            continue
        end, stop = _last_end(s, d), begin[d] + costs.compute[v, d]
        _say_twice(said[d], FINISH, (stop - finish) / tau)
        _say_twice(said[d], START, (begin[d] - start) / tau)
        _say_twice(said[d], READY, (s.arrival[v, d] - arrival) / tau)
        _say_twice(said[d], FREE, (end - free) / tau)
        _say_twice(said[d], REST, (facts.rest[v, d] - rest) / tau)
        _say_twice(said[d], OVERRUN, (stop + facts.rest[v, d] - s.ends[1]) / tau)
        said[d, IDLE] = _soft(max(0, begin[d] - end) / tau)
        said[d, LOAD] = _soft((s.load[d] - load) / facts.unit[1])
        said[d, WORK] = _soft(costs.compute[v, d] / (facts.mean[v] + 1e-9) - 1.0)
        said[d, GAP] = 1.0 if begin[d] < end else 0.0
        said[d, BEYOND] = _soft((stop - s.ends[0]) / tau)
        said[d, PROGRESS] = progress
    _say_of_next(task, s, v)
    return count


@uncounted_kernel
def _choose_device(task, s, v, heat, random):
    """Return the device of the highest score, of those that may take op v; fills `s.odds` and
    `s.seen`.
    """
    w = task.weights
    best, chosen = -np.inf, -1
    for d in range(s.begin.shape[0]):
        s.odds[d] = -np.inf
        if s.begin[d] < 0:
            continue
        known = task.embedding.device[v]
        total = _scored(s.said[d], known, w.linear, w.hidden, w.out, s.seen[d])
        total += task.bias[v, d]
        s.odds[d] = total
        if heat > 0.0:
            total += heat * _gumbel(random)
        if total > best:
            best, chosen = total, d
    return chosen


@uncounted_kernel
def _put(s, v, d, begin, ticks, rest):
    """Put op v on device d."""
    at = s.held[d]
    while at > 0 and s.start[s.table[d, at - 1]] >= begin + ticks:
        s.table[d, at] = s.table[d, at - 1]
        at -= 1
    s.table[d, at] = v
    s.held[d] += 1
    s.device[v], s.start[v], s.finish[v] = d, begin, begin + ticks
    s.load[d] += ticks
    s.ends[0] = max(s.ends[0], begin + ticks)
    s.ends[1] = max(s.ends[1], begin + ticks + rest)


@uncounted_kernel
def _grow(task, s, ready, heats, random, lesson):
    """Schedule all ops; return whether a unit found no device with space."""
    g, costs, units = task.graph, task.costs, task.units
    learn = lesson.credit.shape[0] > 0
    n, k = costs.compute.shape
    count, overflow = 0, False
    for i in range(n):
        v = g.order[i]
        s.left[v] = g.indegree[v]
        if s.left[v] == 0:
            ready[count] = v
            count += 1
    for done in range(n):
        at = _choose_op(task, s, ready, count, done / n, heats[0], random)
        v = ready[at]
        if learn:
            _learn_op(task, s, lesson, ready, count, at, heats[0])
        count -= 1
        ready[at] = ready[count]
        if _say(task, s, v, done / n) == 0:
            overflow = True
            d = roomiest(units, s.free, units.unit[v])
            begin = _earliest(s, d, s.arrival[v, d], costs.compute[v, d])
        else:
            d = _choose_device(task, s, v, heats[1], random)
            begin = s.begin[d]
            if learn:
                _learn_device(task, s, lesson, v, d, heats[1])
        settle(units, s.home, s.free, units.unit[v], d)
        _put(s, v, d, begin, costs.compute[v, d], task.facts.rest[v, d])
        for e in row_of(g.successors.pointer, v):
            c = g.successors.op[e]
            s.left[c] -= 1
            if s.left[c] == 0:
                ready[count] = c
                count += 1
                for x in range(k):
                    s.arrival[c, x] = data_ready(g, costs, s.device, s.finish, c, x)
    return overflow


@entry
def learned_schedule(task, heats, random, lesson):
    """Schedule by the scores.

    Parameters
    ----------
    task : a `ListTask`. lesson : a `Lesson`.
    heats : temperatures of the choices of ops and of devices, (2,); 0 takes the best.
    random : state of the generator (uint64[1]), advanced.
    """
    n, k = task.costs.compute.shape
    s = _Growing(
        filled(n, -1),
        filled(n, 0),
        filled(n, 0),
        np.zeros((k, n), np.int64),
        filled(k, 0),
        np.zeros(k),
        np.array([0.0, task.facts.unit[2]]),
        filled(n, 0),
        np.zeros((n, k), np.int64),
        filled(len(task.units.bytes), -1),
        task.units.capacity.copy(),
        np.zeros((k, task.weights.linear.shape[0])),
        filled(k, 0),
        np.zeros((k, task.weights.out.shape[0])),
        np.zeros(k),
        np.zeros((n, task.weights.turn.shape[0])),
        np.zeros((n, task.weights.turn_out.shape[0])),
        np.zeros(max(n, k)),
    )
    overflow = _grow(task, s, filled(n, 0), heats, random, lesson)
    return ListSchedule(s.device, s.start, s.finish, overflow)
