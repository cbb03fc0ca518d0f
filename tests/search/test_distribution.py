"""Cross-entropy and PPO on categorical distributions: closed forms, finite differences, what
sampling draws.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from placeopt.makespan.evaluate import INFEASIBLE, evaluate_batch
from placeopt.model.problem import PlacementProblem
from placeopt.model.random_bits import random_states
from placeopt.model.result import Budget
from placeopt.solvers.search import population_kernels as kernels
from placeopt.solvers.search.cross_entropy import Distribution, OrderKeys, Settings, _advantage
from placeopt.solving.registry import make_solver


def random_distribution(rng, groups=5, k=3):
    """Return a random distribution with some forbidden devices."""
    allowed = rng.random((groups, k)) < 0.7
    allowed[np.arange(groups), rng.integers(0, k, groups)] = True
    found = Distribution(allowed)
    weight = rng.random((groups, k)) * allowed
    found.probability = (weight + 1e-3 * allowed) / (weight + 1e-3 * allowed).sum(
        axis=1, keepdims=True
    )
    return found


def draw(distribution, rows, rng):
    """Sample devices of the groups."""
    labels = np.arange(len(distribution.allowed))
    out = np.empty((rows, len(labels)), dtype=np.int32)
    return kernels.sample(
        labels, np.cumsum(distribution.probability, axis=1), random_states(rng, rows), out
    )


@pytest.mark.interpreted
@given(seed=st.integers(0, 1000), smoothing=st.floats(0.1, 1.0), exploration=st.floats(0.0, 0.5))
@settings(max_examples=30, deadline=None)
def test_the_refit_is_the_smoothed_share_of_the_elites(seed, smoothing, exploration):
    """New = (1 - e) ((1 - a) old + a share of the elites) + e uniform, group by group."""
    rng = np.random.default_rng(seed)
    distribution = random_distribution(rng)
    elites = draw(distribution, 9, rng)
    expected = np.zeros_like(distribution.probability)
    for g, d in itertools.product(range(5), range(3)):
        share = sum(int(row[g]) == d for row in elites) / len(elites)
        uniform = distribution.allowed[g, d] / distribution.allowed[g].sum()
        expected[g, d] = (1 - exploration) * (
            (1 - smoothing) * distribution.probability[g, d] + smoothing * share
        ) + exploration * uniform
    distribution.refit(elites, smoothing, exploration)
    assert np.allclose(distribution.probability, expected)
    assert np.allclose(distribution.probability.sum(axis=1), 1)
    assert (distribution.probability[~distribution.allowed] == 0).all()


def test_the_refit_maximises_the_likelihood_of_the_elites():
    """Without smoothing, no other distribution gives the elites a larger likelihood."""
    rng = np.random.default_rng(2)
    distribution = random_distribution(rng)
    elites = draw(distribution, 20, rng)

    def likelihood(p):
        with np.errstate(divide="ignore"):
            return np.log(p)[np.arange(5)[None, :], elites].sum()

    distribution.refit(elites, 1.0, 0.0)
    best = likelihood(distribution.probability)
    for _ in range(50):
        other = distribution.probability + 0.05 * rng.random(distribution.probability.shape)
        assert likelihood(other / other.sum(axis=1, keepdims=True)) <= best


def surrogate(logits, old, drawn, advantage, clip, entropy_weight):
    """Return the clipped surrogate plus entropy, written down plainly."""
    total = 0.0
    for g in range(len(logits)):
        weight = np.exp(logits[g])
        pi = weight / weight.sum()
        for row, gain in zip(drawn, advantage, strict=True):
            ratio = pi[row[g]] / old[g, row[g]]
            total += min(ratio * gain, np.clip(ratio, 1 - clip, 1 + clip) * gain) / len(drawn)
        total -= entropy_weight * (pi * np.log(pi)).sum()
    return total


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(6))
def test_the_ppo_gradient_agrees_with_finite_differences(seed):
    """The gradient of the clipped surrogate and the entropy equals central differences, clipped
    rows included.
    """
    rng = np.random.default_rng(seed)
    old = rng.dirichlet(np.ones(3), 4)
    logits = np.log(old) + 0.3 * rng.normal(size=(4, 3))  # some ratios are beyond the clip
    drawn = rng.integers(0, 3, (12, 4)).astype(np.int32)
    advantage = rng.normal(size=12)
    gradient = kernels.surrogate_gradient(logits, old, drawn, advantage, 0.2, 0.05)
    for g, d in itertools.product(range(4), range(3)):
        moved = np.zeros((4, 3))
        moved[g, d] = 1e-6
        slope = (
            surrogate(logits + moved, old, drawn, advantage, 0.2, 0.05)
            - surrogate(logits - moved, old, drawn, advantage, 0.2, 0.05)
        ) / 2e-6
        assert gradient[g, d] == pytest.approx(slope, abs=1e-6)


def test_gradient_steps_make_good_samples_likelier():
    """PPO steps raise the probability of what had positive advantage, within the clip's reach, and
    keep a simplex.
    """
    distribution = Distribution(np.ones((1, 3), dtype=np.bool_))
    drawn = np.array([[0], [1], [2]], dtype=np.int32)
    distribution.ascend(
        drawn, np.array([1.0, 0.0, -1.0]), Settings(batch=3, refit=0, epochs=3, entropy_weight=0.0)
    )
    p = distribution.probability[0]
    assert p[0] > p[1] > p[2] > 0
    assert p.sum() == pytest.approx(1)


def test_samples_follow_the_distribution():
    """Relative frequencies of many samples match the probabilities; forbidden devices never
    appear.
    """
    rng = np.random.default_rng(4)
    distribution = random_distribution(rng)
    share = kernels.frequencies(draw(distribution, 40_000, rng), 3)
    assert np.abs(share - distribution.probability).max() < 0.012
    assert (share[~distribution.allowed] == 0).all()


def test_entropy_is_relative_to_uniform():
    """1 for the uniform distribution, 0 for a decided one and where there is no choice."""
    free = Distribution(np.array([[True, True, False], [True, True, True]]))
    assert free.entropy == pytest.approx(1)
    free.refit(np.array([[1, 2]], dtype=np.int32), 1.0, 0.0)
    assert free.entropy == pytest.approx(0)
    assert Distribution(np.array([[False, True]])).entropy == 0


def test_order_keys_move_to_the_elites():
    """With smoothing 1, mean and deviation of the keys are those of the elites."""
    keys = OrderKeys(np.arange(4))
    elites = keys.sample(np.random.default_rng(0), 10)
    keys.refit(elites, 1.0)
    assert np.allclose(keys.mean, elites.mean(axis=0) / kernels.RANK_GAP)
    assert np.allclose(keys.deviation, elites.std(axis=0) / kernels.RANK_GAP)


def test_failures_count_as_the_worst():
    """Advantages have mean 0; a failed sample is worth as little as the worst that did not fail."""
    advantage = _advantage(np.array([10, 20, INFEASIBLE, 30]))
    assert advantage.mean() == pytest.approx(0)
    assert advantage[2] == advantage[3] == advantage.min()
    assert _advantage(np.array([INFEASIBLE] * 3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("cross-entropy", {"refine": 0.0}),
        ("cross-entropy", {"refine": 0.0, "order": True}),
        ("post", {}),
        ("post", {"cross_entropy": False}),
        ("post", {"policy_gradient": False}),
    ],
)
def test_every_part_alone_finds_a_small_optimum(solver, options):
    """CE, PPO and both find the best of all 3^6 assignments (fifo execution cannot be beaten by
    less).
    """
    rng = np.random.default_rng(1)
    edges = [(0, 2, 4), (1, 2, 3), (2, 3, 6), (2, 4, 2), (3, 5, 1), (4, 5, 5)]
    problem = PlacementProblem.from_edges(rng.integers(1, 15, (6, 3)), edges)
    every = np.array(list(itertools.product(range(3), repeat=6)), dtype=np.int32)
    best = evaluate_batch(problem, every).min()
    result = make_solver(solver, start="random", groups=0, **options).solve(
        problem, Budget(evaluations=2500), seed=0
    )
    assert result.objective <= best
