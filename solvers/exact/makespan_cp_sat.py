"""The makespan by CP-SAT: heuristics, bounds, then the whole model and windows of it.

The order of work makes every time limit useful: heuristics give an incumbent in milliseconds,
combinatorial bounds may already prove it, and CP-SAT then improves both from a complete hint,
within start-time domains that the communication-aware heads and tails cut down.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.front import TRY_SECONDS, FrontSearch
from placeopt.makespan.bounds.series import series_parts
from placeopt.makespan.time_grid import COARSE_HORIZON, common_unit, natural_grid
from placeopt.solvers.exact.makespan_coarse import solve_coarse
from placeopt.solvers.exact.makespan_grid import lift, solve_on_grid
from placeopt.solvers.exact.makespan_series import close_parts
from placeopt.solvers.search.cp_sat_start import warm_start
from placeopt.solvers.search.lns import Lns, WindowSearch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.solvers.exact.cp_sat import CpSat
    from placeopt.solving.tracker import Tracker

PROBE_SECONDS, PROBE_SHARES = 20.0, (0.06, 0.2)
"""Time for horizons at the lower bound, before and after the bound by fronts: seconds at most, and
shares of the time left."""

FRONT_SECONDS, FRONT_SHARE, FIRST_FRONT_SHARE, NEXT_FRONT_SHARE, CLOSING_FRONT_SHARE = (
    20.0,
    0.2,
    0.1,
    0.4,
    0.3,
)
"""Time for the bound by fronts: seconds at most, and share of the time left: alone, and beside
searches, at first, where that gains, and as long as it gains."""

FRONT_LEAST = TRY_SECONDS + 0.1
"""Seconds with which the bound by fronts can begin, taken where the share alone is less."""

FIRST_SHARE, WINDOW_SHARE = 0.3, 0.6
"""Shares of the time left for a first run of the whole model, and then for windows (`lns`)."""

CLOSING_SHARES = (0.15, 0.3, 0.5, 1.0)
"""Shares of the time left for runs of the whole model where searches work beside it."""

TIGHT_SECONDS, TIGHT_SHARE, CLOSE_GAP = 6.0, 0.4, 5e-3
"""Time for restarts on the horizon of the bound where searches work beside it: seconds at most, and
share of the time left; and the relative gap below which that horizon comes before more fronts."""

SHAPE_GRID, SHAPE_SECONDS, SHAPE_SHARE, SHAPE_GAP = 2**12, 6.0, 0.2, 2e-3
"""Coarse grid on which a schedule as long as the bound is looked for, contention left out: units in
the horizon; the time for it: seconds at most, and share of the time left; and the relative gap from
which it is."""

FIRST_GRID_SECONDS, FIRST_GRID_SHARE, GRID_SHARE, FINER = 3.0, 0.3, 0.25, 4
"""Time for a grid: for the first one seconds at most, and share of the time left; for others that
share; and how much finer the next one is."""

SHORT_OPS = 0.5
"""Share of the ops that must be without length on a natural grid for it to be tried: then the
coarse problem is much smaller."""

SERIES_SECONDS, SERIES_SHARE, PARTS_SECONDS = 12.0, 0.25, 1.0
"""Time for the parts of a graph that come one after the other: seconds, and share of the time left,
at most; and to find them."""

AGAIN_GAP, AGAIN = 1e-2, 2.0
"""Relative gap beyond which parts in series and the natural grid are taken once more, and how much
longer."""

SEGMENT_SECONDS, SEGMENT_SHARE = 4.0, 0.1
REST_SECONDS, REST_SHARE = 1.5, 0.03
"""Time for the bound by segments that could help at once, which most problems need little of, and
for the rest: seconds, and share of the time left, at most."""

LADDER = ((2**12, 0.15), (2**16, 0.25))
"""Coarse grids to search first: (units in the horizon, share of the time left)."""


def search_makespan(
    settings: CpSat, problem: PlacementProblem, tracker: Tracker[Placement]
) -> None:
    """Start from the heuristics and the combinatorial bounds; then run CP-SAT until the budget
    ends.
    """
    if settings.warm_start:
        warm_start(problem, tracker)
    analysis = Analysis(problem, seconds=min(10.0, tracker.seconds_left / 4))
    for name in COMBINATORIAL:
        if tracker.stop() and tracker.lower_bound > 0:  # the shortest budget ends with a bound too
            return
        tracker.raise_bound(analysis.run(name), name)
    if not tracker.stop():
        _search_whole(settings, tracker, analysis)


def _search_whole(settings: CpSat, tracker: Tracker[Placement], analysis: Analysis) -> None:
    """Run CP-SAT on the whole problem until the tracker's budget ends.

    First the horizon is set to the lower bound itself: the start-time domains are then so tight
    that CP-SAT often finds a schedule, or refutes the horizon and thereby raises the bound, in
    seconds. Then long horizons are searched on coarse grids: with few distinct times the shape of a
    good schedule is found many times faster, and the next finer grid starts from it.
    """
    unit, serial = common_unit(analysis.problem), max(1, analysis.relaxation.serial)
    exact = unit if serial // unit <= COARSE_HORIZON else 0
    if exact and not settings.windows:
        _close(settings, tracker, analysis)
        return
    if exact and tracker.value is not None:
        raised = _raise_by_segments(tracker, analysis, everything=False)
        _probe(settings, tracker, analysis, unit, PROBE_SHARES[0])
        # where segments help, fronts add little: that time is worth more to the search
        if (
            not _raise_by_segments(tracker, analysis)
            and not raised
            and tracker.budget.evaluations is None
            and not tracker.stop()
        ):
            before = tracker.lower_bound
            fronts = FrontSearch(analysis.evidence(before), settings.num_workers)
            _raise_by_fronts(fronts, tracker, FRONT_SHARE)
            if tracker.lower_bound > before:
                _probe(settings, tracker, analysis, unit, PROBE_SHARES[1])
        _raise_by_series(settings, tracker, analysis, _parts(tracker, analysis))
        _climb_grids(settings, tracker, analysis, _grid(tracker, analysis), 1.0)
        _try_shapes(settings, tracker, analysis, unit)
    upper = serial if tracker.value is None else tracker.value
    for horizon, share in LADDER:
        if upper // unit > 8 * horizon and not tracker.stop():
            scale = -(-upper // horizon)
            solve_on_grid(settings, tracker, analysis, scale, share)
            upper = upper if tracker.value is None else tracker.value
    scale = exact or -(-upper // COARSE_HORIZON)
    timed = math.isfinite(tracker.seconds_left) and tracker.budget.evaluations is None
    if settings.windows and timed and not tracker.stop():
        # what the whole model does not solve soon gains most from windows; the bound is pursued at
        # the end
        closed = solve_on_grid(settings, tracker, analysis, scale, FIRST_SHARE).closed
        if tracker.solution is not None and not closed and not tracker.stop():
            WindowSearch(Lns(), analysis.problem, tracker, analysis.relaxation.allowed).run(
                share=WINDOW_SHARE
            )
        if closed:
            return
    if not tracker.stop():
        closed = solve_on_grid(settings, tracker, analysis, scale, 1.0).closed
        if not closed and not tracker.stop() and math.isfinite(tracker.seconds_left):
            tracker.stop_reason = "time"  # CP-SAT stops a moment before the clock does


def _parts(tracker: Tracker[Placement], analysis: Analysis) -> list[NDArray[np.int64]]:
    """Return the parts in series of a graph whose gap is wide."""
    return (
        series_parts(analysis.relaxation, time.perf_counter() + PARTS_SECONDS)
        if _wide_open(tracker)
        else []
    )


def _raise_by_series(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    parts: list[NDArray[np.int64]],
    times: float = 1.0,
) -> None:
    """Close the parts of the graph that come wholly one after the other, each on its own.

    Parameters
    ----------
    times : how much longer than the first time.
    """
    if parts and _wide_open(tracker) and tracker.budget.evaluations is None:
        seconds = times * min(SERIES_SECONDS, SERIES_SHARE * tracker.seconds_left)
        close_parts(
            replace(settings, warm_start=False, windows=False),
            tracker,
            analysis,
            parts,
            seconds,
            search_makespan,
        )


def _close(settings: CpSat, tracker: Tracker[Placement], analysis: Analysis) -> None:
    """Close the gap from both ends while searches work beside it: each run starts from what they
    have by then.
    """
    unit = common_unit(analysis.problem)
    _raise_by_segments(tracker, analysis, everything=False)
    parts = _parts(tracker, analysis)
    grid = _grid(tracker, analysis)
    apart = len(parts) > 0 or grid > 0
    _try_tight(settings, tracker, analysis, unit, 0.5 if apart else 1.0)
    _raise_by_segments(tracker, analysis)
    if apart:
        _raise_by_series(settings, tracker, analysis, parts)
        grid = _climb_grids(settings, tracker, analysis, grid, 1.0) if _wide_open(tracker) else grid
        _try_tight(settings, tracker, analysis, unit, 0.5)
    fronts = FrontSearch(analysis.evidence(tracker.lower_bound), settings.num_workers)
    if _raise_by_fronts(fronts, tracker, FIRST_FRONT_SHARE):
        if (
            tracker.value is not None
            and tracker.value - tracker.lower_bound < CLOSE_GAP * tracker.value
        ):
            _try_tight(settings, tracker, analysis, unit)
        _raise_by_fronts(fronts, tracker, NEXT_FRONT_SHARE)
        _gain_by_fronts(fronts, tracker)
        _try_tight(settings, tracker, analysis, unit)
    _try_shapes(settings, tracker, analysis, unit)
    if apart and _wide_open(tracker, AGAIN_GAP):  # on a busy machine the first time was too short
        _raise_by_series(settings, tracker, analysis, parts, AGAIN)
        grid = _climb_grids(settings, tracker, analysis, grid, AGAIN)
    for turn, share in enumerate(CLOSING_SHARES):
        before = tracker.lower_bound
        grid = _climb_grids(settings, tracker, analysis, grid)
        if turn > 0:
            _gain_by_fronts(fronts, tracker)
        if not tracker.stop() and (turn == 0 or tracker.lower_bound > before):
            _probe(settings, tracker, analysis, unit, PROBE_SHARES[min(turn, 1)])
        if tracker.stop() or solve_on_grid(settings, tracker, analysis, unit, share).closed:
            return


def _try_tight(
    settings: CpSat, tracker: Tracker[Placement], analysis: Analysis, unit: int, times: float = 1.0
) -> None:
    """Ask for a schedule as long as the bound, by restarts; where there is none, for one of the
    next bound.

    Parameters
    ----------
    times : how much of the usual time.
    """
    end = tracker.elapsed + times * min(TIGHT_SECONDS, TIGHT_SHARE * tracker.seconds_left)
    lift(settings, tracker, analysis, unit, end)


def _grid(tracker: Tracker[Placement], analysis: Analysis) -> int:
    """Return the natural grid of a problem whose gap is wide, 0 without one that leaves most ops
    without length.
    """
    if tracker.value is None or not _wide_open(tracker):
        return 0
    unit = natural_grid(analysis.problem, tracker.value)
    return unit if unit > 0 and (analysis.relaxation.min_compute < unit).mean() > SHORT_OPS else 0


def _climb_grids(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    scale: int,
    times: float | None = None,
) -> int:
    """Solve the whole problem on a coarse grid, contention left out, then on finer ones as long as
    that succeeds.

    Where most of the work is in ops whose times are small multiples of one another, as in sharded
    graphs, the coarse problem is solved within a second, and what rounding loses is small. Each
    grid starts from the incumbent that the last one led to.

    Parameters
    ----------
    scale : ticks of the first grid's unit.
    times : how much longer than usual the first grid may take; None where it is one that was given
    up before.

    Returns
    -------
    int
        Ticks of the unit of the grid that was given up, 0 if none was.
    """
    unit, share = common_unit(analysis.problem), GRID_SHARE
    if times is not None:
        share = FIRST_GRID_SHARE
        if math.isfinite(tracker.seconds_left):
            share = min(share, times * FIRST_GRID_SECONDS / max(1e-9, tracker.seconds_left))
    while (
        scale > unit
        and not tracker.stop()
        and solve_coarse(settings, tracker, analysis, scale, share)
    ):
        scale, share = scale // FINER, GRID_SHARE
    return scale if scale > unit else 0


def _wide_open(tracker: Tracker[Placement], gap: float = SHAPE_GAP) -> bool:
    """Whether there is time, and a gap that more than rounding leaves."""
    return (
        not tracker.stop()
        and tracker.value is not None
        and tracker.value - tracker.lower_bound > gap * tracker.value
    )


def _try_shapes(
    settings: CpSat, tracker: Tracker[Placement], analysis: Analysis, unit: int
) -> None:
    """Ask for a schedule as long as the bound on a coarse grid, contention left out.

    Few distinct times and no transfers to order: which ops share a device is decided quickly, and
    often that is all there is to decide. Where not even such a schedule exists, the bound rises. (A
    tensor that need not wait for its channel lives longer where it goes, so with memory over time
    the model is not without contention.)
    """
    end = tracker.elapsed + min(SHAPE_SECONDS, SHAPE_SHARE * tracker.seconds_left)
    scale = tracker.lower_bound // SHAPE_GRID
    if scale > unit and _wide_open(tracker):
        lift(settings, tracker, analysis, scale, end, contended=analysis.problem.memory == "peak")


def _raise_by_segments(
    tracker: Tracker[Placement], analysis: Analysis, *, everything: bool = True
) -> bool:
    """Raise the bound, and the heads and tails of all that follows, by what passes between forks
    and joins; whether it rose.

    Parameters
    ----------
    everything : as for `segment_delays`.
    """
    before = tracker.lower_bound
    if tracker.budget.evaluations is None and not tracker.stop():  # it is limited by time only
        most, share = (REST_SECONDS, REST_SHARE) if everything else (SEGMENT_SECONDS, SEGMENT_SHARE)
        seconds = min(most, share * tracker.seconds_left)
        tracker.raise_bound(analysis.run_segments(seconds, everything=everything), "segments")
    return tracker.lower_bound > before


def _raise_by_fronts(fronts: FrontSearch, tracker: Tracker[Placement], share: float) -> bool:
    """Go on with fronts for a share of the time left; whether the bound rose."""

    def go_on(bound: int) -> bool:
        tracker.raise_bound(bound, "front")
        return not tracker.stop()

    least = min(FRONT_LEAST, CLOSING_FRONT_SHARE * tracker.seconds_left)
    end = time.perf_counter() + min(FRONT_SECONDS, max(least, share * tracker.seconds_left))
    found = fronts.run(end, tracker.lower_bound, tracker.value, go_on)
    if found is not None:
        tracker.raise_bound(found.bound, "front")
    return found is not None


def _gain_by_fronts(fronts: FrontSearch, tracker: Tracker[Placement]) -> None:
    """Go on with fronts as long as they gain."""
    while not tracker.stop() and _raise_by_fronts(fronts, tracker, CLOSING_FRONT_SHARE):
        pass


def _probe(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    unit: int,
    part: float,
) -> None:
    """Destructive improvement: search horizons just above the bound, in growing steps, until one is
    not decided.
    """
    seconds = min(PROBE_SECONDS, part * tracker.seconds_left)
    end, step = tracker.elapsed + seconds, 0
    while not tracker.stop() and tracker.value is not None and tracker.elapsed < end:
        bound = tracker.lower_bound
        horizon = min(bound + step, tracker.value - 1)
        share = (
            (end - tracker.elapsed) / max(1e-9, tracker.seconds_left)
            if math.isfinite(end)
            else part
        )
        solve_on_grid(settings, tracker, analysis, unit, min(1.0, share), horizon)
        if tracker.lower_bound <= horizon:
            return
        step = max(2 * step, bound // 500, 1)
