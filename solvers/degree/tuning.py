"""What the degree solvers share: tune a policy on other streams of the same distribution, then run
it on this one.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.solving.base import SearchSolver
from placeopt.streams.simulator import DegreePolicy, Episode, simulate, simulate_many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.model.arrays import Ints
    from placeopt.solving.tracker import Tracker
    from placeopt.streams.problem import JobStreamProblem

TRAINING, VALIDATION = 1_000_000, 2_000_000
"""Offsets of the seeds of streams that policies are tuned and chosen on; streams to be judged have
small seeds."""


@dataclass(frozen=True)
class DegreeSolver(SearchSolver):
    """A solver that tunes a degree policy; its solution is the episode of the policy on the stream
    itself.
    """

    kernels: ClassVar[tuple[str, ...]] = ("streams",)

    @abstractmethod
    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the best policy so far, again and again; the first one at once.

        None of them may have seen the stream of the problem, only others drawn like it.
        """

    def search(self, problem: JobStreamProblem, tracker: Tracker[Episode]) -> None:
        """Run the last policy on the stream; Ctrl-C and the budget end the tuning, not this."""
        chosen: DegreePolicy | None = None
        with tracker:
            for policy in self.policies(problem, tracker):
                chosen = policy
                if tracker.stopped:
                    break
        if chosen is not None:
            episode = simulate(problem, chosen, seed=tracker.seed, record_servers=True)
            tracker.count()
            tracker.offer(episode.blocked, episode)

    def tune(self, problem: JobStreamProblem, tracker: Tracker[Episode]) -> DegreePolicy:
        """Return the last one of the policies."""
        *_, policy = self.policies(problem, tracker)
        return policy


def spent(tracker: Tracker[Episode], episodes: int = 0, seconds: float = 0.0) -> bool:
    """Whether the budget lacks room for `episodes` and the last one, or `seconds`; the tracker then
    notes why.
    """
    if not tracker.stopped:
        if tracker.evaluations_left <= episodes:
            tracker.stop_reason, tracker.stopped = "evaluations", True
        elif tracker.seconds_left <= seconds:
            tracker.stop_reason, tracker.stopped = "time", True
    return tracker.stopped


def episode_seconds(problem: JobStreamProblem, policy: DegreePolicy) -> float:
    """Estimate the time of one episode from its first jobs."""
    # Jobs of the short stream on which the time of an episode is measured
    sample_jobs = 25
    size = min(sample_jobs, problem.num_jobs)
    fields = {key: getattr(problem, key)[:size] for key in ("arrival", "model", "deadline")}
    short = replace(problem, **fields)
    simulate(short, policy)  # compiles
    started = time.perf_counter()
    simulate(short, policy)
    return (time.perf_counter() - started) * problem.num_jobs / size


def training_streams(
    problem: JobStreamProblem, count: int, seed: int, offset: int = TRAINING
) -> list[JobStreamProblem]:
    """Return streams from the distribution of `problem`, never `problem` itself."""
    return [problem.resample(offset + 10_000 * seed + i) for i in range(count)]


def blocked_per_stream(
    streams: Sequence[JobStreamProblem],
    policy: DegreePolicy,
    tracker: Tracker[Episode],
    seed: int = 0,
) -> Ints:
    """Return the blocked jobs of a policy on every stream; counts the episodes."""
    episodes = simulate_many(streams, policy, seed=seed)
    tracker.count(len(episodes))
    return np.array([episode.blocked for episode in episodes], np.int64)


def clearly_better(candidate: Ints, incumbent: Ints) -> bool:
    """Whether `candidate` blocks fewer jobs on the same streams by more than two standard errors of
    the difference.
    """
    difference = (incumbent - candidate).astype(np.float64)
    if len(difference) < 2:
        return bool(difference.sum() > 0)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > max(2 * error, 1e-9))


def constant_rates(
    problem: JobStreamProblem, streams: Sequence[JobStreamProblem], tracker: Tracker[Episode]
) -> dict[int, float]:
    """Return the blocking rate of every constant degree on the streams, best first."""
    jobs = sum(stream.num_jobs for stream in streams)
    rates = {
        degree: float(
            blocked_per_stream(
                streams, DegreePolicy("constant-degree", degree=degree), tracker
            ).sum()
        )
        / jobs
        for degree in problem.jobs.degrees
    }
    return dict(sorted(rates.items(), key=lambda item: (item[1], item[0])))
