"""The one way to run a solver.

`run` owns the clock (bounding counts), the tracker, the initial solution, interruption and refusal, and it values and
judges what came back, whoever wrote the solver. Nothing else calls a solver's own search.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from placeopt.model.budget import Budget
from placeopt.model.errors import InfeasiblePlacementError, InputError, Refused, SolverError
from placeopt.model.files import one_line
from placeopt.model.objective import Finished, Objective, objective_of
from placeopt.model.result import STOP_REASONS, TracePoint
from placeopt.solving.compilation import ensure, kernels_of
from placeopt.solving.deadline import LARGE, search_within
from placeopt.solving.registry import accepted_objectives
from placeopt.solving.tracker import Tracker, running_trackers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placeopt.model.bound import BoundReport
    from placeopt.model.result import Result
    from placeopt.solving.solver import OnProgress, Progress


_judged: WeakKeyDictionary[Tracker[Any], tuple[Any, Finished]] = WeakKeyDictionary()
"""Solutions that `run_part` has judged, with the verdict; here and not on the tracker, which solvers hold in their hands."""


def run(
    problem: Any,
    solver: Any,
    budget: Budget,
    *,
    seed: int = 0,
    initial: Any = None,
    on_progress: OnProgress | None = None,
    bound: BoundReport | bool = False,
    part_of: Tracker[Any] | None = None,
) -> Result[Any]:
    """Run a solver and return what it found, valued and judged here.

    Parameters
    ----------
    solver : a configured solver: ours, or any object with a `name` and the method `solve` of the Solver protocol.
    initial : a solution to start from; the result is never worse.
    bound : a bound that is known already, or True to prove the quick ones within the budget.
    part_of : the tracker of the search that runs this one on a part of its budget; it is closed with it, and meets the
        other side of the same solve where that one does.

    Raises
    ------
    Refused
        If the solver does not take the problem.
    InputError
        If `initial` is not valid, or a search that never stops by itself has no limit.
    SolverError
        If the solver raises, its solution is rejected by the judge, or a bound exceeds a value.
    """
    check_accepts(solver, problem)
    objective = objective_of(problem)
    if getattr(solver, "endless", False) and budget.unlimited:
        raise InputError(f"solver '{solver.name}' never stops by itself: give a budget of seconds or evaluations")
    ensure(kernels_of(objective, [solver], bounds=bound is True))  # kernels are compiled before the clock starts
    tracker: Tracker[Any] = Tracker(solver.name, problem, budget, seed=seed, on_progress=on_progress)
    measured = getattr(solver, "measure", None) is not None  # bounds hold for the model, not for the caller's clock
    tracker.exchange = None if part_of is None else part_of.exchange
    if initial is not None:
        _offer_initial(tracker, objective, initial, measured)
        tracker.initial = tracker.value, initial
    with tracker.within(part_of):
        with tracker:
            reason = objective.impossible(problem)
            if reason:
                tracker.infeasible(reason)
            elif bound is not False and not measured:
                report = objective.bounds(problem, 0.0, upper=_ticks(tracker.value)) if bound is True else bound
                reason = report.infeasible
                if reason:
                    tracker.infeasible(reason)
                tracker.raise_bound(report.value, report.method)
            if not reason:
                least = getattr(solver, "watched_from", LARGE)
                search_within(lambda: _search(solver, tracker, objective, initial, measured), tracker, least)
        return _conclude(tracker, objective, measured)


def run_step(problem: Any, solver: Any, budget: Budget, *, seed: int = 0) -> Result[Any]:
    """Return what `run` does, for whoever needs the answer only to go on: Ctrl-C ends that, too.

    Raises
    ------
    KeyboardInterrupt
        If the search was interrupted.
    """
    result = run(problem, solver, budget, seed=seed)
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return result


def run_part(
    tracker: Tracker[Any],
    solver: Any,
    *,
    seconds: float | None = None,
    evaluations: int | None = None,
    initial: Any = None,
    target: int | None = None,
    adopt: bool = True,
) -> Result[Any] | None:
    """Run another solver on a part of the budget of `tracker`; None where it refuses the problem.

    Its evaluations are counted, its solution is offered and its bound recorded (unless `adopt` is False), and Ctrl-C
    during it ends the whole search.

    Parameters
    ----------
    seconds, evaluations : limits of the part; None is what is left.
    """
    if seconds is None and tracker.budget.seconds is not None:
        seconds = tracker.seconds_left
    if evaluations is None and tracker.budget.evaluations is not None:
        evaluations = max(1, tracker.evaluations_left)
    part = Budget(seconds, evaluations, tracker.budget.target if target is None else target)
    before = tracker.elapsed, tracker.evaluations
    try:
        result = run(
            tracker.problem, solver, part, seed=tracker.seed, initial=initial, on_progress=_forward(tracker),
            part_of=tracker if adopt else None,
        )  # fmt: skip
    except Refused:
        return None
    if adopt:
        limited = tracker.budget.evaluations is not None
        tracker.count(min(result.evaluations, tracker.evaluations_left) if limited else result.evaluations)
        _remember(tracker, result.trace, *before)
        if result.solution is not None and result.value is not None:
            tracker.offer(result.value, result.solution)
            if tracker.solution is result.solution and tracker.value == result.value:
                _judged[tracker] = result.solution, Finished(result.value, result.queue, ())
        tracker.raise_bound(result.lower_bound, result.bound_method)
    if result.stop_reason == "interrupted":
        tracker.interrupt()
    return result


def _remember(tracker: Tracker[Any], trace: Iterable[TracePoint], seconds: float, evaluations: int) -> None:
    """Add what a part found on its way, and when, to the trace."""
    value, bound = tracker.value, tracker.lower_bound
    for point in trace:
        better = point.incumbent is not None and (value is None or point.incumbent < value)
        if better or point.lower_bound > bound:
            value, bound = (point.incumbent if better else value), max(bound, point.lower_bound)
            count = min(evaluations + point.evaluations, tracker.evaluations)
            tracker.trace.append(TracePoint(seconds + point.seconds, count, value, bound))


def best_so_far() -> Result[Any] | None:
    """Return what the run that is under way has found, judged; None if there is none, or nothing that holds.

    For whoever has to end a search that does not come back.
    """
    trackers = running_trackers()
    if not trackers:
        return None
    outer = trackers[0]
    found = [t for t in trackers if t.problem is outer.problem and t.value is not None]
    if not found:
        return None
    best = min(found, key=lambda t: t.value)  # type: ignore[arg-type,return-value]
    copy: Tracker[Any] = Tracker(outer.solver, outer.problem, outer.budget, seed=outer.seed)
    copy.started, copy.evaluations, copy.stop_reason = outer.started, outer.evaluations, "interrupted"
    copy.raise_bound(outer.lower_bound, outer.bound_method)
    copy.offer(best.value, best.solution)
    try:
        return _conclude(copy, objective_of(outer.problem), measured=False)
    except SolverError:
        return None


def check_accepts(solver: Any, problem: Any) -> None:
    """Refuse a problem whose objective the solver does not take.

    Raises
    ------
    Refused
        With the objectives that it takes.
    """
    objective = objective_of(problem)
    accepted = accepted_objectives(solver, objective.kind)
    if accepted is not None and objective.name not in accepted:
        takes = f"accepts the objective {' or '.join(accepted)}" if accepted else f"takes no {objective.kind} problem"
        raise Refused(f"solver '{solver.name}' {takes}, received '{objective.name}' of problem '{problem.name}'")


def _offer_initial(tracker: Tracker[Any], objective: Objective, initial: Any, measured: bool) -> None:
    if measured:
        violations = objective.judge(tracker.problem, initial)
        if violations:
            raise InputError(f"the initial solution is not valid: {violations[0]}")
        tracker.solution = initial  # its value is for the solver to measure
        return
    try:
        value, _ = objective.value(tracker.problem, initial)
    except InfeasiblePlacementError as error:
        raise InputError(f"the initial solution is not valid: {error}") from error
    tracker.offer(value, initial)


def _search(solver: Any, tracker: Tracker[Any], objective: Objective, initial: Any, measured: bool) -> None:
    """Call the solver's own search, or the `solve` of one that keeps to the protocol only."""
    try:
        if hasattr(solver, "search"):
            proved = tracker.lower_bound, tracker.bound_method
            solver.search(tracker.problem, tracker)
            if not _ours(solver) and tracker.lower_bound > proved[0]:
                _refuse_claim(tracker, tracker.lower_bound)
                tracker.lower_bound, tracker.bound_method = proved
        else:
            result = solver.solve(
                tracker.problem, tracker.budget, seed=tracker.seed, initial=initial, on_progress=tracker.on_progress
            )
            _adopt_foreign(solver, tracker, objective, result, measured)
    except (InputError, SolverError) as error:
        if isinstance(error, SolverError):
            error.partial = _partial(tracker, objective, measured) or error.partial
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # Ctrl-C inside compiled code
            raise KeyboardInterrupt from error
        words = one_line(f"{type(error).__name__}: {error}", 160)
        partial = _partial(tracker, objective, measured)
        raise SolverError(f"solver '{tracker.solver}' raised {words}", partial) from error


def search_beside(solver: Any, tracker: Tracker[Any]) -> None:
    """Run a search on a tracker that its caller keeps: the other side of one solve, which judges what it takes over."""
    _search(solver, tracker, objective_of(tracker.problem), None, measured=False)


def _partial(tracker: Tracker[Any], objective: Objective, measured: bool) -> Result[Any] | None:
    """Return what a search had found before it failed, judged; None if that is nothing that holds."""
    tracker.stop_reason = "interrupted"
    try:
        return None if tracker.value is None else _conclude(tracker, objective, measured)
    except SolverError:
        return None


def _adopt_foreign(solver: Any, tracker: Tracker[Any], objective: Objective, result: Any, measured: bool) -> None:
    """Take a solution from a solver that graded itself; its value is found here, its bound is a claim."""
    solution = getattr(result, "solution", None)
    tracker.count(max(0, int(getattr(result, "evaluations", 0) or 0)))
    reason = getattr(result, "stop_reason", "")
    tracker.stop_reason = reason if reason in STOP_REASONS else "converged"
    tracker.message = str(getattr(result, "message", ""))
    claimed = getattr(result, "lower_bound", 0)
    if _ours(solver):
        if result.status == "infeasible":
            tracker.infeasible(tracker.message or "proved by the solver")
        tracker.raise_bound(claimed, result.bound_method)
    elif isinstance(claimed, int | float | Fraction) and claimed > 0:
        _refuse_claim(tracker, claimed)
    if solution is None:
        return
    if measured:
        tracker.offer(result.value, solution)
        return
    finished = _finish(tracker, objective, solution, measured)
    if finished.value is None:
        raise SolverError(f"solver '{tracker.solver}' returned a solution that is not valid: {finished.violations[0]}")
    if getattr(result, "objective", finished.value) != finished.value:
        tracker.message = (
            f"it claimed {result.objective} ticks; its solution has {finished.value}. {tracker.message}".strip()
        )
    tracker.offer(finished.value, solution)


def _refuse_claim(tracker: Tracker[Any], claimed: Any) -> None:
    """Say that the bound of somebody else's solver is not taken on trust."""
    tracker.message = f"its own bound of {claimed} ticks is a claim, not proved here. {tracker.message}".strip()
    if tracker.stop_reason == "proved":
        tracker.stop_reason = "converged"


def _conclude(tracker: Tracker[Any], objective: Objective, measured: bool) -> Result[Any]:
    """Value and judge the incumbent and build the Result."""
    solution = tracker.solution
    if tracker.reason:
        if solution is not None:
            raise SolverError(f"solver '{tracker.solver}' calls the problem infeasible ({tracker.reason}), but a "
                              "solution is known")  # fmt: skip
        return tracker.result(status="infeasible", message=tracker.reason)
    if solution is None or tracker.value is None:
        tracker.solution = tracker.value = None
        why = "was found in time" if tracker.stop_reason == "time" else "found satisfies every constraint"
        return tracker.result(message=tracker.message or f"no solution {why}; none was proved impossible")
    finished = _finish(tracker, objective, solution, measured)
    start, first = tracker.initial or (None, None)
    if finished.value is not None and start is not None and finished.value > start:
        solution = first  # a solver that is wrong about its values is still never worse
        finished = _finish(tracker, objective, solution, measured)
    if finished.value is None or finished.violations:
        raise SolverError(f"solver '{tracker.solver}' found a solution that is not valid: {finished.violations[0]}")
    if finished.value < tracker.lower_bound:
        raise SolverError(
            f"solver '{tracker.solver}' on '{tracker.problem.name}': the lower bound {tracker.lower_bound} "
            f"({tracker.bound_method}) exceeds the value {finished.value} of a valid solution: one of them is wrong"
        )
    tracker.offer(finished.value, solution)
    tracker.trace = [p for p in tracker.trace if p.incumbent is None or p.incumbent >= finished.value]
    return tracker.result(
        queue=finished.queue,
        solution=solution,
        objective=finished.value,
        objective_name="measured" if measured else objective.name,
    )


def _finish(tracker: Tracker[Any], objective: Objective, solution: Any, measured: bool) -> Finished:
    """Value and judge a solution; what cannot even be looked at is the solver's fault."""
    try:
        if measured:
            return Finished(tracker.value, "", tuple(objective.judge(tracker.problem, solution)))
        known, verdict = _judged.get(tracker, (None, None))
        if verdict is not None and known is solution:
            return verdict
        return objective.finish(tracker.problem, solution)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        words = one_line(f"{type(error).__name__}: {error}", 160)
        raise SolverError(f"solver '{tracker.solver}' found something that is no solution ({words})") from error


def _ours(solver: Any) -> bool:
    return type(solver).__module__.startswith("placeopt.")


def _ticks(value: Any) -> int | None:
    return None if value is None else int(value)


def _forward(tracker: Tracker[Any]) -> OnProgress | None:
    """Return a callback that adds what `tracker` knows to the progress of a part."""
    if tracker.on_progress is None:
        return None
    tell, before = tracker.on_progress, tracker.evaluations

    def report(progress: Progress) -> None:
        known = [x for x in (progress.incumbent, tracker.value) if x is not None]
        bound = max(progress.lower_bound, tracker.lower_bound)
        tell(type(progress)(tracker.elapsed, before + progress.evaluations, min(known) if known else None, bound))

    return report


__all__ = ["best_so_far", "check_accepts", "run", "run_part"]
