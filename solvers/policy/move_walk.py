"""Walks whose moves a policy draws: on a graph, and within a solver's budget in cycles from the best placement so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import Refused
from placeopt.model.random_bits import random_states
from placeopt.solvers.policy.move_policy import said_of
from placeopt.solvers.search.annealing_walks import AnnealingWalk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.move_policy import MovePolicy
    from placeopt.solvers.search.search_space import SearchSpace
    from placeopt.solving.tracker import Tracker

    Ints = NDArray[np.int64]

LEGS = 8
"""Stretches of a walk, for each of which the policy says how often the moves come."""

CYCLE = 10
"""Steps of a cycle for each op, within a solver's budget."""

CHUNK = 500
"""Most steps between two looks at the clock."""


class MoveWalk:
    """A walk on one graph, from a placement on.

    Parameters
    ----------
    sequence : ops in a topological order. device : of each op.

    Raises
    ------
    Refused
        If transfers contend or peak memory counts: walks do not evaluate those.
    """

    def __init__(self, space: SearchSpace, sequence: Ints, device: Ints, rng: np.random.Generator) -> None:
        if not walkable(space.problem):
            raise Refused("walks of moves: transfers contend, or peak memory counts")
        self.space, self.whole = space, said_of(space)
        self._walk = AnnealingWalk(space, device, sequence, random_states(rng, 1)[0])

    def run(self, policy: MovePolicy, steps: int, part: tuple[float, float] = (0.0, 1.0)) -> None:
        """Take steps; `part`: of the whole walk, how far it is at the beginning and at the end of them."""
        hot, cold = policy.heats(self.whole)
        scale, share = self.space.mean_load, (cold / hot)
        ends = np.linspace(0, steps, LEGS + 1).astype(int)
        for leg in range(LEGS):
            first, last = (part[0] + (part[1] - part[0]) * (leg + i) / LEGS for i in (0, 1))
            self._walk.weigh(policy.chances(self.whole, (first + last) / 2))
            self._walk.run(ends[leg + 1] - ends[leg], scale * hot * share**first, scale * hot * share**last)

    @property
    def best_value(self) -> int:
        """Lowest value so far, in ticks."""
        return self._walk.best_value

    def best(self) -> Placement:
        """Return the best placement, ranked by start: its `planned` execution has the best value."""
        return self._walk.best_placement()


def walkable(problem: PlacementProblem) -> bool:
    """Whether walks evaluate a problem exactly."""
    return problem.num_channels == 0 and problem.memory == "static"


def walk_on(space: SearchSpace, policy: MovePolicy, tracker: Tracker[Placement], rng: np.random.Generator) -> None:
    """Walk from the tracker's best placement until the budget is spent; each step counts as one evaluation."""
    while not tracker.stop() and tracker.solution is not None:
        placement = tracker.solution
        walk = MoveWalk(space, space.sequence_of(placement), placement.device.astype(np.int64), rng)
        limited = tracker.budget.evaluations is not None
        cycle = CYCLE * space.problem.num_ops
        left = int(tracker.evaluations_left) if limited else cycle
        steps = max(1, left if left < 2 * cycle else cycle)
        done = 0
        while done < steps and not tracker.stop():
            now = min(CHUNK, steps - done)
            walk.run(policy, now, (done / steps, (done + now) / steps))
            tracker.count(now)
            done += now
            if walk.best_value < (tracker.value or np.inf):
                tracker.offer(walk.best_value, walk.best())
