"""Delays between two ops that hold whatever devices they are on, derived on their own."""

from proof_checker.reading import demand, distinct, entries, require, whole, words_of


def segment(state, words, refute):
    """["segment", lists, t, steps]: t ticks pass from the first op to the last.

    From the end of the first op of each list to the start of its last one pass at least t ticks.

    Within a list every op but the first has an edge from one that stands before it, and every op
    but the last has one to an op after it: so all others run after the end of the first op and
    before the start of the last. If less than t ticks passed between these two, S cut out between
    them would be a schedule of at most t - 1 ticks, in which the first and the last op take no
    time: heads and tails are 0, and what is known of classes, groups, and edges between the ops
    stays true. The steps refute it. It starts without the pairs that are apart and without waits,
    and nothing may be believed in it. Lists after the first need no steps if all that is known of
    them is the same, op by op.
    """
    lists, ticks, steps = words_of(words, 3)
    known = None
    entries(steps)
    require(whole(ticks, 1) and entries(lists), "a segment: expected at least one list of ops")
    for ops in lists:
        part = cut_out(state, distinct(ops, state.num_ops), ticks - 1)
        looks = looks_of(part)
        if looks != known:
            known = looks
            refute(part, steps)
        state.waits[ops[0], ops[-1]] = ticks


def looks_of(part):
    """Return a copy of all that is known of a part: refuting it changes the part."""
    fresh = part.copy()
    delays = sorted(fresh.edges.items()), sorted(fresh.far.items())
    return fresh.time, delays, fresh.group, fresh.resident, fresh.tensors


def cut_out(state, ops, most):
    """Return the supposition that all between the ends of a list runs within `most` ticks."""
    place = {v: i for i, v in enumerate(ops)}
    part = state.copy()
    part.edges, part.far = (
        {(place[u], place[v]): x for (u, v), x in delays.items() if u in place and v in place}
        for delays in (part.edges, part.far)
    )
    require_between(part.edges, ops)
    part.most, part.believed, part.apart, part.waits = most, None, [], {}
    part.order, part.resident = list(range(len(ops))), [state.resident[v] for v in ops]
    part.time = [part.time[v] for v in ops]
    part.time[0], part.time[-1] = (no_time(part.time[i]) for i in (0, -1))
    part.head, part.tail = ([[0] * len(state.count) for _ in ops] for _ in range(2))
    part.group = renumbered(state.group, ops, place)
    part.tensors = tensors_among(state.tensors, place)
    return part


def tensors_among(tensors, place):
    """Return the tensors that ops of a list send to each other, by their places in it, sorted."""
    found = []
    for ticks, ops in tensors:
        inside = [place[v] for v in ops if v in place]
        if ops[0] in place and len(inside) > 1:
            found.append([ticks, inside])
    return sorted(found)


def no_time(row):
    """Return a row of ticks by class in which the op takes none."""
    return [None if ticks is None else 0 for ticks in row]


def require_between(edges, ops):
    """Refuse a list, edges by places in it, that does not run between its first and its last."""
    last = len(ops) - 1
    forwards = last > 0 and all(u < v for u, v in edges)
    follow = {v for _, v in edges} == set(range(1, last + 1))
    lead = {u for u, _ in edges} == set(range(last))
    between = forwards and follow and lead
    demand(between, f"ops {ops[:9]} run after the first and before the last of them")


def renumbered(group, ops, place):
    """Return the groups of the ops of a list, by their places in it."""
    found = {}
    for v in ops:
        found.setdefault(id(group[v]), [place[w] for w in group[v] if w in place])
    return [found[id(group[v])] for v in ops]


STEPS = {"segment": segment}
