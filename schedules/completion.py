"""Completion: from a repeating pattern to a finite schedule of n micro-batches, and to the tracker.

The pattern is unrolled from the first micro-batch to the last, which gives warm-up, steady state
and cool-down at once: every start is that of a valid infinite schedule with some micro-batches left
out, so dependencies of every index gap and the memory limit hold. Then every device's order is
shifted left, which changes no order and hence no peak. Greedy variants that keep the pattern's
priorities but not its order, or run the oldest micro-batch first, may end earlier, forwards or
backwards in time; the shortest of all is taken.

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024 (the completion phase).
.. [2] A. Sprecher, R. Kolisch, A. Drexl, "Semi-active, active, and non-delay schedules for the
resource-constrained
   project scheduling problem", EJOR 80(1), 1995 (left shifts).
.. [3] K. Y. Li, R. J. Willis, "An iterative scheduling technique for resource-constrained project
scheduling", EJOR
   56(3), 1992 (forward-backward improvement).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from placeopt.model.arrays import Ints, by_number, csr
from placeopt.schedules.bounds import best_bound, memory_shortage
from placeopt.schedules.evaluate import compact, dispatch, makespan
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.solving.tracker import Tracker

GREEDY_PASSES = 7
"""What `complete` makes at most."""


def affordable_passes(problem: PipelineProblem, seconds: float) -> float:
    """Return how many greedy passes over all instances take about `seconds`: each looks at all that
    are ready.
    """
    # Greedy passes over one ready instance in a second: how many passes a time limit allows is
    # counted, not measured
    dispatches_per_second = 10_000_000
    return seconds * dispatches_per_second / (len(problem.device) * problem.micro_batches**2)


def kept_for_completion(problem: PipelineProblem, seconds: float) -> float:
    """Return how many of the seconds left a search leaves to the greedy variants of `complete`:
    none where they take more than half.
    """
    enough = affordable_passes(problem, seconds) > 2 * GREEDY_PASSES
    return GREEDY_PASSES / affordable_passes(problem, 1) if enough else 0.0


def complete(problem: PipelineProblem, repetend: Repetend, seconds: float) -> Ints:
    """Return the starts of all micro-batches, shape (micro_batches, num_blocks) ticks.

    Without the time for the greedy variants, the pattern is unrolled and shifted left.
    """
    unrolled = repetend.unroll(problem.micro_batches)
    shifted = compact(problem, unrolled)
    if affordable_passes(problem, seconds) < GREEDY_PASSES:
        return shifted
    oldest_first = np.zeros_like(unrolled) + np.arange(problem.micro_batches)[:, None]
    ranks = (unrolled, unrolled + problem.span, oldest_first)
    greedy = [dispatch(problem, rank) for rank in ranks]
    found = [shifted, *(start for start in greedy if start is not None)]
    best = justify(problem, min(found, key=lambda start: makespan(problem, start)))
    return best - best.min()


def justify(problem: PipelineProblem, start: Ints, rounds: int = 2) -> Ints:
    """Improve a schedule by rebuilding it greedily from the end and from the start in turn.

    Forward-backward improvement: the ranks of each pass are the times of the previous one. The
    result is never longer and keeps the memory limit.
    """
    backwards = time_reversed(problem)
    found = [start]
    for _ in range(rounds):
        mirrored = dispatch(backwards, makespan(problem, found[-1]) - (found[-1] + problem.span))
        if mirrored is None:
            break
        found.append(compact(problem, makespan(backwards, mirrored) - (mirrored + problem.span)))
        greedy = dispatch(problem, found[-1])
        if greedy is None:
            break
        found.append(greedy)
    return min(found, key=lambda one: makespan(problem, one))


def time_reversed(problem: PipelineProblem) -> PipelineProblem:
    """Return the problem that runs backwards: successors first, memory deltas negated.

    Along a device's order the levels of memory are the same, read from the other end, so the limit
    means the same.
    """
    after = by_number(problem.num_blocks, ((u, (v, lag)) for u, v, lag in problem.edges))
    pred_ptr, pred = csr([[v for v, _ in each] for each in after])
    return problem.replace(
        name=f"{problem.name} reversed",
        memory=-problem.memory,
        pred_ptr=pred_ptr,
        pred=pred,
        lag=np.array([lag for each in after for _, lag in each]),
    )


def cp_limits(tracker: Tracker[Any], seconds: float, num_workers: int) -> dict[str, Any]:
    """Return how CP-SAT runs for about so many seconds: where evaluations are the limit, by one
    worker and its own clock, so that the answer is the same everywhere.
    """
    if tracker.budget.evaluations is None:
        return {"seconds": seconds, "num_workers": num_workers, "seed": tracker.seed}
    return {
        "seconds": tracker.seconds_left,
        "effort": seconds,
        "num_workers": 1,
        "seed": tracker.seed,
    }


def prove_first(problem: PipelineProblem, tracker: Tracker[PipelineSchedule]) -> bool:
    """Record the bounds that hold for every pattern; return whether a schedule may exist at all."""
    bound, method = best_bound(problem)
    tracker.raise_bound(bound, method)
    shortage = memory_shortage(problem, tracker.seconds_left)
    if shortage:
        tracker.infeasible(shortage)
    return not shortage


def offer_pattern(
    problem: PipelineProblem,
    tracker: Tracker[PipelineSchedule],
    pattern: Repetend,
    start: Ints | None = None,
    size_bound: Fraction = Fraction(0),
) -> None:
    """Offer a pattern with its finite schedule, by default the pattern unrolled and shifted left.

    Parameters
    ----------
    size_bound : least period per micro-batch of patterns of this size that is proved.
    """
    if start is None:
        start = compact(problem, pattern.unroll(problem.micro_batches))
    offer_schedule(tracker, PipelineSchedule(problem, start, pattern, size_bound=size_bound))


def offer_schedule(tracker: Tracker[PipelineSchedule], schedule: PipelineSchedule) -> None:
    """Offer a schedule; of equal periods the shorter one is kept, then that of less latency, then
    what is proved more.
    """
    known = tracker.solution
    if (
        tracker.offer(schedule.period, schedule)
        or known is None
        or schedule.period != tracker.value
    ):
        return
    if _preference(schedule) < _preference(known):
        tracker.solution = schedule


def _preference(schedule: PipelineSchedule) -> tuple[int, int, Fraction]:
    return schedule.makespan, schedule.pattern.latency(schedule.problem.span), -schedule.size_bound
