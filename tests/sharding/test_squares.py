"""Squares: what they leave is a relaxation, and on dense graphs they prove far more than
messages.
"""

from __future__ import annotations

import numpy as np
import pytest
from sharding_problems import draw, draw_huge, draw_linked, oracle

from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.bounds.squares import Squares
from placeopt.sharding.compact import condense, cost_of, draft_of, usage_unit
from placeopt.sharding.contest_format import from_contest


def clique(nodes, strategies, seed):
    """Return a problem of nodes that all pay for each other, at random."""
    rng = np.random.default_rng(seed)
    pairs = [[u, v] for v in range(nodes) for u in range(v)]
    costs = {"intervals": [[0, 1]] * nodes, "usages": [[0] * strategies] * nodes}
    costs["costs"] = rng.integers(0, 100, (nodes, strategies)).tolist()
    tables = rng.integers(0, 100, (len(pairs), strategies**2)).tolist()
    problem = {"nodes": costs, "edges": {"nodes": pairs, "costs": tables}, "usage_limit": 0}
    return from_contest({"problem": problem})


def compact_of(problem):
    """Return a problem without what is decided."""
    return condense(*draft_of(problem)).compact


@pytest.mark.jit
def test_no_square_proves_more_than_the_optimum_costs():
    """Whatever the vectors are, and no strategy of a choice below the known cost is ruled out."""
    seen = 0
    for seed in range(15):
        problem, data = (draw, draw_linked, draw_huge)[seed % 3](seed)
        feasible = oracle(data)
        if not feasible or usage_unit(problem) > 1:
            continue
        condensed = condense(*draft_of(problem))
        c = condensed.compact
        least = min(feasible.values())
        if c.num_nodes < 2 or least - condensed.offset > 2**61:
            continue
        below = max(1, least - condensed.offset + 1 + seed % 7)
        squares = Squares(c, below, np.zeros(len(c.capacity)))
        for steps in (0, 1, 9):
            for _ in range(steps):
                squares.step()
            proof = squares.prove(below)
            assert proof.bound <= max(below, least - condensed.offset)
            for choice, cost in feasible.items():
                if cost - condensed.offset < below:
                    assert proof.bound <= cost - condensed.offset
                    kept = condensed.contract(np.array(choice))
                    assert proof.alive[c.node_ptr[:-1] + kept].all()
                    seen += 1
    assert seen > 20


@pytest.mark.jit
def test_squares_and_what_they_leave_are_the_cost():
    """Of every choice, exactly, in the unit of the rest."""
    c, rng = compact_of(clique(6, 3, 0)), np.random.default_rng(0)
    squares = Squares(c, 10_000, np.zeros(0))
    for _ in range(5):
        squares.step()
    rest, offset, vectors = squares._rest(20)
    for _ in range(20):
        choice = rng.integers(0, 3, c.num_nodes)
        lines = vectors[0] + vectors[1 + c.node_ptr[:-1] + choice].sum(axis=0)
        paid = int(np.square(lines).sum())
        assert cost_of(c, choice) << 20 == cost_of(rest, choice) + offset + paid


@pytest.mark.jit
def test_squares_prove_more_than_messages_on_dense_graphs():
    """By a third on 24 nodes that all pay for each other at random."""
    c = compact_of(clique(24, 4, 1))
    dual = Dual(c)
    for _ in range(100):
        dual.step()
    squares = Squares(c, 10_000, np.zeros(0))
    for _ in range(20):
        squares.step()
    assert squares.prove(10_000).bound > 1.33 * dual.bound > 0


@pytest.mark.jit
def test_what_squares_prove_bounds_the_problem():
    """And never more than the cost of the known choice."""
    problem = clique(14, 4, 2)
    bounding = Bounding(problem)
    upper = cost_of(bounding.compact, bounding.decoded(limited=True))
    bounding.aim(upper)
    bounding.certify()
    before = bounding.bound
    squares = Squares(bounding.dual.compact, upper, bounding.dual.prices)
    for _ in range(10):
        squares.step()
    bounding.certify_squares(squares)
    assert before < bounding.bound <= upper
