"""The base of the heuristics: a heuristic proposes placements, the base evaluates them and keeps
the best.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.heuristics.context import Context, packing_seconds
from placeopt.solvers.heuristics.repair import UNPACKABLE
from placeopt.solving.base import SearchSolver
from placeopt.solving.deadline import is_large
from placeopt.solving.tracker import PlacementTracker

Proposals = Iterator["Placement | None"]
"""Placements, and None where none was found."""


@dataclass(frozen=True)
class Heuristic(SearchSolver):
    """A solver that proposes placements from one pass, or a small sweep, over the graph.

    Attributes
    ----------
    inflations : for memory="peak", the shares of tensor bytes counted as resident, tried in order
    until one works.
    batch : candidates evaluated at once.
    """

    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists")
    inflations: ClassVar[tuple[float, ...]] = (0.0, 0.125, 0.25, 0.5, 1.0)
    batch: ClassVar[int] = 64

    @abstractmethod
    def propose(self, context: Context, tracker: PlacementTracker) -> Proposals:
        """Yield placements; `tracker.rng()` is the source of randomness."""

    def kernels_at_once(self, problem: PlacementProblem) -> tuple[str, ...]:
        """None: one pass over the graph may be interpreted."""
        return ()

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Go through all batches, or as many as the budget allows."""
        for _ in self.batches(problem, tracker):
            if tracker.stop():
                break
        self._conclude(problem, tracker)

    def batches(self, problem: PlacementProblem, tracker: PlacementTracker) -> Iterator[None]:
        """Evaluate what `propose` yields, batch by batch, with more and more bytes reserved
        for tensors until a candidate is valid.
        """
        # Batches of large problems are small, so that a time limit is noticed.
        # Ops and edges per batch of candidates, about 0.1 s of evaluation
        batch_steps = 400_000
        size = max(2, min(self.batch, batch_steps // (problem.num_ops + problem.num_edges)))
        found = False
        for inflation in self.inflations if problem.memory == "peak" else (0.0,):
            context = Context(problem, inflation, packing_seconds(tracker))
            for group in _batches(self.propose(context, tracker), size, tracker):
                found |= offer_all(tracker, problem, group)
                yield
            if found:
                break

    def _conclude(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Prove that nothing fits where nothing was found; give a sample ranks."""
        best = tracker.solution
        if best is None and is_large(problem) and not tracker.in_time:
            tracker.message = "the time was over before a placement was found"
        elif best is None:
            if Context(problem, patience=packing_seconds(tracker)).packed[1]:
                tracker.infeasible(UNPACKABLE)
            elif not tracker.message:
                tracker.message = (
                    "no placement found keeps the peak memory of every device within its capacity"
                    if problem.memory == "peak"
                    else "no placement found fits the capacities, and none was proved impossible"
                )
        elif best.priority is None and (tracker.in_time or not is_large(problem)):
            # a sample keeps its value, as fifo ignores ranks, and may gain
            tracker.solution = Context(problem).list_scheduled(best.device)


def _batches(
    candidates: Proposals, size: int, tracker: PlacementTracker
) -> Iterator[list[Placement]]:
    """Yield groups of candidates: full ones, and what there is when the time is over."""
    group: list[Placement] = []
    for candidate in candidates:
        if candidate is not None:
            group.append(candidate)
        if len(group) == size or not tracker.in_time:
            yield group
            group = []
    if group:
        yield group


def offer_all(tracker: PlacementTracker, problem: PlacementProblem, group: list[Placement]) -> bool:
    """Evaluate candidates in every execution mode they allow; return whether any is valid."""
    group = group[: tracker.evaluations_left]
    if not group:
        return False
    devices = np.stack([placement.device for placement in group])
    values = evaluate_batch(problem, devices)
    ranks = [placement.priority for placement in group if placement.priority is not None]
    if len(ranks) == len(group):
        for queue in ("priority", "planned"):
            values = np.minimum(values, evaluate_batch(problem, devices, np.stack(ranks), queue))
    tracker.count(len(group))
    best = int(values.argmin())
    if values[best] == INFEASIBLE:
        return False
    tracker.offer(int(values[best]), group[best])
    return True
