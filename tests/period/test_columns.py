"""Parts of the bounds of the period by prices and by areas against all sets of nodes and a second
linear program.
"""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import period_problems as problems
import pytest
from scipy.optimize import linprog

import placeopt as po
from placeopt.model.errors import InfeasibleProblemError
from placeopt.period.bounds import METHODS, columns, period_bounds
from placeopt.period.bounds.columns import ColumnBound, _load
from placeopt.period.bounds.covering import knapsack
from placeopt.period.bounds.device_types import area, largest_op, pigeonhole
from placeopt.period.bounds.prices import PriceBound
from placeopt.period.contracted import contract


def models(seeds, **fields):
    """Yield (seed, problem, contracted problem) of random problems with more than a node."""
    for seed in seeds:
        problem = problems.random_problem(seed, n=5, contiguity="none", **fields)
        try:
            model = contract(problem, contiguity="none")
        except InfeasibleProblemError:
            continue
        if model.num_nodes > 1:
            yield seed, problem, model


def plain_load(model, g, held):
    """Ticks of a device of type `g` that holds a set of nodes."""
    total = sum(int(model.total[v, g]) for v in held)
    for t, u in enumerate(model.producer.tolist()):
        ends = {u, *model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist()}
        total += int(model.weight[t, g]) * bool(ends & held and ends - held)
    return total


def every_set(model):
    """Yield every set of nodes, and as flags."""
    for flags in product((False, True), repeat=model.num_nodes):
        yield {v for v, held in enumerate(flags) if held}, np.array(flags, dtype=bool)


def usable(model, g, held, limit):
    """Whether a device of a type may hold a set within a limit."""
    return (
        all(model.allowed[v, g] for v in held)
        and sum(int(model.resident[v]) for v in held) <= int(model.capacity[g])
        and plain_load(model, g, held) <= limit
    )


@pytest.mark.parametrize("part", range(2))
def test_a_set_costs_what_its_load_says(part):
    """With its nodes fixed the linear program takes a set exactly where it may be held within the
    limit.
    """
    rng = np.random.default_rng(part)
    for seed, _, model in models(range(2 * part, 2 * part + 2), training=part == 1):
        bound = ColumnBound(model, time.perf_counter() + 600)
        n, prices = model.num_nodes, rng.random(model.num_nodes)
        for g in range(model.num_types):
            part_of = bound._problems[g]
            for held, flags in every_set(model):
                load = plain_load(model, g, held)
                assert _load(model, g, flags) == load, seed
                lower, upper = np.zeros(part_of.width), np.ones(part_of.width)
                lower[:n] = upper[:n] = flags
                for limit in {max(1, load), max(1, load - 1)}:
                    rows = columns._with_limit(part_of, limit)
                    cost = -columns._pad(prices, part_of.width)
                    found = bound._relaxed(cost, rows, lower, upper)
                    bytes_ = sum(int(model.resident[v]) for v in held)
                    right = load <= limit and bytes_ <= int(model.capacity[g])
                    expected = prices[flags].sum() if right else -np.inf
                    assert found == pytest.approx(expected), (seed, g, held, limit)
            assert part_of.fits.tolist() == model.allowed[:, g].astype(float).tolist()


def dearest(model, g, prices, limit):
    """Return the largest price of a set that a device of a type may hold."""
    return max(
        float(prices[flags].sum())
        for held, flags in every_set(model)
        if usable(model, g, held, limit)
    )


def test_knapsacks_are_those_of_a_linear_program():
    """Most price within a limit, parts of nodes allowed, without transfers."""
    rng = np.random.default_rng(0)
    for _, _, model in models(range(12)):
        bound = ColumnBound(model, time.perf_counter() + 600)
        for g in range(model.num_types):
            prices = rng.random(model.num_nodes) * (rng.random(model.num_nodes) < 0.8)
            for limit in (1, 4, 9, 30):
                most = [
                    float(model.allowed[v, g] and model.total[v, g] <= limit)
                    for v in range(model.num_nodes)
                ]
                answer = linprog(
                    -prices, [model.total[:, g]], [limit], bounds=[(0, x) for x in most]
                )
                assert bound._cap(g, prices, limit) == pytest.approx(-answer.fun, abs=1e-9)


@pytest.mark.parametrize("direct", [True, False])
def test_dear_sets_are_found_or_there_is_none(monkeypatch, direct):
    """In floating point, at once or root by root: a set within the limit and above the threshold, or
    none has such a price.
    """
    rng, answers = np.random.default_rng(1), []
    for seed, _, model in models(range(7)):
        bound = ColumnBound(model, time.perf_counter() + 600)
        prices = rng.random(model.num_nodes)
        for g in range(model.num_types):
            for limit in (5, 15):
                best = dearest(model, g, prices, limit)
                for threshold in (best * 0.9 + 0.001, best * 0.999, best * 1.001 + 1e-3):
                    if threshold < 1e-3:
                        continue
                    bound._direct = direct
                    found = bound._above(g, limit, prices, threshold)
                    assert (found is None) == (threshold > best), (seed, g, limit, threshold)
                    answers.append(found is None)
                    if found is not None:
                        held = set(np.flatnonzero(found).tolist())
                        assert usable(model, g, held, limit)
                        assert prices[found].sum() >= threshold * (1 - 1e-6)
    assert min(answers.count(True), answers.count(False)) > 20


def test_integer_prices_refute_exactly():
    """CP-SAT finds a set wherever one keeps the prices from refuting the limit, and nothing else
    refutes.
    """
    rng, answers = np.random.default_rng(2), []
    for seed, _, model in models(range(14)):
        bound, counts = ColumnBound(model, time.perf_counter() + 600), model.type_counts
        for g in range(model.num_types):
            prices = rng.random(model.num_nodes) + 0.05
            limit = int(rng.integers(1, 20))
            price = np.floor(prices / prices.sum() * 10**9).astype(np.int64)
            others = sum(knapsack(model, h, price, limit) for h in range(model.num_types) if h != g)
            worth = {
                tuple(flags.tolist()): int(price[flags].sum())
                for held, flags in every_set(model)
                if usable(model, g, held, limit)
            }
            least = int(price.sum()) - others
            dear = {flags for flags, p in worth.items() if int(counts[g]) * p >= least}
            found = bound._exactly_above(g, limit, prices)
            assert (found is None) == (not dear), (seed, g)
            assert found is None or tuple(found.tolist()) in dear
            answers.append(found is None)
    assert min(answers.count(True), answers.count(False)) > 3


def test_prices_that_refute_are_right():
    """No limit at or above the best period is refuted, whatever the prices; some below are, and the
    best of all often is reached.
    """
    rng, refuted, closed, tried = np.random.default_rng(3), 0, 0, 0
    for seed, problem, model in models(range(4)):
        best = problems.best_period(problem)
        if best is None:
            continue
        for exact in (False, True):
            bound = ColumnBound(model, time.perf_counter() + 600)
            bound._exact = exact
            uniform = bound._uniform()
            for limit in {max(1, best - 3), max(1, best - 1), best, best + 2}:
                for prices in (uniform, rng.random(model.num_nodes) + 0.01):
                    try:
                        found = bound._prices_refute(limit, prices)
                    except columns.UndecidedError:
                        continue
                    assert found is not None or limit < best, (seed, limit)
                    refuted += found is None
        for upper in (best, best + 4):
            bound = ColumnBound(model, time.perf_counter() + 600)
            value = bound.raise_from(max(1, best // 2), upper)
            assert max(1, best // 2) <= value <= best, seed
            closed, tried = closed + (value == best), tried + 1
            assert all(
                load == plain_load(model, g, set(np.flatnonzero(flags).tolist()))
                for (g, flags), load in zip(bound.sets, bound._loads, strict=True)
            )
    assert refuted > 2
    assert closed > 0
    assert tried > 4


def test_prices_cover_the_nodes_that_known_sets_leave():
    """None where sets of the devices hold everything within the limit, else not negative."""
    some = none = 0
    for _, _, model in models(range(12)):
        bound = ColumnBound(model, time.perf_counter() + 600)
        uniform = bound._uniform()
        assert uniform.sum() == pytest.approx(1.0)
        for held, flags in every_set(model):
            for g in range(model.num_types):
                if held and usable(model, g, held, 12):
                    bound._add(g, flags)
        cost, rows, right = np.concatenate([np.zeros(len(bound.sets)), uniform]), [], []
        for v in range(model.num_nodes):
            rows.append(
                [-float(f[v]) for _, f in bound.sets]
                + [-float(w == v) for w in range(model.num_nodes)]
            )
            right.append(-1.0)
        for h in range(model.num_types):
            rows.append([float(g == h) for g, _ in bound.sets] + [0.0] * model.num_nodes)
            right.append(float(model.type_counts[h]))
        value = linprog(cost, rows, right).fun
        prices = bound._prices(12, uniform)
        assert (prices is None) == (value <= 1e-7)
        some, none = some + (prices is not None), none + (prices is None)
        if prices is not None:
            assert prices.min() >= 0
            assert prices.sum() == pytest.approx(1.0)
        assert bound._prices(0, uniform) is not None
    assert min(some, none) > 1


def test_areas_are_those_of_the_linear_program():
    """Rounded up, or a tick less where the multipliers are rounded."""
    for seed, _, model in models(range(25), training=False):
        n, k, m = model.num_nodes, model.num_types, len(model.producer)
        share, wide = (lambda v, g, k=k: v * k + g), n * k + 2 * m * k + 1
        rows, right, equal = [], [], []
        for g in range(k):
            row = np.zeros(wide)
            for v in range(n):
                row[share(v, g)] = model.total[v, g]
            for t in range(m):
                into, out = n * k + 2 * (t * k + g), n * k + 2 * (t * k + g) + 1
                row[[into, out]] = model.weight[t, g]
                u = int(model.producer[t])
                for c in model.consumer[model.consumer_ptr[t] : model.consumer_ptr[t + 1]].tolist():
                    for way, a, b in ((into, c, u), (out, u, c)):
                        move = np.zeros(wide)
                        move[[share(a, g), share(b, g), way]] = 1, -1, -1
                        rows.append(move)
                        right.append(0)
            row[-1] = -len(model.types[g])
            rows.append(row)
            right.append(0)
        for v in range(n):
            row = np.zeros(wide)
            row[[share(v, g) for g in range(k)]] = 1
            equal.append(row)
        most = (
            [(0, float(fits)) for fits in model.allowed.ravel()]
            + [(0, 1)] * (2 * m * k)
            + [(0, None)]
        )
        goal = np.zeros(wide)
        goal[-1] = 1
        value = linprog(goal, rows, right, equal, np.ones(n), bounds=most).fun
        assert np.ceil(value - 1e-6) - 1 <= area(model, 60.0) <= np.ceil(value - 1e-6), seed
        assert area(model, 60.0) >= value - 1e-3, seed


def test_every_bound_has_its_turn():
    """All of them in order where there is time, those that are asked for, and the cheap ones where
    there is none; none above the best period.
    """
    problem = problems.random_problem(4, n=5, contiguity="none")
    model, best = contract(problem, contiguity="none"), problems.best_period(problem)
    found = dict(period_bounds(problem, 60.0, upper=best))
    assert tuple(found) == METHODS
    assert max(found.values()) <= best
    assert found["op"] == largest_op(model) == int(model.smallest_times.max())
    before = max(found["load"], found["op"])
    assert found["pigeonhole"] == pigeonhole(model, before)
    assert tuple(dict(period_bounds(problem, 0.0))) == ("load", "op", "pigeonhole")
    assert tuple(dict(period_bounds(problem, 60.0, ("op", "area")))) == ("op", "area")
    assert tuple(dict(period_bounds(problem, 1.0))) == METHODS[:5]
    alone = po.PlacementProblem.from_edges([[2], [3]], [(0, 1, 1)], objective="period")
    assert tuple(dict(period_bounds(alone, 60.0))) == METHODS[:4]


def test_the_longest_ops_share_devices():
    """Three ops of 5, 4 and 3 on two equal devices: two of them together; one that is alone on its
    type does not count.
    """
    for compute, expected in (
        ([[5, 5], [4, 4], [3, 3]], 7),
        ([[5, 5], [4, 4], [3, 3], [2, 2], [2, 2]], 7),
        ([[5, 9], [4, 9], [3, 9]], 9),
        ([[5, -1], [4, -1], [3, 3]], 9),
        ([[6, 6]], 6),
    ):
        problem = po.PlacementProblem.from_edges(compute, [], objective="period", contiguity="none")
        assert pigeonhole(contract(problem, contiguity="none"), 0) == expected, compute
        assert pigeonhole(contract(problem, contiguity="none"), 50) == 50


def test_turns_go_on_where_the_last_one_ended():
    """The bound by prices in turns never falls; what closes the gap needs a first turn, ends at the
    best period, and is not for chains.
    """
    went_on = 0
    for _, free, _ in models(range(10)):
        for contiguity in ("none", "convex", "chain"):
            problem = free.replace(contiguity=contiguity)
            best = problems.best_period(problem)
            if best is None:
                continue
            turns = PriceBound(problem, "none" if contiguity == "none" else "convex")
            assert turns.closing(lambda best=best: best, lambda _: None) is None
            first = turns.raise_from(0, None, 60.0)
            second = turns.raise_from(first, best + 1, 60.0)
            assert first <= second <= best
            offered = []
            closing = turns.closing(lambda best=best: best + 1, offered.append)
            assert closing is None or contiguity != "chain"
            if closing is not None:
                assert closing.raise_from(second, 60.0) == best
                assert problems.oracle_period(problem, tuple(offered[-1].tolist())) == best
                went_on += 1
    assert went_on > 5
