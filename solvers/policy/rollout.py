"""Roll out a dual policy in numba: SEL picks a ready op, PLC picks its device, until all ops are placed.

Both policies are softmax(score / T) with score = w . f + a residual that is learned per op (SEL) or per op and
device (PLC); the residual is zero for a policy that is to be transferred. Every feature lies in [0, 1], so a
weight says how much a feature matters. SEL's features are fixed when an op becomes ready (waiting time is the
time since then, and the present is the same for all candidates, so the moment of readiness says the same);
PLC's are computed for each candidate device and scaled over the candidates. SEL's are scaled by the graph's maxima, or
(`sel_scaled`) over the ready ops at every decision: the same to a linear score up to a temperature per decision and
feature, at about twice the time.

The score function of a softmax is closed-form, d/dw log pi(c) = (f_c - sum_a pi(a) f_a) / T, so an episode
returns its own gradient: nothing is stored per decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

SEL_FEATURES = ("b_level", "t_level", "compute", "incoming", "outgoing", "out_degree", "ready_time")
PLC_FEATURES = (
    "earliest_start",
    "earliest_finish",
    "device_free",
    "communication",
    "predecessor_compute",
    "predecessor_start",
    "predecessor_end",
    "load",
    "memory_left",
    "link_load",
    "sibling_pull",
)
SAMPLE, GREEDY, REPLAY, REPLAY_TIES = 0, 1, 2, 3
"""What an episode does: draw actions, take the best, repeat given ones, or repeat them crediting all ties."""


class RolloutArrays(NamedTuple):
    """What an episode needs of a problem; times are float64 ticks, exact below 2^53."""

    compute: Floats  # (n, k), negative where incompatible
    transfer: Floats  # (m, c)
    link_class: Ints  # (k, k)
    pred_ptr: Ints  # (n + 1,)
    pred_op: Ints  # (edges,)
    pred_tensor: Ints  # (edges,)
    succ_ptr: Ints  # (n + 1,)
    succ_op: Ints  # (edges,)
    succ_tensor: Ints  # (edges,)
    weight: Floats  # (m,) mean transfer ticks of each tensor
    sel_static: Floats  # (n, SEL features); the last column is filled in when an op becomes ready
    horizon: float  # scale of ready times
    unit: Ints  # (n,) ops of one unit share a device
    unit_allowed: NDArray[np.bool_]  # (units, k)
    unit_bytes: Floats  # (units,)
    capacity: Floats  # (k,)


class Weights(NamedTuple):
    """Parameters of a dual policy."""

    sel: Floats  # (SEL features,)
    plc: Floats  # (PLC features,)
    sel_residual: Floats  # (n,) or (0,) without
    plc_residual: Floats  # (n, k) or (0, k) without
    temperature: float
    sel_random: bool  # whether SEL is sampled; otherwise it takes the best op (ablation: PLC only)
    plc_random: bool  # whether PLC is sampled (ablation: SEL only)
    sel_scaled: bool  # whether SEL's features are scaled over the ready ops


class Scratch(NamedTuple):
    """Memory of one thread."""

    waiting: Ints  # (n,)
    ready: Ints  # (n,) ready ops
    features: Floats  # (n, SEL features)
    scaled: Floats  # (n, SEL features) the same over the ready ops
    score: Floats  # (n,)
    mass: Floats  # (n,) exp of the score minus the reference
    reference: Floats  # (1,)
    start: Floats  # (n,)
    finish: Floats  # (n,)
    free_at: Floats  # (k,)
    load: Floats  # (k,)
    room: Floats  # (k,)
    link: Floats  # (k,)
    unit_home: Ints  # (units,)
    pull: Floats  # (n, k) communication of placed producers that an op will read on each device
    plc: Floats  # (k, PLC features)
    probability: Floats  # (k,)
    tied: NDArray[np.bool_]  # (max(n, k),)


_inlined = njit(cache=True, nogil=True, inline="always")
"""For helpers of an episode: passing the tuples to a call would copy a hundred words each time."""


@njit(cache=True, nogil=True)
def _scratch(a: RolloutArrays) -> Scratch:
    n, k = a.compute.shape
    return Scratch(
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty((n, a.sel_static.shape[1])),
        np.empty((n, a.sel_static.shape[1])),
        np.empty(n),
        np.empty(n),
        np.empty(1),
        np.empty(n),
        np.empty(n),
        np.empty(k),
        np.empty(k),
        np.empty(k),
        np.empty(k),
        np.empty(a.unit_bytes.shape[0], np.int64),
        np.empty((n, k)),
        np.empty((k, 11)),
        np.empty(k),
        np.empty(max(n, k), np.bool_),
    )


@_inlined
def _uniform(state: NDArray[np.uint64]) -> float:
    """Draw a number in [0, 1) and advance the state (SplitMix64, Steele et al. 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@_inlined
def _enter(a: RolloutArrays, p: Weights, s: Scratch, op: int, moment: float, count: int) -> None:
    """Add a ready op: its features and its mass are fixed from now on."""
    last = a.sel_static.shape[1] - 1
    score = 0.0
    for f in range(last):
        s.features[op, f] = a.sel_static[op, f]
        score += p.sel[f] * s.features[op, f]
    s.features[op, last] = min(1.0, moment / a.horizon)
    score += p.sel[last] * s.features[op, last]
    if p.sel_residual.shape[0] > 0:
        score += p.sel_residual[op]
    s.ready[count] = op
    s.score[op] = score / p.temperature
    # Most ops are drawn among much the same candidates: their masses are kept until they would overflow.
    s.mass[op] = np.exp(min(300.0, s.score[op] - s.reference[0]))


@_inlined
def _rescale(p: Weights, s: Scratch, count: int) -> None:
    """Scale the features of the ready ops over each other, and compute scores and masses from these."""
    for i in range(count):
        v = s.ready[i]
        s.score[v] = p.sel_residual[v] if p.sel_residual.shape[0] > 0 else 0.0
    for f in range(s.features.shape[1]):
        low, high = np.inf, -np.inf
        for i in range(count):
            low = min(low, s.features[s.ready[i], f])
            high = max(high, s.features[s.ready[i], f])
        span = high - low
        for i in range(count):
            v = s.ready[i]
            s.scaled[v, f] = (s.features[v, f] - low) / span if span > 0 else 0.0
            s.score[v] += p.sel[f] * s.scaled[v, f]
    s.reference[0] = -np.inf
    for i in range(count):
        v = s.ready[i]
        s.score[v] /= p.temperature
        s.reference[0] = max(s.reference[0], s.score[v])
    for i in range(count):
        v = s.ready[i]
        s.mass[v] = np.exp(s.score[v] - s.reference[0])


@_inlined
def _select(
    a: RolloutArrays, p: Weights, s: Scratch, state: NDArray[np.uint64], count: int, mode: int, forced: int,
    g_sel: Floats, g_sel_residual: Floats, out: Floats,
) -> int:  # fmt: skip
    """Pick a ready op; return its place in the list. Adds to the gradient, log-probability and entropy."""
    if p.sel_scaled:
        _rescale(p, s, count)
    top = -np.inf
    best = 0
    for i in range(count):
        v = s.ready[i]
        if s.score[v] > top or (s.score[v] == top and v < s.ready[best]):
            top = s.score[v]
            best = i
    greedy = mode == GREEDY or (mode == SAMPLE and not p.sel_random)
    if greedy:
        return best
    total = 0.0
    for i in range(count):
        total += s.mass[s.ready[i]]
    if not 1e-100 < total < 1e100:
        s.reference[0] = top
        total = 0.0
        for i in range(count):
            v = s.ready[i]
            s.mass[v] = np.exp(s.score[v] - top)
            total += s.mass[v]
    top = s.reference[0]
    chosen = 0
    ties = 1
    if mode == SAMPLE:
        left = _uniform(state) * total
        chosen = count - 1
        for i in range(count):
            left -= s.mass[s.ready[i]]
            if left < 0:
                chosen = i
                break
    else:
        while s.ready[chosen] != forced:
            chosen += 1
        if mode == REPLAY_TIES:
            # The heuristic's choice is one of all ops with the same b-level: each deserves the same credit.
            ties = 0
            for i in range(count):
                s.tied[i] = a.sel_static[s.ready[i], 0] == a.sel_static[forced, 0]
                ties += s.tied[i]
    last = a.sel_static.shape[1]
    entropy = 0.0
    log_total = np.log(total)
    scale = 1.0 / p.temperature
    for i in range(count):
        v = s.ready[i]
        q = s.mass[v] / total
        if mode == REPLAY_TIES:
            target = 1.0 / ties if s.tied[i] else 0.0
        else:
            target = 1.0 if i == chosen else 0.0
        d = (target - q) * scale
        if q > 1e-12 or target > 0:
            if p.sel_scaled:
                for f in range(last):
                    g_sel[f] += d * s.scaled[v, f]
            else:
                for f in range(last):
                    g_sel[f] += d * s.features[v, f]
            entropy -= q * (s.score[v] - top - log_total)
        if g_sel_residual.shape[0] > 0:
            g_sel_residual[v] += d
    out[0] += s.score[s.ready[chosen]] - top - log_total
    out[1] += entropy
    return chosen


@_inlined
def _describe(a: RolloutArrays, s: Scratch, device: NDArray[np.int32], v: int) -> int:
    """Fill the PLC features of op v on every device it may go to; return how many there are.

    Devices that are not candidates get a negative first feature. Features are scaled to [0, 1] over candidates.
    """
    # Arrays are taken out of their tuples once: every access through a tuple counts references.
    plc, finish, start, free_at, link_class = s.plc, s.finish, s.start, s.free_at, a.link_class
    pred_op, pred_tensor, transfer = a.pred_op, a.pred_tensor, a.transfer
    k, features = plc.shape
    unit = a.unit[v]
    home = s.unit_home[unit]
    bytes_ = a.unit_bytes[unit]
    candidates = 0
    for d in range(k):
        plc[d, 0] = -1.0
        if home >= 0:
            if d != home:
                continue
        elif not a.unit_allowed[unit, d] or s.room[d] < bytes_:
            continue
        plc[d, 0] = 0.0
        candidates += 1
    if candidates <= 1:
        # Nothing has room: the roomiest compatible device takes it, and the evaluation will refuse the placement.
        pick = -1
        for d in range(k):
            if candidates == 1:
                if plc[d, 0] >= 0:
                    pick = d
            elif a.unit_allowed[unit, d] and (pick < 0 or s.room[d] > s.room[pick]):
                pick = d
        for f in range(features):  # scaled over a single candidate
            plc[pick, f] = 0.0
        return 1
    first, last = a.pred_ptr[v], a.pred_ptr[v + 1]
    for d in range(k):
        if plc[d, 0] < 0:
            continue
        arrival = 0.0
        pay = 0.0
        there = 0.0
        begin = np.inf
        end = 0.0
        for e in range(first, last):
            u = pred_op[e]
            at = finish[u]
            if device[u] == d:
                there += at - start[u]
                begin = min(begin, start[u])
                end = max(end, at)
            else:
                cost = transfer[pred_tensor[e], link_class[device[u], d]]
                pay += cost
                at += cost
            arrival = max(arrival, at)
        begin_at = max(arrival, free_at[d])
        plc[d, 0] = begin_at
        plc[d, 1] = begin_at + a.compute[v, d]
        plc[d, 2] = free_at[d]
        plc[d, 3] = pay
        plc[d, 4] = there
        plc[d, 5] = begin if begin < np.inf else 0.0
        plc[d, 6] = end
        plc[d, 7] = s.load[d]
        plc[d, 8] = s.room[d]
        plc[d, 9] = s.link[d]
        plc[d, 10] = s.pull[v, d]
    for f in range(features - 1, -1, -1):
        low, high = np.inf, -np.inf
        for d in range(k):
            if plc[d, 0] >= 0:
                low = min(low, plc[d, f])
                high = max(high, plc[d, f])
        # Dividing, not multiplying by the inverse: the greatest becomes exactly 1.
        span = high - low
        if span > 0:
            for d in range(k):
                if plc[d, 0] >= 0:
                    plc[d, f] = (plc[d, f] - low) / span
        else:
            for d in range(k):
                if plc[d, 0] >= 0:
                    plc[d, f] = 0.0
    return candidates


@_inlined
def _place(
    a: RolloutArrays, p: Weights, s: Scratch, state: NDArray[np.uint64], v: int, mode: int, forced: int,
    g_plc: Floats, g_plc_residual: Floats, out: Floats,
) -> int:  # fmt: skip
    """Pick the device of op v. Adds to the gradient, log-probability and entropy."""
    k = a.compute.shape[1]
    features = s.plc.shape[1]
    residual = p.plc_residual.shape[0] > 0
    top = -np.inf
    best = -1
    for d in range(k):
        if s.plc[d, 0] < 0:
            s.probability[d] = 0.0
            continue
        score = 0.0
        for f in range(features):
            score += p.plc[f] * s.plc[d, f]
        if residual:
            score += p.plc_residual[v, d]
        s.probability[d] = score / p.temperature
        if s.probability[d] > top:
            top = s.probability[d]
            best = d
    if mode == GREEDY or (mode == SAMPLE and not p.plc_random):
        return best
    total = 0.0
    entropy = 0.0
    for d in range(k):
        if s.plc[d, 0] >= 0:
            score = s.probability[d] - top
            s.probability[d] = np.exp(score)
            total += s.probability[d]
            entropy -= s.probability[d] * score
    entropy = entropy / total + np.log(total)
    if mode == SAMPLE:
        left = _uniform(state) * total
        chosen = best
        for d in range(k):
            left -= s.probability[d]
            if left < 0:
                chosen = d
                break
    else:
        chosen = forced
        if s.plc[forced, 0] < 0:
            return forced  # not a candidate under this policy's rules: nothing to learn from this decision
    ties = 1
    if mode == REPLAY_TIES:
        ties = 0
        for d in range(k):
            s.tied[d] = s.plc[d, 0] >= 0 and s.plc[d, 0] == s.plc[forced, 0]
            ties += s.tied[d]
    scale = 1.0 / p.temperature
    for d in range(k):
        if s.plc[d, 0] < 0:
            continue
        q = s.probability[d] / total
        if mode == REPLAY_TIES:
            target = 1.0 / ties if s.tied[d] else 0.0
        else:
            target = 1.0 if d == chosen else 0.0
        step = (target - q) * scale
        for f in range(features):
            g_plc[f] += step * s.plc[d, f]
        if residual:
            g_plc_residual[v, d] += step
    out[0] += np.log(max(1e-300, s.probability[chosen] / total))
    out[1] += entropy
    return chosen


# Without reference counting: reading an array out of a tuple would count twice, which was most of the time. An
# episode allocates nothing, and its caller keeps all arrays alive.
@njit(cache=True, nogil=True, _nrt=False)
def episode(
    a: RolloutArrays, p: Weights, s: Scratch, state: NDArray[np.uint64], mode: int, device: NDArray[np.int32],
    rank: Ints, order: Ints, g_sel: Floats, g_plc: Floats, g_sel_residual: Floats, g_plc_residual: Floats, out: Floats,
) -> None:  # fmt: skip
    """Place all ops. Fills `device` and `rank` and adds to gradients, log-probability, entropy.

    Replaying, it repeats `device` and takes the ops in `order` (read only then).
    """
    n, k = a.compute.shape
    replay = mode in (REPLAY, REPLAY_TIES)
    count = 0
    s.reference[0] = 0.0
    for d in range(k):
        s.free_at[d] = 0.0
        s.load[d] = 0.0
        s.link[d] = 0.0
        s.room[d] = a.capacity[d]
    for unit in range(s.unit_home.shape[0]):
        s.unit_home[unit] = -1
    for v in range(n):
        s.waiting[v] = a.pred_ptr[v + 1] - a.pred_ptr[v]
        for d in range(k):
            s.pull[v, d] = 0.0
        if s.waiting[v] == 0:
            _enter(a, p, s, v, 0.0, count)
            count += 1
    for step in range(n):
        forced = order[step] if replay else -1
        at = _select(a, p, s, state, count, mode, forced, g_sel, g_sel_residual, out)
        v = s.ready[at]
        count -= 1
        s.ready[at] = s.ready[count]
        _describe(a, s, device, v)
        d = _place(a, p, s, state, v, mode, device[v] if replay else -1, g_plc, g_plc_residual, out)
        if not replay:
            device[v] = d
            rank[v] = step
        unit = a.unit[v]
        if s.unit_home[unit] < 0:
            s.unit_home[unit] = d
            s.room[d] -= a.unit_bytes[unit]
        begin = s.free_at[d]
        for e in range(a.pred_ptr[v], a.pred_ptr[v + 1]):
            u = a.pred_op[e]
            arrival = s.finish[u]
            if device[u] != d:
                cost = a.transfer[a.pred_tensor[e], a.link_class[device[u], d]]
                arrival += cost
                s.link[d] += cost
            begin = max(begin, arrival)
        s.start[v] = begin
        s.finish[v] = begin + a.compute[v, d]
        s.free_at[d] = s.finish[v]
        s.load[d] += a.compute[v, d]
        for e in range(a.succ_ptr[v], a.succ_ptr[v + 1]):
            x = a.succ_op[e]
            s.waiting[x] -= 1
            # The other producers of x are drawn to where this one sits.
            for o in range(a.pred_ptr[x], a.pred_ptr[x + 1]):
                s.pull[a.pred_op[o], d] += a.weight[a.succ_tensor[e]]
            if s.waiting[x] == 0:
                moment = 0.0
                for o in range(a.pred_ptr[x], a.pred_ptr[x + 1]):
                    moment = max(moment, s.finish[a.pred_op[o]])
                _enter(a, p, s, x, moment, count)
                count += 1


@njit(cache=True, nogil=True)
def episodes(
    a: RolloutArrays, p: Weights, seeds: NDArray[np.uint64], mode: int, devices: NDArray[np.int32], ranks: Ints,
    g_sel: Floats, g_plc: Floats, g_sel_residual: Floats, g_plc_residual: Floats, out: Floats,
) -> None:  # fmt: skip
    """Run one episode per row. `out` has the columns log-probability and summed entropy.

    Residual gradients have one row per episode, or none where the policy has no residual.
    """
    s = _scratch(a)
    state = np.empty(1, np.uint64)
    no_sel = np.empty(0)
    no_plc = np.empty((0, a.compute.shape[1]))
    residual = g_sel_residual.shape[0] > 0
    for b in range(devices.shape[0]):
        state[0] = seeds[b]
        order = np.argsort(ranks[b], kind="mergesort") if mode in (REPLAY, REPLAY_TIES) else ranks[b]
        episode(
            a, p, s, state, mode, devices[b], ranks[b], order, g_sel[b], g_plc[b],
            g_sel_residual[b] if residual else no_sel, g_plc_residual[b] if residual else no_plc, out[b],
        )  # fmt: skip
