"""What tightens the bound of messages, squares, joins and stars: all are relaxations, and prove
more where they should.
"""

from __future__ import annotations

import numpy as np
import pytest
from sharding_problems import draw, draw_huge, draw_linked, oracle

from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.bounds.joins import Joins
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.bounds.message_passing import chain_choices, factors_of, lift_trees
from placeopt.sharding.bounds.squares import Squares
from placeopt.sharding.bounds.stars import Stars, excess, weigh, weigh_exactly
from placeopt.sharding.compact import condense, cost_of, costs_of, draft_of, usage_unit
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


def joined(compact, below, prices):
    """Return joins that may make the tables nine times as large, None where there are none."""
    joins = Joins(compact, below, prices, 8 * len(compact.table))
    return None if joins.empty else joins


@pytest.mark.jit
@pytest.mark.parametrize("kind", [Squares, joined])
def test_nothing_proves_more_than_the_optimum_costs(kind):
    """Whatever the vectors or messages are, and no strategy of a choice below the known cost is
    ruled out.
    """
    seen = 0
    for seed in range(15 if kind is Squares else 45):
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
        other = kind(c, below, np.zeros(len(c.capacity)))
        if other is None:
            continue
        for steps in (0, 1, 9):
            for _ in range(steps):
                other.step()
            proof = other.prove(below)
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
    bounding.certify_by(squares)
    assert before < bounding.bound <= upper


def hubs(nodes, seed):
    """Return a problem of a chain whose nodes all read two others, all costs drawn."""
    rng = np.random.default_rng(seed)
    pairs = [[v, v + 1] for v in range(2, nodes - 1)]
    pairs += [[hub, v] for hub in range(2) for v in range(2, nodes)]
    costs = {"intervals": [[0, 1]] * nodes, "usages": [[0] * 3] * nodes}
    costs["costs"] = rng.integers(0, 100, (nodes, 3)).tolist()
    tables = rng.integers(0, 100, (len(pairs), 9)).tolist()
    problem = {"nodes": costs, "edges": {"nodes": pairs, "costs": tables}, "usage_limit": 0}
    return from_contest({"problem": problem})


def best_of_hubs(problem):
    """Return the least cost of a choice, by the choices of the two hubs and along the chain."""
    costs = problem.cost.reshape(-1, 3)
    tables = {tuple(pair): problem.edge_table(e) for e, pair in enumerate(problem.edge.tolist())}
    totals = []
    for x, y in np.ndindex(3, 3):
        least = np.zeros(3)
        for v in range(2, problem.num_nodes):
            if v > 2:
                least = (least[:, None] + tables[v - 1, v]).min(axis=0)
            least = least + costs[v] + tables[0, v][x] + tables[1, v][y]
        totals.append(costs[0, x] + costs[1, y] + least.min())
    return min(totals)


@pytest.mark.jit
def test_joined_hubs_close_most_of_the_gap():
    """Nine tenths of what messages alone leave on a chain whose nodes all read two others."""
    problem = hubs(60, 0)
    c, best = compact_of(problem), best_of_hubs(problem)
    dual = Dual(c)
    joins = Joins(c, 10**6, np.zeros(0), 8 * len(c.table))
    for _ in range(300):
        dual.step()
        joins.step()
    bound = joins.prove(10**6).bound
    assert best - (best - dual.bound) / 10 < bound <= best


def three():
    """Return three nodes in a row that are cheap where all are large, two of which fit."""
    nodes = {"intervals": [[0, 1]] * 3, "costs": [[100, 1]] * 3, "usages": [[0, 10]] * 3}
    edges = {"nodes": [[0, 1], [1, 2]], "costs": [[0, 40, 40, 0]] * 2}
    return from_contest({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 20}})


def all_stars(c):
    """Return every star whose centre fits."""
    rows = [
        (v, s, t, int(c.capacity[t] - c.usage[s] * (c.first[v] <= t < c.last[v])))
        for v in range(c.num_nodes)
        for s in range(c.node_ptr[v], c.node_ptr[v + 1])
        for t in range(len(c.capacity))
    ]
    kept = np.array([row for row in rows if row[-1] >= 0], dtype=np.int64).reshape(-1, 4)
    return Stars(*np.ascontiguousarray(kept.T))


def compacts(seeds):
    """Yield (compact, its feasible choices) of drawn problems."""
    for seed in seeds:
        problem, data = draw_linked(seed)
        feasible = oracle(data)
        condensed = condense(*draft_of(problem)) if feasible else None
        if condensed is not None and len(condensed.compact.edge):
            inner = (condensed.contract(np.array(choice)) for choice in feasible)
            yield condensed.compact, [x for x in inner if x is not None]


@pytest.mark.interpreted
def test_priced_stars_change_costs_as_the_sums_say_and_raise_none():
    """Of every choice that keeps the limit, star by star; in floats as in integers."""
    count = 0
    for seed, (c, choices) in enumerate(compacts(range(60))):
        stars = all_stars(c)
        if not len(stars.node):
            continue
        price = np.random.default_rng(seed).integers(0, 5, len(stars.node))
        cost, table = c.cost.copy(), c.table.copy()
        weigh_exactly(c, stars, price, 0, cost, table)
        f = factors_of(c)
        weigh(f, c, stars, price.astype(float))
        weighed = c._replace(cost=cost, table=table)
        for part, whole in ((f.cost, cost), (f.table, table)):
            small = np.abs(whole) < 2**50
            assert (part[small] == whole[small]).all()
        assert np.sort(f.turned).tolist() == np.sort(f.table).tolist()
        for choice in choices:
            change = 0
            for v, s, t, room, p in zip(*(x.tolist() for x in (*stars, price)), strict=True):
                around = c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]]
                live = around[(c.first[around] <= t) & (t < c.last[around])]
                used = int(c.usage[c.node_ptr[live] + choice[live]].sum())
                if choice[v] == s - c.node_ptr[v]:
                    assert used <= room
                    change += p * (used - room)
            before, after = (sum(int(x.sum()) for x in costs_of(y, choice)) for y in (c, weighed))
            assert after - before == change <= 0
            count += 1
    assert count > 50


@pytest.mark.interpreted
def test_the_excess_is_the_slope_of_the_bound_on_trees():
    """Where one choice is the cheapest, its usage around the centre less the room; else 0."""
    seen = 0
    for c, _ in compacts(range(60, 160)):
        stars = all_stars(c)
        if c.core < c.num_nodes - 1 or not len(stars.node) or c.cost.max() > 10**6:
            continue
        f = factors_of(c)
        f.cost[:] += np.random.default_rng(seen).random(len(f.cost)) / 8  # one is the cheapest
        lift_trees(f, np.zeros(c.num_nodes))
        chains = chain_choices(f, int(c.num_choices.max()))
        best = [int(x.argmax()) for x in np.split(chains.weight, c.node_ptr[1:-1])]
        found = excess(f, c, stars, chains)
        for v, s, t, room, slope in zip(*(x.tolist() for x in (*stars, found)), strict=True):
            around = c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]]
            live = [w for w in around if c.first[w] <= t < c.last[w]]
            used = sum(int(c.usage[c.node_ptr[w] + best[w]]) for w in live)
            assert slope == (used - room if best[v] == s - c.node_ptr[v] else 0)
        seen += 1
    assert seen > 3


@pytest.mark.jit
def test_three_that_do_not_fit_together_are_not_mixed():
    """Large by two thirds, all keep the capacity, and so thinks the bound without stars."""
    compact = condense(*draft_of(three())).compact
    dual = Dual(compact)
    dual.aim(301)
    for _ in range(300):
        dual.step()
    assert 100 < dual.bound < 130
    for _ in range(40):
        dual.look_for_stars()
        for _ in range(20):
            dual.step()
    best = 142  # one small, at an end
    assert dual.certify()[0].bound <= best
    assert dual.bound > 138


def test_stars_that_come_do_not_undo_that_prices_were_stuck():
    """The parting that waits for it would else look in vain between two of them."""
    seen = 0
    for c, _ in compacts(range(20)):
        dual = Dual(c)
        for _ in range(30):
            for _ in range(20):
                dual.step()
            was = dual.calm
            dual.certify()
            if was and not dual.settled:  # stars made steps long again
                assert dual.calm
                seen += 1
    assert seen
