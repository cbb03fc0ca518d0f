"""Sample groups of ops and place them, in numba, with the score function of every decision.

Groups are placed one after the other, heaviest first, by softmax(w . f / T) over devices; f says how full a device
would be, how much communication stays inside, how fast it is for the group, how much memory is left. One setting
of w is longest processing time with affinity, the heuristic to start from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

PLACE_FEATURES = ("load", "affinity", "slowness", "memory_used", "shared_levels")


class GroupArrays(NamedTuple):
    """What grouping and placing need of a problem (n ops, k devices)."""

    compute: Floats  # (n, k) ticks, negative where incompatible
    resident: Floats  # (n,)
    capacity: Floats  # (k,)
    source: Ints  # (edges,) producer of each out-edge
    target: Ints  # (edges,) consumer
    cost: Floats  # (edges,) mean transfer ticks
    incident_ptr: Ints  # (n + 1,)
    incident: Ints  # (2 edges,) edges at each op
    unit: Ints  # (n,) ops of one unit are always in one group
    level: Ints  # (n,) bucket of each op's depth
    num_levels: int


@njit(cache=True, nogil=True)
def _uniform(state: NDArray[np.uint64]) -> float:
    """Draw a number in [0, 1) and advance the state (SplitMix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _root(parent: Ints, v: int) -> int:
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@njit(cache=True, nogil=True)
def _merge_units(a: GroupArrays, parent: Ints) -> None:
    """Join the ops of each unit."""
    first = np.full(a.unit.max() + 1, -1, np.int64)
    for v in range(a.unit.shape[0]):
        u = a.unit[v]
        if first[u] < 0:
            first[u] = v
        else:
            x, y = _root(parent, first[u]), _root(parent, v)
            if x != y:
                parent[max(x, y)] = min(x, y)


@njit(cache=True, nogil=True)
def _number(parent: Ints, label: Ints) -> int:
    """Number the sets 0, 1, ... by their first op; return how many there are."""
    n = parent.shape[0]
    count = 0
    seen = np.full(n, -1, np.int64)
    for v in range(n):
        root = _root(parent, v)
        if seen[root] < 0:
            seen[root] = count
            count += 1
        label[v] = seen[root]
    return count


@njit(cache=True, nogil=True)
def _draw(score: Floats, count: int, state: NDArray[np.uint64], greedy: bool) -> int:
    """Turn scores[:count] into probabilities in place and pick one; -inf is never picked."""
    top = -np.inf
    best = 0
    for i in range(count):
        if score[i] > top:
            top, best = score[i], i
    total = 0.0
    for i in range(count):
        score[i] = np.exp(score[i] - top)
        total += score[i]
    chosen = best
    left = _uniform(state) * total
    for i in range(count):
        score[i] /= total
    if not greedy:
        for i in range(count):
            left -= score[i] * total
            if left < 0:
                chosen = i
                break
    return chosen


@njit(cache=True, nogil=True)
def parse(
    a: GroupArrays, feature: Floats, score: Floats, temperature: float, state: NDArray[np.uint64], greedy: bool,
    label: Ints, gradient: Floats, residual: Floats,
) -> int:  # fmt: skip
    """Each op keeps one of its edges by softmax(score); connected components are groups. Return their number.

    Adds d log-probability / d weights to `gradient` (features,) and / d score to `residual` (edges,), where that
    has a size.
    """
    n = a.resident.shape[0]
    parent = np.arange(n)
    widest = 1
    for v in range(n):
        widest = max(widest, a.incident_ptr[v + 1] - a.incident_ptr[v])
    p = np.empty(widest)
    width = feature.shape[1]
    for v in range(n):
        low, high = a.incident_ptr[v], a.incident_ptr[v + 1]
        if low == high:
            continue
        for i in range(low, high):
            p[i - low] = score[a.incident[i]] / temperature
        chosen = _draw(p, high - low, state, greedy)
        edge = a.incident[low + chosen]
        x, y = _root(parent, a.source[edge]), _root(parent, a.target[edge])
        if x != y:
            parent[max(x, y)] = min(x, y)
        if high - low > 1:
            for i in range(high - low):
                d = ((1.0 if i == chosen else 0.0) - p[i]) / temperature
                e = a.incident[low + i]
                for f in range(width):
                    gradient[f] += d * feature[e, f]
                if residual.shape[0] > 0:
                    residual[e] += d
    _merge_units(a, parent)
    return _number(parent, label)


@njit(cache=True, nogil=True)
def assign(
    a: GroupArrays, logits: Floats, temperature: float, state: NDArray[np.uint64], greedy: bool, label: Ints,
    gradient: Floats,
) -> int:  # fmt: skip
    """Each op draws one of G groups by softmax(logits); the ops of a unit follow their first. Return G.

    Adds d log-probability / d logits to `gradient`, shape (n, G).
    """
    n, groups = logits.shape
    p = np.empty(groups)
    first = np.full(a.unit.max() + 1, -1, np.int64)
    for v in range(n):
        u = a.unit[v]
        if first[u] >= 0:
            label[v] = label[first[u]]
            continue
        first[u] = v
        for g in range(groups):
            p[g] = logits[v, g] / temperature
        label[v] = _draw(p, groups, state, greedy)
        for g in range(groups):
            gradient[v, g] += ((1.0 if g == label[v] else 0.0) - p[g]) / temperature
    return groups


@njit(cache=True, nogil=True)
def place(
    a: GroupArrays, weights: Floats, bias: Floats, temperature: float, state: NDArray[np.uint64], greedy: bool,
    label: Ints, groups: int, device: NDArray[np.int32], gradient: Floats, bias_gradient: Floats,
) -> None:  # fmt: skip
    """Place groups, heaviest first. `bias` has a row per group number, or none.

    Adds d log-probability / d weights to `gradient` (features,) and / d bias to `bias_gradient`.
    """
    n, k = a.compute.shape
    work = np.zeros((groups, k))
    mean = np.zeros(groups)
    size = np.zeros(groups)
    depth = np.zeros((groups, a.num_levels))
    for v in range(n):
        g = label[v]
        size[g] += a.resident[v]
        count = 0
        total = 0.0
        for d in range(k):
            if a.compute[v, d] < 0:
                work[g, d] = -np.inf
            else:
                work[g, d] += a.compute[v, d]
                total += a.compute[v, d]
                count += 1
        mean[g] += total / count
        depth[g, a.level[v]] += total / count
    # Communication between groups as a list per group.
    pointer = np.zeros(groups + 1, np.int64)
    for e in range(a.source.shape[0]):
        x, y = label[a.source[e]], label[a.target[e]]
        if x != y:
            pointer[x + 1] += 1
            pointer[y + 1] += 1
    for g in range(groups):
        pointer[g + 1] += pointer[g]
    at = pointer[:-1].copy()
    other = np.empty(pointer[groups], np.int64)
    cost = np.empty(pointer[groups])
    for e in range(a.source.shape[0]):
        x, y = label[a.source[e]], label[a.target[e]]
        if x != y:
            other[at[x]], cost[at[x]] = y, a.cost[e]
            other[at[y]], cost[at[y]] = x, a.cost[e]
            at[x] += 1
            at[y] += 1
    order = np.argsort(-mean, kind="mergesort")
    home = np.full(groups, -1, np.int64)
    load = np.zeros(k)
    room = a.capacity.copy()
    busy = np.zeros((k, a.num_levels))
    share = max(1e-300, mean.sum() / k)
    feature = np.zeros((k, 5))
    p = np.empty(k)
    near = np.empty(k)
    for i in range(groups):
        g = order[i]
        if mean[g] == 0.0 and size[g] == 0.0 and pointer[g] == pointer[g + 1]:
            # An empty group, or one that costs nothing and touches nothing.
            for d in range(k):
                if work[g, d] >= 0:
                    home[g] = d
                    break
            continue
        all_near = 0.0
        for d in range(k):
            near[d] = 0.0
        for j in range(pointer[g], pointer[g + 1]):
            all_near += cost[j]
            if home[other[j]] >= 0:
                near[home[other[j]]] += cost[j]
        fastest = np.inf
        fits = False
        for d in range(k):
            if work[g, d] >= 0:
                fastest = min(fastest, work[g, d])
                fits = fits or room[d] >= size[g]
        for d in range(k):
            if work[g, d] < 0 or (fits and room[d] < size[g]):
                p[d] = -np.inf
                for f in range(5):
                    feature[d, f] = 0.0
                continue
            feature[d, 0] = (load[d] + work[g, d]) / share
            feature[d, 1] = near[d] / all_near if all_near > 0 else 0.0
            feature[d, 2] = 1.0 - fastest / work[g, d] if work[g, d] > 0 else 0.0
            feature[d, 3] = (1.0 - (room[d] - size[g]) / a.capacity[d]) if a.capacity[d] > 0 else 1.0
            clash = 0.0
            for level in range(a.num_levels):
                clash += min(busy[d, level], depth[g, level])
            feature[d, 4] = clash / max(1e-300, mean[g])
            s = 0.0
            for f in range(5):
                s += weights[f] * feature[d, f]
            if bias.shape[0] > 0:
                s += bias[g, d]
            p[d] = s / temperature
        chosen = _draw(p, k, state, greedy)
        for d in range(k):
            delta = ((1.0 if d == chosen else 0.0) - p[d]) / temperature
            for f in range(5):
                gradient[f] += delta * feature[d, f]
            if bias.shape[0] > 0:
                bias_gradient[g, d] += delta
        home[g] = chosen
        load[chosen] += max(0.0, work[g, chosen])
        room[chosen] -= size[g]
        for level in range(a.num_levels):
            busy[chosen, level] += depth[g, level]
    for v in range(n):
        device[v] = home[label[v]]


@njit(cache=True, nogil=True)
def parse_and_place(
    a: GroupArrays, feature: Floats, score: Floats, weights: Floats, temperature: float, seeds: NDArray[np.uint64],
    greedy: bool, devices: NDArray[np.int32], counts: Ints, g_edge: Floats, g_residual: Floats, g_place: Floats,
) -> None:  # fmt: skip
    """Sample one placement per seed by graph parsing."""
    n, k = a.compute.shape
    state = np.empty(1, np.uint64)
    label = np.empty(n, np.int64)
    none = np.empty((0, k))
    empty = np.empty(0)
    for b in range(seeds.shape[0]):
        state[0] = seeds[b]
        residual = g_residual[b] if g_residual.shape[0] > 0 else empty
        counts[b] = parse(a, feature, score, temperature, state, greedy, label, g_edge[b], residual)
        place(a, weights, none, temperature, state, greedy, label, counts[b], devices[b], g_place[b], none)


@njit(cache=True, nogil=True)
def assign_and_place(
    a: GroupArrays, logits: Floats, weights: Floats, bias: Floats, temperature: float, seeds: NDArray[np.uint64],
    greedy: bool, devices: NDArray[np.int32], g_logits: Floats, g_place: Floats, g_bias: Floats,
) -> None:  # fmt: skip
    """Sample one placement per seed by assigning ops to groups."""
    n = a.compute.shape[0]
    state = np.empty(1, np.uint64)
    label = np.empty(n, np.int64)
    for b in range(seeds.shape[0]):
        state[0] = seeds[b]
        groups = assign(a, logits, temperature, state, greedy, label, g_logits[b])
        place(a, weights, bias, temperature, state, greedy, label, groups, devices[b], g_place[b], g_bias[b])
