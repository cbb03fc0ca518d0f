"""Ops that share a device, and ops that cannot. Reference: R. Klein, A. Scholl (1999)."""

from proof_checker.reading import INFINITE, demand, distinct, pair_of, words_of


def same(state, words, _refute):
    """["same", u, v]: they share a device.

    For every class of u and of v it is shown that they are not on two devices of these: either u
    ends no earlier than its head and its time, the transfer of their edge, which is then paid, and
    the time and tail of v follow, and this passes T; or both classes are the same one of a single
    device.
    """
    u, v = pair_of(*words_of(words, 2), state.num_ops)
    pay = state.edges.get((u, v), [0, None])[1]
    for c in state.classes(u):
        for d in state.classes(v):
            single = c == d and state.count[c] == 1
            demand(
                single or too_long(state, u, c, v, d, pay), f"ops {u} and {v} may be on two devices"
            )
    state.join(u, v)


def too_long(state, u, c, v, d, pay):
    """Return whether a transfer from u on class c to v on class d passes T; pay None: no edge."""
    if pay is None:
        return False
    start = state.head[u][c] + state.time[u][c] + pay
    return start + state.time[v][d] + state.tail[v][d] > state.most


def apart(state, words, _refute):
    """["apart", u, v, ops]: u and v are on two devices.

    The ops are of the groups of u and of v: if these shared a device, so would all of the ops. They
    do not, as their bytes pass every capacity, or as on every class the least of their heads, all
    their times and the least of their tails pass T. (u and v of one group: S does not exist.)
    """
    u, v, ops = words_of(words, 3)
    pair_of(u, v, state.num_ops)
    members = {*state.group[u], *state.group[v]}
    near = set(distinct(ops, state.num_ops)) <= members
    demand(near, f"{ops[:9]} need not all be on the device of {u} and {v}")
    if sum(state.resident[w] for w in ops) <= max(state.problem.capacity):
        for c in range(len(state.count)):
            demand(time_on_one(state, ops, c) > state.most, f"ops {u} and {v} may share a device")
    state.separate(u, v)


def time_on_one(state, ops, c):
    """Return the least ticks from 0 to the end of S if one device of class c runs these ops."""
    times = [state.time[w][c] for w in ops]
    if None in times:
        return INFINITE
    return min(state.head[w][c] for w in ops) + sum(times) + min(state.tail[w][c] for w in ops)


def clique(state, words, _refute):
    """["clique", ops]: more ops than devices, no two of which share one."""
    ops = distinct(words_of(words, 1)[0], state.num_ops)
    split, first = state.splits(), [state.group[u][0] for u in ops]
    for i, a in enumerate(first):
        for b in first[:i]:
            demand((a, b) in split, f"the groups of ops {a} and {b} may share a device")
    demand(len(ops) > state.problem.num_devices, f"{len(ops)} ops have enough devices")
    state.closed = True


STEPS = {"same": same, "apart": apart, "clique": clique}
