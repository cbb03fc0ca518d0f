"""Policies trained on several graphs, and residual scores shared by groups of ops."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.api import load
from placeopt.makespan.evaluate import INFEASIBLE, best_queue, evaluate_batch
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.solvers.policy.advantages import relative_advantage
from placeopt.solvers.policy.dual_learner import DualLearner, residual_groups, teaching_order
from placeopt.solvers.policy.dual_policy import DualPolicy
from placeopt.solvers.policy.dual_policy_file import DualPolicyModel
from placeopt.solvers.policy.episodes import (
    Episodes,
    OrderedProblem,
    roll,
    score_functions,
    weights_of,
)
from placeopt.solvers.policy.transfer import apply_policy, train_policy
from placeopt.solving.registry import make_solver


@pytest.fixture(scope="module")
def graphs():
    """Two small sharded graphs on devices with a slow link."""
    return [
        load(source, "4xP100-pcie")
        for source in ("gen:chain-mm?shards=2", "gen:llama-block?shards=2")
    ]


def mean_log(problem, model):
    """Mean logarithm of the makespans of many episodes."""
    ordered = OrderedProblem.of(problem)
    episodes = roll(
        ordered, weights_of(model, ordered, temperature=2.0), np.arange(400, dtype=np.uint64)
    )
    return np.log(evaluate_batch(problem, episodes.devices, episodes.ranks)).mean()


def test_training_improves_every_graph_it_is_trained_on(graphs):
    """The mean episode gets better on both graphs; the same seed gives the same policy."""
    first = DualPolicyModel.heuristic("critical-path")
    model = train_policy(graphs, seed=1, steps=60)
    again = train_policy(graphs, seed=1, steps=60)
    assert model.sel.tolist() == again.sel.tolist()
    assert model.plc.tolist() == again.plc.tolist()
    for problem in graphs:
        assert mean_log(problem, model) < mean_log(problem, first)
        assert problem.name in model.provenance[-1]


def test_applying_the_heuristic_policy_is_the_heuristic(graphs):
    """Greedily, the untrained policy gives the critical path's placement; samples only help."""
    problem = graphs[0]
    policy = DualPolicyModel.heuristic("critical-path")
    expected = (
        make_solver("critical-path", runs=1).solve(problem, Budget(evaluations=1), seed=0).solution
    )
    greedy = apply_policy(problem, policy)
    assert greedy.device.tolist() == expected.device.tolist()
    sampled = apply_policy(problem, policy, samples=40)
    assert sampled.value <= greedy.value
    assert (
        best_queue(problem, Placement(sampled.device.astype(np.int64), sampled.rank))[0]
        <= sampled.value
    )


def test_advantages_are_relative():
    """Scaling all makespans changes no advantage; a failure counts as the worst; no signal is no
    pull.
    """
    values = np.array([100, 200, INFEASIBLE, 400])
    advantage = relative_advantage(values)
    assert advantage.sum() == pytest.approx(0)
    assert advantage[2] == advantage[3] == advantage.min()
    assert relative_advantage(np.array([700, 1400, INFEASIBLE, 2800])) == pytest.approx(advantage)
    assert not relative_advantage(np.array([5, 5])).any()
    assert not relative_advantage(np.array([INFEASIBLE] * 2)).any()


def test_training_needs_a_graph():
    """No problems is an error of one line."""
    with pytest.raises(InputError, match="at least one problem"):
        train_policy([], seed=0)


def test_groups_share_their_scores(graphs):
    """The gradient of a group's score is the sum of its ops' gradients."""
    problem = graphs[1]
    ordered = OrderedProblem.of(problem)
    shared = DualLearner(
        ordered,
        DualPolicyModel.heuristic("scratch"),
        DualPolicy(groups=6),
        np.random.default_rng(0),
    )
    alone = DualLearner(
        ordered,
        DualPolicyModel.heuristic("scratch"),
        DualPolicy(groups=0),
        np.random.default_rng(0),
    )
    label = residual_groups(ordered, 6)
    assert len(set(label.tolist())) < problem.num_ops
    weights = weights_of(
        DualPolicyModel.heuristic("scratch"),
        ordered,
        sel_residual=np.zeros(problem.num_ops),
        plc_residual=np.zeros((problem.num_ops, 4)),
    )
    batch = roll(ordered, weights, np.arange(5, dtype=np.uint64))
    advantage = np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    total, _ = score_functions(
        weights, batch, np.repeat(advantage[:, None], problem.num_ops, axis=1)
    )
    together, single = (learner.named(total)["plc_residual"] for learner in (shared, alone))
    for group in range(label.max() + 1):
        assert together[group] == pytest.approx(single[label == group].sum(axis=0))


def test_teachers_are_imitated(graphs):
    """With a teacher besides, its placement is more likely afterwards than without."""
    ordered = [OrderedProblem.of(problem) for problem in graphs]
    teachers = [
        make_solver("edge-zeroing").solve(problem, Budget(evaluations=50), seed=0).solution
        for problem in graphs
    ]
    likely = []
    for known in ((), teachers):
        model = train_policy(graphs, seed=1, steps=20, batch=8, teachers=known)
        found = 0.0
        for problem, teacher in zip(ordered, teachers, strict=True):
            weights = weights_of(model, problem)
            lesson = Episodes.given(problem, *teaching_order(problem.problem, teacher))
            _, now = score_functions(weights, lesson, np.zeros((1, problem.problem.num_ops)))
            found += now.log_probability[0]
        likely.append(found)
    assert likely[1] > likely[0]
