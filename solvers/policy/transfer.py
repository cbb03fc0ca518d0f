"""Train one dual policy on several graphs, and apply it to others.

The policy has no residual, and its features are scaled, so that the same weights mean the same on
graphs of any size and on any number of devices. Every step rolls out episodes on each graph and
adds up the graphs' policy gradients of the mean logarithm of the makespan, which has no unit;
placements of teachers are imitated besides. Placing steps are trained in `step_training`.

The question is that of Placeto and GiPH: does what was learned on some graphs help on graphs that
were not seen?

References
----------
- R. Addanki et al. Placeto: learning generalizable device placement algorithms for distributed
  machine learning. NeurIPS 2019.
- Y. Hu et al. GiPH: generalizable placement learning for adaptive heterogeneous computing. MLSys
  2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.errors import InputError
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.advantages import relative_advantage
from placeopt.solvers.policy.dual_learner import DualLearner, teaching_order
from placeopt.solvers.policy.dual_policy import DualPolicy
from placeopt.solvers.policy.dual_policy_file import ARRAYS, DualPolicyModel
from placeopt.solvers.policy.episodes import Episodes, OrderedProblem, roll, weights_of
from placeopt.solvers.policy.learned_placer import draw_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem


class Episode(NamedTuple):
    """The best of some episodes."""

    value: int  # ticks; INFEASIBLE if none satisfies every constraint
    device: NDArray[np.int32]  # (num_ops,)
    rank: NDArray[np.int64]  # (num_ops,)


def train_policy(
    problems: Sequence[PlacementProblem],
    *,
    seed: int,
    model: DualPolicyModel | None = None,
    steps: int = 200,
    batch: int = 32,
    learning_rate: float = 0.2,
    teachers: Sequence[Placement | None] = (),
) -> DualPolicyModel:
    """Return a policy trained on all problems at once.

    Parameters
    ----------
    model : the policy to start from; by default that of the critical-path heuristic.
    steps, batch : policy-gradient steps, and episodes per problem in each; at temperature 2, for a
    heuristic's own weights are
        sharp and would explore little at 1.
    teachers : a placement of each problem to imitate besides, or None; none at all by default.

    Raises
    ------
    InputError
        If there are no problems.
    """
    first = model or DualPolicyModel.heuristic("critical-path")
    learners = _learners(problems, first, seed, learning_rate)
    lessons = [
        None
        if teacher is None
        else Episodes.given(learner.ordered, *teaching_order(learner.ordered.problem, teacher))
        for learner, teacher in zip(learners, teachers or [None] * len(learners), strict=True)
    ]
    for step in range(steps):
        gradients = []
        for learner, lesson in zip(learners, lessons, strict=True):
            weights = learner.weights(2.0)
            episodes = learner.sample(batch, 2.0)
            values = evaluate_batch(
                learner.ordered.problem, episodes.devices, episodes.ranks, "priority"
            )
            gradients.append(
                learner.gradient(
                    weights, episodes, relative_advantage(values) / batch, everywhere=True
                )
            )
            if lesson is not None:
                share = np.full(1, 0.3 / learner.ordered.problem.num_ops)
                gradients.append(learner.gradient(weights, lesson, share, everywhere=True))
        _ascend(learners, gradients, 1 - 0.9 * step / steps)  # the last steps settle
    return learners[0].model(_note(problems, f"{steps} steps of {batch} episodes each", seed))


def _learners(
    problems: Sequence[PlacementProblem], first: DualPolicyModel, seed: int, learning_rate: float
) -> list[DualLearner]:
    """Return a learner per problem, all of the same parameters."""
    if not problems:
        raise InputError("train_policy: expected at least one problem")
    rng = np.random.default_rng(seed)
    config = DualPolicy(learning_rate=learning_rate, residual=False, hidden=0)
    learners = [DualLearner(OrderedProblem.of(problem), first, config, rng) for problem in problems]
    for learner in learners:
        learner.parameters = learners[0].parameters
    return learners


def _ascend(learners: list[DualLearner], gradients: list[dict[str, Any]], share: float) -> None:
    total = {name: np.sum([gradient[name] for gradient in gradients], axis=0) for name in ARRAYS}
    learners[0].parameters.ascend(total, share)
    for learner in learners:
        learner.forget()


def _note(problems: Sequence[PlacementProblem], what: str, seed: int) -> str:
    names = (
        ", ".join(problem.name for problem in problems)
        if len(problems) < 10
        else f"{len(problems)} graphs"
    )
    return f"{names}: {what}, seed {seed}"


def apply_policy(
    problem: PlacementProblem, model: DualPolicyModel, *, samples: int = 0, seed: int = 0
) -> Episode:
    """Act greedily on a problem, and draw `samples` episodes besides; return the best."""
    ordered = OrderedProblem.of(problem)
    weights = weights_of(model, ordered)
    runs = [roll(ordered, weights, np.zeros(1, np.uint64), select_and_place.GREEDY)]
    if samples:
        seeds = draw_seeds(np.random.default_rng(seed), samples)
        runs.append(roll(ordered, weights, seeds))
    devices, ranks = (
        np.concatenate([getattr(run, key) for run in runs]) for key in ("devices", "ranks")
    )
    values = np.minimum(
        evaluate_batch(problem, devices), evaluate_batch(problem, devices, ranks, "priority")
    )
    best = int(values.argmin())
    return Episode(int(values[best]), devices[best], ranks[best])
