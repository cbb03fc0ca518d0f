"""More work than the devices offer: in a window, between late heads and long tails, on one device.

References: J. Erschler, P. Lopez, C. Thuriot (1991), windows; E. B. Fernandez, B. Bussell (1973),
J. Carlier (1987), heads and tails.
"""

from proof_checker.delays import before, least_delays
from proof_checker.reading import INFINITE, demand, distinct, numbers, whole, words_of


def window(state, words, _refute):
    """["window", begin, end, weights, prices]: weighted work and bytes pass the offer.

    An op on class c runs at least min(time, width, end of its earliest run - begin, end - start of
    its latest run) ticks in the window, if that is positive. A group is on one device, of a class
    on which all its ops can be: weights[c] per tick of its ops there, and prices[c] per resident
    byte of them, is no less than the least of this over such classes. All devices offer weights[c]
    per tick of the window and prices[c] per byte of their capacity. Weights and prices are not
    negative.
    """
    begin, end, weights, prices = words_of(words, 4)
    whole(begin, 0, whole(end, 0, state.most))
    weights, prices = (numbers(x, len(state.count)) for x in (weights, prices))
    need = 0
    for members in {id(x): x for x in state.group}.values():
        costs = [
            weights[c] * sum(inside(state, v, c, begin, end) for v in members)
            + prices[c] * sum(state.resident[v] for v in members)
            for c in range(len(state.count))
            if all(state.time[v][c] is not None for v in members)
        ]
        need += min(costs, default=INFINITE)
    offer = (end - begin) * sum(y * x for x, y in zip(state.count, weights, strict=True))
    offer += sum(prices[c] * b for c, b in zip(state.kind, state.problem.capacity, strict=True))
    demand(need > offer, f"the window {begin}..{end} offers {offer}, its work needs {need}")
    state.closed = True


def inside(state, v, c, begin, end):
    """Return the least ticks that v, on class c, runs in a window."""
    ticks = state.time[v][c]
    early = state.head[v][c] + ticks - begin
    late = end - state.most + state.tail[v][c] + ticks
    return max(0, min(ticks, end - begin, early, late))


def ends(state, words, _refute):
    """["ends", ops, fork, join]: devices that run these ops idle too long before and after them.

    Let j devices run ops of the set. Each idles before the first of them that it runs, for the head
    of that op, and after the last one, for its tail; these are j different ops each time. So j T is
    at least the sum of the j smallest heads, the work of all, and the j smallest tails; that this
    is false for every possible j is a contradiction. From an op called fork, on one device, pass at
    least the delays to the ops: those in any case on its own device, those on two devices on the
    others of its island, which has at most i, those on two islands everywhere else. So the least
    with the first, the i - 1 smallest with the second and, of j devices, the j - i smallest with
    the third count as heads. Where fewer devices of the fork's island run ops of the set, others
    do, and they idle no less, since the third are taken no smaller than the second, and these no
    smaller than the first. An op called join bounds tails likewise. Both may be left out, or null.
    """
    ops, fork, join = words_of(words, 1, 3)
    work = sum(state.fastest(v) for v in distinct(ops, state.num_ops))
    heads, tails = idle(state, ops, fork, True), idle(state, ops, join, False)
    for j in range(1, min(len(ops), state.problem.num_devices) + 1):
        late = sum(heads[:j]) + work + sum(tails[:j]) > j * state.most
        demand(late, f"{j} devices may run all of the ops {ops[:9]} in time")
    state.closed = True


def idle(state, ops, op, backwards):
    """Return idle ticks of devices, such that the first j add up to no more than j devices idle."""
    far = state.head if backwards else state.tail
    least = {v: min((far[v][c] for c in state.classes(v)), default=INFINITE) for v in ops}
    if op is None:
        return sorted(least.values())
    found = []
    for delay in least_delays(state, whole(op, 0, state.num_ops - 1), *before(state, backwards)):
        least = {v: max(least[v], delay.get(v, 0)) for v in ops}
        found.append(sorted(least.values()))
    near, apart, away = found
    return [near[0], *apart[: state.island_size - 1], *away]


def pigeons(state, words, _refute):
    """["pigeons", ops, h]: of over h k ops, h + 1 share one of k devices.

    The h + 1 shortest of them pass T.
    """
    ops, few = words_of(words, 2)
    times = sorted(state.fastest(v) for v in distinct(ops, state.num_ops))
    shared = len(ops) > whole(few, 1) * state.problem.num_devices
    demand(shared and sum(times[: few + 1]) > state.most, f"the ops {ops[:9]} may share devices")
    state.closed = True


STEPS = {"window": window, "ends": ends, "pigeons": pigeons}
