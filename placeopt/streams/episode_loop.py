"""The loop over the arrivals of a job stream (numba): first-fit placement, degree policies, and what becomes of a job.

Only arrivals change what a policy sees, so the loop steps from arrival to arrival; a server is free again at
``free_at[server]``. All times are int64 ticks. Every jitted function that another one calls is in this file.
"""

from __future__ import annotations

import numpy as np

from placeopt.model.compiled import entry, inner, uncounted
from placeopt.streams import episode_arrays as arrays

# `_nrt=False` leaves reference counting out of functions that allocate nothing: counting every array of a NamedTuple at
# each call takes longer than the work.

COMPLETED, REFUSED, NO_SPACE, DEADLINE, UNFINISHED = range(5)
"""What became of a job. A job is *refused* where the policy chose no degree although one would have fitted,
has *no space* where servers are missing, misses its *deadline* whatever else is true, or is *unfinished* at the
horizon; all but the first count as blocked."""

CAUSES = ("completed", "refused", "no space", "deadline", "unfinished")

MAX_DEGREE, MIN_DEGREE, CONSTANT, RANDOM, FEASIBLE_FIRST, ROLLOUT, LOG_LINEAR = range(7)


@uncounted
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


@uncounted
def _copy(source, target):  # type: ignore[no-untyped-def]
    """Copy an array by hand: an assignment of slices would allocate."""
    for i in range(len(source)):
        target[i] = source[i]


@uncounted
def _mark_free(free_at, now, free):  # type: ignore[no-untyped-def]
    """Mark the servers that are free now and return how many they are."""
    count = 0
    for s in range(len(free)):
        free[s] = free_at[s] <= now
        count += free[s]
    return count


@uncounted
def _all_in(server_ptr, server, row, marked):  # type: ignore[no-untyped-def]
    """Whether every server of a block is marked."""
    for k in range(server_ptr[row], server_ptr[row + 1]):
        if not marked[server[k]]:
            return False
    return True


@uncounted
def _first_fit(jobs, size, need, free, memory):  # type: ignore[no-untyped-def]
    """Return the first block of `size` free servers with `need` bytes each, or -1."""
    if size + 1 >= len(jobs.size_ptr):
        return -1
    for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
        if not _all_in(jobs.server_ptr, jobs.server, row, free):
            continue
        k, end = jobs.server_ptr[row], jobs.server_ptr[row + 1]
        while k < end and memory[jobs.server[k]] >= need:
            k += 1
        if k == end:
            return row
    return -1


@uncounted
def _mark(server_ptr, server, row, marks, value):  # type: ignore[no-untyped-def]
    """Mark, or unmark, the servers of a block."""
    for k in range(server_ptr[row], server_ptr[row + 1]):
        marks[server[k]] = value


@uncounted
def _place(jobs, model, d, work):  # type: ignore[no-untyped-def]
    """Place a job by first fit on `work.free`; mark its servers in `work.trial`, return whether it fits.

    Under the uniform rule the job takes one block. Under the published rule it is placed op by op: on a parent's
    servers if they are as many as its sub-ops and have the memory together, else on the first block that fits.
    """
    held = work.trial
    held[:] = False
    if jobs.jct[model, d] < 0:
        return False
    if jobs.whole:
        size = jobs.degrees[d]
        for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
            if _all_in(jobs.server_ptr, jobs.server, row, work.free):
                _mark(jobs.server_ptr, jobs.server, row, held, True)
                return True
        return False
    op_servers, memory = work.op_servers, work.memory
    memory[:] = jobs.memory
    begin = jobs.op_ptr[model]
    for op in range(begin, jobs.op_ptr[model + 1]):
        count, need, found = jobs.op_splits[op, d], jobs.op_memory[op], False
        for k in range(jobs.parent_ptr[op], jobs.parent_ptr[op + 1]):
            parent = jobs.parent[k]
            if jobs.op_splits[begin + parent, d] != count:
                continue
            room = 0.0
            for i in range(count):
                room += memory[op_servers[parent, i]]
            if room >= need:
                for i in range(count):
                    op_servers[op - begin, i] = op_servers[parent, i]
                found = True
                break
        if not found:
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


@uncounted
def _lost_room(jobs, work):  # type: ignore[no-untyped-def]
    """Return the part of the free blocks of the larger degrees that the tried placement would spoil (0 to 1)."""
    total, lost = 0, 0
    for d in range(len(jobs.degrees)):
        size = jobs.degrees[d]
        if 2 * size < jobs.degrees[-1]:
            continue
        for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
            if not _all_in(jobs.server_ptr, jobs.server, row, work.free):
                continue
            total += 1
            for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
                if work.trial[jobs.server[k]]:
                    lost += 1
                    break
    return lost / total if total > 0 else 0.0


@uncounted
def _choose_feasible(jobs, policy, job, work):  # type: ignore[no-untyped-def]
    """Feasible-first: return the degree's index or -1; `work.held` marks the servers.

    The first degree of the model's order that meets the deadline and fits now; with a fragmentation weight w, the
    one with the smallest (place in the order + w * lost room).
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


@uncounted
def _in_time(jct, job, d):  # type: ignore[no-untyped-def]
    """Whether a job split with degree `d` fits an empty cluster and meets its deadline."""
    return 0 <= jct[job.model, d] <= job.deadline


@uncounted
def _choose_published(jobs, policy, job, state):  # type: ignore[no-untyped-def]
    """The published heuristics: return an index among the degrees that do not exceed the free servers, or -1."""
    valid = 0
    while valid < len(jobs.degrees) and jobs.degrees[valid] <= job.num_free:
        valid += 1
    if policy.kind == MAX_DEGREE or valid == 0:
        return valid - 1
    if policy.kind == RANDOM:
        return min(valid - 1, int(_uniform(state) * valid))
    # the smallest valid degree that is at least (sequential time / deadline), else the largest valid one
    target = np.ceil(jobs.sequential[job.model] / max(job.deadline, 1) - 1e-9)
    for d in range(valid):
        if jobs.degrees[d] >= target:
            return d
    return valid - 1


@uncounted
def _future_cost(jobs, policy, start, now, horizon, work):  # type: ignore[no-untyped-def]
    """Serve `depth` sampled arrivals from `work.future` on by feasible-first; return the jobs lost and work left."""
    future = work.future
    lost, time, at = 0.0, now, start
    for _ in range(policy.depth):
        time += policy.pool_gap[at]
        if time > horizon:
            break
        num_free = _mark_free(future, time, work.free)
        job = arrays.Arrival(policy.pool_model[at], policy.pool_deadline[at], time, num_free)
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


@inner
def _choose_rollout(jobs, policy, job, free_at, horizon, work, state):  # type: ignore[no-untyped-def]
    """Return the index of the degree, or -1, with the smallest expected cost of the near future.

    Each way to place this job, and refusing it, is followed by the same `samples` futures of `depth` arrivals.
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


@uncounted
def _packable(jobs, size, work):  # type: ignore[no-untyped-def]
    """Return the servers in blocks of `size` that first fit packs side by side into `work.free` (kept)."""
    if size < 1 or size + 1 >= len(jobs.size_ptr):
        return 0
    _copy(work.free, work.room)
    packed = 0
    # a block taken spoils earlier ones only, so that one pass does
    for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
        if _all_in(jobs.server_ptr, jobs.server, row, work.room):
            packed += size
            _mark(jobs.server_ptr, jobs.server, row, work.room, False)
    return packed


@inner
def _features(jobs, policy, job, free_at, phi, valid, work):  # type: ignore[no-untyped-def]
    """Fill the features phi[D + 1, F] of every action and which are valid; action D refuses the job.

    A degree is valid if it meets the deadline and fits now. The features say where the seed's order puts the degree,
    which degree it is (also together with the job's size, its deadline and how full the cluster is), and what the
    placement leaves: spoilt blocks, and the free servers and packable blocks 1 and 4 mean gaps ahead.
    """
    num_degrees = len(jobs.degrees)
    phi[:] = 0.0
    for d in range(num_degrees):
        valid[d] = jobs.width[job.model, d] <= job.num_free and _in_time(jobs.jct, job, d)
        if valid[d]:
            _mark_free(free_at, job.now, work.free)
            valid[d] = _place(jobs, job.model, d, work)
        if valid[d]:
            _degree_features(jobs, policy, job, d, phi[d], len(free_at))
            _placement_features(jobs, policy, job, d, phi[d], work)
            _features_ahead(jobs, policy, job, job.now + jobs.jct[job.model, d], free_at, phi[d], work)
    valid[num_degrees] = True
    phi[num_degrees, arrays.ORDER_PLACE] = -1.0
    phi[num_degrees, arrays.REFUSES] = 1.0
    work.trial[:] = False
    _features_ahead(jobs, policy, job, job.now, free_at, phi[num_degrees], work)


@inner
def _degree_features(jobs, policy, job, d, row, num_servers):  # type: ignore[no-untyped-def]
    """Where the seed's order puts the degree, and which degree it is, alone and with the state."""
    num_degrees = len(jobs.degrees)
    fill = 1.0 - job.num_free / num_servers
    rank = num_degrees
    for position in range(num_degrees):
        if policy.order[job.model, position] == d:
            rank = position
    row[arrays.ORDER_PLACE] = -rank / num_degrees
    at = arrays.DEGREE_FEATURES + d
    row[at + arrays.IS_DEGREE * num_degrees] = 1.0
    row[at + arrays.JOB_SIZE * num_degrees] = jobs.sequential[job.model] / jobs.sequential.max()
    row[at + arrays.TIGHTNESS * num_degrees] = jobs.sequential[job.model] / max(job.deadline, 1) / jobs.degrees[-1]
    row[at + arrays.FILL * num_degrees] = fill
    row[at + arrays.FILL_SQUARED * num_degrees] = fill * fill


@uncounted
def _placement_features(jobs, policy, job, d, row, work):  # type: ignore[no-untyped-def]
    """Blocks that the tried placement spoils, the server time it takes, and the part of it lost to waiting."""
    at = arrays.DEGREE_FEATURES + arrays.NUM_DEGREE_GROUPS * len(jobs.degrees)
    num_servers, used = len(work.trial), work.trial.sum()
    gaps = jobs.jct[job.model, d] / policy.gap
    row[at + arrays.LOST_ROOM] = _lost_room(jobs, work)
    row[at + arrays.AREA] = used * jobs.jct[job.model, d] / (policy.gap * num_servers)
    row[at + arrays.WASTE] = (np.ceil(gaps) - gaps) * used / num_servers


@uncounted
def _features_ahead(jobs, policy, job, end, free_at, row, work):  # type: ignore[no-untyped-def]
    """Free servers and packable blocks some gaps ahead, if the tried placement is made and ends at `end`."""
    at = arrays.DEGREE_FEATURES + arrays.NUM_DEGREE_GROUPS * len(jobs.degrees)
    num_servers = len(free_at)
    for look in range(len(arrays.LOOKS_AHEAD)):
        time = job.now + np.int64(policy.gap * arrays.LOOKS_AHEAD[look])
        open_servers = 0
        for s in range(num_servers):
            work.free[s] = (end if work.trial[s] else free_at[s]) <= time
            open_servers += work.free[s]
        # blocks of half and of a quarter of the largest degree that fit side by side
        row[at + arrays.FREE_AHEAD] = open_servers / num_servers
        row[at + arrays.HALVES_AHEAD] = _packable(jobs, jobs.degrees[-1] // 2, work) / num_servers
        row[at + arrays.QUARTERS_AHEAD] = _packable(jobs, jobs.degrees[-1] // 4, work) / num_servers
        at += arrays.NUM_AHEAD


@inner
def _choose_log_linear(jobs, policy, phi, valid, state):  # type: ignore[no-untyped-def]
    """Return the action with the largest score, or one sampled from softmax(score / temperature)."""
    score = np.full(len(valid), -np.inf)
    best = len(valid) - 1
    for a in range(len(valid)):
        if valid[a]:
            score[a] = 0.0
            for f in range(phi.shape[1]):
                score[a] += phi[a, f] * policy.weights[f]
    for a in range(len(valid)):
        if score[a] > score[best]:
            best = a
    if policy.temperature <= 0.0:
        return best
    weight = np.exp((score - score[best]) / policy.temperature)
    draw = _uniform(state) * weight.sum()
    for a in range(len(valid)):
        draw -= weight[a]
        if valid[a] and draw <= 0.0:
            return a
    return best


@entry
def run_episode(jobs, stream, policy, state, work, outcome, decisions):  # type: ignore[no-untyped-def]
    """Run one stream from an empty cluster; fill `outcome`, and `decisions` if that has rows."""
    num_degrees = len(jobs.degrees)
    free_at = np.full(len(work.free), -1, np.int64)
    recording = len(decisions.chosen) > 0
    phi = np.zeros((num_degrees + 1, len(policy.weights)))
    valid = np.zeros(num_degrees + 1, np.bool_)
    for j in range(len(stream.arrival)):
        now = stream.arrival[j]
        job = arrays.Arrival(stream.model[j], stream.deadline[j], now, _mark_free(free_at, now, work.free))
        if policy.kind == LOG_LINEAR or recording:
            _features(jobs, policy, job, free_at, phi, valid, work)
            _mark_free(free_at, now, work.free)
        if policy.kind == FEASIBLE_FIRST:
            d = _choose_feasible(jobs, policy, job, work)
        elif policy.kind == ROLLOUT:
            d = _choose_rollout(jobs, policy, job, free_at, stream.horizon, work, state)
        elif policy.kind == LOG_LINEAR:
            chosen = _choose_log_linear(jobs, policy, phi, valid, state)
            d = chosen if chosen < num_degrees else -1
        elif policy.kind == CONSTANT:
            d = policy.constant
        else:
            d = _choose_published(jobs, policy, job, state)
        if recording:
            decisions.features[j], decisions.valid[j] = phi, valid
            decisions.chosen[j] = d if d >= 0 and valid[d] else num_degrees
        _serve(jobs, job, d, free_at, stream.horizon, work, outcome, j)


@uncounted
def _serve(jobs, job, d, free_at, horizon, work, outcome, j):  # type: ignore[no-untyped-def]
    """Start job number `j` with the degree chosen for it, if it fits and is in time, and note what becomes of it."""
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


@uncounted
def _why_nothing(jobs, job, free_at, work):  # type: ignore[no-untyped-def]
    """Return why no degree was chosen: none meets the deadline, none of those fits now, or the policy refused."""
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
