"""Policy gradients for softmax policies that are linear in features: closed-form, no automatic differentiation.

A decision offers A actions with features x_a (F numbers each); the policy picks a valid action with probability
proportional to exp(w . x_a / T). Its score function is closed-form,

    d/dw log pi(c) = (x_c - sum_a pi(a) x_a) / T,

so that REINFORCE (Williams 1992), with a baseline and an entropy bonus, and the clipped surrogate of PPO (Schulman et
al. 2017) need no automatic differentiation. Nothing here knows what is decided: callers roll out their
policy, hand over `Decisions` with an advantage for each, and read the weights back::

    learner = PolicyGradient(weights, PolicyGradientConfig(learning_rate=0.05))
    for _ in range(iterations):
        decisions, mean_return = roll_out(learner.weights)
        learner.update(decisions, mean_return)
    learner.trace                                 # return, entropy, gradient norm, step by step

Decisions with different numbers of actions share one array: pad and mark the padding invalid.

References
----------
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement learning. Machine
  Learning 8, 1992.
- J. Schulman, F. Wolski, P. Dhariwal, A. Radford, O. Klimov. Proximal policy optimization algorithms. arXiv 1707.06347,
  2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.policy.adam import Adam

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Decisions:
    """N decisions among up to A actions, and how good each turned out.

    Attributes
    ----------
    features : of every action; rows of invalid actions are ignored.
    valid : which actions could be chosen; at least one per decision.
    chosen : index of the action taken.
    advantage : return minus baseline; a better outcome is larger.
    log_probability : of the chosen action when it was taken; needed for clipping (PPO), else None.
    """

    features: NDArray[np.float64]  # (N, A, F)
    valid: NDArray[np.bool_]  # (N, A)
    chosen: NDArray[np.int64]  # (N,)
    advantage: NDArray[np.float64]  # (N,)
    log_probability: NDArray[np.float64] | None = None  # (N,)

    def __post_init__(self) -> None:
        n, a, _ = self.features.shape
        if self.valid.shape != (n, a) or self.chosen.shape != (n,) or self.advantage.shape != (n,):
            raise InputError(
                f"decisions: features {self.features.shape} do not match valid {self.valid.shape}, "
                f"chosen {self.chosen.shape} and advantage {self.advantage.shape}"
            )
        if n and not self.valid[np.arange(n), self.chosen].all():
            raise InputError("decisions: an action was chosen that is not valid")

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, rows: NDArray[np.int64]) -> Decisions:
        """Return some of the decisions."""
        old = None if self.log_probability is None else self.log_probability[rows]
        return Decisions(self.features[rows], self.valid[rows], self.chosen[rows], self.advantage[rows], old)


@dataclass(frozen=True)
class PolicyGradientConfig:
    """How to learn.

    Attributes
    ----------
    learning_rate : step of Adam.
    temperature : T of the softmax.
    entropy : weight of the entropy bonus at the first update; falls linearly to `final_entropy` over `iterations`.
    clip : PPO's epsilon; None is plain REINFORCE.
    epochs, batches : passes over the decisions per update, and minibatches per pass.
    normalise : scale advantages to zero mean and unit deviation.
    max_norm : the gradient is shortened to this length.
    anchor : weight of a pull towards the first weights: keeps a seeded policy near its seed.
    """

    learning_rate: float = 0.02
    temperature: float = 1.0
    entropy: float = 0.01
    final_entropy: float = 0.0
    iterations: int = 100
    clip: float | None = None
    epochs: int = 1
    batches: int = 1
    normalise: bool = True
    max_norm: float = 1.0
    anchor: float = 0.0

    def __post_init__(self) -> None:
        for key in ("learning_rate", "temperature", "max_norm"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"policy gradient: {key} must be > 0, received {value}")
        for key in ("entropy", "final_entropy", "anchor"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"policy gradient: {key} must be >= 0, received {value}")
        for key in ("iterations", "epochs", "batches"):
            if getattr(self, key) < 1:
                raise InputError(f"policy gradient: {key} must be >= 1, received {getattr(self, key)}")
        if self.clip is not None and not 0 < self.clip < 1:
            raise InputError(f"policy gradient: clip must be in (0, 1), received {self.clip}")


@dataclass(frozen=True)
class TrainingPoint:
    """One update, for the convergence curve."""

    iteration: int
    mean_return: float
    entropy: float
    gradient_norm: float
    divergence: float  # mean log-probability lost on the chosen actions: an estimate of KL(old || new)


def log_probabilities(
    weights: NDArray[np.float64],
    features: NDArray[np.float64],
    valid: NDArray[np.bool_],
    temperature: float = 1.0,
) -> NDArray[np.float64]:
    """Return log pi(a) of every action, (N, A); -inf where invalid."""
    score = np.where(valid, features @ weights / temperature, -np.inf)
    score = score - score.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.asarray(score - np.log(np.exp(score).sum(axis=1, keepdims=True)))


def sample(log_probability: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one action per row (Gumbel trick)."""
    noise = rng.gumbel(size=log_probability.shape)
    return np.asarray(np.argmax(log_probability + noise, axis=1), dtype=np.int64)


class PolicyGradient:
    """Learns the weights of a log-linear policy from decisions and their advantages.

    Attributes
    ----------
    weights : current weights.
    trace : one `TrainingPoint` per update.
    """

    def __init__(self, weights: NDArray[np.float64], config: PolicyGradientConfig | None = None) -> None:
        self.config = config or PolicyGradientConfig()
        self.start = np.array(weights, dtype=np.float64)
        self.weights = self.start.copy()
        self.trace: list[TrainingPoint] = []
        self._adam = Adam(len(self.weights), self.config.learning_rate)

    def update(self, decisions: Decisions, mean_return: float, rng: np.random.Generator | None = None) -> TrainingPoint:
        """Improve the weights; `rng` shuffles minibatches and is needed only if there are several."""
        config = self.config
        if len(decisions) == 0:
            raise InputError("policy gradient: an update needs at least one decision")
        if config.normalise:
            decisions = normalised(decisions)
        before = self._chosen_log_probability(decisions)
        if config.clip is not None and decisions.log_probability is None:
            decisions = Decisions(
                decisions.features, decisions.valid, decisions.chosen, decisions.advantage, before
            )
        entropy = norm = 0.0
        for _ in range(config.epochs):
            rows = np.arange(len(decisions)) if rng is None else rng.permutation(len(decisions))
            for part in np.array_split(rows, min(config.batches, len(rows))):
                batch = decisions if len(part) == len(decisions) else decisions.take(part)
                gradient, entropy = self.gradient(batch)
                norm = float(np.linalg.norm(gradient))
                if norm > config.max_norm:
                    gradient = gradient * (config.max_norm / norm)
                self.weights = self.weights + self._adam.step(gradient)
        divergence = float((before - self._chosen_log_probability(decisions)).mean())
        point = TrainingPoint(len(self.trace), float(mean_return), entropy, norm, divergence)
        self.trace.append(point)
        return point

    def gradient(self, decisions: Decisions) -> tuple[NDArray[np.float64], float]:
        """Return (gradient of the objective to be increased, mean entropy of the policy)."""
        config = self.config
        features = np.where(decisions.valid[:, :, None], decisions.features, 0.0)
        log_pi = log_probabilities(self.weights, features, decisions.valid, config.temperature)
        pi = np.exp(log_pi)
        rows = np.arange(len(decisions))
        advantage = decisions.advantage
        if config.clip is not None and decisions.log_probability is not None:
            ratio = np.exp(log_pi[rows, decisions.chosen] - decisions.log_probability)
            # The surrogate min(r A, clip(r) A) (eq. 7 of PPO) is flat where the step has gone far enough in A's direction.
            flat = np.where(advantage > 0, ratio > 1 + config.clip, ratio < 1 - config.clip)
            advantage = np.where(flat, 0.0, ratio * advantage)
        expected = np.einsum("na,naf->nf", pi, features)
        score = (features[rows, decisions.chosen] - expected) / config.temperature
        gradient = advantage @ score / len(decisions)
        finite = np.where(decisions.valid, log_pi, 0.0)
        entropy = -(pi * finite).sum(axis=1)
        bonus = self._entropy_weight()
        if bonus > 0:
            # dH/dw = -sum_a pi(a) (log pi(a) + H) x_a / T
            slope = -pi * (finite + entropy[:, None])
            gradient += bonus * np.einsum("na,naf->f", slope, features) / (config.temperature * len(decisions))
        if config.anchor > 0:
            gradient -= config.anchor * (self.weights - self.start)
        return gradient, float(entropy.mean())

    def _entropy_weight(self) -> float:
        config = self.config
        progress = min(1.0, len(self.trace) / config.iterations)
        return config.entropy + (config.final_entropy - config.entropy) * progress

    def _chosen_log_probability(self, decisions: Decisions) -> NDArray[np.float64]:
        log_pi = log_probabilities(self.weights, decisions.features, decisions.valid, self.config.temperature)
        return np.asarray(log_pi[np.arange(len(decisions)), decisions.chosen])


def normalised(decisions: Decisions) -> Decisions:
    """Return the decisions with advantages of zero mean and unit deviation (unchanged if all are equal)."""
    centred = decisions.advantage - decisions.advantage.mean()
    deviation = float(centred.std())
    return Decisions(
        decisions.features,
        decisions.valid,
        decisions.chosen,
        centred / deviation if deviation > 1e-12 else centred,
        decisions.log_probability,
    )
