"""A condensed problem is the problem: every choice costs the same and fits as well."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sharding_problems import draw, oracle

from placeopt.model.errors import InputError
from placeopt.sharding.compact import Draft, _times, as_draft, condense, draft_of
from placeopt.sharding.contest_format import from_contest
from placeopt.sharding.reduction import composed

HUGE = 10**9


def cost_of(compact, inner):
    """Return the cost of a choice of a compact problem; None where it passes a capacity."""
    c = compact
    chosen = [int(c.node_ptr[v]) + int(x) for v, x in enumerate(inner)]
    for t, room in enumerate(c.capacity.tolist()):
        live = (x for v, x in enumerate(chosen) if c.first[v] <= t < c.last[v])
        if sum(int(c.usage[x]) for x in live) > room:
            return None
    total = sum(int(c.cost[x]) for x in chosen)
    for e, (u, v) in enumerate(c.edge.tolist()):
        columns = int(c.node_ptr[v + 1] - c.node_ptr[v])
        total += int(c.table[int(c.edge_ptr[e]) + int(inner[u]) * columns + int(inner[v])])
    return total


@pytest.mark.interpreted
def test_every_choice_costs_the_same_and_fits_as_well():
    """Once condensed, and condensed again."""
    feasible_ones = others = edges = 0
    for seed in range(160):
        problem, data = draw(seed)
        draft, alive = draft_of(problem)
        if not np.logical_or.reduceat(alive, draft.node_ptr[:-1]).all():
            continue
        known, condensed = oracle(data), condense(draft, alive)
        sizes = np.diff(draft.node_ptr)
        again = condense(as_draft(condensed.compact), np.ones(len(condensed.strategy), dtype=bool))
        for choice in itertools.product(*(range(size) for size in sizes)):
            fits = all(alive[draft.node_ptr[v] + x] for v, x in enumerate(choice))
            if not fits:
                assert choice not in known
                continue
            inner = condensed.contract(np.array(choice))
            found = cost_of(condensed.compact, inner)
            assert (found is not None) == (choice in known), (seed, choice)
            if found is not None and known[choice] < HUGE:
                assert found + condensed.offset == known[choice], (seed, choice)
                assert condensed.expand(inner).tolist() == list(choice)
            twice = cost_of(again.compact, again.contract(inner))
            assert (twice is None) == (found is None)
            feasible_ones, others = feasible_ones + (found is not None), others + (found is None)
        edges += len(condensed.compact.edge)
    assert min(feasible_ones, others, edges) > 50


@pytest.mark.interpreted
def test_two_condensations_are_one():
    """Strategies dropped at random, twice: a choice of what is left is the same choice of all."""
    rng, count = np.random.default_rng(0), 0
    for seed in range(80):
        draft, alive = draft_of(draw(seed)[0])
        if not np.logical_or.reduceat(alive, draft.node_ptr[:-1]).all():
            continue
        outer = condense(draft, alive)
        pointer = outer.compact.node_ptr
        if len(pointer) < 3:
            continue
        kept = rng.random(pointer[-1]) < 0.6
        kept[pointer[:-1] + rng.integers(np.diff(pointer))] = True
        inner = condense(as_draft(outer.compact), kept)
        both = composed(outer, inner)
        assert both.offset == outer.offset + inner.offset
        for choice in itertools.product(*(range(k) for k in np.diff(inner.compact.node_ptr))):
            chosen = np.array(choice, dtype=np.int64)
            whole = outer.expand(inner.expand(chosen))
            assert both.expand(chosen).tolist() == whole.tolist()
            assert both.contract(whole).tolist() == list(choice)
            count += 1
    assert count > 50


def test_a_node_without_a_strategy_that_fits_is_one_line():
    """Whoever condenses directly is told which node has none."""
    data = draw(3, nodes=4)[1]
    draft, fits = draft_of(from_contest(data))
    fits[draft.node_ptr[2] : draft.node_ptr[3]] = False
    with pytest.raises(InputError, match="node 2: expected a strategy that fits"):
        condense(draft, fits)


def test_time_points_that_remain_bind_as_all_do():
    """Every choice keeps the limit at the points that remain exactly where it does at all of them,
    and no point that remains is dominated by the next one.
    """
    rng, dropped = np.random.default_rng(5), 0
    for _ in range(300):
        n, count = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        choices = rng.integers(1, 4, n)
        pointer = np.concatenate([[0], np.cumsum(choices)])
        first = rng.integers(0, count + 1, n)
        last = np.minimum(count, first + rng.integers(0, count, n))
        usage = rng.integers(0, 6, pointer[-1])
        empty = np.zeros(0, dtype=np.int64)
        draft = Draft(
            pointer,
            usage * 0,
            usage,
            first,
            last,
            empty.reshape(0, 2),
            np.zeros(1, dtype=np.int64),
            empty,
            rng.integers(2, 14, count) if rng.random() < 0.5 else rng.integers(2, 5, count),
        )
        more, room, begin, end, points = _times(
            draft, empty, np.arange(pointer[-1]), np.arange(n), pointer
        )
        for chosen in itertools.product(*map(range, choices)):
            at = [int(pointer[v]) + s for v, s in enumerate(chosen)]
            whole = all(
                sum(usage[at[v]] for v in range(n) if first[v] <= t < last[v]) <= draft.capacity[t]
                for t in range(count)
            )
            left = all(
                sum(more[at[v]] for v in range(n) if begin[v] <= i < end[v]) <= room[i]
                for i in range(len(points))
            )
            assert whole == left or min(draft.capacity - _least(draft)) < 0
        live = [{v for v in range(n) if begin[v] <= i < end[v]} for i in range(len(points))]
        for i in range(len(points) - 1):
            assert not (live[i] <= live[i + 1] and room[i + 1] <= room[i])
            assert not (live[i + 1] <= live[i] and room[i] <= room[i + 1])
        dropped += count - len(points)
    assert dropped > 200


def _least(draft):
    """What the cheapest strategies use at every time point."""
    least = [int(draft.usage[a:b].min()) for a, b in itertools.pairwise(draft.node_ptr)]
    return np.array(
        [
            sum(x for x, a, b in zip(least, draft.first, draft.last, strict=True) if a <= t < b)
            for t in range(len(draft.capacity))
        ]
    )
