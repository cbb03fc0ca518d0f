"""Bounds of the period by areas and pigeonholes against a second linear program, and the turns of
prices.
"""

from __future__ import annotations

import numpy as np
import period_problems as problems
from scipy.optimize import linprog

import placeopt as po
from placeopt.model.errors import InfeasibleProblemError
from placeopt.period.bounds import METHODS, period_bounds
from placeopt.period.bounds.device_types import area_bounds, pigeonhole
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
        *_, bound = area_bounds(model)
        assert np.ceil(value - 1e-6) - 1 <= bound <= np.ceil(value - 1e-6), seed
        assert bound >= value - 1e-3, seed


def test_areas_are_nearly_there_after_a_few_looks():
    """On four types of devices; also where one type is a thousand times as slow. They end where
    something else is known to be no less.
    """
    rng = np.random.default_rng(1)
    times = rng.integers(100, 3000, (80, 4)).repeat(2, axis=1)
    edges = [(u, v, 200) for v in range(1, 80) for u in {v // 2, v - 1}]
    for slow in (1000, 1):
        table = times * [1, 1, 1, 1, 1, 1, slow, slow]
        model = contract(po.PlacementProblem.from_edges(table, edges, objective="period"))
        bounds = list(area_bounds(model))
        assert bounds == sorted(bounds)
        assert bounds[0] < 0.75 * bounds[-1]
        assert bounds[10] > 0.99 * bounds[-1]
    assert len(list(area_bounds(model, lambda: bounds[-1] * 6 // 5))) < 10 < len(bounds)


def test_an_op_pays_for_neighbours_or_runs_them():
    """Where results of many ops meet, each is sent there or made there, whatever is cheaper; what
    one op sends to many is paid for once.
    """
    work, ticks = [9, 1, 2, 50, 7], [3, 4, 8, 5]
    edges = [(v, 4, t) for v, t in enumerate(ticks)]
    problem = po.PlacementProblem.from_edges([[w] * 9 for w in work], edges, objective="period")
    model = contract(problem, contiguity="none")
    assert model.surroundings[model.node[4]] == 7 + 3 + 1 + 2 + 5
    turned = po.PlacementProblem.from_arrays(
        compute=[[w] * 9 for w in work],
        producer=[4],
        consumer_ptr=[0, 4],
        consumer=range(4),
        transfer=[[6]],
        objective="period",
    )
    assert contract(turned, contiguity="none").surroundings.tolist() == [15, 7, 8, 56, 13]


def test_every_bound_has_its_turn():
    """All of them in order where there is time, those that are asked for, and the cheap ones where
    there is none; none above the best period.
    """
    problem = problems.random_problem(4, n=5, contiguity="none")
    model, best = contract(problem, contiguity="none"), problems.best_period(problem)
    found = dict(period_bounds(problem, 60.0, upper=best))
    assert tuple(found) == METHODS
    assert max(found.values()) <= best
    assert found["op"] == int(model.surroundings.max())
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
