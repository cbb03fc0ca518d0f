"""The one way to run a solver.

`run` owns the clock (bounding counts), the tracker, the initial solution, interruption and refusal,
and it values and judges what came back, whoever wrote the solver. Nothing else calls a solver's own
search.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from numbers import Integral, Rational
from typing import Any

from placeopt.model.bound import BoundReport
from placeopt.model.errors import (
    InfeasiblePlacementError,
    InfeasibleProblemError,
    InputError,
    Refused,
    SolverError,
    brief,
)
from placeopt.model.files import raised
from placeopt.model.objective import Finished, Objective, objective_of
from placeopt.model.result import Budget, Result, TracePoint
from placeopt.solving.compilation import ensure, kernels_of
from placeopt.solving.deadline import search_within
from placeopt.solving.plugin import PluginTracker, adopt, declared, lent, restated, settled
from placeopt.solving.registry import accepted_objectives, is_ours
from placeopt.solving.tracker import OnProgress, Progress, Tracker

_running: list[Tracker[Any]] = []
"""Trackers of the runs that are under way, outermost first."""


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

    A solver of another package is not believed: see `placeopt.solving.plugin`.

    Parameters
    ----------
    solver : a configured solver: ours, or any object with a `name` and the method `solve` of the
        Solver protocol.
    initial : a solution to start from; the result is never worse.
    bound : a bound that is known already, or True to prove the quick ones within the budget.
    part_of : the tracker of the search that runs this one on a part of its budget (`run_part`); it
        is closed with it, and meets the other side of the same solve where that one does.

    Raises
    ------
    Refused
        If the solver does not take the problem.
    InputError
        If `initial` or `seed` is not valid, `solver` is a class, or a search that never stops by
        itself has no limit.
    SolverError
        If the solver raises, its solution is rejected by the judge, or a bound exceeds a value.
    """
    if isinstance(solver, type):
        raise InputError(f"expected a solver, received the class {solver.__qualname__}; call it")
    if not _searches(solver):
        raise InputError(
            "expected the name of a solver, or an object with a method solve, received "
            f"{type(solver).__name__}"
        )
    if on_progress is not None and not callable(on_progress):
        raise InputError(f"on_progress: expected a function, received {on_progress!r:.40}")
    ours = is_ours(solver)
    if ours:
        solver = settled(solver)
    if not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed: expected a whole number >= 0, received {seed!r:.40}")
    seed = int(seed)
    check_accepts(solver, problem)
    objective, known = objective_of(problem), declared(solver)
    if known.endless and budget.unlimited:
        raise InputError(
            f"solver '{known.name}' never stops by itself: give a budget of seconds or evaluations"
        )
    ensure(
        kernels_of(objective, [known], bounds=bound is True)
    )  # kernels are compiled before the clock starts
    tracker: Tracker[Any] = Tracker(known.name, problem, budget, seed=seed, on_progress=on_progress)
    tracker.measured = _measures(solver)
    tracker.exchange = None if part_of is None else part_of.exchange
    if initial is not None:
        _offer_initial(tracker, objective, initial)
        tracker.initial = tracker.value, initial
    with tracker.within(part_of):
        with _under_way(tracker), _put_back(foreign=not ours), tracker:
            if bound is True and ours and solver.proves and budget.evaluations is None:
                bound = False  # an answer comes first where time is the limit
            if _may_have_solutions(tracker, objective, bound):
                tracker.gained = (0.0, 0.0)  # what it begins with is nobody's gain
                search_within(
                    lambda: _search(solver, tracker, objective, initial),
                    tracker,
                    known.watched_from,
                    foreign=not ours,
                )
        if not ours:
            tracker.close()  # what it has kept of it is of no use any more
        return _conclude(tracker, objective)


def _searches(solver: Any) -> bool:
    """Whether an object has a method that searches."""
    try:
        return any(callable(getattr(solver, way, None)) for way in ("search", "solve"))
    except Exception as error:
        raise SolverError(
            f"solver class '{type(solver).__qualname__}': its search cannot be read "
            f"({raised(error)})"
        ) from error


def _may_have_solutions(
    tracker: Tracker[Any], objective: Objective, bound: BoundReport | bool
) -> bool:
    """Whether nothing proves that there is no solution; the bound is known afterwards."""
    reason = objective.impossible(tracker.problem)
    # bounds hold for the model, not for the caller's clock
    if not reason and bound is not False and not tracker.measured:
        if bound is True:
            upper = None if tracker.value is None else int(tracker.value)
            bound = objective.quick_bounds(tracker.problem, tracker.quick(), upper)
        reason = bound.infeasible
        tracker.raise_bound(bound.value, bound.method)
    if reason:
        tracker.infeasible(reason)
    return not reason


@contextmanager
def _under_way(tracker: Tracker[Any]) -> Iterator[None]:
    _running.append(tracker)
    try:
        yield
    finally:
        _running.remove(tracker)


@contextmanager
def _put_back(*, foreign: bool) -> Iterator[None]:
    """Put back what the whole process shares and somebody else's search may have changed; not for
    searches of other threads, beside which anybody may have changed it.
    """
    if not foreign or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit, streams, folder = sys.getrecursionlimit(), (sys.stdout, sys.stderr), ""
    path, environment, mask = list(sys.path), dict(os.environ), os.umask(0o077)
    os.umask(mask)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with suppress(OSError):  # a folder that is no more
        folder = os.getcwd()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        sys.setrecursionlimit(limit)
        sys.stdout, sys.stderr = streams
        sys.path[:] = path
        os.umask(mask)
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            if handler is not None:  # else it was not set from Python
                signal.signal(number, handler)
        with suppress(OSError):
            os.chdir(folder)


def _measures(solver: Any) -> bool:
    """Whether the values are what the caller of one of our solvers measures."""
    return is_ours(solver) and getattr(solver, "measure", None) is not None


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
    tracker: Tracker[Any] | PluginTracker[Any],
    solver: Any,
    *,
    seconds: float | None = None,
    evaluations: int | None = None,
    initial: Any = None,
    target: int | None = None,
    adopt: bool = True,
) -> Result[Any] | None:
    """Run another solver on a part of the budget of `tracker`; None where it refuses the problem.

    Its evaluations are counted, its solution is offered and its bound recorded (unless `adopt` is
    False), and Ctrl-C during it ends the whole search. What a solver of ours proves counts where a
    plug-in runs it, too: on the problem that was given, whatever the plug-in has made of its own
    copy.

    Parameters
    ----------
    seconds, evaluations : limits of the part; None is what is left.

    Raises
    ------
    InputError
        If values that a caller measures would be adopted by a solve that measures none.
    """
    whole = PluginTracker.whole_of(tracker)
    if adopt and _measures(solver) and not whole.measured:
        raise InputError(
            f"solver '{solver.name}' measures its values, which are none of the problem: run it "
            "with adopt=False"
        )
    if whole is not tracker:
        initial = restated(initial, whole.problem, objective_of(whole.problem))
    if seconds is None and whole.budget.seconds is not None:
        seconds = whole.seconds_left
    if evaluations is None and whole.budget.evaluations is not None:
        evaluations = max(1, whole.evaluations_left)
    part = Budget(seconds, evaluations, whole.budget.target if target is None else target)
    before = whole.elapsed, whole.evaluations
    try:
        result = run(
            whole.problem,
            solver,
            part,
            seed=whole.seed,
            initial=initial,
            on_progress=_forward(whole),
            part_of=whole if adopt else None,
        )
    except Refused:
        return None
    if adopt:
        _adopt(whole, result, *before)
    if result.stop_reason == "interrupted":
        whole.interrupt()
    return result if whole is tracker else lent(result)


def _adopt(tracker: Tracker[Any], result: Result[Any], seconds: float, evaluations: int) -> None:
    """Take over what a part found that began after so many seconds and evaluations."""
    limited = tracker.budget.evaluations is not None
    tracker.count(
        min(result.evaluations, tracker.evaluations_left) if limited else result.evaluations
    )
    _remember(tracker, result.trace, seconds, evaluations)
    gained = tracker.gained  # what the part found itself is counted already
    if result.solution is not None and result.value is not None:
        tracker.offer(result.value, result.solution)
        if tracker.solution is result.solution and tracker.value == result.value:
            tracker.verdict = result.solution, Finished(result.value, result.queue, ())
    tracker.raise_bound(result.lower_bound, result.bound_method)
    tracker.gained = gained


def _remember(
    tracker: Tracker[Any], trace: Iterable[TracePoint], seconds: float, evaluations: int
) -> None:
    """Add what a part found on its way, and when, to the trace."""
    value, bound = tracker.value, tracker.lower_bound
    for point in trace:
        better = point.incumbent is not None and (value is None or point.incumbent < value)
        if better or point.lower_bound > bound:
            value, bound = (point.incumbent if better else value), max(bound, point.lower_bound)
            count = min(evaluations + point.evaluations, tracker.evaluations)
            tracker.trace.append(TracePoint(seconds + point.seconds, count, value, bound))


def best_so_far() -> Result[Any] | None:
    """Return what the run that is under way has found, judged; None if there is none, or nothing
    that holds.

    For whoever has to end a search that does not come back. The problem and the solution in it are
    copies, since the search may ask, too.
    """
    trackers = list(_running)
    if not trackers:
        return None
    outer = trackers[0]
    found = [t for t in trackers if t.problem is outer.problem and t.value is not None]
    if not found:
        return None
    best = min(found, key=lambda t: t.value)  # type: ignore[arg-type,return-value]
    copy: Tracker[Any] = Tracker(outer.solver, outer.problem, outer.budget, seed=outer.seed)
    copy.started, copy.evaluations = outer.started, outer.evaluations
    copy.stop_reason = "interrupted"
    copy.raise_bound(outer.lower_bound, outer.bound_method)
    copy.offer(best.value, best.solution)
    copy.verdict = best.verdict
    for tracker in trackers:
        copy.adopt_claims(tracker)
    try:
        result = _conclude(copy, objective_of(outer.problem))
        return lent(result)  # type: ignore[no-any-return]
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
        takes = (
            f"accepts the objective {' or '.join(accepted)}"
            if accepted
            else f"takes no {objective.kind} problem"
        )
        raise Refused(
            f"solver '{solver.name}' {takes}, received '{objective.name}' of problem "
            f"'{problem.name}'"
        )


def _offer_initial(tracker: Tracker[Any], objective: Objective, initial: Any) -> None:
    try:
        if not tracker.measured:
            tracker.offer(objective.value(tracker.problem, initial)[0], initial)
            return
        violations = objective.judge(tracker.problem, initial)
    except (InfeasiblePlacementError, AttributeError, TypeError) as error:
        raise InputError(f"the initial solution is not valid: {error}") from error
    if violations:
        raise InputError(f"the initial solution is not valid: {violations[0]}")
    tracker.solution = initial  # its value is for the solver to measure


def _search(solver: Any, tracker: Tracker[Any], objective: Objective, initial: Any) -> None:
    """Call the search of one of our solvers, or whatever a solver of another package has, which
    meets a face only.

    The function is that of the class: what somebody has put on the instance is not ours.
    """
    ours = is_ours(solver)
    try:
        if ours:
            type(solver).search(solver, tracker.problem, tracker)
        else:
            _search_outside(solver, PluginTracker(tracker, objective), initial)
    except (KeyboardInterrupt, Refused):
        raise
    except SolverError as error:
        partial = _partial(tracker, objective)
        if not ours:
            raise SolverError(brief(str(error)), partial) from error
        error.partial = partial or _partial_of(error, tracker.problem)
        raise
    except BaseException as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        if ours and (
            isinstance(error, InputError) or not isinstance(error, Exception | SystemExit)
        ):
            raise
        partial = _partial(tracker, objective)
        words = f"solver '{tracker.solver}' raised {raised(error)}"
        raise SolverError(words, partial) from error


def _is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C inside compiled code is what has become this error."""
    return isinstance(error.__cause__ or error.__context__, KeyboardInterrupt)


def _partial_of(error: SolverError, problem: Any) -> Result[Any] | None:
    """Return what an error says was found before it, if it is of this problem."""
    known = error.partial
    return known if known is not None and known.given is problem else None


def _search_outside(solver: Any, face: PluginTracker[Any], initial: Any) -> None:
    """Call the `search` of a solver of another package, or the `solve` of one that keeps to the
    protocol only; that there is no solution is a claim where it is raised, too.
    """
    try:
        if callable(getattr(solver, "search", None)):
            returned = solver.search(face.problem, face)
            if face.value is None and not isinstance(returned, bool | None):
                raise SolverError(
                    f"solver '{face.solver}': its search returned a {type(returned).__name__}, "
                    "which nobody takes; hand solutions over by tracker.offer(solution)"
                )
        else:
            found = solver.solve(
                face.problem,
                _left(face),
                seed=face.seed,
                initial=lent(initial),
                on_progress=lambda progress: face.count(0),
            )
            adopt(face, found)
    except InfeasibleProblemError as error:
        face.infeasible(str(error))


def _left(face: PluginTracker[Any]) -> Budget:
    """Return what is left of the budget: who returns a solution keeps to no clock but its own."""
    if face.budget.seconds is None:
        return face.budget
    return replace(face.budget, seconds=face.seconds_left)


def _partial(tracker: Tracker[Any], objective: Objective) -> Result[Any] | None:
    """Return what a search had found before it failed, judged; None if that is nothing that
    holds.
    """
    tracker.stop_reason = "interrupted"
    try:
        return None if tracker.value is None else _conclude(tracker, objective)
    except SolverError:
        return None


def _conclude(tracker: Tracker[Any], objective: Objective) -> Result[Any]:
    """Value and judge the incumbent and build the Result."""
    solution = tracker.solution
    if tracker.reason:
        if solution is not None:
            raise SolverError(
                f"solver '{tracker.solver}' calls the problem infeasible ({tracker.reason}), but a "
                "solution is known"
            )
        return tracker.result(status="infeasible", message=tracker.reason)
    if solution is None or tracker.value is None:
        return _without_solution(tracker)
    finished = _finish(tracker, objective, solution)
    start, first = tracker.initial or (None, None)
    if start is not None and finished.value is not None and finished.value > start:
        solution = first  # a solver that is wrong about its values is still never worse
        finished = _finish(tracker, objective, solution)
    value = _checked(tracker, finished)
    if value > tracker.value and not tracker.measured:
        wrong = f"values of many placements are wrong: {tracker.value} ticks for one of {value}"
        tracker.message = "; ".join(filter(None, [tracker.message, wrong]))
    tracker.offer(value, solution)
    tracker.trace = [p for p in tracker.trace if p.incumbent is None or p.incumbent >= value]
    return tracker.result(
        queue=finished.queue,
        solution=solution,
        objective=value,
        objective_name="measured" if tracker.measured else objective.name,
    )


def _without_solution(tracker: Tracker[Any]) -> Result[Any]:
    tracker.solution = tracker.value = None
    why = (
        "was found in time" if tracker.stop_reason == "time" else "found satisfies every constraint"
    )
    return tracker.result(
        message=tracker.message or f"no solution {why}; none was proved impossible"
    )


def _checked(tracker: Tracker[Any], finished: Finished) -> Any:
    """Return the value of a solution that is valid and not below the bound."""
    if finished.value is None or finished.violations:
        raise SolverError(
            f"solver '{tracker.solver}' found a solution that is not valid: "
            f"{finished.violations[0]}"
        )
    if not isinstance(finished.value, Rational) or finished.value < 0:
        raise SolverError(
            f"the objective of '{tracker.problem.name}' gives a value of {finished.value!r:.40}: "
            "expected whole ticks, 0 or more"
        )
    if finished.value < tracker.lower_bound:
        raise SolverError(
            f"solver '{tracker.solver}' on '{tracker.problem.name}': the lower bound "
            f"{tracker.lower_bound} ({tracker.bound_method}) exceeds the value {finished.value} of "
            "a valid solution: one of them is wrong"
        )
    return finished.value


def _finish(tracker: Tracker[Any], objective: Objective, solution: Any) -> Finished:
    """Value and judge a solution; what cannot even be looked at is the solver's fault."""
    try:
        if tracker.measured:
            return Finished(tracker.value, "", tuple(objective.judge(tracker.problem, solution)))
        known, verdict = tracker.verdict or (None, None)
        if verdict is not None and known is solution:
            return verdict
        return objective.finish(tracker.problem, solution)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise SolverError(
            f"solver '{tracker.solver}' found something that is no solution ({raised(error)})"
        ) from error


def _forward(tracker: Tracker[Any]) -> OnProgress | None:
    """Return a callback that adds what `tracker` knows to the progress of a part."""
    if tracker.on_progress is None:
        return None
    tell, before = tracker.on_progress, tracker.evaluations

    def report(progress: Progress) -> None:
        known = [x for x in (progress.incumbent, tracker.value) if x is not None]
        bound = max(progress.lower_bound, tracker.lower_bound)
        evaluations = before + progress.evaluations
        tell(Progress(tracker.elapsed, evaluations, min(known, default=None), bound))

    return report


__all__ = ["best_so_far", "check_accepts", "run", "run_part"]
