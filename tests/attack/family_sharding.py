"""Sharding: every choice of strategies, point by point. The oracle uses no placeopt."""

from __future__ import annotations

import random
from contextlib import ExitStack
from itertools import islice, product
from unittest import mock

import numpy as np
from limits import clock

import placeopt as po
from placeopt.model.errors import SolverError
from placeopt.model.objective import objective_of
from placeopt.sharding import reduction
from placeopt.sharding.compact import condense, draft_of, usage_unit
from placeopt.sharding.problem import ShardingProblem, ShardingSolution
from placeopt.sharding.reduction import reduce

NO_LIMIT = 2**62


def draw_tables(rng):
    """Return (costs, usages, intervals, edges, tables, limit); costs may be huge, most pairs of an
    edge forbidden.
    """
    n = rng.choice([1, 2, 3, 3, 4, 4, 5])
    sizes = [rng.choice([1, 2, 2, 3]) for _ in range(n)]
    top, huge = rng.choice([1, 9, 100, 10**12]), rng.choice([0.0, 0.0, 0.2])
    worth = rng.choice([10**15, 2**58, 2**62 - 1])
    wide = rng.choice([0, 3, 10, 2**40, 2**61])

    def cost():
        return worth - rng.randrange(2) if rng.random() < huge else rng.randint(0, top)

    starts = [rng.randint(0, 3) for _ in range(n)]
    intervals = [[s, s + rng.choice([0, 1, 1, 2, 4])] for s in starts]
    usages = [[rng.randint(0, wide) for _ in range(k)] for k in sizes]
    edges = [rng.sample(range(n), 2) for _ in range(rng.randint(0, 2 * n))] if n > 1 else []
    linked = rng.random() < 0.6  # one strategy of the one for each of the other: followers
    tables = []
    for u, v in edges:
        shift = rng.randrange(3)
        tables.append(
            [
                [
                    worth if linked and (x + shift) % sizes[v] != y else cost()
                    for y in range(sizes[v])
                ]
                for x in range(sizes[u])
            ]
        )
    total = sum(map(max, usages))
    limit = rng.choice([NO_LIMIT, total, rng.randint(0, total), rng.randint(total // 3, total)])
    return (
        [[cost() for _ in range(k)] for k in sizes],
        usages,
        intervals,
        edges,
        tables,
        min(limit, NO_LIMIT),
    )


def value(drawn, choice):
    """Cost of a choice, None where the usage passes the limit; no limit is none."""
    costs, usages, intervals, edges, tables, limit = drawn
    for moment in {start for start, _ in intervals}:
        live = [v for v, (start, end) in enumerate(intervals) if start <= moment < end]
        if limit < NO_LIMIT and sum(usages[v][choice[v]] for v in live) > limit:
            return None
    total = sum(row[x] for row, x in zip(costs, choice, strict=True))
    return total + sum(
        table[choice[u]][choice[v]] for (u, v), table in zip(edges, tables, strict=True)
    )


def problem_of(seed, drawn):
    """Return the ShardingProblem of drawn tables."""
    costs, usages, intervals, edges, tables, limit = drawn
    return ShardingProblem(
        name=f"sharding-{seed}",
        node_ptr=np.cumsum([0, *map(len, costs)]),
        cost=np.array([x for row in costs for x in row]),
        usage=np.array([x for row in usages for x in row]),
        interval=np.array(intervals),
        edge=np.array(edges, dtype=np.int64).reshape(-1, 2),
        edge_cost=np.array([x for table in tables for row in table for x in row], dtype=np.int64),
        usage_limit=limit,
    )


SMALL = (("MOST_GROWTH", (1, 4)), ("MOST_WORK", (1,)), ("ROUNDS", (1,)))
"""Limits on the work of reductions, with other values."""


def reductions(problem, drawn, best, rng):
    """Return a difference where what the reductions leave for choices below some cost is not the
    best choice, or not worth what it was. Where usage is counted in larger units it is rounded up,
    and drafts may lack choices.
    """
    if usage_unit(problem) > 1:
        return []
    whole = condense(*draft_of(problem))
    if whole.compact.num_nodes == 0 or best >= NO_LIMIT // (
        problem.num_nodes + problem.num_edges + 1
    ):
        return []
    exceed = rng.choice([0, 1, 1, 5, 10**6, -1, -(best // 3)])
    most = max(0, best - whole.offset + exceed)
    looks = iter(range(rng.choice([10**9, 10**9, rng.randrange(6)])))
    with ExitStack() as stack:
        for name, values in SMALL:
            if rng.random() < 0.2:
                stack.enter_context(mock.patch.object(reduction, name, rng.choice(values)))
        reduced = reduce(whole, most, lambda: next(looks, None) is None)
    if reduced is None:
        return [f"reductions leave nothing below {most}"] if best - whole.offset < most else []
    for tenths in rng.sample(range(1, 10), 3):  # below the best there is nothing to lose
        rest = reduce(whole, max(0, (best - whole.offset) * tenths // 10))
        dear = () if rest is None else product(*map(range, rest.compact.num_choices.tolist()))
        for choice in islice(dear, 20):
            cost = value(drawn, tuple(int(x) for x in rest.expand(np.array(choice, np.int64))))
            if cost is not None and cost < best:
                return [f"reductions leave a choice of {cost}, the best has {best}"]
    left = []
    for _ in range(3):
        choice = np.array([rng.randrange(len(row)) for row in drawn[0]])
        kept = reduced.contract(choice)
        if kept is not None and not np.array_equal(reduced.expand(kept), choice):
            return [f"reductions take {choice} to {kept}, which is another choice"]
    for choice in product(*(range(int(x)) for x in reduced.compact.num_choices)):
        expanded = tuple(int(x) for x in reduced.expand(np.array(choice, dtype=np.int64)))
        if not np.array_equal(reduced.contract(np.array(expanded)), choice):
            return [f"reductions take {choice} to {expanded} and not back"]
        cost = value(drawn, expanded)
        if cost is not None:
            left.append(cost)
    if best - whole.offset < most and min(left, default=None) != best:
        return [f"reductions below {most} leave {min(left, default=None)} of {best}"]
    return []


def attack(seed):
    """Return (whether a choice is feasible, every difference)."""
    rng = random.Random(seed)
    drawn = draw_tables(rng)
    costs = drawn[0]
    values = [value(drawn, choice) for choice in product(*(range(len(row)) for row in costs))]
    best = min((x for x in values if x is not None), default=None)
    problem = problem_of(seed, drawn)
    objective, found = objective_of(problem), []
    for _ in range(3):
        choice = [rng.randrange(len(row) + (rng.random() < 0.05)) for row in costs]
        known = all(x < len(row) for x, row in zip(choice, costs, strict=True))
        expected = value(drawn, choice) if known else None
        said = objective.finish(problem, ShardingSolution(np.array(choice)))
        if said.value != expected:
            found.append(
                f"value of {choice}: {said.value} ({said.violations}), brute force {expected}"
            )
    with clock(rng.choice([4, 12])):
        report = objective.bounds(problem, 100.0, upper=rng.choice([None, best]))
    if report.infeasible and best is not None:
        found.append(f"called infeasible ({report.infeasible}), brute force has {best}")
    found += [
        f"bound {x} {y} exceeds the optimum {best}"
        for x, y in report.bounds.items()
        if best is not None and y > best
    ]
    if best is not None:
        found += reductions(problem, drawn, best, rng)
    if rng.random() < 0.2:
        try:
            result = po.solve(
                problem,
                rng.choice(["sharding-portfolio", "tree-descent"]),
                evaluations=50,
                seed=seed,
            )
        except SolverError as error:
            return best is not None, [*found, f"solve raised SolverError: {error}"]
        if best is not None and result.lower_bound > best:
            found.append(f"{result.solver} proves {result.lower_bound}, the optimum is {best}")
        if result.status == "optimal" and result.value != best:
            found.append(f"{result.solver} calls {result.value} optimal, the optimum is {best}")
        if (result.status == "infeasible" and best is not None) or (
            best is None and result.solution is not None
        ):
            found.append(f"{result.solver} says {result.status}, brute force has {best}")
    return best is not None, found
