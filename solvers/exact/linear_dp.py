"""`linear-dp`: the dynamic program over the prefixes of topological orders (DPL).

The program of `period_dp` on a total order has n + 1 ideals instead of exponentially many. It finds the
best pipeline whose stages are consecutive in that order; over several orders the best one is kept. The
first order follows branches depth first, the others are random. Tarnawski et al. 2020, section 5.1.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.ideals import linear_lattice
from placeopt.model.placement import Placement
from placeopt.period.bounds.combinatorial import raise_period_bounds
from placeopt.period.contraction import contract
from placeopt.period.evaluate import period_finish, period_value, period_violations
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.period_dp import IdealProgram, stage_devices
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.period.contraction import PeriodModel
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class LinearDp:
    """Best pipeline along topological orders.

    Attributes
    ----------
    orders : number of orders tried; the first is fixed, the rest come from the seed.
    """

    orders: int = 4
    name: ClassVar[str] = "linear-dp"

    def __post_init__(self) -> None:
        if self.orders < 1:
            raise InputError(f"orders: expected at least 1, received {self.orders}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Return the best pipeline along the tried orders; a chain is feasible for every contiguity."""
        require_objective(self.name, problem, ("period",))
        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        with tracker:
            offer_initial(tracker, initial)
            model = contract(problem, contiguity="chain")
            search_orders(tracker, model, self.orders, np.random.default_rng(seed))
            raise_period_bounds(tracker, seconds=0.0)
        return period_finish(tracker)


def offer_initial(tracker: Tracker[Placement], initial: Placement | None) -> None:
    """Make `initial` the incumbent if it is feasible."""
    if initial is not None and not period_violations(tracker.problem, initial):
        tracker.offer(period_value(tracker.problem, initial), initial)


def search_orders(
    tracker: Tracker[Placement], model: PeriodModel, orders: int, generator: np.random.Generator
) -> None:
    """Offer the best pipeline along each of `orders` topological orders of a contracted `chain` model."""
    for order in _orders(model, orders, generator):
        if tracker.evaluations > 0 and tracker.stop():
            return
        along = model.renumbered(order)
        program = IdealProgram(along, linear_lattice(along.num_nodes))
        tracker.count()
        # the first answer is worth any time limit; every further one has to keep it
        outcome = best_chain(program, tracker.value, None if tracker.value is None else tracker.stop)
        if outcome.value is not None:
            tracker.offer(outcome.value, Placement(stage_devices(along, outcome.stages)[0]))


def _orders(model: PeriodModel, count: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    yield np.arange(model.num_nodes)
    successors: list[list[int]] = [[] for _ in range(model.num_nodes)]
    indegree = np.bincount(model.order_to, minlength=model.num_nodes)
    for u, v in zip(model.order_from.tolist(), model.order_to.tolist(), strict=True):
        successors[u].append(v)
    for _ in range(count - 1):
        waiting = indegree.copy()
        ready = np.flatnonzero(waiting == 0).tolist()
        order = []
        while ready:
            # Half of the time stay on the branch that is open, so that orders are not all breadth first.
            at = len(ready) - 1 if generator.random() < 0.5 else int(generator.integers(len(ready)))
            u = ready.pop(at)
            order.append(u)
            for v in successors[u]:
                waiting[v] -= 1
                if waiting[v] == 0:
                    ready.append(v)
        yield np.array(order, dtype=np.int64)
