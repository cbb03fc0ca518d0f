"""The cross-entropy method on device assignments, and Post, which joins it with proximal policy
optimisation.

A local refinement ends the search. Every group g of ops has its own categorical distribution pi_g =
softmax(theta_g) over the devices that can run it; a placement draws every group independently. Two
updates move it towards good placements:

- cross-entropy: the share of the best rho of N samples that put g on d, smoothed,
  pi <- (1 - alpha) pi + alpha share, mixed with a decaying bit of the uniform distribution;
- a few steps of proximal policy optimisation on the last K samples: advantage
  A = (mean - value) / deviation, ratio to the distribution that drew them clipped per group,
  entropy bonus.

Post joins them: PPO every K samples, a refit every N > K. With one of them off, the same code is
plain cross-entropy or plain policy gradient.

References
----------
R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization",
Methodology and Computing in Applied Probability 1, 1999.
J. Schulman et al., "Proximal policy optimization algorithms", arXiv:1707.06347, 2017.
Y. Gao, L. Chen, B. Li, "Post: Device placement with cross-entropy minimization and proximal policy
optimization", NeurIPS 2018.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeopt.model.arrays import SmallInts, stable_order
from placeopt.model.errors import InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.random_bits import random_states
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.annealing import Annealing, anneal
from placeopt.solvers.search.batch_search import RANDOM, BatchSearch
from placeopt.solving.options import option

if TYPE_CHECKING:
    from numpy.random import Generator

    from placeopt.model.arrays import Flags, Floats, Ints
    from placeopt.model.placement import Placement
    from placeopt.solvers.search.evaluator import BudgetedEvaluator
    from placeopt.solving.tracker import PlacementTracker


@dataclass(frozen=True)
class _SamplingSolver(BatchSearch):
    """What both solvers do: search by the distribution, which leans towards the start and never
    loses it, and refine.
    """

    groups: int | None = option(
        None, "groups of ops that move together; 0: every op on its own, none: at most 48", low=0
    )
    refine: float = option(
        0.0, "share of the budget for annealing from the incumbent at the end", low=0, below=1
    )

    @abstractmethod
    def settings(self, tracker: PlacementTracker) -> Settings:
        """How the distribution samples and updates."""

    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: Generator
    ) -> None:
        """Search by the distribution, refine."""
        tracker = evaluator.tracker
        given = tracker.initial is not None or self.start != RANDOM
        lean_on, share = starts[0] if starts and given else None, 1 - self.refine
        evaluations = max(0, int(tracker.evaluations_left * share))
        until = tracker.elapsed + tracker.seconds_left * share
        self.sampling(evaluator, lean_on, rng).run(evaluations, until)
        if self.refine > 0 and tracker.solution is not None and not tracker.stop():
            anneal(evaluator, [tracker.solution], rng, Annealing(cycles=1))

    def sampling(
        self,
        evaluator: BudgetedEvaluator,
        lean_on: Placement | None,
        rng: Generator,
        *,
        auto_groups: int = 48,
    ) -> SamplingSearch:
        """Return the search by the distribution, before its first sample; in `auto_groups` groups
        where no number is given and there are more units.
        """
        space = evaluator.space
        count = auto_groups if self.groups is None else self.groups
        labels = space.groups(count) if 0 < count < space.num_units else np.arange(space.num_units)
        return SamplingSearch(evaluator, self.settings(evaluator.tracker), labels, lean_on, rng)


@dataclass(frozen=True)
class CrossEntropy(_SamplingSolver):
    """Cross-entropy method: sample, keep the best, refit; on groups of ops, refined op by op at the
    end.
    """

    samples: int = option(
        0, "placements per refit; 0: a fortieth of the evaluations, in 32 to 1024", low=0
    )
    elite: float = option(
        0.1, "share of the samples that the distribution is fitted to", above=0, high=1
    )
    smoothing: float = option(0.7, "weight of the new fit", above=0, high=1)
    exploration: float = option(0.02, "weight of the uniform distribution, falling", low=0, below=1)
    order: bool = option(False, "sample the order of the ops too (random keys)")
    refine: float = option(
        0.5, "share of the budget for annealing from the incumbent at the end", low=0, below=1
    )

    def settings(self, tracker: PlacementTracker) -> Settings:
        """Refit after every batch; no gradient."""
        samples, evaluations = self.samples or 256, tracker.budget.evaluations
        if not self.samples and evaluations is not None:
            samples = int(np.clip(evaluations // 40, 32, 1024))
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

    cross_entropy: bool = option(True, "refit the distribution to the best samples")
    policy_gradient: bool = option(True, "take gradient steps between the refits")
    batch: int = option(32, "samples between gradient updates (K)", low=2)
    refit: int = option(96, "samples between cross-entropy refits (N), at least `batch`", low=2)
    elite: float = option(0.15, "share of the samples that the refit uses", above=0, high=1)
    smoothing: float = option(0.7, "weight of the new fit", above=0, high=1)
    epochs: int = option(4, "gradient steps per batch", low=1)
    learning_rate: float = option(1.0, "step in logits", above=0)
    clip: float = option(0.2, "limit of the probability ratio", above=0)
    entropy: float = option(0.01, "weight of the entropy bonus", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.cross_entropy or self.policy_gradient):
            raise InputError("post: cross_entropy and policy_gradient are both off; turn one on")
        if self.refit < self.batch:
            raise InputError(
                f"post: expected batch <= refit, received batch={self.batch}, refit={self.refit}"
            )

    def settings(self, tracker: PlacementTracker) -> Settings:
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


@dataclass(frozen=True)
class Settings:
    """What the search does; see `CrossEntropy` and `Post` for the meaning of the fields."""

    batch: int  # samples between updates (K)
    refit: int  # samples between cross-entropy refits (N), 0 for none
    elite: float = 0.1
    smoothing: float = 0.7
    exploration: float = 0.02
    epochs: int = 0  # PPO steps per batch, 0 for none
    learning_rate: float = 1.0
    clip: float = 0.2
    entropy_weight: float = 0.01
    order: bool = False


class Distribution:
    """Independent softmax distributions of groups over devices."""

    def __init__(self, allowed: Flags) -> None:
        self.allowed = allowed
        self.uniform = allowed / allowed.sum(axis=1, keepdims=True)
        self.probability: Floats = self.uniform.copy()

    @property
    def entropy(self) -> float:
        """Mean entropy of the groups with a choice, as a share of the uniform distribution's; 0
        without any.
        """
        options = self.allowed.sum(axis=1)
        free = options > 1
        if not free.any():
            return 0.0
        p = self.probability[free]
        nats = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1)
        return float((nats / np.log(options[free])).mean())

    def lean(self, home: Ints, share: float) -> None:
        """Put `share` of every group's probability on the given device."""
        self.probability = (1 - share) * self.uniform
        self.probability[np.arange(len(home)), home] += share

    def refit(self, elites: SmallInts, smoothing: float, exploration: float) -> None:
        """Maximum likelihood on the elites, smoothed, with a bit of the uniform distribution."""
        target = kernels.frequencies(elites, self.allowed.shape[1])
        mixed = (1 - smoothing) * self.probability + smoothing * target
        self.probability = (1 - exploration) * mixed + exploration * self.uniform

    def ascend(self, drawn: SmallInts, advantage: Floats, settings: Settings) -> None:
        """Take some PPO steps on samples drawn from the present distribution."""
        # Devices that fell to probability 0 by a refit stay reachable for the gradient.
        old = np.maximum(self.probability, 1e-6)
        logits = np.where(self.allowed, np.log(old), -np.inf)
        for _ in range(settings.epochs):
            gradient = kernels.surrogate_gradient(
                logits, old, drawn, advantage, settings.clip, settings.entropy_weight
            )
            logits = np.where(self.allowed, logits + settings.learning_rate * gradient, -np.inf)
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.probability = weight / weight.sum(axis=1, keepdims=True)


class OrderKeys:
    """Normal distributions of the ops' keys; their order is the ranks (random keys).

    Parameters
    ----------
    noise : first deviation, as a share of the number of ops.
    """

    def __init__(self, rank: Ints, *, noise: float = 0.25) -> None:
        self.mean = rank.astype(np.float64)
        self.deviation = np.full(len(rank), noise * len(rank))

    def sample(self, rng: Generator, rows: int) -> Ints:
        """Draw ranks, shape (rows, num_ops): keys on a fine integer scale."""
        keys = self.mean + self.deviation * rng.standard_normal((rows, len(self.mean)))
        return (keys * kernels.RANK_GAP).astype(np.int64)

    def refit(self, elites: Ints, smoothing: float) -> None:
        """Move mean and deviation towards those of the elites."""
        keys = elites / kernels.RANK_GAP
        self.mean = (1 - smoothing) * self.mean + smoothing * keys.mean(axis=0)
        self.deviation = (1 - smoothing) * self.deviation + smoothing * keys.std(axis=0)


class Batch(NamedTuple):
    """Samples that were evaluated together."""

    drawn: SmallInts  # (rows, groups) devices
    ranks: Ints | None  # (rows, num_ops) where the order is sampled too
    values: Ints  # (rows,) ticks


class SamplingSearch:
    """Samples placements group by group and moves the distribution towards the good ones.

    Parameters
    ----------
    labels : group of each unit. lean_on : placement the first distribution leans towards.
    """

    def __init__(
        self,
        evaluator: BudgetedEvaluator,
        settings: Settings,
        labels: Ints,
        lean_on: Placement | None,
        rng: Generator,
    ) -> None:
        units = evaluator.problem.units
        self.evaluator, self.settings, self.rng = evaluator, settings, rng
        self.op_label = labels[units.unit]
        self.allowed = np.ones((int(labels.max()) + 1, evaluator.problem.num_devices), np.bool_)
        np.logical_and.at(self.allowed, labels, units.allowed)
        _, self.first_unit = np.unique(labels, return_index=True)
        self.tight = int(units.bytes.sum()) > int(units.capacity.min())
        self.joint = settings.order and evaluator.ordered
        space = evaluator.space
        self.base = space.rank if lean_on is None or lean_on.priority is None else lean_on.priority
        self.batches: list[Batch] = []
        self._begin(lean_on)

    def run(self, evaluations: int, until: float, *, converged: float = 0.02) -> None:
        """Sample and update until `evaluations` are spent or the clock passes `until` (or the
        budget ends).

        Parameters
        ----------
        converged : mean entropy, as a share of the uniform distribution's, below which the
            distribution starts anew.
        """
        tracker, settings = self.evaluator.tracker, self.settings
        end = tracker.evaluations + evaluations
        while tracker.evaluations < end and tracker.elapsed < until and not tracker.stop():
            batch = self._sample(min(settings.batch, end - tracker.evaluations))
            self.batches.append(batch)
            if settings.epochs:
                self.distribution.ascend(batch.drawn, _advantage(batch.values), settings)
            if not settings.refit:
                self.batches = []
            elif sum(len(batch.values) for batch in self.batches) >= settings.refit:
                self._refit()
            if self.distribution.entropy < converged:
                self._restart()

    def _restart(self) -> None:
        """Start anew, every other time near the incumbent."""
        incumbent = self.evaluator.tracker.solution
        near = incumbent is not None and self.rng.random() < 0.5
        self._begin(incumbent if near else None)

    def _begin(self, lean_on: Placement | None) -> None:
        """Forget what was learnt; lean towards a placement, if there is one."""
        self.distribution = Distribution(self.allowed)
        if lean_on is not None:
            self.distribution.lean(self._group_homes(lean_on.device), 0.5)
        self.keys = OrderKeys(stable_order(stable_order(self.base)))
        self.exploration = self.settings.exploration
        self.batches = []

    def _sample(self, rows: int) -> Batch:
        """Draw and evaluate placements."""
        space, evaluator = self.evaluator.space, self.evaluator
        states = random_states(self.rng, rows)
        devices = np.empty((rows, evaluator.problem.num_ops), np.int32)
        drawn = kernels.sample(
            self.op_label, np.cumsum(self.distribution.probability, axis=1), states, devices
        )
        if self.tight:
            homes = space.homes_of(devices)
            kernels.fit(space.graph, homes, states)
            devices = space.devices_of(homes).astype(np.int32)
            drawn = np.ascontiguousarray(homes[:, self.first_unit].astype(np.int32))
        ranks = self.keys.sample(self.rng, rows) if self.joint else self.base
        values = evaluator.values(devices, ranks if evaluator.ordered else None)
        return Batch(drawn, ranks if self.joint else None, values)

    def _refit(self) -> None:
        """Fit the distribution to the best of the samples since the last refit, and to the
        incumbent.
        """
        incumbent, smoothing = self.evaluator.tracker.solution, self.settings.smoothing
        values = np.concatenate([batch.values for batch in self.batches])
        good = stable_order(values)[: max(1, round(self.settings.elite * len(values)))]
        good = good[values[good] != INFEASIBLE]
        if len(good):
            elites = [np.concatenate([batch.drawn for batch in self.batches])[good]]
            if incumbent is not None:
                elites.append(self._group_homes(incumbent.device)[None, :].astype(np.int32))
            self.distribution.refit(np.concatenate(elites), smoothing, self.exploration)
            ranks = [batch.ranks for batch in self.batches if batch.ranks is not None]
            if ranks:
                self.keys.refit(np.concatenate(ranks)[good], smoothing)
        self.exploration *= 0.9
        self.batches = []

    def _group_homes(self, device: Ints) -> Ints:
        """Device of the first op of each group."""
        return self.evaluator.space.homes_of(device)[self.first_unit]


def _advantage(values: Ints) -> Floats:
    """How much better than the batch's mean each sample is, in deviations; failures count as the
    worst.
    """
    good = values != INFEASIBLE
    if not good.any():
        return np.zeros(len(values))
    filled = np.where(good, values, values[good].max()).astype(np.float64)
    return (filled.mean() - filled) / (filled.std() + 1e-12)
