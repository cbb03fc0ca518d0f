"""Coarsening: what groups keep, and what a coarse solution promises on the fine graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from random_problems import random_device, random_problem

from placeopt.instances.coarsen import coarsen, group_labels
from placeopt.instances.generators import generate
from placeopt.instances.generators.planted import planted_problem
from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem


def _is_dag(model):
    source = np.repeat(model.producer, np.diff(model.consumer_ptr))
    return nx.is_directed_acyclic_graph(
        nx.DiGraph(zip(source.tolist(), model.consumer.tolist(), strict=True))
    )


def test_coarse_problem_adds_up_and_stays_acyclic():
    """Costs and bytes of a group are its members' sums, -1 wherever one cannot run; no cycle;
    colocation holds.
    """
    for seed in range(60):
        rng = np.random.default_rng(seed)
        fine = random_problem(rng, max_ops=25)
        coarsening = coarsen(fine, int(rng.integers(1, 8)))
        coarse, group = coarsening.coarse, coarsening.group
        assert _is_dag(coarse)
        assert sorted(set(group.tolist())) == list(range(coarse.num_ops))
        for g in range(coarse.num_ops):
            members = np.flatnonzero(group == g)
            rows = fine.compute[members]
            expected = np.where((rows < 0).any(axis=0), -1, rows.sum(axis=0))
            assert np.array_equal(coarse.compute[g], expected)
            assert coarse.resident[g] == fine.resident[members].sum()
        for a in range(fine.num_ops):
            for b in range(fine.num_ops):
                if fine.colocation[a] == fine.colocation[b] >= 0 and group[a] != group[b]:
                    assert coarse.colocation[group[a]] == coarse.colocation[group[b]] >= 0


def test_every_coarse_placement_expands_to_a_valid_fine_one():
    """Whatever satisfies the coarse problem satisfies the fine one, priorities or not."""
    for seed in range(40):
        rng = np.random.default_rng([1, seed])
        fine = random_problem(rng, max_ops=20, incompatible=seed % 2 == 0)
        coarsening = coarsen(fine, 4)
        coarse = coarsening.coarse
        placement = Placement(random_device(rng, coarse), rng.permutation(coarse.num_ops))
        if placement_violations(coarse, placement):
            continue
        expanded = coarsening.expand(placement)
        assert not placement_violations(fine, expanded)
        assert sorted(expanded.priority.tolist()) == list(range(fine.num_ops))
        assert coarsening.expand(Placement(placement.device)).priority is None
        assert np.array_equal(coarsening.restrict(expanded).device, placement.device)


def test_coarse_schedule_is_an_upper_bound_without_contention():
    """Executed in the coarse order, the fine ops end no later than the coarse schedule promised."""
    for seed in range(40):
        rng = np.random.default_rng([3, seed])
        fine = random_problem(rng, max_ops=25, contention="none")
        coarsening = coarsen(fine, 5)
        placement = Placement(random_device(rng, coarsening.coarse))
        if placement_violations(coarsening.coarse, placement):
            continue
        promise = evaluate(coarsening.coarse, placement)
        expanded = coarsening.expand(placement, promise.start)
        assert evaluate(fine, expanded, queue="planned").makespan <= promise.makespan


def test_group_labels_respect_constraints():
    """Ops of a group have a device they can share, and colocated ops are in one group."""
    for seed in range(40):
        rng = np.random.default_rng([4, seed])
        fine = random_problem(rng, max_ops=25)
        labels = group_labels(fine, 4)
        assert sorted(set(labels.tolist())) == list(range(labels.max() + 1))
        for g in range(labels.max() + 1):
            assert (fine.compute[labels == g] >= 0).all(axis=0).any()
        for c in set(fine.colocation.tolist()) - {-1}:
            assert len(set(labels[fine.colocation == c].tolist())) == 1
        if (fine.compute >= 0).all() and (fine.colocation < 0).all():
            assert labels.max() < 4


def test_memory_is_never_merged_beyond_the_largest_device():
    """Merges stop where one device could not hold the group."""
    rng = np.random.default_rng(5)
    base = random_problem(rng, max_ops=25, max_devices=1)
    fine = base.replace(
        resident=np.full(base.num_ops, 10), capacity=np.array([25]), colocation=None
    )
    assert coarsen(fine, 1).coarse.resident.max() <= 20
    assert np.bincount(group_labels(fine, 1)).max() <= 2


def test_diamonds_are_not_folded_into_a_cycle():
    """Matching both crossing edges of a 2 x 2 block would make a cycle; one of them is refused."""
    edges = [(0, 2, 9), (1, 3, 9), (0, 3, 1), (1, 2, 1)]
    fine = PlacementProblem.from_edges(np.ones((4, 2), dtype=np.int64), edges)
    coarse = coarsen(fine, 2).coarse
    assert coarse.num_ops == 2
    assert _is_dag(coarse)


def test_heavy_edges_disappear_first():
    """The heavy edges of a ladder of pairs are inside groups, the light ones between them."""
    edges = [(2 * i, 2 * i + 1, 100) for i in range(8)] + [(2 * i, 2 * i + 2, 1) for i in range(7)]
    fine = PlacementProblem.from_edges(np.full((16, 2), 10), edges)
    for labels in (coarsen(fine, 8).group, group_labels(fine, 8)):
        assert all(labels[2 * i] == labels[2 * i + 1] for i in range(8))
        assert len(set(labels.tolist())) == 8


def test_groups_of_a_training_graph_keep_forward_and_backward_apart():
    """Forward and backward ops are never in one group."""
    graph = generate("gen:resnet50?training=1")
    coarsening = coarsen(graph, 40)
    coarse = coarsening.coarse
    assert isinstance(coarse, OpGraph)
    assert _is_dag(coarse)
    assert (coarse.backward[coarsening.group] == graph.backward).all()
    assert coarse.parameters.sum() == graph.parameters.sum()


def test_groups_stay_balanced_on_large_graphs():
    """100 groups of 5000 ops have at most twice the mean work, on both kinds of grouping."""
    problem, _, _ = planted_problem(ops=5000, devices=4, seed=1)
    for labels in (coarsen(problem, 100).group, group_labels(problem, 100)):
        assert 90 <= labels.max() + 1 <= 100
        assert (
            np.bincount(labels, weights=problem.min_compute).max()
            <= 2 * problem.min_compute.sum() / 100
        )


def test_same_input_same_groups():
    """Coarsening has no randomness."""
    problem, _, _ = planted_problem(ops=500, devices=3, seed=2)
    assert np.array_equal(coarsen(problem, 20).group, coarsen(problem, 20).group)


def test_no_groups_are_refused():
    """The error says how many were expected."""
    problem = PlacementProblem.from_edges(np.ones((3, 2), dtype=np.int64), [(0, 1, 1)])
    for grow in (coarsen, group_labels):
        with pytest.raises(InputError, match="groups: expected at least 1, received 0"):
            grow(problem, 0)


def test_groups_may_have_any_number():
    """Ids of colocation are names, not places in a table."""
    edges = [(i, i + 1, 1) for i in range(5)]
    small = np.array([-1, 0, -1, 1, 0, 1])
    problem = PlacementProblem.from_edges(np.ones((6, 2), dtype=np.int64), edges, colocation=small)
    for factor in (10**12, 2**62):
        large = problem.replace(colocation=np.where(small < 0, -1, small * factor + (factor - 1)))
        assert large.units.unit.tolist() == problem.units.unit.tolist()
        assert group_labels(large, 2).tolist() == group_labels(problem, 2).tolist()
