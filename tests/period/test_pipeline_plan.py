"""Replicated stages and clusters against an enumeration of all chains, and against ideal-dp."""

from __future__ import annotations

from functools import cache

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.exact.pipeline_plan import plan_pipeline
from placeopt.solving.registry import make_solver

pytestmark = pytest.mark.jit


def identical(seed, devices, n=5):
    """Return a random problem on identical accelerators without colocation."""
    base = problems.random_problem(seed, n=n)
    rng = np.random.default_rng(seed)
    ticks = rng.integers(1, 12, n)
    return PlacementProblem(
        name="identical", compute=np.repeat(ticks[:, None], devices, axis=1), producer=base.producer,
        consumer_ptr=base.consumer_ptr, consumer=base.consumer, transfer=base.transfer, resident=base.resident,
        capacity=np.full(devices, int(base.resident.sum() * 0.7) + 1), io_class=np.zeros(devices, dtype=np.int64),
        objective="period",
    )  # fmt: skip


def crossing(problem, held, ticks):
    """Sum of ticks of the tensors that cross the border of a set of ops."""
    total = 0
    for t, (producer, consumers, _) in enumerate(problems.tensors(problem)):
        if (producer in held and set(consumers) - held) or (producer not in held and held & set(consumers)):
            total += int(ticks[t])
    return total


def enumerate_plans(problem, replicas, sync, clusters, uplink):
    """Return the best period over all chains of ideals, replica counts and clusters; None if nothing fits."""
    n, k = problem.num_ops, problem.num_devices
    size = k // clusters
    edges = [(u, v) for u, consumers, _ in problems.tensors(problem) for v in consumers]
    ideals = [
        frozenset(v for v in range(n) if bits >> v & 1)
        for bits in range(2**n)
        if all(bits >> u & 1 or not bits >> v & 1 for u, v in edges)
    ]

    def stage(held, r):
        if sum(int(problem.resident[v]) for v in held) > problem.capacity[0]:
            return float("inf")
        load = sum(int(problem.compute[v, 0]) for v in held) + crossing(problem, held, problem.transfer[:, 0])
        return -(-load // r) + -(-2 * (r - 1) * int(sum(sync[v] for v in held)) // r)

    @cache
    def inner(first, last, c):
        if first == last:
            return 0
        choices = [
            max(inner(first, middle, c - r), stage(last - middle, r))
            for middle in ideals
            if first <= middle < last
            for r in range(1, min(replicas, c) + 1)
        ]
        return min(choices, default=float("inf"))

    @cache
    def outer(last, j):
        if not last:
            return 0
        if j == 0:
            return float("inf")
        return min(
            max(
                outer(first, j - 1),
                inner(first, last, size),
                crossing(problem, last - first, uplink) if clusters > 1 else 0,
            )
            for first in ideals
            if first < last
        )

    best = outer(frozenset(range(n)), clusters)
    return None if best == float("inf") else best


@pytest.mark.parametrize(("devices", "replicas", "clusters"), [(3, 2, 1), (3, 3, 1), (4, 1, 2), (4, 2, 2)])
def test_plans_are_optimal(devices, replicas, clusters):
    """The plan's period is the best of all plans, and the plan covers every op once in a chain."""
    for seed in range(12):
        problem = identical(seed, devices)
        rng = np.random.default_rng(seed + 100)
        sync, uplink = rng.integers(0, 4, problem.num_ops), rng.integers(0, 9, problem.num_tensors)
        expected = enumerate_plans(problem, replicas, sync, clusters, uplink)
        plan = plan_pipeline(problem, max_replicas=replicas, sync=sync, clusters=clusters, uplink=uplink)
        assert (None if plan is None else plan.period) == expected, seed
        if plan is None:
            continue
        assert plan.optimal
        assert sorted(v for stage in plan.stages for v in stage.ops) == list(range(problem.num_ops))
        used = [d for stage in plan.stages for d in stage.devices]
        assert len(set(used)) == len(used) <= devices
        assert max(len(stage.devices) for stage in plan.stages) <= replicas
        size = devices // clusters
        assert all({d // size for d in stage.devices} == {stage.cluster} for stage in plan.stages) or clusters == 1
        position = {v: i for i, stage in enumerate(plan.stages) for v in stage.ops}
        for u, consumers, _ in problems.tensors(problem):
            assert all(position[u] <= position[v] for v in consumers)


def test_one_replica_is_ideal_dp():
    """Without options the plan has the value of ideal-dp, CPUs and colocation included."""
    for seed in range(15):
        problem = problems.random_problem(seed, training=seed % 2 == 1, contiguity="chain")
        plan = plan_pipeline(problem)
        result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
        assert (None if plan is None else plan.period) == result.objective


def test_replicas_shorten_a_published_pipeline(data):
    """On bert24 replication without synchronisation never hurts; with a dear one it is not used."""
    problem = po.load(data / "dnn-partitioning/throughput/layer_bert24_inference.json", objective="period")
    single = plan_pipeline(problem).period
    assert plan_pipeline(problem, max_replicas=6).period <= single
    assert plan_pipeline(problem, max_replicas=6, sync=np.full(problem.num_ops, 10**9)).period == single
    free = plan_pipeline(problem, clusters=3, uplink=np.zeros(problem.num_tensors)).period
    assert free <= plan_pipeline(problem, clusters=3, uplink=problem.transfer[:, 0] * 1000).period


def test_too_many_ideals_and_bad_options():
    """A star falls back to one order and says so; wrong options are one clear line."""
    n = 12
    problem = PlacementProblem.from_edges(np.full((n, 4), 4), [(0, v, 1) for v in range(1, n)], objective="period")
    assert not plan_pipeline(problem, clusters=2, max_ideals=50).optimal
    with pytest.raises(InputError, match="divisor of 4"):
        plan_pipeline(problem, clusters=3)
    with pytest.raises(InputError, match="max_replicas"):
        plan_pipeline(problem, max_replicas=0)
    with pytest.raises(InputError, match="sync: expected 12"):
        plan_pipeline(problem, sync=[1, 2])
