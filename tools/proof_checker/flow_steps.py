"""Flows between ops have to pass from device to device, through tensors that take time there.

Reference: T. Leighton, S. Rao (1999), cuts and flows between all pairs.
"""

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from proof_checker.reading import INFINITE, SUM, demand, entries, numbers, require, whole, words_of


class Flow(NamedTuple):
    """In each round u sends units[u] * (units[v] + ends[v]) to every v.

    A unit takes at least `pace` ticks where its node runs. C is at least what passes a tensor in
    all rounds, divided by its weight.
    """

    units: list
    ends: list
    rounds: int
    pace: Fraction
    most: Fraction


def crossing(state, words, _refute):
    """["crossing", islands, units, ends, rounds, sent]: channels between islands are too busy.

    Islands are any partition of the devices such that every link between two of them has one of N
    channels. A tensor weighs what it takes at least from one island to another. Island i, of k_i
    devices, runs x_i <= k_i T / pace of the Q units. What is sent from one island to another passes
    tensors whose ops are on several islands; these are sent between islands at least once, and each
    channel is busy for T ticks at most. With a units to the ends for every unit, at most a max x_i
    per round are for ends on the island that they come from, so

        N T C >= rounds (Q (Q + a) - sum of x_i^2 - a max x_i),

    and the sum of squares and the largest x_i are largest if the largest islands are filled first.
    That this is false, or that the islands have no room for Q, is a contradiction.
    """
    islands, *words = words_of(words, 5)
    require(state.problem.objective == "makespan", "crossing: expected a makespan")
    k = state.problem.num_devices
    numbers(islands, k, 0, k - 1)
    apart = [(d, e) for d in range(k) for e in range(k) if islands[d] != islands[e]]
    require(apart, "crossing: expected several islands")
    channels = {state.problem.channel[d][e] for d, e in apart}
    links = {state.problem.link[d][e] for d, e in apart}
    tensors = [(min(ticks[c] for c in links), ops) for ticks, ops in state.tensors]
    flow = read_flow(tensors, [state.fastest(v) for v in range(state.num_ops)], words)
    demand(-1 not in channels, "all between the islands takes channels")
    sizes = sorted(map(islands.count, set(islands)), reverse=True)
    late = len(channels) * state.most * flow.most < least_crossing(flow, sizes, state.most)
    demand(late, f"the channels may carry the flow in {state.most} ticks")
    state.closed = True


def least_crossing(flow, sizes, most):
    """Return what crosses at least; sizes of islands, largest first."""
    left, ends, squares, largest = sum(flow.units), sum(flow.ends), 0, 0
    pairs = left * (left + ends)
    for size in sizes:
        here = min(left, size * most // flow.pace)
        left, squares, largest = left - here, squares + here * here, max(largest, here)
    return INFINITE if left else flow.rounds * (pairs - squares - ends * largest)


def leaving(state, words, _refute):
    """["leaving", units, ends, rounds, sent]: devices pay for tensors too much, or are too few.

    Nodes are groups of ops that share a device, by their first ops. A tensor weighs what a device
    pays for it at least that has some of its ops and not all. A device that has x of the Q units
    pays for all tensors through which it exchanges 2 x (Q - x) units a round with the others, so
    its load is at least h(x) = pace x + 2 rounds x (Q - x) / C. One of the k devices has x >= Q / k
    and h is concave: it is no less than at one of the ends, Q / k and Q. Both are above T.
    """
    require(state.problem.objective == "period", "leaving: expected a period")
    first = [members[0] for members in state.group]
    tensors = [
        (min(ticks[c] if c >= 0 else 0 for c in state.problem.io), {first[v] for v in ops})
        for ticks, ops in state.tensors
    ]
    flow = read_flow(tensors, work_of_groups(state), words_of(words, 4))
    total = sum(flow.units)
    x = Fraction(total, state.problem.num_devices)
    shared = (state.most - flow.pace * x) * flow.most < 2 * flow.rounds * x * (total - x)
    late = shared and state.most < flow.pace * total
    demand(late, f"loads of {state.most} may pay for the flow")
    state.closed = True


def work_of_groups(state):
    """Return the least ticks of every group, at its first op; 0 at others."""
    work = [0] * state.num_ops
    for members in {id(x): x for x in state.group}.values():
        times = zip(*(state.time[v] for v in members), strict=True)
        work[members[0]] = min(sum(row) for row in times if None not in row)
    return work


def read_flow(tensors, work, words):
    """Return the flow [units, ends, rounds, sent] among nodes, through (weight, nodes) of tensors.

    Tensors of the same nodes are one, of the sum of their weights; they are in the order of their
    lists of nodes, sorted. `sent` says for every node u with units, and every tensor, how much for
    each of its units, in all rounds, comes out of the tensor at each of its nodes; negative: goes
    into it. What comes out is what went in, and passes it. At least rounds * (units[v] + ends[v])
    stays at every other node v, and it can only come from u.
    """
    units, ends, rounds, sent = words
    units, ends = (numbers(x, len(work)) for x in (units, ends))
    whole(rounds, 1)
    pins, weights = zip(*sorted(added_up(tensors).items()), strict=True) if tensors else ((), ())
    senders = [u for u, count in enumerate(units) if count]
    through = [0] * len(pins)
    for u, rows in zip(senders, entries(sent, len(senders)), strict=True):
        stays = [-rounds * (x + y) for x, y in zip(units, ends, strict=True)]
        passed = passing(pins, rows, stays)
        through = [x + units[u] * y for x, y in zip(through, passed, strict=True)]
        stays[u] = 0
        demand(min(stays) >= 0, f"what node {u} sends reaches all others")
    pace = min((Fraction(work[u], units[u]) for u in senders), default=0)
    demand(pace > 0, "every unit takes time")
    return Flow(units, ends, rounds, pace, most_congested(through, weights))


def added_up(tensors):
    """Return the weights of tensors by their nodes, sorted."""
    weights = Counter()
    for weight, nodes in tensors:
        weights[tuple(sorted(nodes))] += weight
    return weights


def most_congested(through, weights):
    """Return the most that passes a tensor, divided by its weight."""
    used = [(x, w) for x, w in zip(through, weights, strict=True) if x]
    demand(all(w > 0 for _, w in used), "every tensor that something passes takes time")
    return max((Fraction(x, w) for x, w in used), default=0)


def passing(tensors, rows, stays):
    """Return what passes each tensor; add to what stays at every node."""
    passed = []
    for pins, row in zip(tensors, entries(rows, len(tensors)), strict=True):
        demand(sum(numbers(row, len(pins), -SUM)) == 0, "what goes into a tensor comes out of it")
        passed.append(sum(x for x in row if x > 0))
        for v, x in zip(pins, row, strict=True):
            stays[v] += x
    return passed


STEPS = {"crossing": crossing, "leaving": leaving}
