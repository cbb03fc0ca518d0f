"""The attack: small problems of every option, everything the package says of them against brute force."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from case import draw
from compare import attack


def differences(seeds, **options):
    """Attack one problem per seed; return (seed, case, differences) of those that differ."""
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        case = draw(rng)
        wrong = attack(case, rng, **options)
        if wrong:
            found.append((seed, case, wrong))
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_slice_of_the_attack_finds_nothing(part):
    """Evaluators, judges, bounds and solvers agree with brute force on 60 problems."""
    assert differences(range(60 * part, 60 * part + 60)) == []


FOUND = (1160, 2880, 3647, 1952, 2637, 3398, 4017, 5606)
"""Seeds that found something: a path bound that took the wrong link, false infeasibility, colocation without a device, CPUs
taken for one though each holds only a part."""


def test_what_the_attack_once_found_stays_fixed():
    """Every seed that once made a difference makes none, with all exact solvers."""
    assert differences(FOUND, exact=1.0) == []


@pytest.mark.slow
def test_a_long_attack_finds_nothing():
    """The same on 5000 problems, with every exact solver and linear programs."""
    assert differences(range(10_000, 15_000), num_solvers=2, exact=0.5, bound_seconds=0.2) == []
