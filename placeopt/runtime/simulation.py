"""The simulated side of a real run: the same ranks, the simulated schedule, and how far apart the two are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.evaluation import evaluate
from placeopt.solution import Placement

if TYPE_CHECKING:
    from placeopt.problem import PlacementProblem


def with_ranks(problem: PlacementProblem, placement: Placement) -> Placement:
    """Return the placement with ranks: where it has none, those of the ops' starts in the fifo simulation.

    Engines have priorities, not the simulator's fifo queue; with explicit ranks both do the same.
    """
    if placement.priority is not None:
        return placement
    run = evaluate(problem, placement, "fifo", check=False)
    return Placement.from_starts(placement.device, run.start, problem.topological_order)
