"""Parts of a graph that come one after the other: where they are, and that what they need is never
too much.
"""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
from exact_instances import brute_force, doppler
from ortools.sat.python import cp_model
from random_problems import random_problem

import placeopt as po
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.series import (
    Place,
    heads_in_series,
    part_problem,
    placement_in_series,
    series_parts,
)
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact import makespan_tactics
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_model import MakespanModel
from placeopt.solvers.exact.makespan_tactics import PROVERS, MakespanFacts
from placeopt.solving.scheduler import Lane
from placeopt.solving.tracker import Tracker


def in_series(rng, sizes, num_devices):
    """Return random parts, each of whose ops feeds those of the next, with ops numbered at
    random.
    """
    n = sum(sizes)
    part = np.repeat(np.arange(len(sizes)), sizes)
    name = rng.permutation(n)
    edges = []
    for u in range(n):
        for v in range(u + 1, n):
            if part[v] == part[u] + 1 or (part[u] == part[v] and rng.random() < 0.3):
                edges.append((int(name[u]), int(name[v]), int(rng.integers(0, 6))))
    compute = rng.integers(1, 7, (n, num_devices))
    if rng.random() < 0.5:
        compute[:] = compute[:, :1]
    elif rng.random() < 0.5:
        compute[rng.integers(0, n), 0] = -1
    return PlacementProblem.from_edges(compute, edges)


def cuts_by_definition(problem):
    """Return the sets of first ops all of which come before all others."""
    n = problem.num_ops
    before = [set() for _ in range(n)]
    for v in problem.topological_order.tolist():
        for t, w in zip(problem.edge_tensor.tolist(), problem.consumer.tolist(), strict=True):
            if w == v:
                before[v] |= {int(problem.producer[t])} | before[int(problem.producer[t])]
    found = set()
    for v in range(n):
        first = frozenset(before[v])
        if first and all(first <= before[w] for w in range(n) if w not in first):
            found.add(first)
    return found


def test_parts_are_those_of_the_definition():
    """Every cut of random graphs is found, and nothing else is cut."""
    rng, several = np.random.default_rng(3), 0
    for turn in range(120):
        problem = (
            in_series(rng, rng.integers(1, 6, 5).tolist(), 2)
            if turn % 2
            else random_problem(rng, max_devices=3)
        )
        parts = series_parts(Analysis(problem).relaxation)
        if not parts:
            continue
        several += 1
        own = [place.members for place in parts]
        order = np.concatenate(own).tolist()
        assert sorted(order) == list(range(problem.num_ops))
        ends = np.cumsum([len(part) for part in own])[:-1]
        for i, place in enumerate(parts):
            beside = own[max(0, i - 1) : i] + own[i + 1 : i + 2] if len(own[i]) > 1 else []
            gates = [int(part[0]) for part in beside if len(part) == 1]
            assert set(place.ops.tolist()) == {*own[i].tolist(), *gates}
        assert {frozenset(order[:end]) for end in ends} == cuts_by_definition(problem)
    assert several > 40


def test_below_brute_force_and_heads_keep_the_optimum():
    """With what its parts need, by brute force, a problem is not longer than it is, and its heads
    cut off no optimum.
    """
    rng, seen, met, gates = np.random.default_rng(8), 0, 0, 0
    while seen < 24:
        problem = in_series(rng, [3, 3] if seen % 2 else [2, 1, 2], 2)
        analysis = Analysis(problem, seconds=3600.0)
        parts = series_parts(analysis.relaxation, fewest_ops=2)
        if not parts:
            continue
        seen, optimum = seen + 1, brute_force(problem)
        inner = [Analysis(part_problem(problem, place), seconds=3600.0) for place in parts]
        least = [brute_force(part.problem) for part in inner]
        assert sum(least) <= optimum
        bare = [Place(x.members, np.ones(len(x.members), np.bool_)) for x in parts]
        gates += sum(brute_force(part_problem(problem, x)) for x in bare) < sum(least)
        met += sum(least) == optimum
        before = analysis.heads
        analysis.heads = heads_in_series(analysis, parts, inner, least)
        assert ((analysis.heads.head < 0) == (before.head < 0)).all()
        assert (analysis.heads.head >= before.head).all()
        assert (analysis.heads.tail >= before.tail).all()
        model = MakespanModel(analysis, 0, analysis.relaxation.serial)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(model.model) == cp_model.OPTIMAL
        assert solver.objective_value == optimum
    assert min(met, gates) > 0


def test_transfers_of_a_part_share_channels():
    """Where all transfers take one channel, parts need more than without it, and no more together
    than the best of all placements and orders.
    """
    rng, later = np.random.default_rng(2), 0
    for _ in range(6):
        problem = in_series(rng, [1, 3, 1], 2).replace(channel=[[-1, 0], [0, -1]])
        free = problem.replace(channel=np.full((2, 2), -1))
        parts = series_parts(Analysis(problem).relaxation, fewest_ops=1)
        shared, apart = (
            sum(
                po.solve(part_problem(p, place), "cp-sat", seconds=60, num_workers=1).lower_bound
                for place in parts
            )
            for p in (problem, free)
        )
        assert apart <= shared <= brute_force(problem)
        later += apart < shared
    assert later > 0


def test_a_device_that_a_part_could_use_stays_closed():
    """Two ops of one group do not fit on the small device; in a part one of them would, but its
    head stays -1.
    """
    edges = [(u, v, 1) for u in (0, 1, 2) for v in (3, 4, 5)]
    problem = PlacementProblem.from_edges(np.ones((6, 2), dtype=np.int64), edges).replace(
        resident=np.array([1, 0, 0, 1, 0, 0]),
        capacity=np.array([5, 1]),
        colocation=np.array([0, -1, -1, 0, -1, -1]),
    )
    analysis = Analysis(problem)
    parts = series_parts(analysis.relaxation)
    inner = [Analysis(part_problem(problem, place)) for place in parts]
    heads = heads_in_series(analysis, parts, inner, [2, 2])
    assert (heads.head[0] < 0).any()
    assert ((heads.head < 0) == (analysis.heads.head < 0)).all()


def test_devices_that_differ_in_a_part_alone_get_the_least_of_its_heads():
    """Cheap links set a device apart from two others in the first part, but not in the whole, where
    all three are of one class: the head that an op has there on the lone device holds for none.
    """
    near, far = 0, 10
    inner_edges = [(0, 2, near, far), (1, 2, near, far), (4, 6, 2 * far, near), (4, 7, near, near)]
    edges = inner_edges + [(u, v, near, near) for u in range(4) for v in range(4, 8)]
    link_class = np.ones((3, 3), np.int64)
    link_class[1:, 1:] = 0
    problem = PlacementProblem.from_edges(
        np.full((8, 3), 5), [(u, v, 0) for u, v, *_ in edges]
    ).replace(transfer=np.array([ticks for _, _, *ticks in edges]), link_class=link_class)
    analysis = Analysis(problem)
    parts = series_parts(analysis.relaxation)
    inner = [Analysis(part_problem(problem, place)) for place in parts]
    assert [len(part.relaxation.class_size) for part in (analysis, *inner)] == [1, 2, 1]
    heads = heads_in_series(analysis, parts, inner, [10, 10])
    starts = np.array([0, 0, 5, 0, 10, 10, 15, 15])
    schedule = evaluate(problem, po.Placement(np.array([1, 2, 1, 0, 0, 1, 0, 1]), starts))
    assert schedule.makespan == 20
    assert heads.head[2].max() <= schedule.start[2] == 5
    assert heads.through().max() <= schedule.makespan


@pytest.mark.slow
def test_a_block_with_its_two_halves(data):
    """Doppler's Llama block for eight devices is proved half by half, though other tactics take
    turns with the halves; no bound on the whole comes near (1598445363200).
    """
    problem = doppler(data, "llama_block_8gpu", 8)
    parts = series_parts(Analysis(problem).relaxation)
    assert [len(place.members) for place in parts] == [252, 50]
    result = po.solve(problem, "cp-sat", seconds=90, num_workers=1)
    assert result.bound_method == "series"
    assert result.lower_bound >= 1_658_000_000_000
    assert result.gap < 0.001


def series_lane(problem, seconds):
    """Return the lane that has `series` alone, and its tracker."""
    tracker = Tracker("cp-sat", problem, Budget(seconds))
    facts = MakespanFacts(CpSat(num_workers=1), Analysis(problem), tracker)
    return Lane([t for t in PROVERS if t.name == "series"], facts, tracker), tracker


def test_parts_are_gone_on_with():
    """Turn by turn the sum of the parts' bounds rises to that of their optima, and their schedules
    are one of the whole; no part begins anew.
    """
    rng = np.random.default_rng(11)
    problem = in_series(rng, [6, 7, 6], 3)
    lane, tracker = series_lane(problem, 300.0)
    parts = series_parts(Analysis(problem).relaxation)
    optima = []
    for place in parts:
        result = po.solve(part_problem(problem, place), "cp-sat", seconds=60, num_workers=1)
        assert result.status == "optimal"
        optima.append(result.value)
    begun = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            makespan_tactics, "part_problem", lambda *x: begun.append(1) or part_problem(*x)
        )
        lane.run()
    assert len(begun) == len(parts)
    assert tracker.lower_bound <= sum(optima) <= tracker.value
    # it ends when the parts are closed, or can raise the bound no more
    assert tracker.lower_bound == sum(optima) or tracker.stop_reason == "proved"


def stack(modules, branches=5, transfer=3):
    """Return modules of parallel branches of two ops each, on a fast device and a slow one."""
    edges, run, gate = [], [[2, 4]], 0
    for _ in range(modules):
        first = len(run)
        for i in range(branches):
            u = first + 2 * i
            run += [[2 + i, 6], [3, 5 + i]]
            edges += [(gate, u, transfer), (u, u + 1, 1), (u + 1, first + 2 * branches, transfer)]
        gate = len(run)
        run.append([1, 3])
    return PlacementProblem.from_edges(run, edges)


def test_parts_that_look_alike_are_solved_once():
    """A stack of equal modules is proved as fast as one, with what passes at the gates: each module
    needs as much as alone between the same two ops.
    """
    one, many = stack(1), stack(6)
    least = po.solve(one, "cp-sat", seconds=60, num_workers=1)
    assert least.status == "optimal"
    first, last = (int(one.compute[v].min()) for v in (0, -1))
    begun = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            makespan_tactics.Part,
            "__init__",
            lambda self, *x, begin=makespan_tactics.Part.__init__: (
                begun.append(1),
                begin(self, *x),
            )[1],
        )
        lane, tracker = series_lane(many, 300.0)
        lane.run()
    assert len(begun) <= 3  # the first op, the gates and the modules
    middle = least.value - first - last
    assert tracker.lower_bound >= first + 6 * (middle + last)
    assert tracker.lower_bound <= tracker.value


def test_series_end_where_their_values_are_no_more_than_the_bound():
    """What passes between the parts is free in them: where the bound is above their values, which
    are open yet, they are left.
    """
    small = in_series(np.random.default_rng(4), [60, 60], 4)
    apart = series_parts(Analysis(small).relaxation)
    first = np.isin(np.arange(small.num_ops), apart[0].members)
    between = first[small.producer[small.edge_tensor]] & ~first[small.consumer]
    transfer = small.transfer.copy()
    transfer[small.edge_tensor[between]] *= 1000
    problem = small.replace(transfer=transfer)

    def turns(bound):
        lane, tracker = series_lane(problem, 300.0)
        tracker.raise_bound(bound, "given")
        return sum(1 for _ in itertools.islice(lane.work(), 12)), tracker

    enough = int(problem.compute.max(axis=1).sum())  # for the parts
    many, free = turns(1)
    few, bounded = turns(enough)
    assert many == 12
    assert few <= 6  # the bounds and the first schedules of two parts, and what joins them
    assert free.lower_bound < enough < bounded.value


def test_many_parts():
    """Thousands of parts are found, with the tensors inside of each."""
    size, count, rng = 5, 2000, np.random.default_rng(1)
    part, at = np.divmod(np.arange(size * count), size)
    edges = [
        (u, v, int(rng.integers(1, 9)))
        for u in range(size * count)
        for v in range(u + 1, min(size * count, u + size))
        if (at[u], at[v]) in {(4, 0)} or (part[u] == part[v] and (at[u] == 0 or at[v] == 4))
    ]
    problem = PlacementProblem.from_edges(
        np.repeat(rng.integers(1, 9, (len(part), 1)), 3, 1), edges
    )
    parts = series_parts(Analysis(problem).relaxation)
    assert [len(place.members) for place in parts] == [1, 3, 1] * count
    for place in parts[1:60:3]:
        inside = {(u, v, c) for u, v, c in edges if {u, v} <= set(place.ops.tolist())}
        found = part_problem(problem, place)
        ends = place.ops[found.edge_source].tolist(), place.ops[found.consumer].tolist()
        assert set(zip(*ends, found.transfer[found.edge_tensor, 0].tolist(), strict=True)) == inside


def test_bounds_of_parts_come_before_their_schedules(monkeypatch):
    """What the quick bounds of all parts sum up to is known before any part is searched."""
    bounds = []
    lane, tracker = series_lane(stack(6), 300.0)
    start = makespan_tactics.warm_start
    monkeypatch.setattr(
        makespan_tactics,
        "warm_start",
        lambda *x: (bounds.append(tracker.lower_bound), start(*x))[1],
    )
    lane.run()
    assert min(bounds) > 0


def test_series_end_with_the_gap(monkeypatch):
    """Where the parts' first bounds meet the incumbent, nothing is asked of their schedules."""
    edges = [(u, v, 0) for u in range(3) for v in range(3, 6)]
    edges += [(u, v, 0) for u in range(3, 6) for v in range(6, 9)]
    problem = PlacementProblem.from_edges(np.full((9, 3), 2), edges)

    def serial(part, tracker):
        ops = part.num_ops
        tracker.offer(2 * ops, po.Placement([0] * ops, list(range(ops))))

    monkeypatch.setattr(makespan_tactics, "warm_start", serial)
    lane, tracker = series_lane(problem, 300.0)
    tracker.offer(6, po.Placement([0, 1, 2] * 3, list(range(9))))
    lane.run()
    assert tracker.stop_reason == "proved"
    assert tracker.lower_bound == 6


def test_parts_without_a_first_schedule_are_searched(monkeypatch):
    """Where no heuristic finds a schedule of a part, its tactics do."""
    problem = in_series(np.random.default_rng(11), [6, 7, 6], 3)
    monkeypatch.setattr(makespan_tactics, "warm_start", lambda part, tracker: None)
    lane, tracker = series_lane(problem, 300.0)
    lane.run()
    assert tracker.value is not None
    assert tracker.bound_method == "series"
    assert 0 < tracker.lower_bound <= tracker.value


def test_a_part_ends_with_the_whole(data):
    """The search of the parts returns soon after the whole one is interrupted."""
    problem = doppler(data, "llama_block_8gpu", 8)
    lane, whole = series_lane(problem, 600.0)
    thread = threading.Thread(target=lane.run)
    thread.start()
    until = time.monotonic() + 60.0
    while whole.lower_bound == 0 and time.monotonic() < until:
        time.sleep(0.1)
    whole.interrupt()
    thread.join(60.0)
    assert not thread.is_alive()
    assert 0 < whole.lower_bound <= 1_658_648_027_136


@pytest.mark.parametrize("cluster", ["uniform:3", "2xA100+2xV100"])
def test_joined_parts_take_as_long_as_they_do_alone(cluster):
    """Parts that have the gates between them on different but identical devices are renamed, and
    take their sum.
    """
    problem = po.load("gen:fork-join?stages=4&branches=5&ccr=2&seed=2", cluster)
    parts = series_parts(Analysis(problem).relaxation)
    rng = np.random.default_rng(0)
    found, total = [], 0
    for place in parts:
        part = part_problem(problem, place)
        alone = po.solve(part, solver="heft").solution
        to = np.arange(part.num_devices)
        for alike in part.identical_devices:
            to[list(alike)] = rng.permutation(list(alike))
        found.append(po.Placement(to[alone.device], alone.priority))
        total += best_queue(part, found[-1])[0]
    joined = placement_in_series(problem, parts, found)
    assert best_queue(problem, joined)[0] == total
    assert len({tuple(to.device[~place.own]) for to, place in zip(found, parts, strict=True)}) > 2


def test_nothing_to_cut():
    """A chain has parts of one op each, where there is nothing to find."""
    problem = PlacementProblem.from_edges(
        np.ones((5, 2), dtype=np.int64), [(u, u + 1, 1) for u in range(4)]
    )
    analysis = Analysis(problem)
    assert max(analysis.run(name) for name in COMBINATORIAL) == 5
    assert series_parts(analysis.relaxation) == []
