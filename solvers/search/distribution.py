"""Search by a distribution over placements: cross-entropy refits and proximal policy gradients on one softmax.

Every group g of ops has its own categorical distribution pi_g = softmax(theta_g) over the devices that can run
it; a placement draws every group independently. Two updates move it towards good placements:

- cross-entropy (Rubinstein 1999): the share of the best rho of N samples that put g on d, smoothed,
  pi <- (1 - alpha) pi + alpha share, mixed with a decaying bit of the uniform distribution;
- a few steps of proximal policy optimisation (Schulman et al. 2017) on the last K samples: advantage
  A = (mean - value) / deviation, ratio to the distribution that drew them clipped per group, entropy bonus.

Gao, Chen and Li, "Post: Device placement with cross-entropy minimization and proximal policy optimization",
NeurIPS 2018, joins them: PPO every K samples, a refit every N > K. With one of them off, the same code is plain
cross-entropy or plain policy gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.evaluate import INFEASIBLE
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.walker import random_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.solvers.search.objective import Objective

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

CONVERGED = 0.02
"""Mean entropy, as a share of the uniform distribution's, below which a distribution starts anew."""

KEY_NOISE = 0.25
"""Initial deviation of the order's keys, as a share of the number of ops."""


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
    restarts: bool = True


class Distribution:
    """Independent softmax distributions of groups over devices."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self.allowed = allowed
        self.uniform = allowed / allowed.sum(axis=1, keepdims=True)
        self.probability: Floats = self.uniform.copy()

    @property
    def entropy(self) -> float:
        """Mean entropy of the groups with a choice, as a share of the uniform distribution's; 0 without any."""
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

    def refit(self, elites: NDArray[np.int32], smoothing: float, exploration: float) -> None:
        """Maximum likelihood on the elites, smoothed, with a bit of the uniform distribution."""
        target = kernels.frequencies(elites, self.allowed.shape[1])
        mixed = (1 - smoothing) * self.probability + smoothing * target
        self.probability = (1 - exploration) * mixed + exploration * self.uniform

    def ascend(self, drawn: NDArray[np.int32], advantage: Floats, settings: Settings) -> None:
        """Take some PPO steps on samples drawn from the present distribution."""
        old = self.probability.copy()
        # Devices that fell to probability 0 by a refit stay reachable for the gradient.
        logits = np.where(self.allowed, np.log(np.maximum(old, 1e-6)), -np.inf)
        for _ in range(settings.epochs):
            gradient = kernels.surrogate_gradient(
                logits, np.maximum(old, 1e-6), drawn, advantage, settings.clip, settings.entropy_weight
            )
            logits = np.where(self.allowed, logits + settings.learning_rate * gradient, -np.inf)
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.probability = weight / weight.sum(axis=1, keepdims=True)


class OrderKeys:
    """Normal distributions of the ops' keys; their order is the ranks (random keys)."""

    def __init__(self, rank: Ints) -> None:
        self.mean = rank.astype(np.float64)
        self.deviation = np.full(len(rank), KEY_NOISE * len(rank))

    def sample(self, rng: np.random.Generator, rows: int) -> Ints:
        """Draw ranks, shape (rows, num_ops): keys on a fine integer scale."""
        keys = self.mean + self.deviation * rng.standard_normal((rows, len(self.mean)))
        return (keys * kernels.RANK_GAP).astype(np.int64)

    def refit(self, elites: Ints, smoothing: float) -> None:
        """Move mean and deviation towards those of the elites."""
        keys = elites / kernels.RANK_GAP
        self.mean = (1 - smoothing) * self.mean + smoothing * keys.mean(axis=0)
        self.deviation = (1 - smoothing) * self.deviation + smoothing * keys.std(axis=0)


def search(
    objective: Objective,
    settings: Settings,
    labels: Ints,
    lean_on: Placement | None,
    rng: np.random.Generator,
    *,
    evaluations: int,
    until: float,
) -> None:
    """Sample and update until `evaluations` are spent or the clock passes `until` (or the budget ends).

    Parameters
    ----------
    labels : group of each unit. lean_on : placement the first distribution leans towards.
    """
    space, tracker = objective.space, objective.tracker
    op_label = labels[space.view.units.unit]
    allowed = np.ones((int(labels.max()) + 1, objective.problem.num_devices), dtype=np.bool_)
    np.logical_and.at(allowed, labels, space.view.units.allowed)
    _, first_unit = np.unique(labels, return_index=True)
    tight = int(space.view.units.bytes.sum()) > int(objective.problem.capacity.min())

    distribution = Distribution(allowed)
    if lean_on is not None:
        distribution.lean(space.homes_of(lean_on.device)[first_unit], 0.5)
    base = space.rank if lean_on is None or lean_on.priority is None else lean_on.priority
    keys = OrderKeys(np.argsort(np.argsort(base, kind="stable"), kind="stable"))
    joint = settings.order and objective.ordered
    drawn_all: list[NDArray[np.int32]] = []
    ranks_all: list[Ints] = []
    values_all: list[Ints] = []
    began, exploration = tracker.evaluations, settings.exploration

    while tracker.evaluations - began < evaluations and tracker.elapsed < until and not tracker.stop():
        rows = min(settings.batch, evaluations - (tracker.evaluations - began))
        states = random_states(rng, rows)
        devices = np.empty((rows, objective.problem.num_ops), dtype=np.int32)
        drawn = kernels.sample(op_label, np.cumsum(distribution.probability, axis=1), states, devices)
        if tight:
            homes = space.homes_of(devices)
            kernels.fit(space.graph, homes, states)
            devices = space.devices_of(homes).astype(np.int32)
            drawn = np.ascontiguousarray(homes[:, first_unit].astype(np.int32))
        ranks = keys.sample(rng, rows) if joint else base
        values = objective.values(devices, ranks if objective.ordered else None)
        drawn_all.append(drawn)
        values_all.append(values)
        if joint:
            ranks_all.append(ranks)
        if settings.epochs:
            distribution.ascend(drawn, _advantage(values), settings)
        if settings.refit and sum(map(len, values_all)) >= settings.refit:
            values = np.concatenate(values_all)
            good = np.argsort(values, kind="stable")[: max(1, round(settings.elite * len(values)))]
            good = good[values[good] != INFEASIBLE]
            if len(good):
                elites = [np.concatenate(drawn_all)[good]]
                if tracker.solution is not None:  # the incumbent stays in
                    elites.append(space.homes_of(tracker.solution.device)[first_unit][None, :].astype(np.int32))
                distribution.refit(np.concatenate(elites), settings.smoothing, exploration)
                if joint:
                    keys.refit(np.concatenate(ranks_all)[good], settings.smoothing)
            exploration *= 0.9
            drawn_all, ranks_all, values_all = [], [], []
        elif not settings.refit:
            drawn_all, ranks_all, values_all = [], [], []
        if settings.restarts and distribution.entropy < CONVERGED:
            # Start anew, every other time near the incumbent.
            distribution = Distribution(allowed)
            if tracker.solution is not None and rng.random() < 0.5:
                distribution.lean(space.homes_of(tracker.solution.device)[first_unit], 0.5)
            exploration = settings.exploration
            keys = OrderKeys(np.argsort(np.argsort(base, kind="stable"), kind="stable"))
            drawn_all, ranks_all, values_all = [], [], []


def _advantage(values: Ints) -> Floats:
    """How much better than the batch's mean each sample is, in deviations; failures count as the worst."""
    good = values != INFEASIBLE
    if not good.any():
        return np.zeros(len(values))
    filled = np.where(good, values, values[good].max()).astype(np.float64)
    return np.asarray((filled.mean() - filled) / (filled.std() + 1e-12))
