"""Apply a policy of moves to a graph at once: schedule it by the cheap heuristics, then walk from
the best by the policy's moves.

Nothing is learned on the graph. The number of steps follows from its size and no clock is asked:
the same sample gives the same placement everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import Refused
from placeopt.solvers.policy.move_walk import MoveWalk
from placeopt.solvers.policy.walk_seeds import Seed, seeds
from placeopt.solvers.search.search_space import SearchSpace

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.move_policy import MovePolicy

WORK_PER_OP, STEP_WORK = 18_000, 300
"""Units of work of one run for each op, and of a step besides one for each op and edge: about 8 ns
each, 30 ms with 200 ops."""

FEW = 8
"""Later samples begin from one of so many of the best seeds, the better ones more often."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a zero-shot run found.

    Attributes
    ----------
    heuristic, seeded : the seed that the walk began from, and its value. value : ticks of
    `placement`.
    """

    heuristic: str
    seeded: int
    value: int
    placement: Placement
    steps: int


class ZeroShot:
    """A policy on one graph: what is prepared once serves any number of samples."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.space = SearchSpace(problem)

    @cached_property
    def seeds(self) -> list[Seed]:
        """Schedules of heuristics, best first, each assignment once."""
        found: dict[bytes, Seed] = {}
        for seed in seeds(self.space.context):
            found.setdefault(seed.plan.device.tobytes(), seed)
        return list(found.values())

    def run(
        self, policy: MovePolicy, *, sample: int = 0, work_per_op: int = WORK_PER_OP
    ) -> Outcome:
        """Walk from the best seed, or, in samples other than 0, from one of the best.

        Raises
        ------
        Refused
            If no heuristic found a placement, or walks do not evaluate the problem.
        """
        if not self.seeds:
            raise Refused("zero-shot: no heuristic found a placement that fits")
        rng, space = np.random.default_rng(sample), self.space
        seed = self.seeds[int(rng.random() ** 2 * min(FEW, len(self.seeds))) if sample else 0]
        order = np.lexsort((space.context.position, seed.plan.finish, seed.plan.start)).astype(
            np.int64
        )
        walk = MoveWalk(space, space.topological(order), seed.plan.device, rng)
        problem, seeded = space.problem, walk.best_value
        steps = work_per_op * problem.num_ops // (STEP_WORK + problem.num_ops + problem.num_edges)
        walk.run(policy, steps)
        return Outcome(seed.heuristic, seeded, walk.best_value, walk.best(), steps)
