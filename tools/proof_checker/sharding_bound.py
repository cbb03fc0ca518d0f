"""Prices on usage and messages along edges prove a bound on the cost (V. Kolmogorov, 2006).

Prices L >= 0 [time, L] are in units of 2^-(k + q), messages [u, v, to u, to v], u < v, in units of
2^-k. Let P be the sum of the prices of the times at which a node is live. In units of 2^-k, every
choice that keeps the limit C costs at least

    sum over nodes of min over x of [2^k cost(x) + floor(P usage(x) / 2^q) + messages to x]
    + sum over pairs of min over x, y of [2^k table(x, y) - message to x - message to y]
    - ceil(sum of L C / 2^q)

For the choice itself the messages cancel, and its priced usage is at most the priced limit. A
strategy that passes the limit on its own, at a time at which its node is live, is in no choice.
Without a limit no price can be paid for. Any other integers prove something, so that none has to be
trusted. Stars (`sharding_stars`) and squares (`sharding_squares`) change costs before all this.
"""

from proof_checker.reading import (
    INFINITE,
    NUMBER,
    demand,
    distinct,
    entries,
    numbers,
    require,
    table,
    whole,
)
from proof_checker.sharding import sums_before
from proof_checker.sharding_squares import with_squares
from proof_checker.sharding_stars import with_stars


def sharding_bound(problem, bound, content, _believed, _solution=None):
    """Verify that prices and messages prove a bound."""
    k, q = numbers(content["bits"], 2, 0, 64)
    prices = table(content["prices"], None, 2, 0, NUMBER)
    price = sum(level for _, level in prices)
    require(price == 0 or problem.limit < INFINITE, "prices: expected none, as usage has no limit")
    least = -price * problem.limit >> q if price else 0
    paid_before = sums_before(prices)
    node = [priced(problem, v, paid_before, k, q) for v in range(len(problem.cost))]
    tables = {
        pair: [[cost << k for cost in row] for row in t] for pair, t in problem.tables.items()
    }
    with_stars(problem, content.get("stars", []), q, node, tables)
    if "squares" in content:
        least += with_squares(content["squares"], node, tables)
    sent = read_messages(problem, tables, content["messages"])
    least += pairs_after_messages(tables, sent, node) + sum(map(min, node))
    demand(least < INFINITE, "a node has no strategy within the limit, but a solution exists")
    proved = -(-least >> k)
    demand(whole(bound) <= proved, f"prices and messages prove {proved} only")


def pairs_after_messages(tables, sent, node):
    """Return what all pairs cost at least less their messages, which are paid to the nodes."""
    least = 0
    for (u, v), rows in tables.items():
        to_u, to_v = sent.get((u, v), ([0] * len(node[u]), [0] * len(node[v])))
        least += min(
            cost - x - y
            for x, row in zip(to_u, rows, strict=True)
            for y, cost in zip(to_v, row, strict=True)
        )
        for w, message in ((u, to_u), (v, to_v)):
            node[w] = [x + y for x, y in zip(node[w], message, strict=True)]
    return least


def priced(problem, v, paid_before, k, q):
    """Return cost and priced usage of a node's strategies, INFINITE where one is in no choice."""
    start, end = problem.interval[v]
    paid = paid_before(end) - paid_before(start)
    return [
        INFINITE if start < end and usage > problem.limit else (cost << k) + (paid * usage >> q)
        for cost, usage in zip(problem.cost[v], problem.usage[v], strict=True)
    ]


def read_messages(problem, tables, messages):
    """Return pairs of nodes with edges to what is sent to the strategies of both."""
    found = {}
    for u, v, *sent in (entries(row, 4) for row in entries(messages)):
        distinct([u, v], len(problem.cost))
        new = (u, v) in tables and (u, v) not in found
        require(
            new,
            f"messages: expected once two nodes with an edge, the smaller first, received {u}, {v}",
        )
        sizes = len(problem.cost[u]), len(problem.cost[v])
        found[u, v] = tuple(
            numbers(x, size, -NUMBER, NUMBER) for x, size in zip(sent, sizes, strict=True)
        )
    return found
