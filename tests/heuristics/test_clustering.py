"""Clusterings: what they may merge, what they must not make worse, and where theory says they are
optimal.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.model.problem import PlacementProblem
from placeopt.model.projection import join_units
from placeopt.model.result import Budget
from placeopt.solvers.heuristics.clustering import (
    EdgeZeroing,
    cut_clusters,
    dsc_clusters,
    internalised,
    map_clusters,
    merge_units,
    unit_graph,
)
from placeopt.solvers.heuristics.clustering_kernels import zero_edges
from placeopt.solvers.heuristics.context import Context
from placeopt.solving.registry import make_solver

pytestmark = pytest.mark.interpreted


def parallel_time(problem, cluster, order):
    """Makespan with one device per cluster, ops of a cluster in `order`; plain Python."""
    finish, open_at = {}, {}
    for op in order:
        begin = open_at.get(cluster[op], 0)
        for e in np.flatnonzero(problem.consumer == op):
            source = int(problem.producer[problem.edge_tensor[e]])
            delay = (
                0
                if cluster[source] == cluster[op]
                else Context(problem).mean_transfer[problem.edge_tensor[e]]
            )
            begin = max(begin, finish[source] + delay)
        finish[op] = open_at[cluster[op]] = begin + Context(problem).mean_compute[op]
    return max(finish.values())


def partitions(items):
    """All ways to split a list into blocks, as label tuples."""
    for labels in itertools.product(range(len(items)), repeat=len(items)):
        if all(label <= max(labels[:i], default=-1) + 1 for i, label in enumerate(labels)):
            yield labels


def star(rng, children, inward):
    """Return a fork (root first) or a join (root last) with random work and edge costs, on
    identical devices.
    """
    work = rng.integers(1, 10, children + 1)
    cost = rng.integers(0, 12, children)
    root = children if inward else 0
    leaves = range(children) if inward else range(1, children + 1)
    edges = [(v, root, c) if inward else (root, v, c) for v, c in zip(leaves, cost, strict=True)]
    return PlacementProblem.from_edges(np.repeat(work[:, None], 2, axis=1), edges)


def best_star(problem, root):
    """Best parallel time of a star over all clusterings and orders: brute force."""
    leaves = [v for v in range(problem.num_ops) if v != root]
    best = np.inf
    for size in range(len(leaves) + 1):
        for chosen in itertools.combinations(leaves, size):
            cluster = [v if v not in (*chosen, root) else root for v in range(problem.num_ops)]
            for sequence in itertools.permutations(chosen):
                rest = [v for v in leaves if v not in chosen]
                order = [root, *sequence, *rest] if root == 0 else [*sequence, *rest, root]
                best = min(best, parallel_time(problem, cluster, order))
    return best


@pytest.mark.jit
@pytest.mark.parametrize("inward", [False, True], ids=["fork", "join"])
def test_dsc_is_optimal_on_stars(inward):
    """Yang and Gerasoulis prove DSC optimal for forks and joins: equal to brute force over all
    clusterings.
    """
    for seed in range(12):
        problem = star(np.random.default_rng(seed), 4, inward)
        _, start = dsc_clusters(Context(problem))
        best = best_star(problem, problem.num_ops - 1 if inward else 0)
        assert (start + problem.compute[:, 0]).max() == best, seed


def test_dsc_schedule_is_valid():
    """Starts respect data from other clusters and never overlap inside a cluster."""
    for seed in range(60):
        problem = random_problem(np.random.default_rng(seed), max_ops=25)
        view = Context(problem)
        cluster, start = dsc_clusters(view)
        finish = start + view.mean_compute
        for tensor, op in zip(problem.edge_tensor, problem.consumer, strict=True):
            source = problem.producer[tensor]
            delay = 0.0 if cluster[source] == cluster[op] else view.mean_transfer[tensor]
            assert start[op] >= finish[source] + delay - 1e-9
        for label in np.unique(cluster):
            mine = np.flatnonzero(cluster == label)
            mine = mine[np.lexsort((finish[mine], start[mine]))]
            assert (start[mine[1:]] >= finish[mine[:-1]] - 1e-9).all()


def test_dsc_is_no_worse_than_no_clustering():
    """The parallel time of DSC is at most that of one op per cluster, the longest path with all
    transfers.
    """
    for seed in range(60):
        problem = random_problem(np.random.default_rng(seed), max_ops=25, colocated=False)
        view = Context(problem)
        _, start = dsc_clusters(view)
        assert (start + view.mean_compute).max() <= view.upward_rank()[0].max() + 1e-9


def test_internalisation_never_grows_the_parallel_time():
    """Sarkar's rule only ever lowers the parallel time, recomputed here in plain Python."""
    for seed in range(30):
        problem = random_problem(
            np.random.default_rng(seed), max_ops=15, incompatible=False, colocated=False
        )
        view = Context(problem)
        cluster = internalised(view, unit_graph(view))
        order = view.by_decreasing(view.upward_rank()[0]).tolist()
        alone = parallel_time(problem, list(range(problem.num_ops)), order)
        assert parallel_time(problem, cluster.tolist(), order) <= alone + 1e-9


def test_zeroing_respects_cap_and_memory():
    """No cluster of several units exceeds the load cap or outgrows every device that can run it."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, max_ops=20, max_devices=3)
        problem = problem.replace(capacity=rng.integers(10, 60, problem.num_devices))
        view = Context(problem)
        if not view.units.allowed.any(axis=1).all():
            continue
        graph = unit_graph(view)
        cap = float(rng.uniform(0, graph.mean_work.sum() + 1))
        cluster = zero_edges(graph, len(graph.cost), cap)
        joined = join_units(view.units, cluster)
        for label in np.flatnonzero(np.bincount(cluster) > 1):
            assert graph.mean_work[cluster == label].sum() <= cap + 1e-9
            assert (joined.allowed[label] & (joined.bytes[label] <= problem.capacity)).any()


def test_unlimited_cap_merges_connected_parts():
    """Without a cap every connected component becomes one cluster."""
    problem = PlacementProblem.from_edges([[1, 1]] * 6, [(0, 1, 3), (1, 2, 1), (3, 4, 0)])
    graph = unit_graph(Context(problem))
    assert zero_edges(graph, len(graph.cost), 1e9).tolist() == [0, 0, 0, 1, 1, 2]


def test_mapping_is_longest_processing_time():
    """Clusters of 7, 6, 5, 4 go to the emptier device each: 7+4 and 6+5."""
    problem = PlacementProblem.from_edges([[7, 7], [6, 6], [5, 5], [4, 4]], [])
    device, overflow = map_clusters(unit_graph(Context(problem)), np.arange(4), 0.0)
    assert not overflow
    assert device.tolist() == [0, 1, 1, 0]


def test_mapping_follows_affinity_within_the_limit():
    """A small cluster joins the one it talks to while the load limit allows, and leaves it
    otherwise.
    """
    problem = PlacementProblem.from_edges([[5, 5], [5, 5], [2, 2]], [(0, 2, 9)])
    graph = unit_graph(Context(problem))
    for limit, expected in ((7.0, [0, 1, 0]), (5.0, [0, 1, 0])):
        assert map_clusters(graph, np.arange(3), limit)[0].tolist() == expected
    lopsided = unit_graph(Context(problem.replace(compute=np.array([[6, 6], [5, 5], [2, 2]]))))
    assert map_clusters(lopsided, np.arange(3), 8.0)[0].tolist() == [0, 1, 0]
    assert map_clusters(lopsided, np.arange(3), 7.0)[0].tolist() == [0, 1, 1]


def test_a_cluster_too_large_for_a_device_is_torn_apart():
    """A cluster that fits nowhere as a whole is placed unit by unit."""
    problem = PlacementProblem.from_edges([[1, 1]] * 4, [], resident=[4] * 4, capacity=[8, 8])
    device, overflow = map_clusters(
        unit_graph(Context(problem)), np.zeros(4, dtype=np.int64), 100.0
    )
    assert not overflow
    assert np.bincount(device).tolist() == [2, 2]


def test_torn_groups_are_rejoined():
    """Units take the cluster of their first op, numbered without holes."""
    assert merge_units(np.array([5, 2, 5, 0]), np.array([0, 1, 3])).tolist() == [2, 1, 0]


def test_one_cluster_is_always_tried():
    """Where communication dwarfs computation, edge-zeroing keeps a connected graph on one
    device.
    """
    edges = [(i, i + 1, 1000) for i in range(9)] + [(0, i, 1000) for i in range(2, 10)]
    problem = PlacementProblem.from_edges(np.ones((10, 8), dtype=np.int64), edges)
    assert make_solver("edge-zeroing").solve(problem, Budget(), seed=0).objective == 10


def test_edge_counts_end_at_cost_levels():
    """Thresholds never separate edges of equal cost."""
    cost = np.array([9.0, 9.0, 5.0, 5.0, 5.0, 1.0])
    assert EdgeZeroing()._edge_counts(cost) == [6, 5, 2]
    assert EdgeZeroing()._edge_counts(np.zeros(0)) == [0]


def test_cuts_fit_the_fast_device():
    """A cluster that only the slow device could hold is cut, in order of time, into pieces for the
    fast ones.
    """
    problem = PlacementProblem.from_edges(
        [[1, 1, 50]] * 6,
        [(i, i + 1, 1) for i in range(5)],
        resident=[4] * 6,
        capacity=[12, 12, 100],
    )
    graph, together = unit_graph(Context(problem)), np.zeros(6, dtype=np.int64)
    assert cut_clusters(graph, together, np.arange(6.0), np.inf).tolist() == [0, 0, 0, 1, 1, 1]
    assert cut_clusters(graph, together, np.arange(6.0)[::-1], 2.0).tolist() == [2, 2, 1, 1, 0, 0]
    assert make_solver("dsc").solve(problem, Budget(), seed=0).objective == 7
