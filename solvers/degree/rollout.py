"""Rollout: try every degree, and refusing, on sampled near futures served by feasible-first; take the best.

A rollout policy improves on its base (Bertsekas, Tsitsiklis and Wu 1997): each choice is judged by the jobs that the
base then blocks over the next `depth` arrivals, averaged over `samples` sampled futures (the same for every choice),
plus the price of the work left when a future ends. It knows the distribution of the stream, not its future.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.errors import InputError
from placeopt.solvers.degree.driver import (
    best_constant,
    blocked_per_stream,
    clearly_better,
    finish,
    spent,
    start,
    training_streams,
)
from placeopt.solvers.degree.feasible_first import FeasibleFirst, describe, padded
from placeopt.streams.simulator import DegreePolicy, Episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress
    from placeopt.solving.tracker import Tracker
    from placeopt.streams.problem import JobStreamProblem

MIN_STREAMS = 4
"""Training streams without which the base is not compared with the rollout: too few to tell them apart."""


@dataclass(frozen=True)
class Rollout:
    """Simulates the near future for each degree and takes the best.

    Attributes
    ----------
    samples, depth : futures per decision and arrivals per future.
    terminal : price of work left at the end of a future, in jobs per mean job; None tries two on training streams.
    order : degrees of the base, best first; None compares tuned orders and orders around the best constant.
    training : streams the base is chosen on.
    """

    name: ClassVar[str] = "rollout"
    samples: int = 32
    depth: int = 10
    terminal: float | None = None
    order: tuple[int, ...] | None = None
    training: int = 4

    def __post_init__(self) -> None:
        if self.samples < 1 or self.depth < 1 or self.training < 1:
            raise InputError("rollout: samples, depth and training must be >= 1")
        if self.terminal is not None and not self.terminal >= 0:
            raise InputError(f"rollout: terminal must be >= 0, received {self.terminal}")

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Choose the base on other streams, then run the policy on this one."""
        tracker = start(self.name, problem, budget, seed, on_progress)
        policy = self.tune(problem, seed, tracker)
        assert policy.order is not None
        return finish(tracker, policy, "base " + describe(problem, policy.order))

    def tune(self, problem: JobStreamProblem, seed: int, tracker: Tracker[Episode] | None = None) -> DegreePolicy:
        """Return the rollout policy with the best of a few bases and prices, or the tuned base where that is better."""
        rows = len(problem.jobs.profiles)
        prices = (1.0, 0.5) if self.terminal is None else (self.terminal,)
        if self.order is not None:
            bases = [padded(problem, [self.order] * rows)]
        else:
            tuned = FeasibleFirst(fragmentation=0.0, training=self.training).tune(problem, seed, tracker).order
            assert tuned is not None
            bases = [tuned]
            if not spent(tracker, self.training * len(problem.jobs.degrees)):
                streams = training_streams(problem, self.training, seed)
                _, sweep = best_constant(problem, streams, tracker)
                ranked = sorted(sweep, key=lambda degree: (sweep[degree], degree))
                orders = [bases_around(problem.jobs.degrees, degree) for degree in ranked[:2]]
                bases += [padded(problem, [order] * rows) for order in orders]
        options = [
            DegreePolicy(self.name, order=base, samples=self.samples, depth=self.depth, terminal=price)
            for base in bases
            for price in prices
        ]
        if len(options) == 1 or spent(tracker, self.training):
            return options[0]
        streams = training_streams(problem, self.training, seed)
        blocked: list[NDArray[np.int64]] = []
        with tracker or nullcontext():
            for option in options:
                if spent(tracker, self.training):
                    break
                blocked.append(blocked_per_stream(streams, option, tracker, seed))
        if not blocked:
            return options[0]
        best = min(range(len(blocked)), key=lambda i: (int(blocked[i].sum()), i))
        if self.order is None and self.training >= MIN_STREAMS and not spent(tracker, self.training):
            # Futures much shorter than the jobs mislead: then the base itself is the better policy.
            base = DegreePolicy(FeasibleFirst.name, order=bases[0])
            if clearly_better(blocked_per_stream(streams, base, tracker, seed), blocked[best]):
                return base
        return options[best]


def bases_around(degrees: Sequence[int], degree: int) -> tuple[int, ...]:
    """Return an order: the degree, its half for half-filled blocks, then what is larger, for tight deadlines."""
    half = [u for u in degrees if 2 * u == degree]
    return (degree, *half, *(u for u in degrees if u > degree))
