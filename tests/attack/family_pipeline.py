"""Pipelines: the least period of patterns of one or two micro-batches, by trying every start. The
oracle uses no placeopt.
"""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import numpy as np
from answers import poor_answers
from case import NO_LIMIT

from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.model.result import Budget
from placeopt.schedules.bounds import makespan_bound, relaxations
from placeopt.schedules.judge import pattern_violations
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run


def draw_blocks(rng):
    """Return (blocks, capacity): forward blocks and the backward ones that free what they took,
    with lags.
    """
    d, forward = rng.choice([1, 2, 2]), rng.choice([1, 1, 2])
    lag = rng.choice([0, 1, 2, 4])
    blocks = []
    for i in range(forward):
        after = [(j, rng.randint(0, lag)) for j in range(i) if rng.random() < 0.7]
        devices = list(range(d)) if rng.random() < 0.15 else [rng.randrange(d)]
        blocks.append((devices, rng.randint(1, 2), 1, after))
    if forward == 1 and rng.random() < 0.3:  # the backward pass of inputs and of weights, apart
        here, ticks, _, after = blocks[0]
        blocks = [(here, ticks, 2, after)]
        blocks += [(here, rng.randint(1, 2), -1, [(0, rng.randint(0, lag))]) for _ in range(2)]
        return blocks, [rng.choice([2, 2, 3, 10**6, NO_LIMIT]) for _ in range(d)]
    for i in range(forward):
        blocks.append((blocks[i][0], rng.randint(1, 2), -1, [(i, rng.randint(0, lag))]))
    return blocks, [rng.choice([1, 1, 2, 10**6, NO_LIMIT]) for _ in range(d)]


def valid(blocks, capacity, period, starts):
    """Whether starts (micro-batch, block) repeat every `period` ticks: waits, devices and memory,
    tick by tick.
    """
    for row in starts:
        for b, (_, _, _, after) in enumerate(blocks):
            if any(row[b] < row[a] + blocks[a][1] + lag for a, lag in after):
                return False
    for d, room in enumerate(capacity):
        mine = [(row[b], b) for row in starts for b in range(len(blocks)) if d in blocks[b][0]]
        busy = [(at + i) % period for at, b in mine for i in range(blocks[b][1])]
        if len(set(busy)) < len(busy):
            return False
        for moment in range(
            period
        ):  # instances begun by then, over all repetitions; memory adds up to 0 in the long run
            held = sum(blocks[b][2] * ((moment - at) // period) for at, b in mine)
            if held > room:
                return False
    return True


def rows_from(blocks, firsts, ticks):
    """Yield the starts of a micro-batch before `ticks` in which every block waits long enough, the
    first one at one of `firsts`.
    """

    def grow(row):
        if len(row) == len(blocks):
            yield row
            return
        ready = [row[a] + blocks[a][1] + lag for a, lag in blocks[len(row)][3]]
        for start in range(max(ready, default=0), ticks) if row else firsts:
            yield from grow((*row, start))

    return grow(())


def least_period(blocks, capacity, size):
    """Return the least period of `size` micro-batches: starts up to the length of one after the
    other; None up to there.
    """
    serial = sum(span + max((lag for _, lag in after), default=0) for _, span, _, after in blocks)
    for period in range(1, size * serial + 1):
        ticks = serial + period
        others = [list(rows_from(blocks, range(ticks), ticks)) for _ in range(size - 1)]
        for row in rows_from(blocks, (0,), ticks):
            if any(valid(blocks, capacity, period, (row, *rest)) for rest in product(*others)):
                return period
    return None


def problem_of(seed, blocks, capacity):
    """Return the PipelineProblem of three micro-batches of drawn blocks."""
    names = [f"b{i}" for i in range(len(blocks))]
    records = [
        Block(
            names[i],
            "F" if change > 0 else "B",
            tuple(devices),
            span,
            (change,) * len(devices),
            tuple((names[a], lag) for a, lag in after),
        )
        for i, (devices, span, change, after) in enumerate(blocks)
    ]
    return PipelineProblem.from_blocks(
        f"pipeline-{seed}",
        records,
        [f"d{i}" for i in range(len(capacity))],
        capacity=capacity,
        micro_batches=3,
    )


def attack(seed):
    """Return (whether a pattern exists, every difference)."""
    rng = random.Random(seed)
    blocks, capacity = draw_blocks(rng)
    try:
        problem = problem_of(seed, blocks, capacity)
    except InputError:
        return False, []
    found = []
    best = least_period(blocks, capacity, 1)
    with poor_answers(rng, rng.choice([0.0, 0.0, 0.5, 0.9])):
        relaxations.cache_clear()
        report = objective_of(problem).bounds(problem, 1.0)
    for name, bound in report.bounds.items():
        if best is not None and bound > best:
            found.append(f"bound {name} {bound} exceeds the optimum {best}")
    if report.infeasible and best is not None:
        found.append(f"called infeasible ({report.infeasible}), brute force has {best}")
    for _ in range(3):
        period = rng.randint(1, 6)
        starts = [[rng.randint(0, 6) for _ in blocks] for _ in range(rng.choice([1, 2]))]
        right = valid(blocks, capacity, period, starts)
        if right == bool(pattern_violations(problem, period, np.array(starts))):
            found.append(
                f"pattern {period} {starts} is {'valid' if right else 'not valid'} by brute force, "
                "not so by the judge"
            )
    if rng.random() < 0.3:
        size = rng.choice([1, 1, 2]) if len(blocks) == 2 else 1
        solver = make_solver("repetend", "pipeline", size=size, num_workers=1, latency_seconds=0.5)
        result = run(problem, solver, Budget(seconds=10.0), seed=0)
        least = best if size == 1 else least_period(blocks, capacity, size)
        if least is not None:
            least = (
                min(Fraction(least, size), Fraction(best))
                if best is not None
                else Fraction(least, size)
            )
        if least is not None and result.lower_bound > least:
            found.append(f"repetend {size} proves {result.lower_bound}, the optimum is {least}")
        proved = (
            result.solution is not None and result.solution.period == result.solution.size_bound
        )
        if proved and result.value != least and result.solution.pattern.size == size:
            found.append(
                f"repetend {size} proves its pattern of {result.value}, the least is {least}"
            )
        if result.status == "infeasible" and least is not None:
            found.append(f"repetend {size} says infeasible, brute force has {least}")
        if result.solution is not None and makespan_bound(problem, 3) > result.solution.makespan:
            found.append(
                f"makespan bound {makespan_bound(problem, 3)} exceeds {result.solution.makespan}"
            )
    return best is not None, found
