"""Random small sharding problems, and the slow, obvious oracle: every choice, point by point, in
plain Python.
"""

from __future__ import annotations

import itertools
import random

import numpy as np

from placeopt.sharding.contest_format import from_contest

FORBIDDEN = 10**18


def draw(seed, nodes=None, structure=None):
    """Return (problem, the parsed JSON it was made of): parallel and turned edges, huge costs,
    perhaps infeasible.
    """
    rng = random.Random(seed)
    n = nodes or rng.choice([1, 2, 3, 4, 4, 5])
    sizes = [rng.choice([1, 1, 2, 2, 3]) for _ in range(n)]
    top = rng.choice([1, 5, 100])
    forbidden = rng.choice([0.0, 0.0, 0.3])
    usage_top = rng.choice([0, 3, 3, 10, FORBIDDEN])
    horizon = rng.choice([1, 3, 6])

    def cost():
        return FORBIDDEN if rng.random() < forbidden else rng.randint(0, top)

    starts = [rng.randint(0, horizon) for _ in range(n)]
    intervals = [[s, s + rng.choice([0, 1, 1, 2, horizon])] for s in starts]
    usages = [[rng.randint(0, usage_top) for _ in range(k)] for k in sizes]
    count = 0 if n == 1 else rng.randint(0, 2 * n)
    kind = structure or rng.choice(["any", "any", "tree"])
    pairs = [rng.sample(range(n), 2) for _ in range(count)]
    if kind == "tree":
        pairs = [rng.sample([v, rng.randrange(v)], 2) for v in range(1, n)]
    total = sum(max(row) for row in usages)
    data = {
        "problem": {
            "name": f"random-{seed}",
            "nodes": {
                "intervals": intervals,
                "costs": [[cost() for _ in range(k)] for k in sizes],
                "usages": usages,
            },
            "edges": {
                "nodes": pairs,
                "costs": [[cost() for _ in range(sizes[u] * sizes[v])] for u, v in pairs],
            },
            "usage_limit": rng.choice([total, rng.randint(0, total), rng.randint(0, total)]),
        }
    }
    return from_contest(data), data


def draw_linked(seed, nodes=6):
    """Return (problem, parsed JSON): nodes of two to four strategies, most edges forbid all pairs
    but one per strategy.
    """
    rng = random.Random(seed)
    sizes = [rng.choice([2, 3, 3, 4]) for _ in range(nodes)]
    pairs = [rng.sample(range(nodes), 2) for _ in range(rng.randint(nodes - 1, 2 * nodes))]
    tables = []
    for u, v in pairs:
        table = [[rng.randint(0, 9) for _ in range(sizes[v])] for _ in range(sizes[u])]
        if rng.random() < 0.6:
            shift = rng.randrange(4)
            for x in range(sizes[u]):
                for y in range(sizes[v]):
                    if (x + shift) % sizes[v] != y and (y + shift) % sizes[u] != x:
                        table[x][y] = FORBIDDEN
        tables.append([value for row in table for value in row])
    starts = [rng.randint(0, 4) for _ in range(nodes)]
    usages = [[rng.randint(0, 5) for _ in range(k)] for k in sizes]
    total = sum(max(row) for row in usages)
    data = {
        "problem": {
            "name": f"linked-{seed}",
            "nodes": {
                "intervals": [[s, s + rng.choice([0, 1, 3])] for s in starts],
                "costs": [[rng.randint(0, 9) for _ in range(k)] for k in sizes],
                "usages": usages,
            },
            "edges": {"nodes": pairs, "costs": tables},
            "usage_limit": rng.randint(total // 3, total),
        }
    }
    return from_contest(data), data


def draw_dense(seed):
    """Return (problem, parsed JSON) with an edge between any two nodes, for which messages prove
    less than squares.
    """
    rng = random.Random(seed)
    n, k = rng.choice([4, 5, 6]), rng.choice([2, 3])
    pairs = [[u, v] for u in range(n) for v in range(u + 1, n)]

    def rows(count, size, most):
        return [[rng.randint(0, most) for _ in range(size)] for _ in range(count)]

    data = {
        "problem": {
            "name": f"dense-{seed}",
            "nodes": {
                "intervals": [[0, 1]] * n,
                "costs": rows(n, k, 9),
                "usages": rows(n, k, 9),
            },
            "edges": {"nodes": pairs, "costs": rows(len(pairs), k * k, 99)},
            "usage_limit": rng.choice([4 * n, 9 * n]),
        }
    }
    return from_contest(data), data


def draw_huge(seed):
    """Return (problem, parsed JSON): costs and usages from 0 to 2^62, and a limit that a random
    choice just keeps or just misses.
    """
    rng = random.Random(seed)
    n = rng.choice([2, 3, 4, 5, 6])
    sizes = [rng.choice([1, 2, 2, 3]) for _ in range(n)]
    cost_top, usage_top = (rng.choice([9, 2**31, 2**52, 2**58, 2**61, 2**62 - 1]) for _ in range(2))

    def number(top):
        return rng.choice(
            [0, top - rng.randint(0, 3), rng.randint(0, top), rng.randint(0, min(top, 20))]
        )

    horizon = rng.choice([1, 2, 4])
    starts = [rng.randint(0, horizon) for _ in range(n)]
    intervals = [[s, s + rng.choice([0, 1, 1, 2, horizon])] for s in starts]
    usages = [[number(usage_top) for _ in range(k)] for k in sizes]
    pairs = [rng.sample(range(n), 2) for _ in range(rng.randint(0, 2 * n))]
    peak = max(
        sum(rng.choice(usages[v]) for v in range(n) if intervals[v][0] <= t < intervals[v][1])
        for t in range(9)
    )
    data = {
        "problem": {
            "name": f"huge-{seed}",
            "nodes": {
                "intervals": intervals,
                "costs": [[number(cost_top) for _ in range(k)] for k in sizes],
                "usages": usages,
            },
            "edges": {
                "nodes": pairs,
                "costs": [[number(cost_top) for _ in range(sizes[u] * sizes[v])] for u, v in pairs],
            },
            "usage_limit": min(2**62 - 1, max(0, peak - rng.choice([0, 0, 0, 1]))),
        }
    }
    return from_contest(data), data


def oracle(data):
    """Return {feasible choice: cost} of the contest's parsed JSON."""
    problem = data["problem"]
    nodes, edges, limit = problem["nodes"], problem["edges"], problem["usage_limit"]
    found = {}
    last = max(end for _, end in nodes["intervals"])
    live = [
        [v for v, (start, end) in enumerate(nodes["intervals"]) if start <= t < end]
        for t in range(last)
    ]
    for choice in itertools.product(*(range(len(row)) for row in nodes["costs"])):
        peak = max((sum(nodes["usages"][v][choice[v]] for v in some) for some in live), default=0)
        if peak > limit:
            continue
        cost = sum(row[x] for row, x in zip(nodes["costs"], choice, strict=True))
        for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True):
            cost += table[choice[u] * len(nodes["costs"][v]) + choice[v]]
        found[choice] = cost
    return found


def to_contest(problem):
    """Return a problem in the contest's format, as parsed JSON."""
    costs, usages = (
        [part.tolist() for part in np.split(values, problem.node_ptr[1:-1])]
        for values in (problem.cost, problem.usage)
    )
    tables = [problem.edge_table(e).ravel().tolist() for e in range(problem.num_edges)]
    body = {
        "name": problem.name,
        "nodes": {"intervals": problem.interval.tolist(), "costs": costs, "usages": usages},
        "edges": {"nodes": problem.edge.tolist(), "costs": tables},
    }
    if problem.limited:
        body["usage_limit"] = problem.usage_limit
    return {"problem": body}
