"""Prices of periods, piece by piece: sets of a device against all sets, disjoint sets against all
choices of them, contraction against all placements, and each way to a bound against brute force,
with limits on its work, a clock that runs out, and poor answers of the programs that it asks.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import combinations, product

import brute_force
import compare
import numpy as np
from answers import poor_answers
from case import NO_LIMIT, draw
from deep_bounds import small_limits
from limits import clock, patched

from placeopt.model.errors import InfeasibleProblemError, InputError
from placeopt.period import bounds as bounds_file
from placeopt.period.bounds import METHODS as PERIOD, period_bounds
from placeopt.period.bounds.closing import Choice, Closing, PriceSearch, can_close, disjoint_sets
from placeopt.period.bounds.covering import cover_bound, paying_types
from placeopt.period.bounds.prices import PriceBound, column_bound
from placeopt.period.bounds.set_prices import (
    Frontier,
    OutOfTimeError,
    SetPricer,
    UndecidedError,
)
from placeopt.period.bounds.set_tables import SetTables
from placeopt.period.contracted import contract, device_types
from placeopt.period.evaluate import period_batch

FOREVER = 1e6


def draw_case(rng):
    """Return a period case of two to six ops; most pay for transfers, and one device may be of a
    type of its own that pays none.
    """
    case = draw(rng, "period")
    n, k = rng.choice([2, 3, 4, 5, 6, 6]), rng.choice([2, 2, 3])
    top, zeros = rng.choice([3, 20, 1000, 2**20, 2**44]), rng.choice([0.0, 0.0, 0.2])

    def ticks():
        return 0 if rng.random() < zeros else rng.randint(1, top)

    other = rng.random() < 0.4
    first, last = [ticks() for _ in range(n)], [ticks() for _ in range(n)]
    case.compute = [[a] * (k - other) + [b] * other for a, b in zip(first, last, strict=True)]
    if other and rng.random() < 0.3:
        for row in case.compute:
            row[rng.randrange(k)] = -1
        case.compute = [[row[0]] * (k - 1) + [row[-1]] for row in case.compute]
    case.producer, case.consumers = [], []
    for u in range(n - 1):
        for _ in range(rng.choice([0, 1, 1, 2])):
            later = [v for v in range(u + 1, n) if rng.random() < 0.5] or [u + 1]
            case.producer.append(u)
            case.consumers.append(later)
    dear = rng.choice([1, max(1, top // 4), top])
    lasts = rng.choice([0, dear, dear])
    case.transfer = [[rng.randint(0, dear), rng.randint(0, lasts)] for _ in case.producer]
    case.link_class, case.channel = [[0] * k for _ in range(k)], [[-1] * k for _ in range(k)]
    case.resident = [rng.randrange(4) for _ in range(n)]
    case.tensor_bytes, case.colocation = [0] * len(case.producer), [-1] * n
    if rng.random() < 0.2:
        case.colocation = [rng.choice([-1, -1, 0, 1]) for _ in range(n)]
    tight = rng.randint(sum(case.resident) // k, sum(case.resident) + 1)
    case.capacity = [rng.choice([NO_LIMIT, NO_LIMIT, tight])] * k
    case.io_class = [0] * k
    if other:
        case.io_class[-1] = rng.choice([-1, -1, -1, 0, 1])
        case.capacity[-1] = rng.choice([case.capacity[0], tight, tight // 2])
    case.backward, case.pipeline = [False] * n, "1f1b"
    if rng.random() < 0.1:
        case.pipeline, first = "gpipe", rng.randint(0, n)
        case.backward = [v >= first for v in range(n)]
    case.contiguity = rng.choice(["none", "none", "none", "chain", "convex"])
    if other and rng.random() < 0.03:  # ops of one class, which have no device in common
        case.colocation = [0] * n
        case.compute = [
            [x if (d == k - 1) == (v % 2 > 0) else -1 for d, x in enumerate(row)]
            for v, row in enumerate(case.compute)
        ]
    return case


def attack(seed):
    """Return (whether there is a placement, every difference)."""
    rng = random.Random(seed)
    if rng.random() < 0.25:
        return True, _disjoint(rng)
    case = draw_case(rng)
    best = brute_force.best_period(case)
    try:
        problem = compare.problem_of(case)
    except InputError:
        return best is not None, [] if best is None else [f"refused, brute force has {best}"]
    if best is None:
        return False, _impossible(problem)
    if rng.random() < 0.15:
        return True, _contracted(case, problem, best, rng)
    ways = [_prices, _prices, _closing, _closing, _closing, _sets, _sets, _all]
    ways += [_closing, _best_prices, _best_prices, _sets]
    with few_buckets(rng), small_limits("period", rng, chance=rng.choice([0.0, 0.1, 0.2])):
        return True, rng.choice(ways)(problem, best, rng)


def _contracted(case, problem, best, rng):
    """Devices are of one type only where all their times and bytes are equal; and the best
    placement of what is contracted is the best one.
    """
    types = device_types(problem)
    looks = []
    for d in range(case.num_devices):
        io = [row[case.io_class[d]] if case.io_class[d] >= 0 else 0 for row in case.transfer]
        looks.append((case.io_class[d] < 0, case.capacity[d], [row[d] for row in case.compute], io))
    of = {d: i for i, devices in enumerate(types) for d in devices}
    pairs = list(combinations(range(case.num_devices), 2))
    wrong = [f"devices {a}, {b}" for a, b in pairs if (of[a] == of[b]) != (looks[a] == looks[b])]
    model = contract(problem, limit=rng.choice([None, best, best + 1]))
    every = product(range(case.num_devices), repeat=model.num_nodes)
    values = [brute_force.period(case, model.expand(np.array(x)).tolist()) for x in every]
    least = min((x for x in values if x is not None), default=None)
    return wrong if least == best else [*wrong, f"contraction leaves {least} of {best}"]


@contextmanager
def few_buckets(rng):
    """Buckets for loads of a few nodes, and with some chance few labels: interpreted kernels look at
    each bucket.
    """
    few = rng.choice([(1, 1), (1, 2), (2, 3), (5, 6)])
    proof = rng.choice([(1,), (1, 2), (2, 3, 16), (3, 5, 7)])
    phases = tuple(
        phase._replace(bits=bits)
        for phase, bits in zip(PriceSearch.rounds.phases, (2, 3, 5), strict=True)
    )
    with (
        patched(SetPricer, "labelling.search_bits", few),
        patched(SetPricer, "labelling.proof_bits", proof),
        patched(PriceSearch, "rounds.phases", phases),
    ):
        yield


def _impossible(problem):
    """Without a placement any bound is true; that is said, or some bound is given."""
    with suppress(InfeasibleProblemError):
        list(period_bounds(problem, FOREVER))
    return []


def _all(problem, best, rng):
    """Every bound of the list, or some, with a clock that runs out."""
    names = rng.sample(PERIOD, rng.randint(1, len(PERIOD)))
    seconds, upper = rng.choice([0.0, FOREVER, FOREVER]), rng.choice([None, best])
    usual = bounds_file.LIMITS.contract_seconds
    slow = rng.choice([usual, usual, 1e9])
    with (
        clock(rng.choice([None, rng.randint(1, 20)])),
        patched(bounds_file, "LIMITS.contract_seconds", slow),
    ):
        return _above(period_bounds(problem, seconds, names, upper), best, f"value {upper}")


def _known(problem, best, rng):
    """Return a bound and a value that hold."""
    known = rng.choice([0, best // 2, rng.randint(0, best), max(0, best - 1), best * 99 // 100])
    return known, rng.choice([best, best + 1, best + rng.randint(0, best), best * 1001 // 1000 + 1])


def _above(found, best, how):
    return [
        f"{name} {value}, the optimum is {best}, {how}" for name, value in found if value > best
    ]


def _prices(problem, best, rng):
    """All prices in one call, or turn by turn."""
    known, upper = _known(problem, best, rng)
    value = rng.choice([None, upper, upper])
    with poor_answers(rng, rng.choice([0.0, 0.1, 0.3])):
        if rng.random() < 0.5:
            seconds = rng.choice([0.0, FOREVER, FOREVER])
            return _above([("prices", column_bound(problem, known, value, seconds))], best, value)
        free = problem.contiguity == "none" or rng.random() < 0.3
        turns, found = PriceBound(problem, "none" if free else "convex"), []
        for seconds in (rng.choice([0.0, FOREVER]), FOREVER, FOREVER):
            known = turns.raise_from(known, value, seconds)
            found.append(("turn", known))
            value = value if value is None else rng.randint(max(best, known), max(value, known))
        closing = turns.closing(lambda: upper, lambda device: None)
        if closing is not None:
            found.append(("closing", closing.raise_from(known, FOREVER)))
    return _above(found, best, f"value {value}")


def _closing(problem, best, rng):
    """Closing the gap from a bound and a value: at its end both meet, or what it offers is worth
    what it says.
    """
    known, upper = _known(problem, best, rng)
    contiguity = "none" if problem.contiguity == "none" else "convex"
    model = contract(problem, contiguity=contiguity, limit=rng.choice([None, upper]))
    cover, offered = cover_bound(model, time.perf_counter() + FOREVER), []
    if cover is None or problem.contiguity == "chain" or not can_close(cover):
        return []
    upper = rng.choice([upper, 2 * best + 1, int(model.smallest_times.sum()) + 1, 3 * best + 9])
    upper = max(upper, best)
    with poor_answers(rng, rng.choice([0.0, 0.0, 0.2])), _little_room(rng):
        if rng.random() < 0.4:
            known = cover.raise_from(known, upper)
        closing = Closing(cover, lambda: upper, lambda device: offered.append(model.expand(device)))
        found = []
        for looks in (rng.choice([None, rng.randint(1, 20), rng.randint(20, 200)]), None):
            try:
                with clock(looks):
                    known = closing.raise_from(known, FOREVER)
            except (OutOfTimeError, UndecidedError) as error:
                return [f"closing lets {type(error).__name__} out"]
            found.append(("closing", known))
        if rng.random() < 0.5:
            found += _limits(cover, best, rng)
    values = [int(x) for x in period_batch(problem, np.array(offered))] if offered else []
    if values and closing._best != min(values):
        return [f"closing's best {closing._best}, what it offers is worth {min(values)}"]
    return _above(found, best, f"value {upper}")


def _best_prices(problem, best, rng):
    """The best prices of limits, few sets listed and shares that soon are nothing."""
    cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + FOREVER)
    if cover is None or problem.contiguity != "none" or not can_close(cover):
        return []
    small = (("listed", 1), ("near", 0.5), ("least_steady", 2.0), ("disjoint", 1))
    with ExitStack() as stack:
        for name, few in small:
            if rng.random() < 0.5:
                stack.enter_context(patched(PriceSearch, "rounds." + name, few))
        return _above(_limits(cover, best, rng) + _limits(cover, best, rng), best, "best prices")


def _limits(cover, best, rng):
    """What the best prices of a limit refute, and what they say of another one."""
    tables = SetTables(cover.pricer.graph, FOREVER)
    search, found = PriceSearch(cover, tables), []
    for _ in range(2):
        limit, end = rng.randint(0, 2 * best), time.perf_counter() + FOREVER
        try:
            with (
                clock(rng.choice([None, rng.randint(5, 60), rng.randint(30, 400)])),
                poor_answers(rng, rng.choice([0.0, 0.5, 0.9])),
            ):
                prices = search.best(limit, end)
            found.append(("limit of prices", limit + 1 if prices.slack < 0 else 0))
            lower = rng.randint(0, limit)
            at = search.at(prices, lower, end)
            found.append(("another limit of prices", lower + 1 if at.slack < 0 else 0))
        except (OutOfTimeError, UndecidedError):
            pass
    return found


# --- sets


def _sets(problem, best, rng):
    """Dear sets of one device against all its sets."""
    model = contract(problem, contiguity="none")
    g = next(iter(paying_types(model)), None)
    if g is None or model.num_nodes < 2:
        return []
    frontier = Frontier.of(model, [g])
    if frontier is None:
        return []
    try:
        graph = frontier.graphs(time.perf_counter() + FOREVER)[g]
    except OutOfTimeError:
        return []
    if frontier.width:  # some sets are shorter than they are
        return []
    n, top = model.num_nodes, rng.choice([3, 100, 2**38])
    price = np.array([rng.choice([0, rng.randint(0, top)]) for _ in range(n)], dtype=np.int64)
    usable = model.allowed[:, g] & (np.array([rng.random() for _ in range(n)]) < 0.9)
    limit = rng.choice([best, best // 2, rng.randint(0, 2 * best), model.largest_load])
    every = [
        (members, _load(model, g, members), int(price[list(members)].sum()))
        for size in range(n + 1)
        for members in combinations(np.flatnonzero(usable).tolist(), size)
    ]
    worth = {members: p for members, load, p in every if load <= limit}
    most = max(worth.values(), default=-1)
    least = max(1, rng.choice([most, most + 1, most - 1, most // 2, 1]))
    ask = (price, usable, limit)
    found = []
    for way in (_pricer, _tables):
        try:
            with clock(rng.choice([None, None, rng.randint(1, 12)])), _little_room(rng):
                found += way(graph, model, ask, least, worth, rng)
        except (OutOfTimeError, UndecidedError):
            pass
    return found


@contextmanager
def _little_room(rng):
    """Room for few labels at first, and at most, every other time."""
    if rng.random() < 0.5:
        yield
        return
    most = rng.choice([4, 8, 12, 16, 24, 32, 64])
    with ExitStack() as stack:
        for owner, room in ((SetPricer, "labelling."), (SetTables, "room.")):
            stack.enter_context(patched(owner, room + "labels", 4))
            stack.enter_context(patched(owner, room + "most_labels", most))
        yield


def _load(model, g, members):
    """Ticks of a device that holds some nodes, by definition."""
    load = sum(int(model.total[v, g]) for v in members)
    for t, u in enumerate(model.producer.tolist()):
        pins = {u, *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist()}
        load += int(model.weight[t, g]) if 0 < len(pins & set(members)) < len(pins) else 0
    return load


def _as_set(row):
    return tuple(np.flatnonzero(row).tolist())


def _pricer(graph, model, ask, least, worth, rng):
    pricer = SetPricer(graph, model.largest_load, time.perf_counter() + FOREVER)
    found = []
    with_bits = pricer.dear(*ask, least, rng.choice([1, 4, 8, 12]))
    if with_bits is not None and worth.get(_as_set(with_bits), -1) < least:
        found.append(f"{_as_set(with_bits)} is called dear, at least {least}")
    try:
        dearest = pricer.dearest(*ask, least, depth=rng.randrange(5))
    except UndecidedError:
        return found
    if dearest is None and max(worth.values(), default=-1) >= least:
        found.append(f"no set of price {least} is found, there is one of {max(worth.values())}")
    if dearest is not None and worth.get(_as_set(dearest), -1) < least:
        found.append(f"{_as_set(dearest)} is called dear, at least {least}")
    return found


def _tables(graph, model, ask, least, worth, rng):
    tables, found = SetTables(graph, time.perf_counter() + FOREVER), []
    most, steps = max(worth.values(), default=-1), rng.choice([1, 4, SetTables.room.steps])
    near = rng.choice([0.0, 0.0, 0.01, 0.5])
    dear = rng.choice([least, most]) if 0 < least <= most else 0
    any_left = tables.prepare(*ask, least, near=near, dear=dear if near else 0)
    if not any_left and most >= least:
        found.append(f"tables without a set of price {least}, there is one of {most}")
    if tables.dearest() < most and most >= tables._want.least:
        found.append(f"the dearest set is said to cost {tables.dearest()}, one costs {most}")
    wanted = max(least, tables._want.least)
    true = {members for members, price in worth.items() if price >= wanted}
    listed, whole = tables._list(rng.choice([1, 3, 100]), wanted, steps=steps)
    some = tables.some(least, rng.choice([1, 100]))
    n = len(ask[0])
    if whole and {_as_set(row) for row in listed.members(n)} != true:
        found.append(f"all sets of price {wanted}: {len(listed.price)} are listed of {len(true)}")
    if not {_as_set(row) for row in some.members(n)} <= true:
        found.append(f"some set of price {wanted} is none")
    return found


# --- disjoint sets


def _disjoint(rng):
    """All answers of a drawn choice, against every choice of few sets."""
    n, count = rng.choice([1, 3, 4, 5, 20, 70]), rng.randrange(8)
    devices, room = rng.randint(0, 3), rng.choice([-1, 0, 5, 20])
    if rng.random() < 0.06:
        return _many_alike(rng)
    sets = sorted({_drawn_set(n, rng) for _ in range(count)} - {()})
    excess = sorted(rng.choice([0, 1, 5]) for _ in sets)
    if n > 6 and devices and rng.random() < 0.8:  # two that hold everything
        half = tuple(sorted(rng.sample(range(n), n // 2)))
        sets = [half, tuple(v for v in range(n) if v not in half), *sets[:4]]
        excess = sorted([0, 0, *excess[:4]])
    ticks = [rng.choice([0, 3, 9]) if room >= 0 else 2**62 for _ in range(n)]
    cost = [rng.choice([0, 0, 2]) for _ in range(n)]
    budget = rng.choice([0, 2, 6, 30])
    bits = np.zeros((len(sets), (n + 63) // 64), dtype=np.uint64)
    for i, members in enumerate(sets):
        for v in members:
            bits[i, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    choice = Choice(bits, np.array(excess, dtype=np.int64), np.array(ticks), np.array(cost))
    true = set()
    for size in range(min(devices, len(sets)) + 1):
        for chosen in combinations(range(len(sets)), size):
            held = [v for i in chosen for v in sets[i]]
            rest = set(range(n)) - set(held)
            spent = sum(excess[i] for i in chosen) + sum(cost[v] for v in rest)
            if (
                len(held) == len(set(held))
                and (not rest or sum(ticks[v] for v in rest) <= room)
                and spent <= budget
            ):
                true.add(chosen)
    end = time.perf_counter() + rng.choice([FOREVER, FOREVER, 0.0])
    with small_limits("period", rng, chance=rng.choice([0.0, 0.5])):
        try:
            found = [
                tuple(sorted(rows.tolist()))
                for rows in disjoint_sets(choice, devices, budget, room, end)
            ]
        except OutOfTimeError:
            return []
    if set(found) != true or len(found) != len(true):
        return [f"{sorted(found)} of the sets {sets} hold all {n} nodes, brute force has {true}"]
    return []


def _many_alike(rng):
    """More sets than there is room for at first: all hold the same node, and all others join the
    rest.
    """
    n, count = 12, rng.randint(300, 600)
    choice = Choice(
        np.ones((count, 1), dtype=np.uint64),
        np.zeros(count, dtype=np.int64),
        np.array([9, *[0] * (n - 1)]),
        np.zeros(n, dtype=np.int64),
    )
    room = rng.choice([0, 9])
    found = list(disjoint_sets(choice, 1, 0, room, time.perf_counter() + FOREVER))
    right = len(found) == count + (room == 9)
    return [] if right else [f"{len(found)} answers of {count} sets that are alike"]


def _drawn_set(n, rng):
    part = rng.choice([0.3, 0.5])
    return tuple(v for v in range(n) if rng.random() < part)
