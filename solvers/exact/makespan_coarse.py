"""Runs of CP-SAT on coarse problems: few distinct times, and none of the ops that have no length
there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.relaxation import INFINITE
from placeopt.makespan.coarsening import coarsen
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.time_grid import common_unit
from placeopt.model.budget import Budget
from placeopt.solvers.exact.makespan_grid import lift, solve_on_grid
from placeopt.solvers.search.cp_sat_start import offer

if TYPE_CHECKING:
    from placeopt.makespan.coarsening import Coarse
    from placeopt.model.placement import Placement
    from placeopt.solvers.exact.cp_sat import CpSat
    from placeopt.solving.tracker import Tracker


def solve_coarse(
    settings: CpSat, tracker: Tracker[Placement], analysis: Analysis, unit: int, share: float
) -> bool:
    """Solve the problem on a grid of time, contention left out; raise the bound by it, and offer
    what it leads to.

    Parameters
    ----------
    unit : ticks. share : part of the time or evaluations left that it may take.

    Returns
    -------
    bool
        Whether the coarse problem is solved: it was refuted below a schedule, or below the bound.
    """
    coarse = coarsen(analysis.problem, unit)
    left = tracker.seconds_left
    evaluations = (
        None
        if tracker.budget.evaluations is None
        else max(1, int(share * tracker.evaluations_left))
    )
    budget = Budget(share * left if math.isfinite(left) else None, evaluations)
    own = tracker.beside(coarse.problem, budget)
    with own.within(tracker):
        finished = _solve(settings, own, tracker, coarse, analysis)
    tracker.count(own.evaluations)
    tracker.raise_bound(own.lower_bound * unit, own.bound_method)
    if own.solution is not None:
        _, queue = best_queue(coarse.problem, own.solution)
        offer(
            coarse.fine,
            tracker,
            coarse.extend(evaluate(coarse.problem, own.solution, queue).schedule),
        )
    return finished


def _solve(
    settings: CpSat,
    own: Tracker[Placement],
    tracker: Tracker[Placement],
    coarse: Coarse,
    analysis: Analysis,
) -> bool:
    """Search the coarse problem from what is known of the fine one, and return whether it is
    solved.
    """
    if tracker.solution is not None:
        offer(coarse.problem, own, coarse.restrict(tracker.solution))
    own.raise_bound(tracker.lower_bound // coarse.unit, tracker.bound_method)
    inner = Analysis(coarse.problem, seconds=min(1.0, own.seconds_left / 4))
    for name in COMBINATORIAL:
        own.raise_bound(inner.run(name, optional=True), name)
    _take_heads(inner, analysis, coarse)
    unit, timed = (
        common_unit(coarse.problem),
        math.isfinite(own.seconds_left) and own.budget.evaluations is None,
    )
    met = timed and lift(settings, own, inner, unit, own.elapsed + own.seconds_left / 2)
    if not met and not own.stop():
        met = solve_on_grid(settings, own, inner, unit, 1.0).finished
    return met or own.stop_reason == "proved"


def _take_heads(inner: Analysis, analysis: Analysis, coarse: Coarse) -> None:
    """Raise the heads and tails of a coarse problem by those of the fine one, rounded down.

    Devices that differ in the fine problem may be of one class in the coarse one: the least of
    theirs holds for all.
    """
    relaxation, found = inner.relaxation, []
    for own, fine in zip(inner.heads[:2], analysis.device_heads_tails(analysis.heads), strict=True):
        rounded = np.where(fine < 0, INFINITE, fine // coarse.unit)[coarse.kept]
        classes = range(len(relaxation.class_size))
        least = np.stack(
            [rounded[:, relaxation.class_of == c].min(axis=1) for c in classes], axis=1
        )
        found.append(np.where((own < 0) | (least >= INFINITE), own, np.maximum(own, least)))
    inner.heads = inner.heads._replace(head=found[0], tail=found[1])
