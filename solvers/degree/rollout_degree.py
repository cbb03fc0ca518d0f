"""Rollout: try every degree, and refusing, on sampled near futures served by feasible-first; take
the best.

A rollout policy improves on its base: each choice is judged by the jobs that the
base then blocks over the next `depth` arrivals, averaged over `samples` sampled futures (the same
for every choice), plus the price of the work left when a future ends. It knows the distribution of
the stream, not its future.

References
----------
Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization", Journal of
Heuristics 3 (1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placeopt.model.arrays import Ints
from placeopt.solvers.degree.feasible_first import FeasibleFirst, describe, same_order
from placeopt.solvers.degree.tuning import (
    DegreeSolver,
    blocked_per_stream,
    clearly_better,
    constant_rates,
    episode_seconds,
    spent,
    training_streams,
)
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode


@dataclass(frozen=True)
class RolloutDegree(DegreeSolver):
    """Simulates the near future for each degree and takes the best."""

    samples: int = option(32, "futures per decision", low=1)
    depth: int = option(10, "arrivals per future", low=1)
    terminal: float | None = option(
        None,
        "price of work left at the end of a future, in jobs per mean job; None tries two",
        low=0,
    )
    order: tuple[int, ...] | None = option(
        None,
        "degrees of the base, best first; None compares tuned orders and orders around the "
        "best constant",
    )
    training: int = option(4, "streams on which the base is chosen", low=1)

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the base, then rollouts of the best of a few bases and prices; the base again where
        that is better.
        """
        tuning = FeasibleFirst(order=self.order, fragmentation=0.0, training=self.training)
        # the other half of the budget shows whether rolling out pays
        part = tracker.beside(problem, tracker.share(0.5))
        for base in tuning.policies(problem, part):
            tracker.message = f"base {describe(problem, base)}"
            yield base
        tracker.count(part.evaluations)
        options = self._options(problem, tracker, base)
        timed = tracker.budget.seconds is not None
        seconds = 1.2 * episode_seconds(problem, options[0]) if timed else 0.0
        if tracker.seconds_left < seconds:  # not even the stream itself could be served so
            tracker.stop_reason, tracker.stopped = "time", True
            return
        yield options[0]
        # one batch of training streams, and the stream itself
        batch = seconds * (self.training + 1)
        if len(options) > 1 and not spent(tracker, 2 * self.training, batch):
            yield from self._better(problem, tracker, base, options, batch)

    def _better(
        self,
        problem: JobStreamProblem,
        tracker: Tracker[Episode],
        base: DegreePolicy,
        options: Sequence[DegreePolicy],
        batch: float,
    ) -> Iterator[DegreePolicy]:
        """Yield the rollouts that block fewer jobs on training streams than all before them, then
        the base if it is clearly better; each has `batch` seconds.
        """
        streams = training_streams(problem, self.training, tracker.seed)
        best, fewest = options[0], blocked_per_stream(streams, options[0], tracker, tracker.seed)
        for candidate in options[1:]:
            if spent(tracker, 2 * self.training, batch):
                break
            blocked = blocked_per_stream(streams, candidate, tracker, tracker.seed)
            if blocked.sum() < fewest.sum():
                best, fewest = candidate, blocked
                tracker.message = f"base {describe(problem, best)}"
                yield best
        # Training streams without which the base is not compared with the rollout: too few to tell
        # them apart
        min_streams = 4
        if self.order is not None or self.training < min_streams:
            return
        # Futures much shorter than the jobs mislead: then the base itself is the better policy.
        if clearly_better(blocked_per_stream(streams, base, tracker, tracker.seed), fewest):
            tracker.message = f"base {describe(problem, base)}"
            yield base

    def _options(
        self, problem: JobStreamProblem, tracker: Tracker[Episode], base: DegreePolicy
    ) -> list[DegreePolicy]:
        """Return rollouts of the tuned base, and of orders around the two best constants if there
        is time to find those; with two prices of work left where none is given.
        """
        bases: list[Ints | None] = [base.order]
        if self.order is None and not spent(tracker, self.training * len(problem.jobs.degrees)):
            rates = constant_rates(
                problem, training_streams(problem, self.training, tracker.seed), tracker
            )
            bases += [
                same_order(problem, order_around(problem.jobs.degrees, degree))
                for degree in list(rates)[:2]
            ]
        prices = (1.0, 0.5) if self.terminal is None else (self.terminal,)
        rollout = DegreePolicy(self.name, order=base.order, samples=self.samples, depth=self.depth)
        return [
            replace(rollout, order=order, terminal=price) for order in bases for price in prices
        ]


def order_around(degrees: Sequence[int], degree: int) -> tuple[int, ...]:
    """Return an order: the degree, its half for half-filled blocks, then what is larger, for tight
    deadlines.
    """
    half = [u for u in degrees if 2 * u == degree]
    return (degree, *half, *(u for u in degrees if u > degree))
