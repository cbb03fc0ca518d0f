"""Slices of the attack for `mutants.py`: a few problems each, so that the first that tells a mutant
ends its run.

They are no tests of the normal run, which has slices of its own (`test_attack.py`).
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import brute_force
import compare
from case import draw
from families import FAMILIES, bounds_by_looks

from placeopt.model.errors import InputError

PARTS = range(12)
FIRST = 34_000
"""Seeds of no other slice."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_family(family, part):
    """Everything that is said of four problems of a family, against brute force."""
    for seed in range(FIRST + 4 * part, FIRST + 4 * part + 4):
        assert FAMILIES[family](seed).differences == [], seed


def problems(objective, part):
    """Yield (seed, case, problem, optimum) of eight cases."""
    for seed in range(2 * FIRST + 8 * part, 2 * FIRST + 8 * part + 8):
        case = draw(random.Random(seed), objective)
        try:
            yield seed, case, compare.problem_of(case), brute_force.optimum(case)
        except InputError:
            continue


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("objective", ["makespan", "period", "latency"])
def test_bounds(objective, part):
    """Every bound of eight problems, ended or not, against brute force."""
    for seed, _, problem, best in problems(objective, part):
        assert bounds_by_looks(problem, best, random.Random(seed)) == [], seed


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["ideal-dp", "linear-dp"])
def test_dynamic_programs(name, part):
    """Every answer to eight problems, against brute force: the best of all, or of its order."""
    for seed, case, problem, best in problems("period", part):
        assert compare.solver_answer(case, problem, best, name, seed) == [], seed
