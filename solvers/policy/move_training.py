"""Train policies of moves on several graphs by a race: what counts is the value at the end of a
walk.

Policies are drawn around a first one. All of them walk on some graphs; the better half goes on to
twice as many walks, and so on until one is left (successive halving). Values of single walks
scatter by more than what two good policies differ by, so most of the walks must go to the few that
are left. A policy gradient on single steps and evolution strategies on whole walks were tried
before: the first is short-sighted, since a step that gains nothing may be what a later one needs;
the second ended above the policy that it began from.

References
----------
K. Jamieson, A. Talwalkar. Non-stochastic best arm identification and hyperparameter optimization.
AISTATS 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.policy.move_policy import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placeopt.solvers.policy.move_policy import MovePolicy
    from placeopt.solvers.policy.zero_shot import ZeroShot

    Judge = Callable[[ZeroShot, MovePolicy, int], float]

SPREADS = (0.7, 0.4, 0.4)
"""Standard deviation of the weights of the drawn policies, for each of WHOLE."""


def walked(graph: ZeroShot, policy: MovePolicy, sample: int) -> float:
    """Logarithm of the value at the end of a run."""
    return float(np.log(graph.run(policy, sample=sample).value))


def drawn_around(policy: MovePolicy, count: int, rng: np.random.Generator) -> list[MovePolicy]:
    """Return policies with normal deviations from one."""
    spread = np.tile(SPREADS, sum(map(len, TABLES.values())))
    return [
        policy.with_vector(policy.vector + spread * rng.normal(size=len(spread)))
        for _ in range(count)
    ]


def race(
    policies: Sequence[MovePolicy],
    graphs: Sequence[ZeroShot],
    judge: Judge,
    *,
    seed: int,
    first: int = 8,
) -> MovePolicy:
    """Return the policy that is left when half of them drop out after every round.

    Parameters
    ----------
    judge : called with a graph, a policy and the number of a sample; smaller is better. All
    policies of a round get the same.
    first : walks of every policy in the first round; each round has twice as many.

    Raises
    ------
    InputError
        If there are no graphs, or no policies.
    """
    if not graphs or not policies:
        raise InputError("race: expected at least one graph and one policy")
    rng = np.random.default_rng(seed)
    left, total = list(policies), np.zeros(len(policies))
    walks = first
    while len(left) > 1:
        order = np.concatenate(
            [rng.permutation(len(graphs)) for _ in range(-(-walks // len(graphs)))]
        )[:walks]
        for graph, sample in zip(
            order.tolist(), rng.integers(1, 2**31, walks).tolist(), strict=True
        ):
            total += [judge(graphs[graph], policy, sample) for policy in left]
        kept = np.sort(np.argsort(total, kind="stable")[: len(left) // 2])
        left, total, walks = [left[i] for i in kept.tolist()], total[kept], 2 * walks
    return left[0]


def fittest(
    policies: Sequence[MovePolicy], graphs: Sequence[ZeroShot], judge: Judge, *, samples: int = 2
) -> int:
    """Return which policy is best on some graphs on average, the first among equals."""
    means = [
        np.mean([judge(graph, policy, sample) for graph in graphs for sample in range(samples)])
        for policy in policies
    ]
    return int(np.argmin(means))
