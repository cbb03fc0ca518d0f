"""One exact pass over messages and prices: the bound they prove, in integers, and what no better
choice can use.

The certificate of the Lagrangian bound is a set of integers: messages in units of 2^-k costs, and
for a few time points t a price L_t >= 0 in units of 2^-(k + q) costs per usage. With P_v the sum of
L_t over the time points at which v is live, every choice x that keeps the capacities C_t costs, in
units of 2^-k, at least

    sum_v min_x b_v(x) + sum_e min_(x, y) d_e(x, y) - ceil(sum_t L_t C_t / 2^q),
    b_v(x) = 2^k c_v(x) + floor(P_v u_v(x) / 2^q) + sum_(e at v) m_(e to v)(x),
    d_e(x, y) = 2^k T_e(x, y) - m_(e to u)(x) - m_(e to v)(y).

Proof: the messages cancel; sum_v P_v u_v(x_v) = sum_t L_t usage_t(x) <= sum_t L_t C_t; floors and
the ceiling only lower the sum. Any integers prove something: rounding them costs strength, never
truth. Costs are whole numbers, so the bound is rounded up. If x_v = z, the bound rises at least by
b_v(z) - min b_v and, for each edge at v, by the smallest d_e in the row of z above the smallest of
the table: the slack of z. A strategy whose slack lifts the bound to the cost of a known choice is
in no better one. Prices of stars change costs (`stars`) before all this; they are in units of
2^-(k + q), too.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Array, Flags, Floats, Ints, running_sums
from placeopt.model.compiled import entry, row_of
from placeopt.sharding.bounds.stars import Stars, weigh_exactly
from placeopt.sharding.compact import MAX_TOTAL, Compact

SAFE_BITS = 60
"""Every number in the pass stays below 2^60, so that sums of two fit into 64 bits."""


class Witness(NamedTuple):
    """Messages and prices as integers; see the module."""

    cost_bits: int  # k
    price_bits: int  # q
    time: Ints  # time points with a price
    price: Ints  # their prices
    low_ptr: Ints  # (m + 1,)
    high_ptr: Ints  # (m + 1,)
    to_low: Ints
    to_high: Ints
    stars: Stars
    star_price: Ints


class Pass(NamedTuple):
    """What a pass found: the bound, its exact numerator over 2^cost_bits, and slacks by strategy
    (in 2^-k costs).
    """

    bound: int
    scaled: int
    slack: Ints  # (S,)


def witness_of(
    compact: Compact,
    prices: Floats,
    pointers: tuple[Ints, Ints],
    messages: tuple[Floats, Floats],
    stars: tuple[Stars, Floats],
    most_cost: float,
) -> Witness:
    """Round prices by time point and messages to integers as fine as 64 bits allow.

    Prices and messages that are too large for sums in 64 bits, as under a dual without a bound, are
    made smaller first: any integers prove something, but only sums that do not wrap around are
    sums.

    Parameters
    ----------
    pointers, messages : where the messages of each edge to its smaller and its larger node begin,
    and those messages. stars : and their prices. most_cost : the largest cost of a node or a pair,
    those of stars included.
    """
    node_prices = prices_of_nodes(compact, prices)
    priced = float((compact.most_usage * node_prices).max(initial=0.0))
    rows, star_prices = stars
    most_usage = max(compact.usage.max(initial=0), compact.capacity.max(initial=0))
    priced = max(priced, float(star_prices.max(initial=0.0)) * float(most_usage))
    degree = int(np.diff(compact.adj_ptr).max(initial=0))
    most = 2.0 ** (SAFE_BITS - 1) / (degree + 3)
    if priced > most:
        star_prices = star_prices * (most / priced)
        prices, priced = prices * (most / priced), most
    messages = np.clip(messages[0], -most, most), np.clip(messages[1], -most, most)
    size = max(most_cost, 1.0, priced)
    for part in messages:
        size = max(size, float(np.abs(part).max(initial=0.0)))
    cost_bits = max(0, min(20, SAFE_BITS - 1 - int(np.ceil(np.log2(size * (degree + 3))))))
    price_bits = max(
        0, min(40, SAFE_BITS - 1 - cost_bits - int(np.ceil(np.log2(max(priced, 1.0)))))
    )
    unit = 2.0 ** (cost_bits + price_bits)
    whole = np.floor(prices * unit)
    whole = np.where(whole < 2.0**SAFE_BITS, whole, 0.0).astype(np.int64)
    time = np.flatnonzero(whole > 0)
    to_low, to_high = (np.rint(part * 2.0**cost_bits).astype(np.int64) for part in messages)
    paid = np.floor(star_prices * unit).astype(np.int64)
    return Witness(cost_bits, price_bits, time, whole[time], *pointers, to_low, to_high, rows, paid)


def in_units(compact: Compact, witness: Witness, most: int = MAX_TOTAL) -> Compact:
    """Return a problem with costs of at most `most` in the units of a witness, and as the prices of
    stars change them.
    """
    cost, table = np.minimum(compact.cost, most), np.minimum(compact.table, most)
    cost <<= witness.cost_bits
    table <<= witness.cost_bits
    prices, bits = witness.star_price, witness.price_bits
    weigh_exactly(compact, witness.stars, prices, bits, cost, table)
    return compact._replace(cost=cost, table=table)


def prices_of_nodes(compact: Compact, prices: Array) -> Array:
    """Return the sum of the prices of the time points at which each node is live."""
    total = running_sums(prices)
    return total[compact.last] - total[compact.first]


def exact_pass(compact: Compact, witness: Witness) -> Pass:
    """Return what a witness proves of a compact problem whose costs are in its units."""
    prices = np.zeros(len(compact.capacity), np.int64)
    prices[witness.time] = witness.price
    words, slack = _pass(compact, witness, prices_of_nodes(compact, prices))
    paid = sum(
        int(p) * int(c) for p, c in zip(witness.price, compact.capacity[witness.time], strict=True)
    )
    scaled = (int(words[0]) << 32) + int(words[1]) + (-paid >> witness.price_bits)
    return Pass(-(-scaled >> witness.cost_bits), scaled, slack)


@entry
def _pass(c, w, price):
    """Return the sum of the minima in two words of 32 bits, and the slacks."""
    node_ptr = c.node_ptr
    low = (np.int64(1) << 32) - 1
    words = np.zeros(2, np.int64)
    belief = np.empty(len(c.cost), np.int64)
    slack = np.zeros(len(c.cost), np.int64)
    for v in range(len(node_ptr) - 1):
        for x in row_of(node_ptr, v):
            belief[x] = c.cost[x] + ((price[v] * c.usage[x]) >> w.price_bits)
    for e in range(len(c.edge)):
        u, v = c.edge[e, 0], c.edge[e, 1]
        rows, columns = node_ptr[u + 1] - node_ptr[u], node_ptr[v + 1] - node_ptr[v]
        row_least = np.full(rows, 2**62, np.int64)
        column_least = np.full(columns, 2**62, np.int64)
        for x in range(rows):
            belief[node_ptr[u] + x] += w.to_low[w.low_ptr[e] + x]
            for y in range(columns):
                value = c.table[c.edge_ptr[e] + x * columns + y]
                value -= w.to_low[w.low_ptr[e] + x] + w.to_high[w.high_ptr[e] + y]
                row_least[x] = min(row_least[x], value)
                column_least[y] = min(column_least[y], value)
        least = row_least.min()
        words[0] += least >> 32
        words[1] += least & low
        for x in range(rows):
            slack[node_ptr[u] + x] += row_least[x] - least
        for y in range(columns):
            belief[node_ptr[v] + y] += w.to_high[w.high_ptr[e] + y]
            slack[node_ptr[v] + y] += column_least[y] - least
    for v in range(len(node_ptr) - 1):
        least = belief[node_ptr[v] : node_ptr[v + 1]].min()
        words[0] += least >> 32
        words[1] += least & low
        for x in row_of(node_ptr, v):
            slack[x] += belief[x] - least
    return words, slack


def survivors(compact: Compact, witness: Witness, found: Pass, upper: int) -> tuple[Flags, Flags]:
    """Return which strategies, and which pairs of strategies of an edge, a choice of less than
    `upper` can use; costs of the compact problem are in the units of the witness.

    A pair (x, y) lifts the bound by d_e(x, y) above the smallest d_e, and by the slacks of x and y
    but for their share of this edge.
    """
    limit = ((upper - 1) << witness.cost_bits) - found.scaled
    limit = max(-1, min(limit, 2**SAFE_BITS))
    alive = found.slack <= limit
    pairs = np.ones(len(compact.table), np.bool_)
    _pairs(compact, witness, found.slack, limit, pairs)
    return alive, pairs


@entry
def _pairs(c, w, slack, limit, pairs):
    """Write which pairs survive."""
    for e in range(len(c.edge)):
        u, v = c.edge[e, 0], c.edge[e, 1]
        rows, columns = c.node_ptr[u + 1] - c.node_ptr[u], c.node_ptr[v + 1] - c.node_ptr[v]
        value = np.empty((rows, columns), np.int64)
        row_least = np.full(rows, 2**62, np.int64)
        column_least = np.full(columns, 2**62, np.int64)
        for x in range(rows):
            for y in range(columns):
                d = c.table[c.edge_ptr[e] + x * columns + y]
                d -= w.to_low[w.low_ptr[e] + x] + w.to_high[w.high_ptr[e] + y]
                value[x, y] = d
                row_least[x] = min(row_least[x], d)
                column_least[y] = min(column_least[y], d)
        least = row_least.min()
        for x in range(rows):
            own = slack[c.node_ptr[u] + x] - (row_least[x] - least)
            for y in range(columns):
                other = slack[c.node_ptr[v] + y] - (column_least[y] - least)
                pairs[c.edge_ptr[e] + x * columns + y] = value[x, y] - least + own + other <= limit
