"""Heads and tails: along edges, and by sets of ops that do not fit before an op.

References: T. L. Adam, K. M. Chandy, J. R. Dickson (1974), critical path; J. Carlier (1982), sets.
"""

from proof_checker.delays import before, least_delays
from proof_checker.reading import INFINITE, demand, distinct, entries, whole, words_of


def sweep(state, words, _refute):
    """["sweep", backwards, lemmas]: raise heads (backwards: tails) of all ops, in order.

    An op on class c starts after every op u before it: if u is on class d, no earlier than its
    head, its time, and `free`, or `pay` too if d is another class, as they are then on two devices;
    the least of this over the classes of u holds. A lemma [v, c, ticks, ops] raises the head of v
    on class c to `ticks` if `is_late` refutes a start at `ticks` - 1 or before. After that classes
    that pass T go.
    """
    backwards, lemmas = words_of(words, 2)
    far = state.tail if whole(backwards, 0, 1) else state.head
    order, into = before(state, backwards)
    place, of = {v: i for i, v in enumerate(order)}, read_lemmas(state, lemmas)
    for v in order:
        for c in state.classes(v):
            far[v][c] = max(far[v][c], along_edges(state, far, into.get(v, ()), c))
            for ticks, ops in of.get((v, c), ()):
                if ticks > far[v][c]:
                    between = order[min(place[u] for u in ops) : place[v] + 1]
                    near, apart, _ = least_delays(state, v, between, into)
                    late = is_late(state, v, c, ticks - 1, ops, far, near, apart)
                    demand(late, f"lemma: op {v} is not as late as {ticks}")
                    far[v][c] = ticks
        state.narrow(v, state.classes(v))


def read_lemmas(state, lemmas):
    """Return (op, class) to its lemmas: (ticks, ops before it)."""
    found = {}
    for lemma in entries(lemmas):
        v, c, ticks, ops = entries(lemma, 4)
        key = whole(v, 0, state.num_ops - 1), whole(c, 0, len(state.count) - 1)
        found.setdefault(key, []).append((whole(ticks), distinct(ops, state.num_ops)))
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


def is_late(state, v, c, limit, ops, far, near, apart):
    """Return whether v, on class c, starts after `limit`, because the ops before it do not fit.

    If v started by then, every op u of the set would run either on v's device, between its head on
    class c and limit - near[u], or on another one, between its head there and limit - apart[u]. All
    that run on v's device fit between the least of those heads and limit - the least `near`; all on
    another device between the least head and limit - the least `apart`, and there are k - 1 other
    devices. The sum of the least times of all ops is at most the sum of both; that of those
    elsewhere is at most the sum over all ops that may be elsewhere.
    """
    work, away, here, others = 0, 0, [], []
    for u in ops:
        if u not in near or u == v:
            return False
        ticks = [state.time[u][d] for d in elsewhere(state, u, c, limit, far, apart)]
        if ticks:
            away += min(ticks)
            starts = [far[u][d] for d in elsewhere(state, u, c, limit, far, apart)]
            others.append((min(starts), apart[u]))
        own = state.time[u][c]
        if own is not None and far[u][c] + own + near[u] <= limit:
            ticks.append(own)
            here.append((far[u][c], near[u]))
        if not ticks:
            return True
        work += min(ticks)
    other_devices = state.problem.num_devices - 1
    return work > room_of(here, limit) + min(away, other_devices * room_of(others, limit))


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
