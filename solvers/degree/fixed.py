"""Degree policies without a search: largest, smallest, random and constant degree.

References
----------
Parsonson et al., "Partitioning distributed compute jobs with reinforcement learning and graph
neural networks" (2023): the baselines that PAC-ML is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placeopt.solvers.degree.tuning import DegreeSolver, constant_rates, spent, training_streams
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode


@dataclass(frozen=True)
class _PublishedRule(DegreeSolver):
    """A rule that the simulator knows by the solver's name."""

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the rule."""
        yield DegreePolicy(self.name)


@dataclass(frozen=True)
class MaxDegree(_PublishedRule):
    """Maximum parallelisation: the largest degree that does not exceed the free servers."""


@dataclass(frozen=True)
class MinDegree(_PublishedRule):
    """The smallest degree that is at least (sequential time / deadline), else the largest that has
    servers.
    """


@dataclass(frozen=True)
class RandomDegree(_PublishedRule):
    """A random one of the degrees that do not exceed the free servers."""


@dataclass(frozen=True)
class ConstantDegree(DegreeSolver):
    """The same degree for every job."""

    degree: int | None = option(
        None, "the degree; None sweeps all on other streams and takes the best", low=1
    )
    training: int = option(8, "streams of the sweep", low=1)

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the degree, or the largest one and then the winner of the sweep."""
        yield DegreePolicy(self.name, degree=self.degree or problem.jobs.degrees[-1])
        if self.degree is None:
            count = min(self.training, (tracker.evaluations_left - 1) // len(problem.jobs.degrees))
            if spent(tracker) or count < 1:
                return
            rates = constant_rates(problem, training_streams(problem, count, tracker.seed), tracker)
            words = (f"{degree}: {rates[degree]:.3f}" for degree in problem.jobs.degrees)
            tracker.message = f"blocking rate by degree: {', '.join(words)}"
            yield DegreePolicy(self.name, degree=next(iter(rates)))
