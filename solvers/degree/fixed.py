"""Degree policies without a search: largest, smallest, random and constant degree (the baselines of PAC-ML)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.errors import InputError
from placeopt.solvers.degree.driver import best_constant, finish, start, training_streams
from placeopt.streams.simulator import DegreePolicy, Episode

if TYPE_CHECKING:
    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress
    from placeopt.streams.problem import JobStreamProblem


@dataclass(frozen=True)
class MaxDegree:
    """Maximum parallelisation: the largest degree that does not exceed the free servers."""

    name: ClassVar[str] = "max-degree"

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Run the policy on the stream."""
        return finish(start(self.name, problem, budget, seed, on_progress), DegreePolicy(self.name))


@dataclass(frozen=True)
class MinDegree:
    """The smallest degree that is at least (sequential time / deadline), else the largest that has servers."""

    name: ClassVar[str] = "min-degree"

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Run the policy on the stream."""
        return finish(start(self.name, problem, budget, seed, on_progress), DegreePolicy(self.name))


@dataclass(frozen=True)
class RandomDegree:
    """A random one of the degrees that do not exceed the free servers."""

    name: ClassVar[str] = "random-degree"

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Run the policy on the stream."""
        return finish(start(self.name, problem, budget, seed, on_progress), DegreePolicy(self.name))


@dataclass(frozen=True)
class ConstantDegree:
    """The same degree for every job.

    Attributes
    ----------
    degree : None sweeps all degrees over `training` other streams and takes the best.
    """

    name: ClassVar[str] = "constant-degree"
    degree: int | None = None
    training: int = 8

    def __post_init__(self) -> None:
        if self.training < 1:
            raise InputError(f"constant-degree: training must be >= 1 stream, received {self.training}")

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Run the policy on the stream."""
        tracker = start(self.name, problem, budget, seed, on_progress)
        degree, message = self.degree, ""
        if degree is None:
            degree, sweep = best_constant(problem, training_streams(problem, self.training, seed), tracker)
            message = "blocking rate by degree: " + ", ".join(f"{u}: {rate:.3f}" for u, rate in sweep.items())
        return finish(tracker, DegreePolicy(self.name, degree=degree), message)
