"""The witness of a Lagrangian bound: prices on usage and messages along edges, in whole numbers,
that anyone can add up.

Prices and messages of the condensed problem are found as the bound finds them
(`bounds.lagrangian`), and carried over to the problem itself: an edge to a node with one strategy
that fits sends what it costs, and a strategy that never fits is asked for 2^62 more along every
edge, which costs nothing, as its node cannot use it. Where that is less than the bound, squares are
looked for, too (`bounds.squares`), and what they leave has edges between all nodes. What the
reductions and CP-SAT prove beyond all these has no witness.

References
----------
V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", IEEE TPAMI
28(10), 2006.
"""

from __future__ import annotations

import time
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeopt.model.arrays import UNLIMITED, Array, Flags, as_pairs, row_at, together
from placeopt.model.bound import Witness
from placeopt.model.uniform_flow import MOST_SENT
from placeopt.sharding.bounds.lagrangian import Dual
from placeopt.sharding.bounds.squares import COST_BITS, FITS, ROUND, Squares
from placeopt.sharding.compact import Condensed, condense, draft_of, times_of, usage_unit

if TYPE_CHECKING:
    from placeopt.sharding.bounds.exact_pass import Witness as Integers
    from placeopt.sharding.problem import ShardingProblem

    Tables = dict[tuple[int, int], Array]
    # by (u, v), u < v: to the strategies of u and of v
    Messages = dict[tuple[int, int], tuple[list[int], list[int]]]

MOST_BITS = 64
"""Of costs, in a witness."""

NEVER = 2**62
"""What a strategy that does not fit is asked for along every edge."""


class Sums(NamedTuple):
    """A witness over the problem itself: units of 2^-cost_bits, and of 2^-(cost_bits + price_bits)
    for prices.
    """

    cost_bits: int
    price_bits: int
    prices: list[tuple[int, int]]  # (time, price)
    stars: list[tuple[int, ...]]  # (node, strategy, time, price)
    messages: Messages
    squares: tuple[int, Array, list[int]] | None = None  # (bits of shift, vectors, nodes)


def sharding_witness(problem: ShardingProblem, bound: int, method: str, seconds: float) -> Witness:
    """Return prices and messages that prove `bound`, or as much of it as they reach in `seconds`.

    Parameters
    ----------
    bound, method : a bound that is known to hold, and what found it.
    """
    draft, fits = draft_of(problem)
    condensed = condense(draft, fits)
    integers, now, seconds = None, time.perf_counter(), max(seconds, 1.0)
    count = int(problem.node_ptr[-1])
    short = count * (count + condensed.compact.num_nodes) <= MOST_SENT
    if condensed.compact.num_nodes and usage_unit(problem) == 1:
        integers = _improved(condensed, bound, now + seconds / (1 + short))
    tables = merged_tables(problem)
    sums = _carried_over(problem, condensed, fits, tables, integers)
    reached = _added_up(problem, fits, tables, sums)
    if reached < 0:  # where costs are large, prices may cost more than they show
        sums = _carried_over(problem, condensed, fits, tables, None)
        reached = _added_up(problem, fits, tables, sums)
    content = _content(problem, sums)
    if integers and short and reached < bound:
        found = _squared(problem, condensed, fits, tables, bound, now + seconds)
        if found and found[0] > reached:
            reached, content = found
    return Witness(
        max(0, min(bound, reached)), method if reached >= bound else "lagrangian", content
    )


def _content(problem: ShardingProblem, sums: Sums) -> dict[str, Any]:
    """Return a witness as plain JSON values."""
    content = {
        "bits": [sums.cost_bits, sums.price_bits],
        "prices": [list(pair) for pair in sums.prices],
        "stars": [list(row) for row in sums.stars],
        "messages": [[u, v, *both] for (u, v), both in sums.messages.items()],
    }
    if sums.squares:
        shift, vectors, nodes = sums.squares
        rows = [
            [v, vectors[1 + problem.node_ptr[v] : 1 + problem.node_ptr[v + 1]].tolist()]
            for v in nodes
        ]
        content["squares"] = [shift, vectors[0].tolist(), rows]
    return content


def _squared(
    problem: ShardingProblem,
    condensed: Condensed,
    fits: Flags,
    tables: Tables,
    bound: int,
    end: float,
) -> tuple[int, dict[str, Any]] | None:
    """Return what squares prove with prices and messages until `end`, and the witness; None where
    costs are too large for squares in whole numbers.
    """
    goal, nodes = max(1, bound - condensed.offset), sorted(condensed.node.tolist())
    if 2 * goal >= 2**COST_BITS:
        return None
    squares = Squares(condensed.compact, 2 * goal, np.zeros(len(condensed.compact.capacity)))
    proof = squares.prove(2 * goal)
    while proof.bound < goal and squares.misfit > FITS and time.perf_counter() < end:
        for _ in range(ROUND):
            squares.step()
        proof = max(proof, squares.prove(2 * goal), key=lambda x: x.bound)
    bits, shift = proof.bits + proof.witness.cost_bits, proof.witness.cost_bits
    if bits > MOST_BITS:
        return None
    sizes = problem.num_choices.tolist()
    pairs = {(u, v): np.full((sizes[u], sizes[v]), 0, object) for u, v in combinations(nodes, 2)}
    tables = {**pairs, **tables}
    vectors = np.zeros((1 + len(fits), proof.vectors.shape[1]), np.int64)
    starts = problem.node_ptr[condensed.node]
    own = np.repeat(starts, condensed.compact.num_choices) + condensed.strategy
    vectors[0], vectors[1 + own] = proof.vectors[0], proof.vectors[1:]
    left = condensed._replace(compact=proof.rest)
    integers = proof.witness._replace(cost_bits=bits)
    sums = _carried_over(problem, left, fits, tables, integers)
    sums = sums._replace(squares=(shift, vectors, nodes))
    return _added_up(problem, fits, tables, sums), _content(problem, sums)


def _improved(
    condensed: Condensed, bound: int, end: float, patience: int = 500, look: int = 20
) -> Integers:
    """Return prices and messages once they prove the bound or the time is over.

    Parameters
    ----------
    patience : steps without a better bound after which the search ends. look : after which stars
    are looked for.
    """
    dual = Dual(condensed.compact)
    goal = max(1, bound - condensed.offset)
    dual.aim(goal + max(1, goal // 50))
    best, left = dual.bound, patience
    while dual.bound < goal and left and time.perf_counter() < end:
        dual.step()
        if left % look == 0:
            dual.look_for_stars()
        best, left = (dual.bound, patience) if dual.bound > best else (best, left - 1)
    return dual.certify()[1]


def _carried_over(
    problem: ShardingProblem,
    condensed: Condensed,
    fits: Flags,
    tables: Tables,
    integers: Integers | None,
) -> Sums:
    """Return the witness of the condensed problem as one of the problem."""
    bits = integers.cost_bits if integers else 0
    messages = _sent_by_fixed(problem, condensed, fits, tables, bits)
    if integers is None:
        return Sums(0, 0, [], [], messages)
    _send_on(condensed, integers, messages)
    moments, rows = times_of(problem)[condensed.time], integers.stars
    stars = (
        condensed.node[rows.node],
        condensed.strategy[rows.strategy],
        moments[rows.time],
        integers.star_price,
    )
    return Sums(
        bits,
        integers.price_bits,
        list(together(moments[integers.time], integers.price)),
        [row for row in zip(*(x.tolist() for x in stars), strict=True) if row[-1]],
        messages,
    )


def _sent_by_fixed(
    problem: ShardingProblem, condensed: Condensed, fits: Flags, tables: Tables, bits: int
) -> Messages:
    """Return the messages of edges to nodes with one strategy: what it costs; 0 along others."""
    fixed = condensed.fixed.tolist()
    allowed = [np.flatnonzero(fits[a:b]) for a, b in pairwise(problem.node_ptr)]
    messages = {}
    for (u, v), table in tables.items():
        to_u, to_v = ([-NEVER] * size for size in table.shape)
        for x in allowed[u]:
            to_u[x] = (
                0 if fixed[v] < 0 or fixed[u] >= 0 else min(int(table[x, fixed[v]]) << bits, NEVER)
            )
        for y in allowed[v]:
            to_v[y] = 0 if fixed[u] < 0 else min(int(table[fixed[u], y]) << bits, NEVER)
        messages[u, v] = to_u, to_v
    return messages


def _send_on(condensed: Condensed, integers: Integers, messages: Messages) -> None:
    """Write the messages of the condensed problem to the edges of the problem."""
    compact, sent = condensed.compact, (integers.to_low, integers.to_high)
    for e, (low, high) in enumerate(compact.edge.tolist()):
        ends = int(condensed.node[low]), int(condensed.node[high])
        turned = ends[0] > ends[1]
        both_ways = messages[ends[::-1] if turned else ends]
        for side, (new, pointer) in enumerate(((low, integers.low_ptr), (high, integers.high_ptr))):
            strategies = row_at(condensed.strategy, compact.node_ptr, new).tolist()
            values = row_at(sent[side], pointer, e).tolist()
            for x, value in zip(strategies, values, strict=True):
                both_ways[side ^ turned][x] = value


def merged_tables(problem: ShardingProblem) -> Tables:
    """Return the costs of every pair of nodes (u < v) with edges between them, as Python integers:
    rows are u's strategies.
    """
    tables: Tables = {}
    for e, (u, v) in enumerate(problem.edge.tolist()):
        table = problem.edge_table(e).astype(object)
        key, table = ((u, v), table) if u < v else ((v, u), table.T)
        tables[key] = tables[key] + table if key in tables else table
    return tables


def _added_up(problem: ShardingProblem, fits: Flags, tables: Tables, sums: Sums) -> int:
    """Return what a witness proves, added up in Python's integers; see `bounds.exact_pass` for why
    it holds.
    """
    total = -sum(price for _, price in sums.prices) * problem.usage_limit >> sums.price_bits
    starts, node = problem.node_ptr.tolist(), []
    for v, (first, last) in enumerate(problem.interval.tolist()):
        price = sum(price for moment, price in sums.prices if first <= moment < last)
        span = slice(starts[v], starts[v + 1])
        cost, usage = problem.cost[span].astype(object), problem.usage[span].astype(object)
        node.append((cost << sums.cost_bits) + (price * usage >> sums.price_bits))
    tables = {pair: table << sums.cost_bits for pair, table in tables.items()}
    _add_stars(problem, fits, sums, node, tables)
    if sums.squares:
        total += _take_squares(problem, sums.squares, node, tables)
    for (u, v), table in tables.items():
        to_u, to_v = (np.array(x, object) for x in sums.messages[u, v])
        total += (table - to_u[:, None] - to_v[None, :]).min()
        for w, sent in ((u, to_u), (v, to_v)):
            node[w] = node[w] + sent
    total += sum(
        costs[fits[a:b]].min() for costs, (a, b) in zip(node, pairwise(starts), strict=True)
    )
    return int(-(-total >> sums.cost_bits))


def _take_squares(
    problem: ShardingProblem, squares: tuple[int, Array, list[int]], node: list[Any], tables: Tables
) -> int:
    """Take squares from the costs of nodes and tables, and return what is left of 0."""
    shift, vectors, nodes = squares
    product = (vectors @ vectors.T).astype(object) << shift
    span = {v: slice(1 + problem.node_ptr[v], 1 + problem.node_ptr[v + 1]) for v in nodes}
    for v in nodes:
        node[v] = node[v] - product.diagonal()[span[v]] - 2 * product[0, span[v]]
    for u, v in combinations(nodes, 2):
        tables[u, v] = tables[u, v] - 2 * product[span[u], span[v]]
    return -int(product[0, 0])


def _add_stars(
    problem: ShardingProblem, fits: Flags, sums: Sums, node: list[Any], tables: Tables
) -> None:
    """Change costs of nodes and tables by the prices of stars; see `bounds.stars`."""
    starts, usage = problem.node_ptr, problem.usage.astype(object)
    least = np.minimum.reduceat(np.where(fits, usage, UNLIMITED), starts[:-1])
    begin, end = problem.interval.T
    ends = as_pairs(list(tables))
    for v, x, moment, price in sums.stars:
        live = (begin <= moment) & (moment < end)
        own = usage[starts[v] + x] - least[v] if live[v] else 0
        room = problem.usage_limit - int(least[live].sum()) - own
        node[v][x] += -price * room >> sums.price_bits
        for low, high in ends[(ends == v).any(axis=1)].tolist():
            w = high if v == low else low
            if live[w]:
                more = price * (row_at(usage, starts, w) - least[w]) >> sums.price_bits
                row = tables[low, high][x] if v == low else tables[low, high][:, x]
                row += more
