"""Compiled operators on populations: rows of unit homes and op ranks, each row with its own random
state.

Used where candidates are evaluated in batches: any objective, any contention. Every row draws from
its own state, so the result does not depend on how rows are spread over threads.
"""

from __future__ import annotations

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import Flags, Ints
from placeopt.model.compiled import entry, row_of, uncounted_kernel
from placeopt.model.exchanges import MANY, few_between
from placeopt.model.random_bits import below, uniform
from placeopt.solvers.search.walk_state import random_neighbour

RANK_GAP = 1024
"""Distance between neighbouring ranks, so that an op can be put between two others."""


class Candidate(NamedTuple):
    """One row of a population and scratch memory."""

    home: NDArray[np.integer]  # (num_units,) device of each unit
    used: Ints  # (num_devices,) bytes
    random: Ints  # (3,) generator state
    queue: Ints  # (num_ops,) ops to visit
    seen: Flags  # (num_ops,)
    some: Ints  # (MANY,) units that may come back


@uncounted_kernel
def _count_bytes(g, home, used):
    """Count the bytes on every device."""
    used[:] = 0
    for unit in range(home.shape[0]):
        used[home[unit]] += g.units.bytes[unit]


@uncounted_kernel
def _try(g, home, used, unit, d):
    """Move a unit to device d if it may run there and fits; return whether it moved."""
    old = home[unit]
    if (
        old == d
        or not g.units.allowed[unit, d]
        or used[d] + g.units.bytes[unit] > g.units.capacity[d]
    ):
        return False
    home[unit] = d
    used[old] -= g.units.bytes[unit]
    used[d] += g.units.bytes[unit]
    return True


@uncounted_kernel
def _weight_between(g, op, other):
    """Return the ticks of the last tensor that two ops share, incoming ones last."""
    weight = 0
    for side in range(2):
        edges = g.successors if side == 0 else g.predecessors
        for e in row_of(edges.pointer, op):
            if edges.op[e] == other:
                weight = g.weight[edges.tensor[e]]
    return weight


@uncounted_kernel
def _spread(g, c, op, d, room, together):
    """Move a connected cluster of up to `room` ops around `op` to device d; return the number of
    units moved.
    """
    home, queue, seen = c.home, c.queue, c.seen
    origin = home[g.units.unit[op]]
    threshold = 0
    other = random_neighbour(g, c.random, op)
    if other >= 0 and uniform(c.random) < 0.7:
        threshold = _weight_between(
            g, op, other
        )  # edges lighter than a random one of the first op are not followed
    queue[0] = op
    seen[op] = True
    filled, at, moved = 1, 0, 0
    while at < filled:
        pick = at + below(c.random, filled - at)
        x = queue[pick]
        queue[pick] = queue[at]
        queue[at] = x
        at += 1
        for side in range(2):
            edges = g.successors if side == 0 else g.predecessors
            for e in row_of(edges.pointer, x):
                y = edges.op[e]
                heavy = filled < room and not seen[y] and g.weight[edges.tensor[e]] >= threshold
                if heavy and (not together or home[g.units.unit[y]] == origin):
                    seen[y] = True
                    queue[filled] = y
                    filled += 1
    for i in range(filled):
        seen[queue[i]] = False
        if _try(g, home, c.used, g.units.unit[queue[i]], d):
            moved += 1
    return moved


@uncounted_kernel
def _give_back(g, c, moved, d):
    """Move the unit to device d, where it does not fit, and a few units from there to where it was,
    so that both devices fit; return whether there are such units.
    """
    origin, size, count = c.home[moved], g.units.bytes, 0
    if origin == d or not g.units.allowed[moved, d]:
        return False
    least = c.used[d] + size[moved] - g.units.capacity[d]
    most = g.units.capacity[origin] - c.used[origin] + size[moved]
    if least <= 0 or least > most:
        return False
    first = below(c.random, len(c.home))
    for i in range(len(c.home)):
        unit = (first + i) % len(c.home)
        if count < MANY and c.home[unit] == d and g.units.allowed[unit, origin]:
            c.some[count] = unit
            count += 1
    few = few_between(size, c.some, count, least, most)
    for i in range(few):
        unit = c.some[i]
        c.home[unit] = origin
        c.used[d] -= size[unit]
        c.used[origin] += size[unit]
    return few > 0 and _try(g, c.home, c.used, moved, d)


@uncounted_kernel
def _exchange(g, c, unit, other):
    """Let two units change places if both may and fit; return whether they did."""
    origin, to = c.home[unit], c.home[other]
    if to == origin or not g.units.allowed[other, origin] or not g.units.allowed[unit, to]:
        return False
    # Room for one may only appear when the other has left.
    more = g.units.bytes[unit] - g.units.bytes[other]
    if c.used[to] + more > g.units.capacity[to] or c.used[origin] - more > g.units.capacity[origin]:
        return False
    c.home[other], c.home[unit] = origin, to
    c.used[to] += more
    c.used[origin] -= more
    return True


@uncounted_kernel
def _rank_beside(g, c, rank, op):
    """Put an op right before or behind another one in rank, one of its own device if it is met
    soon.
    """
    s, n = c.random, len(c.seen)
    other = (op + 1 + below(s, n - 1)) % n
    for _ in range(4):
        if c.home[g.units.unit[other]] == c.home[g.units.unit[op]]:
            break
        other = (op + 1 + below(s, n - 1)) % n
    rank[op] = rank[other] + (1 if uniform(s) < 0.5 else -1)


@uncounted_kernel
def _move(g, c, op, pick):
    """Move the unit of `op`, alone, in exchange or with a cluster, as `pick` in [0, 1) says; return
    whether it moved.
    """
    s, n, k = c.random, len(c.seen), len(c.used)
    unit = g.units.unit[op]
    origin = c.home[unit]
    d = (origin + 1 + below(s, k - 1)) % k
    neighbour = random_neighbour(g, s, op)
    if neighbour >= 0 and uniform(s) < 0.5 and c.home[g.units.unit[neighbour]] != origin:
        d = c.home[g.units.unit[neighbour]]
    if pick < 0.45:
        return _try(g, c.home, c.used, unit, d) or _give_back(g, c, unit, d)
    if pick < 0.6:
        return _exchange(g, c, unit, g.units.unit[below(s, n)])
    room = int(2.0 * np.exp(uniform(s) * np.log(max(1.5, n / k))))
    return _spread(g, c, op, d, room, pick < 0.85) > 0


@entry
def mutate(g, homes, ranks, states, strength):
    """Change each row in place by `strength` random moves of units, or of ranks where `ranks` has
    columns.

    Moves: one unit to any device or to a neighbour's, a cluster likewise, two units exchanged, an
    op put right before or behind another one in rank. Rows stay compatible and within static
    capacities if they were.

    Parameters
    ----------
    homes : device of each unit, shape (rows, num_units).
    ranks : multiples of RANK_GAP at first, shape (rows, num_ops); (rows, 0) where order does not
    matter.
    states : random states, shape (rows, 3), advanced.
    """
    n, k = g.compute.shape
    queue = np.empty(n, np.int64)
    seen = np.zeros(n, np.bool_)
    used, some = np.empty(k, np.int64), np.empty(MANY, np.int64)
    ordered = ranks.shape[1] > 0 and n > 1
    for row in range(homes.shape[0]):
        c = Candidate(homes[row], used, states[row], queue, seen, some)
        _count_bytes(g, c.home, used)
        for _ in range(strength):
            for _attempt in range(8):
                op = below(c.random, n)
                pick = uniform(c.random)
                if ordered and (pick < 0.2 or k == 1):
                    _rank_beside(g, c, ranks[row], op)
                    break
                if k == 1 or _move(g, c, op, pick):
                    break


@entry
def fit(g, homes, states):
    """Move units off overfull devices, in place and at random; return which rows fit in the end."""
    k = g.compute.shape[1]
    good = np.ones(homes.shape[0], np.bool_)
    used = np.empty(k, np.int64)
    for row in range(homes.shape[0]):
        home, s = homes[row], states[row]
        _count_bytes(g, home, used)
        count = home.shape[0]
        first = below(s, count)
        for i in range(count):
            unit = (first + i) % count
            old = home[unit]
            if used[old] > g.units.capacity[old] and g.units.bytes[unit] > 0:
                shift = below(s, k)
                for j in range(k):
                    if _try(g, home, used, unit, (shift + j) % k):
                        break
        for d in range(k):
            if used[d] > g.units.capacity[d]:
                good[row] = False
    return good


@entry
def sample(labels, cumulative, states, out):
    """Draw the device of every group from its distribution, for every row.

    Parameters
    ----------
    labels : group of each op, shape (num_ops,).
    cumulative : cumulative probabilities, last column 1, shape (num_groups, num_devices).
    states : random states, shape (rows, 3), advanced.
    out : device of every op, shape (rows, num_ops), filled.

    Returns
    -------
    Device of every group, shape (rows, num_groups).
    """
    groups, k = cumulative.shape
    drawn = np.empty((out.shape[0], groups), np.int32)
    for row in range(out.shape[0]):
        s = states[row]
        for group in range(groups):
            u = uniform(s)
            d = 0
            while d + 1 < k and cumulative[group, d] <= u:
                d += 1
            drawn[row, group] = d
        for op in range(labels.shape[0]):
            out[row, op] = drawn[row, labels[op]]
    return drawn


@entry
def frequencies(drawn, k):
    """Share of the rows that put each group on each device, shape (num_groups, num_devices)."""
    rows, groups = drawn.shape
    table = np.zeros((groups, k))
    for row in range(rows):
        for group in range(groups):
            table[group, drawn[row, group]] += 1.0 / rows
    return table


@entry
def surrogate_gradient(logits, old, drawn, advantage, clip, entropy_weight):
    """Gradient of the clipped surrogate plus entropy at `logits`, shape (num_groups, num_devices).

    With pi_g = softmax(logits_g) and ratio r_g = pi_g(a) / old_g(a) of one group in one row, the
    surrogate is the mean over rows of sum_g min(r_g A, clip(r_g, 1 - clip, 1 + clip) A); its
    gradient through one row and group is r_g A (onehot(a) - pi_g) where the ratio is not clipped,
    else 0. The entropy's is -pi_g (log pi_g + H_g). Impossible devices have logit -inf.
    """
    groups, k = logits.shape
    rows = drawn.shape[0]
    gradient = np.zeros((groups, k))
    pi = np.empty(k)
    for group in range(groups):
        top = logits[group].max()
        total = 0.0
        for d in range(k):
            pi[d] = np.exp(logits[group, d] - top)
            total += pi[d]
        entropy = 0.0
        for d in range(k):
            pi[d] /= total
            if pi[d] > 0.0:
                entropy -= pi[d] * np.log(pi[d])
        for row in range(rows):
            a = drawn[row, group]
            ratio = pi[a] / old[group, a]
            gain = advantage[row]
            if (gain > 0.0 and ratio > 1.0 + clip) or (gain < 0.0 and ratio < 1.0 - clip):
                continue
            push = ratio * gain / rows
            for d in range(k):
                gradient[group, d] -= push * pi[d]
            gradient[group, a] += push
        for d in range(k):
            if pi[d] > 0.0:
                gradient[group, d] -= entropy_weight * pi[d] * (np.log(pi[d]) + entropy)
    return gradient
