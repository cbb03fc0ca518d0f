"""Every solver and bound of the period against the best of all placements by the definition."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

import placeopt as po
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver

sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

from brute_force import best_period
from case import draw
from compare import problem_of

pytestmark = pytest.mark.jit


@pytest.mark.parametrize(
    ("compute", "fields", "optimum"),
    [
        ([[0, 0], [1, 0]], {"pipeline": "gpipe", "backward": [False, True]}, 0),
        (
            [[10, 4, 0], [18, 16, 15], [5, 18, 11]],
            {"pipeline": "gpipe", "backward": [False, True, True]},
            15,
        ),
        ([[1, 2], [2**50, 0], [2, 2], [4, 2]], {}, 3),
        ([[2**60], [2**60]], {}, 2**61),
    ],
)
def test_work_that_takes_no_time_on_another_type(compute, fields, optimum):
    """A limit on work per tick has no number where a type does it in no time: once, these optima
    were pruned.
    """
    problem = PlacementProblem.from_edges(compute, [], objective="period", **fields)
    result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
    assert (result.value, result.lower_bound, result.status) == (optimum, optimum, "optimal")


@pytest.mark.parametrize("devices", [17, 40])
def test_many_device_types(devices):
    """Seventeen types have states of their own; forty are taken in one order, and nothing is proved
    of the others.
    """
    table = np.tile(np.arange(9, 9 + devices), (3, 1))
    problem = PlacementProblem.from_edges(table, [(0, 1, 1), (1, 2, 1)], objective="period")
    result = make_solver("ideal-dp").solve(problem, Budget(), seed=0)
    assert result.lower_bound <= result.value
    assert (result.status == "optimal") == (devices == 17)
    assert ("no room" in result.message) == (devices == 40)
    assert not result.message.startswith("40 devices")


def test_random_problems():
    """No value below the best of all placements, no bound above it, and a chain that ideal-dp
    proves is the best.
    """
    for seed in range(400):
        case = draw(random.Random(seed), "period")
        best = best_period(case)
        for solver in ("ideal-dp", "linear-dp"):
            said = solver, seed
            result = make_solver(solver).solve(problem_of(case), Budget(), seed=0)
            if best is None:
                assert result.value is None, said
                assert result.status in ("infeasible", "unknown"), said
                continue
            assert result.status != "infeasible", said
            assert result.lower_bound <= best, said
            assert result.value is None or result.value >= best, said
            if solver == "ideal-dp" and case.contiguity == "chain":
                assert (result.value, result.status) == (best, "optimal"), said


@pytest.mark.parametrize("contiguity", ["convex", "none"])
def test_no_name_is_needed_for_the_proof(contiguity):
    """What `solve` runs where none is named proves the best placement, also where no chain of
    stages is as good.
    """
    better = 0
    for seed in range(60):
        case = draw(random.Random(seed), "period")
        case.contiguity = contiguity
        problem = problem_of(case)
        best, chain = (
            best_period(case),
            make_solver("ideal-dp").solve(problem, Budget(), seed=0).value,
        )
        if best is None or problem.num_devices < 2:
            continue
        result = po.solve(problem, seconds=20)
        assert (result.value, result.status) == (best, "optimal"), seed
        better += chain is None or best < chain
    assert better > 1 or contiguity == "convex"
