"""Stars: what the neighbours of a node may use together while it has one of its strategies.

Whatever a choice is, at every time point t and for every strategy x of a node v

    [v has x] sum over neighbours w live at t of u_w(x_w)  <=  [v has x] (C_t - u_v(x) if v is live)

since without v's strategy x both sides are 0, and with it the usages of v and its neighbours
keep the capacity. A product of two choices is what an edge has costs for, so that a price L >= 0 on
this row is a change of costs: L u_w(y) more for the pair (x, y), L (C_t - u_v(x)) less for x. No
feasible choice costs more than before, and the bound of the changed costs is a bound. A capacity
alone is kept by choices that use much and little by halves; a star sees that those of much do not
fit.

References
----------
H. D. Sherali, W. P. Adams, "A hierarchy of relaxations between the continuous and convex hull
representations for zero-one programming problems", SIAM Journal on Discrete Mathematics 3, 1990
(rows multiplied by a variable; of the products those along edges).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Floats, Ints, stable_order
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.sharding.bounds.message_passing import following
from placeopt.sharding.compact import Compact, Condensed, size_of, table_row


class Stars(NamedTuple):
    """Rows of stars of a compact problem."""

    node: Ints  # (R,) its centre
    strategy: Ints  # (R,) of all strategies, that of its centre
    time: Ints  # (R,)
    room: Ints  # (R,) for the neighbours


NO_STARS = Stars(*np.zeros((4, 0), np.int64))


def stars_of(compact: Compact, prices: Floats, below: float) -> Stars:
    """Return the stars that can bind where usage is dear.

    Looked at are the dearest time points, as many as an edge has pairs on average: that takes about
    as long as a sweep. Kept are at most as many stars as have half as many pairs as the tables, so
    that steps take at most about twice as long.

    Parameters
    ----------
    prices : of usage by time point. below : pairs of so much or more are not chosen.
    """
    edges = len(compact.edge)
    if not edges or not prices.any():
        return NO_STARS
    dear = stable_order(-prices)[: max(1, len(compact.table) // edges)]
    dear = dear[prices[dear] > 0]
    limit = min(below, 2.0**62)
    pairs = len(compact.table) // 2
    return Stars(*_stars_at(compact, dear, compact.most_usage, limit, pairs))


@entry
def _stars_at(c, times, most, below, pairs):
    """Return stars with at most so many pairs, those of the first time points first."""
    found = np.empty((4, 64), np.int64)
    count = 0
    for t in times:
        for v in range(len(most)):
            live = 0
            total = most[v] if c.first[v] <= t < c.last[v] else 0
            for i in row_of(c.adj_ptr, v):
                w = c.adj_node[i]
                if c.first[w] <= t < c.last[w] and most[w] > 0:
                    live += 1
                    total += most[w]
            if live < 2 or total <= c.capacity[t]:
                continue
            for s in row_of(c.node_ptr, v):
                room = c.capacity[t] - (c.usage[s] if c.first[v] <= t < c.last[v] else 0)
                if room < 0 or c.cost[s] >= below:
                    continue
                used, size = _most_around(c, v, s - c.node_ptr[v], t, below)
                if used <= room:
                    continue
                pairs -= size
                if pairs < 0:
                    return found[:, :count]
                if count == found.shape[1]:
                    more = np.empty((4, 2 * count), np.int64)
                    more[:, :count] = found
                    found = more
                found[0, count], found[1, count] = v, s
                found[2, count], found[3, count] = t, room
                count += 1
    return found[:, :count]


@inner_kernel
def _most_around(c, v, x, t, below):
    """Return the most that the neighbours of v use at t together with its strategy x, and the
    number of their strategies.
    """
    used = size = 0
    for i in row_of(c.adj_ptr, v):
        w = c.adj_node[i]
        if not c.first[w] <= t < c.last[w]:
            continue
        at, step, columns = table_row(c, v, w, c.adj_edge[i], x)
        most = 0
        for y in range(columns):
            if c.table[at + y * step] < below:
                most = max(most, c.usage[c.node_ptr[w] + y])
        used += most
        size += columns
    return used, size


@entry
def weigh(f, c, stars, change):
    """Change costs as the prices of stars change."""
    for r in range(len(stars.node)):
        if change[r] == 0.0:
            continue
        v, s, t = stars.node[r], stars.strategy[r], stars.time[r]
        x, size = s - c.node_ptr[v], size_of(c, v)
        f.cost[s] -= change[r] * stars.room[r]
        for i in row_of(c.adj_ptr, v):
            w, e = c.adj_node[i], c.adj_edge[i]
            if not c.first[w] <= t < c.last[w]:
                continue
            at, step, columns = table_row(c, v, w, e, x)
            # of the other order of the table
            back, other = c.edge_ptr[e] + (x if v < w else x * columns), size if v < w else 1
            for y in range(columns):
                more = change[r] * c.usage[c.node_ptr[w] + y]
                f.table[at + y * step] += more
                f.turned[back + y * other] += more


@entry
def weigh_exactly(c, stars, price, bits, cost, table):
    """Change whole costs by prices of 2^-bits of their unit, rounded so that the bound is less."""
    for r in range(len(stars.node)):
        v, s, t = stars.node[r], stars.strategy[r], stars.time[r]
        cost[s] += (-price[r] * stars.room[r]) >> bits
        for i in row_of(c.adj_ptr, v):
            w = c.adj_node[i]
            if c.first[w] <= t < c.last[w]:
                at, step, columns = table_row(c, v, w, c.adj_edge[i], s - c.node_ptr[v])
                for y in range(columns):
                    table[at + y * step] += (price[r] * c.usage[c.node_ptr[w] + y]) >> bits


@entry
def excess(f, c, stars, chains):
    """Return by how much the cheapest choices of the chains pass the room of stars: the gradient of
    the bound with respect to their prices.
    """
    found = np.empty(len(stars.node))
    for r in range(len(found)):
        v, s, t = stars.node[r], stars.strategy[r], stars.time[r]
        x = s - c.node_ptr[v]
        total = -stars.room[r] * chains.weight[s]
        for i in row_of(c.adj_ptr, v):
            w, e = c.adj_node[i], c.adj_edge[i]
            if c.first[w] <= t < c.last[w]:
                if v < f.core and i == f.core_ptr[v]:
                    total += _above(f, v, w, e, x, chains.weight)
                elif w < f.core:
                    if chains.weight[s] > 0.0:
                        total += chains.weight[s] * f.usage[f.node_ptr[w] + following(f, w, e, x)]
                else:
                    mine, other = chains.low[e], chains.high[e]
                    if v > w:
                        mine, other = other, mine
                    if mine == x:
                        total += f.usage[f.node_ptr[w] + other]
        found[r] = total
    return found


@inner_kernel
def _above(f, v, w, e, x, weight):
    """Return the usage of the parent w of v over the choices in which v has x."""
    total = 0.0
    for y in row_of(f.node_ptr, w):
        if weight[y] > 0.0 and following(f, v, e, y - f.node_ptr[w]) == x:
            total += weight[y] * f.usage[y]
    return total


def carried(old: Compact, priced: tuple[Stars, Floats], part: Condensed, new: Stars) -> Floats:
    """Return the prices that stars of a part of a problem had in it, 0 for those that were none.

    Parameters
    ----------
    old, priced : the problem, its stars and their prices. part : how the part was made of it. new :
    stars of the part.
    """
    (stars, prices), count = priced, len(old.capacity)
    keys = (stars.strategy * count + stars.time).tolist()
    known = dict(zip(keys, prices.tolist(), strict=True))
    strategy = old.node_ptr[part.node[new.node]] + part.strategy[new.strategy]
    keys = (strategy * count + part.time[new.time]).tolist()
    return np.array([known.get(key, 0.0) for key in keys])
