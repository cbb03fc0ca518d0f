"""Operators on populations: mutation, repair and crossover keep every constraint; relabelling
changes nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from random_problems import random_problem

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.makespan.judge import placement_violations
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.random_bits import random_states
from placeopt.model.result import Budget
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.search.genetic import Genetic, Member, _relabelled, _select
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solving.tracker import Tracker

SEEDS = st.integers(0, 10_000)


def tight_problem(rng, max_ops=14):
    """Return a random problem whose devices have room for little more than their share."""
    problem = random_problem(rng, max_ops=max_ops)
    room = int(problem.resident.sum()) // problem.num_devices + 30
    return problem.replace(capacity=np.full(problem.num_devices, room))


def tight_space(seed):
    """Return a generator, such a problem and its search space."""
    rng = np.random.default_rng(seed)
    problem = tight_problem(rng)
    return rng, problem, SearchSpace(problem)


@pytest.mark.interpreted
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_mutation_keeps_every_constraint(seed):
    """Rows that fit still fit after many moves; every op of a unit moves with it."""
    rng, problem, space = tight_space(seed)
    home = space.random_homes(rng)
    assert home is not None
    homes = np.stack([home] * 4)
    ranks = np.tile(np.arange(problem.num_ops) * kernels.RANK_GAP, (4, 1))
    kernels.mutate(space.graph, homes, ranks, random_states(rng, 4), 12)
    for row in space.devices_of(homes):
        assert not placement_violations(problem, Placement(row))


def test_mutation_exchanges_units_where_devices_are_full():
    """Where every device is full and no two units are alike, a few come back for what comes."""
    rng = np.random.default_rng(0)
    size, home = rng.permutation(np.arange(1, 41)), np.repeat(np.arange(2), 20)
    problem = PlacementProblem.from_edges(
        np.ones((40, 2), np.int64), [], resident=size, capacity=np.bincount(home, size).astype(int)
    )
    homes = np.stack([home] * 20)
    graph = SearchSpace(problem).graph
    kernels.mutate(graph, homes, np.zeros((20, 0), np.int64), random_states(rng, 20), 12)
    assert all((np.bincount(row, size) == problem.capacity).all() for row in homes)
    assert (homes != home).any(axis=1).all()


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_fit_says_which_rows_fit(seed):
    """Repaired rows that are called good satisfy every constraint; good rows are left as they
    are.
    """
    rng, problem, space = tight_space(seed)
    allowed = problem.units.allowed
    homes = np.stack(
        [np.where(allowed, rng.random(allowed.shape), -1).argmax(axis=1) for _ in range(5)]
    )
    before = homes.copy()
    fine = space.feasible(space.devices_of(before).astype(np.int32))
    good = kernels.fit(space.graph, homes, random_states(rng, 5))
    assert np.array_equal(good, space.feasible(space.devices_of(homes).astype(np.int32)))
    assert (homes[fine] == before[fine]).all()


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_children_satisfy_the_constraints_of_their_parents(seed):
    """Crossover, relabelling and mutation of two feasible members give a feasible child with a
    complete order.
    """
    rng = np.random.default_rng(seed)
    problem = tight_problem(rng)
    evaluator = BudgetedEvaluator(Tracker("genetic", problem, Budget(evaluations=10)))
    space = evaluator.space
    members = []
    for value in range(3):
        home = space.random_homes(rng)
        assert home is not None
        members.append(Member(value, home, np.array(space.sequence)))
    labels = [space.groups(3), np.arange(space.num_units)]
    for _ in range(5):
        child = Genetic().child(evaluator, members, labels, rng)
        assert not placement_violations(problem, Placement(space.devices_of(child.home)))
        assert sorted(child.order.tolist()) == list(range(problem.num_ops))


@pytest.mark.parametrize("seed", range(5))
def test_relabelling_identical_devices_changes_no_makespan(seed):
    """The relabelled parent is worth the same, and agrees with the other one at least as often."""
    rng = np.random.default_rng(seed)
    work = np.repeat(rng.integers(1, 9, (12, 1)), 4, axis=1)
    edges = [
        (u, v, int(rng.integers(0, 9))) for v in range(1, 12) for u in [int(rng.integers(0, v))]
    ]
    problem = PlacementProblem.from_edges(work, edges)
    a, b = rng.integers(0, 4, (2, 12))
    other = _relabelled(problem, a, b)
    values = evaluate_batch(problem, np.stack([b, other]))
    assert values[0] == values[1]
    assert (other == a).sum() >= (b == a).sum()
    assert (_relabelled(problem, a, (a + 1) % 4) == a).all()


def test_relabelling_leaves_different_devices_alone():
    """Devices with different times keep their names."""
    problem = PlacementProblem.from_edges([[1, 2], [3, 4]], [(0, 1, 1)])
    assert _relabelled(problem, np.array([0, 1]), np.array([1, 0])).tolist() == [1, 0]


def test_selection_keeps_the_best_without_copies():
    """Equal placements are kept once; the size is respected; the order is by value."""

    def member(value, home):
        return Member(value, np.array(home), np.zeros(0, dtype=np.int64))

    kept = _select(
        [
            member(5, [0, 1]),
            member(3, [1, 1]),
            member(3, [1, 1]),
            member(4, [0, 0]),
            member(9, [1, 0]),
        ],
        3,
    )
    assert [m.value for m in kept] == [3, 4, 5]


@given(seed=SEEDS, count=st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_groups_can_be_placed(seed, count):
    """Every group has a device that can run all its ops and holds their bytes; labels are 0, 1, 2,
    ...
    """
    problem = tight_problem(np.random.default_rng(seed))
    space = SearchSpace(problem)
    labels = space.groups(count)
    assert sorted(set(labels.tolist())) == list(range(labels.max() + 1))
    units = problem.units
    for group in range(labels.max() + 1):
        mine = labels == group
        fits = units.allowed[mine].all(axis=0) & (problem.capacity >= units.bytes[mine].sum())
        assert fits.any()
