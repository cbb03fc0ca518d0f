"""Devices filled one after another, on problems whose memory is full to the byte."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import placeopt as po
from placeopt.model.objective import INFEASIBLE
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch
from placeopt.solvers.heuristics.filling import Filling, _sums, fillings, first_filled
from placeopt.splits.problem import SplitProblem

pytestmark = pytest.mark.jit


def full_problem(seed, n=60, k=4, *, alike=True, **fields):
    """Return a problem of the period in which ops that were put on k devices, along a random order
    of edges, fill each to the last byte.
    """
    rng = np.random.default_rng(seed)
    stage = np.sort(np.append(np.tile(np.arange(k), 2), rng.integers(0, k, n - 2 * k)))
    resident = rng.integers(1, 100, n)
    held = np.bincount(stage, resident).astype(np.int64)
    if alike:
        resident[np.searchsorted(stage, np.arange(k))] += held.max() - held
    producer = np.flatnonzero(np.arange(n) < n - 1)
    consumer = [rng.integers(u + 1, min(n, u + 9), 1) for u in producer.tolist()]
    reads = [sorted(set(pair.tolist())) for pair in consumer]
    renamed = rng.permutation(n)
    old = np.argsort(renamed)
    order = np.argsort(renamed[producer])
    reads = [sorted(renamed[reads[at]].tolist()) for at in order]
    return PlacementProblem(
        name=f"full{seed}",
        compute=np.repeat(rng.integers(1, 100, n)[:, None], k, axis=1),
        producer=np.sort(renamed[producer]),
        consumer_ptr=np.cumsum([0, *map(len, reads)]),
        consumer=np.concatenate(reads),
        transfer=rng.integers(0, 10, (n - 1, 1)),
        resident=resident[old],
        capacity=np.full(k, held.max()) if alike else held,
        io_class=np.zeros(k, np.int64),
        objective="period",
        **fields,
    )


def paths_in_full_memory(seed, n=40, k=4, **fields):
    """Return a problem whose best placement is a path of ops on each of k devices, which it fills
    to the last byte and keeps busy as long as the others, and that time.
    """
    rng = np.random.default_rng(seed)
    home, renamed = np.repeat(np.arange(k), n // k), rng.permutation(n)
    compute, resident = rng.integers(20, 100, (2, n))
    for row in (compute, resident):
        sums = np.bincount(home, row).astype(np.int64)
        row[:: n // k] += sums.max() - sums
    old = np.argsort(renamed)
    problem = PlacementProblem.from_edges(
        np.repeat(compute[old][:, None], k, axis=1),
        [(renamed[v], renamed[v + 1], 30) for v in range(n - 1) if home[v] == home[v + 1]],
        resident=resident[old],
        capacity=np.full(k, resident.sum() // k),
        **fields,
    )
    return problem, int(compute.sum()) // k


@pytest.mark.parametrize("fields", [{"contiguity": "none"}, {"objective": "latency"}])
def test_full_devices_exchange_a_few_for_a_few(fields):
    """Annealing ends at the best placement, where nothing moves alone and two ops alike are rare."""
    for seed in (4, 5):
        problem, best = paths_in_full_memory(seed, **{"objective": "period", **fields})
        result = po.solve(problem, solver="cp-sat", tactics="filling,annealing", evaluations=60)
        assert result.value == best


def test_what_hangs_together_is_exchanged():
    """Sums are made of all subsets that leave no edge back, not of nodes at an end alone."""
    before = [[], [0], [0], [1], [2]]
    which, sums = _sums(np.array([1, 2, 4, 8, 16]), [1, 3, 2, 4], before)
    sets = {x + y for x in ((), (1,), (1, 3)) for y in ((), (2,), (2, 4))}
    assert sorted(sums.tolist()) == sorted(sum(1 << v for v in nodes) for nodes in sets)
    assert len(set(which.tolist())) == len(sets)


def test_devices_that_run_some_ops_only_are_filled():
    """What has no other device left is taken first: packings to the byte are found at once."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        home, size = np.repeat(np.arange(4), 12), rng.integers(1, 100, 48)
        able = rng.random((48, 4)) < 0.5
        able[np.arange(48), home] = True
        none = [[] for _ in home]
        filling = Filling(size, able, np.bincount(home, size).astype(np.int64), none, none)
        found = first_filled(filling, rng, draws=3000)
        assert able[np.arange(48), found].all()
        assert (np.bincount(found, size) == filling.capacity).all()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("contiguity", ["none", "convex", "chain"])
def test_what_fits_is_found_where_devices_are_full(contiguity, alike):
    """Period, latency and split have a valid answer, where balanced starts find none."""
    problem = full_problem(1, alike=alike, contiguity=contiguity)
    latency = problem.replace(objective="latency", contiguity="convex")
    for full in (problem, latency):
        result = po.solve(full, solver="cp-sat", tactics="filling", evaluations=2000)
        assert result.solution is not None


def test_splits_begin_with_what_fits():
    """The chain that a split begins with fills the devices, where nothing else fits."""
    split = SplitProblem(full_problem(2))
    assert po.solve(split, evaluations=12, max_ideals=1000).solution is not None


def test_fillings_are_chains_that_fit():
    """No device holds more than it can, no edge leads back in the order of some row of devices, and
    nothing is yielded where bytes are too many for all devices.
    """
    problem = full_problem(2, contiguity="chain")
    model = contract(problem)
    found = list(islice(fillings(model, np.random.default_rng(0)), 200))
    assert any(home is not None for home in found)
    for home in found:
        if home is not None:
            assert period_batch(problem, home[None, :])[0] < INFEASIBLE
    less = problem.replace(capacity=problem.capacity - 1)
    assert list(fillings(contract(less), np.random.default_rng(0))) == []
