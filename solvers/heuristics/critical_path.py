"""Critical path: ready ops by b-level, each on the device of its earliest start, best of several
tie-breakings.

References
----------
The critical-path baseline of "DOPPLER: Dual-policy learning for device assignment in asynchronous
dataflow graphs" (2025) runs 50 times and keeps the best, because sharded graphs are full of ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.heuristics import ranks
from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solvers.heuristics.time_kernels import schedule_earliest_start
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.placement import Placement
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solvers.heuristics.insertion_kernels import ListSchedule
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class CriticalPath(Heuristic):
    """Highest b-level first, device of the earliest start, best of several random tie-breakings.

    The first tie-breaking is by index, the others are drawn from the seed.
    """

    name: ClassVar[str] = "critical-path"
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "lists-by-time")

    runs: int = option(50, low=1, meaning="number of tie-breakings, of which the best is kept")

    def propose(self, context: Context, tracker: Tracker[Placement]) -> Iterator[Placement | None]:
        """Run every tie-breaking, or as many as the budget allows, and keep the best."""
        for plan in critical_path_plans(context, tracker.rng(), self.runs):
            yield context.fitted(plan)


def critical_path_plans(
    context: Context, rng: np.random.Generator, runs: int
) -> Iterator[ListSchedule]:
    """Yield the schedule of each tie-breaking, that by index first."""
    n, k = context.problem.num_ops, context.problem.num_devices
    level, _ = context.upward_rank()
    tie, turn = context.position, np.zeros(n, np.int64)
    for _ in range(runs):
        position = context.inverse(np.lexsort((tie, -level)).astype(np.int64))
        sequence = ranks.priority_list(context.graph, position)
        yield schedule_earliest_start(
            context.graph, context.costs, context.units, sequence, turn, context.unpinned
        )
        tie, turn = rng.permutation(n), rng.integers(k, size=n)
