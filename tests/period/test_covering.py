"""The bound `columns` by the frontier's graph: sets, dearest sets and refutations against brute
force and known values.
"""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.period.bounds.covering import (
    CoverBound,
    _shares,
    cover_bound,
    knapsack,
    paying_types,
)
from placeopt.period.bounds.prices import column_bound
from placeopt.period.bounds.set_prices import Frontier, Labelling, OutOfTimeError, SetPricer
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_loads

pytestmark = pytest.mark.jit


def pricer_of(model, seconds=60.0):
    """Return the type that is examined, and what prices its sets."""
    g, deadline = paying_types(model)[0], time.perf_counter() + seconds
    graph = Frontier.of(model, [g]).graphs(deadline)[g]
    return g, SetPricer(graph, model.largest_load, deadline)


def subsets(model):
    """Every set of nodes."""
    return [np.array(flags, dtype=bool) for flags in product((False, True), repeat=model.num_nodes)]


def models(seeds, n=7):
    """Contracted random problems that have a type that pays."""
    found = []
    for seed in seeds:
        problem = problems.random_problem(seed, contiguity="none", n=n, training=seed % 3 == 2)
        model = contract(problem)
        if paying_types(model) and model.num_nodes > 1:
            found.append(model)
    return found


def test_a_path_is_as_long_as_the_load():
    """The path of a set through the graph is as long as the evaluator's load of a device that holds
    it.
    """
    checked = 0
    for model in models(range(10)):
        g, pricer = pricer_of(model)
        device, other = model.types[g][0], (model.types[g][0] + 1) % model.problem.num_devices
        for members in subsets(model):
            if not model.allowed[members, g].all():
                continue
            home = model.expand(np.where(members, device, other))
            if (model.problem.compute[np.arange(model.problem.num_ops), home] < 0).any():
                continue
            assert pricer.load(members) == period_loads(model.problem, home)[:, device].sum()
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("bits", [(8, 10), (1, 2)])
def test_dearest_sets_are_found_or_refuted(monkeypatch, bits, part):
    """With fine and with coarse buckets: a set is dear enough and within the limit, and "none" is
    true.
    """
    proof = (2, 3, 16) if bits[0] == 1 else (10, 16)
    monkeypatch.setattr(SetPricer, "labelling", Labelling(search_bits=bits, proof_bits=proof))
    rng, answers = np.random.default_rng(part), []
    for model in models(range(4 * part, 4 * part + 4)):
        g, pricer = pricer_of(model)
        every = subsets(model)
        loads = np.array([pricer.load(members) for members in every])
        for _ in range(4):
            price = rng.integers(0, 1000, model.num_nodes)
            usable = model.allowed[:, g] & (rng.random(model.num_nodes) < 0.9)
            limit = int(rng.integers(1, max(2, loads.max())))
            worth = np.array(
                [price[members].sum() if usable[members].all() else -1 for members in every]
            )
            best = int(worth[loads <= limit].max())
            for least in (max(1, best // 2), max(1, best), best + 1):
                found = pricer.dearest(price, usable, limit, least)
                answers.append(found is None)
                assert (found is None) == (best < least)
                if found is not None:
                    assert pricer.load(found) <= limit
                    assert usable[found].all()
                    assert price[found].sum() >= least
    assert 10 < sum(answers) < len(answers) - 10


def test_shares_on_other_devices_are_worth_at_least_sets():
    """The knapsack's bound is at least the price of every set that the devices of another type hold
    together.
    """
    rng = np.random.default_rng(1)
    for model in models(range(12)):
        for h in range(model.num_types):
            price = rng.integers(0, 1000, model.num_nodes)
            for limit in (3, 9, 20):
                usable = model.allowed[:, h] & (model.total[:, h] <= limit)
                room = limit * len(model.types[h])
                best = max(
                    int(price[s].sum())
                    for s in subsets(model)
                    if usable[s].all() and model.total[s, h].sum() <= room
                )
                assert knapsack(model, h, price, limit) >= best


@pytest.mark.parametrize("part", range(10))
def test_bounds_hold_and_often_close(part):
    """No bound is above the best period of all placements, whatever is known of it; many reach
    it.
    """
    closed = tried = 0
    for seed in range(6 * part, 6 * part + 6):
        problem = problems.random_problem(
            seed,
            contiguity="none",
            pipeline=("1f1b", "gpipe")[seed % 2],
            training=seed % 3 == 0,
            n=6,
        )
        best = problems.best_period(problem)
        if best is None:
            continue
        for upper in (None, best, best + 2, 2 * best + 1):
            cover = cover_bound(
                contract(problem, contiguity="none", limit=upper), time.perf_counter() + 20
            )
            if cover is None:
                continue
            found = cover.raise_from(0, best + 50 if upper is None else upper)
            assert found <= best
            tried += 1
            closed += found == best
    assert tried > 5
    assert closed > 0


def test_wide_graphs_prove_less_and_never_too_much(monkeypatch):
    """However few states there may be, no bound is above the best period; wider graphs prove more,
    and in the end as much as those of all sets.
    """
    less = 0
    for seed in range(24):
        contiguity = ("none", "convex")[seed % 2]
        problem = problems.random_problem(seed, contiguity=contiguity, training=seed % 3 == 0, n=6)
        best, model = problems.best_period(problem), contract(problem)
        if best is None or cover_bound(model, time.perf_counter() + 60) is None:
            continue
        whole, bounds = cover_bound(model, time.perf_counter() + 60).raise_from(0, best + 3), []
        for most in (1, 30, 1 << 20):
            with monkeypatch.context() as small:
                for name, value in (("most_width", 0), ("first_width", 1), ("most_relaxed", most)):
                    small.setattr(Frontier, name, value)
                cover = cover_bound(model, time.perf_counter() + 60)
                bounds.append(cover.raise_from(0, best + 3))
                assert not cover.exact or most > 1 or len(cover.pricer.graph.order) < 2
        assert bounds == sorted(bounds), seed
        assert max(*bounds, whole) <= best, seed
        assert bounds[-1] >= whole - 1, seed  # a tick may be left open
        less += bounds[0] < whole
    assert less > 10


def test_sets_of_every_type_are_priced():
    """Where two types pay transfers, their sets together prove more than those of one with shares
    on the other, and never too much.
    """
    more = tried = 0
    for seed in range(40):
        problem = problems.random_problem(seed, contiguity="none", n=6)
        best, model = problems.best_period(problem), contract(problem, contiguity="none")
        if best is None or len(paying_types(model)) < 2 or model.num_nodes < 2:
            continue
        every = cover_bound(model, time.perf_counter() + 60)
        one = CoverBound(model, Frontier.of(model, [every.g]), time.perf_counter() + 60)
        found = [cover.raise_from(0, best + 3) for cover in (one, every)]
        assert max(found) <= best, seed
        more += found[0] < found[1]
        tried += 1
    assert tried > 5
    assert more > 3


def test_shares_of_what_is_to_be_held_add_up():
    """Whatever the weights, and in order of the types."""
    for pay, weight in (
        (10, {0: 1.0, 2: 3.0}),
        (7, {1: 0.0, 0: 0.0}),
        (2**45, {0: 1e-9, 1: 1.0, 2: 5.5}),
        (1, {0: 0.3, 1: 0.3}),
        (0, {0: 1.0, 1: 1.0}),
    ):
        shares = _shares(pay, weight)
        assert sum(shares.values()) == pay
        assert min(shares.values()) >= 0
        total = sum(weight.values())
        for g, w in weight.items():
            assert total == 0 or abs(shares[g] - pay * w / total) <= len(weight)


def test_the_deadline_ends_everything():
    """After the deadline there is no graph, no set and no bound above what was known."""
    model = models(range(3))[0]
    _, pricer = pricer_of(model)
    pricer.deadline = 0.0
    with pytest.raises(OutOfTimeError):
        pricer.dearest(
            np.ones(model.num_nodes, dtype=np.int64), np.ones(model.num_nodes, dtype=bool), 5, 1
        )
    assert cover_bound(model, 0.0) is None
    cover = cover_bound(model, time.perf_counter() + 600)
    cover.give_until(0.0)
    assert cover.raise_from(1, 100) == 1
    assert cover.unfinished
    cover.give_until(time.perf_counter() + 600)
    cover.raise_from(1, 100)
    assert not cover.unfinished


@pytest.mark.parametrize(
    ("name", "best"),
    [("operator_bert_l-12_inference", 130_038_089), ("operator_resnet50_inference", 124_348_850)],
)
def test_splits_of_operator_graphs_are_proved(data, name, best):
    """The best known split is proved to the tick, and a tick above it is not refuted."""
    problem = po.load(
        data / "dnn-partitioning/throughput" / f"{name}.json", objective="period", contiguity="none"
    )
    assert column_bound(problem, 0, best, 60.0) == best
    if "resnet" in name:
        assert column_bound(problem, 0, best + 1, 60.0) <= best
