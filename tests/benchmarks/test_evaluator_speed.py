"""Speed of the evaluator: `python -m pytest tests/benchmarks --benchmark-only`."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.makespan import simulator as kernels
from placeopt.makespan.evaluate import evaluate_batch
from placeopt.makespan.simulator import problem_arrays
from placeopt.model.problem import PlacementProblem


def layered(n, k, edges, seed=0, channel=None):
    """Return a random graph of n ops whose edges span at most 50 positions."""
    rng = np.random.default_rng(seed)
    v = rng.integers(1, n, edges)
    u = v - 1 - rng.integers(0, 50, edges).clip(max=v - 1)
    pairs = np.unique(np.stack([u, v], 1), axis=0)
    cost = rng.integers(1, 50, len(pairs))
    return PlacementProblem(
        name=f"layered-{n}",
        compute=rng.integers(1, 100, (n, k)),
        producer=pairs[:, 0],
        consumer_ptr=np.arange(len(pairs) + 1),
        consumer=pairs[:, 1],
        transfer=cost[:, None],
        channel=channel,
    )


@pytest.mark.parametrize("queue", ["fifo", "priority"])
@pytest.mark.parametrize(
    ("n", "edges", "k", "batch"),
    [(1000, 2000, 8, 64), (200, 400, 4, 256), (100_000, 200_000, 64, 1)],
)
def test_evaluations_on_one_core(benchmark, n, edges, k, batch, queue):
    """Time of `batch` evaluations on one core."""
    problem = layered(n, k, edges)
    rng = np.random.default_rng(1)
    devices = rng.integers(0, k, (batch, n)).astype(np.int32)
    ranks = np.arange(n)[None, :] if queue == "priority" else np.zeros((0, 0), dtype=np.int64)
    devices.setflags(write=False)
    ranks.setflags(write=False)
    out = np.empty(batch, dtype=np.int64)
    arrays = problem_arrays(problem)
    kernels.batch(arrays, devices, ranks, kernels.MODES[queue], out)
    benchmark(kernels.batch, arrays, devices, ranks, kernels.MODES[queue], out)
    benchmark.extra_info["microseconds_per_evaluation"] = benchmark.stats["min"] / batch * 1e6
    print(
        f"\n{n} ops, {queue}: {benchmark.stats['min'] / batch * 1e6:.1f} us per evaluation (best "
        "round)"
    )


@pytest.mark.parametrize("contention", ["pair", "source"])
def test_contended_evaluations_on_one_core(benchmark, contention):
    """Time of 64 evaluations of 1000 ops, 2000 edges, 8 devices with contention."""
    k = 8
    channel = (
        np.arange(k * k).reshape(k, k)
        if contention == "pair"
        else np.repeat(np.arange(k)[:, None], k, axis=1)
    )
    problem = layered(1000, k, 2000, channel=channel)
    devices = np.random.default_rng(1).integers(0, k, (64, 1000)).astype(np.int32)
    evaluate_batch(problem, devices, threads=1)
    benchmark(evaluate_batch, problem, devices, threads=1)
    print(f"\n{contention}: {benchmark.stats['min'] / 64 * 1e6:.1f} us per evaluation (best round)")


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_scaling(benchmark, threads):
    """Time of 2000 evaluations of 1000 ops on one and on two threads."""
    problem = layered(1000, 8, 2000)
    devices = np.random.default_rng(1).integers(0, 8, (2000, 1000)).astype(np.int32)
    evaluate_batch(problem, devices, threads=threads)
    benchmark(evaluate_batch, problem, devices, threads=threads)
