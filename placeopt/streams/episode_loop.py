"""The loop over the arrivals of a job stream (numba): first-fit placement, degree policies, and
what becomes of a job.

Only arrivals change what a policy sees, so the loop steps from arrival to arrival; a server is free
again at ``free_at[server]``. All times are int64 ticks. Every jitted function that another one
calls is in this file.

What the simulator's kernel reads and writes: job types, arrivals, a degree policy, and what
happened to each job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import Bits, Flags, Floats, Ints
from placeopt.model.compiled import entry, inner_kernel, row_of, uncounted_kernel

LOOKS_AHEAD = (*range(1, 21), 25, 30, 37)
"""Mean gaps between arrivals at which the free servers are counted: jobs of up to 37 gaps are seen
to their end."""

PACKED_AHEAD = (*range(1, 11), 12, 14, 16, 18, 20)
"""Mean gaps at which the blocks that fit side by side are counted, too."""


def num_features(num_degrees: int) -> int:
    """Return the number of features of a cluster: free servers at each look, and packable ones for
    each larger degree.
    """
    return len(LOOKS_AHEAD) + len(PACKED_AHEAD) * (num_degrees - 1)


class JobArrays(NamedTuple):
    """Job types on a topology: M models, D degrees, S servers."""

    degrees: Ints  # (D,)
    jct: Ints  # (M, D) ticks, -1 where the job does not fit an empty cluster
    width: Ints  # (M, D) servers the job needs at least
    sequential: Ints  # (M,) ticks on one server
    size_ptr: Ints  # blocks: see topology.Blocks
    server_ptr: Ints
    server: Ints
    block_mask: Bits  # (blocks, words) servers of each block as bits
    whole: bool  # True: the job takes one block of `degree` servers ("uniform" rule)
    memory: float  # bytes of a server
    op_ptr: Ints  # (M + 1,) ops of each model in placing order
    op_splits: Ints  # (num_ops_of_all_models, D)
    op_memory: Floats  # (num_ops_of_all_models,) bytes
    parent_ptr: Ints  # (num_ops_of_all_models + 1,)
    parent: Ints  # parents as positions among the ops of the model


class StreamArrays(NamedTuple):
    """The arrivals of one stream of J jobs."""

    arrival: Ints  # (J,) ticks, ascending
    model: Ints  # (J,)
    deadline: Ints  # (J,) ticks after the arrival
    horizon: int  # ticks


class PolicyArrays(NamedTuple):
    """A degree policy; which fields count depends on `kind`."""

    kind: int
    constant: int  # index of the degree
    order: Ints  # (M, D) indices of degrees, best first, then -1
    candidates: Ints  # (M, D) rollout: every degree, those of the order first
    fragmentation: float  # weight of lost block room against one place in the order
    samples: int  # rollout: futures per decision
    depth: int  # rollout: arrivals per future
    pool_model: Ints  # rollout: (P,) sampled jobs
    pool_deadline: Ints  # (P,) ticks
    pool_gap: Ints  # (P,) ticks between arrivals
    terminal: float  # rollout: price of a server-tick of work left when a future ends
    gap: float  # value network: mean ticks between arrivals
    looks: Ints  # mean gaps at which clusters are described: LOOKS_AHEAD
    packed_looks: Ints  # PACKED_AHEAD
    explore: float  # probability of a random choice
    discount: float  # value network: of a job that completes one arrival later
    linear: Floats  # value network: (F,) weights of the features themselves
    output: Floats  # (H,) weights of the hidden units
    bias: Floats  # (H,)
    hidden: Floats  # (F, H): all units of a feature side by side


class Arrival(NamedTuple):
    """The job that has just arrived, as a policy sees it."""

    model: int
    deadline: int  # ticks after the arrival
    now: int  # ticks
    num_free: int  # servers


class Scratch(NamedTuple):
    """Work space of one episode."""

    free: Flags  # (S,)
    held: Flags  # (S,) servers of the placement that was chosen
    trial: Flags  # (S,) servers of the placement being tried
    open: Bits  # (words,) servers that will be free, as bits
    room: Bits  # (words,) those of them not yet packed
    before: Bits  # (words,) what was free at the last look
    feature: Floats  # (F,)
    unit: Floats  # (H,)
    op_servers: Ints  # (max ops, max degree)
    memory: Floats  # (S,) bytes left
    future: Ints  # (S,) when each is free again, if a choice is made


def make_scratch(jobs: JobArrays, num_servers: int, hidden: int = 0) -> Scratch:
    """Return the work space of an episode, of a policy with so many hidden units."""
    return Scratch(
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(jobs.block_mask.shape[1], np.uint64),
        np.zeros(num_features(len(jobs.degrees))),
        np.zeros(hidden),
        np.zeros((int(np.diff(jobs.op_ptr).max()), int(jobs.degrees[-1])), np.int64),
        np.zeros(num_servers),
        np.zeros(num_servers, np.int64),
    )


class Outcome(NamedTuple):
    """What happened to each job of a stream."""

    cause: NDArray[np.int8]  # (J,)
    degree: NDArray[np.int16]  # (J,) chosen degree, 0 where none was
    jct: Ints  # (J,) ticks, 0 for a job that did not start
    held: NDArray[np.int16]  # (J,) number of servers
    servers: Flags  # (J, S) servers held, or (0, S) if not recorded


# `_nrt=False` leaves reference counting out of functions that allocate nothing: counting every
# array of a NamedTuple at
# each call takes longer than the work.

COMPLETED, REFUSED, NO_SPACE, DEADLINE, UNFINISHED = range(5)
"""What became of a job. A job is *refused* where the policy chose no degree although one would have
fitted, has *no space* where servers are missing, misses its *deadline* whatever else is true, or is
*unfinished* at the horizon; all but the first count as blocked."""

CAUSES = ("completed", "refused", "no space", "deadline", "unfinished")

MAX_DEGREE, MIN_DEGREE, CONSTANT, RANDOM, FEASIBLE_FIRST, ROLLOUT, VALUE = range(7)


@uncounted_kernel
def _uniform(state):  # type: ignore[no-untyped-def]
    """Return a number in [0, 1) and advance the xorshift128+ state (uint64[2])."""
    x = state[0]
    y = state[1]
    state[0] = y
    x ^= x << np.uint64(23)
    x ^= x >> np.uint64(17)
    x ^= y ^ (y >> np.uint64(26))
    state[1] = x
    return np.float64((x + y) >> np.uint64(11)) / 9007199254740992.0


@uncounted_kernel
def _copy(source, target):  # type: ignore[no-untyped-def]
    """Copy an array by hand: an assignment of slices would allocate."""
    for i in range(len(source)):
        target[i] = source[i]


@uncounted_kernel
def _mark_free(free_at, now, free):  # type: ignore[no-untyped-def]
    """Mark the servers that are free now and return how many they are."""
    count = 0
    for s in range(len(free)):
        free[s] = free_at[s] <= now
        count += free[s]
    return count


@uncounted_kernel
def _all_in(server_ptr, server, row, marked):  # type: ignore[no-untyped-def]
    """Whether every server of a block is marked."""
    for k in row_of(server_ptr, row):
        if not marked[server[k]]:
            return False
    return True


@uncounted_kernel
def _first_fit(jobs, size, need, free, memory):  # type: ignore[no-untyped-def]
    """Return the first block of `size` free servers with `need` bytes each, or -1."""
    if size + 1 >= len(jobs.size_ptr):
        return -1
    for row in row_of(jobs.size_ptr, size):
        if not _all_in(jobs.server_ptr, jobs.server, row, free):
            continue
        k, end = jobs.server_ptr[row], jobs.server_ptr[row + 1]
        while k < end and memory[jobs.server[k]] >= need:
            k += 1
        if k == end:
            return row
    return -1


@uncounted_kernel
def _mark(server_ptr, server, row, marks, value):  # type: ignore[no-untyped-def]
    """Mark, or unmark, the servers of a block."""
    for k in row_of(server_ptr, row):
        marks[server[k]] = value


@uncounted_kernel
def _place(jobs, model, d, work):  # type: ignore[no-untyped-def]
    """Place a job by first fit on `work.free`; mark its servers in `work.trial`, return whether it
    fits.

    Under the uniform rule the job takes one block. Under the published rule it is placed op by op:
    on a parent's servers if they are as many as its sub-ops and have the memory together, else on
    the first block that fits.
    """
    held = work.trial
    held[:] = False
    if jobs.jct[model, d] < 0:
        return False
    if jobs.whole:
        size = jobs.degrees[d]
        for row in row_of(jobs.size_ptr, size):
            if _all_in(jobs.server_ptr, jobs.server, row, work.free):
                _mark(jobs.server_ptr, jobs.server, row, held, True)
                return True
        return False
    op_servers, memory = work.op_servers, work.memory
    memory[:] = jobs.memory
    begin = jobs.op_ptr[model]
    for op in range(begin, jobs.op_ptr[model + 1]):
        count, need = jobs.op_splits[op, d], jobs.op_memory[op]
        parent = _roomy_parent(jobs, begin, op, d, work)
        if parent >= 0:
            for i in range(count):
                op_servers[op - begin, i] = op_servers[parent, i]
        else:
            row = _first_fit(jobs, count, need / count, work.free, memory)
            if row < 0:
                return False
            at = jobs.server_ptr[row]
            for i in range(count):
                op_servers[op - begin, i] = jobs.server[at + i]
                held[jobs.server[at + i]] = True
        for i in range(count):
            memory[op_servers[op - begin, i]] -= need / count
    return True


@uncounted_kernel
def _roomy_parent(jobs, begin, op, d, work):  # type: ignore[no-untyped-def]
    """Return the first parent with as many servers as the op has sub-ops and the memory together,
    -1 for none.
    """
    for k in row_of(jobs.parent_ptr, op):
        parent = jobs.parent[k]
        if jobs.op_splits[begin + parent, d] == jobs.op_splits[op, d]:
            room = 0.0
            for i in range(jobs.op_splits[op, d]):
                room += work.memory[work.op_servers[parent, i]]
            if room >= jobs.op_memory[op]:
                return parent
    return -1


@uncounted_kernel
def _lost_room(jobs, work):  # type: ignore[no-untyped-def]
    """Return the part of the free blocks of the larger degrees that the tried placement would spoil
    (0 to 1).
    """
    total, lost = 0, 0
    for d in range(len(jobs.degrees)):
        size = jobs.degrees[d]
        if 2 * size < jobs.degrees[-1]:
            continue
        for row in row_of(jobs.size_ptr, size):
            if _all_in(jobs.server_ptr, jobs.server, row, work.free):
                total += 1
                lost += _any_in(jobs.server_ptr, jobs.server, row, work.trial)
    return lost / total if total > 0 else 0.0


@uncounted_kernel
def _any_in(server_ptr, server, row, marked):  # type: ignore[no-untyped-def]
    """Whether a server of a block is marked."""
    for k in row_of(server_ptr, row):
        if marked[server[k]]:
            return True
    return False


@uncounted_kernel
def _choose_feasible(jobs, policy, job, work):  # type: ignore[no-untyped-def]
    """Feasible-first: return the degree's index or -1; `work.held` marks the servers.

    The first degree of the model's order that meets the deadline and fits now; with a fragmentation
    weight w, the one with the smallest (place in the order + w * lost room).
    """
    best, best_score = -1, np.inf
    for position in range(policy.order.shape[1]):
        d = policy.order[job.model, position]
        if d < 0 or position >= best_score:
            break
        if jobs.width[job.model, d] > job.num_free or not _in_time(jobs.jct, job, d):
            continue
        if not _place(jobs, job.model, d, work):
            continue
        score = np.float64(position)
        if policy.fragmentation > 0.0:
            score += policy.fragmentation * _lost_room(jobs, work)
        if score < best_score:
            best, best_score = d, score
            _copy(work.trial, work.held)
    return best


@uncounted_kernel
def _in_time(jct, job, d):  # type: ignore[no-untyped-def]
    """Whether a job split with degree `d` fits an empty cluster and meets its deadline."""
    return 0 <= jct[job.model, d] <= job.deadline


@uncounted_kernel
def _choose_published(jobs, policy, job, state):  # type: ignore[no-untyped-def]
    """The published heuristics: return an index among the degrees that do not exceed the free
    servers, or -1.
    """
    valid = 0
    while valid < len(jobs.degrees) and jobs.degrees[valid] <= job.num_free:
        valid += 1
    if policy.kind == MAX_DEGREE or valid == 0:
        return valid - 1
    if policy.kind == RANDOM:
        return min(valid - 1, int(_uniform(state) * valid))
    # the smallest valid degree that is at least (sequential time / deadline), else the largest
    # valid one
    target = np.ceil(jobs.sequential[job.model] / max(job.deadline, 1) - 1e-9)
    for d in range(valid):
        if jobs.degrees[d] >= target:
            return d
    return valid - 1


@uncounted_kernel
def _future_cost(jobs, policy, start, now, horizon, work):  # type: ignore[no-untyped-def]
    """Serve `depth` sampled arrivals from `work.future` on by feasible-first; return the jobs lost
    and work left.
    """
    future = work.future
    lost, time, at = 0.0, now, start
    for _ in range(policy.depth):
        time += policy.pool_gap[at]
        if time > horizon:
            break
        num_free = _mark_free(future, time, work.free)
        job = Arrival(policy.pool_model[at], policy.pool_deadline[at], time, num_free)
        d = _choose_feasible(jobs, policy, job, work)
        end = time + jobs.jct[job.model, d] if d >= 0 else time
        at = at + 1 if at + 1 < len(policy.pool_model) else 0
        if d < 0 or end > horizon:
            lost += 1.0
            continue
        for s in range(len(future)):
            if work.held[s]:
                future[s] = end
    left = 0.0
    for s in range(len(future)):
        left += max(np.int64(0), future[s] - time)
    return lost + policy.terminal * left


@inner_kernel
def _choose_rollout(  # type: ignore[no-untyped-def]
    jobs, policy, job, free_at, horizon, work, state
):
    """Return the index of the degree, or -1, with the smallest expected cost of the near future.

    Each way to place this job, and refusing it, is followed by the same `samples` futures of
    `depth` arrivals.
    """
    starts = np.empty(policy.samples, np.int64)
    for r in range(policy.samples):
        starts[r] = min(len(policy.pool_model) - 1, int(_uniform(state) * len(policy.pool_model)))
    taken = np.empty(len(free_at), np.bool_)
    best, best_cost = -1, np.inf
    for position in range(policy.candidates.shape[1] + 1):
        d, end, cost = -1, job.now, 1.0 * policy.samples
        taken[:] = False
        if position < policy.candidates.shape[1]:
            d = policy.candidates[job.model, position]
            if d < 0 or not _in_time(jobs.jct, job, d):
                continue
            _mark_free(free_at, job.now, work.free)
            if not _place(jobs, job.model, d, work) or job.now + jobs.jct[job.model, d] > horizon:
                continue
            end, cost = job.now + jobs.jct[job.model, d], 0.0
            _copy(work.trial, taken)
        for r in range(policy.samples):
            for s in range(len(free_at)):
                work.future[s] = end if taken[s] else free_at[s]
            cost += _future_cost(jobs, policy, starts[r], job.now, horizon, work)
            if cost >= best_cost:
                break
        if cost < best_cost:
            best, best_cost = d, cost
    return best


@uncounted_kernel
def _packable(jobs, size, work):  # type: ignore[no-untyped-def]
    """Return the servers in blocks of `size` that first fit packs side by side into `work.open`
    (kept).
    """
    _copy(work.open, work.room)
    packed = 0
    # a block taken spoils earlier ones only, so that one pass does
    for row in row_of(jobs.size_ptr, size):
        outside = np.uint64(0)
        for w in range(len(work.room)):
            outside |= jobs.block_mask[row, w] & ~work.room[w]
        if outside == 0:
            packed += size
            for w in range(len(work.room)):
                work.room[w] ^= jobs.block_mask[row, w]
    return packed


@uncounted_kernel
def _open_at(free_at, time, work):  # type: ignore[no-untyped-def]
    """Mark the servers that are free at a time in `work.open`; return whether they are those in
    `work.before`.
    """
    work.open[:] = 0
    for s in range(len(free_at)):
        work.open[s >> 6] |= np.uint64(free_at[s] <= time) << np.uint64(s & 63)
    same = True
    for w in range(len(work.open)):
        same &= work.open[w] == work.before[w]
        work.before[w] = work.open[w]
    return same


@uncounted_kernel
def _describe(jobs, policy, now, horizon, free_at, row, work):  # type: ignore[no-untyped-def]
    """Fill a row with what the cluster offers from `now` on if nothing more starts: free servers,
    packable blocks.

    Nothing is of use after the horizon, so that the description of a cluster fades as the end comes
    near.
    """
    num_servers, at, width = len(free_at), 0, len(jobs.degrees) - 1
    row[:] = 0.0
    for look in range(len(policy.looks)):
        time, count = now + np.int64(policy.gap * policy.looks[look]), 0
        if time < horizon:
            for s in range(num_servers):
                count += free_at[s] <= time
        row[at] = count / num_servers
        at += 1
    work.before[:] = 0  # a look at which nothing is free packs nothing, as `row` says already
    for look in range(len(policy.packed_looks)):
        time = now + np.int64(policy.gap * policy.packed_looks[look])
        if time >= horizon:
            break
        if _open_at(free_at, time, work):
            for d in range(width if look > 0 else 0):
                row[at + d] = row[at + d - width]
        else:
            for d in range(width):
                row[at + d] = _packable(jobs, jobs.degrees[d + 1], work) / num_servers
        at += width


@uncounted_kernel
def _value(policy, row, unit):  # type: ignore[no-untyped-def]
    """Return the network's estimate of the jobs that a cluster so described will still complete, up
    to a constant.
    """
    _copy(policy.bias, unit)
    value = 0.0
    for f in range(len(row)):
        if row[f] != 0.0:
            value += policy.linear[f] * row[f]
            for h in range(len(unit)):
                unit[h] += policy.hidden[f, h] * row[f]
    for h in range(len(unit)):
        value += policy.output[h] * max(0.0, unit[h])
    return value


@uncounted_kernel
def _can_start(jobs, job, d, horizon, free_at, work):  # type: ignore[no-untyped-def]
    """Whether a job can start with degree `d` and end in time and before the horizon; `work.trial`
    marks its servers.
    """
    if jobs.width[job.model, d] > job.num_free or not _in_time(jobs.jct, job, d):
        return False
    if job.now + jobs.jct[job.model, d] > horizon:
        return False
    _mark_free(free_at, job.now, work.free)
    return _place(jobs, job.model, d, work)


@uncounted_kernel
def _choose_by_value(jobs, policy, job, free_at, horizon, work):  # type: ignore[no-untyped-def]
    """Return the index of the degree, or -1, after which this job and the value of the cluster left
    are most.
    """
    _describe(jobs, policy, job.now, horizon, free_at, work.feature, work)
    best, best_value = -1, policy.discount * _value(policy, work.feature, work.unit)
    for d in range(len(jobs.degrees)):
        if not _can_start(jobs, job, d, horizon, free_at, work):
            continue
        for s in range(len(free_at)):
            work.future[s] = job.now + jobs.jct[job.model, d] if work.trial[s] else free_at[s]
        _describe(jobs, policy, job.now, horizon, work.future, work.feature, work)
        value = 1.0 + policy.discount * _value(policy, work.feature, work.unit)
        if value > best_value:
            best, best_value = d, value
    return best


@uncounted_kernel
def _choose_any(jobs, job, free_at, horizon, work, state):  # type: ignore[no-untyped-def]
    """Return one of the degrees with which the job can start, or -1, each as likely."""
    chosen, count = -1, 1
    for d in range(len(jobs.degrees)):
        if _can_start(jobs, job, d, horizon, free_at, work):
            count += 1
            if _uniform(state) * count < 1.0:
                chosen = d
    return chosen


@entry
def run_episode(  # type: ignore[no-untyped-def]
    jobs, stream, policy, state, work, outcome, afterwards
):
    """Run one stream from an empty cluster; fill `outcome`, and `afterwards` (what each job leaves)
    if that has rows.
    """
    free_at = np.full(len(work.free), -1, np.int64)
    for j in range(len(stream.arrival)):
        now = stream.arrival[j]
        job = Arrival(stream.model[j], stream.deadline[j], now, _mark_free(free_at, now, work.free))
        if policy.explore > 0.0 and _uniform(state) < policy.explore:
            d = _choose_any(jobs, job, free_at, stream.horizon, work, state)
        elif policy.kind == FEASIBLE_FIRST:
            d = _choose_feasible(jobs, policy, job, work)
        elif policy.kind == ROLLOUT:
            d = _choose_rollout(jobs, policy, job, free_at, stream.horizon, work, state)
        elif policy.kind == VALUE:
            d = _choose_by_value(jobs, policy, job, free_at, stream.horizon, work)
        elif policy.kind == CONSTANT:
            d = policy.constant
        else:
            d = _choose_published(jobs, policy, job, state)
        _serve(jobs, job, d, free_at, stream.horizon, work, outcome, j)
        if len(afterwards) > 0:
            _describe(jobs, policy, now, stream.horizon, free_at, afterwards[j], work)


@uncounted_kernel
def _serve(jobs, job, d, free_at, horizon, work, outcome, j):  # type: ignore[no-untyped-def]
    """Start job number `j` with the degree chosen for it, if it fits and is in time, and note what
    becomes of it.
    """
    outcome.degree[j], outcome.jct[j], outcome.held[j] = 0, 0, 0
    if d < 0:
        outcome.cause[j] = _why_nothing(jobs, job, free_at, work)
        return
    outcome.degree[j] = jobs.degrees[d]
    _mark_free(free_at, job.now, work.free)
    if not _place(jobs, job.model, d, work):
        outcome.cause[j] = NO_SPACE
        return
    time = jobs.jct[job.model, d]
    if time > job.deadline:
        outcome.cause[j] = DEADLINE
        return
    outcome.cause[j] = COMPLETED if job.now + time <= horizon else UNFINISHED
    outcome.jct[j] = time
    for s in range(len(free_at)):
        if work.trial[s]:
            free_at[s] = job.now + time
            outcome.held[j] += 1
            if len(outcome.servers) > 0:
                outcome.servers[j, s] = True


@uncounted_kernel
def _why_nothing(jobs, job, free_at, work):  # type: ignore[no-untyped-def]
    """Return why no degree was chosen: none meets the deadline, none of those fits now, or the
    policy refused.
    """
    answer = DEADLINE
    for d in range(len(jobs.degrees)):
        if not _in_time(jobs.jct, job, d):
            continue
        if answer == DEADLINE:
            answer = NO_SPACE
        if jobs.width[job.model, d] > job.num_free:
            continue
        _mark_free(free_at, job.now, work.free)
        if _place(jobs, job.model, d, work):
            return REFUSED
    return answer
