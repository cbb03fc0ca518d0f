"""Small problems of every type, which every solver of the type is held against."""

from __future__ import annotations

import functools

import numpy as np
from sharding_problems import draw as draw_sharding
from small_plans import small_plan_problems
from stream_samples import few_jobs, stream

from placeopt.model.problem import PlacementProblem
from placeopt.schedules.sources import load_pipeline
from placeopt.splits.problem import SplitProblem


def layered(seed, num_ops=14, num_devices=3, **fields):
    """Return a random layered problem with shared tensors and unrelated devices."""
    rng = np.random.default_rng(seed)
    producer, pointer, consumer = [], [0], []
    for u in range(num_ops - 3):
        targets = np.unique(rng.integers(u + 1, min(num_ops, u + 6), 2))
        producer.append(u)
        consumer += targets.tolist()
        pointer.append(len(consumer))
    m = len(producer)
    settings = {
        "compute": rng.integers(1, 20, (num_ops, num_devices)),
        "producer": producer,
        "consumer_ptr": pointer,
        "consumer": consumer,
        "transfer": rng.integers(0, 15, (m, 1)),
        "resident": rng.integers(1, 10, num_ops),
        "tensor_bytes": rng.integers(1, 10, m),
        **fields,
    }
    return PlacementProblem.from_arrays(**settings)


@functools.cache
def other_problems(kind, objective):
    """Return small problems of a type and an objective; each solver takes at least one of them."""
    if kind == "jobs":
        return (few_jobs(0), stream(jobs=12, seed=1))
    if kind == "sharding":
        return tuple(draw_sharding(seed, nodes=5)[0] for seed in (3, 5, 11, 17))
    if kind == "plan":
        return small_plan_problems(objective)
    if kind == "split":
        base = layered(
            1, num_ops=9, compute=np.repeat(np.arange(3, 12)[:, None], 3, axis=1)
        ).replace(objective="period")
        tight = base.replace(capacity=[25] * 3)
        return (
            SplitProblem(base, max_replicas=3, sync=np.arange(9)),
            SplitProblem(tight, overlap=True),
            SplitProblem(base, groups=3, max_replicas=2),
        )
    if kind == "pipeline":
        return (
            load_pipeline("shape:V?devices=2&memory=3&micro_batches=6"),
            load_pipeline("shape:V?devices=4&split=1&micro_batches=8"),
            load_pipeline("shape:interleaved?devices=2&micro_batches=4"),
            load_pipeline("shape:wave?devices=4&split=1&micro_batches=8"),
            load_pipeline("shape:wave?devices=2&micro_batches=4"),
            load_pipeline("shape:X?devices=2&micro_batches=4"),
            load_pipeline("shape:X?devices=2&split=1&micro_batches=4"),
        )
    problems = [layered(1, num_ops=9), layered(2, num_ops=9, capacity=[30, 30, 30])]
    if objective == "period":
        problems.append(layered(3, num_ops=8, backward=[0, 0, 0, 0, 1, 1, 1, 1]))
        problems.append(layered(4, num_ops=8, objective="period", contiguity="none"))
    return tuple(problem.replace(objective=objective) for problem in problems)
