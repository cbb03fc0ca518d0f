"""The search by tree moves: it passes the capacity and comes back, and its windows are exact."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sharding_problems import draw, draw_linked, oracle

import placeopt as po
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.compact import condense, draft_of, over_time, unchanged, usage_of
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.decode import decode, least_usage
from placeopt.sharding.exact_rest import allowed_choice
from placeopt.sharding.judge import sharding_violations
from placeopt.sharding.problem import ShardingProblem, ShardingSolution
from placeopt.solvers.sharding.dive import dive, surest
from placeopt.solvers.sharding.tree_moves import Manner, flat, improve
from placeopt.solvers.sharding.tree_search import Guide, TreeSearch, Windows

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


def guide_of(compact, steps):
    """Return what a bound says after some steps."""
    dual = Dual(compact)
    for _ in range(steps):
        dual.step()
    free = compact._replace(capacity=np.full(len(compact.capacity), 2**62))
    choices = (decode(dual.factors, c, dual.width) for c in (free, compact))
    return Guide(dual.prices, *choices, unchanged(compact), dual.state())


@pytest.mark.jit
def test_a_dive_decides_every_node():
    """It ends with a choice of every node, on many small problems with the best one that there is
    without a capacity; with nothing priced no message is about room.
    """
    best = count = 0
    for condensed, search, _ in searches(range(500, 560)):
        c = condensed.compact
        free = c._replace(capacity=np.full(len(c.capacity), 2**62))
        rounds = list(dive(guide_of(free, 10).state, 2.0**62, np.random.default_rng(0)))
        assert all(found is None for found in rounds[:-1])
        choice = rounds[-1]
        assert ((choice >= 0) & (choice < c.num_choices)).all()
        every = product(*map(range, c.num_choices.tolist()))
        best += search.cost_of(choice) == min(search.cost_of(np.array(x)) for x in every)
        count += 1
    assert best >= 0.8 * count > 20


@pytest.mark.jit
def test_a_round_of_a_dive_takes_what_is_sure_and_has_room():
    """No more than half of the nodes are decided, each on its cheapest strategy by what is believed;
    what they use together fits, and nothing stays that does not.
    """
    decided = 0
    for condensed, _, _ in searches(range(600, 640)):
        c = condensed.compact
        nodes = np.arange(c.num_nodes)
        belief = np.random.default_rng(0).random(len(c.cost))
        alive = surest(c, nodes, belief, np.ones(len(nodes)))
        left = np.add.reduceat(alive.astype(int), c.node_ptr[:-1])
        before = np.add.reduceat((c.usage <= c.capacity.max(initial=2**62)), c.node_ptr[:-1])
        assert (left >= 1).all()
        amounts = np.zeros(c.num_nodes, np.int64)
        for v in np.flatnonzero((left == 1) & (before > 1)):
            own = slice(*c.node_ptr[v : v + 2])
            x = int(np.flatnonzero(alive[own])[0])
            if x == int(belief[own].argmin()):
                amounts[v] = c.usage[own][x]
                decided += 1
        used = over_time(c.first, c.last, amounts, len(c.capacity))
        assert (used <= c.capacity).all()
    assert decided > 20


@pytest.mark.jit
@pytest.mark.parametrize("family", ["dense", "training", "inference"])
def test_messages_that_are_carried_over_are_kept_by_the_first_aim(family):
    """A problem that goes on from the prices and messages of another one bounds no less than that,
    which a first sweep without them does not come to.
    """
    compact = condense(*draft_of(contest_like(family, 300, 7))).compact
    dual, part, anew = (Dual(compact) for _ in range(3))
    dual.aim(2.0**50)
    for _ in range(20):
        dual.step()
    part.begin_at(dual.state(), unchanged(compact))
    for later in (part, anew):
        later.aim(2.0**50)
    assert part.bound >= dual.bound * (1 - 1e-9) > anew.bound * (1 + 1e-3)


@pytest.mark.jit
def test_a_mixture_is_the_best_of_two_choices():
    """With all differences in one window it is the cheapest of all choices that take each node from
    one of two; and nothing where that is not below.
    """
    better = 0
    for condensed, search, feasible in searches(range(800, 860)):
        c = condensed.compact
        rng = np.random.default_rng(0)
        every = [np.array(x) for x in product(*map(range, c.num_choices.tolist()))]
        fitting = [x for x in every if tuple(condensed.expand(x).tolist()) in feasible]
        one, other = (fitting[i] for i in rng.integers(len(fitting), size=2))
        mixed = [x for x in fitting if ((x == one) | (x == other)).all()]
        least = min(map(search.cost_of, mixed))
        found = Windows(c, rng).improve(one, search.cost_of(one), other)
        assert (found is None) == (least == search.cost_of(one))
        if found is not None:
            assert search.cost_of(found) - least <= 1e-12 * search.cost_of(
                one
            )  # CP-SAT's tolerance
            better += 1
    assert better > 10


@pytest.mark.jit
def test_attempts_find_the_best_of_small_problems():
    """The best choice always keeps the limit and costs what is said; mostly it is the best of
    all.
    """
    found = count = 0
    for condensed, search, feasible in searches(range(60)):
        search.guide(guide_of(condensed.compact, 10))
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


def test_what_is_allowed_is_found_without_looking_at_costs():
    """It fits and uses no cost of 10^18, and nothing is found only where no choice does so."""
    some = none = 0
    for condensed, search, feasible in searches(range(50)):
        inner = (condensed.contract(np.array(choice)) for choice in feasible)
        least = min(search.cost_of(choice) for choice in inner if choice is not None)
        rest = allowed_choice(condensed.compact, 10**15, seconds=1, deterministic=True)
        found = rest.choice
        assert (found is None) == (least >= 10**15) == (rest.bound == 10**15)
        if found is not None:
            assert tuple(condensed.expand(found).tolist()) in feasible
            assert search.cost_of(found) < 10**15
        some, none = some + (found is not None), none + (found is None)
    assert some > 20
    assert none > 2


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


@pytest.mark.jit
@pytest.mark.parametrize("solver", ["tree-descent", "sharding-portfolio"])
def test_a_known_choice_that_just_fits_before_usages_are_rounded(solver):
    """Where usages are counted in units, rounded up, a search does not begin at a choice that
    passes the capacity by that.
    """
    odd = 2**59 + 1
    usages = [[0, odd]] * 4 + [[0, 2**60]]
    nodes = {"intervals": [[0, 1]] * 5, "costs": [[9, 0]] * 4 + [[3, 2]], "usages": usages}
    edges = {"nodes": [], "costs": []}
    problem = from_contest({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 4 * odd}})
    known = ShardingSolution(np.array([1, 1, 1, 1, 0]))
    for seed in range(3):
        result = po.solve(problem, solver, initial=known, evaluations=500, seed=seed)
        assert result.value == 3


@pytest.mark.jit
def test_a_dive_keeps_away_from_what_is_ruled_out():
    """Costs of what has been ruled out are huge, and those of many neighbours together are no less."""
    n, size = 9, 3
    rng = np.random.default_rng(0)
    pairs = np.array([[u, v] for u in range(n) for v in range(u)])
    cost, table = rng.integers(1, 9, (n, size)), rng.integers(1, 9, (len(pairs), size, size))
    problem = ShardingProblem(
        "clique",
        np.arange(n + 1) * size,
        cost.ravel(),
        np.zeros(n * size),
        np.zeros((n, 2)),
        pairs,
        table.ravel(),
    )
    dual = Dual(condense(*draft_of(problem)).compact)
    dual.aim(1000)
    dual.step()
    alive = np.ones((n, size), np.bool_)
    alive[:, 0] = False
    paired = np.ones((len(pairs), size, size), np.bool_)
    paired[:, 0] = paired[:, :, 0] = False
    dual.rule_out(alive.ravel(), paired.ravel())
    for seed in range(5):
        *_, choice = dive(dual.state(), 1000, np.random.default_rng(seed))
        assert (choice > 0).all()


@pytest.mark.jit
def test_squeezing_adds_up_usages_beyond_64_bits():
    """Over all time points 31 nodes of 2^57 pass their limit by 2^65, which is 0 in 64 bits."""
    spans = [[i, i + 16] for i in range(31)]
    nodes = {"intervals": spans, "costs": [[9, 0]] * 31, "usages": [[0, 2**57]] * 31}
    edges = {"nodes": [], "costs": []}
    problem = from_contest({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 2**60}})
    compact = condense(*draft_of(problem)).compact
    search = TreeSearch(compact, least_usage(compact), np.random.default_rng(0))
    search.board.choice[:] = 1
    assert sum(usage_of(compact, search.board.choice).tolist()) == 2**65
    for _ in search._squeeze():
        pass
    assert (usage_of(compact, search.board.choice) <= compact.capacity).all()
