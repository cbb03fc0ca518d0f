"""`cp-sat`: an exact makespan by constraint programming, anytime, with a proven lower bound.

The order of work makes every time limit useful: heuristics give an incumbent in milliseconds,
combinatorial bounds may already prove it, and CP-SAT then improves both from a complete hint, within
start-time domains that the communication-aware heads and tails cut down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.solving.registry import require_objective
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.model.budget import Budget
    from placeopt.model.placement import Placement
    from placeopt.model.problem import PlacementProblem
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress

COARSE_HORIZON = 2**40
"""Horizons (in units) beyond this are solved on a coarser grid only."""

PROBE_SECONDS, PROBE_SHARES = 20.0, (0.06, 0.2)
"""Time for horizons at the lower bound, before and after the bound by fronts: seconds at most, and shares of the time left."""

FRONT_SECONDS, FRONT_SHARE = 20.0, 0.2
"""Time for the bound by fronts."""

FIRST_SHARE, WINDOW_SHARE = 0.3, 0.6
"""Shares of the time left for a first run of the whole model, and then for windows (`lns`)."""

LADDER = ((2**12, 0.15), (2**16, 0.25))
"""Coarse grids to search first: (units in the horizon, share of the time left)."""


@dataclass(frozen=True)
class CpSat:
    """Exact placement by CP-SAT; also period and latency, which have models of their own.

    Attributes
    ----------
    num_workers : threads; 1 makes a solve with an evaluation budget reproducible to the last step.
    log : print CP-SAT's own log.
    warm_start : start from the best fast heuristic (otherwise only from `initial`).
    """

    num_workers: int = 2
    log: bool = False
    warm_start: bool = True

    name: ClassVar[str] = "cp-sat"

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise InputError(f"cp-sat: num_workers must be at least 1, received {self.num_workers}")

    def solve(
        self,
        problem: PlacementProblem,
        budget: Budget,
        *,
        seed: int,
        initial: Placement | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[Placement]:
        """Search for the best placement and prove it; an evaluation is a conflict of the CP-SAT search."""
        if problem.objective != "makespan":
            require_objective(self.name, problem, ("makespan", "period", "latency"))
            search_part: Callable[..., None]
            if problem.objective == "period":
                from placeopt.solvers.exact.period_cp_sat import search_period as search_part
            else:
                from placeopt.solvers.exact.latency_cp_sat import search_latency as search_part
            tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
            with tracker:
                if initial is not None:
                    tracker.offer(objective_of(problem).value(problem, initial)[0], initial)
                search_part(self, problem, tracker)
            return tracker.result(status="infeasible" if tracker.reason else None, message=tracker.reason)
        return self._solve_makespan(problem, budget, seed, initial, on_progress)

    def _solve_makespan(
        self,
        problem: PlacementProblem,
        budget: Budget,
        seed: int,
        initial: Placement | None,
        on_progress: OnProgress | None,
    ) -> Result[Placement]:
        from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
        from placeopt.makespan.bounds.feasibility import infeasible_reason
        from placeopt.makespan.evaluate import finish
        from placeopt.solvers.exact.warm_start import offer_initial, warm_start

        tracker: Tracker[Placement] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        reason = infeasible_reason(problem)
        if reason:
            tracker.stop_reason = "proved"
            return tracker.result(status="infeasible", message=reason)
        message, status = "", None
        with tracker:
            if self.warm_start:
                warm_start(problem, tracker, seed=seed, initial=initial)
            elif initial is not None:
                offer_initial(problem, tracker, initial)
            analysis = Analysis(problem, seconds=min(10.0, tracker.seconds_left / 4))
            for name in COMBINATORIAL:
                tracker.raise_bound(analysis.run(name), name)
                if tracker.stop():
                    break
            if not tracker.stop():
                status, message = search(self, problem, tracker, analysis)
        if tracker.solution is None:
            return tracker.result(status=status, message=message)
        return finish(tracker, message=message)


def search(
    settings: CpSat, problem: PlacementProblem, tracker: Tracker[Placement], analysis: Analysis
) -> tuple[str | None, str]:
    """Run CP-SAT on the whole problem until the tracker's budget ends; return (status, message).

    First the horizon is set to the lower bound itself: the start-time domains are then so tight that
    CP-SAT often finds a schedule, or refutes the horizon and thereby raises the bound, in seconds. Then
    long horizons are searched on coarse grids: with few distinct times the shape of a good schedule is
    found many times faster, and the next finer grid starts from it.
    """
    status, message = None, ""
    unit = common_unit(problem)
    exact = unit if serial_makespan(problem) // unit <= COARSE_HORIZON else 0
    if exact and tracker.value is not None:
        for turn, share in enumerate(PROBE_SHARES):
            before = tracker.lower_bound
            if turn == 1 and tracker.budget.evaluations is None and not tracker.stop():
                _raise_by_fronts(settings, tracker, analysis)
            if turn == 0 or tracker.lower_bound > before:
                _probe(settings, problem, tracker, analysis, unit, share)
    upper = serial_makespan(problem) if tracker.value is None else tracker.value
    for horizon, share in LADDER:
        if upper // unit > 8 * horizon and not tracker.stop():
            scale = -(-upper // horizon)
            status, message = _solve_on_grid(settings, problem, tracker, analysis, scale, share)
            upper = upper if tracker.value is None else tracker.value
            if status == "infeasible":
                return status, message
    scale = exact or -(-upper // COARSE_HORIZON)
    if math.isfinite(tracker.seconds_left) and tracker.budget.evaluations is None and not tracker.stop():
        # what the whole model does not solve soon gains most from windows; the bound is pursued at the end
        status, message = _solve_on_grid(settings, problem, tracker, analysis, scale, FIRST_SHARE)
        if tracker.solution is not None and status is None and not message and not tracker.stop():
            from placeopt.solvers.search.lns import Lns, Search

            Search(Lns(), problem, tracker, analysis).run(share=WINDOW_SHARE)
    if status is None and not message and not tracker.stop():
        status, message = _solve_on_grid(settings, problem, tracker, analysis, scale, 1.0)
        if not tracker.stop():
            tracker.stopped = True
            if math.isfinite(tracker.seconds_left) and not message:
                tracker.stop_reason = "time"  # CP-SAT stops a moment before the clock does
    return status, message


def _raise_by_fronts(settings: CpSat, tracker: Tracker[Placement], analysis: Analysis) -> None:
    from placeopt.makespan.bounds.front import front_bound

    seconds = min(FRONT_SECONDS, FRONT_SHARE * tracker.seconds_left)
    value = front_bound(
        analysis.relaxation, analysis.heads, analysis.load.weights, tracker.lower_bound, seconds, tracker.value,
        settings.num_workers,
    )  # fmt: skip
    tracker.raise_bound(value, "front")


def _probe(
    settings: CpSat,
    problem: PlacementProblem,
    tracker: Tracker[Placement],
    analysis: Analysis,
    unit: int,
    part: float,
) -> None:
    """Destructive improvement: search horizons just above the bound, in growing steps, until one is not decided."""
    seconds = min(PROBE_SECONDS, part * tracker.seconds_left)
    end, step = tracker.elapsed + seconds, 0
    while not tracker.stop() and tracker.value is not None and tracker.elapsed < end:
        bound = tracker.lower_bound
        horizon = min(bound + step, tracker.value - 1)
        share = (
            (end - tracker.elapsed) / max(1e-9, tracker.seconds_left) if math.isfinite(end) else part
        )
        _solve_on_grid(settings, problem, tracker, analysis, unit, min(1.0, share), horizon)
        if tracker.lower_bound <= horizon:
            return
        step = max(2 * step, bound // 500, 1)


def _solve_on_grid(
    settings: CpSat,
    problem: PlacementProblem,
    tracker: Tracker[Placement],
    analysis: Analysis,
    scale: int,
    share: float,
    horizon: int | None = None,
) -> tuple[str | None, str]:
    """Solve with one unit of model time per `scale` ticks, using at most `share` of the time left.

    `horizon` (ticks) excludes longer schedules; by default those that are longer than the incumbent.
    """
    from ortools.sat.python import cp_model

    from placeopt.makespan.evaluate import best_queue, evaluate
    from placeopt.solvers.exact.interrupt import solve_interruptibly
    from placeopt.solvers.exact.makespan_model import MakespanModel
    from placeopt.solvers.exact.warm_start import offer

    exact = scale == common_unit(problem)
    upper = horizon
    if upper is None:
        upper = serial_makespan(problem) if tracker.value is None else tracker.value
    model = MakespanModel(analysis, tracker.lower_bound, upper, scale)
    if tracker.solution is not None and horizon is None:
        _, queue = best_queue(problem, tracker.solution)
        model.hint(evaluate(problem, tracker.solution, queue).schedule)
    solver = cp_model.CpSolver()
    configure(solver, settings, tracker, share)
    target = tracker.lower_bound // scale
    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        """Re-evaluate every solution and stop when the incumbent meets the bound or the target."""

        def on_solution_callback(self) -> None:
            offer(problem, tracker, model.decode(self.value))
            if tracker.stop() or (not exact and round(self.objective_value) <= target):
                self.stop_search()

    def on_bound(value: float) -> None:
        # The callback reports a float; only what it proves for sure is kept until the exact value is known.
        safe = math.floor(value * (1 - 1e-9)) - 1
        tracker.raise_bound(safe * scale, "cp-sat")
        if tracker.stop():
            solver.stop_search()

    solver.best_bound_callback = on_bound
    outcome = solve_interruptibly(solver, model.model, Watch())
    tracker.count(int(solver.num_conflicts))
    if outcome == cp_model.INFEASIBLE:
        return _explain_infeasible(tracker, upper, scale)
    if outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        tracker.raise_bound(int(solver.response_proto.inner_objective_lower_bound) * scale, "cp-sat")
    message = ""
    if outcome == cp_model.OPTIMAL and exact and tracker.value is not None and tracker.value > tracker.lower_bound:
        message = "the optimal schedule orders transfers in a way that no priorities express"
    return None, message


def _explain_infeasible(tracker: Tracker[Placement], upper: int, scale: int) -> tuple[str | None, str]:
    """No schedule within `upper`: either the problem has none, or the incumbent is optimal."""
    if tracker.solution is None:
        tracker.stop_reason, tracker.stopped = "proved", True
        return "infeasible", "no placement meets compatibility, colocation and the memory capacities together"
    bound = (
        upper // scale + 1
    ) * scale  # even the rounded-down problem has no schedule of upper // scale units
    tracker.raise_bound(min(bound, tracker.value) if tracker.value is not None else bound, "cp-sat")
    return None, ""


def configure(solver: Any, settings: CpSat, tracker: Tracker[Any], share: float = 1.0) -> None:
    """Set limits, workers and seed of a CP-SAT solver from `share` of what is left of the tracker's budget."""
    parameters = solver.parameters
    parameters.num_workers = settings.num_workers
    parameters.random_seed = tracker.seed % 2**31
    parameters.log_search_progress = settings.log
    parameters.symmetry_level = 2
    if math.isfinite(tracker.seconds_left):
        parameters.max_time_in_seconds = max(0.01, share * tracker.seconds_left)
    if tracker.budget.evaluations is not None:
        parameters.max_number_of_conflicts = max(1, int(share * tracker.evaluations_left))
        parameters.interleave_search = settings.num_workers > 1  # the same answer whatever the threads


def serial_makespan(problem: PlacementProblem) -> int:
    """Return a horizon that some optimal schedule meets: all ops and transfers one after the other."""
    copies = np.minimum(np.diff(problem.consumer_ptr), max(0, problem.num_devices - 1))
    sent = problem.transfer.max(axis=1) * copies if problem.num_tensors else np.zeros(0, dtype=np.int64)
    return max(1, int(problem.compute.max(axis=1).sum() + sent.sum()))


def common_unit(problem: PlacementProblem) -> int:
    """Return the greatest common divisor of all times: a coarser grid without any rounding."""
    times = np.concatenate([problem.compute[problem.compute > 0], problem.transfer[problem.transfer > 0]])
    return int(np.gcd.reduce(times)) if times.size else 1
