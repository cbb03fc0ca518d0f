"""What searches for pipeline schedules tell the tracker: patterns, completed to schedules."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from placeopt.schedules.bounds import best_bound
from placeopt.schedules.evaluate import compact
from placeopt.schedules.memory_limits import memory_shortage
from placeopt.schedules.solution import PipelineSchedule, Repetend

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.solving.tracker import Tracker


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
    start: NDArray[Any] | None = None,
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
