"""The cross-entropy method on device assignments, and Post, which joins it with proximal policy optimisation.

The search itself is in `distribution`; here are the solvers: their configuration, how much of the budget the
distribution gets, and the local refinement at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.search.annealing import improve
from placeopt.solvers.search.distribution import Settings, search
from placeopt.solvers.search.objective import Measure, Objective
from placeopt.solvers.search.starts import RANDOM, check_start, starting_placements

if TYPE_CHECKING:
    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

AUTO_GROUPS = 48
"""Number of groups where none is given and there are more units."""

REFINE_HEAT = 0.02
"""First temperature of the local refinement, as a share of the mean work of a device."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy method: sample, keep the best, refit; on groups of ops, refined op by op at the end.

    Parameters
    ----------
    samples : placements per refit; 0 for a fortieth of the budget of evaluations, within 32 and 1024.
    elite : share of the samples that the distribution is fitted to.
    smoothing : weight of the new fit. exploration : weight of the uniform distribution, falling.
    groups : number of groups of ops that move together; 0 for every op on its own, None for at most 48.
    order : sample the order of the ops too (random keys).
    refine : share of the budget for local refinement (annealing from the incumbent) at the end.
    start : solver whose placement the distribution leans towards and never loses; "random" for none.
    objective : callable that measures a placement (devices, shape (num_ops,)) in seconds, instead of the makespan.
    threads : None for one per core; the result does not depend on it.
    """

    samples: int = 0
    elite: float = 0.1
    smoothing: float = 0.7
    exploration: float = 0.02
    groups: int | None = None
    order: bool = False
    refine: float = 0.5
    start: str = "edge-zeroing"
    objective: Measure | None = None
    threads: int | None = None

    name: ClassVar[str] = "cross-entropy"

    def __post_init__(self) -> None:
        _check(self.name, self.groups, self.elite, self.smoothing, self.refine, self.start)
        if self.samples < 0:
            raise InputError(f"cross-entropy: samples must be at least 0, received {self.samples}")
        if not 0 <= self.exploration < 1:
            raise InputError(f"cross-entropy: exploration must be in [0, 1), received {self.exploration}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Search until the budget is spent; never worse than `initial` and the start."""
        samples = self.samples
        if not samples:
            samples = 256 if budget.evaluations is None else int(np.clip(budget.evaluations // 40, 32, 1024))
        settings = Settings(
            batch=samples, refit=samples, elite=self.elite, smoothing=self.smoothing, exploration=self.exploration,
            order=self.order,
        )  # fmt: skip
        objective = Objective(
            self.name, problem, budget, seed=seed, measure=self.objective, threads=self.threads,
            on_progress=on_progress,
        )  # fmt: skip
        return _solve(objective, settings, self.groups, self.refine, self.start, initial)


@dataclass(frozen=True)
class Post:
    """Post: cross-entropy refits every `refit` samples, proximal policy gradient steps every `batch` samples.

    Parameters
    ----------
    cross_entropy, policy_gradient : the two parts; with one off, the other runs alone on the same samples.
    batch : samples between gradient updates (K). refit : samples between cross-entropy refits (N).
    elite : share of the samples that the refit uses. smoothing : weight of the new fit.
    epochs : gradient steps per batch. learning_rate : step in logits. clip : limit of the probability ratio.
    entropy : weight of the entropy bonus.
    groups, refine, start, objective, threads : as in `CrossEntropy`.
    """

    cross_entropy: bool = True
    policy_gradient: bool = True
    batch: int = 32
    refit: int = 96
    elite: float = 0.15
    smoothing: float = 0.7
    epochs: int = 4
    learning_rate: float = 1.0
    clip: float = 0.2
    entropy: float = 0.01
    groups: int | None = None
    refine: float = 0.0
    start: str = "edge-zeroing"
    objective: Measure | None = None
    threads: int | None = None

    name: ClassVar[str] = "post"

    def __post_init__(self) -> None:
        _check(self.name, self.groups, self.elite, self.smoothing, self.refine, self.start)
        if not (self.cross_entropy or self.policy_gradient):
            raise InputError("post: cross_entropy and policy_gradient are both off; turn one on")
        if self.batch < 2 or self.refit < self.batch:
            raise InputError(f"post: expected 2 <= batch <= refit, received batch={self.batch}, refit={self.refit}")
        if self.epochs < 1 or self.learning_rate <= 0 or self.clip <= 0 or self.entropy < 0:
            raise InputError(
                f"post: expected epochs >= 1, learning_rate > 0, clip > 0, entropy >= 0, received {self.epochs}, "
                f"{self.learning_rate}, {self.clip}, {self.entropy}"
            )

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Search until the budget is spent; never worse than `initial` and the start."""
        settings = Settings(
            batch=self.batch,
            refit=self.refit if self.cross_entropy else 0,
            elite=self.elite,
            smoothing=self.smoothing,
            epochs=self.epochs if self.policy_gradient else 0,
            learning_rate=self.learning_rate,
            clip=self.clip,
            entropy_weight=self.entropy,
        )
        objective = Objective(
            self.name, problem, budget, seed=seed, measure=self.objective, threads=self.threads,
            on_progress=on_progress,
        )  # fmt: skip
        return _solve(objective, settings, self.groups, self.refine, self.start, initial)


def _check(solver: str, groups: int | None, elite: float, smoothing: float, refine: float, start: str) -> None:
    if groups is not None and groups < 0:
        raise InputError(f"{solver}: groups must be at least 0 (0: every op on its own), received {groups}")
    for key, value in (("elite", elite), ("smoothing", smoothing)):
        if not 0 < value <= 1:
            raise InputError(f"{solver}: {key} must be in (0, 1], received {value}")
    if not 0 <= refine < 1:
        raise InputError(f"{solver}: refine must be in [0, 1), received {refine}")
    check_start(solver, start)


def _solve(
    objective: Objective, settings: Settings, groups: int | None, refine: float, start: str, initial: Placement | None
) -> Result[Placement]:
    """Start, search by the distribution, refine."""
    tracker, space = objective.tracker, objective.space
    reason = objective.impossible()
    if reason is not None:
        return tracker.result(status="infeasible", message=reason)
    rng = np.random.default_rng(tracker.seed)
    with tracker:
        starts = starting_placements(objective, start, initial, rng)
        lean_on = starts[0] if starts and (initial is not None or start != RANDOM) else None
        count = min(space.num_units, AUTO_GROUPS) if groups is None else groups
        labels = space.groups(count) if 0 < count < space.num_units else np.arange(space.num_units)
        search(
            objective,
            settings,
            labels,
            lean_on,
            rng,
            evaluations=max(0, int(tracker.evaluations_left * (1 - refine))),
            until=tracker.elapsed + tracker.seconds_left * (1 - refine),
        )
        if refine > 0 and tracker.solution is not None and not tracker.stop():
            improve(objective, [tracker.solution], rng, hot=REFINE_HEAT, cycles=1)
        tracker.stop()
    return objective.finish()
