"""A solver of your own: write `search`, and the frame (clock, Ctrl-C, judging, bound, registry) is
there.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import placeopt as po


@po.register("greedy-noise", summary="random changes of a few devices")
@dataclass(frozen=True)
class GreedyNoise(po.SearchSolver):
    """Change a few devices at random, keep what is better."""

    name: ClassVar[str] = "greedy-noise"
    endless: ClassVar[bool] = True  # it never stops by itself

    changes: int = po.option(3, low=1, meaning="ops that move at once")

    def search(self, problem, tracker):
        """Move ops of the incumbent at random until the budget is spent."""
        rng, n, k = tracker.rng(), problem.num_ops, problem.num_devices
        best = (
            np.zeros(n, dtype=np.int32)
            if tracker.solution is None
            else tracker.solution.device.astype(np.int32)
        )
        while not tracker.stop():
            batch = np.tile(best, (min(64, tracker.evaluations_left), 1))
            for row in batch:
                row[rng.integers(0, n, self.changes)] = rng.integers(0, k, self.changes)
            values = po.evaluate_batch(problem, batch)
            tracker.count(len(batch))
            winner = int(values.argmin())
            if values[winner] < po.INFEASIBLE and tracker.offer(
                int(values[winner]), po.Placement(batch[winner])
            ):
                best = batch[winner]


problem = po.load("gen:ffnn", cluster="uniform:4")
result = po.solve(problem, "greedy-noise", evaluations=2000, seed=1)
print(result.solver, result.value, f"gap {result.gap:.2%}", result.stop_reason)
