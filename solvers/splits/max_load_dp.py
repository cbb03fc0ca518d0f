"""`max-load-dp`: the latency of the split that is best for the period.

Tarnawski et al. compare the latency of one sample with that of their dynamic program for
throughput: the pipeline of ideals whose busiest device has the least load, all of them searched,
every accelerator's part one slot. Beside the bound on the latency it tells what balanced loads are
worth to a single sample.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 6 (latency, the baseline Max-load
DP).
"""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.latency.evaluate import latency_batch
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import lattice_in_time, linear_lattice
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import contract
from placeopt.solvers.exact.ideal_program import IdealProgram, best_chain, stage_devices
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class MaxLoadDp(SearchSolver):
    """The best pipeline of ideals for the period, valued by its latency."""

    kernels = ("period-dp",)
    watched_from = 4000  # ideals are enumerated in few goes

    max_ideals: int = option(
        2_000_000,
        "ideals of the graph; with more, or too many for half of the time, one topological "
        "order is searched",
        low=1,
    )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Offer the split of the least load."""
        try:
            model = contract(problem.replace(objective="period", contiguity="chain", backward=None))
        except InfeasibleProblemError as error:
            tracker.message = str(error)
            return
        lattice, _ = lattice_in_time(
            model.num_nodes,
            model.order_from,
            model.order_to,
            limit=self.max_ideals,
            left=tracker.left,
        )
        lattice = linear_lattice(model.num_nodes) if lattice is None else lattice
        outcome = best_chain(IdealProgram(model, lattice), None, tracker.stop)
        tracker.count()
        if outcome.value is None:
            tracker.message = (
                "no chain of stages fits the devices' memory and compatibility, or time ran out"
            )
            return
        device, _ = stage_devices(model, outcome.stages)
        value = int(latency_batch(problem, device[None, :])[0])
        if value == INFEASIBLE:
            tracker.message = "the split of the least load breaks a constraint of the latency"
        else:
            tracker.offer(value, Placement(device))
