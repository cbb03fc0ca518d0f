"""Runs of the CP-SAT model of the makespan on one grid of time: to the end, or by restarts on the
horizon of the bound.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from ortools.sat.python import cp_model

from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.time_grid import common_unit
from placeopt.model.cp_sat import solve_interruptibly
from placeopt.solvers.exact.cp_sat import configured, evaluations_of
from placeopt.solvers.exact.makespan_model import MakespanModel
from placeopt.solvers.exact.makespan_solution import add_hint, decode
from placeopt.solvers.exact.tight_horizon import TightHorizon
from placeopt.solvers.search.cp_sat_start import offer

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.model.placement import Placement
    from placeopt.solvers.exact.cp_sat import CpSat
    from placeopt.solving.tracker import Tracker


class GridRun(NamedTuple):
    """How a run on one grid ended.

    Attributes
    ----------
    finished : whether no shorter schedule exists on the grid than what was found, or than the
    bound.
    closed : whether CP-SAT has nothing left to do on the exact grid, or the problem has no
    solution.
    """

    finished: bool
    closed: bool


def lift(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    scale: int,
    end: float,
    *,
    contended: bool = True,
) -> bool:
    """Ask for a schedule as long as the bound, by restarts; where a grid has none, for one of the
    next bound until it has.

    Parameters
    ----------
    end : of the asking, in seconds of the tracker.

    Returns
    -------
    bool
        Whether there is one on the grid of `scale` ticks.
    """
    while tracker.value is not None and not tracker.stop() and tracker.elapsed < end:
        horizon = tracker.lower_bound
        built = MakespanModel(analysis, horizon, horizon, scale, contended=contended)
        outcome = _restarts(settings, tracker, built, end)
        if outcome != cp_model.INFEASIBLE:
            return outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        record_infeasible(tracker, horizon, scale)
    return False


def _restarts(
    settings: CpSat, tracker: Tracker[Placement], built: MakespanModel, end: float
) -> int:
    """Run a model by restarts until `end` (seconds of the tracker), offer what it finds and return
    CP-SAT's status.
    """
    tight = TightHorizon(built, tracker.seed)
    tight.run(settings.num_workers, lambda: tracker.elapsed > end or tracker.stop())
    tracker.count(max(1, tight.conflicts))
    if tight.placement is not None:
        offer(built.problem, tracker, tight.placement)
    return int(tight.outcome)


def solve_on_grid(
    settings: CpSat,
    tracker: Tracker[Placement],
    analysis: Analysis,
    scale: int,
    share: float,
    horizon: int | None = None,
    *,
    from_below: bool = False,
) -> GridRun:
    """Solve with one unit of model time per `scale` ticks, using at most `share` of the time left.

    Parameters
    ----------
    horizon : ticks; excludes longer schedules, by default those that are longer than the incumbent.
    from_below : branch on the makespan first, on its lower half: every refutation raises the bound.
        By itself CP-SAT does so on one of six workers or more; with two its one complete search
        looks for short schedules, and its bound hardly moves where devices differ.
    """
    exact = scale == common_unit(analysis.problem)
    upper = horizon
    if upper is None:
        upper = max(1, analysis.relaxation.serial) if tracker.value is None else tracker.value
    model = MakespanModel(analysis, tracker.lower_bound, upper, scale)
    if horizon is None:
        _hint_incumbent(model, tracker)
    solver = configured(settings, tracker, share)
    if from_below and settings.num_workers > 1:
        solver.parameters.extra_subsolvers.append("objective_lb_search")
    elif from_below:
        solver.parameters.use_objective_lb_search = True
    target = tracker.lower_bound // scale

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        """Re-evaluate every solution and stop when the incumbent meets the bound or the target."""

        met = False

        def on_solution_callback(self) -> None:
            offer(analysis.problem, tracker, decode(model, self.value))
            self.met = not exact and round(self.objective_value) <= target
            if tracker.stop() or self.met:
                self.stop_search()

    def on_bound(value: float) -> None:
        # The callback reports a float; only what it proves for sure is kept until the exact value
        # is known.
        safe = math.floor(value * (1 - 1e-9)) - 1
        tracker.raise_bound(safe * scale, "cp-sat")
        if tracker.stop():
            solver.stop_search()

    solver.best_bound_callback = on_bound
    with nullcontext() if tracker.exchange is None else tracker.exchange.ending(solver.stop_search):
        outcome = solve_interruptibly(solver, model.model, watch := Watch())
    tracker.count(evaluations_of(solver, tracker))
    if outcome == cp_model.INFEASIBLE:
        record_infeasible(tracker, upper, scale)
        return GridRun(finished=True, closed=tracker.solution is None)
    if outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        tracker.raise_bound(
            int(solver.response_proto.inner_objective_lower_bound) * scale, "cp-sat"
        )
    proved = bool(outcome == cp_model.OPTIMAL and exact)
    if proved and tracker.value is not None and tracker.value > tracker.lower_bound:
        tracker.message = (
            "the optimal schedule orders transfers in a way that no priorities express"
        )
    return GridRun(finished=watch.met or outcome == cp_model.OPTIMAL, closed=proved)


def _hint_incumbent(model: MakespanModel, tracker: Tracker[Placement]) -> None:
    if tracker.solution is not None:
        _, queue = best_queue(model.problem, tracker.solution)
        add_hint(model, evaluate(model.problem, tracker.solution, queue).schedule)


def record_infeasible(tracker: Tracker[Placement], upper: int, scale: int) -> None:
    """No schedule of at most `upper` ticks: the problem has none at all, or the bound is above
    that.
    """
    if tracker.solution is None:
        tracker.infeasible(
            "no placement meets compatibility, colocation and the memory capacities together"
        )
    else:  # even the rounded-down problem has no schedule of upper // scale units
        tracker.raise_bound((upper // scale + 1) * scale, "cp-sat")
