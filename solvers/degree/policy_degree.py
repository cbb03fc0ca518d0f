"""policy-degree: the degree after which this job and the learned value of the cluster that is left
are most.

A job's reward is 1 if it completes. After every decision the cluster is described by the servers
that will be free, and the blocks that will fit, at looks of 1, 2, .. mean gaps ahead, up to the
horizon: all that a later job can notice, and what `rollout` looks at by simulation. A small network
learns the discounted number of jobs that a cluster so described still completes, less what the
average cluster does with as many jobs to come, by temporal differences: first on streams served by
a feasible-first order, then on streams served by the policy itself, which takes the choice of the
largest (completes now) + discount * (value of what it leaves). Each round is one step of policy
iteration. Jobs hold servers for up to 20 arrivals, so that returns must reach as far: a discount
near 1 and long traces. Random choices keep the states that are seen various.

Policy iteration ends near where it began: policies that keep large blocks together see no use for
small ones, and the other way round. So there are two courses, one from the best order and one from
the smallest degree that is in time, with a network each. Rounds may lose what earlier ones had
gained: the policy returned is, of each course's last one and the two that blocked fewest jobs while
they were learned from, the one that blocks fewest on validation streams, and the seed itself unless
that is clearly better.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph
neural networks" (2023). Sutton, "Learning to predict by the methods of temporal differences",
Machine Learning 3 (1988). Powell, "Approximate dynamic programming" (2007): values of post-decision
states.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from placeopt.solvers.degree.feasible_first import FeasibleFirst
from placeopt.solvers.degree.tuning import (
    TRAINING,
    VALIDATION,
    DegreeSolver,
    blocked_per_stream,
    clearly_better,
    episode_seconds,
    spent,
    training_streams,
)
from placeopt.solvers.degree.value_network import ValueNetwork, trace_returns
from placeopt.solving.options import option
from placeopt.streams.episode_arrays import LOOKS_AHEAD, num_features
from placeopt.streams.episode_loop import COMPLETED
from placeopt.streams.simulator import DegreePolicy, Episode, record_episode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placeopt.solving.tracker import Tracker
    from placeopt.streams.problem import JobStreamProblem

FIRST_STREAM = 1000
"""Training streams before this one are those on which orders are compared."""

KEPT = 3
"""Rounds whose streams are learned from, and policies of a course that are compared on validation
streams."""

FIRST_SWEEPS = 4
"""Times that returns are taken and the network is fitted to them in the first round, from random
weights; later once."""

FINAL_RATE = 0.1
"""Part of the learning rate that is left in the last round."""

VALIDATION_SHARE = 0.15
"""Part of a time limit that is kept for choosing among the policies of the training."""


@dataclass(frozen=True)
class Round:
    """One round of the training, for the convergence curve."""

    error: float  # mean squared error of the values
    blocked: float  # mean blocking rate of the streams learned from, random choices included


class Served(NamedTuple):
    """What one round saw: n streams of J jobs, described by F features."""

    states: NDArray[np.float32]  # (n, J, F) the cluster that each job left
    rewards: NDArray[np.float64]  # (n, J) 1 where the job completed
    to_come: NDArray[
        np.int64
    ]  # (n, J) jobs that arrive after it and before the horizon, by the mean gap


@dataclass(eq=False)
class Course:
    """What one start has become: the policy to serve with, the network, what its last rounds saw
    and found.
    """

    served: DegreePolicy
    network: ValueNetwork
    seen: list[Served] = field(default_factory=list)
    found: list[DegreePolicy] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """What training gave.

    Attributes
    ----------
    policy : the policy chosen on the validation streams.
    seed_policy : what it started from.
    rounds : the convergence of the training.
    validation : blocked jobs on the validation streams, of the seed and of the policy; 0 if there
    was no validation.
    """

    policy: DegreePolicy
    seed_policy: DegreePolicy
    rounds: tuple[Round, ...]
    validation: tuple[int, int]


@dataclass(frozen=True)
class PolicyDegree(DegreeSolver):
    """Greedy in a learned value of the cluster, never worse than its seed on validation streams."""

    name: ClassVar[str] = "policy-degree"
    iterations: int = option(
        12,
        low=0,
        meaning="rounds of serving streams and learning their values, in turn for two starts",
    )
    streams: int = option(64, low=1, meaning="fresh streams per round")
    steps: int = option(
        300, low=1, meaning="steps of the network per round; four times as many in the first"
    )
    hidden: int = option(32, low=0, meaning="units of the hidden layer")
    discount: float = option(
        0.99, low=0, high=1, meaning="worth of a job that completes one arrival later"
    )
    trace: float = option(
        0.9, low=0, high=1, meaning="lambda of the returns: 0 trusts the values, 1 what was seen"
    )
    explore: float = option(0.05, low=0, high=1, meaning="random choices on every other stream")
    learning_rate: float = option(
        0.003, above=0, meaning="Adam's step in the first round; falls linearly"
    )
    validation: int = option(24, low=1, meaning="streams on which the policy is chosen")

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the orders that are found, then the policy chosen among the trained ones."""
        for base in FeasibleFirst(fragmentation=0.0).policies(problem, tracker):
            tracker.message = "the seed itself"
            yield base
        trained = self.train(problem, base, tracker)
        before, after = trained.validation
        if before:
            tracker.message = f"validation: {before} blocked by the seed, {after} by the policy"
        yield trained.policy

    def train(
        self, problem: JobStreamProblem, seed_policy: DegreePolicy, tracker: Tracker[Episode]
    ) -> TrainedPolicy:
        """Learn values, starting from those of `seed_policy`, and choose a policy on validation
        streams.
        """
        rng = tracker.rng()
        courses = [
            Course(start, self._network(problem, rng))
            for start in (seed_policy, smallest_first(problem))
        ]
        rounds: list[Round] = []
        seconds = 0.0
        if tracker.budget.seconds is not None:
            seconds = episode_seconds(problem, self._greedy(courses[0].network))
        for iteration in range(self.iterations):
            if self._spent(tracker, seconds):
                break
            course = courses[iteration % len(courses)]
            last = self._serve(problem, course.served, tracker, iteration)
            course.seen = [*course.seen[-KEPT + 1 :] * (len(course.rounds) > 1), last]
            rate = self.learning_rate * (1 - iteration / self.iterations * (1 - FINAL_RATE))
            error = self._fit(
                course.network, course.seen, 1 if course.rounds else FIRST_SWEEPS, rate, rng
            )
            rounds.append(Round(error, 1.0 - float(last.rewards.mean())))
            course.rounds.append(rounds[-1])
            course.served = self._greedy(course.network)
            course.found.append(course.served)
        candidates = [
            policy for course in courses for policy in finalists(course.found, course.rounds)
        ]
        best, before, after = self._choose(problem, [seed_policy, *candidates], tracker)
        return TrainedPolicy(best, seed_policy, tuple(rounds), (before, after))

    def _network(self, problem: JobStreamProblem, rng: np.random.Generator) -> ValueNetwork:
        return ValueNetwork(
            num_features(len(problem.jobs.degrees)), self.hidden, rng, max(LOOKS_AHEAD) + 1
        )

    def _greedy(self, network: ValueNetwork) -> DegreePolicy:
        return DegreePolicy(self.name, weights=network.weights, discount=self.discount)

    def _serve(
        self,
        problem: JobStreamProblem,
        policy: DegreePolicy,
        tracker: Tracker[Episode],
        iteration: int,
    ) -> Served:
        """Serve fresh streams, every other one with random choices."""
        offset = TRAINING + FIRST_STREAM + iteration * self.streams
        streams = training_streams(problem, self.streams, tracker.seed, offset)
        curious = replace(policy, explore=self.explore)
        tasks = [
            (stream, policy if i % 2 else curious, offset + i) for i, stream in enumerate(streams)
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            runs = list(
                pool.map(lambda task: record_episode(task[0], task[1], seed=task[2]), tasks)
            )
        tracker.count(len(runs))
        return Served(
            np.stack([features.astype(np.float32) for _, features in runs]),
            np.stack([(episode.cause == COMPLETED).astype(np.float64) for episode, _ in runs]),
            np.stack(
                [
                    np.maximum(0, (one.horizon - one.arrival) // max(1, int(one.mean_gap)))
                    for one in streams
                ]
            ),
        )

    def _fit(
        self,
        network: ValueNetwork,
        seen: list[Served],
        sweeps: int,
        rate: float,
        rng: np.random.Generator,
    ) -> float:
        """Fit the network to the returns that follow from its own values, then solve; return the
        last squared error.

        Rewards count as what they are above their mean, so that the values of long streams are no
        larger than others.
        """
        states, rewards, to_come = (
            np.concatenate([getattr(one, key) for one in seen]) for key in Served._fields
        )
        rewards -= rewards.mean()
        flat, error = states[:, :-1].reshape(-1, states.shape[2]), 0.0
        for _ in range(sweeps):
            own = network.values(states.reshape(-1, states.shape[2])).reshape(rewards.shape)
            values = np.where(to_come > 0, own + network.offset[network.bins(to_come)], 0.0)
            returns = trace_returns(rewards, values, self.discount, self.trace)
            network.follow(to_come[:, :-1], returns - own[:, :-1])
            targets = returns - network.offset[network.bins(to_come[:, :-1])]
            error = network.fit(flat, targets.ravel().astype(np.float32), self.steps, rate, rng)
        network.solve(states, rewards, to_come, self.discount, self.trace)
        return error

    def _choose(
        self, problem: JobStreamProblem, policies: list[DegreePolicy], tracker: Tracker[Episode]
    ) -> tuple[DegreePolicy, int, int]:
        """Return the policy to take, the jobs that the first one blocks on validation streams, and
        those that it blocks.
        """
        if len(policies) < 2 or tracker.evaluations_left <= self.validation * len(policies):
            return policies[0], 0, 0
        streams = training_streams(problem, self.validation, tracker.seed, VALIDATION)
        scores = [blocked_per_stream(streams, policy, tracker) for policy in policies]
        best = min(range(len(policies)), key=lambda i: (int(scores[i].sum()), i))
        if best and not clearly_better(scores[best], scores[0]):
            best = 0
        return policies[best], int(scores[0].sum()), int(scores[best].sum())

    def _spent(self, tracker: Tracker[Episode], episode: float) -> bool:
        """Whether another round would leave too little of the budget for the validation; an episode
        takes `episode` s.
        """
        keep = self.validation * (2 * KEPT + 1)
        seconds = max(VALIDATION_SHARE * (tracker.budget.seconds or 0.0), episode * (keep + 1))
        return spent(tracker, self.streams + keep, seconds + 2 * self.streams * episode)


def smallest_first(problem: JobStreamProblem) -> DegreePolicy:
    """Return the feasible-first policy that takes the smallest degree that is in time and fits."""
    models, degrees = len(problem.jobs.profiles), len(problem.jobs.degrees)
    return DegreePolicy("feasible-first", order=np.tile(np.arange(degrees), (models, 1)))


def finalists(found: list[DegreePolicy], rounds: list[Round]) -> list[DegreePolicy]:
    """Return the last policy, and of the others those that blocked fewest jobs in the round after
    their own.
    """
    others = sorted(range(len(found) - 1), key=lambda i: (rounds[i + 1].blocked, i))[: KEPT - 1]
    return [found[i] for i in (*sorted(others), *range(len(found))[-1:])]
