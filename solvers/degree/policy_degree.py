"""policy-degree: a log-linear policy over job and cluster features, trained by policy gradient.

It starts as an exact copy of the best feasible-first order (constants are among them), may first imitate the rollout
policy (maximum likelihood is the policy gradient with advantage 1), and then learns from its own episodes: returns are
discounted blocked jobs, shaped by the work left in the cluster (potential-based, so that the best policy
stays the best), against the mean of other episodes on the same stream. The policy returned is the one that
blocks fewest jobs on validation streams, and the seed itself unless another is clearly better there.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph neural networks" (2023).
Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning" (1992).
Ng, Harada and Russell, "Policy invariance under reward transformations" (1999): the shaping.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solvers.degree.feasible_first import FeasibleFirst
from placeopt.solvers.degree.rollout_degree import RolloutDegree
from placeopt.solvers.degree.tuning import (
    VALIDATION,
    DegreeSolver,
    blocked_per_stream,
    clearly_better,
    episode_seconds,
    spent,
    training_streams,
)
from placeopt.solvers.policy.advantages import discounted_returns, peer_advantages
from placeopt.solvers.policy.policy_gradient import (
    Decisions,
    PolicyGradient,
    PolicyGradientConfig,
    TrainingPoint,
)
from placeopt.solving.options import option
from placeopt.streams.episode_arrays import ORDER_PLACE, num_features
from placeopt.streams.episode_loop import COMPLETED
from placeopt.streams.simulator import DegreePolicy, Episode, Recording, record_episode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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
class PolicyDegree(DegreeSolver):
    """A log-linear policy trained by policy gradient, never worse than its seed on validation streams."""

    name: ClassVar[str] = "policy-degree"
    iterations: int = option(30, low=0, meaning="updates, each from `peers` episodes on each of `streams` fresh streams")
    streams: int = option(2, low=1, meaning="streams per update")
    peers: int = option(4, low=2, meaning="episodes per stream of an update")
    discount: float = option(0.98, low=0, high=1, meaning="discount per arrival")
    shaping: float = option(1.0, low=0, meaning="price of work left, in jobs per mean job")
    learning_rate: float = option(0.03, above=0, meaning="learning rate of the updates")
    entropy: float = option(0.002, low=0, meaning="weight of the entropy bonus")
    imitation: int = option(6, low=0, meaning="streams on which the rollout policy is imitated first; 0 starts from the seed")
    validation: int = option(16, low=1, meaning="streams on which the policy is chosen")

    def policies(self, problem: JobStreamProblem, tracker: Tracker[Episode]) -> Iterator[DegreePolicy]:
        """Yield copies of the orders that are found, then the policy chosen among the trained ones."""
        for base in FeasibleFirst(fragmentation=0.0).policies(problem, tracker):
            tracker.message = "the seed itself"
            yield self.copy_of(problem, base)
        trained = self.train(problem, self.copy_of(problem, base), tracker)
        before, after = trained.validation
        if before:
            tracker.message = f"validation: {before} blocked by the seed, {after} by the policy"
        yield trained.policy

    def start(self, problem: JobStreamProblem, tracker: Tracker[Episode]) -> DegreePolicy:
        """Return a copy of the best feasible-first order."""
        return self.copy_of(problem, FeasibleFirst(fragmentation=0.0).tune(problem, tracker))

    def copy_of(self, problem: JobStreamProblem, base: DegreePolicy) -> DegreePolicy:
        """Return the log-linear policy that chooses as a feasible-first order does."""
        weights = np.zeros(num_features(len(problem.jobs.degrees)))
        weights[ORDER_PLACE] = ORDER_WEIGHT
        return DegreePolicy(self.name, order=base.order, weights=weights)

    def train(self, problem: JobStreamProblem, seed_policy: DegreePolicy, tracker: Tracker[Episode]) -> TrainedPolicy:
        """Train, starting from `seed_policy`, and choose a policy on validation streams."""
        candidates = [seed_policy]
        episode = episode_seconds(problem, seed_policy) if tracker.budget.seconds is not None else 0.0
        if self.imitation and not self._spent(tracker, self.imitation, candidates, episode):
            weights = self._imitate(problem, seed_policy, tracker)
            candidates += [] if weights is None else [replace(seed_policy, weights=weights)]
        gradient = PolicyGradient(
            np.array(candidates[-1].weights),
            PolicyGradientConfig(
                learning_rate=self.learning_rate, entropy=self.entropy, iterations=max(1, self.iterations)
            ),
        )
        for iteration in range(self.iterations):
            if self._spent(tracker, self.streams * self.peers, candidates, episode):
                break
            decisions, mean_return = self._episodes(problem, seed_policy, gradient.weights, tracker.seed, iteration)
            gradient.update(decisions, mean_return)
            tracker.count(self.streams * self.peers)
            if (iteration + 1) % 10 == 0 or iteration + 1 == self.iterations:
                candidates.append(replace(seed_policy, weights=gradient.weights))
        best, before, after = self._choose(problem, candidates, tracker)
        return TrainedPolicy(candidates[best], seed_policy, tuple(gradient.trace), (before, after))

    def _choose(
        self, problem: JobStreamProblem, candidates: list[DegreePolicy], tracker: Tracker[Episode]
    ) -> tuple[int, int, int]:
        """Return (index of the policy to take, jobs that the seed blocks on validation streams, jobs that it blocks)."""
        if len(candidates) < 2 or tracker.evaluations_left <= self.validation * len(candidates):
            return 0, 0, 0
        streams = training_streams(problem, self.validation, tracker.seed, VALIDATION)
        scores = [blocked_per_stream(streams, policy, tracker) for policy in candidates]
        best = min(range(len(candidates)), key=lambda i: (int(scores[i].sum()), i))
        if best and not clearly_better(scores[best], scores[0]):
            best = 0
        return best, int(scores[0].sum()), int(scores[best].sum())

    def _spent(
        self, tracker: Tracker[Episode], episodes: int, candidates: list[DegreePolicy], episode: float
    ) -> bool:
        """Whether `episodes` more would leave too little of the budget for the validation; an episode takes `episode` s."""
        keep = self.validation * (len(candidates) + 1)
        seconds = max(VALIDATION_SHARE * (tracker.budget.seconds or 0.0), episode * (keep + 1))
        return spent(tracker, episodes + keep, seconds + 2 * episodes * episode)

    def _imitate(
        self, problem: JobStreamProblem, policy: DegreePolicy, tracker: Tracker[Episode]
    ) -> NDArray[np.float64] | None:
        """Return the weights most likely to choose as the rollout policy does; None if there is no time for that."""
        teacher = RolloutDegree(training=2).tune(problem, tracker)
        slow = tracker.budget.seconds is not None and episode_seconds(problem, teacher) * self.imitation
        if slow and spent(tracker, self.imitation, slow + VALIDATION_SHARE * (tracker.budget.seconds or 0.0)):
            return None
        runs = _record(training_streams(problem, self.imitation, tracker.seed + 1), teacher, range(self.imitation))
        tracker.count(len(runs))
        features = np.concatenate([_places(run, policy) for run in runs])
        valid = np.concatenate([run.valid for run in runs])
        chosen = np.concatenate([run.chosen for run in runs])
        rows = np.flatnonzero(valid.sum(axis=1) > 1)
        decisions = Decisions(features[rows], valid[rows], chosen[rows], np.ones(len(rows)))
        config = PolicyGradientConfig(learning_rate=0.05, entropy=0.0, normalise=False, epochs=200)
        gradient = PolicyGradient(np.array(policy.weights), config)
        gradient.update(decisions, 0.0)
        return gradient.weights

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
    features[:, :, ORDER_PLACE] = -place[run.episode.problem.model] / degrees
    return features

