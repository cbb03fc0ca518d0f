"""`ideal-dp`: the best pipeline of ideals, proved (see `ideal_program` for the recurrence).

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.model.ideals import lattice_in_time
from placeopt.period.contracted import ContractedProblem
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.ideal_program import IdealProgram, best_chain
from placeopt.solvers.exact.linear_dp import ChainSearch, offer_stages
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class IdealDp(ChainSearch):
    """Best chain of ideals over k accelerators and l CPUs (or more device types).

    For contiguity `chain` the result is proved optimal; a chain is also feasible, but not always
    best, for `convex` and `none`. Where a graph has too many ideals, or the program is not done in
    half of the time, CP-SAT goes on: each of the two is at most twice as late as alone.
    """

    max_ideals: int = option(
        2_000_000, "ideals of the graph; with more, the best linear order goes to CP-SAT", low=1
    )
    orders: int = option(4, "topological orders whose best pipeline is the first incumbent", low=1)
    beyond: str = option(
        "cp-sat",
        "what goes on in the time that is left where there are more ideals (chains only)",
        choices=("cp-sat", "nothing"),
    )

    def go_on(self, tracker: PlacementTracker, model: ContractedProblem) -> None:
        """Prove the best chain: run the program over all ideals."""
        lattice, enough = lattice_in_time(
            model.num_nodes,
            model.order_from,
            model.order_to,
            limit=self.max_ideals,
            left=tracker.left,
        )
        if lattice is None:
            self._go_beyond(tracker, f"more than {enough} ideals")
            return
        program = IdealProgram(model, lattice)
        end = tracker.elapsed + tracker.seconds_left / (1 + self._beyond(tracker))
        outcome = best_chain(
            program, tracker.value, lambda: tracker.stop() or tracker.elapsed >= end
        )
        tracker.count()
        offer_stages(tracker, model, outcome)
        if tracker.problem.contiguity != "chain":
            tracker.message = "best chain; contiguity allows more" if outcome.complete else ""
            return
        if outcome.complete and tracker.value is None:
            tracker.infeasible("no chain of stages fits the devices' memory and compatibility")
            return
        tracker.raise_bound(outcome.lower_bound, self.name)
        if outcome.complete:
            tracker.stop()
            return
        why = f"{lattice.num_ideals} ideals were too many for the time"
        if program.restricted:
            why = "its tables have no room for the states of all devices"
        self._go_beyond(tracker, why)

    def _beyond(self, tracker: PlacementTracker) -> bool:
        """Whether CP-SAT goes on where the program is not done."""
        chain = tracker.problem.contiguity == "chain"
        return self.beyond != "nothing" and chain and tracker.budget.ends

    def _go_beyond(self, tracker: PlacementTracker, why: str) -> None:
        """Improve the best linear order, and prove a bound, by CP-SAT in the time that is left."""
        if tracker.stop() or not self._beyond(tracker):
            tracker.message = f"{why}: kept the best of {self.orders} linear orders"
            return
        CpSat().search(tracker.problem, tracker)
        tracker.stop()
        tracker.message = f"{why}: cp-sat went on from {self.orders} linear orders"
