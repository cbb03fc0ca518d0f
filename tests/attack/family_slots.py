"""Latencies by flows: the program over ideals with few ideals, rounds and states, levels that begin
with few, stops at any look, and poor answers of the linear programs, against every placement, or,
with more ops than these can be enumerated for, against drawn ones.
"""

from __future__ import annotations

import random

import brute_force
import compare
from answers import poor_answers
from case import NO_LIMIT, draw
from deep_bounds import small_limits
from limits import clock, patched

from placeopt.latency.bounds import latency_bounds
from placeopt.latency.bounds.flow import FlowBound, flow_bounds
from placeopt.model.errors import InputError

DRAWN = 60
"""Placements that bounds of larger problems are held against."""


def draw_case(rng):
    """Return a latency case of three to seven ops; most have classes, slots and tight memory."""
    case = draw(rng, "latency")
    while case.num_ops < 3:
        case = draw(rng, "latency")
    n, k = rng.choice([3, 4, 4, 5, 6, 7]), rng.choice([2, 2, 3])
    top = rng.choice([1, 9, 1000])
    zeros = rng.choice([0.0, 0.3])
    case.compute = [
        [0 if rng.random() < zeros else rng.randint(0, top) for _ in range(k)] for _ in range(n)
    ]
    if rng.random() < 0.2:
        for row in case.compute:
            row[rng.randrange(k)] = -1 if rng.random() < 0.4 else row[0]
    case.producer, case.consumers = [], []
    for u in range(n - 1):
        for _ in range(rng.choice([0, 1, 1, 2])):
            case.producer.append(u)
            later = [v for v in range(u + 1, n) if rng.random() < 0.4]
            case.consumers.append(later or [rng.randrange(u + 1, n)])
    case.transfer = [[rng.randint(0, rng.choice([0, 3, top]))] for _ in case.producer]
    case.link_class, case.channel = [[0] * k for _ in range(k)], [[-1] * k for _ in range(k)]
    case.resident = [rng.choice([0, 1, 2, 5]) for _ in range(n)]
    total = sum(case.resident)
    case.capacity = [rng.choice([NO_LIMIT, rng.randint(total // 2, total + 1)])] * k
    case.tensor_bytes, case.backward = [0] * len(case.producer), [False] * n
    labels = rng.choice([[-1], [-1, 0], [0, 1], [0, 1, 2], [0, 0, 1, 2, -1], [0, 0, 0, 1]])
    case.colocation = [rng.choice(labels) for _ in range(n)]
    case.io_class = [rng.choice([0, 0, -1]) for _ in range(k)]
    case.contiguity, case.slots = "convex", rng.choice([1, 1, 2, 2, 3, 4])
    return case


def least(case, rng):
    """Return the least latency, or, of more placements than a few thousand, that of drawn ones."""
    if case.num_ops <= 3 or (case.num_ops == 4 and case.slots <= 2 and case.num_devices == 2):
        return brute_force.best_latency(case)
    found = []
    for _ in range(DRAWN):
        home = {}
        device = [
            home.setdefault(label if label >= 0 else ("op", v), rng.randrange(case.num_devices))
            for v, label in enumerate(case.colocation)
        ]
        order = sorted(rng.randrange(case.slots) for _ in device)
        for slot in ([0] * len(device), order):
            value = brute_force.latency(case, device, slot)
            found += [] if value is None else [value]
    return min(found, default=None)


def attack(seed):
    """Return (whether a placement is known, every difference)."""
    rng = random.Random(seed)
    case = draw_case(rng)
    try:
        problem = compare.problem_of(case)
    except InputError:
        return False, []
    best = least(case, rng)
    if best is None:
        return False, []
    first = rng.choice([3, 8, 120])
    with (
        poor_answers(rng, rng.choice([0.0, 0.0, 0.2])),
        patched(FlowBound, "effort.first_ideals", first),
        patched(FlowBound, "effort.finer", 2),
        small_limits("latency", rng),
    ):
        found = rng.choice([_one, _levels, _levels, _methods])(problem, best, rng)
    return True, [f"{how} {value}, {best} is possible" for how, value in found if value > best]


def _stops(rng):
    clicks = iter(range(rng.choice([10**9, 10**9, rng.randint(0, 40), rng.randint(0, 5)])))
    return lambda: next(clicks, None) is None


def _one(problem, best, rng):
    """One graph, with most of its nodes merged or none."""
    stop, upper = _stops(rng), rng.choice([None, best])
    bound = FlowBound(problem, max_ideals=rng.choice([3, 4, 6, 12, 10**4]), stop=stop)
    return [("flow", bound.run(lambda: upper, stop, lambda device, slot: None))]


def _levels(problem, best, rng):
    """Ever finer graphs; what the program places is worth no less than the bound."""
    known, stop, found = [rng.choice([best, 10**18])], _stops(rng), []

    def offer(device, slot):
        from placeopt.latency.evaluate import latency_batch

        known.append(int(latency_batch(problem, device[None, :], slot[None, :])[0]))

    for value, *_ in flow_bounds(problem, lambda: min(known), offer, stop):
        found.append(("levels", value))
        if stop():
            break
    return found


def _methods(problem, best, rng):
    """Some bounds in the order of their list, with a clock that runs out."""
    names = rng.choice([("path",), ("load",), ("flow",), ("load", "flow"), ("path", "flow")])
    with clock(rng.choice([None, rng.randint(1, 30)])):
        seconds = rng.choice([0.0, 5.0, 5.0])
        return list(latency_bounds(problem, seconds, names, rng.choice([None, best])))
