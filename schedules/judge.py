"""The independent judge of pipeline schedules: plain Python, no code shared with the kernels or the
solvers.

A schedule is judged twice: its starts as they are, and the pattern that it repeats as an infinite
modulo schedule. The period is that of the pattern, so nothing is taken from what a solver says of
itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from placeopt.schedules.problem import PipelineProblem

MAX_VIOLATIONS = 50


def pipeline_violations(problem: PipelineProblem, start: ArrayLike) -> list[str]:
    """List, in words, everything wrong with a finite schedule; an empty list means it is valid.

    Parameters
    ----------
    start : starts in ticks, shape (num_micro_batches, num_blocks).
    """
    rows = _rows(start)
    found = _shape_violations(problem, rows)
    if found:
        return found
    for j, row in enumerate(rows):
        found += [
            f"block '{problem.block_names[i]}' of micro-batch {j} starts at {at}, before time 0"
            for i, at in enumerate(row)
            if at < 0
        ]
    found += _precedence_violations(problem, rows)
    for d, unordered in _runs(problem, rows):
        runs = sorted(unordered)
        for (begin, span, i, j), (after, _, other, k) in itertools.pairwise(runs):
            if after < begin + span:
                found.append(
                    f"device '{problem.device_names[d]}' runs '{problem.block_names[other]}' of "
                    f"micro-batch {k} from {after}, "
                    f"while '{problem.block_names[i]}' of micro-batch {j} runs until {begin + span}"
                )
        held = 0
        for begin, _, i, j in runs:
            held += int(problem.memory[i, d])
            found += _overfull(
                problem,
                d,
                held,
                f"from {begin}, when '{problem.block_names[i]}' of micro-batch {j} starts",
            )
    return found[:MAX_VIOLATIONS]


def pattern_violations(problem: PipelineProblem, period: int, start: ArrayLike) -> list[str]:
    """List, in words, everything wrong with a pattern that is to repeat every `period` ticks for
    ever.

    Parameters
    ----------
    start : starts in ticks of the micro-batches of one repetition, shape (size, num_blocks).
    """
    rows = _rows(start)
    found = _shape_violations(problem, rows)
    if found or period < 1:
        return found or [f"the pattern repeats every {period} ticks; expected at least 1"]
    found += _precedence_violations(problem, rows)
    for d, runs in _runs(problem, rows):
        found += _overlaps_modulo(problem, period, d, runs)
        # When a repetition begins, an instance that starts k repetitions late has run k times less
        # often.
        held = -sum(int(problem.memory[i, d]) * (at // period) for at, _, i, _ in runs)
        for _, _, i, q in sorted(runs, key=lambda run: run[0] % period):
            held += int(problem.memory[i, d])
            when = (
                f"in every repetition of the pattern once '{problem.block_names[i]}' of "
                f"micro-batch {q} starts"
            )
            found += _overfull(problem, d, held, when)
    return found[:MAX_VIOLATIONS]


def _overfull(problem: PipelineProblem, d: int, held: int, when: str) -> list[str]:
    """Return the violation if a device holds more than it can."""
    if held <= int(problem.capacity[d]):
        return []
    return [
        f"device '{problem.device_names[d]}' holds {held} {when}; its capacity is "
        f"{int(problem.capacity[d])}"
    ]


def makespan_of(problem: PipelineProblem, start: ArrayLike) -> int:
    """Ticks from the first start of a schedule to its last end."""
    rows, spans = _rows(start), problem.span.tolist()
    return max(at + span for row in rows for at, span in zip(row, spans, strict=True)) - min(
        map(min, rows)
    )


def makespan_of_pattern(
    problem: PipelineProblem, period: int, start: ArrayLike, micro_batches: int
) -> int:
    """Ticks that `micro_batches` micro-batches take that follow a pattern."""
    rows = _rows(start)
    return makespan_of(
        problem,
        [
            [at + period * (j // len(rows)) for at in rows[j % len(rows)]]
            for j in range(micro_batches)
        ],
    )


def _rows(start: ArrayLike) -> list[list[int]]:
    return [[int(value) for value in row] for row in np.asarray(start).tolist()]


def _shape_violations(problem: PipelineProblem, rows: Sequence[Sequence[int]]) -> list[str]:
    if not rows:
        return ["the schedule has no micro-batch"]
    return [
        f"micro-batch {j}: expected {problem.num_blocks} starts, received {len(row)}"
        for j, row in enumerate(rows)
        if len(row) != problem.num_blocks
    ][:1]


def _precedence_violations(
    problem: PipelineProblem, rows: Sequence[Sequence[int]]
) -> Iterator[str]:
    waits = [
        (before, i, int(problem.span[before]) + lag)
        for i in range(problem.num_blocks)
        for before, lag in problem.predecessors_of(i)
    ]
    for j, row in enumerate(rows):
        for before, i, ticks in waits:
            if row[i] < row[before] + ticks:
                yield (
                    f"block '{problem.block_names[i]}' of micro-batch {j} starts at {row[i]}, but "
                    "its predecessor "
                    f"'{problem.block_names[before]}' delivers at {row[before] + ticks}"
                )


def _runs(
    problem: PipelineProblem, rows: Sequence[Sequence[int]]
) -> Iterator[tuple[int, list[tuple[int, int, int, int]]]]:
    """Yield every device with the (start, span, block, micro-batch) of everything that runs on
    it.
    """
    here: list[list[int]] = [[] for _ in range(problem.num_devices)]
    for i in range(problem.num_blocks):
        for device in problem.devices_of(i).tolist():
            here[device].append(i)
    spans = problem.span.tolist()
    for device, blocks in enumerate(here):
        yield device, [(row[i], spans[i], i, j) for j, row in enumerate(rows) for i in blocks]


def _overlaps_modulo(
    problem: PipelineProblem, period: int, device: int, runs: Sequence[tuple[int, int, int, int]]
) -> Iterator[str]:
    """Yield where runs of a device meet when all of them repeat every `period` ticks."""
    inside = sorted((start % period, span, i, j) for start, span, i, j in runs)
    if not inside:
        return
    begin, _, i, j = inside[0]
    for (at, span, first, q), (after, _, second, k) in itertools.pairwise(
        [*inside, (begin + period, 0, i, j)]
    ):
        if after < at + span:
            yield (
                f"the pattern of period {period} runs '{problem.block_names[second]}' of "
                f"micro-batch {k} on device '{problem.device_names[device]}' while "
                f"'{problem.block_names[first]}' of micro-batch {q} still runs"
            )
