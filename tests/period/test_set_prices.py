"""The dearest sets and what refutes by them, on problems that need no compiled kernels."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.period.bounds.closing import ExactRounds, PriceSearch, can_close
from placeopt.period.bounds.covering import cover_bound, paying_types
from placeopt.period.bounds.set_prices import Frontier, Labelling, OutOfTimeError, SetPricer
from placeopt.period.bounds.set_tables import SetTables
from placeopt.period.contracted import contract

SOON = 600.0


def covers(seeds, n=5):
    """Yield (seed, problem, cover) of random problems that have one."""
    for seed in seeds:
        problem = problems.random_problem(seed, n=n, contiguity="none")
        cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + SOON)
        if cover is not None:
            yield seed, problem, cover


def subsets(model):
    """Every set of nodes."""
    return [np.array(flags, dtype=bool) for flags in product((False, True), repeat=model.num_nodes)]


def is_convex(problem, ops):
    """Whether no path of forward ops leaves a set and comes back."""
    backward = problem.backward
    ways = {
        (u, v)
        for u, ends, _ in problems.tensors(problem)
        for v in ends
        if not backward[u] and not backward[v]
    }
    outside = {v for u, v in ways if u in ops and v not in ops}
    for _ in range(problem.num_ops):
        outside |= {v for u, v in ways if u in outside and v not in ops}
    return not any(u in outside and v in ops for u, v in ways)


def test_orders_are_made_in_small_steps():
    """Ordering the nodes stops within one at the deadline, and is gone on with: where thousands of
    ops read the same tensors a whole order takes a minute.
    """
    model = contract(problems.random_problem(3, n=9, contiguity="none"), contiguity="none")
    g = next(iter(paying_types(model)))
    frontier = Frontier.of(model, [g])
    for _ in range(model.num_nodes):
        with pytest.raises(OutOfTimeError):
            frontier.graphs(0.0)
    at_once = Frontier.of(model, [g])
    assert frontier.graphs(time.perf_counter() + SOON).keys() == {g}
    at_once.graphs(time.perf_counter() + SOON)
    assert frontier.order == at_once.order


@pytest.mark.parametrize("training", [False, True])
def test_sets_that_are_not_convex_are_longer_than_any_limit(training):
    """What contiguity forbids has no path, as far as nodes are ops or one way leads through them;
    every convex set has one as long as its load.
    """
    forbidden, unseen, joined = 0, 0, 0
    for seed in range(30):
        problem = problems.random_problem(seed, n=7, contiguity="convex", training=training)
        model = contract(problem)
        g = next(iter(paying_types(model)), None)
        if g is None or model.num_nodes < 2:
            continue
        frontier = Frontier.of(model, [g])
        if frontier is None:
            continue
        graph = frontier.graphs(time.perf_counter() + SOON)[g]
        pricer = SetPricer(graph, model.largest_load, time.perf_counter() + SOON)
        through = all(frontier.paths.conducts)
        joined += through and model.num_nodes < problem.num_ops
        for members in subsets(model):
            ops = set(np.flatnonzero(members[model.node]).tolist())
            found = pricer.load(members)
            if is_convex(problem, ops) or (found <= model.largest_load and not through):
                assert found == plain_load(model, g, members), seed
                unseen += not is_convex(problem, ops)
            else:
                assert found > model.largest_load, seed
                forbidden += 1
    assert forbidden > 30
    assert joined > 0
    assert unseen > 0 or training


def plain_load(model, g, members):
    """Ticks of a device of type `g` that holds a set of nodes."""
    ticks = int(model.total[members, g].sum())
    for t, u in enumerate(model.producer.tolist()):
        ends = model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]]
        held = [bool(members[v]) for v in (u, *ends.tolist())]
        ticks += int(model.weight[t, g]) * (any(held) and not all(held))
    return ticks


def test_joined_labels_lose_no_set(monkeypatch):
    """However coarse the buckets, with little room for labels: where labels are joined a set that is
    dear enough leaves an answer, where they are not every answer is such a set.
    """
    monkeypatch.setattr(SetPricer, "labelling", Labelling(labels=2))
    rng, said = np.random.default_rng(0), 0
    for seed, _, cover in covers(range(16), n=6):
        graph, g = cover.pricer.graph, cover.g
        pricer = SetPricer(graph, cover.model.largest_load, time.perf_counter() + SOON)
        every = subsets(cover.model)
        loads = np.array([pricer.load(members) for members in every])
        for _ in range(3):
            price = rng.integers(0, 50, cover.model.num_nodes)
            usable = cover.model.allowed[:, g] & (rng.random(cover.model.num_nodes) < 0.9)
            limit = int(rng.integers(1, max(2, loads.max())))
            worth = np.array([price[s].sum() if usable[s].all() else -1 for s in every])
            best = int(worth[loads <= limit].max())
            for least in (max(1, best), max(1, best // 2), 1):
                asked = pricer._question(price, usable, limit, least)
                assert asked is not None or best < least
                for shift in range(6) if asked is not None else ():
                    joined = pricer._answer(asked._replace(shift=shift, relaxed=True))
                    assert joined is not None or best < least, (seed, shift)
                    if joined is not None:
                        last = int(pricer._labels.first[-1]) - 1
                        assert pricer._labels.price[last] >= best, (seed, shift)
                    found = pricer._answer(asked._replace(shift=shift, relaxed=False))
                    said += found is not None
                    if found is not None:
                        assert usable[found].all()
                        assert price[found].sum() >= least
                        assert pricer.load(found) <= limit
                    assert shift or (found is None) == (best < least)
    assert said > 50


def test_a_type_before_the_one_examined_holds_its_share():
    """Two equal devices are examined, one of another type comes first: no bound is above the best."""
    met = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        first, others = rng.integers(1, 9, 5), rng.integers(1, 12, 5)
        edges = [(int(rng.integers(v)), v, int(rng.integers(1, 5))) for v in range(1, 5)]
        problem = po.PlacementProblem.from_edges(
            np.stack([first, others, others], axis=1),
            edges,
            objective="period",
            contiguity="none",
        )
        model = contract(problem, contiguity="none")
        if model.num_types < 2:
            continue
        assert len(model.types[paying_types(model)[0]]) == 2
        best = problems.best_period(problem)
        for upper in (best, best + 6):
            cover = cover_bound(model, time.perf_counter() + SOON)
            found = cover.raise_from(0, upper)
            assert found <= best, seed
            met += found == best
    assert met > 0


def test_where_sets_make_no_graph():
    """Without a type that pays, or with a single node, there is no such bound; devices all alike can
    be closed.
    """
    times, edges = [[3, 3], [4, 4], [5, 5]], [(0, 1, 2), (1, 2, 2)]
    fields = {"objective": "period", "contiguity": "none"}

    def cover(rows, pairs, **more):
        problem = po.PlacementProblem.from_edges(rows, pairs, **fields, **more)
        return cover_bound(contract(problem, contiguity="none"), time.perf_counter() + SOON)

    assert cover(times, edges, io_class=[-1, -1]) is None
    assert cover([[3, 3]], []) is None
    assert can_close(cover(times, edges))
    assert can_close(cover([[*row, 9] for row in times], edges, io_class=[0, 0, -1]))
    assert not can_close(cover([[*row, 9, 9] for row in times], edges, io_class=[0, 0, -1, -1]))
    assert not can_close(cover([[*row, 9] for row in times], edges, io_class=[0, 0, 0]))


def test_loads_of_paths_count_what_their_type_pays():
    """Of every set, for every type that pays."""
    for seed, _, cover in covers(range(8)):
        model = cover.model
        for g in [h for h in range(model.num_types) if model.weight[:, h].any()]:
            graph = Frontier.of(model, [g]).graphs(time.perf_counter() + SOON)[g]
            pricer = SetPricer(graph, model.largest_load, time.perf_counter() + SOON)
            for members in subsets(model):
                assert pricer.load(members) == plain_load(model, g, members), (seed, g)


def test_few_states_make_sets_shorter_never_longer(monkeypatch):
    """With so few states that something is forgotten, of every type and contiguity; what nothing
    was forgotten of is exact.
    """
    monkeypatch.setattr(Frontier, "most_width", 0)
    shorter, exact = 0, 0
    for seed, contiguity in product(range(12), ("none", "convex")):
        problem = problems.random_problem(seed, n=7, contiguity=contiguity)
        model = contract(problem)
        types = [h for h in range(model.num_types) if model.weight[:, h].any()]
        frontier = Frontier.of(model, types) if types and model.num_nodes > 1 else None
        for width in () if frontier is None else (1, 2, 4, 1 << 12):
            frontier.first_width, frontier.width = width, 0
            graphs = frontier.graphs(time.perf_counter() + SOON)
            graph = graphs[types[0]]
            assert np.diff(graph.layer).max() <= width
            exact += frontier.width == 0
            for g in types:
                pricer = SetPricer(graphs[g], model.largest_load, time.perf_counter() + SOON)
                for members in subsets(model):
                    found, load = pricer.load(members), plain_load(model, g, members)
                    ops = set(np.flatnonzero(members[model.node]).tolist())
                    if contiguity == "none" or is_convex(problem, ops):
                        assert found <= load, (seed, width)
                        assert found == load or frontier.width, (seed, width)
                        shorter += found < load
    assert shorter > 100
    assert exact > 12


def test_long_lists_are_cut(monkeypatch):
    """Where more sets are near the dearest than a list may hold, prices still bound every set."""
    monkeypatch.setattr(PriceSearch, "rounds", ExactRounds(listed=1))
    for seed, problem, cover in covers(range(5)):
        best = problems.best_period(problem)
        if best is None or not can_close(cover):
            continue
        search = PriceSearch(cover, SetTables(cover.pricer.graph, 0.0))
        found = search.best(best, time.perf_counter() + SOON)
        usable = search.cover.usable(best, search.cover.g)
        for members in subsets(cover.model):
            if usable[members].all() and cover.pricer.load(members) <= best:
                assert int(found.price[members].sum()) <= found.most, seed
        assert found.slack >= 0
