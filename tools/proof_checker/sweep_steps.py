"""Heads and tails: along edges, and by sets of ops that do not fit before an op.

References: T. L. Adam, K. M. Chandy, J. R. Dickson (1974), critical path; J. Carlier (1982), sets.
"""

from typing import NamedTuple

from proof_checker.delays import before, least_delays
from proof_checker.reading import (
    INFINITE,
    demand,
    distinct,
    entries,
    numbers,
    whole,
    words_of,
)


def sweep(state, words, _refute):
    """["sweep", backwards, lemmas]: raise heads (backwards: tails) of all ops, in order.

    An op on class c starts after every op u before it: if u is on class d, no earlier than its
    head, its time, and `free`, or `pay` too if d is another class, as they are then on two devices;
    the least of this over the classes of u holds. A lemma [v, c, ticks, ops, weights] raises the
    head of v on class c to `ticks` if `is_late` refutes a start at `ticks` - 1 or before. After
    that classes that pass T go.
    """
    backwards, lemmas = words_of(words, 2)
    far = state.tail if whole(backwards, 0, 1) else state.head
    order, into = before(state, backwards)
    place, of = {v: i for i, v in enumerate(order)}, read_lemmas(state, lemmas)
    for v in order:
        for c in state.classes(v):
            far[v][c] = max(far[v][c], along_edges(state, far, into.get(v, ()), c))
            for lemma in of.get((v, c), ()):
                if lemma.ticks > far[v][c]:
                    between = order[min(place[u] for u in lemma.ops) : place[v] + 1]
                    near, apart, _ = least_delays(state, v, between, into)
                    late = is_late(state, lemma, far, near, apart)
                    demand(late, f"lemma: op {v} is not as late as {lemma.ticks}")
                    far[v][c] = lemma.ticks
        state.narrow(v, state.classes(v))


class Lemma(NamedTuple):
    """That `ops` before op v leave no start before `ticks` on class c; a weight for every class."""

    v: int
    c: int
    ticks: int
    ops: list
    weights: list


def read_lemmas(state, lemmas):
    """Return (op, class) to its lemmas; weights that are left out are 1."""
    found, classes = {}, len(state.count)
    for lemma in entries(lemmas):
        v, c, ticks, ops, weights = words_of(entries(lemma), 4, 5)
        key = whole(v, 0, state.num_ops - 1), whole(c, 0, classes - 1)
        weights = [1] * classes if weights is None else numbers(weights, classes)
        new = Lemma(*key, whole(ticks), distinct(ops, state.num_ops), weights)
        found.setdefault(key, []).append(new)
    return found


def along_edges(state, far, into, c):
    """Return the least head on class c that the ops before an op allow."""
    least = 0
    for u, free, pay, _ in into:
        ends = [
            far[u][d] + state.time[u][d] + (free if d == c else max(free, pay))
            for d in state.classes(u)
        ]
        least = max(least, min(ends, default=INFINITE))
    return least


def is_late(state, lemma, far, near, apart):
    """Return whether v, on class c, starts at `ticks` or later, because the ops do not fit before.

    If v started by limit = `ticks` - 1, every op u of the set would run either on v's device,
    between its head on class c and limit - near[u], or on another one, between its head there and
    limit - apart[u]. All that run on v's device fit between the least of those heads and limit -
    the least `near`; all on another device of a class between the least head and limit - the least
    `apart` of those that may be there. A tick on a class counts weights[class]: the sum of what all
    ops count at least is at most what these devices offer; that of those elsewhere is at most the
    sum over all ops that may be elsewhere.
    """
    v, c, ticks, ops, weights = lemma
    limit, work, away, here, others = ticks - 1, 0, 0, [], [[] for _ in state.count]
    for u in ops:
        if u not in near or u == v:
            return False
        costs = []
        for d in elsewhere(state, u, c, limit, far, apart):
            costs.append(weights[d] * state.time[u][d])
            others[d].append((far[u][d], apart[u]))
        away += min(costs, default=0)
        own = state.time[u][c]
        if own is not None and far[u][c] + own + near[u] <= limit:
            costs.append(weights[c] * own)
            here.append((far[u][c], near[u]))
        if not costs:
            return True
        work += min(costs)
    offer = sum(
        weights[d] * (count - (d == c)) * room_of(others[d], limit)
        for d, count in enumerate(state.count)
    )
    return work > weights[c] * room_of(here, limit) + min(away, offer)


def elsewhere(state, u, c, limit, far, apart):
    """Return the classes where u can be on another device than v, on class c, in time."""
    return [
        d
        for d in state.classes(u)
        if (d != c or state.count[c] > 1) and far[u][d] + state.time[u][d] + apart[u] <= limit
    ]


def room_of(known, limit):
    """Return the ticks between the least head and `limit` less the least delay, 0 for no ops."""
    if not known:
        return 0
    return max(0, limit - min(head for head, _ in known) - min(delay for _, delay in known))


STEPS = {"sweep": sweep}
