"""The cross-entropy method on device assignments, and Post, which joins it with proximal policy
optimisation.

The sampling search itself is in `distribution`; here are the solvers: their configuration, how much
of the budget the distribution gets, and the local refinement at the end.

References
----------
R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization",
Methodology and Computing in Applied Probability 1, 1999.
Y. Gao, L. Chen, B. Li, "Post: Device placement with cross-entropy minimization and proximal policy
optimization", NeurIPS 2018.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.search.annealing import anneal
from placeopt.solvers.search.batch_search import BatchSearch
from placeopt.solvers.search.distribution import SamplingSearch, Settings
from placeopt.solvers.search.starting_points import RANDOM
from placeopt.solving.options import option

if TYPE_CHECKING:
    from placeopt.model.placement import Placement
    from placeopt.solvers.search.evaluator import BudgetedEvaluator
    from placeopt.solving.tracker import Tracker

AUTO_GROUPS = 48
"""Number of groups where none is given and there are more units."""

AUTO_SAMPLES, AUTO_PART, LEAST_SAMPLES, MOST_SAMPLES = 256, 40, 32, 1024
"""Samples per refit where none are given: without a limit of evaluations, else this part of them
within limits."""


@dataclass(frozen=True)
class _SamplingSolver(BatchSearch):
    """What both solvers do: search by the distribution, which leans towards the start and never
    loses it, and refine.
    """

    groups: int | None = option(
        None,
        low=0,
        meaning="groups of ops that move together; 0: every op on its own, none: at most 48",
    )
    refine: float = option(
        0.0,
        low=0,
        high=1,
        meaning="share of the budget for annealing from the incumbent at the end",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups is not None and self.groups < 0:
            raise InputError(
                f"{self.name} option groups: expected at least 0, received {self.groups}"
            )
        if not self.refine < 1:
            raise InputError(
                f"{self.name} option refine: expected at least 0 and below 1, received "
                f"{self.refine}"
            )

    @abstractmethod
    def settings(self, tracker: Tracker[Placement]) -> Settings:
        """How the distribution samples and updates."""

    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: np.random.Generator
    ) -> None:
        """Search by the distribution, refine."""
        tracker = evaluator.tracker
        given = tracker.initial is not None or self.start != RANDOM
        self.sample(evaluator, starts[0] if starts and given else None, rng, 1 - self.refine)
        if self.refine > 0 and tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], rng, cycles=1)

    def sample(
        self,
        evaluator: BudgetedEvaluator,
        lean_on: Placement | None,
        rng: np.random.Generator,
        share: float,
    ) -> None:
        """Search by the distribution for a share of what is left of the budget."""
        tracker = evaluator.tracker
        evaluations = max(0, int(tracker.evaluations_left * share))
        until = tracker.elapsed + tracker.seconds_left * share
        self.sampling(evaluator, lean_on, rng).run(evaluations, until)

    def sampling(
        self, evaluator: BudgetedEvaluator, lean_on: Placement | None, rng: np.random.Generator
    ) -> SamplingSearch:
        """Return the search by the distribution, before its first sample."""
        space = evaluator.space
        count = min(space.num_units, AUTO_GROUPS) if self.groups is None else self.groups
        labels = space.groups(count) if 0 < count < space.num_units else np.arange(space.num_units)
        return SamplingSearch(evaluator, self.settings(evaluator.tracker), labels, lean_on, rng)


@dataclass(frozen=True)
class CrossEntropy(_SamplingSolver):
    """Cross-entropy method: sample, keep the best, refit; on groups of ops, refined op by op at the
    end.
    """

    name: ClassVar[str] = "cross-entropy"

    samples: int = option(
        0, low=0, meaning="placements per refit; 0: a fortieth of the evaluations, in 32 to 1024"
    )
    elite: float = option(
        0.1, above=0, high=1, meaning="share of the samples that the distribution is fitted to"
    )
    smoothing: float = option(0.7, above=0, high=1, meaning="weight of the new fit")
    exploration: float = option(
        0.02, low=0, high=1, meaning="weight of the uniform distribution, falling"
    )
    order: bool = option(False, meaning="sample the order of the ops too (random keys)")
    refine: float = option(
        0.5,
        low=0,
        high=1,
        meaning="share of the budget for annealing from the incumbent at the end",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.exploration < 1:
            raise InputError(
                "cross-entropy option exploration: expected at least 0 and below 1, received "
                f"{self.exploration}"
            )

    def settings(self, tracker: Tracker[Placement]) -> Settings:
        """Refit after every batch; no gradient."""
        samples, limit = self.samples, tracker.budget.evaluations
        if not samples:
            samples = (
                AUTO_SAMPLES
                if limit is None
                else int(np.clip(limit // AUTO_PART, LEAST_SAMPLES, MOST_SAMPLES))
            )
        return Settings(
            batch=samples,
            refit=samples,
            elite=self.elite,
            smoothing=self.smoothing,
            exploration=self.exploration,
            order=self.order,
        )


@dataclass(frozen=True)
class Post(_SamplingSolver):
    """Post: cross-entropy refits every `refit` samples, proximal policy gradient steps every
    `batch` samples.

    With `cross_entropy` or `policy_gradient` off, the other runs alone on the same samples.
    """

    name: ClassVar[str] = "post"

    cross_entropy: bool = option(True, meaning="refit the distribution to the best samples")
    policy_gradient: bool = option(True, meaning="take gradient steps between the refits")
    batch: int = option(32, low=2, meaning="samples between gradient updates (K)")
    refit: int = option(
        96, low=2, meaning="samples between cross-entropy refits (N), at least `batch`"
    )
    elite: float = option(0.15, above=0, high=1, meaning="share of the samples that the refit uses")
    smoothing: float = option(0.7, above=0, high=1, meaning="weight of the new fit")
    epochs: int = option(4, low=1, meaning="gradient steps per batch")
    learning_rate: float = option(1.0, above=0, meaning="step in logits")
    clip: float = option(0.2, above=0, meaning="limit of the probability ratio")
    entropy: float = option(0.01, low=0, meaning="weight of the entropy bonus")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.cross_entropy or self.policy_gradient):
            raise InputError("post: cross_entropy and policy_gradient are both off; turn one on")
        if self.refit < self.batch:
            raise InputError(
                f"post: expected batch <= refit, received batch={self.batch}, refit={self.refit}"
            )

    def settings(self, tracker: Tracker[Placement]) -> Settings:
        """Both updates, unless one is off."""
        return Settings(
            batch=self.batch,
            refit=self.refit if self.cross_entropy else 0,
            elite=self.elite,
            smoothing=self.smoothing,
            epochs=self.epochs if self.policy_gradient else 0,
            learning_rate=self.learning_rate,
            clip=self.clip,
            entropy_weight=self.entropy,
        )
