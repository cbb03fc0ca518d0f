"""Small random planning problems, and brute force over all of their plans, sharing no code with
search or price.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations
from math import ceil

import numpy as np

from placeopt.plans.sample_problem import SamplePlanProblem


def random_problem(seed, layers=4, devices=5, *, edges=True, samples=6):
    """Return a random SamplePlanProblem with two tensor degrees, tight memory and a random order of
    the layers.
    """
    rng = np.random.default_rng(seed)
    pairs = [
        (u, v) for u in range(layers) for v in range(u + 1, layers) if edges and rng.random() < 0.5
    ]
    shape = (2, 2, layers)
    work = rng.integers(1, 40, shape)
    work[:, 1] = work[:, 0] + rng.integers(-2, 12, (2, layers))
    work = np.maximum(work, 0)
    work[1, 1, rng.random(layers) < 0.2] = -1
    kept, fixed = rng.integers(0, 10, shape), rng.integers(0, 10, shape)
    kept[:, 1] = np.minimum(kept[:, 1], kept[:, 0] + 1)
    source, target = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    return SamplePlanProblem(
        layers=tuple(f"l{i}" for i in range(layers)),
        tensor_degrees=(1, 2),
        work=work,
        sync=rng.integers(0, 6, (2, layers)),
        kept=kept,
        fixed=fixed,
        source=source,
        target=target,
        sent=rng.integers(0, 8, (2, len(pairs))),
        received=rng.integers(0, 8, (2, len(pairs))),
        devices=devices,
        samples=samples,
        capacity=int(rng.integers(15, 60)),
        name=f"random-{seed}",
        tick_seconds=1.0,
    )


def _ordered_partitions(problem):
    """Yield every sequence of sets of layers whose unions are ideals."""
    n = problem.num_layers
    pairs = list(zip(problem.source.tolist(), problem.target.tolist(), strict=True))

    def grow(done):
        if len(done) == n:
            yield ()
            return
        left = [v for v in range(n) if v not in done]
        for size in range(1, len(left) + 1):
            for stage in combinations(left, size):
                inside = done | set(stage)
                if all(u in inside for u, v in pairs if v in inside):
                    for rest in grow(inside):
                        yield (stage, *rest)

    yield from grow(frozenset())


def _stage_ticks(problem, pairs, stage, t, d, flight):
    """Least ticks of a stage over every set of recomputed layers, None if none fits."""
    best = None
    traffic = sum(
        int(problem.sent[t, e]) * (u in stage and v not in stage)
        + int(problem.received[t, e]) * (v in stage and u not in stage)
        for e, (u, v) in enumerate(pairs)
    )
    sync = sum(int(problem.sync[t, v]) for v in stage) * (d - 1)
    subsets = chain.from_iterable(combinations(stage, k) for k in range(len(stage) + 1))
    for again in subsets if problem.allow_recompute else [()]:
        choice = {v: int(v in again) for v in stage}
        if any(problem.work[t, choice[v], v] < 0 for v in stage):
            continue
        memory = sum(
            int(problem.kept[t, choice[v], v]) * flight + int(problem.fixed[t, choice[v], v])
            for v in stage
        )
        if memory > problem.capacity:
            continue
        work = sum(int(problem.work[t, choice[v], v]) for v in stage)
        ticks = ceil(Fraction(work + traffic + sync, d))
        best = ticks if best is None else min(best, ticks)
    return best


def _choices(degrees, count, devices):
    """Yield every choice of replicas and their tensor degree, by index, for `count` stages that has
    enough devices.
    """
    if count == 0:
        yield ()
        return
    for d, width, t in degrees:
        if d * width <= devices:
            for rest in _choices(degrees, count - 1, devices - d * width):
                yield ((d, t), *rest)


def best_sample_time(problem):
    """Return the least time per sample of all plans, None if none fits."""
    pairs = list(zip(problem.source.tolist(), problem.target.tolist(), strict=True))
    degrees = [
        (d, width, t)
        for d in range(1, problem.devices + 1)
        if problem.samples % d == 0
        for t, width in enumerate(problem.tensor_degrees)
    ]
    best, known = None, {}
    for stages in _ordered_partitions(problem):
        for chosen in _choices(degrees, len(stages), problem.devices):
            if sum(d for d, _ in chosen) > problem.samples:
                continue
            value = 0
            for i, (stage, (d, t)) in enumerate(zip(stages, chosen, strict=True)):
                flight = ceil(Fraction(sum(d for d, _ in chosen[i:]), d))
                key = (stage, d, t, flight)
                if key not in known:
                    known[key] = _stage_ticks(problem, pairs, stage, t, d, flight)
                if known[key] is None:
                    value = None
                    break
                value = max(value, known[key])
            if value is not None and (best is None or value < best):
                best = value
    return best
