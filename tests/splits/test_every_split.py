"""`split-ideals` against all splits, on small problems of every option."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import pytest

import placeopt as po
from placeopt.model.arrays import NO_VALUE
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import contract
from placeopt.solvers.exact import split_ideals
from placeopt.solvers.exact.split_ideals import _stage_loads
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.problem import Split, SplitProblem, SplitStage

sys.path.insert(0, str(Path(__file__).parent))
from every_split import best_split, difference, draw

pytestmark = pytest.mark.jit

SEEDS = range(400)


@pytest.mark.parametrize("part", range(20))
def test_every_option_against_all_splits(part):
    """Values, proofs and claims of infeasibility agree."""
    found = {seed: difference(seed) for seed in SEEDS[20 * part : 20 * part + 20]}
    assert {seed: words for seed, words in found.items() if words} == {}


def test_every_option_is_drawn():
    """The seeds have every option often enough to mean something."""
    drawn = [problem for problem in map(draw, SEEDS) if problem is not None]
    for has in (
        lambda p: (
            p.max_replicas > 1 and ((p.placement.compute == 0).all(axis=1) & (p.sync > 0)).any()
        ),
        lambda p: p.max_replicas > 1 and 1 < p.groups < len(p.usable_devices),
        lambda p: p.groups > 1 and ((p.placement.transfer[:, 0] == 0) & (p.uplink > 0)).any(),
        lambda p: p.overlap,
        lambda p: p.placement.resident.sum() > p.placement.capacity.min(),
        lambda p: (p.placement.colocation >= 0).any() and (p.placement.compute < 0).any(),
        lambda p: p.placement.backward.any(),
        lambda p: (p.placement.io_class < 0).any(),
    ):
        assert sum(bool(has(problem)) for problem in drawn) >= 5


def test_splits_without_groups_prove_something_of_groups(monkeypatch):
    """Where tables of pairs are too small, what holds whatever groups are is no more than the best
    split, and often the same; none is called infeasible that is not.
    """
    monkeypatch.setattr(split_ideals, "most_in_pairs", lambda problem, model: 2)
    proved = 0
    for problem in filter(None, map(draw, SEEDS[:100])):
        if problem.groups > 1:
            best = best_split(problem)
            result = po.solve(problem, solver="split-ideals", evaluations=4)
            if best is None:
                assert result.value is None
                continue
            assert result.status != "infeasible"
            assert result.lower_bound <= best[0]
            proved += (result.lower_bound, result.bound_method) == (best[0], "split-ideals")
    assert proved >= 4


def test_an_op_without_time_may_carry_weights():
    """An op of no time stays apart from one with replicas where its weights would be exchanged with
    them.
    """
    base = PlacementProblem(
        name="weights",
        compute=np.repeat([[0], [24], [16]], 4, axis=1),
        producer=np.arange(2),
        consumer_ptr=np.arange(3),
        consumer=np.array([1, 2]),
        transfer=np.array([[0], [3]]),
        objective="period",
    )
    problem = SplitProblem(base, max_replicas=3, sync=np.array([16, 4, 15]))
    split = Split((SplitStage((0,), (0,)), SplitStage((1,), (1, 2)), SplitStage((2,), (3,))))
    assert split_violations(problem, split) == []
    assert judged_period(problem, split) == best_split(problem)[0] == 19
    result = po.solve(problem, seconds=20)
    assert (result.value, result.lower_bound, result.status) == (19, 19, "optimal")


@pytest.mark.parametrize("home", [0, 1])
def test_a_tensor_may_cost_time_on_an_uplink_only(home):
    """A backward op of no time is tied to the op whose tensor it reads, though only an uplink takes
    time for it.
    """
    base = PlacementProblem(
        name="late",
        compute=np.array([[9, 9], [9, 9], [0, 0]]),
        producer=np.array([0, home]),
        consumer_ptr=np.arange(3),
        consumer=np.array([1, 2]),
        transfer=np.array([[1], [0]]),
        backward=np.array([False, False, True]),
        objective="period",
    )
    problem = SplitProblem(base, groups=2, uplink=np.array([1, 30]))
    model = contract(problem.placement, contiguity="chain", uplink=problem.uplink)
    assert model.node[2] == model.node[home] != model.node[1 - home]
    result = po.solve(problem, seconds=20)
    assert (result.value, result.lower_bound) == (10, 10)
    assert best_split(problem)[0] == 10


@pytest.mark.parametrize("overlap", [False, True])
def test_the_load_of_replicas_by_definition(overlap):
    """Each of r replicas takes an r-th of the work and of what moves, and sends 2 (r - 1) / r of
    the weights; with overlap it works meanwhile. What fits nowhere has no load.
    """
    rng = np.random.default_rng(7)
    work, moved, weights = (rng.integers(0, 40, (5, 5)) for _ in range(3))
    work[rng.random((5, 5)) < 0.3] = NO_VALUE
    found = _stage_loads(work, moved, weights, 4, overlap=overlap)
    for a, b, r in product(range(5), range(5), range(1, 5)):
        if work[a, b] == NO_VALUE:
            assert found[r, a, b] == NO_VALUE
            continue
        exchange = ceil(Fraction(2 * (r - 1) * int(weights[a, b]), r))
        here, away = Fraction(int(work[a, b]), r), Fraction(int(moved[a, b]), r)
        expected = (
            max(ceil(here), ceil(away) + exchange) if overlap else ceil(here + away) + exchange
        )
        assert found[r, a, b] == expected
