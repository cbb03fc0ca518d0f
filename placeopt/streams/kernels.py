"""Numba kernels of the job-stream simulator: first-fit placement, degree policies and the event loop.

Only arrivals change what a policy sees, so the loop steps from arrival to arrival; a server is free again at
``free_at[server]``. All times are int64 ticks. Every jitted function that another one calls is in this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMPLETED, REFUSED, NO_SPACE, DEADLINE, UNFINISHED = range(5)
"""What became of a job. A job is *refused* where the policy chose no degree although one would have fitted,
has *no space* where servers are missing, misses its *deadline* whatever else is true, or is *unfinished* at the
horizon; all but the first count as blocked."""

CAUSES = ("completed", "refused", "no space", "deadline", "unfinished")

MAX_DEGREE, MIN_DEGREE, CONSTANT, RANDOM, FEASIBLE_FIRST, ROLLOUT, LOG_LINEAR = range(7)


class JobArrays(NamedTuple):
    """Job types on a topology: M models, D degrees, S servers."""

    degrees: NDArray[np.int64]  # (D,)
    jct: NDArray[np.int64]  # (M, D) ticks, -1 where the job does not fit an empty cluster
    width: NDArray[np.int64]  # (M, D) servers the job needs at least
    sequential: NDArray[np.int64]  # (M,) ticks on one server
    size_ptr: NDArray[np.int64]  # blocks: see topology.Blocks
    server_ptr: NDArray[np.int64]
    server: NDArray[np.int64]
    whole: bool  # True: the job takes one block of `degree` servers ("uniform" rule)
    memory: float  # bytes of a server
    plan_ptr: NDArray[np.int64]  # (M + 1,) ops of each model in placing order
    plan_split: NDArray[np.int64]  # (num_ops_of_all_models, D)
    plan_memory: NDArray[np.float64]  # (num_ops_of_all_models,) bytes
    parent_ptr: NDArray[np.int64]  # (num_ops_of_all_models + 1,)
    parent: NDArray[np.int64]  # parents as positions within the plan of the model


class StreamArrays(NamedTuple):
    """The arrivals of one stream of J jobs."""

    arrival: NDArray[np.int64]  # (J,) ticks, ascending
    model: NDArray[np.int64]  # (J,)
    deadline: NDArray[np.int64]  # (J,) ticks after the arrival
    horizon: int  # ticks


class PolicyArrays(NamedTuple):
    """A degree policy; which fields count depends on `kind`."""

    kind: int
    constant: int  # index of the degree
    order: NDArray[np.int64]  # (M, D) indices of degrees, best first, then -1
    candidates: NDArray[np.int64]  # (M, D) rollout: every degree, those of the order first
    fragmentation: float  # weight of lost block room against one place in the order
    samples: int  # rollout: futures per decision
    depth: int  # rollout: arrivals per future
    pool_model: NDArray[np.int64]  # rollout: (P,) sampled jobs
    pool_deadline: NDArray[np.int64]  # (P,) ticks
    pool_gap: NDArray[np.int64]  # (P,) ticks between arrivals
    terminal: float  # rollout: price of a server-tick of work left when a future ends
    gap: float  # log-linear: mean ticks between arrivals
    weights: NDArray[np.float64]  # log-linear: (F,)
    temperature: float  # log-linear: 0 takes the best action, 1 samples


class Scratch(NamedTuple):
    """Work space of one episode."""

    free: NDArray[np.bool_]  # (S,)
    held: NDArray[np.bool_]  # (S,) servers of the placement that was chosen
    trial: NDArray[np.bool_]  # (S,) servers of the placement being tried
    op_servers: NDArray[np.int64]  # (max ops, max degree)
    memory: NDArray[np.float64]  # (S,)
    future: NDArray[np.int64]  # (S,) free_at in a rollout
    room: NDArray[np.bool_]  # (S,) servers not yet packed


class Outcome(NamedTuple):
    """What happened to each job of a stream."""

    cause: NDArray[np.int8]  # (J,)
    degree: NDArray[np.int16]  # (J,) chosen degree, 0 where none was
    jct: NDArray[np.int64]  # (J,) ticks, 0 for a job that did not start
    held: NDArray[np.int16]  # (J,) number of servers
    servers: NDArray[np.bool_]  # (J, S) servers held, or (0, S) if not recorded


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _make_scratch(jobs, num_servers):  # type: ignore[no-untyped-def]
    """Return the work space of one episode."""
    longest = 1
    for m in range(len(jobs.plan_ptr) - 1):
        longest = max(longest, jobs.plan_ptr[m + 1] - jobs.plan_ptr[m])
    return Scratch(
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros(num_servers, np.bool_),
        np.zeros((longest, jobs.degrees[-1]), np.int64),
        np.zeros(num_servers, np.float64),
        np.zeros(num_servers, np.int64),
        np.zeros(num_servers, np.bool_),
    )


@njit(cache=True, nogil=True)
def _first_fit(jobs, size, free):  # type: ignore[no-untyped-def]
    """Return the first block of `size` servers that are all free, or -1."""
    for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
        fits = True
        for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
            if not free[jobs.server[k]]:
                fits = False
                break
        if fits:
            return row
    return -1


@njit(cache=True, nogil=True)
def _first_fit_memory(jobs, size, need, free, memory):  # type: ignore[no-untyped-def]
    """Return the first block of `size` free servers with `need` bytes each, or -1."""
    if size + 1 >= len(jobs.size_ptr):
        return -1
    for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
        fits = True
        for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
            if not free[jobs.server[k]] or memory[jobs.server[k]] < need:
                fits = False
                break
        if fits:
            return row
    return -1


@njit(cache=True, nogil=True)
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
        row = _first_fit(jobs, jobs.degrees[d], work.free)
        if row < 0:
            return False
        for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
            held[jobs.server[k]] = True
        return True
    op_servers, memory = work.op_servers, work.memory
    memory[:] = jobs.memory
    begin = jobs.plan_ptr[model]
    for op in range(begin, jobs.plan_ptr[model + 1]):
        count = jobs.plan_split[op, d]
        need = jobs.plan_memory[op]
        found = False
        for k in range(jobs.parent_ptr[op], jobs.parent_ptr[op + 1]):
            parent = jobs.parent[k]
            if jobs.plan_split[begin + parent, d] != count:
                continue
            room = 0.0
            for i in range(count):
                room += memory[op_servers[parent, i]]
            if room >= need:
                op_servers[op - begin, :count] = op_servers[parent, :count]
                found = True
                break
        if not found:
            row = _first_fit_memory(jobs, count, need / count, work.free, memory)
            if row < 0:
                return False
            at = jobs.server_ptr[row]
            for i in range(count):
                op_servers[op - begin, i] = jobs.server[at + i]
                held[jobs.server[at + i]] = True
        for i in range(count):
            memory[op_servers[op - begin, i]] -= need / count
    return True


@njit(cache=True, nogil=True)
def _lost_room(jobs, work):  # type: ignore[no-untyped-def]
    """Return the part of the free blocks of the larger degrees that the tried placement would spoil (0 to 1)."""
    total, lost = 0, 0
    for d in range(len(jobs.degrees)):
        size = jobs.degrees[d]
        if 2 * size < jobs.degrees[-1]:
            continue
        for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
            fits, hit = True, False
            for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
                s = jobs.server[k]
                if not work.free[s]:
                    fits = False
                    break
                if work.trial[s]:
                    hit = True
            if fits:
                total += 1
                if hit:
                    lost += 1
    return lost / total if total > 0 else 0.0


@njit(cache=True, nogil=True)
def _choose_feasible(jobs, policy, model, deadline, num_free, work):  # type: ignore[no-untyped-def]
    """Feasible-first: return the degree's index or -1; `work.held` marks the servers.

    The first degree of the model's order that meets the deadline and fits now; with a fragmentation weight w, the
    one with the smallest (place in the order + w * lost room).
    """
    best, best_score = -1, np.inf
    for position in range(policy.order.shape[1]):
        d = policy.order[model, position]
        if d < 0 or position >= best_score:
            break
        if jobs.width[model, d] > num_free or jobs.jct[model, d] < 0 or jobs.jct[model, d] > deadline:
            continue
        if not _place(jobs, model, d, work):
            continue
        score = np.float64(position)
        if policy.fragmentation > 0.0:
            score += policy.fragmentation * _lost_room(jobs, work)
        if score < best_score:
            best, best_score = d, score
            work.held[:] = work.trial
    return best


@njit(cache=True, nogil=True)
def _choose_published(jobs, policy, model, deadline, num_free, state):  # type: ignore[no-untyped-def]
    """The published heuristics: return an index among the degrees that do not exceed the free servers, or -1."""
    valid = 0
    while valid < len(jobs.degrees) and jobs.degrees[valid] <= num_free:
        valid += 1
    if policy.kind == MAX_DEGREE or valid == 0:
        return valid - 1
    if policy.kind == RANDOM:
        return min(valid - 1, int(_uniform(state) * valid))
    # the smallest valid degree that is at least (sequential time / deadline), else the largest valid one
    target = np.ceil(jobs.sequential[model] / max(deadline, 1) - 1e-9)
    for d in range(valid):
        if jobs.degrees[d] >= target:
            return d
    return valid - 1


@njit(cache=True, nogil=True)
def _future_cost(jobs, policy, start, now, horizon, work):  # type: ignore[no-untyped-def]
    """Serve `depth` sampled arrivals from `work.future` on by feasible-first; return the jobs lost and work left."""
    future, free = work.future, work.free
    lost, time, at = 0.0, now, start
    for _ in range(policy.depth):
        time += policy.pool_gap[at]
        if time > horizon:
            break
        num_free = 0
        for s in range(len(future)):
            free[s] = future[s] <= time
            num_free += free[s]
        model = policy.pool_model[at]
        d = _choose_feasible(jobs, policy, model, policy.pool_deadline[at], num_free, work)
        end = time + jobs.jct[model, d] if d >= 0 else time
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


@njit(cache=True, nogil=True)
def _choose_rollout(jobs, policy, model, deadline, now, free_at, horizon, work, state):  # type: ignore[no-untyped-def]
    """Return the index of the degree, or -1, with the smallest expected cost of the near future.

    Each way to place this job, and refusing it, is followed by the same `samples` futures of `depth` arrivals.
    """
    starts = np.empty(policy.samples, np.int64)
    for r in range(policy.samples):
        starts[r] = min(len(policy.pool_model) - 1, int(_uniform(state) * len(policy.pool_model)))
    taken = np.empty(len(free_at), np.bool_)
    best, best_cost = -1, np.inf
    for position in range(policy.candidates.shape[1] + 1):
        d, end, cost = -1, now, 1.0 * policy.samples
        taken[:] = False
        if position < policy.candidates.shape[1]:
            d = policy.candidates[model, position]
            if d < 0 or jobs.jct[model, d] < 0 or jobs.jct[model, d] > deadline:
                continue
            for s in range(len(free_at)):
                work.free[s] = free_at[s] <= now
            if not _place(jobs, model, d, work) or now + jobs.jct[model, d] > horizon:
                continue
            end, cost = now + jobs.jct[model, d], 0.0
            taken[:] = work.trial
        for r in range(policy.samples):
            for s in range(len(free_at)):
                work.future[s] = end if taken[s] else free_at[s]
            cost += _future_cost(jobs, policy, starts[r], now, horizon, work)
            if cost >= best_cost:
                break
        if cost < best_cost:
            best, best_cost = d, cost
    return best


@njit(cache=True, nogil=True)
def num_features(num_degrees):  # type: ignore[no-untyped-def]
    """Number of features of an action of the log-linear policy."""
    return 2 + 5 * num_degrees + 9


@njit(cache=True, nogil=True)
def _packable(jobs, size, work):  # type: ignore[no-untyped-def]
    """Return the servers in blocks of `size` that first fit packs side by side into `work.free` (kept)."""
    if size < 1 or size + 1 >= len(jobs.size_ptr):
        return 0
    work.room[:] = work.free
    packed = 0
    # a block taken spoils earlier ones only, so that one pass does
    for row in range(jobs.size_ptr[size], jobs.size_ptr[size + 1]):
        fits = True
        for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
            if not work.room[jobs.server[k]]:
                fits = False
                break
        if fits:
            packed += size
            for k in range(jobs.server_ptr[row], jobs.server_ptr[row + 1]):
                work.room[jobs.server[k]] = False
    return packed


@njit(cache=True, nogil=True)
def _features(jobs, policy, model, deadline, now, free_at, phi, valid, work):  # type: ignore[no-untyped-def]
    """Fill the features phi[D + 1, F] of every action and which are valid; action D refuses the job.

    A degree is valid if it meets the deadline and fits now. The features say where the seed's order puts the degree,
    which degree it is (also together with the job's size, its deadline and how full the cluster is), and what the
    placement leaves: spoilt blocks, and the free servers and packable blocks 1 and 4 mean gaps ahead.
    """
    num_degrees, num_servers = len(jobs.degrees), len(free_at)
    phi[:] = 0.0
    num_free = 0
    for s in range(num_servers):
        work.free[s] = free_at[s] <= now
        num_free += work.free[s]
    largest = 0.0
    for m in range(len(jobs.sequential)):
        largest = max(largest, 1.0 * jobs.sequential[m])
    size = jobs.sequential[model] / largest
    tight = jobs.sequential[model] / max(deadline, 1) / jobs.degrees[-1]
    fill = 1.0 - num_free / num_servers
    for a in range(num_degrees + 1):
        refuse = a == num_degrees
        rank = num_degrees
        valid[a] = refuse
        end = now
        if not refuse:
            if jobs.width[model, a] > num_free or jobs.jct[model, a] < 0 or jobs.jct[model, a] > deadline:
                continue
            for s in range(num_servers):
                work.free[s] = free_at[s] <= now
            if not _place(jobs, model, a, work):
                continue
            valid[a] = True
            end = now + jobs.jct[model, a]
            for position in range(num_degrees):
                if policy.order[model, position] == a:
                    rank = position
        else:
            work.trial[:] = False
            for s in range(num_servers):
                work.free[s] = free_at[s] <= now
        row = phi[a]
        row[0] = -rank / num_degrees
        row[1] = 1.0 if refuse else 0.0
        if not refuse:
            row[2 + a] = 1.0
            row[2 + num_degrees + a] = size
            row[2 + 2 * num_degrees + a] = tight
            row[2 + 3 * num_degrees + a] = fill
            row[2 + 4 * num_degrees + a] = fill * fill
        at = 2 + 5 * num_degrees
        row[at] = _lost_room(jobs, work) if not refuse else 0.0
        used = 0
        for s in range(num_servers):
            used += work.trial[s]
        if not refuse:
            row[at + 1] = used * jobs.jct[model, a] / (policy.gap * num_servers)
            waste = np.ceil(jobs.jct[model, a] / policy.gap) - jobs.jct[model, a] / policy.gap
            row[at + 2] = waste * used / num_servers
        for ahead in range(2):
            time = now + np.int64(policy.gap * (1 + 3 * ahead))
            open_servers = 0
            for s in range(num_servers):
                work.free[s] = (end if work.trial[s] else free_at[s]) <= time
                open_servers += work.free[s]
            row[at + 3 + 3 * ahead] = open_servers / num_servers
            # blocks of half and of a quarter of the largest degree that fit side by side
            row[at + 4 + 3 * ahead] = _packable(jobs, jobs.degrees[-1] // 2, work) / num_servers
            row[at + 5 + 3 * ahead] = _packable(jobs, jobs.degrees[-1] // 4, work) / num_servers


@njit(cache=True, nogil=True)
def _choose_log_linear(jobs, policy, phi, valid, state):  # type: ignore[no-untyped-def]
    """Return the action with the largest score, or one sampled from softmax(score / temperature)."""
    num_actions = len(valid)
    score = np.empty(num_actions)
    best = num_actions - 1
    for a in range(num_actions):
        score[a] = -np.inf
        if valid[a]:
            score[a] = 0.0
            for f in range(phi.shape[1]):
                score[a] += phi[a, f] * policy.weights[f]
    top = score[best]
    for a in range(num_actions):
        if valid[a] and score[a] > top:
            best, top = a, score[a]
    if policy.temperature <= 0.0:
        return best
    total = 0.0
    for a in range(num_actions):
        if valid[a]:
            total += np.exp((score[a] - top) / policy.temperature)
    draw = _uniform(state) * total
    for a in range(num_actions):
        if valid[a]:
            draw -= np.exp((score[a] - top) / policy.temperature)
            if draw <= 0.0:
                return a
    return best


@njit(cache=True, nogil=True)
def run_episode(jobs, stream, policy, state, num_servers, record, cause, degree, jct, held, servers, phi, valid, action):  # type: ignore[no-untyped-def]
    """Run one stream; fill the per-job arrays. `record`: 1 keeps the servers of each job, 2 the policy's features."""
    work = _make_scratch(jobs, num_servers)
    free_at = np.full(num_servers, -1, np.int64)
    num_degrees = len(jobs.degrees)
    row = np.zeros((num_degrees + 1, phi.shape[2] if record == 2 else num_features(num_degrees)))
    mask = np.zeros(num_degrees + 1, np.bool_)
    for job in range(len(stream.arrival)):
        now, model, deadline = stream.arrival[job], stream.model[job], stream.deadline[job]
        cause[job], degree[job], jct[job], held[job] = REFUSED, 0, 0, 0
        num_free = 0
        for s in range(num_servers):
            work.free[s] = free_at[s] <= now
            num_free += work.free[s]
        d = -1
        if policy.kind == LOG_LINEAR or record == 2:
            _features(jobs, policy, model, deadline, now, free_at, row, mask, work)
        for s in range(num_servers):
            work.free[s] = free_at[s] <= now
        if policy.kind == FEASIBLE_FIRST:
            d = _choose_feasible(jobs, policy, model, deadline, num_free, work)
        elif policy.kind == ROLLOUT:
            d = _choose_rollout(jobs, policy, model, deadline, now, free_at, stream.horizon, work, state)
        elif policy.kind == LOG_LINEAR:
            chosen = _choose_log_linear(jobs, policy, row, mask, state)
            d = chosen if chosen < num_degrees else -1
        elif policy.kind == CONSTANT:
            d = policy.constant
        else:
            d = _choose_published(jobs, policy, model, deadline, num_free, state)
        if record == 2:
            phi[job], valid[job] = row, mask
            action[job] = d if d >= 0 and mask[d] else num_degrees
        if d < 0:
            cause[job] = _why_nothing(jobs, model, deadline, num_free, free_at, now, work)
            continue
        degree[job] = jobs.degrees[d]
        for s in range(num_servers):
            work.free[s] = free_at[s] <= now
        if not _place(jobs, model, d, work):
            cause[job] = NO_SPACE
            continue
        time = jobs.jct[model, d]
        if time > deadline:
            cause[job] = DEADLINE
            continue
        cause[job] = COMPLETED if now + time <= stream.horizon else UNFINISHED
        jct[job] = time
        for s in range(num_servers):
            if work.trial[s]:
                free_at[s] = now + time
                held[job] += 1
                if record == 1:
                    servers[job, s] = True


@njit(cache=True, nogil=True)
def _why_nothing(jobs, model, deadline, num_free, free_at, now, work):  # type: ignore[no-untyped-def]
    """Return why no degree was chosen: none meets the deadline, none of those fits now, or the policy refused."""
    answer = DEADLINE
    for d in range(len(jobs.degrees)):
        if jobs.jct[model, d] < 0 or jobs.jct[model, d] > deadline:
            continue
        if answer == DEADLINE:
            answer = NO_SPACE
        if jobs.width[model, d] > num_free:
            continue
        for s in range(len(free_at)):
            work.free[s] = free_at[s] <= now
        if _place(jobs, model, d, work):
            return REFUSED
    return answer
