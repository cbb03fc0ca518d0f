"""Makespans that are known without a search: lanes.

A device has a lane of ops, one after the other; each is as fast there as anywhere, and its lane's
tensors cost anything elsewhere. Tensors between lanes are free, or both their ends can run nowhere
else. So running every lane on its device takes exactly the longest path, and nothing is faster.
Heads, tails, delays between forks and joins, and the energy of windows are held against that
schedule, and every bound against its length. Problems may have more ops than brute force can do.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import permutations

import brute_force
import compare
import numpy as np
from answers import poor_answers
from case import NO_LIMIT, Case
from deep_bounds import deep_bounds, in_series, small_limits, there_and_back
from limits import clock, current, patched

from placeopt.makespan.bounds import METHODS as MAKESPAN, front, segments
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.communication import heads_tails
from placeopt.makespan.bounds.destructive import is_small, propagate
from placeopt.makespan.bounds.elementary import load_bound
from placeopt.makespan.bounds.energy import energy_bound, head_tail_bound
from placeopt.makespan.bounds.front import FrontModel, Fronts, FrontSearch
from placeopt.makespan.bounds.relaxation import relax
from placeopt.makespan.bounds.segment_graph import Evidence
from placeopt.makespan.bounds.segments import segment_delays
from placeopt.makespan.bounds.series import series_parts
from placeopt.makespan.coarsening import coarsen
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of

FOREVER = 1e6


@dataclass
class Lanes:
    """A case, and the schedule that runs every op in its lane."""

    case: Case
    lane: list[int]
    start: list[int]
    end: list[int]

    @property
    def best(self) -> int:
        """The least makespan."""
        return max(self.end)


def draw(rng):
    """Return drawn Lanes of up to ten ops on two to four devices."""
    k, n = rng.choice([2, 2, 3, 3, 4]), rng.choice([3, 5, 6, 8, 10, 12, 16])
    lane, n = ([0] * 12, 12) if rng.random() < 0.1 else ([rng.randrange(k) for _ in range(n)], n)
    top, grain = rng.choice([1, 3, 20, 1000, 2**50]), rng.choice([1, 1, 7])
    one_time = rng.random() < 0.3
    time_of = [grain * (top if one_time else rng.randint(0, top)) for _ in range(n)]
    slower = rng.choice([0, 0, 5])
    compute = [
        [t + (0 if d == lane[v] else rng.choice([0, slower])) for d in range(k)]
        for v, t in enumerate(time_of)
    ]
    if rng.random() < 0.2:
        compute = [
            [x if d == lane[v] or rng.random() < 0.8 else -1 for d, x in enumerate(row)]
            for v, row in enumerate(compute)
        ]
    producer, consumers, transfer, forced = [], [], [], set()
    loose, halves = rng.random() < 0.3, rng.random() < 0.25
    for v in range(n):
        before = [u for u in range(v) if lane[u] == lane[v]]
        if before and not loose:
            _tensor(
                producer,
                consumers,
                transfer,
                before[-1],
                [v],
                rng.choice([0, 2, top, 2**58, 2**61, 2**61]),
            )
    for u in range(n):
        later = [v for v in range(u + 1, n) if lane[v] != lane[u] and rng.random() < 0.3]
        if halves and u < n // 2:
            later = list(range(n // 2, n))
        if later and (halves or rng.random() < 0.7):
            free = halves or rng.random() < 0.6
            cost = 0 if free else rng.choice([1, top, 3 * top])
            _tensor(producer, consumers, transfer, u, later, cost)
            forced |= set() if free else {u, *later}
    for v in forced:
        compute[v] = [x if d == lane[v] else -1 for d, x in enumerate(compute[v])]
    return _scheduled(rng, lane, compute, producer, consumers, transfer, loose)


def _tensor(producer, consumers, transfer, u, readers, cost):
    producer.append(u)
    consumers.append(readers)
    transfer.append([cost])


def _scheduled(rng, lane, compute, producer, consumers, transfer, loose):
    """Return the case with its schedule; lanes without edges of their own are one op long, since
    the order in them would be free.
    """
    n, k = len(lane), len(compute[0])
    start, end = [0] * n, [0] * n
    if loose:  # every op has a device of its own
        compute = [
            [row[lane[v]] if d == v else row[lane[v]] + rng.choice([0, 2]) for d in range(n)]
            for v, row in enumerate(compute)
        ]
        lane, k = list(range(n)), n
        transfer = [[0] for _ in producer]
    for v in range(n):
        ready = 0
        for t, u in enumerate(producer):
            if v in consumers[t]:
                ready = max(ready, end[u] + (transfer[t][0] if lane[u] != lane[v] else 0))
        start[v] = ready
        end[v] = ready + compute[v][lane[v]]
    resident = [rng.randrange(4) for _ in range(n)]
    held = [sum(resident[v] for v in range(n) if lane[v] == d) for d in range(k)]
    spare = rng.choice([None, 0, 1, 20])
    colocation = [-1] * n
    if rng.random() < 0.3:
        colocation = [lane[v] if rng.random() < 0.6 else -1 for v in range(n)]
    case = Case(
        compute=compute,
        producer=producer,
        consumers=consumers,
        transfer=transfer,
        link_class=[[0] * k for _ in range(k)],
        channel=[[-1] * k for _ in range(k)],
        resident=resident,
        capacity=[NO_LIMIT if spare is None else h + spare for h in held],
        tensor_bytes=[0] * len(producer),
        colocation=colocation,
        backward=[False] * n,
        io_class=[0] * k,
    )
    return Lanes(case, lane, start, end)


def attack(seed):
    """Return (True, every difference)."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return True, _fork(rng)
    lanes = draw(rng)
    if rng.random() < 0.1:
        return False, _nowhere(lanes, rng)
    try:
        problem = compare.problem_of(lanes.case)
    except InputError:  # sums beyond 2^62
        return False, []
    ways = [_bounds, _heads, _heads, _windows, _delays, _fronts, _horizons, _horizons, _parts]
    with poor_answers(rng, rng.choice([0.0, 0.0, 0.3])):
        return True, rng.choice(ways)(problem, lanes, rng)


def _nowhere(lanes, rng):
    """No op fits, or two that share a device have none in common: that is said, and bounds of it
    are found all the same. Or ops fit where each of them may run, but not together: no bound has to
    be true, and nothing fails.
    """
    case = lanes.case
    if rng.random() < 0.5:
        return _crowded(case, rng)
    case.capacity, case.resident = [2] * case.num_devices, [3] * case.num_ops
    if rng.random() < 0.5:
        case.capacity, case.colocation = [NO_LIMIT] * case.num_devices, [0] * case.num_ops
        case.compute = [
            [x if d == v % 2 else -1 for d, x in enumerate(row)]
            for v, row in enumerate(case.compute)
        ]
    try:
        problem = compare.problem_of(case)
    except InputError:
        return []
    relaxation = relax(problem)
    found = load_bound(relaxation).value, int(heads_tails(relaxation).through().max())
    said = objective_of(problem).impossible(problem)
    return [] if said and min(found) >= 0 else [f"{found} of an impossible problem: '{said}'"]


def _crowded(case, rng):
    """Ops of two sets of devices that have one in common, of more bytes than all of these have."""
    n, k = case.num_ops, 4
    times = [max(row) for row in case.compute]
    case.compute = [
        [t + d if d in ((0, 1), (1, 2))[v % 2] else -1 for d in range(k)]
        for v, t in enumerate(min(t, 1000) for t in times)
    ]
    case.resident, case.colocation, case.io_class = [3] * n, [-1] * n, [0] * k
    room = (n * 3 + 2) // 4 + rng.choice([0, 0, 1, 2])
    case.capacity = [room, room, room, NO_LIMIT]
    case.link_class, case.channel = [[0] * k for _ in range(k)], [[-1] * k for _ in range(k)]
    case.transfer = [[min(row[0], 1000)] for row in case.transfer]
    try:
        problem = compare.problem_of(case)
    except InputError:
        return []
    fits, found = sum(x // 3 for x in case.capacity[:3]) >= n, []
    for _ in range(8):
        with poor_answers(rng, 1.0):
            report = objective_of(problem).bounds(problem, 1.0, ("load",))
        if fits and report.infeasible:
            found.append(f"called infeasible: {report.infeasible}")
    return found


def _bounds(problem, lanes, rng):
    """Every bound, one by one, the coarse problem and parts in series too."""
    return deep_bounds(problem, lanes.best, rng)


def _parts(problem, lanes, rng):
    """Parts in series, with heads of their own, and times on a grid, there and back."""
    whole, best = Analysis(problem, seconds=3600.0), lanes.best
    known = rng.randint(0, best)
    whole.bounds["drawn"] = known
    found = []
    parts = series_parts(whole.relaxation, rng.choice([float("inf"), 0.0]))
    if parts:
        found.append(("parts in series", in_series(problem, whole, parts)))
    if best < 2**40:
        unit = rng.choice([1, 2, 7, max(1, best // 4), max(1, best // 2)])
        coarse = coarsen(problem, unit)
        inner = Analysis(coarse.problem, seconds=3600.0)
        found += [("coarse " + name, inner.run(name) * unit) for name in MAKESPAN[:4]]
        found += there_and_back(problem, coarse, rng)
    return [f"{how} {value}, the optimum is {best}" for how, value in found if value > best]


def _heads(problem, lanes, rng):
    """No head is after its op's start, no tail longer than what follows it."""
    relaxation = relax(problem, merged=rng.random() < 0.3)
    end = time.perf_counter() + rng.choice([FOREVER, 0.0])
    few = rng.choice([current(head_tail_bound, "most_work"), 1])
    with small_limits("makespan", rng), patched(head_tail_bound, "most_work", few):
        found = heads_tails(relaxation, rng.choice([None, 1, 64]), end)
        loads = load_bound(relaxation)
        values = loads.value, head_tail_bound(relaxation, found, loads.weights)
        values += (energy_bound(Evidence(relaxation, found, loads.weights, 0), end),)
    wrong = [f"{values} of {lanes.best}"] if max(values) > lanes.best else []
    for v, row in enumerate(relaxation.allowed):
        if not row[lanes.lane[v]]:
            wrong.append(f"op {v} is not allowed where it runs")
    for v, d in enumerate(lanes.lane):
        c = relaxation.class_of[d]
        if found.head[v, c] > lanes.start[v]:
            wrong.append(f"op {v} starts at {lanes.start[v]}, its head is {found.head[v, c]}")
        if found.tail[v, c] > lanes.best - lanes.end[v]:
            wrong.append(f"op {v} ends {lanes.best - lanes.end[v]} early, tail {found.tail[v, c]}")
    return wrong


def _whole(problem, lanes, rng):
    upper = rng.choice([None, lanes.best, lanes.best + 3])
    return Analysis(problem, seconds=3600.0, upper=upper)


def _delays(problem, lanes, rng):
    """Between a fork and its join passes at least what is said."""
    whole, wrong = _whole(problem, lanes, rng), []
    evidence = whole.evidence(rng.choice([0, lanes.best // 2, lanes.best]))
    with small_limits("makespan", rng):
        found = segment_delays(
            evidence, time.perf_counter() + FOREVER, everything=rng.random() < 0.6
        )
    for segment, ticks in found:
        passes = lanes.start[segment.last] - lanes.end[segment.first]
        if ticks > passes:
            wrong.append(f"{ticks} from {segment.first} to {segment.last}, {passes} suffice")
    return wrong


def _horizons(problem, lanes, rng):
    """The makespan itself is never refuted, and what every schedule up to it obeys holds of ours."""
    whole = _whole(problem, lanes, rng)
    horizon = lanes.best + rng.choice([-1, 0, 0, 1, 5])
    weights = rng.choice([whole.load.weights, np.ones_like(whole.load.weights)])
    large = current(is_small, "most_edges")
    large = rng.choice([large, large, 0])
    with small_limits("makespan", rng), patched(is_small, "most_edges", large):
        if rng.random() < 0.5:
            found = whole.within(horizon, rng.choice([0.0, FOREVER]))
        else:
            end = time.perf_counter() + rng.choice([0.0, FOREVER])
            found = propagate(whole.relaxation, whole.heads, weights, horizon, end)
    if horizon < lanes.best:
        return []
    if found is None:
        return [f"{horizon} is refuted, the optimum is {lanes.best}"]
    heads, wrong = found[0], []
    for v, d in enumerate(lanes.lane):
        if heads.head[v, whole.relaxation.class_of[d]] > lanes.start[v] + horizon - lanes.best:
            wrong.append(f"head of op {v} up to {horizon}")
    return wrong


def _windows(problem, lanes, rng):
    """A window holds at least the energy that our schedule has in it."""
    whole, backwards = _whole(problem, lanes, rng), rng.random() < 0.5
    relaxation = whole.relaxation
    size = rng.choice([1, 3, 2**18]) if lanes.best < 2**30 else 1
    weights = rng.choice(
        [whole.load.weights, np.array([rng.randint(0, size) for _ in relaxation.class_size])]
    )
    head = whole.heads.tail if backwards else whole.heads.head
    side = Fronts(relaxation, head, weights, backwards=backwards, num_workers=1)
    if not 1 <= lanes.best <= front.LARGEST_TIME or not weights.any():
        return []
    wrong = []
    with small_limits("makespan", rng):
        for _ in range(rng.randint(1, 3)):
            window = rng.randint(1, lanes.best)
            side.extend(window, rng.choice([0.0, 5.0, 5.0]))
            held = _energy(side, relaxation, lanes, window, backwards)
            if side.most.get(window, held) < held:
                wrong.append(f"{held} in a window of {window}, {side.most.get(window)} are said")
            if rng.random() < 0.5:
                wrong += _asked(side, held, window)
    return wrong


def _asked(side, held, window):
    """A program of one window: as much energy as ours is never refuted."""
    candidates = side.order[side.earliest[side.order] < window].tolist()
    model = FrontModel(side, candidates, window, window * side.width)
    wrong = [] if model.reaches(held, 5.0) is not False else [f"no {held} in {window}"]
    if model.maximum(5.0)[1] < held:
        wrong.append(f"{held} in a window of {window} are above its maximum")
    return wrong


def _energy(side, relaxation, lanes, window, backwards):
    total = 0
    for v, d in enumerate(lanes.lane):
        begin = lanes.best - lanes.end[v] if backwards else lanes.start[v]
        end = lanes.best - lanes.start[v] if backwards else lanes.end[v]
        inside = max(0, min(end, window) - begin)
        total += min(int(side.energy[v]), int(side.weights[relaxation.class_of[d]]) * inside)
    return total


def _fronts(problem, lanes, rng):
    """Both fronts together, in several runs from a drawn bound."""
    whole, best = _whole(problem, lanes, rng), lanes.best
    known = rng.randint(0, best)
    search, found = FrontSearch(whole.evidence(known), num_workers=1), []
    looks = iter(range(rng.choice([10**6, rng.randint(0, 8)])))
    with patched(FrontSearch, "patience.seconds", 0.02), small_limits("makespan", rng):
        search._limit = 0.02
        for _ in range(2):
            end = time.perf_counter() + rng.choice([0.0, 0.5, 0.5])
            upper = rng.choice([None, best])
            proof = search.run(end, known, upper, lambda _: next(looks, None) is not None)
            known = known if proof is None else max(known, proof.bound)
            found.append(known)
    return [f"fronts prove {x}, the optimum is {best}" for x in found if x > best]


# --- forks


def _fork(rng):
    """A fork and its join, of few ops: bounds from far below the best of all devices and orders."""
    case = _draw_fork(rng)
    best = _best_fork(case)
    if best is None or best < 1:
        return []
    problem = compare.problem_of(case)
    if rng.random() < 0.4:
        return _refuted(problem, case, best, rng)
    upper = rng.choice([None, best, best + rng.randint(1, 9)])
    whole = Analysis(problem, seconds=rng.choice([0.0, 3600.0, 3600.0, 3600.0]), upper=upper)
    known = rng.choice([0, best // 2, rng.randint(0, best), best - 1])
    whole.bounds["drawn"] = known
    names = rng.sample(["segments", "fork-join", "fork-join", "destructive", "energy"], 3)
    names += rng.sample([name for name in MAKESPAN if name != "front"], 2)
    levels = rng.choice([current(segments._thresholds, "most_levels"), 1])
    with (
        poor_answers(rng, rng.choice([0.0, 0.0, 0.3])),
        patched(segments._thresholds, "most_levels", levels),
        small_limits("makespan", rng, chance=rng.choice([0.0, 0.1, 0.3, 0.5])),
    ):
        found = [(name, whole.run(name)) for name in names]
        short = Evidence(whole.relaxation, _short_heads(whole), whole.load.weights, known)
        found.append(("energy of short heads", energy_bound(short)))
        if rng.random() < 0.3:
            looks = rng.choice([None, rng.randint(1, 30)])
            with clock(looks):
                end = time.perf_counter() + FOREVER
                delays = segment_delays(whole.evidence(known), end, everything=rng.random() < 0.6)
            fork = [x for (segment, x) in delays if segment.last == problem.num_ops - 1]
            found += [("delay", x) for x in fork]
    return [
        f"{how} {value}, {best} from {known} is possible" for how, value in found if value > best
    ]


def _short_heads(whole):
    """Heads and tails that see no further than an op, so that windows have something to say."""
    return heads_tails(whole.relaxation, 1, 0.0)


def _refuted(problem, case, best, rng):
    """The best makespan of a fork is not refuted, and less may be."""
    whole = Analysis(problem, seconds=3600.0)
    horizon = best + rng.choice([0, 0, -1, -1, -best // 3, -best // 5, -best // 10])
    weights = rng.choice([whole.load.weights, np.ones_like(whole.load.weights)])
    if rng.random() < 0.2 and len(weights):
        weights = weights * 2**40
    heads = rng.choice([whole.heads, _short_heads(whole)])
    with small_limits("makespan", rng):
        found = propagate(whole.relaxation, heads, weights, horizon, time.perf_counter() + FOREVER)
    return [f"{horizon} is refuted"] if found is None and horizon >= best else []


def _draw_fork(rng):
    n, k = rng.choice([4, 5, 5, 6]), rng.choice([2, 2, 3])
    top = rng.choice([3, 9, 20, 20, 2**45, 2**52])
    alike = rng.random() < 0.6
    rows = [[rng.randint(0, top) for _ in range(k)] for _ in range(n)]
    compute = [[row[0]] * k for row in rows] if alike else rows
    if rng.random() < 0.25:
        for row in compute:
            keep = rng.randrange(k)
            row[:] = [x if d == keep or rng.random() < 0.7 else -1 for d, x in enumerate(row)]
    producer, consumers = [], []
    for v in range(1, n - 1):
        extra = [w for w in range(v + 1, n - 1) if rng.random() < 0.15]
        producer += [0, v]
        consumers += [[v], [*extra, n - 1]]
    if rng.random() < 0.3:
        producer.append(0)
        consumers.append([*range(1, n - 1)])
    dear = rng.choice([top, 3 * top])
    resident = [rng.randrange(4) for _ in range(n)]
    tight = max(*resident, rng.randint(sum(resident) // 3, sum(resident) + 1))
    if rng.random() < 0.3:  # two ops that share no device, whatever they cost
        resident, tight = [0] * n, 9
        apart = rng.choice(
            [(u, v) for u, row in zip(producer, consumers, strict=True) for v in row]
        )
        resident[apart[0]] = resident[apart[1]] = 5
    labels = rng.choice([[-1], [-1], [-1, 0], [0, 1, -1]])
    return Case(
        compute=compute,
        producer=producer,
        consumers=consumers,
        transfer=[[rng.randint(0, dear)] for _ in producer],
        link_class=[[0] * k for _ in range(k)],
        channel=[[-1] * k for _ in range(k)],
        resident=resident,
        capacity=[rng.choice([NO_LIMIT, tight])] * k,
        tensor_bytes=[0] * len(producer),
        colocation=[rng.choice(labels) for _ in range(n)],
        backward=[False] * n,
        io_class=[0] * k,
    )


def _best_fork(case):
    """The least makespan: without contention, all devices, and all orders of the ops between, each
    as early as it may be.
    """
    n, best = case.num_ops, None
    into = [
        [(t, u) for t, u in enumerate(case.producer) if v in case.consumers[t]] for v in range(n)
    ]
    for device in brute_force.placements(case):
        for inner in permutations(range(1, n - 1)):
            end, idle = {}, [0] * case.num_devices
            for v in (0, *inner, n - 1):
                if any(u not in end for _, u in into[v]):
                    break
                ready = [
                    end[u] + (case.transfer[t][0] if device[u] != device[v] else 0)
                    for t, u in into[v]
                ]
                end[v] = max([idle[device[v]], *ready]) + case.compute[v][device[v]]
                idle[device[v]] = end[v]
            if len(end) == n and (best is None or end[n - 1] < best):
                best = end[n - 1]
    return best


__all__ = ["Lanes", "attack", "draw"]
