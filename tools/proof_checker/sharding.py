"""Sharding problems: one strategy per node, costs of nodes and edges, a limit on usage.

Node v has the strategies node_ptr[v] .. node_ptr[v + 1] - 1 of `cost` and `usage` and is live at
the times start .. end - 1 of its interval, at none if start = end. An edge has a table of costs,
row by row over the strategies of its first node; edges between the same two nodes add up. A limit
of 2^62 is none.
"""

from bisect import bisect_left
from itertools import pairwise

from proof_checker.reading import (
    INFINITE,
    NUMBER,
    demand,
    distinct,
    entries,
    fields,
    numbers,
    require,
    table,
    texts,
    whole,
)

UNLIMITED = 2**62
REQUIRED = "name usage_limit node_ptr cost usage interval edge edge_cost"


class Sharding:
    """`cost` and `usage` by node and strategy, `tables` by pair of nodes u < v."""

    objective = "cost"

    def __init__(self, data):
        fields(data, REQUIRED, "node_names strategy_names")
        texts([data["name"]], 1)
        pointer = numbers(data["node_ptr"], None, 0, NUMBER)
        rises = len(pointer) > 1 and pointer[0] == 0 and all(a < b for a, b in pairwise(pointer))
        require(rises, "node_ptr: expected numbers that rise from 0, two at least")
        n, total = len(pointer) - 1, pointer[-1]
        flat = (numbers(data[key], total, 0, NUMBER) for key in ("cost", "usage"))
        self.cost, self.usage = ([row[a:b] for a, b in pairwise(pointer)] for row in flat)
        self.interval = table(data["interval"], n, 2, 0, NUMBER)
        require(all(a <= b for a, b in self.interval), "interval: expected start <= end")
        limit = whole(data["usage_limit"], 0, UNLIMITED)
        self.limit = INFINITE if limit == UNLIMITED else limit
        texts(data.get("node_names", [""] * n), n)
        texts(data.get("strategy_names", [""] * total), total)
        self._read_edges(data, n)

    def _read_edges(self, data, n):
        self.tables, at, flat = {}, 0, numbers(data["edge_cost"], None, 0, NUMBER)
        for pair in entries(data["edge"]):
            u, v = distinct(entries(pair, 2), n)
            rows, width = len(self.cost[u]), len(self.cost[v])
            part = [flat[at + x * width : at + (x + 1) * width] for x in range(rows)]
            at += rows * width
            require(at <= len(flat), "edge_cost: expected one table per edge, it is too short")
            if u > v:
                u, v, part = v, u, [list(column) for column in zip(*part, strict=True)]
            self.tables[u, v] = added(self.tables[u, v], part) if (u, v) in self.tables else part
        require(at == len(flat), "edge_cost: expected one table per edge, it is too long")


def added(first, second):
    """Return the sum of two tables of one shape."""
    rows = zip(first, second, strict=True)
    return [[a + b for a, b in zip(x, y, strict=True)] for x, y in rows]


def sums_before(rows):
    """Return a function of a time: the sum of the amounts of rows [time, amount] before it."""
    times, sums = [], [0]
    for time, amount in sorted(rows):
        times.append(time)
        sums.append(sums[-1] + amount)
    return lambda time: sums[bisect_left(times, time)]


def sharding_cost(problem, solution, schedule):
    """Return the cost of a choice whose usage keeps the limit wherever it changes."""
    fields(schedule, "")
    fields(solution, "strategies")
    chosen = numbers(solution["strategies"], len(problem.cost))
    changes = {}
    for v, (start, end) in enumerate(problem.interval):
        whole(chosen[v], 0, len(problem.cost[v]) - 1)
        changes[start] = changes.get(start, 0) + problem.usage[v][chosen[v]]
        changes[end] = changes.get(end, 0) - problem.usage[v][chosen[v]]
    used = 0
    for moment in sorted(changes):
        used += changes[moment]
        demand(used <= problem.limit, f"the usage at {moment} is {used}, the limit {problem.limit}")
    nodes = sum(costs[x] for costs, x in zip(problem.cost, chosen, strict=True))
    return nodes + sum(rows[chosen[u]][chosen[v]] for (u, v), rows in problem.tables.items())
