"""The judges of schedules and patterns against the definition, tick by tick."""

from __future__ import annotations

import numpy as np
import pytest
from random_pipelines import random_mixed_pipeline

from placeopt.schedules.judge import (
    makespan_of,
    makespan_of_pattern,
    pattern_violations,
    pipeline_violations,
)
from placeopt.schedules.period_search import greedy_pattern


def waits(problem, rows):
    """Count the waits that are too short."""
    return sum(
        row[v] < row[u] + int(problem.span[u]) + lag for row in rows for u, v, lag in problem.edges
    )


def finite(problem, rows):
    """Whether a schedule keeps every rule: what runs and what is held at each tick."""
    if min(map(min, rows)) < 0 or waits(problem, rows):
        return False
    runs = [
        (d, at, int(problem.span[v]), int(problem.memory[v, d]))
        for row in rows
        for v, at in enumerate(row)
        for d in problem.devices_of(v).tolist()
    ]
    for d in range(problem.num_devices):
        here = [(at, span, units) for where, at, span, units in runs if where == d]
        for tick in {at for at, _, _ in here}:
            if sum(at <= tick < at + span for at, span, _ in here) > 1:
                return False
            if sum(units for at, _, units in here if at <= tick) > int(problem.capacity[d]):
                return False
    return True


def repeated(problem, period, rows):
    """Whether a pattern keeps every rule for ever."""
    if waits(problem, rows):
        return False
    for d in range(problem.num_devices):
        here = [
            (row[v], int(problem.span[v]), int(problem.memory[v, d]))
            for row in rows
            for v in problem.on_device[d]
        ]
        busy = [(at + i) % period for at, span, _ in here for i in range(span)]
        if len(set(busy)) < len(busy):
            return False
        for tick in range(period):
            held = sum(units * ((tick - at) // period + 1) for at, _, units in here)
            if held > int(problem.capacity[d]):
                return False
    return True


@pytest.mark.parametrize("part", range(4))
def test_the_judges_know_every_rule(part):
    """Good schedules, and such with a start or the period changed, are right exactly where the
    definition says so.
    """
    counts = {(kind, good): 0 for kind in ("finite", "pattern") for good in (True, False)}
    for seed in range(15 * part, 15 * part + 15):
        problem, rng = random_mixed_pipeline(seed), np.random.default_rng(seed)
        pattern = greedy_pattern(problem, 1 + seed % 2)
        if pattern is None:
            continue
        for _ in range(12):
            start, period = pattern.start.copy(), pattern.period
            if rng.random() < 0.7:
                at = rng.integers(len(start)), rng.integers(start.shape[1])
                start[at] += rng.choice([-2, -1, 1, 2, period])
            if rng.random() < 0.4:
                period = max(1, period - int(rng.integers(1, 8)))
            good = repeated(problem, period, start.tolist())
            assert (pattern_violations(problem, period, start) == []) == good, seed
            counts["pattern", good] += 1
            rows = pattern.unroll(3).astype(np.int64)
            if rng.random() < 0.8:
                at = rng.integers(3), rng.integers(rows.shape[1])
                rows[at] += rng.choice([-3, -2, -1, 1, 2])
            good = finite(problem, rows.tolist())
            assert (pipeline_violations(problem, rows) == []) == good, seed
            counts["finite", good] += 1
            ends = rows + problem.span
            assert makespan_of(problem, rows) == ends.max() - rows.min()
            size = len(pattern.start)
            far = [pattern.start[j % size] + pattern.period * (j // size) for j in range(5)]
            expected = (np.array(far) + problem.span).max() - np.array(far).min()
            assert makespan_of_pattern(problem, pattern.period, pattern.start, 5) == expected
    assert min(counts.values()) > 15, counts


def test_what_is_no_schedule_is_said_first():
    """No micro-batches, one start too few, a period of no length; at most fifty lines."""
    problem = random_mixed_pipeline(0)
    blocks = problem.num_blocks
    for judge in (pipeline_violations, lambda p, s: pattern_violations(p, 9, s)):
        assert judge(problem, []) == ["the schedule has no micro-batch"]
        assert judge(problem, [[0] * (blocks - 1)] * 2) == [
            f"micro-batch 0: expected {blocks} starts, received {blocks - 1}"
        ]
        assert len(judge(problem, [[-1] * blocks] * 60)) == 50
    pattern = greedy_pattern(problem, 1)
    for period in (0, -3):
        assert pattern_violations(problem, period, pattern.start) == [
            f"the pattern repeats every {period} ticks; expected at least 1"
        ]
