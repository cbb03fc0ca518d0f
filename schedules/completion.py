"""Completion: from a repeating pattern to a finite schedule of n micro-batches.

The pattern is unrolled from the first micro-batch to the last, which gives warm-up, steady state and cool-down at
once: every start is that of a valid infinite schedule with some micro-batches left out, so dependencies of every
index gap and the memory limit hold. Then every device's order is shifted left, which changes no order and hence
no peak. Two greedy variants that keep the pattern's priorities but not its order may end earlier; the
shortest of the three is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.schedules.evaluate import compact, dispatch, makespan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import Repetend


def complete(problem: PipelineProblem, repetend: Repetend, micro_batches: int) -> NDArray[np.int64]:
    """Return the starts of `micro_batches` micro-batches, shape (micro_batches, num_blocks) ticks."""
    unrolled = repetend.unroll(micro_batches)
    best = compact(problem, unrolled)
    for rank in (unrolled, unrolled + problem.span[None, :]):
        greedy = dispatch(problem, rank)
        if greedy is not None and makespan(problem, greedy) < makespan(problem, best):
            best = greedy
    return best - best.min()
