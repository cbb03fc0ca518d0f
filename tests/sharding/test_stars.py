"""Stars: what the neighbours of a node may use together, as a change of costs and as a proof."""

from __future__ import annotations

import numpy as np
import pytest
from sharding_problems import draw_linked, oracle

from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.bounds.message_passing import chain_choices, factors_of, lift_trees
from placeopt.sharding.bounds.stars import Stars, excess, weigh, weigh_exactly
from placeopt.sharding.compact import condense, costs_of, draft_of
from placeopt.sharding.contest_format import from_contest


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
