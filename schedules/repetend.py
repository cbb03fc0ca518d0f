"""The `repetend` solver: the shortest repeating pattern by modulo scheduling, with a proof.

It answers what Tessel (Lin et al., HPCA 2024) asks, the best repetend, but searches all index assignments
at once (`placeopt.schedules.period_search`): periods from a lower bound upwards and from a feasible pattern downwards,
and every infeasible period is a proof. Then the latency of the pattern is minimised at that period, and the
pattern is completed to n micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from placeopt.model.errors import InputError
from placeopt.schedules.bounds import best_bound, makespan_bound
from placeopt.schedules.completion import complete
from placeopt.schedules.evaluate import makespan
from placeopt.schedules.memory_limits import require_feasible_memory
from placeopt.schedules.period_search import PeriodSearch
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.schedules.solve import finish_pipeline, warm_up
from placeopt.solving.tracker import Tracker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.model.budget import Budget
    from placeopt.model.result import Result
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.solver import OnProgress


FIRST_SIZE_SHARE = 1 / 4
"""Share of the time for one micro-batch per pattern where more are asked for."""


@dataclass(frozen=True)
class RepetendSolver:
    """Shortest repetend by modulo scheduling, proved; then least latency; then completion.

    Attributes
    ----------
    size : micro-batches per repetend (K); more than 1 helps under tight memory. 0 tries 1, 2, 3, ... up to
        `max_size` while the best is above the bound for all K.
    latency_seconds : most seconds spent on the latency of the pattern.
    period : ticks of the whole pattern, to ask for the least latency at this rate instead of the least period (which
        leaves all the time for the latency); 0 for the least period.
    patterns : how many other patterns are completed too, to keep the one that ends first.
    """

    name: ClassVar[str] = "repetend"

    size: int = 1
    max_size: int = 4
    num_workers: int = 2
    latency_seconds: float = 2.0
    patterns: int = 1
    period: int = 0

    def __post_init__(self) -> None:
        limits = (("size", 0), ("max_size", 1), ("num_workers", 1), ("latency_seconds", 0), ("patterns", 0),
                  ("period", 0))  # fmt: skip
        for key, low in limits:
            if getattr(self, key) < low:
                raise InputError(f"repetend option {key}: expected at least {low}, received {getattr(self, key)}")
        if self.period and not self.size:
            raise InputError("repetend option period: expected a size of at least 1 beside it, received size 0")

    def solve(
        self,
        problem: PipelineProblem,
        budget: Budget,
        *,
        seed: int = 0,
        initial: PipelineSchedule | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result[PipelineSchedule]:
        """Search; the objective is the period of the whole pattern in ticks (K micro-batches)."""
        warm_up()
        tracker: Tracker[Repetend] = Tracker(self.name, problem, budget, seed=seed, on_progress=on_progress)
        require_feasible_memory(problem)
        if self.period:
            return self._solve_at_period(problem, tracker, seed)
        with tracker:
            best = self._search_sizes(problem, tracker, seed)
        pattern = best.pattern
        if pattern is None:
            return finish_pipeline(tracker, None, message="no repeating pattern found in time; allow more seconds")
        if not tracker.stopped or tracker.stop_reason in ("proved", "target"):
            pattern, start = self._shortest_completion(problem, pattern, tracker, seed)
        else:
            start = complete(problem, pattern, problem.micro_batches)
        bound = Fraction(best.low, pattern.size)
        return finish_pipeline(tracker, self._schedule(tracker, pattern, start, bound, best.bound_method))

    def _schedule(
        self, tracker: Tracker[Repetend], pattern: Repetend, start: NDArray[np.int64], bound: Fraction, method: str
    ) -> PipelineSchedule:
        """Return the completed pattern with the bound on its period in ticks per micro-batch."""
        period = pattern.per_micro_batch
        return PipelineSchedule(
            problem=tracker.problem,
            start=start,
            solver=self.name,
            period=period,
            period_bound=min(bound, period),
            period_status="optimal" if period <= bound else "feasible",
            bound_method=method,
            repetend=pattern,
            runtime=tracker.elapsed,
            candidates=tracker.evaluations,
        )

    def _search_sizes(self, problem: PipelineProblem, tracker: Tracker[Repetend], seed: int) -> PeriodSearch:
        """Search the wanted size after one micro-batch per pattern, or size after size, and share the time among them."""
        overall = best_bound(problem)[0]
        sizes = list(range(1, self.max_size + 1)) if self.size == 0 else sorted({1, self.size})
        best: PeriodSearch | None = None
        for at, size in enumerate(sizes):
            share = 1 / (len(sizes) - at) if self.size == 0 else (1 if size == self.size else FIRST_SIZE_SHARE)
            search = PeriodSearch(problem, size, self.num_workers, seed, tracker, share)
            search.run(best.pattern if best is not None else None)
            better = best is None or (search.value is not None and (best.value is None or search.value < best.value))
            if better or size == self.size:
                best = search
            assert best is not None
            if self.size == 0 and ((best.value is not None and best.value <= overall) or tracker.seconds_left == 0):
                break
        assert best is not None
        return best

    def _solve_at_period(
        self, problem: PipelineProblem, tracker: Tracker[Repetend], seed: int
    ) -> Result[PipelineSchedule]:
        """Find the pattern of least latency among those of the wanted period."""
        from placeopt.schedules.cyclic import CyclicModel

        bound, method = best_bound(problem)
        wanted = f"repetend of {self.size} micro-batch{'es' if self.size > 1 else ''} every {self.period} ticks"
        with tracker:
            status, pattern = "infeasible", None
            if self.period >= bound * self.size:
                model = CyclicModel(problem, self.period, self.size, for_latency=True)
                model.minimize_latency()
                status, pattern = model.solve(
                    tracker.seconds_left, num_workers=self.num_workers, seed=seed, first_only=False
                )
            tracker.count()
        if pattern is None:
            words = "is proved impossible" if status == "infeasible" else "was not found in time; allow more seconds"
            return finish_pipeline(tracker, None, message=f"a {wanted} {words}", status=status)
        schedule = self._schedule(tracker, pattern, complete(problem, pattern, problem.micro_batches), bound, method)
        ticks = pattern.latency(problem.span)
        proof = ", proved least" if status == "optimal" else ""
        return finish_pipeline(tracker, schedule, message=f"latency {ticks} ticks at a {wanted}{proof}")

    def _shortest_completion(
        self, problem: PipelineProblem, pattern: Repetend, tracker: Tracker[Repetend], seed: int
    ) -> tuple[Repetend, NDArray[np.int64]]:
        """Complete the pattern of least latency, and others of the same period; keep the shortest schedule."""
        target = makespan_bound(problem, problem.micro_batches)
        best = self._least_latency(problem, pattern, tracker, seed)
        start = complete(problem, best, problem.micro_batches)
        for attempt in range(self.patterns):
            if makespan(problem, start) <= target or tracker.seconds_left <= 0:
                break
            other = pattern if attempt == 0 else self._any_pattern(problem, pattern, tracker, seed + attempt)
            completed = complete(problem, other, problem.micro_batches)
            if makespan(problem, completed) < makespan(problem, start):
                best, start = other, completed
        return best, start

    def _any_pattern(
        self, problem: PipelineProblem, pattern: Repetend, tracker: Tracker[Repetend], seed: int
    ) -> Repetend:
        """Return another pattern of the same period."""
        from placeopt.schedules.cyclic import CyclicModel

        seconds = min(self.latency_seconds, tracker.seconds_left)
        model = CyclicModel(problem, pattern.period, pattern.size)
        _, found = model.solve(seconds, num_workers=self.num_workers, seed=seed)
        return pattern if found is None else found

    def _least_latency(
        self, problem: PipelineProblem, pattern: Repetend, tracker: Tracker[Repetend], seed: int
    ) -> Repetend:
        from placeopt.schedules.cyclic import CyclicModel

        seconds = min(self.latency_seconds, tracker.seconds_left)
        if seconds <= 0:
            return pattern
        model = CyclicModel(problem, pattern.period, pattern.size)
        model.minimize_latency()
        _, found = model.solve(seconds, num_workers=self.num_workers, seed=seed, first_only=False)
        if found is None or found.latency(problem.span) > pattern.latency(problem.span):
            return pattern
        return found
