"""Searches of the parts of a graph that come wholly one after the other (see
`placeopt.makespan.bounds.series`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.series import heads_in_series, part_problem, placement_in_series
from placeopt.model.budget import Budget
from placeopt.solvers.search.cp_sat_start import offer, warm_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placeopt.model.arrays import Ints
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.exact.cp_sat import CpSat
    from placeopt.solving.tracker import Tracker

    Search = Callable[[CpSat, PlacementProblem, Tracker[Placement]], None]

PART_GAP = 2e-4
"""Gap of a part, relative to the bound of all, that is worth a search."""

FIRST_SHARE = 0.25
"""Share of the time for heuristics and quick bounds of all parts."""


def close_parts(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    parts: Sequence[Ints],
    seconds: float,
    search: Search,
) -> None:
    """Search each part for some of the time: as much of it as its gap is of all gaps.

    Their bounds raise the bound, heads and tails of the whole, and their schedules, one after the
    other, are one of the whole.

    Parameters
    ----------
    search : of the problem of a part, from the incumbent that its tracker has.
    """
    end, first = tracker.elapsed + seconds, FIRST_SHARE * seconds / len(parts)
    inner = [Analysis(part_problem(analysis.problem, ops), seconds=first) for ops in parts]
    found = [_begin(tracker, part, first) for part in inner]
    gaps = [0 if own.value is None else own.value - own.lower_bound for own in found]
    worth = PART_GAP * sum(own.lower_bound for own in found)
    left = sorted((i for i, gap in enumerate(gaps) if gap > worth), key=lambda i: -gaps[i])
    while left and tracker.elapsed < end and not tracker.stop():
        share = gaps[left[-1]] / sum(gaps[i] for i in left)
        i = left.pop()
        found[i] = search_part(settings, tracker, found[i], share * (end - tracker.elapsed), search)
    least = [own.lower_bound for own in found]
    analysis.heads = heads_in_series(analysis, parts, inner, least)
    tracker.raise_bound(sum(least), "series")
    solutions = [own.solution for own in found if own.solution is not None]
    if len(solutions) == len(parts):
        offer(analysis.problem, tracker, placement_in_series(analysis.problem, parts, solutions))


def _begin(tracker: Tracker[Placement], part: Analysis, seconds: float) -> Tracker[Placement]:
    """Return what quick bounds and heuristics find for a part."""
    own = tracker.beside(part.problem, Budget(seconds))
    part.run_all(COMBINATORIAL, optional=True)
    own.raise_bound(*part.best())
    with own.within(tracker):
        warm_start(part.problem, own)
    return own


def search_part(
    settings: CpSat,
    tracker: Tracker[Placement],
    before: Tracker[Placement],
    seconds: float,
    search: Search,
) -> Tracker[Placement]:
    """Return what a search of a part finds in some seconds from what was found before, beside the
    search of the whole.
    """
    own = tracker.beside(before.problem, Budget(max(0.0, seconds)))
    own.raise_bound(before.lower_bound, before.bound_method)
    if before.solution is not None:
        own.offer(before.value, before.solution)
    with own.within(tracker):
        search(settings, own.problem, own)
    return own
