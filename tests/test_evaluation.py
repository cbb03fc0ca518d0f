"""The numba evaluator against the oracle and the validator."""

from __future__ import annotations

import os

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings, strategies as st
from random_problems import random_device, random_problem

from placeopt.makespan.evaluate import INFEASIBLE, evaluate, evaluate_batch
from placeopt.makespan.judge import schedule_violations
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"


def compare(seed):
    """Check one random problem under all three executions."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    device = random_device(rng, problem)
    topological = np.empty(problem.num_ops, dtype=np.int64)
    topological[problem.topological_order] = np.arange(problem.num_ops)
    for queue in ("fifo", "priority", "planned"):
        rank = (
            topological // rng.integers(1, 3)
            if queue == "planned"
            else rng.integers(0, 5, problem.num_ops)
        )
        placement = Placement(device, None if queue == "fifo" else rank)
        expected = reference.run(problem, device, rank, queue)
        if expected is None:
            with pytest.raises(InfeasiblePlacementError, match="planned"):
                evaluate(problem, placement, queue)
            continue
        makespan, start, finish, transfers = expected
        got = evaluate(problem, placement, queue)
        assert got.makespan == makespan
        assert got.start.tolist() == start
        assert got.finish.tolist() == finish
        assert {(t, d): (a, b) for t, d, a, b in got.transfers.tolist()} == transfers
        assert got.peak_memory.tolist() == reference.peak(problem, device, start, finish, transfers)
        assert schedule_violations(problem, got.schedule) == []
        ranks = None if queue == "fifo" else rank
        assert evaluate_batch(problem, device[None, :], ranks, queue).tolist() == [makespan]


@pytest.mark.interpreted
@settings(
    max_examples=80 if INTERPRETED else 1500, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.integers(0, 2**32))
def test_evaluator_equals_the_oracle(seed):
    """The kernel's schedule, transfers and peak memory equal the oracle's in all three
    executions.
    """
    compare(seed)


@pytest.mark.parametrize("block", range(10))
def test_evaluator_equals_the_oracle_on_fixed_seeds(block):
    """The same on 1000 fixed seeds, so that every run checks at least these."""
    for seed in range(block * 100, (block + 1) * 100):
        compare(seed)


@pytest.mark.interpreted
def test_renumbering_ops_changes_nothing_where_there_are_no_ties():
    """With distinct times, the makespan does not depend on how ops and tensors are numbered."""
    rng = np.random.default_rng(5)
    n, k = 12, 3
    compute = rng.permutation(n * k).reshape(n, k) * 1009 + rng.integers(1, 500, (n, k))
    edges = [
        (u, v, int(rng.integers(1, 10**6)))
        for u in range(n)
        for v in range(u + 1, n)
        if rng.random() < 0.3
    ]
    device = rng.integers(0, k, n)
    value = evaluate(PlacementProblem.from_edges(compute, edges), device).makespan
    for _ in range(20):
        new = rng.permutation(n)
        moved = np.empty_like(compute)
        moved[new] = compute
        there = np.empty_like(device)
        there[new] = device
        renamed = [(int(new[u]), int(new[v]), c) for u, v, c in edges]
        rng.shuffle(renamed)
        assert evaluate(PlacementProblem.from_edges(moved, renamed), there).makespan == value


def test_batch_does_not_depend_on_threads():
    """One thread and several give the same makespans, in the same order."""
    rng = np.random.default_rng(3)
    edges = [(int(u), int(v), 3) for v in range(1, 300) for u in rng.integers(0, v, 2)]
    problem = PlacementProblem.from_edges(rng.integers(1, 9, (300, 4)), edges[::2])
    devices = rng.integers(0, 4, (300, 300))
    ranks = rng.integers(0, 9, (300, 300))
    for priorities in (None, ranks, ranks[0]):
        values = [
            evaluate_batch(problem, devices, priorities, threads=t).tolist() for t in (1, 2, 5)
        ]
        assert values[0] == values[1] == values[2]
        row = None if priorities is None else (ranks[0] if priorities.ndim == 1 else ranks[7])
        assert values[0][7] == evaluate(problem, Placement(devices[7], row)).makespan


@pytest.mark.interpreted
def test_broken_constraints_are_infeasible_in_batches_and_errors_alone():
    """Incompatible, split groups and full devices: INFEASIBLE in a batch, one clear line from
    evaluate.
    """
    problem = PlacementProblem.from_edges(
        [[1, -1], [2, 2], [3, 3]],
        [(0, 1, 1)],
        resident=[5, 5, 5],
        capacity=[10, 10],
        colocation=[-1, 7, 7],
    )
    rows = [[0, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0], [0, 9, 9]]
    assert (evaluate_batch(problem, rows) == INFEASIBLE).tolist() == [False, True, True, True, True]
    for row, words in zip(
        rows[1:], ("cannot run", "colocation", "capacity", "devices are"), strict=True
    ):
        with pytest.raises(InfeasiblePlacementError, match=words):
            evaluate(problem, row)
    assert evaluate(problem, rows[3], check=False).makespan == 6


@pytest.mark.interpreted
def test_ids_of_groups_may_be_hashes():
    """Groups of huge ids are those of small ones, and need no more memory."""
    compute, edges = [[1, 2], [2, 1], [3, 3], [4, 4]], [(0, 1, 1), (1, 3, 2)]
    rows = np.indices((2,) * 4).reshape(4, -1).T
    small, huge = (
        evaluate_batch(PlacementProblem.from_edges(compute, edges, colocation=ids), rows).tolist()
        for ids in ([0, 1, 0, 1], [2**62 + 5, 2**40, 2**62 + 5, 2**40])
    )
    assert huge == small
    assert small.count(INFEASIBLE) == 12


@pytest.mark.interpreted
@pytest.mark.parametrize("queue", ["fifo", "priority", "planned"])
def test_ids_of_channels_may_be_hashes(queue):
    """Channels of any numbers are those numbered from 0, and what nobody is on costs nothing."""
    problem = random_problem(np.random.default_rng(10), max_devices=3, contention="source")
    large = problem.replace(channel=problem.channel * 2**58 + 7)
    placement = Placement(
        random_device(np.random.default_rng(1), problem), np.argsort(problem.topological_order)
    )
    assert problem.num_channels == large.num_channels == problem.num_devices > 1
    found, expected = evaluate(large, placement, queue), evaluate(problem, placement, queue)
    assert found.makespan == expected.makespan
    assert found.transfers.tolist() == expected.transfers.tolist()


@pytest.mark.interpreted
@pytest.mark.parametrize("objective", ["makespan", "period", "latency"])
def test_a_huge_number_is_no_device(objective):
    """What int32 cannot hold does not come back as the device that is left of it."""
    problem = PlacementProblem.from_edges([[1, 1], [2, 2]], [(0, 1, 1)], objective=objective)
    rows = [
        np.array([[2**32, 2**32], [2**32 + 1, 1], [1, 1]], kind) for kind in (np.int64, np.uint64)
    ]
    for devices in (*rows, -rows[0] * [[1], [1], [0]] + [[0], [0], [1]]):
        values = objective_of(problem).evaluate_batch(problem, devices)
        assert (values == INFEASIBLE).tolist() == [True, True, False]


@pytest.mark.interpreted
def test_priorities_are_whole_numbers_in_batches_too():
    """Scores between 0 and 1 are refused, as a Placement refuses them, not cut to the rank 0."""
    problem = PlacementProblem.from_edges([[1], [2], [4]], [(0, 2, 1)])
    for ranks, words in (([0.5, 0.1, 0.9], "below 2"), ([np.nan, 0, 1], "NaN"), (["a"] * 3, "<U1")):
        with pytest.raises(InputError, match=f"priorities: expected whole numbers.*{words}"):
            evaluate_batch(problem, [[0, 0, 0]], ranks)
    floats = evaluate_batch(problem, [[0, 0, 0]], [2.0, 0.0, 1.0])
    assert floats.tolist() == evaluate_batch(problem, [[0, 0, 0]], [2, 0, 1]).tolist()


@pytest.mark.interpreted
def test_peak_memory_limits_batches():
    """With memory='peak', a placement whose live tensors do not fit is INFEASIBLE."""
    problem = PlacementProblem.from_edges(
        [[1, 1], [1, 1]], [(0, 1, 1)], tensor_bytes=[8], capacity=[8, 7], memory="peak"
    )
    assert (evaluate_batch(problem, [[0, 0], [0, 1], [1, 1]]) == INFEASIBLE).tolist() == [
        False,
        True,
        True,
    ]
    with pytest.raises(InfeasiblePlacementError, match="peaks at 8 bytes"):
        evaluate(problem, [1, 1])


@pytest.mark.interpreted
def test_queue_names_are_checked():
    """An unknown queue, or one that needs priorities without them, is refused."""
    problem = PlacementProblem.from_edges([[1]], [])
    with pytest.raises(InputError, match="queue"):
        evaluate(problem, [0], "lifo")
    with pytest.raises(InputError, match="needs a placement with priorities"):
        evaluate(problem, [0], "planned")


def test_large_graph_and_many_devices():
    """10^5 ops on 64 devices under per-pair contention run and agree with the validator's rules on
    durations.
    """
    rng = np.random.default_rng(1)
    n, k = 100_000, 64
    heads = np.repeat(np.arange(1, n), 2)
    tails = (heads - 1 - rng.integers(0, 50, len(heads)).clip(max=heads - 1)).clip(min=0)
    pairs = np.unique(np.stack([tails, heads], 1), axis=0)
    edges = np.column_stack([pairs, rng.integers(1, 50, len(pairs))])
    problem = PlacementProblem(
        name="large",
        compute=rng.integers(1, 100, (n, k)),
        producer=edges[:, 0],
        consumer_ptr=np.arange(len(edges) + 1),
        consumer=edges[:, 1],
        transfer=edges[:, 2:],
        channel=np.arange(k * k).reshape(k, k),
    )
    got = evaluate(problem, rng.integers(0, k, n))
    assert got.makespan == got.finish.max()
    assert (got.finish - got.start == problem.compute[np.arange(n), got.placement.device]).all()
    assert got.busy.sum() == (got.finish - got.start).sum()
