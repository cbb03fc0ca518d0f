"""policy-degree: the degree after which this job and the learned value of the cluster that is left are most.

A job's reward is 1 if it completes. After every decision the cluster is described by the servers that will be free, and the
blocks that will fit, at looks of 1, 2, .. mean gaps ahead: all that a later job can notice, and what `rollout` looks at by
simulation. A small network learns the discounted number of jobs that a cluster so described still completes, by temporal
differences: first on streams served by the best feasible-first order, then on streams served by the policy itself, which
takes the choice of the largest (completes now) + discount * (value of what it leaves). Each round is one step of policy
iteration. Random choices keep the states that are seen various. Rounds may lose what earlier ones had gained: the policy
returned is, of the last one and the two that blocked fewest jobs while they were learned from, the one that blocks fewest
on validation streams, and the seed itself unless that is clearly better.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph neural networks" (2023).
Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3 (1988).
Powell, "Approximate dynamic programming" (2007): values of post-decision states.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

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
"""Rounds whose streams are learned from, and policies that are compared on validation streams."""

FIRST_STEPS = 3
"""Times as many steps as later are taken in the first round, from random weights."""

FINAL_RATE = 0.1
"""Part of the learning rate that is left in the last round."""

VALIDATION_SHARE = 0.15
"""Part of a time limit that is kept for choosing among the policies of the training."""


@dataclass(frozen=True)
class Round:
    """One round of the training, for the convergence curve."""

    error: float  # mean squared error of the values
    blocked: float  # mean blocking rate of the streams learned from, random choices included


@dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """What training gave.

    Attributes
    ----------
    policy : the policy chosen on the validation streams.
    seed_policy : what it started from.
    rounds : the convergence of the training.
    validation : blocked jobs on the validation streams, of the seed and of the policy; 0 if there was no validation.
    """

    policy: DegreePolicy
    seed_policy: DegreePolicy
    rounds: tuple[Round, ...]
    validation: tuple[int, int]


@dataclass(frozen=True)
class PolicyDegree(DegreeSolver):
    """Greedy in a learned value of the cluster, never worse than its seed on validation streams."""

    name: ClassVar[str] = "policy-degree"
    iterations: int = option(12, low=0, meaning="rounds of serving streams and learning their values")
    streams: int = option(64, low=1, meaning="fresh streams per round")
    steps: int = option(500, low=1, meaning="steps of the network per round")
    hidden: int = option(32, low=0, meaning="units of the hidden layer")
    discount: float = option(0.96, low=0, high=1, meaning="worth of a job that completes one arrival later")
    trace: float = option(0.7, low=0, high=1, meaning="lambda of the returns: 0 trusts the values, 1 what was seen")
    explore: float = option(0.05, low=0, high=1, meaning="random choices on every other stream")
    learning_rate: float = option(0.003, above=0, meaning="Adam's step in the first round; falls linearly")
    validation: int = option(24, low=1, meaning="streams on which the policy is chosen")

    def policies(self, problem: JobStreamProblem, tracker: Tracker[Episode]) -> Iterator[DegreePolicy]:
        """Yield the orders that are found, then the policy chosen among the trained ones."""
        for base in FeasibleFirst(fragmentation=0.0).policies(problem, tracker):
            tracker.message = "the seed itself"
            yield base
        trained = self.train(problem, base, tracker)
        before, after = trained.validation
        if before:
            tracker.message = f"validation: {before} blocked by the seed, {after} by the policy"
        yield trained.policy

    def train(self, problem: JobStreamProblem, seed_policy: DegreePolicy, tracker: Tracker[Episode]) -> TrainedPolicy:
        """Learn values, starting from those of `seed_policy`, and choose a policy on validation streams."""
        rng = tracker.rng()
        network = ValueNetwork(num_features(len(problem.jobs.degrees)), self.hidden, rng)
        served, found, rounds = seed_policy, [], []
        seen: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        seconds = episode_seconds(problem, self._greedy(network)) if tracker.budget.seconds is not None else 0.0
        for iteration in range(self.iterations):
            if self._spent(tracker, seconds):
                break
            states, rewards = self._serve(problem, served, tracker, iteration)
            progress = iteration / self.iterations
            if not seen:
                network.constant = float(rewards.mean()) / max(1e-9, 1 - self.discount)
            seen = [*seen[-KEPT + 1 :] * (iteration > 1), self._targets(states, rewards, network, first=not seen)]
            states_seen, targets_seen = (np.concatenate([part[i] for part in seen]) for i in range(2))
            steps = self.steps * (FIRST_STEPS if iteration == 0 else 1)
            rate = self.learning_rate * (1 - progress * (1 - FINAL_RATE))
            error = network.fit(states_seen, targets_seen, steps, rate, rng)
            rounds.append(Round(error, 1.0 - float(rewards.mean())))
            served = self._greedy(network)
            found.append(served)
        best, before, after = self._choose(problem, [seed_policy, *finalists(found, rounds)], tracker)
        return TrainedPolicy(best, seed_policy, tuple(rounds), (before, after))

    def _greedy(self, network: ValueNetwork) -> DegreePolicy:
        return DegreePolicy(self.name, weights=network.weights, discount=self.discount)

    def _serve(
        self, problem: JobStreamProblem, policy: DegreePolicy, tracker: Tracker[Episode], iteration: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Serve fresh streams; return (streams, jobs, features) after each job, and which jobs completed."""
        offset = TRAINING + FIRST_STREAM + iteration * self.streams
        streams = training_streams(problem, self.streams, tracker.seed, offset)
        curious = replace(policy, explore=self.explore)
        tasks = [(stream, policy if i % 2 else curious, offset + i) for i, stream in enumerate(streams)]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            runs = list(pool.map(lambda task: record_episode(task[0], task[1], seed=task[2]), tasks))
        tracker.count(len(runs))
        states = np.stack([features.astype(np.float32) for _, features in runs])
        return states, np.stack([(episode.cause == COMPLETED).astype(np.float64) for episode, _ in runs])

    def _targets(
        self, states: NDArray[np.float32], rewards: NDArray[np.float64], network: ValueNetwork, *, first: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return states and their returns; the end of a stream, where the horizon blocks, is left out."""
        size = max(2, states.shape[1] - max(LOOKS_AHEAD))
        trace = 1.0 if first else self.trace  # random weights are not to be trusted
        returns = [
            trace_returns(gained[:size], network.values(seen[:size]), self.discount, trace)
            for seen, gained in zip(states, rewards, strict=True)
        ]
        flat = states[:, : size - 1].reshape(-1, states.shape[2])
        return flat, np.concatenate(returns).astype(np.float32)

    def _choose(
        self, problem: JobStreamProblem, policies: list[DegreePolicy], tracker: Tracker[Episode]
    ) -> tuple[DegreePolicy, int, int]:
        """Return the policy to take, the jobs that the first one blocks on validation streams, and those that it blocks."""
        if len(policies) < 2 or tracker.evaluations_left <= self.validation * len(policies):
            return policies[0], 0, 0
        streams = training_streams(problem, self.validation, tracker.seed, VALIDATION)
        scores = [blocked_per_stream(streams, policy, tracker) for policy in policies]
        best = min(range(len(policies)), key=lambda i: (int(scores[i].sum()), i))
        if best and not clearly_better(scores[best], scores[0]):
            best = 0
        return policies[best], int(scores[0].sum()), int(scores[best].sum())

    def _spent(self, tracker: Tracker[Episode], episode: float) -> bool:
        """Whether another round would leave too little of the budget for the validation; an episode takes `episode` s."""
        keep = self.validation * (KEPT + 1)
        seconds = max(VALIDATION_SHARE * (tracker.budget.seconds or 0.0), episode * (keep + 1))
        return spent(tracker, self.streams + keep, seconds + 2 * self.streams * episode)


def finalists(found: list[DegreePolicy], rounds: list[Round]) -> list[DegreePolicy]:
    """Return the last policy, and of the others those that blocked fewest jobs in the round after their own."""
    others = sorted(range(len(found) - 1), key=lambda i: (rounds[i + 1].blocked, i))[: KEPT - 1]
    return [found[i] for i in (*sorted(others), *range(len(found))[-1:])]
