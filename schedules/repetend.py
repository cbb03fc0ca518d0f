"""The `repetend` solver: the shortest repeating pattern by modulo scheduling, with a proof.

It answers what Tessel (Lin et al., HPCA 2024) asks, the best repetend, but searches all index assignments
at once. Each period is decided by a dynamic programme over the devices where these form a tree (see
`placeopt.schedules.device_tree`), by CP-SAT otherwise (`placeopt.schedules.cyclic`); periods from a lower bound
upwards and from a feasible pattern downwards; every infeasible period is a proof. Then the latency of the
pattern is minimised at that period, and the pattern is completed to n micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placeopt.errors import InputError
from placeopt.schedules.bounds import best_bound, makespan_bound
from placeopt.schedules.completion import complete
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.evaluate import dispatch, makespan
from placeopt.schedules.memory_limits import require_feasible_memory
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.schedules.solve import finish_pipeline, warm_up
from placeopt.solver import OnProgress, Tracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solution import Budget, Result


FIRST_ROUND_SECONDS = 2.0
"""Most seconds for one period before others are tried; later rounds have 4 times as long each."""

FIRST_SIZE_SHARE = 1 / 4
"""Share of the time for one micro-batch per pattern where more are asked for."""

FIRST_ROUND_SHARE = 1 / 6
"""Most of the time left for one period in the first round."""


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
                model = CyclicModel(problem, self.period, self.size)
                model.minimize_latency(alone=True)
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


class PeriodSearch:
    """Finds the least period of patterns of one size.

    Attributes
    ----------
    low : proven lower bound on the period of the pattern in ticks.
    pattern : the best pattern found.
    """

    def __init__(
        self, problem: PipelineProblem, size: int, num_workers: int, seed: int, tracker: Tracker[Repetend], share: float = 1
    ) -> None:
        self.problem, self.size, self.num_workers, self.seed = problem, size, num_workers, seed
        self.tracker = tracker
        self._end = tracker.elapsed + share * tracker.seconds_left
        self.tree = DeviceTree(problem, size)
        bound, self.bound_method = best_bound(problem)
        self.low = ceil(bound * size)
        self.pattern: Repetend | None = None
        self._step: int | None = None  # how far to climb from the bound while the device tree decides

    @property
    def value(self) -> Fraction | None:
        """Ticks per micro-batch of the best pattern."""
        return None if self.pattern is None else self.pattern.per_micro_batch

    @property
    def seconds_left(self) -> float:
        """Seconds left of this search's share of the time."""
        return max(0.0, min(self.tracker.seconds_left, self._end - self.tracker.elapsed))

    def run(self, smaller: Repetend | None = None) -> None:
        """Try the lower bound first, then bisect between bound and pattern until they meet or time is up.

        A period that takes too long to decide is left for a later round with more time: the pattern gets good
        early, and the rest of the time goes into the proof. `smaller` is the best pattern of fewer micro-batches; repeated
        as often as it takes, it is one of this size if that divides it.
        """
        self._offer(greedy_pattern(self.problem, self.size))
        if smaller is not None and self.size % smaller.size == 0:
            self._offer(Repetend(smaller.period * (self.size // smaller.size), smaller.unroll(self.size)))
        first = min(FIRST_ROUND_SECONDS, FIRST_ROUND_SHARE * self.seconds_left)
        seconds, wanted = first, self.low
        while not self._done():
            floor = self.low
            while not self._done():
                # Deciding the period just below the pattern's ends the search, or shortens the pattern.
                last = self.pattern is not None and wanted == self.pattern.period - 1 and seconds > first
                decided = self._try(wanted, seconds, last=last)
                floor = self.low if decided else max(floor, wanted + 1)
                if self.pattern is not None and floor >= self.pattern.period:
                    break
                wanted = self._next(floor)
            seconds, wanted = seconds * 4, self._next(self.low)

    def _next(self, floor: int) -> int:
        """Return the period to try: half-way, or one less than the pattern's where only the proof is missing.

        The device tree is fast just above the bound, where it climbs in steps that double.
        """
        if self.pattern is None:
            return 2 * floor
        gap = self.pattern.period - floor
        if self._step is not None:
            return floor + min(self._step - 1, gap // 2)
        return max(floor, self.pattern.period - 1 if gap * 50 < floor else floor + gap // 2)

    def _done(self) -> bool:
        if self.seconds_left == 0 or self.tracker.evaluations_left == 0:
            return True
        return self.pattern is not None and self.pattern.period <= self.low

    def _try(self, period: int, seconds: float, *, last: bool) -> bool:
        """Decide one period, or a shorter one, in about `seconds` (all that are left for the last one).

        Return whether one was decided.
        """
        from placeopt.schedules.cyclic import CyclicModel, tighten

        self.tracker.count()
        period, answer = self._by_device_tree(period, seconds)
        method = "cp-sat" if answer is None else "device tree"
        if answer is None:
            model = CyclicModel(self.problem, period, self.size)
            time = self.seconds_left if last else min(self.seconds_left, seconds)
            status, pattern = model.solve(time, num_workers=self.num_workers, seed=self.seed)
            if status == "unknown":
                return False
            answer = pattern is not None, pattern
        feasible, found = answer
        if not feasible:
            self.low, self.bound_method = max(self.low, period + 1), f"{method} infeasible period"
        if found is not None:
            self._offer(tighten(self.problem, found))
        return True

    def _by_device_tree(self, period: int, seconds: float) -> tuple[int, tuple[bool, Repetend | None] | None]:
        """Return the period that was decided and the answer: while climbing, one nearer to the bound if this is too far."""
        wanted, answer = period, self.tree.decide(period, min(seconds, self.seconds_left))
        while answer is None and self._step is not None and wanted > self.low:
            wanted = (self.low + wanted) // 2
            answer = self.tree.decide(wanted, min(seconds, self.seconds_left))
        self._step = None if answer is None else 2 * (self._step or 1)
        return period if answer is None else wanted, answer

    def _offer(self, pattern: Repetend | None) -> None:
        if pattern is not None and (self.pattern is None or pattern.period < self.pattern.period):
            self.pattern = pattern


def greedy_pattern(problem: PipelineProblem, size: int) -> Repetend | None:
    """Return a valid pattern at once: one micro-batch after another, or a greedy schedule of `size` of them.

    A finite schedule repeats as soon as every device is done with it; memory is back to zero by then.
    """
    rank = np.arange(size * problem.num_blocks).reshape(size, -1) // problem.num_blocks
    backward_first = np.array([kind == "F" for kind in problem.kind], dtype=np.int64) * size
    candidates = [dispatch(problem, rank), dispatch(problem, rank + backward_first[None, :]), _serial(problem, size)]
    best: Repetend | None = None
    for start in candidates:
        if start is None:
            continue
        start = np.sort(start, axis=0)
        reach = max(
            int((start[:, list(here)] + problem.span[list(here)]).max() - start[:, list(here)].min())
            for here in problem.on_device
            if here
        )
        if best is None or reach < best.period:
            best = Repetend(reach, start)
    return best


def _serial(problem: PipelineProblem, size: int) -> NDArray[np.int64] | None:
    """Return the schedule that runs one block at a time, newest ready block first, where that fits into memory."""
    after: list[list[int]] = [[] for _ in range(problem.num_blocks)]
    waiting = np.diff(problem.pred_ptr)
    for u, v, _ in problem.edges:
        after[u].append(v)
    ready = np.flatnonzero(waiting == 0)[::-1].tolist()
    start, now = np.zeros(problem.num_blocks, dtype=np.int64), 0
    held = np.zeros(problem.num_devices, dtype=np.int64)
    while ready:
        v = ready.pop()
        held += problem.memory[v]
        if (held > problem.capacity).any():
            return None
        start[v] = max([now, *(int(start[u] + problem.span[u]) + lag for u, lag in problem.predecessors_of(v))])
        now = int(start[v] + problem.span[v])
        for successor in after[v]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return start[None, :] + now * np.arange(size, dtype=np.int64)[:, None]
