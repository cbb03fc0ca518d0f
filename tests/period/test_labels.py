"""Tables of labels by their definition, one state after the other: what a label takes, which labels
stay, and which loads and prices are asked of the longest path; and which node is decided next.
"""

from __future__ import annotations

import os
import time
from itertools import product

import numpy as np
import period_problems as problems
import pytest

from placeopt.period.bounds import closing, set_tables
from placeopt.period.bounds.covering import cover_bound
from placeopt.period.bounds.set_prices import longest_rest
from placeopt.period.bounds.set_tables import Room, SetTables
from placeopt.period.contracted import contract

pytestmark = pytest.mark.interpreted


def covers(seeds, n=6):
    """Yield covers of random problems that have one."""
    for seed in seeds:
        problem = problems.random_problem(seed, n=n, contiguity="none")
        cover = cover_bound(contract(problem, contiguity="none"), time.perf_counter() + 600)
        if cover is not None:
            yield cover


def labels_of(table, s):
    """Return the labels of a state."""
    rows = range(int(table.first[s]), int(table.end[s]))
    return [(int(table.load[i]), int(table.price[i])) for i in rows]


def kept(candidates, across, want):
    """Return the labels that stay: each dearer than all of less load, completed within the limit to
    the least price, and of one bucket one label.
    """
    found, top = [], -1
    for load, price in sorted(candidates, key=lambda x: (x[0], -x[1])):
        more = max((p for t, p in across if t + load <= want.limit), default=None)
        if price <= top or more is None or price + more < want.least:
            continue
        top = price
        if found and found[-1][0] >> want.shift == load >> want.shift:
            found[-1] = found[-1][0], price
        else:
            found.append((load, price))
    return found


def checked(graph, want, across, table, sides):
    """Check a table against the labels of the states next to each."""
    layers = len(graph.order)
    ends = range(graph.layer[layers], graph.layer[layers + 1]) if sides == "rest" else [0]
    for s in ends:
        assert labels_of(table, s) == [(0, 0)]
    for i in range(layers):
        v = graph.order[i]
        price = [0, int(want.price[v])]
        choices = (0, 1) if want.usable[v] else (0,)
        here = range(graph.layer[i], graph.layer[i + 1])
        if sides == "rest":
            for s in here:
                candidates = [
                    (t + int(graph.ticks[held, s]), p + price[held])
                    for held in choices
                    for t, p in labels_of(table, graph.target[held, s])
                ]
                assert labels_of(table, s) == kept(candidates, labels_of(across, s), want)
        else:
            for s in range(graph.layer[i + 1], graph.layer[i + 2]):
                candidates = [
                    (t + int(graph.ticks[held, source]), p + price[held])
                    for source in here
                    for held in choices
                    if graph.target[held, source] == s
                    for t, p in labels_of(table, source)
                ]
                assert labels_of(table, s) == kept(candidates, labels_of(across, s), want)


@pytest.mark.parametrize("bits", [(20, 20), (1, 1), (1, 2, 3, 20)])
def test_tables_hold_the_labels_of_the_definition(monkeypatch, bits):
    """Every table that is filled, of beginnings and of rests, in buckets and without."""
    monkeypatch.setattr(SetTables, "room", Room(bucket_bits=bits))
    fill, seen = {"rest": set_tables.rests, "begin": set_tables.beginnings}, []

    def rests(graph, want, begin, table):
        count = fill["rest"](graph, want, begin, table)
        checked(graph, want, begin, table, "rest")
        seen.append(count)
        return count

    def beginnings(graph, want, rest, table, pointer):
        count = fill["begin"](graph, want, rest, table, pointer)
        checked(graph, want, rest, table, "begin")
        seen.append(count)
        return count

    monkeypatch.setattr(set_tables, "rests", rests)
    monkeypatch.setattr(set_tables, "beginnings", beginnings)
    rng = np.random.default_rng(0)
    for cover in covers(range(14)):
        model = cover.model
        tables = SetTables(cover.pricer.graph, time.perf_counter() + 600)
        for _ in range(3):
            price = rng.integers(0, 40, model.num_nodes)
            usable = model.allowed[:, cover.g] & (rng.random(model.num_nodes) < 0.9)
            limit = int(rng.integers(1, max(2, model.largest_load)))
            tables.prepare(price, usable, limit, int(rng.integers(1, max(2, price.sum()))))
    assert len(seen) > 30
    assert max(seen) > 20


def test_a_longest_path_is_worth_what_it_says():
    """From every state on: the largest price less so much a tick; and the load of a set that is
    worth it.
    """
    rng = np.random.default_rng(1)
    for cover in covers(range(12), n=5):
        model, graph = cover.model, cover.pricer.graph
        every = [np.array(x, bool) for x in product((False, True), repeat=model.num_nodes)]
        for multiplier in (0, 1, 3, int(rng.integers(1, 40))):
            price = rng.integers(0, 50, model.num_nodes)
            usable = rng.random(model.num_nodes) < 0.8
            rest = np.zeros(int(graph.layer[-1]), np.int64)
            load = longest_rest(graph, price, usable, multiplier, rest)
            worth = {
                (int(price[s].sum()) - multiplier * cover.pricer.load(s), cover.pricer.load(s))
                for s in every
                if usable[s].all()
            }
            best = max(value for value, _ in worth)
            assert rest[0] == best
            assert (best, load) in worth


def test_the_node_of_the_fewest_ways_is_decided_next():
    """Of the open nodes, the first with the fewest sets left that hold it, and the rest as one
    more; none where a node has no way, or all are decided.
    """
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        pytest.skip("needs NUMBA_DISABLE_JIT=1: only kernels call it")
    rng, seen = np.random.default_rng(2), set()
    for _ in range(200):
        nodes, number = int(rng.integers(2, 7)), int(rng.integers(1, 7))
        sets = rng.random((number, nodes)) < 0.6
        bits = (sets.astype(np.uint64) << np.arange(nodes, dtype=np.uint64)).sum(
            axis=1, dtype=np.uint64
        )[:, None]
        ticks, cost = rng.integers(0, 5, (2, nodes))
        held, left = rng.random(nodes) < rng.choice([0.3, 1.0]), int(rng.integers(0, 2))
        budget, room, first = int(rng.integers(0, 6)), int(rng.integers(-1, 6)), 1
        row = np.uint64(sum(1 << v for v in range(nodes) if held[v]))
        levels = closing.Levels(
            sets=np.arange(number),
            first=np.array([min(first, number)]),
            end=np.array([number]),
            node=np.array([-1]),
            at=np.array([-1]),
            taken=np.array([0]),
            budget=np.array([budget]),
            room=np.array([room]),
            devices=np.array([left]),
            held=np.array([[row]]),
            ways=np.zeros(nodes, np.int64),
        )
        choice = closing.Choice(bits, np.zeros(number, np.int64), ticks, cost)
        closing._count(choice, levels, 0)
        ways = [
            int(sets[first:, v].sum()) * (left > 0) + int(ticks[v] <= room and cost[v] <= budget)
            for v in range(nodes)
        ]
        open_nodes = [v for v in range(nodes) if not held[v]]
        if not open_nodes:
            expected = -1
        elif min(ways[v] for v in open_nodes) == 0:
            expected = -2
        else:
            expected = min(open_nodes, key=lambda v: (ways[v], v))
        assert closing._choose_node(choice, levels, 0) == expected
        seen.add(min(expected, 0))
    assert seen == {-2, -1, 0}
