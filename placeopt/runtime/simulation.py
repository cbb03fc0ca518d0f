"""The simulated side of a real run: the same ranks, and the measured run as a timeline in the
problem's ticks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import evaluate
from placeopt.model.arrays import Floats, Ints, frozen
from placeopt.model.placement import Placement

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem
    from placeopt.runtime.measurement import Measurement


def with_ranks(problem: PlacementProblem, placement: Placement) -> Placement:
    """Return the placement with ranks: where it has none, those of the ops' starts in the fifo
    simulation.

    Engines have priorities, not the simulator's fifo queue; with explicit ranks both do the same.
    """
    if placement.priority is not None:
        return placement
    run = evaluate(problem, placement, "fifo", check=False)
    return Placement.from_starts(placement.device, run.start, problem.topological_order)


@dataclass(frozen=True, eq=False)
class Timeline:
    """A measured execution in ticks, for pictures: the same fields as an Evaluation."""

    problem: PlacementProblem
    placement: Placement
    start: Ints  # (num_ops,) ticks
    finish: Ints  # (num_ops,) ticks
    transfers: Ints  # rows (tensor, destination, start, finish)

    @property
    def makespan(self) -> int:
        """End of the last op in ticks."""
        return int(self.finish.max())

    @property
    def busy(self) -> Ints:
        """Ticks that each device computes, shape (num_devices,)."""
        total = np.zeros(self.problem.num_devices, np.int64)
        np.add.at(total, self.placement.device, self.finish - self.start)
        return total


def timeline(problem: PlacementProblem, measurement: Measurement) -> Timeline:
    """Return the execution nearest to the median makespan."""
    turn, tick = measurement.typical, problem.tick_seconds

    def ticks(seconds: Floats) -> Ints:
        return frozen(np.rint(seconds / tick).astype(np.int64))

    rows = measurement.transfers[measurement.transfers[:, 0] == turn]
    transfers = np.column_stack([rows[:, 1:3].astype(np.int64), ticks(rows[:, 3:])])
    return Timeline(
        problem,
        measurement.placement,
        ticks(measurement.start[turn]),
        ticks(measurement.finish[turn]),
        frozen(transfers),
    )
