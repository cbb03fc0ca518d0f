"""Train one dual policy on several graphs, and apply it to others.

The policy has feature weights only (no residual), and its features are scaled, so that the same weights mean the same
on graphs of any size and on any number of devices. Every step rolls out episodes on each graph and adds up the
graphs' policy gradients of the mean logarithm of the makespan, which has no unit.

The question is that of Placeto and GiPH: does what was learned on some graphs help on graphs that were not seen?

References
----------
- R. Addanki et al. Placeto: learning generalizable device placement algorithms for distributed machine learning.
  NeurIPS 2019.
- Y. Hu et al. GiPH: generalizable placement learning for adaptive heterogeneous computing. MLSys 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.errors import InputError
from placeopt.solvers.policy import select_and_place
from placeopt.solvers.policy.adam import Adam
from placeopt.solvers.policy.advantages import relative_advantage
from placeopt.solvers.policy.dual_policy_file import DualPolicyModel
from placeopt.solvers.policy.episodes import OrderedProblem, roll, weights_of
from placeopt.solvers.policy.learned_placer import draw_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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
    temperature: float = 2.0,
) -> DualPolicyModel:
    """Return a policy trained on all problems at once.

    Parameters
    ----------
    model : the policy to start from; by default that of the critical-path heuristic.
    steps, batch : policy-gradient steps, and episodes per problem in each.
    temperature : of both softmaxes in training; a heuristic's own weights are sharp and would explore little at 1.

    Raises
    ------
    InputError
        If there are no problems.
    """
    if not problems:
        raise InputError("train_policy: expected at least one problem")
    first = model or DualPolicyModel.heuristic("critical-path")
    rng = np.random.default_rng(seed)
    prepared = [OrderedProblem.of(problem) for problem in problems]
    sel, plc = np.array(first.sel), np.array(first.plc)
    adam = Adam(len(sel) + len(plc), learning_rate)
    for step in range(steps):
        # The last steps settle.
        adam.learning_rate = learning_rate * (1 - 0.9 * step / steps)
        total = np.zeros(len(sel) + len(plc))
        for ordered in prepared:
            weights = weights_of(
                DualPolicyModel(sel, plc, sel_scaling=first.sel_scaling), ordered.problem.num_devices,
                temperature=temperature,
            )
            seeds = draw_seeds(rng, batch)
            episodes = roll(ordered, weights, seeds)
            values = evaluate_batch(ordered.problem, episodes.devices, episodes.ranks, "priority")
            total += relative_advantage(values) @ np.hstack([episodes.sel, episodes.plc]) / batch
        change = adam.step(total)
        sel, plc = sel + change[: len(sel)], plc + change[len(sel) :]
    names = ", ".join(problem.name for problem in problems)
    return first.trained(sel, plc, f"{names}: {steps} steps of {batch} episodes each, seed {seed}")


def apply_policy(problem: PlacementProblem, model: DualPolicyModel, *, samples: int = 0, seed: int = 0) -> Episode:
    """Act greedily on a problem, and draw `samples` episodes besides; return the best."""
    ordered = OrderedProblem.of(problem)
    weights = weights_of(model, problem.num_devices, temperature=model.temperature)
    runs = [roll(ordered, weights, np.zeros(1, np.uint64), select_and_place.GREEDY)]
    if samples:
        seeds = draw_seeds(np.random.default_rng(seed), samples)
        runs.append(roll(ordered, weights, seeds))
    devices, ranks = (np.concatenate([getattr(run, key) for run in runs]) for key in ("devices", "ranks"))
    values = np.minimum(
        evaluate_batch(problem, devices), evaluate_batch(problem, devices, ranks, "priority")
    )
    best = int(values.argmin())
    return Episode(int(values[best]), devices[best], ranks[best])
