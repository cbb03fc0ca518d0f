"""What is left of a problem once the bound has ruled most of it out, solved by CP-SAT.

One Boolean per strategy and per pair of an edge that survive; the pairs of a row add up to its
strategy (the local polytope), and usage keeps the capacity at every time point. Nothing that costs
as much as a known choice is looked for, so that "infeasible" proves the known one best.

Where what is allowed at all is what is hard to find, costs are left out (`allowed_choice`): each
strategy implies one of those of a neighbour that go with it (support clauses), which decides the
same by propagation as consistency of arcs does.

References
----------
S. Wright, A. Globerson et al. on the local polytope: M. J. Wainwright, M. I. Jordan, "Graphical
Models, Exponential Families, and Variational Inference", 2008. I. P. Gent, "Arc Consistency in
SAT", ECAI 2002.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import Flags, Ints, by_number, row_at, together, true_places
from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from placeopt.sharding.compact import Compact

Ending = Callable[[Callable[[], object]], AbstractContextManager[None]]


MOST_COST = 2**53
"""CP-SAT proves nothing of choices that cost more: it keeps what it has found as a float, and calls
some "optimal" that are not."""


@dataclass(frozen=True)
class Rest:
    """What CP-SAT found: a cheaper choice if there is one, and the least that one below the known
    cost can cost.

    `bound` is `upper` where there is none.
    """

    choice: Ints | None
    bound: int


def solve_rest(
    compact: Compact,
    upper: int,
    *,
    seconds: float,
    workers: int = 1,
    seed: int = 0,
    deterministic: bool = False,
    ending: Ending | None = None,
) -> Rest:
    """Look for a choice of less than `upper` among the strategies and pairs that cost less.

    Parameters
    ----------
    deterministic : whether `seconds` are CP-SAT's own, machine-independent ones.
    ending : given how to stop the search early, returns a context that may do so.
    """
    from ortools.sat.python import cp_model

    if compact.num_nodes == 0:
        return Rest(np.zeros(0, np.int64), 0)
    alive, pairs = compact.cost < upper, compact.table < upper
    count = np.add.reduceat(alive, compact.node_ptr[:-1])
    if (count == 0).any():
        return Rest(None, upper)
    model = cp_model.CpModel()
    use, terms = _strategies(model, compact, alive)
    terms += _pairs(model, compact, use, pairs)
    _capacities(model, compact, use)
    objective = sum(cost * literal for literal, cost in terms if cost)
    model.add(objective <= upper - 1)
    model.minimize(objective)
    limit = {"effort" if deterministic else "seconds": seconds}
    solver = cp_solver(workers=workers, seed=seed, linearization_level=2, **limit)
    with nullcontext() if ending is None else ending(solver.stop_search):
        status = solve_interruptibly(solver, model)
    most = upper if upper <= MOST_COST else 0  # that is proved
    if status == cp_model.INFEASIBLE:
        return Rest(None, most)
    if status == cp_model.MODEL_INVALID:  # costs too large for it
        return Rest(None, 0)
    proved = solver.best_objective_bound
    bound = max(0, math.ceil(proved - 1e-6 - 1e-12 * abs(proved)))  # it is reported as a float
    if status == cp_model.UNKNOWN:
        return Rest(None, min(bound, most))
    if status == cp_model.OPTIMAL:
        bound = sum(cost for literal, cost in terms if solver.value(literal))
    return Rest(_chosen(compact, solver, use), min(bound, most))


def allowed_choice(
    compact: Compact, below: int, *, seconds: float, deterministic: bool = False, seed: int = 0
) -> Rest:
    """Look for a choice whose every strategy and pair costs less than `below`, which is the bound
    where there is none.

    Parameters
    ----------
    deterministic : see `solve_rest`.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    use, _ = _strategies(model, compact, compact.cost < below)
    _supports(model, compact, use, compact.table < below)
    _capacities(model, compact, use)
    solver = cp_solver(workers=1, seed=seed, **{"effort" if deterministic else "seconds": seconds})
    status = solve_interruptibly(solver, model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Rest(None, below if status == cp_model.INFEASIBLE else 0)
    return Rest(_chosen(compact, solver, use), 0)


def _chosen(compact: Compact, solver: Any, use: dict[int, Any]) -> Ints:
    """Return the strategy of every node that CP-SAT chose."""
    chosen = np.array([x for x, literal in use.items() if solver.value(literal)], np.int64)
    return chosen - compact.node_ptr[:-1]


def _supports(model: Any, c: Compact, use: dict[int, Any], pairs: Flags) -> None:
    """Have every strategy that does not go with all of a neighbour's imply one that does."""
    for e, (u, v) in enumerate(c.edge.tolist()):
        first, second = (range(*map(int, c.node_ptr[w : w + 2])) for w in (u, v))
        table = row_at(pairs, c.edge_ptr, e).reshape(len(first), len(second))
        for here, there, rows in ((first, second, table), (second, first, table.T)):
            some = true_places(~rows.all(axis=1))
            for i in (i for i in some if here[i] in use):
                with_it = (there[j] for j in true_places(rows[i]))
                model.add_bool_or([~use[here[i]], *(use[y] for y in with_it if y in use)])


def _strategies(
    model: Any, c: Compact, alive: Flags
) -> tuple[dict[int, Any], list[tuple[Any, int]]]:
    """Add one literal per strategy that survives, exactly one per node."""
    use, terms = {}, []
    for start, stop in together(c.node_ptr[:-1], c.node_ptr[1:]):
        literals = []
        for x in range(start, stop):
            if alive[x]:
                use[x] = model.new_bool_var("")
                literals.append(use[x])
                terms.append((use[x], int(c.cost[x])))
        model.add_exactly_one(literals)
    return use, terms


def _pairs(model: Any, c: Compact, use: dict[int, Any], pairs: Flags) -> list[tuple[Any, int]]:
    """Add one literal per pair that survives, as many in a row or column as its strategy is
    used.
    """
    terms = []
    for e, (u, v) in enumerate(c.edge.tolist()):
        first, second = (range(*map(int, c.node_ptr[w : w + 2])) for w in (u, v))
        rows, columns = ([x for x in here if x in use] for here in (first, second))
        of: dict[int, list[Any]] = {x: [] for x in (*rows, *columns)}
        for x, y in itertools.product(rows, columns):
            at = int(c.edge_ptr[e]) + (x - first.start) * len(second) + y - second.start
            if pairs[at]:
                literal = model.new_bool_var("")
                of[x].append(literal)
                of[y].append(literal)
                terms.append((literal, int(c.table[at])))
        for strategy, literals in of.items():
            model.add(sum(literals) == use[strategy])
    return terms


def _capacities(model: Any, c: Compact, use: dict[int, Any]) -> None:
    """Keep usage within the capacity at every time point."""
    times = (range(int(c.first[v]), int(c.last[v])) for v in range(c.num_nodes))
    live = by_number(len(c.capacity), ((t, v) for v, some in enumerate(times) for t in some))
    for nodes, capacity in zip(live, c.capacity.tolist(), strict=True):
        terms = [
            int(c.usage[x]) * use[x]
            for v in nodes
            for x in range(int(c.node_ptr[v]), int(c.node_ptr[v + 1]))
            if x in use and c.usage[x]
        ]
        model.add(sum(terms) <= capacity)
