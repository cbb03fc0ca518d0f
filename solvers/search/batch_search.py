"""The frame of the searches on the batch evaluator: options that all have, a start (the caller's
placement, a heuristic's, or chance), and the word at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.objective import PERIOD
from placeopt.solvers.search.evaluator import BudgetedEvaluator, Measure
from placeopt.solvers.search.peak_descent import descend, descent
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.registry import make_solver, spec_of, specs
from placeopt.solving.run import run_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator

    from placeopt.model.problem import PlacementProblem
    from placeopt.solving.tracker import PlacementTracker


RANDOM = "random"
"""Name of the start from scratch."""

RESERVING = "etf"
"""Heuristic that finds a start where random placements break the limit on peak memory."""


@dataclass(frozen=True)
class MeasuringSearch(SearchSolver):
    """A search that can minimise a measurement of the caller instead of the problem's objective."""

    endless = True
    kernels: ClassVar[tuple[str, ...]] = (
        "ranks",
        "lists",
        "lists-by-time",
        "clusterings",
        "walks",
        "populations",
    )

    measure: Measure | None = option(
        None, "callable: devices to seconds, instead of the problem's objective"
    )
    threads: int | None = option(
        None, "threads, one per core by default; the result does not depend on it"
    )


@dataclass(frozen=True)
class BatchSearch(MeasuringSearch):
    """A search that improves the placements it starts from."""

    start: str = option("edge-zeroing", "solver whose placement it starts from; 'random' for none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start != RANDOM and spec_of(self.start, "placement") is None:
            known = ", ".join(sorted(specs("placement")))
            raise InputError(
                f"{self.name}: start must be 'random' or the name of a solver ({known}), "
                f"received '{self.start}'"
            )

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Start, and improve until the budget is spent."""
        evaluator = BudgetedEvaluator(tracker, measure=self.measure, threads=self.threads)
        rng = tracker.rng()
        self.improve(evaluator, starting_placements(evaluator, self.start, rng), rng)
        evaluator.conclude()

    @abstractmethod
    def improve(
        self, evaluator: BudgetedEvaluator, starts: list[Placement], rng: Generator
    ) -> None:
        """Spend the budget; `starts` are the placements to start from, best first, none if none was
        found.
        """


def starting_placements(
    evaluator: BudgetedEvaluator, start: str, rng: Generator
) -> list[Placement]:
    """Return the placements to start from, evaluated, best first; at least one unless none was
    found.

    The caller's initial placement (the incumbent of the tracker) is one of them.

    Parameters
    ----------
    start : solver that proposes a start, on a part of the budget; "random" for none.
    """
    tracker = evaluator.tracker
    found: list[tuple[int, Placement]] = []

    def consider(value: int | None, placement: Placement) -> None:
        if value is None and tracker.evaluations_left > 0:  # to be measured
            value = evaluator.value_of(placement)
        if value is not None and value != INFEASIBLE:
            found.append((value, placement))

    if tracker.solution is not None:
        consider(tracker.value, tracker.solution)
    for proposed in _proposed(evaluator, start):
        consider(*proposed)
    if not found:
        for placement in _fallbacks(evaluator, rng):
            consider(None, placement)
            if found or tracker.stop():
                break
    kept: list[Placement] = []
    for _, placement in sorted(found, key=lambda pair: pair[0]):
        if placement not in kept:
            kept.append(placement)
    return kept


def _proposed(
    evaluator: BudgetedEvaluator, name: str, *, share: float = 0.25
) -> Iterator[tuple[int | None, Placement]]:
    """Run a solver on a share of the budget; yield (value or None if it has to be measured,
    placement) if it finds one.
    """
    tracker, objective = evaluator.tracker, evaluator.objective
    spec = None if name == RANDOM else spec_of(name, "placement")
    if spec is not None and objective.name not in spec.accepted:
        name = "linear-dp" if objective is PERIOD else RANDOM
    if name == RANDOM or tracker.stop():
        return
    measured, part = evaluator.measure is not None, tracker.share(share)
    result = run_part(
        tracker,
        make_solver(name),
        seconds=part.seconds,
        evaluations=part.evaluations,
        adopt=not measured,
    )
    # The start is an offer; a solver that refuses the problem makes none.
    if result is not None and result.solution is not None:
        yield (None if measured else result.value), result.solution


def _fallbacks(
    evaluator: BudgetedEvaluator, rng: Generator, *, attempts: int = 16
) -> Iterator[Placement]:
    """Yield random placements that fit, contiguous chunks, everything on one device, and what a
    heuristic or a descent finds where these break the limit on peak memory.
    """
    space = evaluator.space
    rows = [space.random_homes(rng) for _ in range(attempts)]
    chunk = space.chunk_homes()
    # Random parts hardly ever form a pipeline.
    rows = [*rows, chunk] if evaluator.objective.ordered else [chunk, *rows]
    rows += [
        space.context.repaired_homes(np.full(space.num_units, d))
        for d in range(evaluator.problem.num_devices)
    ]
    rank = space.rank if evaluator.ordered else None
    yield from (Placement(space.devices_of(row), rank) for row in rows if row is not None)
    if evaluator.objective.ordered:
        yield from (placement for _, placement in _proposed(evaluator, RESERVING))
    if evaluator.ordered and evaluator.problem.memory == "peak":
        found = descend(descent(space, rng), evaluator.tracker)
        yield from [] if found is None else [found]
