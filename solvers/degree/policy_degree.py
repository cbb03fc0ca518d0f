"""policy-degree: a log-linear policy over job and cluster features, trained by policy gradient.

It starts as an exact copy of the best feasible-first order (constants are among them), may first imitate the rollout
policy (maximum likelihood is the policy gradient with advantage 1), and then learns from its own episodes: returns are
discounted blocked jobs, shaped by the work left in the cluster (potential-based, Ng et al. 1999, so that the best
policy stays the best), against the mean of other episodes on the same stream. The policy returned is the one that
blocks fewest jobs on validation streams, and the seed itself unless another is clearly better there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.degree.driver import (
    VALIDATION,
    blocked_per_stream,
    clearly_better,
    finish,
    spent,
    start,
    training_streams,
)
from placeopt.solvers.degree.feasible_first import FeasibleFirst
from placeopt.solvers.degree.rollout import Rollout
from placeopt.solvers.policy.engine import (
    Decisions,
    PolicyGradient,
    PolicyGradientConfig,
    TrainingPoint,
    discounted_returns,
    peer_advantages,
)
from placeopt.streams.episode_loop import COMPLETED, num_features
from placeopt.streams.simulator import DegreePolicy, Episode, Recording, record_episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress
    from placeopt.solving.tracker import Tracker
    from placeopt.streams.problem import JobStreamProblem

ORDER_WEIGHT = 6.0
"""First weight of the place in the seed's order: one place is a factor e (with six degrees)."""

VALIDATION_SHARE = 0.15
"""Part of a time limit that is kept for choosing among the policies of the training."""


@dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """What training gave.

    Attributes
    ----------
    policy : the policy chosen on the validation streams.
    seed_policy : what it started from.
    points : the convergence trace of the policy gradient.
    validation : blocked jobs on the validation streams, of the seed and of the policy; 0 if there was no validation.
    """

    policy: DegreePolicy
    seed_policy: DegreePolicy
    points: tuple[TrainingPoint, ...]
    validation: tuple[int, int]


@dataclass(frozen=True)
class PolicyDegree:
    """A log-linear policy trained by policy gradient, never worse than its seed on validation streams.

    Attributes
    ----------
    iterations : updates; each takes `peers` episodes on each of `streams` fresh streams.
    discount : per arrival.
    shaping : price of work left, in jobs per mean job.
    imitation : streams on which the rollout policy is imitated first; 0 starts from the seed alone.
    validation : streams on which the policy is chosen.
    """

    name: ClassVar[str] = "policy-degree"
    iterations: int = 30
    streams: int = 2
    peers: int = 4
    discount: float = 0.98
    shaping: float = 1.0
    learning_rate: float = 0.03
    entropy: float = 0.002
    imitation: int = 6
    validation: int = 16

    def __post_init__(self) -> None:
        for key in ("streams", "validation"):
            if getattr(self, key) < 1:
                raise InputError(f"policy-degree: {key} must be >= 1, received {getattr(self, key)}")
        if self.iterations < 0 or self.imitation < 0 or self.peers < 2:
            raise InputError("policy-degree: iterations and imitation must be >= 0 and peers >= 2")
        if not 0 <= self.discount <= 1:
            raise InputError(f"policy-degree: discount must be in 0..1, received {self.discount}")

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Train on other streams of the same distribution, then run the policy on this one."""
        tracker = start(self.name, problem, budget, seed, on_progress)
        trained = self.train(problem, seed, tracker)
        before, after = trained.validation
        words = f"validation: {before} blocked by the seed, {after} by the policy" if before else "the seed itself"
        return finish(tracker, trained.policy, words)

    def train(self, problem: JobStreamProblem, seed: int, tracker: Tracker[Episode] | None = None) -> TrainedPolicy:
        """Train and choose a policy."""
        base = FeasibleFirst(fragmentation=0.0).tune(problem, seed, tracker)
        weights = np.zeros(num_features(len(problem.jobs.degrees)))
        weights[0] = ORDER_WEIGHT
        seed_policy = DegreePolicy(self.name, order=base.order, weights=weights)
        candidates = [seed_policy]
        points: tuple[TrainingPoint, ...] = ()
        with tracker or nullcontext():  # an interrupt leaves the candidates so far
            if self.imitation and not self._spent(tracker, self.imitation, candidates):
                candidates.append(replace(seed_policy, weights=self._imitate(problem, seed_policy, seed, tracker)))
            engine = PolicyGradient(
                np.array(candidates[-1].weights),
                PolicyGradientConfig(
                    learning_rate=self.learning_rate, entropy=self.entropy, iterations=max(1, self.iterations)
                ),
            )
            for iteration in range(self.iterations):
                if self._spent(tracker, self.streams * self.peers, candidates):
                    break
                decisions, mean_return = self._episodes(problem, seed_policy, engine.weights, seed, iteration)
                engine.update(decisions, mean_return)
                points = tuple(engine.trace)
                if tracker is not None:
                    tracker.count(self.streams * self.peers)
                if (iteration + 1) % 10 == 0 or iteration + 1 == self.iterations:
                    candidates.append(replace(seed_policy, weights=engine.weights))
        best, before, after = 0, 0, 0
        affordable = tracker is None or tracker.evaluations_left > self.validation * len(candidates)
        if affordable and len(candidates) > 1 and not (tracker and tracker.stop_reason == "interrupted"):
            streams = training_streams(problem, self.validation, seed, VALIDATION)
            scores = [blocked_per_stream(streams, policy, tracker) for policy in candidates]
            best = min(range(len(candidates)), key=lambda i: (int(scores[i].sum()), i))
            if best and not clearly_better(scores[best], scores[0]):
                best = 0
            before, after = int(scores[0].sum()), int(scores[best].sum())
        return TrainedPolicy(candidates[best], seed_policy, points, (before, after))

    def _spent(self, tracker: Tracker[Episode] | None, episodes: int, candidates: list[DegreePolicy]) -> bool:
        """Whether `episodes` more would leave too little of the budget for the validation."""
        keep = self.validation * (len(candidates) + 1)
        seconds = 0.0 if tracker is None else VALIDATION_SHARE * (tracker.budget.seconds or 0.0)
        return spent(tracker, episodes + keep, seconds)

    def _imitate(
        self, problem: JobStreamProblem, policy: DegreePolicy, seed: int, tracker: Tracker[Episode] | None
    ) -> NDArray[np.float64]:
        """Return the weights most likely to choose as the rollout policy does."""
        teacher = Rollout(training=2).tune(problem, seed, tracker)
        runs = _record(training_streams(problem, self.imitation, seed + 1), teacher, range(self.imitation))
        if tracker is not None:
            tracker.count(len(runs))
        features = np.concatenate([_places(run, policy) for run in runs])
        valid = np.concatenate([run.valid for run in runs])
        chosen = np.concatenate([run.chosen for run in runs])
        rows = np.flatnonzero(valid.sum(axis=1) > 1)
        decisions = Decisions(features[rows], valid[rows], chosen[rows], np.ones(len(rows)))
        config = PolicyGradientConfig(learning_rate=0.05, entropy=0.0, normalise=False, epochs=200)
        engine = PolicyGradient(np.array(policy.weights), config)
        engine.update(decisions, 0.0)
        return engine.weights

    def _episodes(
        self, problem: JobStreamProblem, policy: DegreePolicy, weights: NDArray[np.float64], seed: int, iteration: int
    ) -> tuple[Decisions, float]:
        """Return the decisions of one iteration with their advantages, and the mean return."""
        sampled = replace(policy, weights=weights, temperature=1.0)
        first = self.imitation + 8 + iteration * self.streams
        streams = [training_streams(problem, 1, 7919 * (seed + 1) + first + i)[0] for i in range(self.streams)]
        tasks = [stream for stream in streams for _ in range(self.peers)]
        seeds = range(iteration * len(tasks), (iteration + 1) * len(tasks))
        runs = _record(tasks, sampled, seeds)
        lost = np.array([run.episode.cause != COMPLETED for run in runs], dtype=np.float64)
        price = self.shaping / float(problem.jobs.arrays.sequential[problem.model].mean())
        left = price * np.array([work_left(run.episode) for run in runs])
        following = np.concatenate([left[:, 1:], left[:, -1:]], axis=1)
        # potential -left: reward + discount * potential(next) - potential(now)
        returns = discounted_returns(-lost - self.discount * following + left, self.discount)
        shape = (self.streams, self.peers, -1)
        advantage = np.stack([peer_advantages(group) for group in returns.reshape(shape)]).reshape(-1)
        features, valid, chosen = (
            np.concatenate([getattr(run, key) for run in runs]) for key in ("features", "valid", "chosen")
        )
        rows = np.flatnonzero(valid.sum(axis=1) > 1)
        return Decisions(features[rows], valid[rows], chosen[rows], advantage[rows]), -float(lost.mean())


def work_left(episode: Episode) -> NDArray[np.float64]:
    """Return the server-ticks of work in the cluster just before each arrival."""
    arrival = episode.problem.arrival
    end = arrival + episode.jct
    last = np.searchsorted(arrival, end, side="left")
    # A job adds held * (end - t) to the arrivals t in (its own, its end): two difference arrays, constant and slope.
    size = len(arrival)
    held = np.where(episode.jct > 0, episode.held, 0).astype(np.float64)
    constant, slope = np.zeros(size + 1), np.zeros(size + 1)
    rows = np.arange(size)
    for array, value in ((constant, held * end), (slope, held)):
        np.add.at(array, rows + 1, value)
        np.add.at(array, np.maximum(last, rows + 1), -value)
    return np.asarray(np.maximum(0.0, np.cumsum(constant)[:size] - np.cumsum(slope)[:size] * arrival))


def _record(
    streams: Sequence[JobStreamProblem], policy: DegreePolicy, seeds: Sequence[int]
) -> list[Recording]:
    """Run and record one episode per stream, in threads."""
    first = record_episode(streams[0], policy, seed=seeds[0])
    with ThreadPoolExecutor() as pool:
        others = pool.map(lambda task: record_episode(task[0], policy, seed=task[1]), zip(streams[1:], seeds[1:], strict=True))
        return [first, *others]


def _places(run: Recording, student: DegreePolicy) -> NDArray[np.float64]:
    """Return the features of a run with the first one, the place in the order, counted in the student's order."""
    assert student.order is not None
    models, degrees = student.order.shape
    place = np.full((models, degrees + 1), degrees)
    for m, row in enumerate(student.order.tolist()):
        for position, degree in enumerate(row):
            if degree >= 0:
                place[m, degree] = position
    features = run.features.copy()
    features[:, :, 0] = -place[run.episode.problem.model] / degrees
    return features

