"""Completion: from a repeating pattern to a finite schedule of n micro-batches.

The pattern is unrolled from the first micro-batch to the last, which gives warm-up, steady state
and cool-down at once: every start is that of a valid infinite schedule with some micro-batches left
out, so dependencies of every index gap and the memory limit hold. Then every device's order is
shifted left, which changes no order and hence no peak. Greedy variants that keep the pattern's
priorities but not its order may end earlier, forwards or backwards in time; the shortest of all is
taken.

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

from dataclasses import replace
from typing import TYPE_CHECKING

from placeopt.schedules.evaluate import compact, dispatch, makespan
from placeopt.schedules.problem import PipelineProblem

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.schedules.solution import Repetend


def affordable_passes(problem: PipelineProblem, micro_batches: int, seconds: float) -> float:
    """Return how many greedy passes over all instances take about `seconds`: each looks at all that
    are ready.
    """
    # Greedy passes over one ready instance in a second: how many passes a time limit allows is
    # counted, not measured
    dispatches_per_second = 10_000_000
    return seconds * dispatches_per_second / (len(problem.device) * micro_batches**2)


def complete(
    problem: PipelineProblem, repetend: Repetend, micro_batches: int, seconds: float = float("inf")
) -> Ints:
    """Return the starts of `micro_batches` micro-batches, shape (micro_batches, num_blocks) ticks.

    Without the time for the greedy variants, the pattern is unrolled and shifted left.
    """
    unrolled = repetend.unroll(micro_batches)
    best = compact(problem, unrolled)
    if affordable_passes(problem, micro_batches, seconds) < 6:
        return best
    for rank in (unrolled, unrolled + problem.span[None, :]):
        greedy = dispatch(problem, rank)
        if greedy is not None and makespan(problem, greedy) < makespan(problem, best):
            best = greedy
    best = justify(problem, best)
    return best - best.min()


def justify(problem: PipelineProblem, start: Ints, rounds: int = 2) -> Ints:
    """Improve a schedule by rebuilding it greedily from the end and from the start in turn.

    Forward-backward improvement: the ranks of each pass are the times of the previous one. The
    result is never longer and keeps the memory limit.
    """
    backwards = time_reversed(problem)
    best, current = start, start
    for _ in range(rounds):
        mirrored = dispatch(backwards, makespan(problem, current) - (current + problem.span))
        if mirrored is None:
            break
        current = makespan(backwards, mirrored) - (mirrored + problem.span)
        current = compact(problem, current)
        if makespan(problem, current) < makespan(problem, best):
            best = current
        greedy = dispatch(problem, current)
        if greedy is None:
            break
        current = greedy
        if makespan(problem, current) < makespan(problem, best):
            best = current
    return best


def time_reversed(problem: PipelineProblem) -> PipelineProblem:
    """Return the problem that runs backwards: successors first, memory deltas negated.

    Along a device's order the levels of memory are the same, read from the other end, so the limit
    means the same.
    """
    blocks = problem.blocks()
    after: dict[str, list[tuple[str, int]]] = {block.name: [] for block in blocks}
    for block in blocks:
        for before, lag in block.after:
            after[before].append((block.name, lag))
    flipped = [
        replace(block, memory=tuple(-m for m in block.memory), after=tuple(after[block.name]))
        for block in blocks
    ]
    return PipelineProblem.from_blocks(
        f"{problem.name} reversed",
        flipped,
        problem.device_names,
        capacity=problem.capacity.tolist(),
        micro_batches=problem.micro_batches,
        tick_seconds=problem.tick_seconds,
    )
