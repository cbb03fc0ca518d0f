"""What the degree solvers share: tune a policy on other streams of the same distribution, then run
it on this one; and from the text `name` or `name:parameter` to a tuned policy.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.errors import InputError
from placeopt.model.result import Budget, Result
from placeopt.solving.base import SearchSolver
from placeopt.solving.registry import make_solver, spec_of, specs
from placeopt.solving.run import run
from placeopt.solving.tracker import OnProgress, Tracker
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode, simulate, simulate_many

TRAINING, VALIDATION = 1_000_000, 2_000_000
"""Offsets of the seeds of streams that policies are tuned and chosen on; streams to be judged have
small seeds."""

DEFAULT_POLICIES = (
    "max-degree",
    "min-degree",
    "random-degree",
    "constant-degree",
    "feasible-first",
)


@dataclass(frozen=True)
class DegreeSolver(SearchSolver):
    """A solver that tunes a degree policy; its solution is the episode of the policy on the stream
    itself.
    """

    kernels = ("streams",)

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


def solver_options(text: str) -> tuple[str, dict[str, Any]]:
    """Return (solver name, options) of a policy's text.

    ``constant-degree:4`` is a degree, ``feasible-first:8-4-16`` and ``rollout:8-4-16`` are orders,
    ``policy-degree:50`` a number of updates; ``name`` alone leaves all to the solver.

    Raises
    ------
    InputError
        If the name is unknown or the parameter has the wrong form.
    """
    name, colon, parameter = text.partition(":")
    if spec_of(name, "jobs") is None:
        known = ", ".join(sorted(specs("jobs")))
        raise InputError(f"policy '{name}' is not known; known: {known}")
    if not colon:
        return name, {}
    if name not in _PARAMETERS:
        raise InputError(f"policy '{name}' takes no parameter, received '{parameter}'")
    option, read, form = _PARAMETERS[name]
    try:
        return name, {option: read(parameter)}
    except ValueError:
        raise InputError(
            f"policy '{text}': expected {form} after the colon, received '{parameter}'"
        ) from None


def _degrees(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


_PARAMETERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "constant-degree": ("degree", int, "a degree"),
    "feasible-first": ("order", _degrees, "degrees like 8-4-16"),
    "rollout": ("order", _degrees, "degrees like 8-4-16"),
    "policy-degree": ("iterations", int, "a number of updates"),
}
"""The option that stands behind the colon, how it is read, and what is expected."""


def check_policy(text: str, problem: JobStreamProblem) -> tuple[str, dict[str, Any]]:
    """Return what `solver_options` does.

    Raises
    ------
    InputError
        If the text is wrong or names a degree that the topology lacks.
    """
    name, options = solver_options(text)
    for degree in options.get("order", ()) + ((options["degree"],) if "degree" in options else ()):
        problem.jobs.topology.require_degree(degree, f"policy '{text}': degree")
    make_solver(name, "jobs", **options)
    return name, options


def tuned_result(
    text: str,
    problem: JobStreamProblem,
    *,
    seed: int = 0,
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
) -> Result[Episode]:
    """Return the Result of a policy's solver: tuned on streams other than `problem`, run on it.

    Parameters
    ----------
    seconds : limit of the tuning; None is none.
    """
    name, options = check_policy(text, problem)
    budget = Budget(seconds=seconds)
    return run(
        problem, make_solver(name, "jobs", **options), budget, seed=seed, on_progress=on_progress
    )


def tuned_policy(
    text: str, problem: JobStreamProblem, *, seed: int = 0
) -> tuple[DegreePolicy, str]:
    """Return (policy, message of its solver), tuned without a limit."""
    result = tuned_result(text, problem, seed=seed)
    assert result.solution is not None  # every job may be refused: there always is one
    return result.solution.policy, result.message
