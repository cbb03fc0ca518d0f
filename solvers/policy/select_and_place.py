"""Episodes of a dual policy, compiled: SEL picks a ready op, PLC picks its device, until all ops
are placed.

Both policies are softmax(score / T). A score is linear in features in [0, 1], plus a small hidden
layer that sees the features and the op's context (what message passing says of it, multiplied out
once per batch), plus a residual that is learned for one graph. SEL's features are fixed when an op
becomes ready (the present is the same for all candidates, so the moment of readiness says how long
one waits); PLC's are computed for each candidate device and scaled over them.

The score function of a softmax is closed-form, d/d score(a) log pi(c) = ([a = c] - pi(a)) / T. A
replay goes through given episodes and adds up credit times score function, back through the hidden
layers; a ready op's share is summed over all decisions before it goes back through its features,
once. See `dual_policy` for the sources.
"""

from __future__ import annotations

import numpy as np

from placeopt.model.arrays import Bits, Floats, SmallInts
from placeopt.model.compiled import entry, pasted, row_of, uncounted_kernel
from placeopt.model.random_bits import split_uniform
from placeopt.solvers.policy.episode_arrays import Gradient, Graph, Plc, Rows, Sel, State, Weights

NUM_SEL, NUM_PLC = len(Sel), len(Plc)
SAMPLE, GREEDY, REPLAY = 0, 1, 2
"""What an episode does: draw actions, take the best, or repeat given ones and credit them."""


@pasted
def _hidden_score(
    features: Floats, linear: Floats, inside: Floats, context: Floats, out: Floats, hidden: Floats
) -> float:
    """Return the score of some features, linear and by the hidden layer, whose sums are kept in
    `hidden`.
    """
    score = 0.0
    for h in range(out.shape[0]):
        hidden[h] = context[h]
    for f in range(linear.shape[0]):
        score += linear[f] * features[f]
        if features[f] != 0.0:
            for h in range(out.shape[0]):
                hidden[h] += inside[f, h] * features[f]
    for h in range(out.shape[0]):
        score += out[h] * max(0.0, hidden[h])
    return score


@pasted
def _credit_features(
    pull: float,
    features: Floats,
    back: Floats,
    out: Floats,
    linear: Floats,
    inside: Floats,
    context: Floats,
    slope: Floats,
) -> None:
    """Add what pulls on a score to the gradients of its weights; `back` has the sums of the hidden
    layer, and is used up.
    """
    for h in range(out.shape[0]):
        slope[h] += pull * max(0.0, back[h])
        back[h] = pull * out[h] if back[h] > 0 else 0.0
        context[h] += back[h]
    for f in range(linear.shape[0]):
        if features[f] != 0.0:
            linear[f] += pull * features[f]
            for h in range(out.shape[0]):
                inside[f, h] += back[h] * features[f]


@pasted
def _enter(graph: Graph, policy: Weights, state: State, op: int) -> None:
    """Give an op that became ready its features, score and mass: fixed from now on."""
    moment = 0.0
    for e in row_of(graph.predecessors.pointer, op):
        moment = max(moment, state.finish[graph.predecessors.op[e]])
    features = state.features[op]
    for f in range(NUM_SEL):
        features[f] = graph.sel_static[op, f]
    features[Sel.READY_TIME] = min(1.0, moment / graph.horizon)
    score = _hidden_score(
        features,
        policy.sel,
        policy.sel_inside,
        policy.sel_context[op],
        policy.sel_out,
        state.sel_hidden[op],
    )
    if policy.sel_residual.shape[0] > 0:
        score += policy.sel_residual[op]
    state.pull_on_score[op] = 0.0
    state.score[op] = score / policy.temperature
    # Most ops are drawn among much the same candidates: their masses are kept until they would
    # overflow.
    state.mass[op] = np.exp(min(300.0, state.score[op] - state.reference[0]))


@pasted
def _credit_op(policy: Weights, gradient: Gradient, state: State, op: int) -> None:
    """Take what pulls on the score of an op back to the parameters."""
    pull = state.pull_on_score[op]
    if pull != 0.0:
        _credit_features(
            pull,
            state.features[op],
            state.sel_hidden[op],
            policy.sel_out,
            gradient.sel,
            gradient.sel_inside,
            gradient.sel_context[op],
            gradient.sel_out,
        )
        if policy.sel_residual.shape[0] > 0:
            gradient.sel_residual[op] += pull


@pasted
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


@pasted
def _best_ready(state: State, count: int) -> int:
    """Place in the list of the ready op with the highest score; ties go to the first in topological
    order.
    """
    best = 0
    for i in range(1, count):
        v, other = state.ready[i], state.ready[best]
        if state.score[v] > state.score[other] or (
            state.score[v] == state.score[other] and v < other
        ):
            best = i
    return best


@pasted
def _select(
    policy: Weights, state: State, rows: Rows, b: int, count: int, mode: int, forced: int
) -> int:
    """Pick one of the ready ops (`forced` in replays); return its place in the list."""
    chosen = 0
    if count > 1:
        chosen = _best_ready(state, count)
        if mode == REPLAY or (mode == SAMPLE and policy.sel_random):
            total = _total_mass(state, count, state.score[state.ready[chosen]])
            if mode == SAMPLE:
                left = split_uniform(state.random) * total
                for i in range(count):
                    left -= state.mass[state.ready[i]]
                    chosen = i
                    if left < 0:
                        break
            else:
                chosen = 0
                while state.ready[chosen] != forced:
                    chosen += 1
            log_total = np.log(total) + state.reference[0]
            rows.log_probability[b] += state.score[state.ready[chosen]] - log_total
            entropy = 0.0
            step = rows.credit[b] / policy.temperature if mode == REPLAY else 0.0
            for i in range(count):
                v = state.ready[i]
                share = state.mass[v] / total
                entropy -= share * (state.score[v] - log_total)
                state.pull_on_score[v] += step * ((1.0 if i == chosen else 0.0) - share)
            rows.entropy[b] += entropy
    return chosen


@pasted
def _find_candidates(graph: Graph, state: State, v: int) -> int:
    """Mark the devices that op v may go to: its unit's, else all compatible ones with room. Return
    it if it is one, else -1.
    """
    unit, home = graph.unit[v], state.unit_home[graph.unit[v]]
    count, last, roomiest = 0, -1, -1
    for d in range(graph.compute.shape[1]):
        allowed = graph.unit_allowed[unit, d]
        state.candidate[d] = (
            d == home if home >= 0 else allowed and state.room[d] >= graph.unit_bytes[unit]
        )
        if state.candidate[d]:
            count += 1
            last = d
        if allowed and (roomiest < 0 or state.room[d] > state.room[roomiest]):
            roomiest = d
    if (
        count == 0
    ):  # nothing has room: the roomiest takes it, and the evaluation will refuse the placement
        state.candidate[roomiest] = True
        last = roomiest
    return last if count < 2 else -1


@pasted
def _look(graph: Graph, state: State, device: SmallInts, v: int, d: int) -> None:
    """Fill the PLC features of op v on device d."""
    arrival = 0.0
    pay = 0.0
    there = 0.0
    begin = np.inf
    end = 0.0
    for e in row_of(graph.predecessors.pointer, v):
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
    row = state.plc[d]
    row[Plc.EARLIEST_START] = start
    row[Plc.EARLIEST_FINISH] = start + graph.compute[v, d]
    row[Plc.DEVICE_FREE] = state.free_at[d]
    row[Plc.COMMUNICATION] = pay
    row[Plc.PREDECESSOR_COMPUTE] = there
    row[Plc.PREDECESSOR_START] = begin if begin < np.inf else 0.0
    row[Plc.PREDECESSOR_END] = end
    row[Plc.LOAD] = state.load[d]
    row[Plc.MEMORY_LEFT] = state.room[d]
    row[Plc.LINK_LOAD] = state.link[d]
    row[Plc.SIBLING_PULL] = state.pull[v, d]
    row[Plc.CLUSTER] = state.cluster_on[graph.cluster[v], d]


@pasted
def _describe(graph: Graph, state: State, device: SmallInts, v: int) -> int:
    """Fill the PLC features of op v, scaled to [0, 1] over the candidates, and return -1; or return
    the only candidate.
    """
    k = graph.compute.shape[1]
    only = _find_candidates(graph, state, v)
    if only < 0:
        for d in range(k):
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
                state.plc[d, f] = (state.plc[d, f] - low) / span if span > 0 else 0.0
    return only


@pasted
def _score_devices(policy: Weights, state: State, v: int) -> int:
    """Put the scores of the candidates into `mass_on` (0 for others); return the best device."""
    best = -1
    for d in range(state.candidate.shape[0]):
        state.mass_on[d] = 0.0
        if state.candidate[d]:
            score = _hidden_score(
                state.plc[d],
                policy.plc,
                policy.plc_inside,
                policy.plc_context[v],
                policy.plc_out,
                state.plc_hidden[d],
            )
            if policy.plc_residual.shape[0] > 0:
                score += policy.plc_residual[v, d]
            state.mass_on[d] = score / policy.temperature
            if best < 0 or state.mass_on[d] > state.mass_on[best]:
                best = d
    return best


@pasted
def _credit_device(
    policy: Weights, gradient: Gradient, state: State, v: int, d: int, pull: float
) -> None:
    """Take what pulls on the score of op v on device d back to the parameters."""
    _credit_features(
        pull,
        state.plc[d],
        state.plc_hidden[d],
        policy.plc_out,
        gradient.plc,
        gradient.plc_inside,
        gradient.plc_context[v],
        gradient.plc_out,
    )
    if policy.plc_residual.shape[0] > 0:
        gradient.plc_residual[v, d] += pull


@pasted
def _place(
    policy: Weights, gradient: Gradient, state: State, rows: Rows, b: int, v: int, mode: int
) -> int:
    """Pick the device of op v among several candidates (that of the row in replays)."""
    mass_on = state.mass_on
    k = state.candidate.shape[0]
    chosen = _score_devices(policy, state, v)
    forced = rows.device[b, v]
    if mode == GREEDY or (mode == SAMPLE and not policy.plc_random):
        return chosen
    if mode == REPLAY and not state.candidate[forced]:
        return (
            forced  # not a candidate under this policy's rules: nothing to learn from this decision
        )
    total = 0.0
    entropy = 0.0
    top = mass_on[chosen]
    for d in range(k):
        if state.candidate[d]:
            score = mass_on[d] - top
            mass_on[d] = np.exp(score)
            total += mass_on[d]
            entropy -= mass_on[d] * score
    rows.entropy[b] += entropy / total + np.log(total)
    if mode == REPLAY:
        chosen = forced
        step = rows.credit[b] / policy.temperature
        if step != 0.0:
            for d in range(k):
                if state.candidate[d]:
                    pull = step * ((1.0 if d == chosen else 0.0) - mass_on[d] / total)
                    _credit_device(policy, gradient, state, v, d, pull)
    else:
        left = split_uniform(state.random) * total
        for d in range(k):
            left -= mass_on[d]
            if left < 0:
                chosen = d
                break
    rows.log_probability[b] += np.log(max(1e-300, mass_on[chosen] / total))
    return chosen


@pasted
def _begin(graph: Graph, state: State) -> int:
    """Empty the devices and list the ops without inputs; return how many are ready."""
    state.reference[0] = 0.0
    state.free_at[:] = 0.0
    state.load[:] = 0.0
    state.link[:] = 0.0
    for d in range(state.room.shape[0]):
        state.room[d] = graph.capacity[d]
    state.unit_home[:] = -1
    state.pull[:] = 0.0
    state.cluster_on[:] = 0.0
    count = 0
    for v in range(graph.compute.shape[0]):
        state.waiting[v] = graph.predecessors.pointer[v + 1] - graph.predecessors.pointer[v]
        if state.waiting[v] == 0:
            state.ready[count] = v
            count += 1
    return count


@pasted
def _run(graph: Graph, state: State, device: SmallInts, v: int, d: int) -> None:
    """Run op v on device d, after what is there already."""
    begin = state.free_at[d]
    for e in row_of(graph.predecessors.pointer, v):
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


@pasted
def _release(graph: Graph, state: State, v: int, d: int, count: int) -> int:
    """Tell the consumers of op v that it sits on device d; return how many ops are ready."""
    for e in row_of(graph.successors.pointer, v):
        x = graph.successors.op[e]
        state.waiting[x] -= 1
        # The other producers of x are drawn to where this one sits.
        for o in row_of(graph.predecessors.pointer, x):
            state.pull[graph.predecessors.op[o], d] += graph.weight[graph.successors.tensor[e]]
        if state.waiting[x] == 0:
            state.ready[count] = x
            count += 1
    return count


# Without reference counting: reading an array out of a tuple would count twice, which was most of
# the time. An
# episode allocates nothing, and its caller keeps all arrays alive.
@uncounted_kernel
def episode(
    graph: Graph,
    policy: Weights,
    state: State,
    rows: Rows,
    b: int,
    gradient: Gradient,
    mode: int,
) -> None:
    """Place the ops of row b; a replay repeats the row and credits its decisions."""
    device = rows.device[b]
    count = _begin(graph, state)
    known = 0  # ready ops that have a score
    for step in range(graph.compute.shape[0]):
        for i in range(known, count):
            _enter(graph, policy, state, state.ready[i])
        at = _select(
            policy, state, rows, b, count, mode, state.order[step] if mode == REPLAY else -1
        )
        v = state.ready[at]
        count -= 1
        state.ready[at] = state.ready[count]
        known = count
        if mode == REPLAY:
            _credit_op(policy, gradient, state, v)
        d = _describe(graph, state, device, v)
        if d < 0:
            d = _place(policy, gradient, state, rows, b, v, mode)
        if state.unit_home[graph.unit[v]] < 0:
            state.unit_home[graph.unit[v]] = d
            state.room[d] -= graph.unit_bytes[graph.unit[v]]
        state.cluster_on[graph.cluster[v], d] += graph.work[v]
        if mode == REPLAY:
            d = device[v]
        else:
            device[v] = d
            rows.rank[b, v] = step
        _run(graph, state, device, v, d)
        count = _release(graph, state, v, d, count)


@entry
def episodes(
    graph: Graph,
    policy: Weights,
    state: State,
    seeds: Bits,
    rows: Rows,
    gradient: Gradient,
    mode: int,
) -> None:
    """Run one episode per row; replays add credit times their score functions to the gradient."""
    for b in range(seeds.shape[0]):
        state.random[0] = seeds[b]
        rows.log_probability[b] = 0.0
        rows.entropy[b] = 0.0
        if mode == REPLAY:
            for v in range(rows.rank.shape[1]):
                state.order[rows.rank[b, v]] = v
        episode(graph, policy, state, rows, b, gradient, mode)
