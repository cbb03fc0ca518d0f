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

A value network for clusters: one layer of rectified units beside a linear part, fitted to
returns by least squares.

    V(x) = linear . x + sum_h output_h max(0, bias_h + hidden_h . x)

x describes the cluster that a decision leaves (free servers and packable blocks from now on). The
simulator runs the same formula on the weights as one flat array
(`placeopt.streams.simulator.network_size`). Steps of gradients shape the hidden units; on those the
outer weights are solved for, as steps alone leave them too noisy to tell apart choices that differ
by a tenth of a job.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph
neural networks" (2023). Sutton, "Learning to predict by the methods of temporal differences",
Machine Learning 3 (1988). Powell, "Approximate dynamic programming" (2007): values of post-decision
states.
D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
J. A. Boyan, "Least-squares temporal difference learning", ICML 1999.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import Floats, Ints
from placeopt.model.threads import map_threads, num_threads
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
from placeopt.solvers.policy.advantages import Adam
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker
from placeopt.streams.episode_loop import COMPLETED, LOOKS_AHEAD, num_features
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode, record_episode

States = NDArray[np.float32]
"""Clusters that decisions leave, as the network reads them: their features in the last axis."""


@dataclass(frozen=True)
class Round:
    """One round of the training, for the convergence curve."""

    error: float  # mean squared error of the values
    blocked: float  # mean blocking rate of the streams learned from, random choices included


class Served(NamedTuple):
    """What one round saw: n streams of J jobs, described by F features."""

    states: States  # (n, J, F) the cluster that each job left
    rewards: Floats  # (n, J) 1 where the job completed
    to_come: Ints  # (n, J) jobs that arrive after it and before the horizon, by the mean gap


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
class Lessons:
    """How a course learns, round after round.

    Attributes
    ----------
    kept : rounds whose streams are learned from, and policies of a course that are compared on
    validation streams.
    first_sweeps : times that returns are taken and the network is fitted to them in the first
    round, from random weights; later once.
    final_rate : part of the learning rate that is left in the last round.
    first_stream : training streams before this one are those on which orders are compared.
    validation_share : of a time limit, kept for choosing among the policies of the training.
    """

    kept: int = 3
    first_sweeps: int = 4
    final_rate: float = 0.1
    first_stream: int = 1000
    validation_share: float = 0.15


@dataclass(frozen=True)
class PolicyDegree(DegreeSolver):
    """Greedy in a learned value of the cluster, never worse than its seed on validation streams."""

    lessons: ClassVar[Lessons] = Lessons()
    iterations: int = option(
        12, "rounds of serving streams and learning their values, in turn for two starts", low=0
    )
    streams: int = option(64, "fresh streams per round", low=1)
    steps: int = option(
        300, "steps of the network per round; four times as many in the first", low=1
    )
    hidden: int = option(32, "units of the hidden layer", low=0)
    discount: float = option(0.99, "worth of a job that completes one arrival later", low=0, high=1)
    trace: float = option(
        0.9, "lambda of the returns: 0 trusts the values, 1 what was seen", low=0, high=1
    )
    explore: float = option(0.05, "random choices on every other stream", low=0, high=1)
    learning_rate: float = option(0.003, "Adam's step in the first round; falls linearly", above=0)
    validation: int = option(24, "streams on which the policy is chosen", low=1)

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the orders that are found, then the policy chosen among the trained ones."""
        for base in FeasibleFirst(fragmentation=0.0).policies(problem, tracker):
            tracker.message = "the seed itself"
            yield base
        if problem.num_jobs == 1:  # nothing comes after it: there is nothing to learn
            return
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
            course.seen = [*course.seen[1 - self.lessons.kept :] * (len(course.rounds) > 1), last]
            rate = self.learning_rate * (
                1 - iteration / self.iterations * (1 - self.lessons.final_rate)
            )
            sweeps = 1 if course.rounds else self.lessons.first_sweeps
            error = self._fit(course.network, course.seen, sweeps, rate, rng)
            rounds.append(Round(error, 1.0 - float(last.rewards.mean())))
            course.rounds.append(rounds[-1])
            course.served = self._greedy(course.network)
            course.found.append(course.served)
        candidates = [
            policy
            for course in courses
            for policy in finalists(course.found, course.rounds, self.lessons.kept)
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
        offset = TRAINING + self.lessons.first_stream + iteration * self.streams
        streams = training_streams(problem, self.streams, tracker.seed, offset)
        curious = replace(policy, explore=self.explore)
        tasks = [
            (stream, policy if i % 2 else curious, offset + i) for i, stream in enumerate(streams)
        ]
        runs = list(
            map_threads(lambda task: record_episode(*task), tasks, num_threads(), "episodes")
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
        states, rewards, to_come = (np.concatenate(parts) for parts in zip(*seen, strict=True))
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
        keep = self.validation * (2 * self.lessons.kept + 1)
        share = self.lessons.validation_share * (tracker.budget.seconds or 0.0)
        seconds = max(share, episode * (keep + 1))
        return spent(tracker, self.streams + keep, seconds + 2 * self.streams * episode)


def smallest_first(problem: JobStreamProblem) -> DegreePolicy:
    """Return the feasible-first policy that takes the smallest degree that is in time and fits."""
    models, degrees = len(problem.jobs.profiles), len(problem.jobs.degrees)
    return DegreePolicy("feasible-first", order=np.tile(np.arange(degrees), (models, 1)))


def finalists(
    found: list[DegreePolicy], rounds: list[Round], count: int = Lessons.kept
) -> list[DegreePolicy]:
    """Return `count` policies: the last one, and of the others those that blocked fewest jobs in
    the round after their own.
    """
    others = sorted(range(len(found) - 1), key=lambda i: (rounds[i + 1].blocked, i))[: count - 1]
    return [found[i] for i in (*sorted(others), *range(len(found))[-1:])]


class ValueNetwork:
    """Weights of V, and what their training remembers.

    Attributes
    ----------
    layers : linear (features,), output (hidden,), bias (hidden,), hidden (hidden, features).
    outer : the linear part and the output that are solved for on these hidden units; what the
    policy takes.
    offset : (bins,) the mean return by the jobs to come, the last bin for all larger numbers. All
    choices of a moment
        leave as many, so that none depends on it.
    """

    def __init__(
        self, num_features: int, hidden: int, rng: np.random.Generator, bins: int = 1
    ) -> None:
        self.layers = [
            np.zeros(num_features),
            np.zeros(hidden),
            0.3 * rng.normal(size=hidden),
            rng.normal(size=(hidden, num_features)) * (2 / num_features) ** 0.5,
        ]
        self.outer = self.layers[0].copy(), self.layers[1].copy()
        self.offset = np.zeros(bins)
        self._steps = [Adam(layer.shape, 1.0) for layer in self.layers]

    @property
    def weights(self) -> Floats:
        """All layers in one flat array, as `DegreePolicy` takes them."""
        return np.concatenate([layer.ravel() for layer in (*self.outer, *self.layers[2:])])

    def values(self, states: States) -> Floats:
        """Return V of every state, (states,)."""
        linear, output = (layer.astype(np.float32) for layer in self.outer)
        return np.asarray(self._units(states) @ output + states @ linear, np.float64)

    def _units(self, states: States) -> States:
        """Return the hidden units of every state."""
        bias, hidden = (layer.astype(np.float32) for layer in self.layers[2:])
        return np.asarray(np.maximum(states @ hidden.T + bias, 0))

    def bins(self, to_come: Ints) -> Ints:
        """Return the place in `offset` for each number of jobs to come."""
        return np.minimum(to_come, len(self.offset) - 1)

    def follow(self, to_come: Ints, returns: Floats) -> None:
        """Make the offsets the means of these returns, less the network's values, by the jobs to
        come.
        """
        bins, size = self.bins(to_come).ravel(), len(self.offset)
        self.offset = np.bincount(bins, returns.ravel(), size) / np.maximum(
            1, np.bincount(bins, minlength=size)
        )

    def solve(
        self, states: States, rewards: Floats, to_come: Ints, discount: float, trace: float
    ) -> None:
        """Set the outer weights and the offsets to the fixed point of temporal differences on these
        streams.

        With inputs x_t, traces z_t = x_t + discount trace z_(t-1) and rewards r_(t+1), LSTD(lambda)
        solves sum_t z_t (x_t - discount x_(t+1)) w = sum_t z_t r_(t+1). Shapes: (streams, jobs,
        features) and (streams, jobs).
        """
        linear, output = self.layers[:2]
        near = np.concatenate(
            [linear, output, self.offset]
        )  # found by steps: stays where the streams tell nothing
        size = len(near)
        matrix, squares, vector = np.zeros((size, size)), np.zeros(size), np.zeros(size)
        fade = np.float32(discount * trace)
        # Streams whose inputs are in memory at once while outer weights are solved for
        chunk = 16
        for begin in range(0, len(states), chunk):
            part = slice(begin, begin + chunk)
            inputs = self._outer_inputs(states[part], to_come[part])
            traces = np.empty_like(inputs)
            passed = np.zeros_like(inputs[:, 0])
            for t in range(inputs.shape[1]):
                passed = fade * passed + inputs[:, t]
                traces[:, t] = passed
            after = inputs[:, 1:] * np.float32(discount) * (to_come[part][:, 1:, None] > 0)
            flat = traces[:, :-1].reshape(-1, size)
            matrix += flat.T @ (inputs[:, :-1] - after).reshape(-1, size)
            vector += flat.T @ rewards[part][:, 1:].ravel().astype(np.float32)
            squares += np.einsum("ijk,ijk->k", inputs, inputs)
        # Part of each outer input's square that holds the solution near the weights of the steps,
        # for inputs that hardly differ
        ridge = 3e-4
        squares = ridge * (squares + np.prod(rewards.shape) * 1e-3)
        found = np.linalg.solve(matrix + np.diag(squares), vector + squares * near)
        found_linear, found_output, self.offset = np.split(
            found, [len(linear), len(linear) + len(output)]
        )
        self.outer = found_linear, found_output

    def _outer_inputs(self, states: States, to_come: Ints) -> States:
        """Return features, hidden units and the bin of the jobs to come, as a one among zeros."""
        ones = np.eye(len(self.offset), dtype=np.float32)[self.bins(to_come)]
        return np.concatenate([states, self._units(states), ones], axis=2)

    def fit(
        self, states: States, targets: States, steps: int, rate: float, rng: np.random.Generator
    ) -> float:
        """Take Adam steps on the squared error of random batches; return the mean squared error
        met.
        """
        total = 0.0
        # States of one step
        batch = 2048
        for _ in range(steps):
            rows = rng.integers(len(states), size=batch)
            total += self._step(states[rows], targets[rows], rate)
        return total / max(1, steps)

    def _step(self, states: States, targets: States, rate: float) -> float:
        linear, output = (layer.astype(np.float32) for layer in self.layers[:2])
        units = self._units(states)
        error = units @ output + states @ linear - targets
        loss = float(error @ error) / len(error)
        error /= len(error)
        back = np.outer(error, output) * (units > 0)
        slopes = (states.T @ error, units.T @ error, back.sum(axis=0), back.T @ states)
        for layer, adam, slope in zip(self.layers, self._steps, slopes, strict=True):
            adam.learning_rate = rate
            layer -= adam.step(slope.astype(np.float64))
        return loss


def trace_returns(rewards: Floats, values: Floats, discount: float, trace: float) -> Floats:
    """Return the lambda-return of every state but the last: what is still to come, seen from it;
    states on the last axis.

    G_t = r_(t+1) + discount ((1 - trace) V_(t+1) + trace G_(t+1)), with G = V at the end;
    `rewards[t]` came with state t.

    References
    ----------
    R. S. Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3
    (1988).
    """
    returns = np.array(values, np.float64)
    for t in range(returns.shape[-1] - 2, -1, -1):
        ahead = (1 - trace) * values[..., t + 1] + trace * returns[..., t + 1]
        returns[..., t] = rewards[..., t + 1] + discount * ahead
    return returns[..., :-1]
