"""Parts of sharding's bound, one by one: the bound of what is left, step by step and narrowed, with
stars, what CP-SAT leaves of it, and branch and bound, against every choice.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from itertools import product

import numpy as np
from answers import poor_answers
from family_sharding import NO_LIMIT, draw_tables, problem_of, reductions, value
from limits import patched

from placeopt.model.errors import InputError
from placeopt.sharding import reduction
from placeopt.sharding.bounds import bounding as bounding_file, branches as branches_file
from placeopt.sharding.bounds.bounding import Bounding
from placeopt.sharding.bounds.branches import Branches
from placeopt.sharding.bounds.lagrangian import BEYOND, MOST_PRICE, Dual
from placeopt.sharding.compact import condense, costs_of, draft_of, usage_unit

SMALL = (
    (bounding_file, "SHRUNK", (0.5, 1.0, 2.0)),
    (bounding_file, "CP_SAT_PAIRS", (0, 5)),
    (Dual, "pace.settled", (1.0,)),
    (Dual, "pace.stuck", (1.0, 1e-3)),
    (Dual, "pace.warm", (2.0,)),
    (branches_file, "STEPS", (1, 5)),
    (branches_file, "MOST_NUMBERS", (0,)),
    (reduction, "MOST_GROWTH", (1, 4)),
    (reduction, "MOST_WORK", (1, 200)),
    (reduction, "ROUNDS", (0, 1)),
)


def draw(rng):
    """Return tables as ever, or of nodes that live together under a tight limit: the dearer their
    usage the cheaper they are.
    """
    kind = rng.random()
    if kind < 0.2:
        return draw_tables(rng)
    if kind < 0.5:
        return draw_hub(rng)
    if kind < 0.6:
        return draw_chain(rng)
    n, top = rng.choice([2, 3, 4, 5, 6]), rng.choice([9, 100, 10**6])
    sizes = [rng.choice([2, 2, 3]) for _ in range(n)]
    usages = [sorted(rng.randint(0, 20) for _ in range(k)) for k in sizes]
    costs = [[rng.randint(0, top) + top * (20 - u) // 10 for u in row] for row in usages]
    if rng.random() < 0.15:  # usage differs nowhere
        usages = [[3] * k for k in sizes]
    last, spread = rng.choice([1, 2, 6]), rng.choice([1, 4])
    begins = [rng.randrange(min(last, spread)) for _ in range(n)]
    intervals = [[begin, rng.randint(begin + 1, last)] for begin in begins]
    edges = [rng.sample(range(n), 2) for _ in range(rng.randint(0, n + 1))]
    worth, linked = rng.choice([top, top, 2**60]), rng.random() < 0.3
    tables = [
        [
            [
                worth
                if (x % sizes[v] != y if linked else rng.random() < 0.2)
                else rng.randint(0, top)
                for y in range(sizes[v])
            ]
            for x in range(sizes[u])
        ]
        for u, v in edges
    ]
    least, most = sum(map(min, usages)), sum(map(max, usages))
    limit = rng.choice([rng.randint(least, most), (least + most) // 2, most, NO_LIMIT])
    return costs, usages, intervals, edges, tables, limit


def draw_chain(rng):
    """Return tables of nodes in a ring, each of which decides the next one but for the last."""
    sizes = rng.choice([[5, 3, 2], [6, 4, 3], [7, 4, 2], [5, 3, 2, 2], [4, 4, 3, 2], [6, 3, 2]])
    n, top = len(sizes), rng.choice([3, 1000])
    usages = [[rng.randint(0, 9) for _ in range(k)] for k in sizes]
    edges = [[v, v + 1] if rng.random() < 0.5 else [v + 1, v] for v in range(n - 1)]
    edges += [[0, n - 1]]
    edges += [rng.sample(range(n), 2) for _ in range(rng.choice([0, 0, 1]))]

    def pair(u, x, v, y):
        decided = abs(u - v) == 1 and (y % sizes[u] != x if u > v else x % sizes[v] != y)
        return 2**58 if decided else rng.randint(0, top)

    tables = [
        [[pair(u, x, v, y) for y in range(sizes[v])] for x in range(sizes[u])] for u, v in edges
    ]
    costs = [[rng.randint(0, top) for _ in range(k)] for k in sizes]
    total = sum(map(max, usages))
    limit = rng.choice([total // 2, 2 * total // 3, NO_LIMIT])
    return costs, usages, [[0, 1] for _ in sizes], edges, tables, limit


def draw_hub(rng):
    """Return tables of a node whose neighbours, while it has one of its strategies, pass the limit
    together; seldom with very many strategies.
    """
    many, n = rng.random() < 0.05, rng.choice([3, 4, 5, 5])
    sizes = [rng.choice([1, 2, 3]), *(rng.choice([2, 2, 3]) for _ in range(n - 1))]
    if many:
        n, sizes = 3, [rng.choice([140, 200]), 2, 2]
    top, last = rng.choice([3, 20, 1000]), rng.choice([1, 3])
    own, idle = rng.choice([0, 0, 2, 9]), rng.choice([0, 0, 3])
    usages = [[rng.randint(0, own) for _ in range(sizes[0])]]
    usages += [[idle, *(rng.randint(1, 9) for _ in range(k - 1))] for k in sizes[1:]]
    ever = 1.0 if many else 0.7
    intervals = [[0, last] if rng.random() < ever else [rng.randrange(last), last] for _ in sizes]
    edges = [[0, v] if rng.random() < 0.5 else [v, 0] for v in range(1, n)]
    if n > 4 and rng.random() < 0.5:
        edges[-1] = [n - 1, 1]  # the hub hangs on another node that has a neighbour of its own
    edges += [rng.sample(range(1, n), 2) for _ in range(rng.choice([0, 0, 1, 2]))]
    cheaper = rng.choice([1, 3, 10])  # what uses more costs less
    steep = rng.random() < 0.5  # a neighbour of little use is dear with every strategy of the hub

    def pair(u, x, v, y):
        if steep and 0 in (u, v):
            return 10 * top if (x if v == 0 else y) == 0 else rng.randint(0, 1)
        return top * 10 + rng.randint(0, top) - cheaper * (usages[u][x] + usages[v][y]) * top // 20

    tables = [
        [
            [2**58 if rng.random() < 0.05 else max(0, pair(u, x, v, y)) for y in range(sizes[v])]
            for x in range(sizes[u])
        ]
        for u, v in edges
    ]
    costs = [[rng.randint(0, top) for _ in range(k)] for k in sizes]
    least, most = (sum(map(one, usages)) for one in (min, max))
    limit = rng.choice([(least + most) // 2, (least + 2 * most) // 3, max(least, most - 1)])
    return costs, usages, intervals, edges, tables, limit


def attack(seed):
    """Return (whether a choice is feasible, every difference)."""
    rng = random.Random(seed)
    drawn = draw(rng)
    every = list(product(*(range(len(row)) for row in drawn[0])))
    values = {choice: cost for choice in every if (cost := value(drawn, choice)) is not None}
    problem = problem_of(seed, drawn)
    if not values:
        return False, _impossible(problem, drawn)
    best = min(values.values())
    known = rng.choice([None, best, best + 1, rng.choice(sorted(values.values()))])
    with ExitStack() as stack:
        for module, name, smaller in SMALL:
            if rng.random() < 0.3:
                stack.enter_context(patched(module, name, rng.choice(smaller)))
        stack.enter_context(poor_answers(rng, rng.choice([0.0, 0.0, 0.3])))
        if rng.random() < 0.3:
            return True, reductions(problem, drawn, best, rng)
        way = rng.choice([_whole, _branches, _branches, _dual, _dual, _dual])
        return True, way(problem, drawn, best, known, rng)


def _impossible(problem, drawn):
    """No choice fits: that is said of a node or of the smallest usages, or nothing is found."""
    try:
        bound = Bounding(problem)
    except InputError:
        return []
    _, usages, intervals, _, _, limit = drawn
    least = [
        sum(
            min(row)
            for row, (start, end) in zip(usages, intervals, strict=True)
            if start <= t < end
        )
        for t, _ in intervals
    ]
    bound.certify()
    wrong = bound.found is not None and max(least) <= limit
    return ["a choice is found where none fits"] if wrong else []


def _dream(dual, rng):
    """Any prices, of stars too, and messages prove something, and nothing false, however far the
    next step goes and whatever is left of steps before.
    """
    scale = 10.0 ** rng.choice([-3, 0, 2, 9, 18])
    drawn = [scale * rng.random() if rng.random() < 0.7 else 0.0 for _ in dual._best]
    dual._best = np.clip(np.array(drawn), 0.0, MOST_PRICE)
    dual._length, dual.warm = rng.choice([1.0, 1e-2, 1e-5]), rng.random() < 0.7
    if rng.random() < 0.2:
        dual._direction = np.full(len(dual._best), 1e-160)
    dual._messages = tuple(
        part + [scale * rng.choice([0.0, rng.uniform(-1, 1)]) for _ in part]
        for part in dual._messages
    )


def _dual(problem, drawn, best, _known, rng):
    """Prices, stars and messages of the whole problem prove no more than the best, and stars make
    no choice that fits dearer.
    """
    condensed = condense(*draft_of(problem))
    if not condensed.compact.num_nodes or usage_unit(problem) > 1:
        return []
    dual, found, most = Dual(condensed.compact), [], best - condensed.offset
    every = [x for x in product(*map(range, map(len, drawn[0]))) if value(drawn, x) is not None]
    taken = (condensed.contract(np.array(x)) for x in rng.sample(every, min(len(every), 20)))
    some = [choice for choice in taken if choice is not None]
    if rng.random() < 0.7:
        dual.aim(max(1, most + rng.choice([0, 1, 5])), guess=rng.choice([1.0, np.inf, np.inf]))
    _dream(dual, rng)
    dual.look_for_stars()
    for _ in range(rng.randint(4, 20)):
        deed = rng.choice([dual.step, dual.look_for_stars, lambda: _dream(dual, rng), None])
        if deed is not None:
            deed()
            continue
        c, most_cost = dual.compact, int(min(dual.clamp, BEYOND))
        clamped = c._replace(
            cost=np.minimum(c.cost, most_cost), table=np.minimum(c.table, most_cost)
        )
        proof, witness, priced = dual.certify()
        if proof.bound > most:
            found.append(f"{proof.bound} is proved by prices, the optimum is {most}")
        for choice in some:
            true, told = (sum(int(x.sum()) for x in costs_of(c, choice)) for c in (clamped, priced))
            if told > true << witness.cost_bits:
                found.append(f"{choice} costs {true}, with stars {told} / 2^{witness.cost_bits}")
    return found


def _whole(problem, drawn, best, known, rng):
    """Steps, certificates, known choices, and CP-SAT in any order."""
    bound, found = Bounding(problem, known), []
    for _ in range(rng.randint(3, 15)):
        deed = rng.choice(
            ["step", "dream", "certify", "certify", "aim", "finish", "prove", "decode"]
        )
        if deed == "step" and not bound.settled:
            bound.step()
        elif deed == "dream" and not bound.settled:
            _dream(bound.dual, rng)
        elif deed == "certify":
            bound.certify(narrow=rng.random() < 0.8)
        elif deed == "aim":
            above = rng.choice([0, 1, 5, 10**6])
            bound.aim(bound.condensed.counted(best) + above, guess=rng.choice([1.0, np.inf]))
        elif deed == "finish":
            bound.finish(5.0, deterministic=True)
        elif deed == "prove":
            lost = (bound.unit - 1) * (problem.num_nodes + problem.num_edges)  # by rounding down
            bound.prove(rng.randint(0, bound.condensed.counted(best - lost)))
        elif deed == "decode" and not bound.settled:
            bound.decoded(limited=rng.random() < 0.5)
            found += [] if bound.prices.min(initial=0.0) >= 0 else ["a price below 0"]
        if bound.left() < 0:
            found.append("less than nothing is left")
        if bound.bound > best:
            found.append(f"{bound.bound} is proved by {deed}, the optimum is {best}")
        if bound.found is not None:
            found += _worth(bound, bound.found, drawn, best)
    return found


def _worth(bound, choice, drawn, best):
    """A difference where a choice that was found is worth less than the best."""
    whole = tuple(int(x) for x in bound.condensed.expand(choice))
    cost = value(drawn, whole)
    return [f"{whole} costs {cost}, the best {best}"] if cost is not None and cost < best else []


def _branches(problem, drawn, best, known, rng):
    """Part by part until nothing is open: then the best is proved, unless it was known."""
    known = best + rng.choice([0, 1, 3, 10**7]) if known is None else known
    bounding = Bounding(problem, known)
    if bounding.settled:
        return []
    for _ in range(rng.randint(0, 4)):
        bounding.step()
    if rng.random() < 0.3:
        bounding.certify()
    if bounding.settled or bounding.upper is None or not bounding.cheap:
        return []
    least = bounding.condensed.counted(best)
    sure = (
        bounding._exact and bounding.unit == 1 and bounding._others > least
    )  # no choice is left out, none blurred
    branches, found = Branches(bounding), []
    looks = iter(range(rng.choice([10**9, 10**9, rng.randint(0, 30)])))

    def stop():
        return next(looks, None) is None

    for _ in range(60):
        if branches.over or branches.full:
            break
        branches.step(stop)
        if rng.random() < 0.2:
            branches.close(least + rng.choice([0, 0, 1, 5]))
        if sure and branches.bound > least:
            found.append(f"{branches.bound} is proved by parts, the optimum is {least}")
    if branches.over and sure and branches.bound != least:
        found.append(f"no part is open at {branches.bound}, the optimum is {least}")
    bounding.prove(branches.bound)
    if bounding.bound > best:
        found.append(f"{bounding.bound} is proved by branches, the optimum is {best}")
    if branches.choice is not None:
        found += _worth(bounding, branches.choice, drawn, best)
    return found
