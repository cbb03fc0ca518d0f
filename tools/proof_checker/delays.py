"""Least delays between ops, forwards in time or backwards (S read backwards is a schedule too)."""

from proof_checker.reading import INFINITE


def before(state, backwards):
    """Return the ops in order, and what comes before each of them: (op, free, pay, far)."""
    into = {}
    far = [max(pay, state.far.get(pair, 0)) for pair, (_, pay) in state.edges.items()]
    edges = [(*pair, *costs, x) for (pair, costs), x in zip(state.edges.items(), far, strict=True)]
    waits = [(*pair, ticks, ticks, ticks) for pair, ticks in state.waits.items()]
    for u, v, *delays in edges + waits:
        first, last = (v, u) if backwards else (u, v)
        into.setdefault(last, []).append((first, *delays))
    return (state.order[::-1] if backwards else state.order), into


def least_delays(state, v, between, into):
    """Return the least ticks from the end of ops to the start of v: ever, on two devices, and on
    two islands.

    `between` is a stretch of the order up to v; ops without a path to v in it are left out.

    For an edge (u, w) with `free`, `pay` and `far`, and a path from w to v: in any case `free`, the
    run of w and the delay from w pass. If u and v are on two devices, then either u and w are (pay,
    the run of w, the delay from w in any case), or u and w are on one device, w and v on two (the
    run of w and the delay from w on two devices); free > 0 rules out the latter for an edge, and
    for a wait both come to at least what the former says. If u and v are on two islands, they are
    on two devices, and either u and w are on two islands (far, the run of w, the delay from w in
    any case), or w and v are (free, the run of w, the delay from w on two islands). The largest
    over all edges holds. If w is known to be on v's device, its delay on two devices is INFINITE;
    if it is known not to be, that delay holds in any case.
    """
    near, apart, away, split = {v: 0}, {v: INFINITE}, {v: INFINITE}, state.splits()
    for w in reversed(between):
        if w not in near:
            continue
        settle(state, v, w, near, apart, split)
        away[w] = max(away[w], apart[w])
        run = 0 if w == v else state.fastest(w)
        for u, free, pay, far in into.get(w, ()):
            later = INFINITE if free else run + apart[w]
            near[u] = max(near.get(u, 0), free + run + near[w])
            apart[u] = max(apart.get(u, 0), min(pay + run + near[w], later))
            away[u] = max(away.get(u, 0), min(far + run + near[w], free + run + away[w]))
    return near, apart, away


def settle(state, v, w, near, apart, split):
    """Use whether w and v are known to share a device, or not to."""
    if w != v and state.group[w] is state.group[v]:
        apart[w] = INFINITE
    elif (state.group[w][0], state.group[v][0]) in split:
        near[w] = max(near[w], apart[w])
