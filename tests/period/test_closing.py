"""Closing the period's gap: lists of near sets, disjoint sets and the closing itself against brute
force and a known value.
"""

from __future__ import annotations

import time
from itertools import combinations, product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model.problem import PlacementProblem
from placeopt.period.bounds import closing
from placeopt.period.bounds.closing import (
    Choice,
    Closing,
    Listing,
    PriceSearch,
    can_close,
    disjoint_sets,
)
from placeopt.period.bounds.covering import cover_bound, paying_types
from placeopt.period.bounds.set_prices import OutOfTimeError, UndecidedError
from placeopt.period.bounds.set_tables import Room, SetTables
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch

pytestmark = pytest.mark.jit


def covers(seeds, n=6, **fields):
    """(problem, cover) of random problems whose gap can be closed."""
    found = []
    for seed in seeds:
        problem = problems.random_problem(seed, contiguity="none", n=n, **fields)
        cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + 60)
        if cover is not None and can_close(cover):
            found.append((problem, cover))
    return found


def subsets(model):
    """Every set of nodes."""
    return [np.array(flags, dtype=bool) for flags in product((False, True), repeat=model.num_nodes)]


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("bits", [(20, 20), (1, 1), (1, 2, 3, 20)])
def test_near_sets_are_listed(monkeypatch, bits, part):
    """Whatever the buckets, every set within the limit that is dear enough is listed once, and no
    other.
    """
    monkeypatch.setattr(SetTables, "room", Room(bucket_bits=bits))
    rng, listed = np.random.default_rng(part), 0
    for _, cover in covers(range(5 * part, 5 * part + 5)):
        model, g = cover.model, paying_types(cover.model)[0]
        tables = SetTables(cover.pricer.graph, time.perf_counter() + 60)
        every = subsets(model)
        loads = np.array([cover.pricer.load(members) for members in every])
        for _ in range(4):
            price = rng.integers(0, 1000, model.num_nodes)
            usable = model.allowed[:, g] & (rng.random(model.num_nodes) < 0.9)
            limit = int(rng.integers(1, max(2, loads.max())))
            worth = np.array([price[s].sum() if usable[s].all() else -1 for s in every])
            best = int(worth[loads <= limit].max())
            for least in (max(1, best // 2), max(1, best), best + 1):
                wanted = {
                    every[i].tobytes() for i in np.flatnonzero((loads <= limit) & (worth >= least))
                }
                some = tables.prepare(price, usable, limit, least)
                near = tables.near(least, 1 << 10)
                assert {row.tobytes() for row in near.members(model.num_nodes)} == wanted
                assert len(near.price) == len(wanted)
                assert some or not wanted
                assert tables.dearest() == (best if wanted else least - 1)
                listed += len(wanted)
            assert tables.prepare(price, usable, limit, 1, near=0.2, dear=best // 3) == (best > 0)
            assert tables.dearest() == best
    assert listed > 30


def test_too_many_sets_and_labels_are_said(monkeypatch):
    """A list that has no room is no list, and tables without room are no tables."""
    _, cover = covers(range(12))[-1]
    model = cover.model
    tables = SetTables(cover.pricer.graph, time.perf_counter() + 60)
    ones, usable = np.ones(model.num_nodes, dtype=np.int64), model.allowed[:, cover.g]
    assert tables.prepare(ones, usable, model.largest_load, 1)
    number = len(tables.near(1, 1 << 10).price)
    assert tables.near(1, number - 1) is None
    assert len(tables.some(1, number - 1).price) == number - 1
    tables.deadline = 0.0
    with pytest.raises(OutOfTimeError):
        tables.prepare(ones, usable, model.largest_load, 1)
    monkeypatch.setattr(SetTables, "room", Room(labels=1, most_labels=1))
    with pytest.raises(UndecidedError):
        SetTables(cover.pricer.graph, time.perf_counter() + 60).prepare(
            ones, usable, model.largest_load, 1
        )


def answers(sets, excess, ticks, cost, devices, budget, room):
    """Families of at most `devices` disjoint sets that leave nothing but a rest that fits, by
    trying all.
    """
    found = set()
    for number in range(devices + 1):
        for family in combinations(range(len(sets)), number):
            count = sets[list(family)].sum(axis=0) if family else np.zeros(len(ticks), dtype=int)
            rest = count == 0
            spent = sum(int(excess[i]) for i in family) + int(cost[rest].sum())
            if count.max(initial=0) <= 1 and int(ticks[rest].sum()) <= room and spent <= budget:
                found.add(family)
    return found


def test_disjoint_sets_are_all_found():
    """Exactly the families that trying all finds, with a rest and without."""
    rng, total, none = np.random.default_rng(2), 0, 0
    for _ in range(150):
        nodes, number, devices = (
            int(rng.integers(3, 8)),
            int(rng.integers(1, 12)),
            int(rng.integers(1, 4)),
        )
        sets = rng.random((number, nodes)) < 0.4
        sets = (
            np.unique(sets[sets.any(axis=1)], axis=0) if sets.any() else np.eye(nodes, dtype=bool)
        )
        excess = np.sort(rng.integers(0, 5, len(sets)))
        ticks, cost = rng.integers(0, 4, nodes), rng.integers(0, 3, nodes)
        budget, room = int(rng.integers(0, 12)), int(rng.integers(-1, 8))
        ticks = np.where(rng.random(nodes) < 0.2, 1 << 62, ticks)
        bits = (sets.astype(np.uint64) << np.arange(nodes, dtype=np.uint64)).sum(
            axis=1, dtype=np.uint64
        )[:, None]
        found = [
            tuple(sorted(rows.tolist()))
            for rows in disjoint_sets(
                Choice(bits, excess, ticks, cost), devices, budget, room, time.perf_counter() + 60
            )
        ]
        small = np.where(ticks > 100, 100, ticks)
        expected = (
            answers(sets, excess, small, cost, devices, budget, room)
            if room >= 0
            else {
                family
                for family in answers(sets, excess, small * 0 + 1, cost * 0, devices, budget, 0)
            }
        )
        assert set(found) == expected
        assert len(found) == len(expected)
        total, none = total + len(expected), none + (not expected)
    assert total > 100
    assert none > 20


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("room", [1 << 20, 40, 30])
def test_best_prices_bound_every_set(monkeypatch, room, part):
    """No set within the limit is dearer than said, and a negative slack refutes it, even with
    little room for labels.
    """
    monkeypatch.setattr(SetTables, "room", Room(labels=room, most_labels=room))
    refuted = 0
    for problem, cover in covers(range(5 * part, 5 * part + 5)):
        best, search = (
            problems.best_period(problem),
            PriceSearch(cover, SetTables(cover.pricer.graph, 0.0)),
        )
        for limit in range(max(1, (best or 5) - 4), (best or 5) + 3):
            try:
                found = search.best(limit, time.perf_counter() + 60)
            except UndecidedError:
                assert room < 100
                continue
            usable = search.cover.usable(limit, search.cover.g)
            dearest = max(
                int(found.price[s].sum())
                for s in subsets(cover.model)
                if usable[s].all() and cover.pricer.load(s) <= limit
            )
            assert dearest <= found.most
            refuted += found.slack < 0
            assert found.slack >= 0 or best is None or limit < best
    assert refuted > 1 or room < 100


def closed_gaps(seeds, training):
    """Close the gap of random problems; return how often bound and value met, and how often it was
    tried.
    """
    closed = tried = 0
    for problem, cover in covers(seeds, training=training):
        best = problems.best_period(problem)
        if best is None:
            continue
        for start in (best, best + 1, best + 9):
            value, found = [start], []

            def offer(node_device, value=value, found=found, problem=problem, cover=cover):
                ticks = int(period_batch(problem, cover.model.expand(node_device)[None])[0])
                found.append(ticks)
                value[0] = min(value[0], ticks)

            whole = Closing(cover, lambda value=value: value[0], offer)
            bound = whole.raise_from(0, 60.0)
            assert bound <= best <= value[0]
            assert not whole.unfinished
            assert Closing(cover, lambda value=value: value[0], offer).unfinished
            assert all(ticks < start for ticks in found)
            tried += 1
            closed += bound == value[0]
    return closed, tried


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("training", [False, True])
def test_closing_ends_at_the_best_period(training, part):
    """Bound and value meet at the best period of all placements."""
    closed, tried = closed_gaps(range(5 * part, 5 * part + 5), training)
    assert closed == tried > 2


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("training", [False, True])
def test_short_lists_prove_less(monkeypatch, most, training):
    """With short lists the bound is below the best period, never above."""
    monkeypatch.setattr(Closing, "listing", Listing(most_sets=most))
    closed, tried = closed_gaps(range(40), training)
    assert tried > 30
    assert 0 < closed < tried


def test_sets_that_fill_no_memory_are_accepted():
    """A placement of sets is offered where it fits, the nodes in none of them on the other type,
    and said to be within a limit where its loads are.
    """
    rng, seen = np.random.default_rng(3), []
    for problem, cover in covers(range(40), n=5):
        model = cover.model
        types = model.types[cover.g]
        others = [d for d in range(problem.num_devices) if d not in types]
        for _ in range(12):
            held = rng.integers(0, len(types) + len(others[:1]), model.num_nodes)
            device = np.array([(*types, *others)[d] for d in held])
            ticks, offered = int(period_batch(problem, model.expand(device)[None])[0]), []
            if not model.allowed[np.arange(len(held)), model.type_of[device]].all():
                continue
            used = [int(model.resident[device == d].sum()) for d in range(problem.num_devices)]
            fits = all(x <= int(y) for x, y in zip(used, problem.capacity, strict=True))
            members = np.array([held == d for d in range(len(types))])
            for limit in (ticks - 1, ticks):
                whole = Closing(cover, lambda: 1 << 60, offered.append)
                assert whole._accept(members, limit) == (fits and limit >= ticks)
                assert whole._best == (ticks if fits else closing._NEVER)
            assert [x.tolist() for x in offered] == [device.tolist()] * (2 * fits)
            seen.append(fits)
    assert 10 < sum(seen) < len(seen)


def test_others_are_not_closed():
    """Neither two devices without transfers, nor a second type that pays, nor two passes."""
    kinds = [
        problems.random_problem(seed, contiguity="none", pipeline="gpipe", training=True)
        for seed in range(8)
    ]
    kinds += [problems.random_problem(seed, contiguity="none") for seed in range(12)]
    for problem in kinds:
        cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + 60)
        if cover is not None and can_close(cover):
            assert not cover.model.two_pass
            assert len(cover.model.types[cover.g]) >= problem.num_devices - 1


@pytest.mark.slow
def test_layers_of_resnet50_are_closed(data):
    """The best split is found and proved to the tick, from a bad one."""
    path = data / "dnn-partitioning/throughput/layer_resnet50_inference.json"
    problem = po.load(path, objective="period", contiguity="none")
    cover = cover_bound(
        contract(problem, contiguity="none", limit=33_400_000), time.perf_counter() + 60
    )
    value = [33_300_000]

    def offer(node_device):
        value[0] = min(
            value[0], int(period_batch(problem, cover.model.expand(node_device)[None])[0])
        )

    assert (
        Closing(cover, lambda: value[0], offer).raise_from(33_025_000, 300.0)
        == value[0]
        == 33_222_220
    )


def free_somewhere(compute, tensors, **fields):
    """A period without contiguity; a tensor is (producer, consumer, ticks of every device)."""
    return PlacementProblem(
        name="free",
        compute=np.array(compute),
        producer=np.array([u for u, _, _ in tensors], dtype=np.int64),
        consumer_ptr=np.arange(len(tensors) + 1),
        consumer=np.array([v for _, v, _ in tensors], dtype=np.int64),
        transfer=np.array([ticks for _, _, ticks in tensors]).reshape(-1, len(compute[0])),
        io_class=np.arange(len(compute[0])),
        objective="period",
        contiguity="none",
        **fields,
    )


def test_closing_where_no_set_is_worth_anything():
    """No op fits the examined type below the value: closing ends, and says no more than it."""
    problem = free_somewhere([[443, 320], [472, 0]], [(0, 1, [196, 0])])
    cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + 60)
    best = min(int(x) for x in period_batch(problem, np.array(list(product((0, 1), repeat=2)))))
    assert best == 320
    assert Closing(cover, lambda: best + 1, lambda device: None).raise_from(52, 60.0) <= best


def test_closing_where_no_price_is_worth_anything():
    """Nothing takes time anywhere, and a device holds one op: prices leave memory out and are all 0,
    closing lists every set.
    """
    problem = PlacementProblem.from_edges(
        [[0, 0, 0, 0]] * 3,
        [(0, 1, 100), (1, 2, 100)],
        objective="period",
        contiguity="none",
        io_class=[0, 0, 0, -1],
        resident=[1, 1, 1],
        capacity=[1, 1, 1, 1],
    )
    cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + 60)
    assert cover.raise_from(0, 101) == 0
    assert Closing(cover, lambda: 101, lambda device: None).raise_from(0, 60.0) == 100
