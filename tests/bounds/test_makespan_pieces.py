"""Pieces of the makespan's bounds against their definitions: the energy of windows, delays between
forks and joins, the cheapest version of a problem, and the sums of the load bound.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

import compare
import family_lanes
from ortools.sat.python import cp_model

from placeopt.makespan.bounds import front, segment_graph
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.destructive import Clusters
from placeopt.makespan.bounds.elementary import _weighted
from placeopt.makespan.bounds.energy import _smallest_ends
from placeopt.makespan.bounds.front import FrontModel, Fronts, FrontSearch
from placeopt.makespan.bounds.relaxation import INFINITE, relax
from placeopt.makespan.bounds.segment_graph import Limits, Segment, SegmentGraph
from placeopt.makespan.bounds.segments import _Model, _model
from placeopt.model.problem import PlacementProblem

pytestmark = pytest.mark.interpreted


def lanes_of(seed, most):
    """Return a random.Random, drawn Lanes of at most `most` ops, and their problem."""
    rng = random.Random(seed)
    lanes = family_lanes.draw(rng)
    while (
        lanes.case.num_ops > most
        or not 2 <= lanes.best <= 10**6
        or any(row[0] > 2**58 for row in lanes.case.transfer)
    ):
        lanes = family_lanes.draw(rng)
    return rng, lanes, compare.problem_of(lanes.case)


@pytest.mark.parametrize("part", range(4))
def test_what_lanes_say_holds(part):
    """Heads, delays, windows and bounds of 15 problems are true of a schedule that is the best."""
    for seed in range(15 * part, 15 * part + 15):
        assert family_lanes.attack(5000 + seed)[1] == [], seed


# --- windows


def energy_of_window(side, window):
    """Return the most energy in a window by trying all devices and orders of all ops that may run
    in it: earlier is never worse.
    """
    r, head = side.relaxation, side.head
    edges = list(
        zip(
            side.source.tolist(), side.target.tolist(), r.pay.tolist(), r.free.tolist(), strict=True
        )
    )
    n, devices = r.num_ops, range(len(r.class_of))
    best = 0
    for places in product([None, *devices], repeat=n):
        if any(d is not None and r.compute[v, r.class_of[d]] < 0 for v, d in enumerate(places)):
            continue
        if any(places[v] is not None and places[u] is None for u, v, _, _ in edges):
            continue
        running = [v for v in range(n) if places[v] is not None]
        for order in permutations(running):
            value = _energy_of(side, window, places, order, edges, head)
            best = max(best, value)
    return best


def _energy_of(side, window, places, order, edges, head):
    r = side.relaxation
    end, idle, total = {}, {}, 0
    for v in order:
        d = places[v]
        c = r.class_of[d]
        begin = max(int(head[v, c]), idle.get(d, 0))
        for u, w, pay, free in edges:
            if w != v:
                continue
            if u not in end or (places[u] != d and pay >= INFINITE):
                return 0
            begin = max(begin, end[u] + (free if places[u] == d else max(free, pay)))
        end[v] = idle[d] = begin + int(r.compute[v, c])
        if begin >= window:
            return 0
        total += min(int(side.energy[v]), int(side.weights[c]) * (window - begin))
    return total


def sides(seed, most=3):
    """Yield (rng, Fronts, window) of a drawn problem in both directions."""
    rng, lanes, problem = lanes_of(seed, most)
    whole = Analysis(problem, seconds=3600.0)
    weights = np.array([rng.randint(1, 3) for _ in whole.relaxation.class_size])
    for backwards in (False, True):
        head = whole.heads.tail if backwards else whole.heads.head
        side = Fronts(whole.relaxation, head, weights, backwards=backwards, num_workers=1)
        yield rng, side, rng.randint(1, lanes.best)


@pytest.mark.parametrize("part", range(3))
def test_a_window_holds_what_all_orders_say(part):
    """The energy of a window is that of the best of all devices and orders, and known to be."""
    for seed in range(8 * part, 8 * part + 8):
        for _, side, window in sides(seed):
            side.extend(window, 60.0)
            true = energy_of_window(side, window)
            assert side.most[window] == min(true, window * side.width), seed
            assert side.solved == window, seed


def front_of(compute, edges=()):
    """Return the forward front of a problem, with weights of one, and its relaxation."""
    whole = Analysis(PlacementProblem.from_edges(compute, list(edges)), seconds=3600.0)
    weights = np.ones(len(whole.relaxation.class_size), np.int64)
    head = whole.heads.head
    return Fronts(whole.relaxation, head, weights, backwards=False, num_workers=1)


@pytest.mark.parametrize(
    ("compute", "window", "energy"),
    [
        ([[5, 5]] * 7, 3, 6),  # most of the ops wait
        ([[5, 5]] * 7, 8, 16),
        ([[2, 2, -1]] * 2 + [[-1, -1, 9]] * 6, 4, 8),  # each op on a class of its own
        ([[3, 3, 1]] * 4 + [[3, -1, -1]] * 2, 2, 5),  # one tick of each op that runs on the last
        ([[9, 9, 4, 4]] * 12, 4, 16),
        ([[5, -1]] * 2, 5, 5),  # the second device can run neither
    ],
)
def test_the_energy_of_many_ops_by_hand(compute, window, energy):
    """Every device works all the time, and no op works elsewhere than it can."""
    side = front_of(compute)
    side.extend(window, 60.0)
    assert (side.most[window], side.solved) == (energy, window)


def test_a_window_that_is_not_looked_into_keeps_what_is_known():
    """Without an answer of CP-SAT nothing is reached, and the bound stays."""
    model = FrontModel(front_of([[5, 5]] * 3), [0, 1, 2], 4, 7)
    for status in (cp_model.UNKNOWN, cp_model.MODEL_INVALID, cp_model.INFEASIBLE):
        with mock.patch.object(front, "solve_interruptibly", lambda *given, s=status: s):
            assert model.maximum(1.0) == (0, 7)
            assert model.reaches(3, 1.0) is (False if status == cp_model.INFEASIBLE else None)


def test_questions_alone_find_the_energy():
    """Where the first look at the maximum finds nothing, bisection does, and says so."""
    for seed in range(6):
        for _, side, window in sides(seed):

            def nothing(model, seconds):
                return 0, model.known

            with (
                mock.patch.object(FrontModel, "maximum", nothing),
                mock.patch.object(Fronts, "windows", replace(Fronts.windows, close=10**12)),
            ):
                side.extend(window, 60.0)
            assert side.most[window] == min(energy_of_window(side, window), window * side.width)
            assert side.solved == window


def test_energy_beyond_floats_is_not_rounded():
    """An energy of 2^53 + 1 is no smaller in CP-SAT's bound."""
    ticks = 2**33 + 1
    problem = PlacementProblem.from_edges(np.array([[ticks, ticks]]), [])
    whole = Analysis(problem, seconds=3600.0)
    weights = np.full(len(whole.relaxation.class_size), 2**20 + 1)
    side = Fronts(whole.relaxation, whole.heads.head, weights, backwards=False, num_workers=1)
    side.extend(ticks, 60.0)
    energy = ticks * (2**20 + 1)
    assert float(energy) != energy
    assert side.most[ticks] >= energy


def test_fronts_go_on_after_windows_that_stay_open():
    """A round whose windows CP-SAT leaves open is followed by one with more time, without a value
    too.
    """
    _, lanes, problem = lanes_of(3, 6)
    whole = Analysis(problem, seconds=3600.0)
    search = FrontSearch(whole.evidence(lanes.best), num_workers=1)
    search._limit, limits = 0.01, []

    def unknown(solver, model, *given):
        limits.append(search._limit)
        if search._limit > limits[0]:
            raise KeyboardInterrupt
        return cp_model.UNKNOWN

    with (
        mock.patch.object(FrontSearch, "patience", replace(FrontSearch.patience, seconds=0.01)),
        mock.patch.object(front, "solve_interruptibly", unknown),
        pytest.raises(KeyboardInterrupt),
    ):
        search.run(time.perf_counter() + 60.0, lanes.best)
    assert limits[-1] > limits[0]


def test_a_window_knows_every_smaller_one():
    """What CP-SAT does not look into holds no more than any smaller window and all that the devices
    deliver in the ticks between.
    """
    side, rng = front_of([[50, 50]] * 9), random.Random(5)
    with mock.patch.object(Fronts, "_maximum", lambda *given: (given[3], False)):
        for window in rng.sample(range(2, 60), 12):
            side.most[window] = rng.randint(0, window * side.width)
        known = dict(side.most)
        for window in range(1, 70):
            side.extend(window, 60.0)
            below = max(w for w in known if w < window)
            least = known[below] + (window - below) * side.width
            known[window] = min(least, window * side.width, known.get(window, least))
            assert side.most[window] == known[window]


@pytest.mark.parametrize("label", [0, 1, 2**40])
def test_groups_share_a_device_whatever_their_label_is(label):
    """Ops of a label are one cluster from the start, those without a label are their own."""
    problem = PlacementProblem.from_edges(
        [[5, 5]] * 4, [], colocation=[-1, label, -1, label], name="labels"
    )
    clusters = Clusters(Analysis(problem, seconds=3600.0).relaxation, 100)
    assert clusters.cluster[1] == clusters.cluster[3]
    assert len(set(clusters.cluster.tolist())) == 3


def test_a_search_ends_where_a_bound_passes_all_work():
    """One after the other, each op on its slowest device, the work takes 9 + 4 ticks: a bound of a
    tick more says that there is no schedule, and one that meets a known solution ends it, too.
    """
    problem = PlacementProblem.from_edges([[5, 9], [4, 3]], [(0, 1, 0)])
    evidence = Analysis(problem, seconds=3600.0).evidence(0)
    assert evidence.limit == 9 + 4 + 1
    assert replace(evidence, upper=7).limit == 7
    assert replace(evidence, upper=99).limit == 9 + 4 + 1


# --- segments


def least_of_segment(ticks, edges, kinds):
    """Return the least time from the first op to the last one over all devices and orders; `kinds`
    are the devices of each class.
    """
    n, best = len(ticks), 2**62
    kind_of = [c for c, size in enumerate(kinds) for _ in range(size)]
    for places in product(range(len(kind_of)), repeat=n):
        run = [row[kind_of[d]] for row, d in zip(ticks, places, strict=True)]
        if min(run) < 0:
            continue
        for inner in permutations(range(1, n - 1)):
            end, idle = {}, {}
            for v in (0, *inner, n - 1):
                begin = 0
                if run[v]:
                    begin = idle.get(places[v], 0)
                for u, w, free, pay in edges:
                    if w == v:
                        same = places[u] == places[v]
                        gap = free if same else max(free, pay)
                        begin = max(begin, end.get(u, 2**62) + gap)
                end[v] = begin + run[v]
                if run[v]:
                    idle[places[v]] = end[v]
            best = min(best, end[n - 1])
    return best


@pytest.mark.parametrize("part", range(3))
def test_a_segment_takes_what_all_orders_say(part):
    """The least time of a segment is the best of all devices and orders of its ops."""
    for seed in range(10 * part, 10 * part + 10):
        rng = random.Random(seed)
        n, kinds = 5, rng.choice([(2,), (1, 1), (1, 2)])
        ticks = [tuple(rng.randint(0, 9) for _ in kinds) for _ in range(n)]
        ticks[0] = ticks[-1] = (0,) * len(kinds)
        if len(kinds) > 1 and rng.random() < 0.3:
            ticks[2] = (-1, *ticks[2][1:])
        edges = [
            (u, v, *rng.choice([(0, rng.randint(0, 4)), (0, rng.randint(0, 4)), (4, 4)]))
            for u in range(n)
            for v in range(u + 1, n)
            if u == 0 or v == n - 1 or rng.random() < 0.2
        ]
        if rng.random() < 0.2:
            edges[-1] = (*edges[-1][:2], 0, INFINITE)
        model = _Model(ticks, edges, kinds, [])
        assert model.least(float("inf")) == least_of_segment(ticks, edges, kinds), seed


def graphs():
    """Yield (problem, SegmentGraph) of drawn problems of up to ten ops, and of forks."""
    for seed in range(40):
        rng, _, problem = lanes_of(seed, 10)
        yield problem, SegmentGraph(relax(problem), float("inf"))
        fork = compare.problem_of(family_lanes._draw_fork(rng))
        yield fork, SegmentGraph(relax(fork), float("inf"))


def test_segments_keep_the_ticks_of_their_ops():
    """The model of a segment has the times of the ops between on all classes of devices, in their
    order, and the list schedule of a segment takes no less than the best.
    """
    seen = 0
    for problem, graph in graphs():
        if problem.num_devices < 2:
            continue
        for segment in list(graph.small())[:2]:
            if len(segment.between) > 5:
                continue
            model = _model(graph, segment, {})
            assert model.ticks[1:-1] == [graph.ticks[v] for v in segment.between]
            assert {run for end in (0, -1) for run in model.ticks[end]} <= {0, -1}
            seen += 1
            if all(free == 0 and pay < INFINITE for _, _, free, pay in model.edges):
                least = model.least(float("inf"))
                assert graph.listed(segment) >= least
    assert seen > 10


def test_the_nearest_meetings_are_those_of_the_definition():
    """From every fork to the first op after which all of its branches have met, and from the last
    op before every join likewise.
    """
    seen = 0
    for problem, graph in graphs():
        n, place = problem.num_ops, graph.place
        edges = {(u, v) for v in range(n) for u, *_ in graph.before[v]}
        after = {v: {v} for v in range(n)}
        for u in reversed(graph.order):
            for v in range(n):
                if (u, v) in edges:
                    after[u] |= after[v]
        expected = set()
        for v in range(n):
            branches = [w for w in range(n) if (v, w) in edges]
            parents = [u for u in range(n) if (u, v) in edges]
            met = [w for w in range(n) if all(w in after[u] for u in branches)]
            parted = [w for w in range(n) if all(u in after[w] for u in parents)]
            if len(branches) > 1 and met:
                expected.add((v, min(met, key=place.__getitem__)))
            if len(parents) > 1 and parted:
                expected.add((max(parted, key=place.__getitem__), v))
        found = {(s.first, s.last): s for s in graph.nearest(100)}
        assert set(found) == expected
        for (u, v), segment in found.items():
            between = {w for w in range(n) if w in after[u] and v in after[w]} - {u, v}
            assert isinstance(segment, Segment)
            assert set(segment.between) == between
        seen += len(expected)
    assert seen > 20


def between(graph):
    """Return the ops after each op, itself left out, by the edges."""
    after = {v: set() for v in graph.order}
    for v in reversed(graph.order):
        for u, *_ in graph.before[v]:
            after[u] |= after[v] | {v}
    return after


def test_small_segments_are_those_of_the_definition():
    """Two ops with few ops between, at least two, which leave the first and enter the last op by
    two edges or more; larger ones are not looked for.
    """
    seen = dropped = 0
    for most in (2, 3, 5):
        for _, graph in graphs():
            after, expected = between(graph), {}
            for u, v in product(graph.order, repeat=2):
                inside = {w for w in after[u] if v in after[w]}
                out = [w for w, *_ in graph.behind[u] if w in inside or w == v]
                into = [w for w, *_ in graph.before[v] if w in inside or w == u]
                if v in after[u] and len(inside) > 1 and min(len(set(out)), len(set(into))) > 1:
                    expected[u, v] = inside
            with mock.patch.object(SegmentGraph, "limits", Limits(small=most)):
                found = list(graph.small())
            assert {(s.first, s.last): set(s.between) for s in found} == {
                ends: inside for ends, inside in expected.items() if len(inside) <= most
            }
            for segment in found:
                assert list(segment.between) == sorted(segment.between, key=graph.place.__getitem__)
            seen += len(found)
            dropped += len(expected) - len(found)
            for limit in (2, most):
                assert all(len(s.between) <= limit for s in graph.nearest(limit))
            sizes = {len(s.between) for s in graph.nearest(10**9)}
            assert {len(s.between) for s in graph.nearest(most)} == {x for x in sizes if x <= most}
    assert min(seen, dropped) > 20


def listed_by_definition(graph, segment, problem):
    """Return when the last op of a segment can start if each op goes, in order, to the device on
    which it ends first, but no later than all of them in turn on one device.
    """
    allowed = relax(problem).allowed.tolist()
    run = [
        [x if able else INFINITE for x, able in zip(*row, strict=True)]
        for row in zip(problem.compute.tolist(), allowed, strict=True)
    ]
    kinds = sorted(range(problem.num_devices), key=relax(problem).class_of.tolist().__getitem__)
    end, home = {segment.first: 0}, {segment.first: kinds[0]}
    for v in (*segment.between, segment.last):
        best = None
        for d in kinds:
            idle = max((end[u] for u in end if home[u] == d and u != segment.first), default=0)
            start = 0 if v == segment.last else idle
            for u, free, pay, _ in graph.before[v]:
                if u in end:
                    start = max(start, end[u] + (free if home[u] == d else max(free, pay)))
            ends = start if v == segment.last else start + run[v][d]
            ends = min(ends, INFINITE) if run[v][d] < INFINITE else INFINITE
            if best is None or ends < best[0]:
                best = ends, d
        end[v], home[v] = best
    inside = [run[v] for v in segment.between]
    able = [sum(times) for times in zip(*inside, strict=True) if max(times) < INFINITE]
    slowest = sum(max(x for x in row if x < INFINITE) for row in inside)
    return min(end[segment.last], min(able, default=slowest))


def test_segments_that_are_worth_while_could_pass_what_is_known():
    """Those that a path through them, as long as all segments together allow, takes beyond it."""
    kept = left = 0
    for problem, graph in graphs():
        if problem.num_devices < 2:
            continue
        rng, segments = random.Random(problem.num_ops), list(graph.small())
        for segment in segments:
            assert graph.listed(segment) == listed_by_definition(graph, segment, problem)
        ticks = {s: rng.randint(0, 20) for s in segments}
        for v in graph.order:
            graph.before[v] = [(u, rng.choice([0, 0, 4]), *more) for u, _, *more in graph.before[v]]
        head, tail = ([rng.choice([0, 0, 9]) for _ in graph.order] for _ in range(2))
        heads = SimpleNamespace(minima=lambda head=head, tail=tail: (head, tail))
        steps = [(u, v, free) for v in graph.order for u, free, *_ in graph.before[v]]
        steps += [(s.first, s.last, ticks[s]) for s in segments]

        @cache
        def begin(v, head=head, steps=steps, run=graph.fastest):
            return max([head[v], *(begin(u) + run[u] + x for u, w, x in steps if w == v)])

        @cache
        def rest(v, tail=tail, steps=steps, run=graph.fastest):
            return max([tail[v], *(x + run[w] + rest(w) for u, w, x in steps if u == v)])

        run = graph.fastest
        through = {
            s: begin(s.first) + run[s.first] + ticks[s] + run[s.last] + rest(s.last)
            for s in segments
        }
        for known in {*through.values(), 0}:
            found = graph.worthwhile(segments, heads, known, ticks.__getitem__)
            assert found == sorted(
                (s for s in segments if through[s] > known), key=lambda s: len(s.between)
            )
            kept += len(found)
            left += len(segments) - len(found)
    assert min(kept, left) > 20


def test_where_no_segments_are_looked_for():
    """On one device, of too many ops, and of more ticks than CP-SAT is asked to add."""

    def stub(ops, devices, ticks):
        return SimpleNamespace(
            num_ops=ops,
            problem=SimpleNamespace(num_devices=devices),
            min_compute=np.array([ticks // 2, ticks - ticks // 2]),
        )

    most = segment_graph.MOST_TICKS
    assert not segment_graph.too_large(stub(50, 2, most), most_ops=50)
    for asked in ((51, 2, most), (50, 1, most), (50, 2, most + 1)):
        assert segment_graph.too_large(stub(*asked), most_ops=50)


# --- the cheapest version of a problem


def costs_by_definition(problem, allowed, u, v, tensors):
    """Return (pay, whether one device can hold both) of two ops: the cheapest link of two devices
    that are allowed, for the dearest tensor.
    """
    devices = range(problem.num_devices)
    group = problem.colocation
    if group[u] >= 0 and group[u] == group[v]:
        return INFINITE, True
    links = {
        int(problem.link_class[a, b])
        for a in devices
        for b in devices
        if a != b and allowed[u, a] and allowed[v, b]
    }
    pay = max(min((int(problem.transfer[t, c]) for c in links), default=INFINITE) for t in tensors)
    size = int(problem.resident[u] + problem.resident[v])
    both = [d for d in devices if allowed[u, d] and allowed[v, d]]
    return pay, any(size <= int(problem.capacity[d]) for d in both)


def test_edges_cost_what_the_definition_says():
    """Each pair of ops pays the cheapest link of its devices, merged classes the cheapest of all,
    and shares a device if one is allowed and holds both.
    """
    from case import draw

    seen = 0
    for seed in range(150):
        case = draw(random.Random(seed), "makespan")
        try:
            problem = compare.problem_of(case)
        except ValueError:
            continue
        found = relax(problem)
        pairs = zip(
            found.source.tolist(),
            found.target.tolist(),
            found.free.tolist(),
            found.pay.tolist(),
            strict=True,
        )
        for u, v, free, pay in pairs:
            tensors = [t for t, p in enumerate(case.producer) if p == u and v in case.consumers[t]]
            expected, share = costs_by_definition(problem, found.allowed, u, v, tensors)
            assert pay == expected, seed
            assert free == (0 if share or expected >= INFINITE else expected), seed
            seen += not share
        merged = relax(problem, merged=True)
        together = problem.colocation
        for u, v, pay in zip(merged.source, merged.target, merged.pay, strict=True):
            if together[u] >= 0 and together[u] == together[v]:
                assert pay == INFINITE
            else:
                tensors = [
                    t for t, p in enumerate(case.producer) if p == u and v in case.consumers[t]
                ]
                assert pay in {int(problem.min_transfer[t]) for t in tensors}, seed
        rows = sorted(
            (int(u), int(v), int(pay))
            for u, v, pay in zip(merged.source, merged.target, merged.pay, strict=True)
            if pay < INFINITE
        )
        assert rows == sorted(
            (u, v, int(problem.min_transfer[t]))
            for t, u in enumerate(case.producer)
            for v in case.consumers[t]
            if together[u] < 0 or together[u] != together[v]
        ), seed
    assert seen > 3


# --- sums


def test_the_smallest_ends_of_all_sets():
    """The kernel's bound is the best over all pairs of a least head and a number of ops by falling
    tail.
    """
    rng = np.random.default_rng(5)
    for _ in range(60):
        n, k = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        head, tail, fastest = (rng.integers(0, 20, n) for _ in range(3))
        order = np.argsort(-tail, kind="stable")
        best = 0
        for a in head:
            chosen = []
            for v in order:
                if head[v] < a:
                    continue
                chosen.append(v)
                heads = sorted(int(head[w]) for w in chosen)
                tails = sorted(int(tail[w]) for w in chosen)
                total = sum(int(fastest[w]) for w in chosen)
                value = min(
                    -(-(sum(heads[:j]) + sum(tails[:j]) + total) // j)
                    for j in range(1, min(len(chosen), k) + 1)
                )
                best = max(best, value)
        assert _smallest_ends(head, tail, fastest, order, np.unique(head), np.int64(k)) == best


def test_weighted_loads_are_whole_numbers():
    """The load by weights adds integers, however large, to the last tick."""
    rng = random.Random(1)
    problem = PlacementProblem.from_edges(np.array([[1, 2], [2, 1]]), [])
    relaxation = relax(problem)
    for _ in range(50):
        compute = np.array(
            [
                [rng.choice([-1, 2**50 - 1 - rng.randrange(1000)]), 2**49 + rng.randrange(999)]
                for _ in range(5)
            ]
        )
        weights = np.array([rng.randint(1, 1024), rng.randint(1, 1024)])
        total = sum(
            min(int(x) * int(w) for x, w in zip(row, weights, strict=True) if x >= 0)
            for row in compute
        )
        width = int((relaxation.class_size * weights).sum())
        assert _weighted(compute, weights, relaxation) == -(-total // width)
