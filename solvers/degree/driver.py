"""What the degree solvers share: training streams, comparing policies, and the Result of an episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode, simulate, simulate_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

TRAINING, VALIDATION = 1_000_000, 2_000_000
"""Offsets of the seeds of streams that policies are tuned and chosen on; streams to be judged have small seeds."""


def start(
    name: str, problem: JobStreamProblem, budget: Budget, seed: int, on_progress: OnProgress | None
) -> Tracker[Episode]:
    """Check the problem and return its tracker, with the bound that needs no search.

    Raises
    ------
    InputError
        If the problem is not a job stream.
    """
    if not isinstance(problem, JobStreamProblem):
        raise InputError(f"solver '{name}' takes a job stream, received a {type(problem).__name__}")
    require_objective(name, problem, ("blocking",))
    tracker: Tracker[Episode] = Tracker(name, problem, budget, seed=seed, on_progress=on_progress)
    tracker.raise_bound(hopeless_jobs(problem), "deadline")
    return tracker


def hopeless_jobs(problem: JobStreamProblem) -> int:
    """Return how many jobs no degree can complete by their deadline and the horizon, even on an empty cluster."""
    length = problem.jobs.arrays.jct[problem.model]
    fits = (length >= 0) & (length <= problem.deadline[:, None])
    fits &= problem.arrival[:, None] + length <= problem.horizon
    return int(np.count_nonzero(~fits.any(axis=1)))


def finish(tracker: Tracker[Episode], policy: DegreePolicy, message: str = "") -> Result[Episode]:
    """Run the policy on the problem itself and build the Result: its objective is the number of blocked jobs."""
    episode = simulate(tracker.problem, policy, seed=tracker.seed, record_servers=True)
    tracker.count()
    tracker.offer(episode.blocked, episode)
    return tracker.result(solution=episode, objective=episode.blocked, message=message)


def spent(tracker: Tracker[Episode] | None, episodes: int = 0, seconds: float = 0.0) -> bool:
    """Whether the budget lacks room for `episodes` and the last one, or `seconds`; the tracker then notes why."""
    if tracker is None:
        return False
    if not tracker.stopped:
        if tracker.evaluations_left <= episodes:
            tracker.stop_reason, tracker.stopped = "evaluations", True
        elif tracker.seconds_left <= seconds:
            tracker.stop_reason, tracker.stopped = "time", True
    return tracker.stopped


def training_streams(problem: JobStreamProblem, count: int, seed: int, offset: int = TRAINING) -> list[JobStreamProblem]:
    """Return streams from the distribution of `problem`, never `problem` itself."""
    return [problem.resample(offset + 10_000 * seed + i) for i in range(count)]


def blocked_per_stream(
    streams: Sequence[JobStreamProblem], policy: DegreePolicy, tracker: Tracker[Episode] | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Return the blocked jobs of a policy on every stream; counts the episodes."""
    episodes = simulate_many(streams, policy, seed=seed)
    if tracker is not None:
        tracker.count(len(episodes))
    return np.array([episode.blocked for episode in episodes], dtype=np.int64)


def clearly_better(candidate: NDArray[np.int64], incumbent: NDArray[np.int64]) -> bool:
    """Whether `candidate` blocks fewer jobs on the same streams by more than two standard errors of the difference."""
    difference = (incumbent - candidate).astype(np.float64)
    if len(difference) < 2:
        return bool(difference.sum() > 0)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > max(2 * error, 1e-9))


def best_constant(
    problem: JobStreamProblem, streams: Sequence[JobStreamProblem], tracker: Tracker[Episode] | None = None
) -> tuple[int, dict[int, float]]:
    """Return the best constant degree on the streams, and the blocking rate of each."""
    jobs = sum(stream.num_jobs for stream in streams)
    sweep = {
        degree: float(blocked_per_stream(streams, DegreePolicy("constant-degree", degree=degree), tracker).sum()) / jobs
        for degree in problem.jobs.degrees
    }
    return min(sweep, key=lambda degree: (sweep[degree], degree)), sweep
