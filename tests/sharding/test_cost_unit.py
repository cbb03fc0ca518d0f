"""Costs that are too large to be added up in 64 bits are counted in a larger unit: bounds stay
below, and values are the true ones.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from sharding_problems import FORBIDDEN, draw, draw_linked, oracle
from tampering import load_checker, verdict

import placeopt as po
from placeopt.certify.certificate import prove
from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.compact import condense, cost_of, cost_scale, draft_of
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.exact_rest import solve_rest
from placeopt.sharding.problem import ShardingProblem


def dear(seed):
    """Return (problem, parsed JSON): what `draw_linked` draws, but all costs near 2^60, or below
    2^62.
    """
    rng = random.Random(seed)
    low, high = rng.choice([(2**59, 2**60), (0, 2**60), (0, 2**62 - 1), (2**61, 2**62 - 1)])
    _, data = draw_linked(seed, nodes=rng.randint(2, 6))
    for part in ("nodes", "edges"):
        tables = data["problem"][part]["costs"]
        data["problem"][part]["costs"] = [[rng.randint(low, high) for _ in row] for row in tables]
    return from_contest(data), data


def chain(nodes, top, strategies=3):
    """Return a chain without a limit, costs below `top`, and what its best choice costs."""
    rng = np.random.default_rng(0)
    cost = rng.integers(top, size=(nodes, strategies))
    table = rng.integers(top, size=(nodes - 1, strategies, strategies))
    problem = ShardingProblem(
        "chain",
        np.arange(nodes + 1) * strategies,
        cost.ravel(),
        np.zeros(nodes * strategies),
        np.zeros((nodes, 2)),
        np.stack([np.arange(nodes - 1), np.arange(1, nodes)], axis=1),
        table.ravel(),
    )
    best = cost[0].astype(object)
    for node, pairs in zip(cost[1:], table, strict=True):
        best = (best[:, None] + pairs).min(axis=0) + node
    return problem, best.min()


@pytest.mark.jit
def test_dear_costs_against_brute_force():
    """The best choice is found but for the rounding, what is called optimal is, and no bound passes
    it, whatever it is told.
    """
    closed = count = 0
    for seed in range(60):
        problem, data = dear(seed)
        best = min(oracle(data).values(), default=None)
        if best is None:
            continue
        lost = cost_scale(problem).unit * (problem.num_nodes + problem.num_edges)
        result = po.solve(problem, evaluations=3000, seed=seed)
        assert result.lower_bound <= best <= result.value <= best + lost
        assert result.status != "optimal" or result.value == best
        count += 1
        closed += result.value - result.lower_bound <= 2 * lost
        for upper in (None, best, best + 1, 2 * best):
            bounding = Bounding(problem, upper)
            for _ in range(3):
                for _ in range(0 if bounding.settled else 10):
                    bounding.step()
                if upper is None and not bounding.settled:
                    choice = bounding.decoded(limited=True)
                    bounding.aim(cost_of(bounding.compact, choice))
                bounding.certify()
                assert bounding.bound <= best
    assert count > 40
    assert closed > 0.9 * count


@pytest.mark.jit
@pytest.mark.parametrize("top", [10**13, 10**15, 2**62])
def test_chains_of_dear_costs_are_solved(top):
    """A long chain ends at its best cost, however dear: its messages are exact."""
    problem, best = chain(5000, top)
    result = po.solve(problem, evaluations=3000)
    lost = cost_scale(problem).unit * (problem.num_nodes + problem.num_edges)
    assert best - lost <= result.lower_bound <= best <= result.value <= best + lost
    assert lost < 1e-9 * best or cost_scale(problem).unit == 1
    descended = po.solve(problem, "tree-descent", evaluations=3000)
    assert descended.value < 1.3 * best


def test_one_cost_that_stands_for_forbidden_needs_no_unit():
    """Where all that is too dear costs the same, and more than the rest together, costs are counted
    exactly.
    """
    for seed in range(30):
        assert cost_scale(draw(seed)[0]).unit == cost_scale(draw_linked(seed)[0]).unit == 1
    assert cost_scale(chain(5000, 10**13)[0]).unit == 1 < cost_scale(chain(5000, 10**15)[0]).unit


def test_proofs_of_dear_costs_claim_what_they_show():
    """A proof that travels counts no unit: it may show less than the bound, and is accepted."""
    checker, checked = load_checker(), 0
    for seed in range(12):
        problem, data = dear(seed)
        best = min(oracle(data).values(), default=None)
        if best is not None and cost_scale(problem).unit > 1:
            result = po.solve(problem, evaluations=200, seed=0)
            certificate = po.verify(problem, result.solution, seconds=0.05)
            proof = prove(problem, result.solution, certificate, seconds=0.2)
            assert verdict(checker, proof) == "accepted"
            assert proof["lower_bound"] <= certificate.lower_bound <= best
            checked += 1
    assert checked > 6


@pytest.mark.jit
def test_dear_costs_that_every_choice_pays_are_proved_exactly():
    """Costs that would be clamped, alike at each node and edge, leave no gap."""
    top = 2**61
    nodes = {"intervals": [[0, 1]] * 4, "costs": [[top, top + v] for v in range(4)]}
    nodes["usages"] = [[0, 0]] * 4
    edges = {"nodes": [[0, 1], [1, 2], [2, 3]], "costs": [[top, top, top, top - 3]] * 3}
    problem = from_contest({"problem": {"nodes": nodes, "edges": edges}})
    result = po.solve(problem, evaluations=100)
    assert result.status == "optimal"
    assert result.value == result.lower_bound == 7 * top - 3 * 3 + 6


@pytest.mark.jit
def test_forbidden_costs_that_no_choice_avoids_are_counted_exactly():
    """Where every choice uses what is forbidden, the least of it is proved, and the rest as well."""
    count = 0
    for seed in range(24):
        problem, data = draw_linked(seed)
        best = min(oracle(data).values(), default=0)
        if best >= FORBIDDEN:
            result = po.solve(problem, evaluations=3000)
            assert result.value == result.lower_bound == best
            count += 1
    assert count > 6


def test_cp_sat_proves_nothing_of_costs_that_floats_round():
    """With costs of 2^58 CP-SAT calls a choice of 21 optimal; the best one costs 15."""
    top = 2**58

    def follow(*costs):
        return [cost if x == y else top for x, cost in enumerate(costs) for y in range(4)]

    nodes = {"costs": [[3, 1, 0, 1], [2, 1, 3, 3], [3, 1, 3], [2, 1]], "intervals": [[0, 1]] * 4}
    nodes["usages"] = [[1, 8, 0, 8], [2, 7, 9, 0], [0, 5, 7], [6, 6]]
    tables = [
        follow(3, 1, 1, 0),
        follow(3, 2, 0, 0),
        [2, top, top, top, 0, top, top, top, 2, 3, top, top],
        [1, top, 2, top, 0, top],
        [2, 2, 0, 1, 2, 3, 2, 2],
    ]
    edges = {"nodes": [[0, 1], [0, 1], [1, 2], [3, 2], [0, 3]], "costs": tables}
    data = {"problem": {"nodes": nodes, "edges": edges, "usage_limit": 15}}
    best = min(oracle(data).values())
    compact = condense(*draft_of(from_contest(data))).compact
    assert solve_rest(compact, top + 50, seconds=5).bound <= best
    assert solve_rest(compact, top, seconds=5).bound <= best
