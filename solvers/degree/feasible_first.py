"""Feasible-first: an order of degrees per model; the first that meets the deadline and fits now is taken.

A degree left out of a model's order is never used for it, and a job with no feasible degree left is blocked. With a
fragmentation weight w, the choice minimises (place in the order + w * share of the large free blocks it spoils). The
order and the weight are found by local search on training streams.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.degree.driver import blocked_per_stream, finish, spent, start, training_streams
from placeopt.streams.simulator import DegreePolicy, Episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress
    from placeopt.solving.tracker import Tracker
    from placeopt.streams.problem import JobStreamProblem

FRAGMENTATION = (0.0, 0.5, 1.0, 2.0)
"""Weights that the search tries at its end."""


@dataclass(frozen=True)
class FeasibleFirst:
    """First degree of a tuned order that meets the deadline and fits.

    Attributes
    ----------
    order : degrees, best first, for every model; None searches for an order per model.
    fragmentation : weight of spoilt blocks; None searches.
    training : streams the search compares orders on.
    steps : orders that the search tries.
    """

    name: ClassVar[str] = "feasible-first"
    order: tuple[int, ...] | None = None
    fragmentation: float | None = None
    training: int = 8
    steps: int = 150

    def __post_init__(self) -> None:
        if self.training < 1 or self.steps < 0:
            raise InputError("feasible-first: training must be >= 1 stream and steps >= 0")
        if self.order is not None and (not self.order or len(set(self.order)) != len(self.order)):
            raise InputError(f"feasible-first: order must be distinct degrees, received {self.order}")

    def solve(
        self,
        problem: JobStreamProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Episode | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Episode]:
        """Tune the order on other streams of the same distribution, then run it on this one."""
        tracker = start(self.name, problem, budget, seed, on_progress)
        policy = self.tune(problem, seed, tracker)
        assert policy.order is not None
        return finish(tracker, policy, describe(problem, policy.order))

    def tune(self, problem: JobStreamProblem, seed: int, tracker: Tracker[Episode] | None = None) -> DegreePolicy:
        """Return the best policy found on training streams."""
        rows = len(problem.jobs.profiles)
        if self.order is not None:
            order = padded(problem, [self.order] * rows)
            return DegreePolicy(self.name, order=order, fragmentation=self.fragmentation or 0.0)
        count = self.training if tracker is None else min(self.training, tracker.evaluations_left - 1)
        streams = training_streams(problem, count, seed)
        rng = np.random.default_rng(seed)
        weight = self.fragmentation or 0.0

        def cost(order: NDArray[np.int64], fragmentation: float = weight) -> int:
            policy = DegreePolicy(self.name, order=order, fragmentation=fragmentation)
            return int(blocked_per_stream(streams, policy, tracker).sum())

        best = padded(problem, [tuple(reversed(problem.jobs.degrees))] * rows)
        if not streams or spent(tracker, len(streams)):
            return DegreePolicy(self.name, order=best, fragmentation=weight)
        with tracker or nullcontext():  # an interrupt keeps the best order so far
            best_cost = cost(best)
            starts = [padded(problem, [row] * rows) for row in starting_orders(problem.jobs.degrees)]
            for trial in range(len(starts) + self.steps):
                if spent(tracker, len(streams)):
                    break
                order = starts[trial] if trial < len(starts) else _neighbour(best, rng)
                value = cost(order)
                if value < best_cost:
                    best, best_cost = order, value
            if self.fragmentation is None:
                for candidate in FRAGMENTATION[1:]:
                    if spent(tracker, len(streams)):
                        break
                    value = cost(best, candidate)
                    if value < best_cost:
                        weight, best_cost = candidate, value
        return DegreePolicy(self.name, order=best, fragmentation=weight)


def starting_orders(degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Return orders worth trying first: each degree alone or followed by larger or by smaller ones, and sorted."""
    orders: list[tuple[int, ...]] = []
    for i, degree in enumerate(degrees):
        larger, smaller = tuple(degrees[i + 1 :]), tuple(reversed(degrees[:i]))
        orders += [(degree,), (degree, *larger), (degree, *smaller, *larger)]
        # half and double the degree keep the grid's blocks aligned
        related = [u for u in degrees if u != degree and max(u, degree) in (2 * u, 2 * degree, 4 * u, 4 * degree)]
        orders += [(degree, *sorted(related)), (degree, *sorted(u for u in related if u > degree))]
    return list(dict.fromkeys(orders))


def padded(problem: JobStreamProblem, rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return orders of degrees as the simulator takes them: indices, padded with -1.

    Raises
    ------
    InputError
        If the topology lacks a degree.
    """
    topology = problem.jobs.topology
    order = np.full((len(rows), len(topology.degrees)), -1, dtype=np.int64)
    for m, row in enumerate(rows):
        for i, degree in enumerate(row):
            order[m, i] = topology.require_degree(degree)
    return order


def describe(problem: JobStreamProblem, order: NDArray[np.int64]) -> str:
    """Return the order in words, models with the same order together."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for model, row in zip(problem.jobs.models, order.tolist(), strict=True):
        groups.setdefault(tuple(problem.jobs.degrees[d] for d in row if d >= 0), []).append(model)
    return "; ".join(f"{', '.join(models)}: {'-'.join(map(str, row))}" for row, models in groups.items())


def _neighbour(order: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an order with one degree inserted, dropped or swapped, for one model or for all that share the order."""
    order = order.copy()
    model = int(rng.integers(len(order)))
    same = [m for m in range(len(order)) if (order[m] == order[model]).all()]
    models = same if rng.random() < 0.5 else [model]
    row = [d for d in order[model].tolist() if d >= 0]
    missing = [d for d in range(order.shape[1]) if d not in row]
    move = rng.random()
    if (move < 0.4 and missing) or len(row) == 1:
        row.insert(int(rng.integers(len(row) + 1)), int(rng.choice(missing)) if missing else row[0])
        row = list(dict.fromkeys(row))
    elif move < 0.65:
        row.pop(int(rng.integers(len(row))))
    else:
        i, j = rng.choice(len(row), size=2, replace=False)
        row[i], row[j] = row[j], row[i]
    order[models] = row + [-1] * (order.shape[1] - len(row))
    return order
