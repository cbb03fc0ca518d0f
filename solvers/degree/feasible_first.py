"""Feasible-first: an order of degrees per model; the first that meets the deadline and fits now is
taken.

A degree left out of a model's order is never used for it, and a job with no feasible degree left is
blocked. An order may be empty: on a busy cluster it pays to refuse models that hold servers for
long. With a fragmentation weight w, the choice minimises (place in the order + w * share of the
large free blocks it spoils). The order and the weight are found by local search on training
streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placeopt.model.arrays import Ints, by_key, stable_order
from placeopt.model.errors import InputError
from placeopt.solvers.degree.tuning import (
    DegreeSolver,
    blocked_per_stream,
    episode_seconds,
    spent,
    training_streams,
)
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker
from placeopt.streams.problem import JobStreamProblem
from placeopt.streams.simulator import DegreePolicy, Episode


@dataclass(frozen=True)
class FeasibleFirst(DegreeSolver):
    """First degree of a tuned order that meets the deadline and fits."""

    order: tuple[int, ...] | None = option(
        None, "degrees, best first, for every model; None searches for an order per model"
    )
    fragmentation: float | None = option(None, "weight of spoilt blocks; None searches", low=0)
    training: int = option(8, "streams on which orders are compared", low=1)
    steps: int = option(150, "orders that the search tries", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order is not None and (not self.order or len(set(self.order)) != len(self.order)):
            raise InputError(
                f"feasible-first: order must be distinct degrees, received {self.order}"
            )

    def policies(
        self, problem: JobStreamProblem, tracker: Tracker[Episode]
    ) -> Iterator[DegreePolicy]:
        """Yield the given order; or all degrees from the largest on, and then whatever a local
        search finds better.
        """
        weight = self.fragmentation or 0.0
        row = self.order or tuple(reversed(problem.jobs.degrees))
        best = DegreePolicy(self.name, order=same_order(problem, row), fragmentation=weight)
        tracker.message = describe(problem, best)
        yield best
        if self.order is not None:
            return
        streams = training_streams(
            problem, min(self.training, tracker.evaluations_left - 1), tracker.seed
        )
        timed = tracker.budget.seconds is not None
        batch = (len(streams) + 1) * episode_seconds(problem, best) if timed else 0.0
        if not streams or spent(tracker, len(streams), batch):
            return
        found, fewest = [best], int(blocked_per_stream(streams, best, tracker).sum())
        for candidate in self._candidates(problem, tracker, found):
            if spent(tracker, len(streams), batch):
                return
            blocked = int(blocked_per_stream(streams, candidate, tracker).sum())
            if blocked < fewest:
                fewest = blocked
                found.append(candidate)
                tracker.message = describe(problem, candidate)
                yield candidate

    def _candidates(
        self, problem: JobStreamProblem, tracker: Tracker[Episode], found: list[DegreePolicy]
    ) -> Iterator[DegreePolicy]:
        """Yield the orders worth trying first, neighbours of the best one (the last of `found`),
        then weights beside 0; before and after the neighbours, the best one with a model refused.
        """
        rng = tracker.rng()
        for row in starting_orders(problem.jobs.degrees):
            yield replace(found[-1], order=same_order(problem, row))
        yield from _refusing(problem, found)
        for _ in range(self.steps):
            yield replace(found[-1], order=_neighbour(found[-1], rng))
        yield from _refusing(problem, found)
        if self.fragmentation is None:
            tuned = found[-1]
            for weight in (0.5, 1.0, 2.0):
                yield replace(tuned, fragmentation=weight)


def _refusing(problem: JobStreamProblem, found: list[DegreePolicy]) -> Iterator[DegreePolicy]:
    """Yield the last of the policies found with the order of one model emptied, the longest model
    first.
    """
    for model in stable_order(-problem.jobs.arrays.sequential):
        order = np.array(found[-1].order)
        order[model] = -1
        yield replace(found[-1], order=order)


def same_order(problem: JobStreamProblem, row: Sequence[int]) -> Ints:
    """Return one order of degrees for all models."""
    return padded(problem, [row] * len(problem.jobs.profiles))


def starting_orders(degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Return orders worth trying first: each degree alone or followed by larger or by smaller ones,
    and sorted.
    """
    orders: list[tuple[int, ...]] = []
    for i, degree in enumerate(degrees):
        larger, smaller = tuple(degrees[i + 1 :]), tuple(reversed(degrees[:i]))
        orders += [(degree,), (degree, *larger), (degree, *smaller, *larger)]
        # half and double the degree keep the grid's blocks aligned
        related = [
            u
            for u in degrees
            if u != degree and max(u, degree) in (2 * u, 2 * degree, 4 * u, 4 * degree)
        ]
        orders += [(degree, *sorted(related)), (degree, *sorted(u for u in related if u > degree))]
    return list(dict.fromkeys(orders))


def padded(problem: JobStreamProblem, rows: Sequence[Sequence[int]]) -> Ints:
    """Return orders of degrees as the simulator takes them: indices, padded with -1.

    Raises
    ------
    InputError
        If the topology lacks a degree.
    """
    topology = problem.jobs.topology
    order = np.full((len(rows), len(topology.degrees)), -1, np.int64)
    for m, row in enumerate(rows):
        for i, degree in enumerate(row):
            order[m, i] = topology.require_degree(degree)
    return order


def describe(problem: JobStreamProblem, policy: DegreePolicy) -> str:
    """Return the order of a policy in words, models with the same order together."""
    assert policy.order is not None
    rows = zip(problem.jobs.models, policy.order.tolist(), strict=True)
    groups = by_key(
        (tuple(problem.jobs.degrees[d] for d in row if d >= 0), model) for model, row in rows
    )
    return "; ".join(
        f"{', '.join(models)}: {'-'.join(map(str, row)) or 'refused'}"
        for row, models in groups.items()
    )


def _neighbour(policy: DegreePolicy, rng: np.random.Generator) -> Ints:
    """Return an order with one degree inserted, dropped or swapped, for one model or for all that
    share the order.
    """
    assert policy.order is not None
    order = policy.order.copy()
    model = int(rng.integers(len(order)))
    same = [m for m in range(len(order)) if (order[m] == order[model]).all()]
    models = same if rng.random() < 0.5 else [model]
    row = _changed([d for d in order[model].tolist() if d >= 0], order.shape[1], rng)
    order[models] = row + [-1] * (order.shape[1] - len(row))
    return order


def _changed(row: list[int], degrees: int, rng: np.random.Generator) -> list[int]:
    """Return a row with one of so many degrees inserted, dropped or swapped."""
    missing = [d for d in range(degrees) if d not in row]
    move = rng.random()
    if (move < 0.4 and missing) or len(row) <= 1:
        row.insert(int(rng.integers(len(row) + 1)), int(rng.choice(missing)) if missing else row[0])
        return list(dict.fromkeys(row))
    if move < 0.65:
        row.pop(int(rng.integers(len(row))))
    else:
        i, j = rng.choice(len(row), size=2, replace=False)
        row[i], row[j] = row[j], row[i]
    return row
