"""The tracker every search reports to: incumbent, bound, clock, trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic

from placeopt.model.result import Result, SolutionT, TracePoint
from placeopt.solving.solver import OnProgress, Progress

if TYPE_CHECKING:
    from types import TracebackType

    from placeopt.model.budget import Budget


class Tracker(Generic[SolutionT]):
    """Keeps the incumbent, the bound, the clock and the trace of one `solve`.

    A search offers candidates and asks `stop` between steps::

        tracker = Tracker("annealing", problem, budget, seed=seed, on_progress=on_progress)
        with tracker:                       # Ctrl-C ends the block, keeps the incumbent
            while not tracker.stop():
                ...
                tracker.count(batch)
                tracker.offer(value, placement)
        return finish(tracker)              # re-evaluates and builds the Result

    Attributes
    ----------
    value : value of the incumbent in ticks, None without one.
    solution : the incumbent.
    """

    def __init__(
        self,
        solver: str,
        problem: Any,
        budget: Budget,
        *,
        seed: int = 0,
        on_progress: OnProgress | None = None,
        progress_interval: float = 0.1,
    ) -> None:
        self.solver, self.problem, self.budget, self.seed = solver, problem, budget, seed
        self.started = time.perf_counter()
        self.value: int | None = None
        self.solution: SolutionT | None = None
        self.lower_bound = 0
        self.bound_method = "none"
        self.evaluations = 0
        self.trace: list[TracePoint] = []
        self.stop_reason = "converged"
        self.stopped = False
        self._on_progress = on_progress
        self._interval = progress_interval
        self._last_report = -1e9

    def __enter__(self) -> Tracker[SolutionT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.stop_reason, self.stopped = "interrupted", True
            return True
        return False

    @property
    def elapsed(self) -> float:
        """Seconds since the solve began."""
        return time.perf_counter() - self.started

    @property
    def seconds_left(self) -> float:
        """Seconds left in the budget, infinity without a time limit, never negative."""
        return float("inf") if self.budget.seconds is None else max(0.0, self.budget.seconds - self.elapsed)

    @property
    def evaluations_left(self) -> int:
        """Evaluations left in the budget, a huge number without a limit."""
        return 2**62 if self.budget.evaluations is None else max(0, self.budget.evaluations - self.evaluations)

    def count(self, evaluations: int = 1) -> None:
        """Add to the number of evaluations."""
        self.evaluations += evaluations
        self._report()

    def offer(self, value: int, solution: SolutionT) -> bool:
        """Make `solution` the incumbent if it is better; return whether it was."""
        if self.value is not None and value >= self.value:
            return False
        self.value, self.solution = int(value), solution
        self._note()
        return True

    def raise_bound(self, value: int, method: str) -> bool:
        """Record a proven lower bound if it is better; return whether it was."""
        if value <= self.lower_bound:
            return False
        self.lower_bound, self.bound_method = int(value), method
        self._note()
        return True

    def stop(self) -> bool:
        """Whether the search has to end now; sets `stop_reason` when it does."""
        if self.stopped:
            return True
        reason = None
        if self.value is not None and self.value <= self.lower_bound:
            reason = "proved"
        elif self.value is not None and self.budget.target is not None and self.value <= self.budget.target:
            reason = "target"
        elif self.evaluations_left == 0:
            reason = "evaluations"
        elif self.seconds_left == 0.0:
            reason = "time"
        if reason is not None:
            self.stop_reason, self.stopped = reason, True
        return self.stopped

    def result(
        self,
        *,
        status: str | None = None,
        queue: str = "",
        message: str = "",
        solution: SolutionT | None = None,
        objective: int | None = None,
    ) -> Result[SolutionT]:
        """Build the Result. `solution` and `objective` replace the incumbent where it was re-evaluated."""
        if solution is None:
            solution, objective = self.solution, self.value
        if objective is not None and objective <= self.lower_bound:
            status, self.stop_reason = "optimal", "proved" if self.stop_reason != "interrupted" else "interrupted"
        elif status is None:
            status = "unknown" if solution is None else "feasible"
        return Result(
            problem=self.problem.name,
            solver=self.solver,
            solution=solution,
            objective=objective,
            lower_bound=self.lower_bound,
            bound_method=self.bound_method,
            status=status,
            stop_reason=self.stop_reason,
            evaluations=self.evaluations,
            runtime=self.elapsed,
            seed=self.seed,
            queue=queue,
            message=message,
            tick_seconds=getattr(self.problem, "tick_seconds", 1e-9),
            objective_name=getattr(self.problem, "objective", "makespan"),
            trace=tuple(self.trace),
        )

    def _note(self) -> None:
        self.trace.append(TracePoint(self.elapsed, self.evaluations, self.value, self.lower_bound))
        self._report(force=True)

    def _report(self, force: bool = False) -> None:
        if self._on_progress is None:
            return
        now = self.elapsed
        if force or now - self._last_report >= self._interval:
            self._last_report = now
            self._on_progress(Progress(now, self.evaluations, self.value, self.lower_bound))
