"""The exact pass, number by number, and what survives it, against the same sums in Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sharding_problems import draw, draw_linked

from placeopt.sharding.bounds.exact_pass import (
    Witness,
    exact_pass,
    in_units,
    prices_of_nodes,
    survivors,
    witness_of,
)
from placeopt.sharding.bounds.stars import NO_STARS
from placeopt.sharding.compact import condense, draft_of

BITS = 3
NONE = np.zeros(0, dtype=np.int64)  # prices of no stars


def drawn(seeds):
    """Yield (random numbers, a compact problem with edges) of what is drawn without huge costs."""
    for seed in seeds:
        draft, alive = draft_of(draw(seed)[0])
        if not np.logical_or.reduceat(alive, draft.node_ptr[:-1]).all():
            continue
        compact = condense(draft, alive).compact
        largest = [x.max(initial=0) for x in (compact.cost, compact.table, compact.usage)]
        if len(compact.edge) and max(largest) < 10**6:
            yield np.random.default_rng(seed), compact


def pointers_of(compact):
    """Return where messages of each edge begin, to its smaller and to its larger node."""
    sizes = np.diff(compact.node_ptr)
    return [
        np.concatenate([[0], np.cumsum(sizes[compact.edge[:, side]])]).astype(np.int64)
        for side in (0, 1)
    ]


def witness_for(rng, compact):
    """Return random messages and prices."""
    pointers = pointers_of(compact)
    messages = [rng.integers(-30, 30, int(p[-1])) for p in pointers]
    time = np.flatnonzero(rng.random(len(compact.capacity)) < 0.7)
    return Witness(
        BITS, 2, time, rng.integers(0, 9, len(time)), *pointers, *messages, NO_STARS, NONE
    )


def parts_of(compact, w):
    """Return, in Python, the terms of nodes by strategy and of edges by pair, and the price paid."""
    c = compact
    prices = dict(zip(w.time.tolist(), w.price.tolist(), strict=True))
    nodes = []
    for v in range(len(c.node_ptr) - 1):
        live = sum(p for t, p in prices.items() if c.first[v] <= t < c.last[v])
        choices = range(c.node_ptr[v], c.node_ptr[v + 1])
        nodes.append([(int(c.cost[x]) << BITS) + (live * int(c.usage[x]) >> 2) for x in choices])
    edges = []
    for e, (u, v) in enumerate(c.edge.tolist()):
        low = w.to_low[w.low_ptr[e] : w.low_ptr[e + 1]].tolist()
        high = w.to_high[w.high_ptr[e] : w.high_ptr[e + 1]].tolist()
        table = np.array(c.table[c.edge_ptr[e] : c.edge_ptr[e + 1]]).reshape(len(low), len(high))
        edges.append(
            [
                [(int(table[x][y]) << BITS) - a - b for y, b in enumerate(high)]
                for x, a in enumerate(low)
            ]
        )
        nodes[u] = [value + a for value, a in zip(nodes[u], low, strict=True)]
        nodes[v] = [value + b for value, b in zip(nodes[v], high, strict=True)]
    paid = sum(p * int(c.capacity[t]) for t, p in prices.items())
    return nodes, edges, -(-paid // 4)


@pytest.mark.interpreted
def test_the_pass_is_the_sum_of_the_least_terms():
    """The bound, its numerator, and by how much each strategy lifts it."""
    count = 0
    for rng, compact in drawn(range(120)):
        w = witness_for(rng, compact)
        nodes, edges, paid = parts_of(compact, w)
        scaled = in_units(compact, w)
        found = exact_pass(scaled, w)
        total = sum(map(min, nodes)) + sum(min(map(min, rows)) for rows in edges) - paid
        assert found.scaled == total
        assert found.bound == -(-total // 2**BITS)
        slack = [[value - min(row) for value in row] for row in nodes]
        for (u, v), rows in zip(compact.edge.tolist(), edges, strict=True):
            least = min(map(min, rows))
            for x, row in enumerate(rows):
                slack[u][x] += min(row) - least
            for y, column in enumerate(zip(*rows, strict=True)):
                slack[v][y] += min(column) - least
        assert found.slack.tolist() == list(itertools.chain(*slack))
        count += 1
    assert count > 15


@pytest.mark.interpreted
def test_what_survives_lifts_the_bound_below_the_upper_one():
    """Strategies and pairs, each with the least of all else; at the limit they stay."""
    kept = dropped = 0
    for rng, compact in drawn(range(120, 240)):
        w = witness_for(rng, compact)
        _, edges, _ = parts_of(compact, w)
        scaled = in_units(compact, w)
        found = exact_pass(scaled, w)
        for more in (0, 1, 5, 20):
            upper = found.bound + more
            limit = max(-1, ((upper - 1) << BITS) - found.scaled)
            alive, pairs = survivors(scaled, w, found, upper)
            assert alive.tolist() == [slack <= limit for slack in found.slack.tolist()]
            for e, (u, v) in enumerate(compact.edge.tolist()):
                rows = edges[e]
                least = min(map(min, rows))
                table = pairs[compact.edge_ptr[e] : compact.edge_ptr[e + 1]]
                table = table.reshape(len(rows), len(rows[0]))
                for x, y in itertools.product(range(len(rows)), range(len(rows[0]))):
                    own = int(found.slack[compact.node_ptr[u] + x]) - (min(rows[x]) - least)
                    other = int(found.slack[compact.node_ptr[v] + y])
                    other -= min(row[y] for row in rows) - least
                    lifted = rows[x][y] - least + own + other
                    assert table[x][y] == (lifted <= limit)
                    kept, dropped = kept + table[x][y], dropped + (not table[x][y])
    assert min(kept, dropped) > 100


@pytest.mark.interpreted
def test_prices_and_messages_are_rounded_to_what_fits():
    """Prices down, messages to the nearest; the numbers of a pass stay below 2^60, however large
    they are made.
    """
    for number, (rng, compact) in enumerate(itertools.islice(drawn(range(90)), 12)):
        if number % 2:
            compact = compact._replace(cost=compact.cost * 2**35)
        pointers = pointers_of(compact)
        degree = int(np.diff(compact.adj_ptr).max())
        for scale in (1.0, 1e6, 1e15, 1e30):
            messages = [rng.normal(size=int(p[-1])) * scale for p in pointers]
            prices = rng.random(len(compact.capacity)) * scale
            most = float(max(compact.cost.max(), compact.table.max()))
            sent = tuple(pointers), tuple(messages)
            w = witness_of(compact, prices, *sent, (NO_STARS, NONE.astype(float)), most)
            live = np.zeros(len(prices), dtype=np.int64)
            live[w.time] = w.price
            priced = prices_of_nodes(compact, live.astype(object))
            for v in range(len(compact.node_ptr) - 1):
                choices = slice(compact.node_ptr[v], compact.node_ptr[v + 1])
                terms = [
                    (int(cost) << w.cost_bits) + (int(priced[v]) * int(usage) >> w.price_bits)
                    for cost, usage in zip(
                        compact.cost[choices], compact.usage[choices], strict=True
                    )
                ]
                sent = max(np.abs(w.to_low).max(), np.abs(w.to_high).max())
                assert max(terms) + degree * int(sent) < 2**59 + 2**20
            if scale == 1.0 and not number % 2:
                unit = 2.0 ** (w.cost_bits + w.price_bits)
                assert w.cost_bits == 20
                for got, part in ((w.to_low, messages[0]), (w.to_high, messages[1])):
                    assert got.tolist() == [round(x * 2**20) for x in part]
                for t, price in enumerate(prices):
                    assert live[t] == int(np.floor(price * unit))


@pytest.mark.interpreted
def test_messages_of_many_neighbours_fit_together():
    """All messages that a node gets, its cost and a pair's stay below 2^60 in the units of a pass,
    and are not made smaller than that asks for.
    """
    seen = 0
    for seed in range(40):
        draft, alive = draft_of(draw_linked(seed, nodes=12)[0])
        compact = condense(draft, alive).compact
        degree = int(np.diff(compact.adj_ptr).max(initial=0))
        if degree < 6:
            continue
        seen += 1
        pointers = pointers_of(compact)
        for size in (1.0, 2.0**40, 2.0**45 + 1, 2.0**50, 2.0**53, 2.0**70):
            messages = tuple(np.full(int(p[-1]), size) for p in pointers)
            prices = np.zeros(len(compact.capacity))
            stars = NO_STARS, NONE.astype(float)
            w = witness_of(compact, prices, tuple(pointers), messages, stars, size)
            sent = max(int(w.to_low.max()), int(w.to_high.max()))
            dearest = int(min(size, 2.0**57)) << w.cost_bits if size < 2.0**60 else 0
            assert degree * sent + dearest < 2**60
            assert w.cost_bits == 20 or (degree + 3) * sent * 2 >= 2**58
    assert seen > 5
