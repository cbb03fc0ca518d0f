"""Baechi's memory-constrained placers: m-TOPO, m-ETF and m-SCT.

m-SCT adapts the small communication time algorithm: a linear program picks at most one *favourite
child* per op and one favourite parent per child; they share a device. Where the problem limits the
dynamic peak, these placers count an op's tensors as resident first (as Baechi does) and less of
them only if nothing fits.

References
----------
- B. Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020.
- C. Hanen, A. Munier, "An approximation algorithm for scheduling dependent tasks on m processors
  with small communication delays", 1995.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from placeopt.model.arrays import Ints, place_in, stable_order, together
from placeopt.model.linear_program import linear_program
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.heuristic import Heuristic, Proposals
from placeopt.solvers.heuristics.time_kernels import schedule_with_favourites
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker

CAUTIOUS = Heuristic.inflations[::-1]
"""The shares of all heuristics, beginning with all of the tensors, as Baechi does."""


@dataclass(frozen=True)
class MTopo(Heuristic):
    """Fill device after device in topological order up to an equal share of memory.

    The share is total bytes / devices + the largest op; bytes are resident bytes and output
    tensors. On problems without bytes the mean compute times take their place.
    """

    inflations = CAUTIOUS

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Place once; what breaks a capacity is repaired."""
        yield context.repaired(_fill(context))


def _fill(context: Context) -> Ints:
    problem, units = context.problem, context.units
    k = problem.num_devices
    weight = problem.resident.astype(np.float64)
    np.add.at(weight, problem.producer, problem.tensor_bytes)
    if weight.sum() == 0:
        weight = context.mean_compute
    unit_weight = np.bincount(units.unit, weight, minlength=len(units.bytes))
    share, smallest = unit_weight.sum() / k + unit_weight.max(), unit_weight.min()
    home = context.unpinned.copy()
    used = np.zeros(k)
    free = units.capacity.copy()
    current = 0
    for unit in dict.fromkeys(units.unit[problem.topological_order].tolist()):
        for step in range(k):
            device = (current + step) % k
            fits = units.allowed[unit, device] and units.bytes[unit] <= free[device]
            if fits and used[device] + unit_weight[unit] <= share:
                break
        else:
            usable = np.flatnonzero(units.allowed[unit])
            device = int(usable[np.lexsort((used[usable], -free[usable]))[0]])
        home[unit] = device
        used[device] += unit_weight[unit]
        free[device] -= units.bytes[unit]
        while current < k - 1 and used[current] + smallest > share:
            current += 1
    return home[units.unit]


@dataclass(frozen=True)
class MEtf(Heuristic):
    """Earliest task first over the devices with space, ties in topological order."""

    kernels = ("ranks", "lists", "lists-by-time")
    inflations = CAUTIOUS

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Plan once, counting tensors as resident where the limit is on the dynamic peak."""
        yield context.fitted(context.by_time(context.position))


@dataclass(frozen=True)
class MSct(Heuristic):
    """Earliest task first in which favourite children, chosen by a linear program, follow their
    parents.

    The linear program is that of Hanen and Munier; at a threshold of 1/2, their rounding, an op has
    at most one favourite.
    """

    kernels = ("ranks", "lists", "lists-by-time")
    inflations = CAUTIOUS

    threshold: float = option(
        0.5,
        "an edge is a favourite below it; smaller values keep only the clear ones",
        above=0,
        high=0.5,
    )
    max_edges: int = option(
        5_000, "with more edges a greedy choice replaces the linear program", low=0
    )

    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Solve the linear program once, then plan."""
        problem = context.problem
        plain = Context(problem)
        if problem.num_edges <= self.max_edges:
            seconds = None if tracker.budget.seconds is None else tracker.seconds_left
            favourite = favourite_children(plain, self.threshold, seconds=seconds)
        else:
            favourite = greedy_children(plain)
            tracker.message = (
                f"{problem.num_edges} edges, over max_edges={self.max_edges}: favourite children "
                "were chosen greedily instead of by the linear program"
            )
        level, _ = context.upward_rank()
        position = place_in(context.by_decreasing(level))
        yield context.fitted(
            schedule_with_favourites(
                context.graph, context.costs, context.units, position, favourite
            )
        )


def favourite_children(
    context: Context, threshold: float = 0.5, seconds: float | None = None
) -> Ints:
    """Return the favourite child of each op or -1, by the relaxed linear program of Hanen and
    Munier.

    Minimise w subject to w >= s_i + p_i; s_j >= s_i + p_i + c_ij x_ij for every edge; over the
    children of each op and over the parents of each op at most one x is 0 (sum of (1 - x) <= 1); 0
    <= x <= 1, s >= 0. An x below `threshold` makes a favourite. The interior-point method needs a
    fifth of the simplex's time; if it does not end within `seconds`, the greedy choice stands in.
    """
    from scipy.sparse import coo_array

    problem = context.problem
    n = problem.num_ops
    parent, child, tensor = problem.edge_source, problem.consumer, problem.edge_tensor
    count = len(child)
    if count == 0:
        return np.full(n, -1, np.int64)
    scale = max(1.0, float(context.mean_compute.max()), float(context.mean_transfer.max()))
    work, delay = context.mean_compute / scale, context.mean_transfer[tensor] / scale
    edge, op = np.arange(count), np.arange(n)
    # Columns: x of each edge, s of each op, w. Rows: edges, ops (makespan), ops (children), ops
    # (parents).
    row: list[Any] = [
        edge,
        edge,
        edge,
        count + op,
        count + op,
        count + n + parent,
        count + 2 * n + child,
    ]
    column: list[Any] = [
        edge,
        count + parent,
        count + child,
        count + op,
        np.full(n, count + n),
        edge,
        edge,
    ]
    ones = np.ones(count)
    value: list[Any] = [delay, ones, -ones, np.ones(n), -np.ones(n), -ones, -ones]
    children, parents = np.bincount(parent, minlength=n), np.bincount(child, minlength=n)
    limit = np.concatenate(
        [-work[parent], -work, np.minimum(0, 1 - children), np.minimum(0, 1 - parents)]
    )
    matrix = coo_array(
        (np.concatenate(value), (np.concatenate(row), np.concatenate(column))),
        shape=(count + 3 * n, count + n + 1),
    ).tocsr()
    cost = np.zeros(count + n + 1)
    cost[-1] = 1.0
    bounds = np.zeros((count + n + 1, 2))
    bounds[:count, 1], bounds[count:, 1] = 1.0, np.inf
    answer = linear_program(
        cost, below=(matrix, limit), bounds=bounds, seconds=seconds, method="highs-ipm"
    )
    if answer.x is None or answer.status != 0:
        return greedy_children(context)
    share = answer.x[:count]
    chosen = edge[share < threshold - 1e-9]
    order = chosen[np.lexsort((-context.mean_transfer[tensor[chosen]], np.round(share[chosen], 9)))]
    return _match(n, parent[order], child[order])


def greedy_children(context: Context) -> Ints:
    """Return a favourite child of each op or -1: edges by decreasing transfer time, each op
    once.
    """
    problem = context.problem
    order = stable_order(-context.mean_transfer[problem.edge_tensor])
    return _match(problem.num_ops, problem.edge_source[order], problem.consumer[order])


def _match(n: int, parent: Ints, child: Ints) -> Ints:
    favourite = np.full(n, -1, np.int64)
    taken = np.zeros(n, np.bool_)
    for i, j in together(parent, child):
        if favourite[i] < 0 and not taken[j]:
            favourite[i], taken[j] = j, True
    return favourite
