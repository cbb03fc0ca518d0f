"""The tracker every search reports to (incumbent, bound, clock, trace), and what the two sides of
one solve tell each other.

Each side, the searches and the proof that run beside each other, has a tracker of its own and a
thread of its own; whenever one asks its tracker whether to stop, the tracker meets the exchange: it
leaves a better incumbent or bound, and takes what the other side left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np

from placeopt.model.arrays import by_key
from placeopt.model.bound import plain_number
from placeopt.model.errors import SolverError
from placeopt.model.files import raised
from placeopt.model.objective import Finished, objective_of
from placeopt.model.placement import Placement
from placeopt.model.result import Budget, Result, SolutionT, TacticUse, TracePoint
from placeopt.solving.deadline import reserve


@dataclass(frozen=True)
class Progress:
    """What a solver tells while it runs."""

    seconds: float
    evaluations: int
    incumbent: int | None  # ticks
    lower_bound: int  # ticks
    note: str = ""


OnProgress = Callable[[Progress], None]


class Tracker(Generic[SolutionT]):
    """Keeps the incumbent, the bound, the clock and the trace of one run.

    `run` makes it, offers the initial solution, and hands it to the solver's search, which offers
    candidates and asks `stop` between steps. A solver of another package meets it through a
    `placeopt.solving.plugin.PluginTracker`::

        while not tracker.stop():
            ...
            tracker.count(batch)
            tracker.offer(value, placement)

    Attributes
    ----------
    value : value of the incumbent in ticks (a Fraction for a pipeline whose period per micro-batch
    is no whole number),
        None without one.
    solution : the incumbent; at the start of a search the initial solution, if there is one.
    initial : value and solution that the run was given to start from, None without one.
    reason : why the problem has no solution, "" unless that is proved.
    message : one line a person should read.
    claims : what solvers of other packages say, by solver and kind: nothing is proved by it.
    verdict : a solution that has been judged, and the final word on it.
    exchange : what another side of the same solve is told and tells, None where there is only one.
    parts : trackers of the other solvers that run on a part of this budget.
    reports : of the tactics of the search. at_work : name of the one at work.
    gained : parts of the gap, by value and by bound, that were closed here and not on another side.
    closed : whether nothing is taken any more, since the time was over before the search ended.
    """

    def __init__(
        self,
        solver: str,
        problem: Any,
        budget: Budget,
        *,
        seed: int = 0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.solver, self.problem, self.budget, self.seed = solver, problem, budget, seed
        self.started = time.perf_counter()
        self.value: int | None = None
        self.solution: SolutionT | None = None
        self.measured = False  # whether values are what the caller of the solve measures
        self.initial: tuple[int | None, SolutionT] | None = None
        self.lower_bound: int = 0
        self.bound_method = "none"
        self.evaluations = 0
        self.trace: list[TracePoint] = []
        self.stop_reason = "converged"
        self.stopped = False
        self.reason = ""
        self.message = ""
        self.claims: dict[tuple[str, str], str] = {}
        self.verdict: tuple[SolutionT, Finished] | None = None
        self.on_progress = on_progress
        self.exchange: Exchange | None = None
        self.parts: list[Tracker[Any]] = []
        self.reports: list[Callable[[], TacticUse]] = []
        self.at_work = ""
        self.gained: tuple[float, ...] = (0.0, 0.0)
        self.closed = False
        self._reserve = reserve(problem, budget.seconds)
        self._last_report = -1e9

    def __enter__(self) -> Tracker[SolutionT]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        """Let Ctrl-C end the block and keep the incumbent."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.interrupt()
            return True
        return False

    @property
    def elapsed(self) -> float:
        """Seconds since the solve began."""
        return time.perf_counter() - self.started

    @property
    def seconds_left(self) -> float:
        """Seconds left in the budget for searching, infinity without a time limit, never
        negative.
        """
        return (
            float("inf")
            if self.budget.seconds is None
            else max(0.0, self.budget.seconds - self._reserve - self.elapsed)
        )

    @property
    def tactics(self) -> tuple[TacticUse, ...]:
        """What each tactic of the search did."""
        return tuple(use for report in self.reports if (use := report()).turns)

    @property
    def in_time(self) -> bool:
        """Whether time is left and nobody else has ended the search."""
        return not self.closed and self.seconds_left > 0.0

    @property
    def evaluations_left(self) -> int:
        """Evaluations left in the budget, a huge number without a limit."""
        return (
            2**62
            if self.budget.evaluations is None
            else max(0, self.budget.evaluations - self.evaluations)
        )

    def share(self, part: float) -> Budget:
        """Return the budget of a search that may take that part of what is left."""
        seconds = None if self.budget.seconds is None else part * self.seconds_left
        limited = self.budget.evaluations is not None
        return Budget(seconds, max(1, int(part * self.evaluations_left)) if limited else None)

    def quick(self, most: float = 0.5) -> float:
        """Return the seconds for bounds before a search: a tenth of those left, or half a second if
        that is no more than half of them, at most `most`; 0, for bounds that end by their work,
        where no clock limits it or evaluations do, too: then no clock may decide anything.
        """
        if self.budget.seconds is None or self.budget.evaluations is not None:
            return 0.0
        left = self.seconds_left
        return min(most, max(0.1 * left, min(0.5, left / 2), 1e-3))

    def rng(self) -> np.random.Generator:
        """Return a generator of random numbers that depends on the seed alone."""
        return np.random.default_rng(self.seed)

    def count(self, evaluations: int = 1) -> None:
        """Add to the number of evaluations."""
        self.evaluations += evaluations
        self._report()

    def offer(self, value: Any, solution: SolutionT) -> bool:
        """Make `solution` the incumbent if it is better; return whether it was."""
        if self.closed or (self.value is not None and value >= self.value):
            return False
        before = self.value
        self.value, self.solution = plain_number(value), solution
        part = 1.0 if not before else float((before - self.value) / before)
        self.gained = self.gained[0] + part, self.gained[1]
        self._note()
        return True

    def raise_bound(self, value: Any, method: str) -> bool:
        """Record a proven lower bound if it is better; return whether it was."""
        if self.closed or value <= self.lower_bound:
            return False
        value = objective_of(self.problem).least_value(self.problem, value)
        before = self.lower_bound
        self.lower_bound, self.bound_method = plain_number(value), method
        part = float((self.lower_bound - before) / (self.value or self.lower_bound))
        self.gained = self.gained[0], self.gained[1] + part
        self._note()
        return True

    def infeasible(self, reason: str) -> None:
        """Record a proof that the problem has no solution."""
        if self.closed:
            return
        self.reason = reason
        self.stopped = True

    def claim(self, kind: str, words: str) -> None:
        """Note what the solver, one of another package, says."""
        if not self.closed:
            self.claims[self.solver, kind] = words

    def interrupt(self) -> None:
        """End the search, and its parts, as Ctrl-C does."""
        for part in list(self.parts):
            part.interrupt()
        self.stop_reason, self.stopped = "interrupted", True

    def beside(self, problem: Any, budget: Budget) -> Tracker[SolutionT]:
        """Return a tracker for the search of another problem, a part of this one, say: it ends with
        this search.
        """
        own: Tracker[SolutionT] = Tracker(self.solver, problem, budget, seed=self.seed)
        own.exchange = Follower(self)
        return own

    def copy(self, exchange: Exchange) -> Tracker[SolutionT]:
        """Return a tracker for another side of this search, which begins with what is known
        here.
        """
        own: Tracker[SolutionT] = Tracker(self.solver, self.problem, self.budget, seed=self.seed)
        own.started, own.exchange = self.started, exchange
        exchange.meet(self)
        exchange.meet(own)
        return own

    @contextlib.contextmanager
    def within(self, whole: Tracker[Any] | None) -> Iterator[None]:
        """Be a part of another search inside the block: closed and interrupted with it."""
        if whole is None:
            yield
            return
        whole.parts.append(self)
        try:
            yield
        finally:
            whole.parts.remove(self)
            whole.adopt_claims(self)
            if self.problem is whole.problem:
                whole.gained = tuple(map(sum, zip(whole.gained, self.gained, strict=True)))

    def adopt_claims(self, part: Tracker[Any]) -> None:
        """Note what a part has been told."""
        if not self.closed:
            self.claims.update(part.claims)

    def close(self) -> None:
        """Take over what parts that have not ended have found, then take nothing more from this
        search or any of them.
        """
        for part in list(self.parts):
            part.close()
            self.adopt_claims(part)
            if (
                part.value is not None
                and part.solution is not None
                and part.problem is self.problem
            ):
                self.offer(part.value, part.solution)
        self.stopped = self.closed = True

    def stop(self) -> bool:
        """Whether the search has to end now; sets `stop_reason` when it does."""
        if self.stopped:
            return True
        if self.exchange is not None:
            self.exchange.meet(self)
        reason = self._reason_to_stop()
        if reason is not None:
            self.stop_reason, self.stopped = reason, True
        return self.stopped

    def left(self) -> float:
        """Seconds left in the budget, none where the search has to end now."""
        return 0.0 if self.stop() else self.seconds_left

    def stop_with_solution(self) -> bool:
        """The same, but not before there is a solution if time is all that ran out: the shortest
        limit ends with what the quickest start gives.
        """
        return self.stop() and (self.value is not None or self.closed or self.stop_reason != "time")

    def _reason_to_stop(self) -> str | None:
        if self.value is not None:
            if self.value <= self.lower_bound:
                return "proved"
            if self.budget.target is not None and self.value <= self.budget.target:
                return "target"
        if self.evaluations_left == 0:
            return "evaluations"
        return "time" if self.seconds_left == 0.0 else None

    def result(
        self,
        *,
        status: str | None = None,
        queue: str = "",
        message: str = "",
        solution: SolutionT | None = None,
        objective: int | None = None,
        objective_name: str | None = None,
    ) -> Result[SolutionT]:
        """Build the Result of a solution and its value, or of none.

        Raises
        ------
        SolverError
            If the bound exceeds the value.
        """
        if objective is not None and objective == self.lower_bound:
            status = "optimal"
            if self.stop_reason != "interrupted":
                self.stop_reason = "proved"
        elif status is None:
            status = "unknown" if solution is None else "feasible"
            if self.stop_reason == "proved":  # by a value that it does not have
                self.stop_reason = "converged"
        return Result(
            problem=self.problem.name,
            solver=self.solver,
            solution=solution,
            value=objective,
            lower_bound=self.lower_bound,
            bound_method=self.bound_method,
            status=status,
            stop_reason=self.stop_reason,
            evaluations=self.evaluations,
            runtime=self.elapsed,
            seed=self.seed,
            queue=queue,
            message="; ".join(filter(None, [*self._claimed(), message or self.message])),
            tick_seconds=getattr(self.problem, "tick_seconds", 1e-9),
            objective_name=objective_name or str(getattr(self.problem, "objective", "")),
            problem_hash=str(getattr(self.problem, "hash", "")),
            trace=tuple(self.trace),
            tactics=self.tactics,
            given=self.problem,
        )

    def _claimed(self) -> list[str]:
        """Say in words what each solver of another package claims."""
        said = by_key((name, words) for (name, _), words in self.claims.items())
        return [
            f"solver '{name}' {', '.join(filter(None, words))}"
            for name, words in said.items()
            if any(words)
        ]

    def _note(self) -> None:
        value, bound = self.value, self.lower_bound
        for last in self.trace[-1:]:  # what a part found may be in the trace already
            value = min((x for x in (last.incumbent, value) if x is not None), default=None)
            bound = max(bound, last.lower_bound)
        self.trace.append(TracePoint(self.elapsed, self.evaluations, value, bound))
        self._report(force=True)

    def _report(self, force: bool = False) -> None:
        if self.on_progress is None:
            return
        now, interval = self.elapsed, 0.1
        if force or now - self._last_report >= interval:
            self._last_report = now
            progress = Progress(now, self.evaluations, self.value, self.lower_bound, self.at_work)
            try:
                self.on_progress(progress)
            except SolverError:  # of the whole search, which says so already
                raise
            except Exception as error:
                raise SolverError(f"on_progress raised {raised(error)}") from error


PlacementTracker = Tracker[Placement]
"""That of a search for placements."""


class Side(Protocol):
    """What the exchange asks of a tracker."""

    gained: tuple[float, ...]
    exchange: Exchange | None

    @property
    def value(self) -> Any:
        """Value of its incumbent, None without one."""

    @property
    def solution(self) -> Any:
        """Its incumbent."""

    @property
    def lower_bound(self) -> Any:
        """What is proved there."""

    @property
    def bound_method(self) -> str:
        """How that is proved."""

    def offer(self, value: Any, solution: Any) -> Any:
        """Take a solution if it is better."""

    def raise_bound(self, value: Any, method: str) -> Any:
        """Take a bound if it is better."""

    def stop(self) -> bool:
        """Whether it has to end now."""

    def interrupt(self) -> None:
        """End it as Ctrl-C does."""


class Exchange:
    """The best incumbent and the best bound of all sides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Any = None
        self._solution: Any = None
        self._bound: Any = 0
        self._method = "none"
        self._stops: list[Callable[[], object]] = []

    def meet(self, tracker: Side) -> None:
        """Leave what is better in the tracker, and give it what is better here."""
        with self._lock:
            if tracker.value is not None and (self._value is None or tracker.value < self._value):
                self._value, self._solution = tracker.value, tracker.solution
            if tracker.lower_bound > self._bound:
                self._bound, self._method = tracker.lower_bound, tracker.bound_method
            value, solution, bound, method = self._value, self._solution, self._bound, self._method
        before = tracker.gained
        if value is not None:
            tracker.offer(value, solution)
        tracker.raise_bound(bound, method)
        tracker.gained = before  # another side gained it

    @contextlib.contextmanager
    def ending(self, stop: Callable[[], object]) -> Iterator[None]:
        """Have a long call in the block stopped when the exchange ends."""
        self._stops.append(stop)
        try:
            yield
        finally:
            self._stops.remove(stop)

    def end(self, thread: threading.Thread) -> None:
        """End a side that helps, and wait a moment for its end; one that takes longer ends by
        itself, at the latest with the process.
        """
        patience = 0.3  # seconds
        until = time.perf_counter() + patience
        while thread.is_alive() and time.perf_counter() < until:
            for stop in list(self._stops):
                stop()  # again and again: the call may not have begun when it is first told to stop
            thread.join(0.01)


class Follower(Exchange):
    """The exchange of a search for a part of another search's problem: they share nothing but their
    end.
    """

    def __init__(self, whole: Side) -> None:
        super().__init__()
        self.whole = whole

    def meet(self, tracker: Side) -> None:
        """End with the whole search."""
        if self.whole.stop():
            tracker.interrupt()

    @contextlib.contextmanager
    def ending(self, stop: Callable[[], object]) -> Iterator[None]:
        """Have a long call in the block stopped when the whole search ends."""
        exchange = self.whole.exchange
        with contextlib.nullcontext() if exchange is None else exchange.ending(stop):
            yield
