"""Episodes of a dual policy, compiled: SEL picks a ready op, PLC picks its device, until all ops are placed.

Both policies are softmax(score / T) with score = w . f + a residual that is learned per op (SEL) or per op and
device (PLC); the residual is zero for a policy that is to be transferred. Every feature lies in [0, 1], so a
weight says how much a feature matters. SEL's features are fixed when an op becomes ready (waiting time is the
time since then, and the present is the same for all candidates, so the moment of readiness says the same);
PLC's are computed for each candidate device and scaled over the candidates. SEL's are scaled by the graph's maxima, or
(`sel_scaled`) over the ready ops at every decision: the same to a linear score up to a temperature per decision and
feature, at about twice the time.

The score function of a softmax is closed-form, d/dw log pi(c) = (f_c - sum_a pi(a) f_a) / T, so an episode
returns its own gradient: nothing is stored per decision. See `dual_policy` for the sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from placeopt.model.random_bits import split_uniform
from placeopt.solvers.policy.episode_arrays import Plc, Record, Sel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.solvers.policy.episode_arrays import Graph, Ints, State, Weights


NUM_SEL, NUM_PLC = len(Sel), len(Plc)
SAMPLE, GREEDY, REPLAY, REPLAY_TIES = 0, 1, 2, 3
"""What an episode does: draw actions, take the best, repeat given ones, or repeat them crediting all ties."""

_inlined = njit(cache=True, nogil=True, inline="always")
"""For helpers of an episode: passing the tuples to a call would copy a hundred words each time."""


@_inlined
def _enter(graph: Graph, policy: Weights, state: State, op: int, moment: float, count: int) -> int:
    """Add a ready op: its features and its mass are fixed from now on. Return how many are ready."""
    score = 0.0
    for f in range(NUM_SEL):
        state.features[op, f] = min(1.0, moment / graph.horizon) if f == Sel.READY_TIME else graph.sel_static[op, f]
        score += policy.sel[f] * state.features[op, f]
    if policy.sel_residual.shape[0] > 0:
        score += policy.sel_residual[op]
    state.ready[count] = op
    state.score[op] = score / policy.temperature
    # Most ops are drawn among much the same candidates: their masses are kept until they would overflow.
    state.mass[op] = np.exp(min(300.0, state.score[op] - state.reference[0]))
    return count + 1


@_inlined
def _rescale(policy: Weights, state: State, count: int) -> None:
    """Scale the features of the ready ops over each other, and compute scores and masses from these."""
    for i in range(count):
        v = state.ready[i]
        state.score[v] = policy.sel_residual[v] if policy.sel_residual.shape[0] > 0 else 0.0
    for f in range(NUM_SEL):
        low, high = np.inf, -np.inf
        for i in range(count):
            low = min(low, state.features[state.ready[i], f])
            high = max(high, state.features[state.ready[i], f])
        span = high - low
        for i in range(count):
            v = state.ready[i]
            state.scaled[v, f] = (state.features[v, f] - low) / span if span > 0 else 0.0
            state.score[v] += policy.sel[f] * state.scaled[v, f]
    state.reference[0] = -np.inf
    for i in range(count):
        v = state.ready[i]
        state.score[v] /= policy.temperature
        state.reference[0] = max(state.reference[0], state.score[v])
    for i in range(count):
        v = state.ready[i]
        state.mass[v] = np.exp(state.score[v] - state.reference[0])


@_inlined
def _total_mass(state: State, count: int, top: float) -> float:
    """Sum of the masses of the ready ops; where it leaves the safe range, they are scaled anew."""
    total = 0.0
    for i in range(count):
        total += state.mass[state.ready[i]]
    if not 1e-100 < total < 1e100:
        state.reference[0] = top
        total = 0.0
        for i in range(count):
            v = state.ready[i]
            state.mass[v] = np.exp(state.score[v] - top)
            total += state.mass[v]
    return total


@_inlined
def _draw_ready(state: State, count: int, total: float) -> int:
    """Place in the list of a ready op that is drawn with a probability proportional to its mass."""
    left = split_uniform(state.random) * total
    chosen = count - 1
    for i in range(count):
        left -= state.mass[state.ready[i]]
        if left < 0:
            chosen = i
            break
    return chosen


@_inlined
def _tie_ready(graph: Graph, state: State, count: int, forced: int) -> int:
    """Mark the ready ops with the b-level of `forced`: a heuristic chose one of them. Return how many."""
    ties = 0
    for i in range(count):
        state.tied[i] = graph.sel_static[state.ready[i], Sel.B_LEVEL] == graph.sel_static[forced, Sel.B_LEVEL]
        ties += state.tied[i]
    return ties


@_inlined
def _share(state: State, candidate: int, chosen: int, ties: int) -> float:
    """Part of the credit for a choice that a candidate has: all for the chosen one, or the same for all `ties`."""
    share = 0.0
    if ties > 0 and state.tied[candidate]:
        share = 1.0 / ties
    elif ties == 0 and candidate == chosen:
        share = 1.0
    return share


@_inlined
def _credit_sel(policy: Weights, state: State, record: Record, count: int, chosen: int, ties: int, total: float) -> None:
    """Add the score function, the log-probability and the entropy of a choice; `ties` > 0 share the credit."""
    features = state.scaled if policy.sel_scaled else state.features
    top = state.reference[0]
    entropy = 0.0
    log_total = np.log(total)
    scale = 1.0 / policy.temperature
    for i in range(count):
        v = state.ready[i]
        q = state.mass[v] / total
        target = _share(state, i, chosen, ties)
        step = (target - q) * scale
        if q > 1e-12 or target > 0:
            for f in range(NUM_SEL):
                record.sel[f] += step * features[v, f]
            entropy -= q * (state.score[v] - top - log_total)
        if record.sel_residual.shape[0] > 0:
            record.sel_residual[v] += step
    record.log_probability[0] += state.score[state.ready[chosen]] - top - log_total
    record.entropy[0] += entropy


@_inlined
def _select(graph: Graph, policy: Weights, state: State, record: Record, count: int, mode: int, forced: int) -> int:
    """Pick a ready op (`forced` in replays); return its place in the list."""
    if policy.sel_scaled:
        _rescale(policy, state, count)
    top = -np.inf
    chosen = 0
    for i in range(count):
        v = state.ready[i]
        if state.score[v] > top or (state.score[v] == top and v < state.ready[chosen]):
            top = state.score[v]
            chosen = i
    if mode == GREEDY or (mode == SAMPLE and not policy.sel_random):
        return chosen
    total = _total_mass(state, count, top)
    ties = 0
    if mode == SAMPLE:
        chosen = _draw_ready(state, count, total)
    else:
        chosen = 0
        while state.ready[chosen] != forced:
            chosen += 1
        if mode == REPLAY_TIES:
            ties = _tie_ready(graph, state, count, forced)
    _credit_sel(policy, state, record, count, chosen, ties, total)
    return chosen


@_inlined
def _find_candidates(graph: Graph, state: State, v: int) -> int:
    """Mark the devices that op v may go to: that of its unit, else all compatible ones with room. Return how many."""
    unit = graph.unit[v]
    home = state.unit_home[unit]
    count = 0
    roomiest = -1
    for d in range(graph.compute.shape[1]):
        allowed = graph.unit_allowed[unit, d]
        state.candidate[d] = d == home if home >= 0 else allowed and state.room[d] >= graph.unit_bytes[unit]
        count += state.candidate[d]
        if allowed and (roomiest < 0 or state.room[d] > state.room[roomiest]):
            roomiest = d
    if count == 0:  # nothing has room: the roomiest takes it, and the evaluation will refuse the placement
        state.candidate[roomiest] = True
        count = 1
    return count


@_inlined
def _look(graph: Graph, state: State, device: NDArray[np.int32], v: int, d: int) -> None:
    """Fill the PLC features of op v on device d."""
    arrival = 0.0
    pay = 0.0
    there = 0.0
    begin = np.inf
    end = 0.0
    for e in range(graph.predecessors.pointer[v], graph.predecessors.pointer[v + 1]):
        u = graph.predecessors.op[e]
        at = state.finish[u]
        if device[u] == d:
            there += at - state.start[u]
            begin = min(begin, state.start[u])
            end = max(end, at)
        else:
            cost = graph.transfer[graph.predecessors.tensor[e], graph.link_class[device[u], d]]
            pay += cost
            at += cost
        arrival = max(arrival, at)
    start = max(arrival, state.free_at[d])
    state.plc[d, Plc.EARLIEST_START] = start
    state.plc[d, Plc.EARLIEST_FINISH] = start + graph.compute[v, d]
    state.plc[d, Plc.DEVICE_FREE] = state.free_at[d]
    state.plc[d, Plc.COMMUNICATION] = pay
    state.plc[d, Plc.PREDECESSOR_COMPUTE] = there
    state.plc[d, Plc.PREDECESSOR_START] = begin if begin < np.inf else 0.0
    state.plc[d, Plc.PREDECESSOR_END] = end
    state.plc[d, Plc.LOAD] = state.load[d]
    state.plc[d, Plc.MEMORY_LEFT] = state.room[d]
    state.plc[d, Plc.LINK_LOAD] = state.link[d]
    state.plc[d, Plc.SIBLING_PULL] = state.pull[v, d]


@_inlined
def _describe(graph: Graph, state: State, device: NDArray[np.int32], v: int) -> None:
    """Fill the PLC features of op v on every candidate device, scaled to [0, 1] over the candidates."""
    k = graph.compute.shape[1]
    if _find_candidates(graph, state, v) == 1:  # scaled over itself: all zeros
        state.plc[:] = 0.0
        return
    for d in range(k):
        if state.candidate[d]:
            _look(graph, state, device, v, d)
    for f in range(NUM_PLC):
        low, high = np.inf, -np.inf
        for d in range(k):
            if state.candidate[d]:
                low = min(low, state.plc[d, f])
                high = max(high, state.plc[d, f])
        # Dividing, not multiplying by the inverse: the greatest becomes exactly 1.
        span = high - low
        for d in range(k):
            if state.candidate[d]:
                state.plc[d, f] = (state.plc[d, f] - low) / span if span > 0 else 0.0


@_inlined
def _credit_plc(policy: Weights, state: State, record: Record, v: int, chosen: int, ties: int, total: float) -> None:
    """Add the score function of a choice; `ties` > 0 share the credit."""
    scale = 1.0 / policy.temperature
    for d in range(state.candidate.shape[0]):
        if not state.candidate[d]:
            continue
        q = state.mass_on[d] / total
        step = (_share(state, d, chosen, ties) - q) * scale
        for f in range(NUM_PLC):
            record.plc[f] += step * state.plc[d, f]
        if policy.plc_residual.shape[0] > 0:
            record.plc_residual[v, d] += step


@_inlined
def _score_devices(policy: Weights, state: State, v: int) -> int:
    """Put the scores of the candidates into `mass_on` (0 for others); return the best device."""
    best = -1
    for d in range(state.candidate.shape[0]):
        state.mass_on[d] = 0.0
        if not state.candidate[d]:
            continue
        score = 0.0
        for f in range(NUM_PLC):
            score += policy.plc[f] * state.plc[d, f]
        if policy.plc_residual.shape[0] > 0:
            score += policy.plc_residual[v, d]
        state.mass_on[d] = score / policy.temperature
        if best < 0 or state.mass_on[d] > state.mass_on[best]:
            best = d
    return best


@_inlined
def _tie_devices(state: State, forced: int) -> int:
    """Mark the candidates with the earliest start of `forced`: a heuristic chose one of them. Return how many."""
    ties = 0
    for d in range(state.candidate.shape[0]):
        state.tied[d] = state.candidate[d] and state.plc[d, Plc.EARLIEST_START] == state.plc[forced, Plc.EARLIEST_START]
        ties += state.tied[d]
    return ties


@_inlined
def _place(policy: Weights, state: State, record: Record, v: int, mode: int) -> int:
    """Pick the device of op v (that of the record in replays)."""
    k = state.candidate.shape[0]
    chosen = _score_devices(policy, state, v)
    if mode == GREEDY or (mode == SAMPLE and not policy.plc_random):
        return chosen
    total = 0.0
    entropy = 0.0
    top = state.mass_on[chosen]
    for d in range(k):
        if state.candidate[d]:
            score = state.mass_on[d] - top
            state.mass_on[d] = np.exp(score)
            total += state.mass_on[d]
            entropy -= state.mass_on[d] * score
    entropy = entropy / total + np.log(total)
    ties = 0
    if mode == SAMPLE:
        left = split_uniform(state.random) * total
        for d in range(k):
            left -= state.mass_on[d]
            if left < 0:
                chosen = d
                break
    else:
        chosen = record.device[v]
        if not state.candidate[chosen]:
            return chosen  # not a candidate under this policy's rules: nothing to learn from this decision
        if mode == REPLAY_TIES:
            ties = _tie_devices(state, chosen)
    _credit_plc(policy, state, record, v, chosen, ties, total)
    record.log_probability[0] += np.log(max(1e-300, state.mass_on[chosen] / total))
    record.entropy[0] += entropy
    return chosen


@_inlined
def _begin(graph: Graph, policy: Weights, state: State) -> int:
    """Empty the devices and enter the ops without inputs; return how many are ready."""
    state.reference[0] = 0.0
    state.free_at[:] = 0.0
    state.load[:] = 0.0
    state.link[:] = 0.0
    for d in range(state.room.shape[0]):
        state.room[d] = graph.capacity[d]
    state.unit_home[:] = -1
    state.pull[:] = 0.0
    count = 0
    for v in range(graph.compute.shape[0]):
        state.waiting[v] = graph.predecessors.pointer[v + 1] - graph.predecessors.pointer[v]
        if state.waiting[v] == 0:
            count = _enter(graph, policy, state, v, 0.0, count)
    return count


@_inlined
def _run(graph: Graph, state: State, device: NDArray[np.int32], v: int, d: int) -> None:
    """Run op v on device d, after what is there already."""
    unit = graph.unit[v]
    if state.unit_home[unit] < 0:
        state.unit_home[unit] = d
        state.room[d] -= graph.unit_bytes[unit]
    begin = state.free_at[d]
    for e in range(graph.predecessors.pointer[v], graph.predecessors.pointer[v + 1]):
        u = graph.predecessors.op[e]
        arrival = state.finish[u]
        if device[u] != d:
            cost = graph.transfer[graph.predecessors.tensor[e], graph.link_class[device[u], d]]
            arrival += cost
            state.link[d] += cost
        begin = max(begin, arrival)
    state.start[v] = begin
    state.finish[v] = begin + graph.compute[v, d]
    state.free_at[d] = state.finish[v]
    state.load[d] += graph.compute[v, d]


@_inlined
def _release(graph: Graph, policy: Weights, state: State, v: int, d: int, count: int) -> int:
    """Tell the consumers of op v that it sits on device d; return how many ops are ready."""
    for e in range(graph.successors.pointer[v], graph.successors.pointer[v + 1]):
        x = graph.successors.op[e]
        state.waiting[x] -= 1
        # The other producers of x are drawn to where this one sits.
        for o in range(graph.predecessors.pointer[x], graph.predecessors.pointer[x + 1]):
            state.pull[graph.predecessors.op[o], d] += graph.weight[graph.successors.tensor[e]]
        if state.waiting[x] == 0:
            moment = 0.0
            for o in range(graph.predecessors.pointer[x], graph.predecessors.pointer[x + 1]):
                moment = max(moment, state.finish[graph.predecessors.op[o]])
            count = _enter(graph, policy, state, x, moment, count)
    return count


# Without reference counting: reading an array out of a tuple would count twice, which was most of the time. An
# episode allocates nothing, and its caller keeps all arrays alive.
@njit(cache=True, nogil=True, _nrt=False)
def episode(graph: Graph, policy: Weights, state: State, record: Record, order: Ints, mode: int) -> None:
    """Place all ops and fill the record; a replay repeats its devices and takes the ops in `order` (read only then)."""
    replay = mode in (REPLAY, REPLAY_TIES)
    count = _begin(graph, policy, state)
    for step in range(graph.compute.shape[0]):
        at = _select(graph, policy, state, record, count, mode, order[step] if replay else -1)
        v = state.ready[at]
        count -= 1
        state.ready[at] = state.ready[count]
        _describe(graph, state, record.device, v)
        d = _place(policy, state, record, v, mode)
        if not replay:
            record.device[v] = d
            record.rank[v] = step
        _run(graph, state, record.device, v, d)
        count = _release(graph, policy, state, v, d, count)


@njit(cache=True, nogil=True)
def episodes(
    graph: Graph, policy: Weights, state: State, seeds: NDArray[np.uint64], records: Record, mode: int
) -> None:
    """Run one episode per row of the records."""
    for b in range(seeds.shape[0]):
        state.random[0] = seeds[b]
        rank = records.rank[b]
        order = np.argsort(rank, kind="mergesort") if mode in (REPLAY, REPLAY_TIES) else rank
        record = Record(
            records.device[b], rank, records.sel[b], records.plc[b], records.sel_residual[b], records.plc_residual[b],
            records.log_probability[b], records.entropy[b],
        )  # fmt: skip
        episode(graph, policy, state, record, order, mode)
