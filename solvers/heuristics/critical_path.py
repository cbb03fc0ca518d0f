"""Critical path: ready ops by b-level, each on the device of its earliest start, best of several tie-breakings.

The critical-path baseline of "DOPPLER: Dual-policy learning for device assignment in asynchronous dataflow
graphs" (2025) runs 50 times and keeps the best, because sharded graphs are full of ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.heuristics import kernels, ranks
from placeopt.solvers.heuristics.driver import View, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress


@dataclass(frozen=True)
class CriticalPath:
    """Highest b-level first, device of the earliest start, best of several random tie-breakings.

    Parameters
    ----------
    runs : number of tie-breakings; the first is by index, the others are drawn from the seed.
    """

    runs: int = 50

    name: ClassVar[str] = "critical-path"

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise InputError(f"critical-path: runs must be at least 1, received {self.runs}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Run every tie-breaking, or as many as the budget allows, and keep the best."""
        n, k = problem.num_ops, problem.num_devices

        def propose(view: View, rng: np.random.Generator) -> Iterator[Placement | None]:
            level, _ = view.upward_rank()
            tie, turn = view.position, np.zeros(n, dtype=np.int64)
            for _ in range(self.runs):
                position = view.inverse(np.lexsort((tie, -level)).astype(np.int64))
                sequence = ranks.priority_list(view.graph, position)
                plan = kernels.schedule_earliest_start(view.graph, view.units, sequence, turn, view.unpinned)
                yield view.fitted(plan)
                tie, turn = rng.permutation(n), rng.integers(k, size=n)

        return run(self.name, problem, budget, propose, seed=seed, initial=initial, on_progress=on_progress)
