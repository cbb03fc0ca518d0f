"""Exact reductions against every choice of small problems: what is cheap enough stays, at the same
cost.
"""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest
from sharding_problems import FORBIDDEN, draw, draw_linked, oracle

import placeopt as po
from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.compact import MAX_TOTAL, condense, costs_of, draft_of
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.evaluate import profile_of
from placeopt.sharding.reduction import (
    consistent,
    least_of_spans,
    reduce,
    replaced,
    without_room,
)


@cache
def drawn(seed):
    """Return a small problem, every other one with many followers and forbidden pairs, and its
    feasible choices.
    """
    problem, data = draw(seed) if seed % 2 else draw_linked(seed)
    return problem, oracle(data)


def problems(count):
    """Yield small problems that have a solution, and their feasible choices."""
    for seed in range(count):
        problem, feasible = drawn(seed)
        if feasible:
            yield problem, feasible


def tight_problems(count):
    """Yield small problems whose limit is little above the peak of the smallest usages."""
    for seed in range(count):
        data = (draw if seed % 2 else draw_linked)(seed)[1]
        given = data["problem"]
        least = np.array([min(row) for row in given["nodes"]["usages"]])
        intervals = np.array(given["nodes"]["intervals"])
        given["usage_limit"] = profile_of(intervals, least).peak + seed % 4
        feasible = oracle(data)
        if feasible:
            yield from_contest(data), feasible


def remaining(condensed):
    """Yield every choice that remains and what it costs, with the offset."""
    c = condensed.compact
    for inner in np.ndindex(*c.num_choices.tolist()):
        choice = np.array(inner, dtype=np.int64)
        cost = condensed.offset + int(c.cost[c.node_ptr[:-1] + choice].sum())
        for e, (u, v) in enumerate(c.edge.tolist()):
            cost += int(c.table[c.edge_ptr[e] + inner[u] * int(c.num_choices[v]) + inner[v]])
        yield choice, cost


@pytest.mark.interpreted
def test_trees_come_first_children_before_parents():
    """Each node before the core has one later neighbour; no node of the core has one neighbour in
    it.
    """
    shapes = set()
    for seed in range(120):
        draft, fits = draft_of(problem := draw(seed, nodes=6)[0])
        if not np.logical_or.reduceat(fits, problem.node_ptr[:-1]).all():
            continue
        c = condense(draft, fits).compact
        for v in range(c.num_nodes):
            neighbours = c.adj_node[c.adj_ptr[v] : c.adj_ptr[v + 1]]
            later = int((neighbours > v).sum()) if v < c.core else int((neighbours >= c.core).sum())
            assert later == 1 if v < c.core else later != 1
        shapes.add((c.core > 0, c.num_nodes > c.core + 1))
    assert len(shapes) == 4


@pytest.mark.interpreted
@pytest.mark.parametrize("exceed", [None, 1, 0])
def test_the_best_stays_and_costs_the_same(exceed):
    """Looking for choices below 10^18, for no more than the best, and for less: what remains, and
    what it costs.
    """
    moved = smaller = nothing = 0
    for problem, feasible in problems(240):
        best = min(feasible.values())
        whole = condense(*draft_of(problem))
        clamp = MAX_TOTAL // (problem.num_nodes + problem.num_edges + 1)
        if whole.compact.num_nodes == 0 or best >= clamp:
            continue
        most = clamp if exceed is None else max(0, best - whole.offset + exceed)
        reduced = reduce(whole, most)
        if reduced is None:
            assert exceed == 0
            nothing += 1
            continue
        found = []
        for choice, cost in remaining(reduced):
            expanded = tuple(reduced.expand(choice).tolist())
            if cost - whole.offset < most and expanded in feasible:
                assert feasible[expanded] == cost
                found.append(cost)
        if exceed == 0:
            assert not found
        else:
            assert min(found) == best
        smaller += len(reduced.compact.cost) < len(whole.compact.cost)
        moved += reduced.compact.core > whole.compact.core
    assert smaller > 20
    assert moved > 5 or exceed is not None
    assert nothing > 20 or exceed != 0


def test_search_avoids_what_is_forbidden_and_says_when_it_cannot():
    """Both sides end at the best of small linked problems, also where every choice uses an entry of
    10^18.
    """
    forbidden = best_found = count = 0
    for problem, feasible in problems(60):
        best = min(feasible.values())
        result = po.solve(problem, evaluations=2000, seed=3)
        value = feasible[tuple(result.solution.strategy.tolist())]
        assert result.lower_bound <= best <= value == result.value
        count += 1
        forbidden += best >= FORBIDDEN
        best_found += value == best
    assert forbidden > 3
    assert best_found > 0.9 * count


def dense(seed, nodes, most):
    """Return the contest's JSON of a complete graph of two strategies per node; costs are 0 or
    `most`.
    """
    rng = random.Random(seed)
    pairs = [list(pair) for pair in itertools.combinations(range(nodes), 2)]
    costs = [[rng.choice([0, most]) for _ in range(2)] for _ in range(nodes)]
    usages = [[rng.choice([0, 1]) for _ in range(2)] for _ in range(nodes)]
    tables = [[rng.choice([0, most]) for _ in range(4)] for _ in pairs]
    nodes_part = {"intervals": [[0, 1]] * nodes, "costs": costs, "usages": usages}
    edges_part = {"nodes": pairs, "costs": tables}
    return {
        "problem": {"nodes": nodes_part, "edges": edges_part, "usage_limit": nodes // 2},
    }


def test_search_goes_on_where_the_best_choice_costs_as_much_as_what_is_forbidden():
    """No single cost is forbidden, but every choice costs more than what counts as such: the whole
    problem is looked at again, with the choice that was known before.
    """
    dear = 0
    for seed in (21, 22, 24, 25, 27):
        data = dense(seed, 6, 2**55)
        problem, best = from_contest(data), min(oracle(data).values())
        result = po.solve(problem, evaluations=1000, seed=0)
        assert result.lower_bound <= best == result.value, seed
        dear += best >= Bounding(problem).forbidden
    assert dear > 2


def test_what_has_no_room_goes():
    """A strategy goes that passes the limit by itself, one that does with the least its neighbours
    then use, and so on: of four nodes the last choice decides all.
    """
    nodes = {
        "intervals": [[0, 4], [0, 4], [0, 4], [0, 4]],
        "costs": [[9, 1], [9, 1], [9, 1], [5, 6]],
        "usages": [[0, 90], [0, 60], [10, 50], [0, 1]],
    }
    # using 60 in node 1 asks for 50 in node 2; node 0 never has room for its 90
    edges = {"nodes": [[1, 2]], "costs": [[3, 3, FORBIDDEN, 3]]}
    data = {"problem": {"nodes": nodes, "edges": edges, "usage_limit": 95}}
    problem = from_contest(data)
    reduced = reduce(condense(*draft_of(problem)), FORBIDDEN)
    assert reduced.fixed[:2].tolist() == [0, 0]
    feasible = oracle(data)
    assert min(feasible.values()) == po.solve(problem, evaluations=50).lower_bound


@pytest.mark.interpreted
def test_pairs_without_room_are_raised():
    """Where two neighbours pass the limit together, no choice of less has that pair, and every
    feasible choice keeps its cost.
    """
    raised = removed = 0
    for problem, feasible in tight_problems(120):
        whole = condense(*draft_of(problem))
        c = whole.compact._replace(table=whole.compact.table.copy())
        if c.num_nodes == 0 or c.capacity.min(initial=0) < 0:
            continue
        alive = np.ones(len(c.cost), dtype=np.bool_)
        most = MAX_TOTAL // (problem.num_nodes + problem.num_edges + 1)
        without_room(c, alive, most, least_of_spans(c.capacity))
        raised += int((c.table != whole.compact.table).sum())
        removed += int((~alive).sum())
        kept = {}
        for inner in np.ndindex(*c.num_choices.tolist()):
            choice = np.array(inner, dtype=np.int64)
            nodes, pairs = costs_of(c, choice)
            if alive[c.node_ptr[:-1] + choice].all() and max(pairs, default=0) < most:
                kept[tuple(whole.expand(choice).tolist())] = nodes.sum() + pairs.sum()
        for choice, cost in feasible.items():
            if cost < most:
                assert kept[choice] + whole.offset == cost
    assert raised > 20
    assert removed > 20


def pair_cost(c, e, v, x, z):
    """Return what strategy x of v costs beside z of the other node of an edge."""
    u, w = c.edge[e].tolist()
    rows, columns = (x, z) if v == u else (z, x)
    return int(c.table[c.edge_ptr[e] + rows * int(c.num_choices[w]) + columns])


@pytest.mark.interpreted
def test_what_is_replaced_costs_no_less_than_another_strategy():
    """A strategy goes where another one of no more usage goes with every neighbour's strategy that
    it goes with, and all differences together are no loss; in whole numbers, however large.
    """
    rng, gone, forbidden = np.random.default_rng(0), 0, 0
    for seed in range(80):
        draft, fits = draft_of(draw_linked(seed)[0])
        condensed = condense(draft, fits)
        c = condensed.compact
        most = int(rng.choice([8, 30, 10**18]))
        table = np.where(rng.random(len(c.table)) < 0.2, MAX_TOTAL - 1, c.table)
        c = c._replace(table=table, cost=rng.integers(0, 12, len(c.cost)))
        alive = rng.random(len(c.cost)) < 0.9
        expected = alive.copy()
        for v in range(c.num_nodes):
            start, size = int(c.node_ptr[v]), int(c.num_choices[v])
            for x, other in np.ndindex(size, size):
                at, by = start + x, start + other
                if x == other or not (expected[at] and expected[by]) or c.usage[by] > c.usage[at]:
                    continue
                total, goes = int(c.cost[by]) - int(c.cost[at]), True
                for i in range(c.adj_ptr[v], c.adj_ptr[v + 1]):
                    e, w = int(c.adj_edge[i]), int(c.adj_node[i])
                    worst = -most
                    for z in range(int(c.num_choices[w])):
                        old = pair_cost(c, e, v, x, z)
                        if expected[c.node_ptr[w] + z] and old < most:
                            new = pair_cost(c, e, v, other, z)
                            goes = goes and new < most
                            worst = max(worst, new - old)
                    total += worst
                forbidden += not goes
                expected[at] = not (goes and total <= 0)
        before = int(alive.sum())
        replaced(c, alive, most, 10**15)
        assert alive.tolist() == expected.tolist(), seed
        gone += before - int(alive.sum())
    assert min(gone, forbidden) > 20


@pytest.mark.interpreted
def test_what_replaces_goes_with_all_that_goes_with_the_replaced():
    """Pairs that are consistent stay so where strategies are replaced: nobody loses the last one
    that goes with it.
    """
    fewer = 0
    for problem, feasible in problems(240):
        whole = condense(*draft_of(problem))
        most = min(feasible.values()) - whole.offset + 1
        alive = whole.compact.cost < most
        if not whole.compact.num_nodes or most >= 10**18:
            continue
        assert consistent(whole.compact, alive, most)
        known = alive.copy()
        replaced(whole.compact, alive, most, 10**6)
        fewer += alive.sum() < known.sum()
        left = alive.copy()
        assert consistent(whole.compact, left, most)
        assert np.array_equal(left, alive)
    assert fewer > 20
