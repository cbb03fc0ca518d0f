"""The `repetend` solver: the shortest repeating pattern by modulo scheduling, with a proof.

It answers what Tessel [1]_ asks, the best repetend, but searches all index assignments at once
(`placeopt.schedules.period_search`): periods from a lower bound upwards and from a feasible pattern
downwards, and every infeasible period is a proof. Then the latency of the pattern is minimised at
that period, and the pattern is completed to n micro-batches.

What is proved of patterns of K micro-batches is said of these only: a larger K may do better. The
lower bound of the result holds for every K; with size 0 larger K are tried while the best is above
it, and the published schedules that fit: as completions, and where they repeat sooner.

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024.
.. [2] B. R. Rau, "Iterative modulo scheduling: an algorithm for software pipelining loops", MICRO
1994.
.. [3] A. E. Eichenberger, E. S. Davidson, "Efficient formulation for optimal modulo schedulers",
PLDI 1997.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from placeopt.model.errors import InputError
from placeopt.schedules.bounds import best_bound, makespan_bound
from placeopt.schedules.completion import (
    complete,
    cp_limits,
    kept_for_completion,
    offer_pattern,
    prove_first,
)
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.evaluate import makespan
from placeopt.schedules.known import published
from placeopt.schedules.period_search import PeriodSearch
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class RepetendSolver(SearchSolver):
    """Shortest repetend by modulo scheduling, proved for its size; then least latency; then
    completion.
    """

    size: int = option(
        1,
        "micro-batches per repetend (K), more help under tight memory; 0 proves K = 1, "
        "then tries 2, 3, ... while the best is above the bound for all K, and published schedules",
        low=0,
    )
    max_size: int = option(4, "most micro-batches per repetend that size=0 tries", low=1)
    num_workers: int = option(2, "threads of CP-SAT", low=1)
    latency_seconds: float = option(2.0, "most seconds spent on the latency of the pattern", low=0)
    patterns: int = option(
        1, "other patterns that are completed too, to keep the one that ends first", low=0
    )
    period: int = option(
        0,
        "ticks of the whole pattern: ask for the least latency at this rate, with all the "
        "time, instead of the least period",
        low=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period and not self.size:
            raise InputError(
                "repetend option period: expected a size of at least 1 beside it, received size 0"
            )

    def search(self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> None:
        """Find the shortest pattern, then the one of least latency among these, then the shortest
        completion.
        """
        if not prove_first(problem, tracker):
            return
        if self.period:
            self._least_latency_at_period(problem, tracker)
            return
        kept = kept_for_completion(problem, tracker.seconds_left)
        known = [] if self.size else published(tracker)
        patterns: list[Repetend | None] = []
        least: Fraction | float = inf
        open_sizes = 0
        for size, share in self._shares().items():
            search = PeriodSearch(problem, size, self.num_workers, tracker, share, kept)
            incumbent = tracker.solution
            search.run([None if incumbent is None else incumbent.repetend, *patterns])
            patterns.append(search.pattern)
            if self.size in (0, size):
                open_sizes += search.value * size > search.low
                if search.value < least:
                    least = search.value
                    self._finish(problem, tracker, search, known, kept)
            if self.size == 0 and tracker.solution is not None:
                known.append(tracker.solution)
            if known:
                shortest = min(known, key=lambda one: one.makespan).start
                for one in known:
                    tracker.offer(one.period, PipelineSchedule(problem, shortest, one.pattern))
            if self.size == 0 and (tracker.stop() or tracker.seconds_left <= kept):
                break
        if open_sizes and not tracker.stop():
            tracker.stop_reason = "time"
        if tracker.solution is None:
            tracker.message = "no repeating pattern found in time; allow more seconds"

    def _shares(self) -> dict[int, float]:
        """Return the sizes to search, each with its share of the time that is then left: a quarter
        for one micro-batch per pattern where more are asked for, all of it where larger ones wait
        for its proof.
        """
        if self.size:
            return {1: 1 / 4, self.size: 1}
        larger = range(2, self.max_size + 1)
        return {1: 1.0} | {size: 1 / (self.max_size + 1 - size) for size in larger}

    def _finish(
        self,
        problem: PipelineProblem,
        tracker: Tracker[PipelineSchedule],
        search: PeriodSearch,
        known: list[PipelineSchedule],
        kept: float,
    ) -> None:
        """Complete the pattern that a search ended with, or run it as a known schedule that is
        shorter; where it is proved, look for others of its period.
        """
        pattern = search.pattern
        assert pattern is not None
        size_bound = Fraction(search.low, pattern.size)
        start = complete(problem, pattern, max(kept, tracker.seconds_left))
        starts = [start, *(one.start for one in known)]
        start = min(starts, key=lambda start: makespan(problem, start))
        offer_pattern(problem, tracker, pattern, start, size_bound)
        if pattern.period <= search.low and tracker.value == pattern.per_micro_batch:
            self._shorten(problem, tracker, pattern, size_bound)

    def _shorten(
        self,
        problem: PipelineProblem,
        tracker: Tracker[PipelineSchedule],
        pattern: Repetend,
        size_bound: Fraction,
    ) -> None:
        """Complete the pattern of least latency, and others of the same period; the tracker keeps
        the shortest schedule.
        """
        target = makespan_bound(problem, problem.micro_batches)
        for attempt in range(max(1, self.patterns)):
            seconds = min(self.latency_seconds, tracker.seconds_left)
            if seconds <= 0 or tracker.stop_reason in ("time", "evaluations"):
                return
            model = CyclicModel(problem, pattern.period, pattern.size)
            if attempt == 0:
                model.minimize_latency()
            limits = cp_limits(tracker, seconds, self.num_workers)
            limits["seed"] += attempt
            _, other = model.solve(**limits, first_only=attempt > 0)
            if other is None:
                continue
            start = complete(problem, other, tracker.seconds_left)
            offer_pattern(problem, tracker, other, start, size_bound)
            if makespan(problem, start) <= target:
                return

    def _least_latency_at_period(
        self, problem: PipelineProblem, tracker: Tracker[PipelineSchedule]
    ) -> None:
        """Find the pattern of least latency among those of the wanted period."""
        wanted = (
            f"repetend of {self.size} micro-batch{'es' if self.size > 1 else ''} every "
            f"{self.period} ticks"
        )
        status, pattern = "infeasible", None
        if self.period >= best_bound(problem)[0] * self.size:
            model = CyclicModel(problem, self.period, self.size, for_latency=True)
            model.minimize_latency()
            limits = cp_limits(tracker, tracker.seconds_left, self.num_workers)
            status, pattern = model.solve(**limits, first_only=False)
        tracker.count()
        if pattern is None:
            words = (
                "is proved impossible"
                if status == "infeasible"
                else "was not found in time; allow more seconds"
            )
            tracker.message = f"a {wanted} {words}"
            return
        start = complete(problem, pattern, tracker.seconds_left)
        offer_pattern(problem, tracker, pattern, start)
        proof = ", proved least" if status == "optimal" else ""
        tracker.message = f"latency {pattern.latency(problem.span)} ticks at a {wanted}{proof}"
