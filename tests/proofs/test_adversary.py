"""The checker against an adversary: at an optimum that brute force knows nothing closes, just below
it much does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import adversary
from adversary import FAMILIES, Tally, attacked


@pytest.mark.parametrize("family", FAMILIES)
def test_no_derivation_refutes_the_optimum(family):
    """A slice of what `results/reliability/study.py adversary` runs; that it has power shows below
    the optimum.
    """
    total = Tally()
    for seed in range(25):
        total.add(attacked(family, seed, 20))
    assert total.at_optimum == 0, total.first
    assert total.derivations >= 200
    assert total.below > 0.15 * total.derivations


def front_of_any_number(state, words, _refute):
    """The step `front` as it was: ticks of all windows are taken out of the middle, energy of
    two.
    """
    weights, *fronts = words
    width = sum(y * x for x, y in zip(state.count, weights, strict=True))
    energy = [
        min(weights[c] * state.time[v][c] for c in state.classes(v)) for v in range(state.num_ops)
    ]
    left, between = sum(energy), state.most - sum(ticks for ticks, _ in fronts)
    for ticks, most in fronts[:2]:
        if most < width * ticks:
            raise adversary.checker.FalseStatementError("nothing may be believed here")
        left -= min(most, width * ticks)
    state.closed = between >= 0 and left > between * width


def test_the_adversary_finds_a_front_that_takes_any_number_of_windows(monkeypatch):
    """The fault that let any bound pass is one that this test would have found."""

    def careless(*given):
        try:
            front_of_any_number(*given)
        except (TypeError, ValueError, IndexError) as error:
            raise adversary.checker.UnreadableError("words of another shape") from error

    monkeypatch.setitem(adversary.checker.STEPS, "front", careless)
    assert any(attacked("makespan", seed, 20).at_optimum for seed in range(60))
