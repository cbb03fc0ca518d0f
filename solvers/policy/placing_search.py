"""Placing steps within a solver's budget: cycles that cool down, each from the best placement so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.solvers.policy.step_policy import StepPolicyModel
    from placeopt.solvers.policy.zero_shot import StepWalk
    from placeopt.solving.tracker import Tracker

CYCLE = 60
"""Steps of a cycle for each op."""

CHUNK = 500
"""Most steps between two looks at the clock."""

HEATS = (3e-3, 3e-5)
"""Temperatures at the beginning and the end of a cycle, as shares of the value."""


def walk_on(
    walk: StepWalk, model: StepPolicyModel, tracker: Tracker[Placement], rng: np.random.Generator, rate: float
) -> None:
    """Take placing steps from the tracker's best placement until the budget is spent; each counts as one evaluation.

    Parameters
    ----------
    rate : step of the preferences for kinds of steps, which are learned in each cycle.
    """
    while not tracker.stop() and tracker.solution is not None:
        placement = tracker.solution
        sequence = walk.space.sequence_of(placement)
        walk.begin(model, sequence, placement.device, seed=int(rng.integers(0, 2**62)))
        limited = tracker.budget.evaluations is not None
        cycle = CYCLE * walk.problem.num_ops
        left = int(tracker.evaluations_left) if limited else cycle
        steps = max(1, left if left < 2 * cycle else cycle)
        done = 0
        while done < steps and not tracker.stop():
            now = min(CHUNK, steps - done)
            taken = walk.run(model, steps=now, heat=HEATS, part=(done / steps, (done + now) / steps), rate=rate)
            tracker.count(taken)
            done += now
            if walk.best_value < (tracker.value or np.inf):
                tracker.offer(walk.best_value, walk.best())
