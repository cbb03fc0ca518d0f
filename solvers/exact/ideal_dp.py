"""`ideal-dp`: the best pipeline of ideals, proved (see `period_dp` for the recurrence)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.ideals import Lattice, ideal_lattice
from placeopt.model.placement import Placement
from placeopt.period.bounds.combinatorial import raise_period_bounds
from placeopt.period.contraction import contract
from placeopt.period.evaluate import period_finish
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.linear_dp import offer_initial, search_orders
from placeopt.solvers.exact.period_dp import IdealProgram, stage_devices
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from placeopt.model.budget import Budget
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.period.contraction import PeriodModel
    from placeopt.solving.solver import OnProgress

@dataclass(frozen=True)
class IdealDp:
    """Best chain of ideals over k accelerators and l CPUs (or more device types).

    For contiguity `chain` the result is proved optimal; a chain is also feasible, but not always best, for
    `convex` and `none`.

    Attributes
    ----------
    max_ideals : refuse graphs with more ideals; the best linear order found is returned instead.
    orders : topological orders whose best pipeline is the first incumbent.
    """

    max_ideals: int = 2_000_000
    orders: int = 4
    name: ClassVar[str] = "ideal-dp"

    def __post_init__(self) -> None:
        if self.max_ideals < 1:
            raise InputError(f"max_ideals: expected at least 1, received {self.max_ideals}")
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
        """Return the best chain; `infeasible` where no chain fits the memory and compatibility."""
        require_objective(self.name, problem, ("period",))
        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        status, message = None, ""
        with tracker:
            offer_initial(tracker, initial)
            model = contract(problem, contiguity="chain")
            search_orders(tracker, model, self.orders, np.random.default_rng(seed))
            raise_period_bounds(tracker, seconds=0.0)
            if not tracker.stop():
                status, message = self._prove(tracker, model)
        return period_finish(tracker, status=status, message=message)

    def _prove(self, tracker: Tracker[Placement], model: PeriodModel) -> tuple[str | None, str]:
        """Run the program over all ideals; return the status and message of the Result."""
        lattice, enough = self._ideals(tracker, model)
        if lattice is None:
            return None, f"more than {enough} ideals: kept the best of {self.orders} linear orders"
        outcome = best_chain(IdealProgram(model, lattice), tracker.value, tracker.stop)
        tracker.count()
        if outcome.value is not None:
            tracker.offer(outcome.value, Placement(stage_devices(model, outcome.stages)[0]))
        if tracker.problem.contiguity != "chain":
            return None, "best chain; contiguity allows more" if outcome.complete else ""
        if outcome.complete and tracker.value is None:
            return "infeasible", "no chain of stages fits the devices' memory and compatibility"
        tracker.raise_bound(min(outcome.lower_bound, tracker.value or outcome.lower_bound), self.name)
        tracker.stop()
        return None, ""

    def _ideals(self, tracker: Tracker[Placement], model: PeriodModel) -> tuple[Lattice | None, int]:
        """Enumerate the ideals, or return how many there are more than.

        In tries that grow eightfold, as long as the next one seems to fit into the time left; the first two cost a seventh
        of the last.
        """
        for limit in (max(1, self.max_ideals // 64), max(1, self.max_ideals // 8), self.max_ideals):
            before = tracker.elapsed
            lattice = ideal_lattice(model.num_nodes, model.order_from, model.order_to, limit=limit)
            if lattice is not None or tracker.stop() or 8 * (tracker.elapsed - before) > tracker.seconds_left:
                break
        return lattice, limit
