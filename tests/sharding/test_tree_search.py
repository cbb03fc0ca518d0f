"""The search by tree moves: it passes the capacity and comes back, and its windows are exact."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sharding_problems import draw, draw_linked, oracle

import placeopt as po
from placeopt.sharding.compact import condense, draft_of, over_time
from placeopt.sharding.decode import least_usage
from placeopt.sharding.judge import sharding_violations
from placeopt.solvers.sharding.tree_moves import Manner, flat, improve
from placeopt.solvers.sharding.tree_search import TreeSearch, Windows

sys.path.insert(0, str(Path(__file__).parents[2] / "results" / "sharding"))
from contest_like import contest_like


def searches(seeds):
    """Yield (condensed problem, search from the least usage, {feasible choice: cost})."""
    for seed in seeds:
        problem, data = (draw_linked if seed % 2 else draw)(seed)
        feasible = oracle(data)
        if not feasible:
            continue
        condensed = condense(*draft_of(problem))
        if condensed.compact.num_nodes:
            start = least_usage(condensed.compact)
            search = TreeSearch(condensed.compact, start, np.random.default_rng(seed))
            yield condensed, search, feasible


@pytest.mark.jit
def test_attempts_find_the_best_of_small_problems():
    """The best choice always keeps the limit and costs what is said; mostly it is the best of
    all.
    """
    found = count = 0
    for condensed, search, feasible in searches(range(60)):
        search.guide(np.zeros(len(condensed.compact.capacity)), search.best, search.best)
        for _ in range(60):
            search.round(5)
        choice = tuple(condensed.expand(search.best).tolist())
        assert choice in feasible
        assert search.best_cost == search.cost_of(search.best)
        found += feasible[choice] == min(feasible.values())
        count += 1
    assert found >= 0.9 * count > 20


@pytest.mark.jit
def test_squeezing_comes_back_into_the_capacity():
    """From the choice of the largest usages, which passes the capacity, a squeeze ends within
    it.
    """
    passed = 0
    for condensed, search, _ in searches(range(100, 160)):
        c = condensed.compact
        starts = c.node_ptr[:-1]
        most = [int(c.usage[a:b].argmax()) for a, b in zip(starts, c.node_ptr[1:], strict=True)]
        search.board.choice[:] = most
        used = over_time(c.first, c.last, c.usage[starts + most], len(c.capacity))
        passed += bool((used > c.capacity).any())
        for _ in search._squeeze():
            pass
        amounts = c.usage[starts + search.board.choice]
        assert (over_time(c.first, c.last, amounts, len(c.capacity)) <= c.capacity).all()
    assert passed > 10


@pytest.mark.jit
@pytest.mark.parametrize("most", [1, 3, 100])
def test_local_moves_keep_the_capacity_and_say_what_they_change(most):
    """Within the capacity, costs fall by what is returned; no price, so none rises."""
    moved = 0
    for condensed, search, feasible in searches(range(300, 340)):
        c, free = condensed.compact, np.zeros(condensed.compact.num_nodes)
        manner, factors = Manner(most, 0.0), flat(search.factors)
        for root in range(c.num_nodes):
            before = search.cost_of(search.board.choice)
            roots = np.array([root])
            change = improve(factors, c, search.board, roots, free, manner, search.state)
            after = search.cost_of(search.board.choice)
            assert after <= before * (1 + 1e-12)  # tables are in floats
            assert after - before == pytest.approx(change, abs=1e-12 * before)
            assert (search.board.place == -1).all()
            moved += change < 0
        assert tuple(condensed.expand(search.board.choice).tolist()) in feasible
    assert moved > 10


@pytest.mark.jit
def test_a_local_move_of_one_node_is_the_best_of_its_strategies():
    """With the others fixed, a node takes the cheapest strategy that has room, wherever it is: in
    the core or in a tree that hangs on it.
    """
    hanging = 0
    for condensed, search, feasible in searches(range(400, 440)):
        c, free = condensed.compact, np.zeros(condensed.compact.num_nodes)
        manner, factors = Manner(1, 0.0), flat(search.factors)
        for root in range(c.num_nodes):
            costs = []
            for x in range(int(c.num_choices[root])):
                choice = search.board.choice.copy()
                choice[root] = x
                if tuple(condensed.expand(choice).tolist()) in feasible:
                    costs.append(search.cost_of(choice))
            roots = np.array([root])
            improve(factors, c, search.board, roots, free, manner, search.state)
            assert search.cost_of(search.board.choice) == pytest.approx(min(costs), rel=1e-12)
            hanging += root < c.core
    assert hanging > 10


@pytest.mark.jit
def test_long_chains_are_searched_in_parts():
    """Local moves are made where much hangs on a node in the mean, and nowhere else."""
    problem = contest_like("long chain", 1000, 7)
    compact = condense(*draft_of(problem)).compact
    search = TreeSearch(compact, least_usage(compact), np.random.default_rng(0))
    assert len(search.trees) > len(search.following)
    wide = contest_like("dense", 300, 7)
    compact = condense(*draft_of(wide)).compact
    search = TreeSearch(compact, least_usage(compact), np.random.default_rng(0))
    assert len(search.trees) == len(search.following)


@pytest.mark.jit
def test_a_window_of_everything_is_the_best_choice():
    """A window that leaves all nodes of a small problem open finds the best, and nothing below
    it.
    """
    count = 0
    for condensed, search, feasible in searches(range(200, 230)):
        windows = Windows(condensed.compact, np.random.default_rng(0))
        best, cost = search.best, search.best_cost
        for _ in range(8):
            found = windows.improve(best, cost)
            if found is not None:
                assert search.cost_of(found) < cost
                best, cost = found, search.cost_of(found)
        choice = tuple(condensed.expand(best).tolist())
        assert choice in feasible
        count += feasible[choice] == min(feasible.values())
    assert count >= 5


@pytest.mark.jit
def test_first_attempts_reach_a_tight_limit():
    """Two percent above the smallest peak a good choice is there after few turns, and keeps the
    limit.
    """
    problem = contest_like("tight", 300, 3)
    result = po.solve(problem, evaluations=8000)
    assert sharding_violations(problem, result.solution) == []
    assert result.lower_bound <= result.value <= 1.1 * result.lower_bound


@pytest.mark.jit
def test_tactics_share_a_solve_and_repeat_it():
    """Where evaluations are the limit, all tactics get turns, and the same seed gives the same
    answer.
    """
    problem = contest_like("training", 100, 3)
    first, again = (po.solve(problem, evaluations=60_000, seed=4) for _ in range(2))
    assert {use.name for use in first.tactics} >= {"prices", "branches", "tree-moves"}
    assert (first.value, first.lower_bound, first.evaluations) == (
        again.value,
        again.lower_bound,
        again.evaluations,
    )
    assert first.solution.strategy.tolist() == again.solution.strategy.tolist()
