"""Walks whose moves a policy draws: on a graph, and within a solver's budget in cycles from the
best placement so far.

Within a budget they learn which moves pay on this graph: a kind comes as often as the policy says,
times what its proposals gained over what all did (probability matching), by new best placements per
evaluated proposal, of which older ones count less.

References
----------
- D. Thierens. An adaptive pursuit strategy for allocating operator probabilities. GECCO 2005.
  (Probability matching, section 2.)
- A. Fialho. Adaptive operator selection for optimization. PhD thesis, Universite Paris-Sud, 2010.
  (Credit by what was gained lately.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import Refused
from placeopt.model.random_bits import random_states
from placeopt.solvers.policy.move_policy import said_of
from placeopt.solvers.search.annealing_walks import AnnealingWalk
from placeopt.solvers.search.walk_kernels import BEST, EMPTY, MOVES, PROPOSED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.policy.move_policy import MovePolicy
    from placeopt.solvers.search.search_space import SearchSpace
    from placeopt.solving.tracker import Tracker

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEGS = 8
"""Stretches of a walk, for each of which the policy says how often the moves come."""

LEG = 100
"""Most proposals between two looks at what the kinds of moves have gained."""

MEMORY = 0.9
"""Weight of what was gained before one of these looks, at the next."""

DOUBT = 50.0
"""Proposals of the average gain that every kind of move is credited with."""

RAREST = 0.02
"""Least share of a kind of move."""

CYCLE = 10
"""Steps of a cycle for each op, within a solver's budget."""


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

    def __init__(
        self, space: SearchSpace, sequence: Ints, device: Ints, rng: np.random.Generator
    ) -> None:
        if not walkable(space.problem):
            raise Refused("walks of moves: transfers contend, or peak memory counts")
        self.space, self.whole = space, said_of(space)
        self._walk = AnnealingWalk(space, device, sequence, random_states(rng, 1)[0])

    def run(self, policy: MovePolicy, steps: int, part: tuple[float, float] = (0.0, 1.0)) -> None:
        """Take steps; `part`: of the whole walk, how far it is at the beginning and at the end of
        them.
        """
        ends = np.linspace(0, steps, LEGS + 1).astype(int)
        for leg in range(LEGS):
            first, last = (part[0] + (part[1] - part[0]) * (leg + i) / LEGS for i in (0, 1))
            self._step(
                policy,
                policy.chances(self.whole, (first + last) / 2),
                ends[leg + 1] - ends[leg],
                (first, last),
            )

    def learn(
        self, policy: MovePolicy, gains: MoveGains, steps: int, part: tuple[float, float]
    ) -> int:
        """Take at most `steps` steps, learning what moves gain; return how many proposals were
        evaluated: not the empty ones.
        """
        before = self._walk.tally.copy()
        self._step(policy, gains.share(policy.chances(self.whole, sum(part) / 2)), steps, part)
        new = self._walk.tally - before
        evaluated = new[:, PROPOSED] - new[:, EMPTY]
        gains.count(evaluated, new[:, BEST])
        return int(evaluated.sum())

    def _step(
        self, policy: MovePolicy, chances: Floats, steps: int, part: tuple[float, float]
    ) -> None:
        hot, cold = policy.heats(self.whole)
        self._walk.weigh(chances)
        self._walk.run(steps, *(self.space.mean_load * hot * (cold / hot) ** end for end in part))

    @property
    def best_value(self) -> int:
        """Lowest value so far, in ticks."""
        return self._walk.best_value

    def best(self) -> Placement:
        """Return the best placement, ranked by start: its `planned` execution has the best
        value.
        """
        return self._walk.best_placement()


class MoveGains:
    """What each kind of move has gained lately.

    Parameters
    ----------
    memory : weight of earlier proposals whenever new ones are counted; None: nothing is learned.

    Attributes
    ----------
    tried, better : evaluated proposals of each kind, and new best placements among them.
    """

    def __init__(self, memory: float | None = MEMORY) -> None:
        self.memory = memory
        self.tried, self.better = np.zeros(len(MOVES)), np.zeros(len(MOVES))

    def count(self, tried: Ints, better: Ints) -> None:
        """Add proposals, and the new best placements among them."""
        if self.memory is not None:
            self.tried = self.memory * self.tried + tried
            self.better = self.memory * self.better + better

    def share(self, chances: Floats) -> Floats:
        """Return the probability of each kind of move, given that before anything was learned."""
        total = float(self.better.sum())
        if total <= 0:
            return chances
        mean = total / float(self.tried.sum())
        weight = chances * (self.better + DOUBT * mean) / (self.tried + DOUBT)
        share = np.maximum(weight / weight.sum(), RAREST)
        return np.asarray(share / share.sum())


def walkable(problem: PlacementProblem) -> bool:
    """Whether walks evaluate a problem exactly."""
    return problem.num_channels == 0 and problem.memory == "static"


def walk_on(
    space: SearchSpace,
    policy: MovePolicy,
    tracker: Tracker[Placement],
    rng: np.random.Generator,
    *,
    learn: bool = True,
) -> None:
    """Walk from the tracker's best placement until the budget is spent; a step that changes nothing
    costs nothing.

    learn : learn on the way how often each kind of move should come.
    """
    gains = MoveGains(memory=MEMORY if learn else None)
    while not tracker.stop() and tracker.solution is not None:
        placement = tracker.solution
        walk = MoveWalk(space, space.sequence_of(placement), placement.device.astype(np.int64), rng)
        cycle = CYCLE * space.problem.num_ops
        left, done = tracker.evaluations_left, 0
        steps = max(1, left if left < 2 * cycle else cycle)
        while done < steps and not tracker.stop():
            now = min(LEG, steps - done)
            made = max(1, walk.learn(policy, gains, now, (done / steps, (done + now) / steps)))
            tracker.count(made)
            done += made
            if walk.best_value < (tracker.value or np.inf):
                tracker.offer(walk.best_value, walk.best())
