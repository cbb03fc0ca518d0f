"""`split-local-search`: the local search that Tarnawski et al. compare their splits with.

From a random split, the move of one node to another device that lowers the period most is made
until none does; then the search starts anew. Nodes are the contracted ones: colocated ops move
together. Contiguity is not kept, so that only problems without it are taken.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 6 (the baseline "local search").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import Refused
from placeopt.model.objective import INFEASIBLE
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import ContractedProblem, contract
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class SplitLocalSearch(SearchSolver):
    """Best-improving moves of one node from random splits.

    Attributes
    ----------
    tries : random splits drawn for one that fits.
    """

    tries: ClassVar[int] = 50

    restarts: int = option(10, "random splits to start from", low=1)

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Descend from every start."""
        if problem.contiguity != "none":
            raise Refused(
                f'{self.name}: expected contiguity "none", received "{problem.contiguity}"; moves '
                "of single ops keep none"
            )
        model = contract(problem, contiguity="none")
        evaluator, rng = BudgetedEvaluator(tracker, threads=1), tracker.rng()
        for _ in range(self.restarts):
            if tracker.stop():
                return
            start = random_split(model, evaluator, rng, self.tries)
            if start is not None:
                descend(model, evaluator, *start)
        if tracker.solution is None:
            tracker.message = (
                f"none of {self.restarts} starts with {self.tries} random splits each fits the "
                "devices"
            )


def random_split(
    model: ContractedProblem, evaluator: BudgetedEvaluator, rng: np.random.Generator, tries: int
) -> tuple[Ints, int] | None:
    """Return a random split over the devices that may run each node, and its period; None if none
    of `tries` drawn fits.
    """
    able = model.allowed[:, model.type_of]
    for _ in range(tries):
        home = (rng.random(able.shape) * able).argmax(axis=1)
        value = int(evaluator.values(home[model.node][None, :])[0])
        if value < INFEASIBLE or evaluator.tracker.stop():
            return (home, value) if value < INFEASIBLE else None
    return None


def descend(
    model: ContractedProblem,
    evaluator: BudgetedEvaluator,
    home: Ints,
    value: int,
    *,
    most_cells: int = 2_000_000,
) -> None:
    """Make the best move of one node until none lowers the period or the budget is spent.

    Parameters
    ----------
    most_cells : moves times ops that are evaluated at once.
    """
    able = model.allowed[:, model.type_of]
    rows = max(1, most_cells // len(model.node))
    while not evaluator.tracker.stop():
        nodes, devices = np.nonzero(able & (np.arange(able.shape[1]) != home[:, None]))
        values = np.full(len(nodes), INFEASIBLE)
        for first in range(0, len(nodes), rows):
            part = slice(first, first + rows)
            moved = np.repeat(home[None, :], len(nodes[part]), axis=0)
            moved[np.arange(len(moved)), nodes[part]] = devices[part]
            values[part] = evaluator.values(moved[:, model.node])
            if evaluator.tracker.stop():
                break
        if values.min(initial=value) >= value:
            return
        best = int(values.argmin())
        value = int(values[best])
        home[nodes[best]] = devices[best]
