"""Coarsening: what groups keep, and what a coarse solution promises on the fine graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from random_problems import random_device, random_problem

from placeopt.instances.coarsen import METHODS, coarsen, group_labels
from placeopt.instances.generators import generate
from placeopt.instances.generators.planted import planted_problem
from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem

CONVEX = ("chain", "heavy-edge", "topological")


def _typed(problem, rng):
    """Give a random problem types, layers (in its op names) and meta labels."""
    n = problem.num_ops
    return problem.replace(
        op_types=tuple(rng.choice(["relu", "conv", "add"], n).tolist()),
        op_names=tuple(f"layer{rng.integers(0, 3)}/op{i}" for i in range(n)),
        meta=np.concatenate(([0], rng.integers(-1, 4, n - 1))),
    )


def _is_dag(model):
    source = np.repeat(model.producer, np.diff(model.consumer_ptr))
    return nx.is_directed_acyclic_graph(
        nx.DiGraph(zip(source.tolist(), model.consumer.tolist(), strict=True))
    )


def _stretch(problem, rng):
    """Replace every op by a chain of one to three ops on the same devices."""
    length = rng.integers(1, 4, problem.num_ops)
    last = np.cumsum(length) - 1
    first = last - length + 1
    compute = np.repeat(problem.compute, length, axis=0)
    inner = np.setdiff1d(np.arange(len(compute)), last)
    c = problem.transfer.shape[1]
    return problem.replace(
        compute=np.where(compute >= 0, rng.integers(0, 6, compute.shape), -1),
        producer=np.concatenate([last[problem.producer], inner]),
        consumer_ptr=np.concatenate(
            [problem.consumer_ptr, problem.num_edges + 1 + np.arange(len(inner))]
        ),
        consumer=np.concatenate([first[problem.consumer], inner + 1]),
        transfer=np.concatenate([problem.transfer, rng.integers(0, 6, (len(inner), c))]),
        tensor_bytes=np.concatenate([problem.tensor_bytes, np.ones(len(inner), dtype=np.int64)]),
        resident=np.repeat(problem.resident, length),
        colocation=np.repeat(problem.colocation, length),
        op_names=(),
        op_types=(),
        backward=None,
        meta=None,
    )


@pytest.mark.parametrize("method", METHODS)
def test_coarse_problem_adds_up_and_stays_acyclic(method):
    """Costs and bytes of a group are its members' sums, -1 wherever one cannot run; no cycle;
    colocation holds.
    """
    for seed in range(60):
        rng = np.random.default_rng(seed)
        fine = _typed(random_problem(rng, max_ops=25), rng)
        groups = (
            int(rng.integers(1, 8)) if method in ("heavy-edge", "topological") or seed % 2 else None
        )
        coarsening = coarsen(fine, method, groups=groups)
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


@pytest.mark.parametrize("method", METHODS)
def test_every_coarse_placement_expands_to_a_valid_fine_one(method):
    """Whatever satisfies the coarse problem satisfies the fine one, priorities or not."""
    for seed in range(40):
        rng = np.random.default_rng([1, seed])
        fine = _typed(random_problem(rng, max_ops=20, incompatible=seed % 2 == 0), rng)
        coarsening = coarsen(
            fine, method, groups=4 if method in ("heavy-edge", "topological") else None
        )
        coarse = coarsening.coarse
        placement = Placement(random_device(rng, coarse), rng.permutation(coarse.num_ops))
        if placement_violations(coarse, placement):
            continue
        expanded = coarsening.expand(placement)
        assert not placement_violations(fine, expanded)
        assert sorted(expanded.priority.tolist()) == list(range(fine.num_ops))
        assert coarsening.expand(Placement(placement.device)).priority is None
        assert np.array_equal(coarsening.restrict(expanded).device, placement.device)


@pytest.mark.parametrize("contention", ["none", "pair", "source", "bus", "mixed"])
def test_fused_chains_keep_the_makespan(contention):
    """Where groups are chains, the fine schedule in the coarse order takes exactly as long."""
    fused = 0
    for seed in range(60):
        rng = np.random.default_rng([2, seed])
        fine = _stretch(random_problem(rng, max_ops=15, contention=contention), rng)
        coarsening = coarsen(fine, "chain")
        coarse = coarsening.coarse
        fused += fine.num_ops - coarse.num_ops
        placement = Placement(
            random_device(rng, coarse), np.argsort(np.argsort(coarse.topological_order))
        )
        if placement_violations(coarse, placement):
            continue
        rank = Placement.from_starts(
            placement.device, evaluate(coarse, placement).start, coarse.topological_order
        )
        promise = evaluate(coarse, rank, queue="planned").makespan
        assert evaluate(fine, coarsening.expand(rank), queue="planned").makespan == promise
    assert fused > 200


@pytest.mark.parametrize("method", METHODS)
def test_coarse_schedule_is_an_upper_bound_without_contention(method):
    """Executed in the coarse order, the fine ops end no later than the coarse schedule promised."""
    for seed in range(40):
        rng = np.random.default_rng([3, seed])
        fine = _typed(random_problem(rng, max_ops=25, contention="none"), rng)
        coarsening = coarsen(
            fine, method, groups=5 if method in ("heavy-edge", "topological") else None
        )
        placement = Placement(random_device(rng, coarsening.coarse))
        if placement_violations(coarsening.coarse, placement):
            continue
        promise = evaluate(coarsening.coarse, placement)
        expanded = coarsening.expand(placement, promise.start)
        assert evaluate(fine, expanded, queue="planned").makespan <= promise.makespan


@pytest.mark.parametrize("method", METHODS)
def test_group_labels_respect_constraints(method):
    """Ops of a group have a device they can share, and colocated ops are in one group."""
    for seed in range(40):
        rng = np.random.default_rng([4, seed])
        fine = _typed(random_problem(rng, max_ops=25), rng)
        labels = group_labels(fine, 4, method)
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
    for method in CONVEX:
        coarse = coarsen(fine, method, groups=1).coarse
        assert coarse.resident.max() <= 20
        assert np.bincount(group_labels(fine, 1, method)).max() <= 2


def test_diamonds_are_not_folded_into_a_cycle():
    """Matching both crossing edges of a 2 x 2 block would make a cycle; one of them is refused."""
    edges = [(0, 2, 9), (1, 3, 9), (0, 3, 1), (1, 2, 1)]
    fine = PlacementProblem.from_edges(np.ones((4, 2), dtype=np.int64), edges)
    coarse = coarsen(fine, "heavy-edge", groups=2).coarse
    assert coarse.num_ops == 2
    assert _is_dag(coarse)


def test_heavy_edges_disappear_first():
    """The heavy edges of a ladder of pairs are inside groups, the light ones between them."""
    edges = [(2 * i, 2 * i + 1, 100) for i in range(8)] + [(2 * i, 2 * i + 2, 1) for i in range(7)]
    fine = PlacementProblem.from_edges(np.full((16, 2), 10), edges)
    for labels in (coarsen(fine, groups=8).group, group_labels(fine, 8)):
        assert all(labels[2 * i] == labels[2 * i + 1] for i in range(8))
        assert len(set(labels.tolist())) == 8


def test_type_method_never_merges_two_expensive_ops():
    """Cheap types join a neighbour; two convolutions stay apart."""
    graph = generate("gen:resnet50")
    coarse = coarsen(graph, "type", types=["batch_norm", "relu", "add", "max_pool", "avg_pool"])
    kinds = np.array(graph.op_types)
    for g in range(coarse.coarse.num_ops):
        assert np.isin(kinds[coarse.group == g], ["conv", "linear"]).sum() == 1
    assert coarse.coarse.flops.sum() == graph.flops.sum()


def test_layer_method_gives_one_group_per_layer_of_a_feed_forward_network():
    """ResNet's blocks are convex: each is one group, of the layer's total cost."""
    graph = generate("gen:resnet50")
    coarse = coarsen(graph, "layer").coarse
    assert coarse.num_ops == len(set(graph.layer)) == 18
    assert set(coarse.layer) == set(graph.layer)
    assert coarse.parameters.sum() == graph.parameters.sum()
    assert coarsen(graph, "layer", depth=1).coarse.num_ops == 6


def test_layers_of_a_training_graph_keep_forward_and_backward_apart():
    """A layer's forward and backward groups are different coarse ops on one device."""
    graph = generate("gen:resnet50?training=1")
    coarse = coarsen(graph, "layer").coarse
    assert isinstance(coarse, OpGraph)
    assert _is_dag(coarse)
    forward = {coarse.layer[i]: i for i in np.flatnonzero(~coarse.backward)}
    for i in np.flatnonzero(coarse.backward):
        if coarse.resident[i]:
            assert coarse.colocation[i] == coarse.colocation[forward[coarse.layer[i]]] >= 0


def test_groups_stay_balanced_on_large_graphs():
    """100 groups of 5000 ops have at most twice the mean work, on both kinds of grouping."""
    problem, _, _ = planted_problem(ops=5000, devices=4, seed=1)
    for labels in (coarsen(problem, groups=100).group, group_labels(problem, 100)):
        assert 90 <= labels.max() + 1 <= 100
        assert (
            np.bincount(labels, weights=problem.min_compute).max()
            <= 2 * problem.min_compute.sum() / 100
        )


def test_same_input_same_groups():
    """Coarsening has no randomness."""
    problem, _, _ = planted_problem(ops=500, devices=3, seed=2)
    for method in ("heavy-edge", "topological"):
        assert np.array_equal(
            coarsen(problem, method, groups=20).group, coarsen(problem, method, groups=20).group
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "expected one of chain"),
        ({"method": "heavy-edge"}, "needs groups=N"),
        ({"groups": 0}, "at least 1"),
        ({"method": "layer"}, "no layers"),
        ({"method": "type"}, "types"),
        ({"method": "meta"}, "no op of"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, words):
    """Errors name the option and what was expected."""
    problem = PlacementProblem.from_edges(np.ones((3, 2), dtype=np.int64), [(0, 1, 1)])
    with pytest.raises(InputError, match=words) as error:
        coarsen(problem, **options)
    assert "\n" not in str(error.value)


def test_groups_may_have_any_number():
    """Ids of colocation and meta labels are names, not places in a table."""
    edges = [(i, i + 1, 1) for i in range(5)]
    small = np.array([-1, 0, -1, 1, 0, 1])
    problem = PlacementProblem.from_edges(np.ones((6, 2), dtype=np.int64), edges, colocation=small)
    for factor in (10**12, 2**62):
        large = problem.replace(colocation=np.where(small < 0, -1, small * factor + (factor - 1)))
        assert large.units.unit.tolist() == problem.units.unit.tolist()
        assert group_labels(large, 2).tolist() == group_labels(problem, 2).tolist()
        by_meta = [
            coarsen(problem.replace(meta=meta, colocation=None), "meta").group.tolist()
            for meta in (small, large.colocation)
        ]
        assert by_meta[0] == by_meta[1]
