"""Exact reductions against every choice of small problems: what is cheap enough stays, at the same
cost.
"""

from __future__ import annotations

import numpy as np
import pytest
from sharding_problems import FORBIDDEN, draw, draw_linked, oracle

from placeopt.sharding.compact import MAX_TOTAL, condense, draft_of
from placeopt.sharding.reduction import reduce
from placeopt.sharding.two_sided import TwoSided


def problems(count):
    """Yield small problems, half of them with many followers and forbidden pairs, and their
    feasible choices.
    """
    for seed in range(count):
        problem, data = draw(seed) if seed % 2 else draw_linked(seed)
        feasible = oracle(data)
        if feasible:
            yield problem, feasible


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
        sides = TwoSided(problem, np.random.default_rng(3))
        sides.start()
        for _ in range(4):
            sides.turn(50)
            sides.certify()
            sides.finish(1.0, deterministic=True)
        value = feasible[tuple(sides.solution().tolist())]
        assert sides.bound <= best <= value
        count += 1
        forbidden += best >= FORBIDDEN
        best_found += value == best
    assert forbidden > 3
    assert best_found > 0.9 * count
