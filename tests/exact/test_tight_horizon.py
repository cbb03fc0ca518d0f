"""Restarts on the horizon of the bound."""

from __future__ import annotations

import pytest
from ortools.sat.python import cp_model

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.evaluate import best_queue
from placeopt.makespan.proof.witness import makespan_witness
from placeopt.solvers.exact.makespan_grid import TightHorizon, luby
from placeopt.solvers.exact.makespan_model import MakespanModel

BEST = 8


def fork():
    """Return one op that feeds three, which feed one, on two devices: the best makespan is BEST."""
    edges = [(0, v, 1) for v in (1, 2, 3)] + [(v, 4, 1) for v in (1, 2, 3)]
    return po.PlacementProblem.from_edges([[2, 2], [3, 3], [1, 1], [1, 1], [2, 2]], edges)


def test_limits_follow_the_universal_order():
    """The limits of work are those of Luby, Sinclair and Zuckerman."""
    assert [luby(i) for i in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("horizon", [BEST - 1, BEST])
def test_a_horizon_is_met_or_refuted(num_workers, horizon):
    """The answer is a placement as short as the horizon, or that there is none."""
    problem = fork()
    tight = TightHorizon(MakespanModel(Analysis(problem), 0, horizon), seed=0)
    tight.run(num_workers, lambda: False)
    if horizon < BEST:
        assert tight.outcome == cp_model.INFEASIBLE
        assert tight.placement is None
    else:
        assert tight.outcome == cp_model.OPTIMAL
        assert best_queue(problem, tight.placement)[0] == BEST


def test_it_ends_when_told():
    """Told to stop at once, it returns, with or without an answer."""
    tight = TightHorizon(MakespanModel(Analysis(fork()), 0, BEST), seed=0)
    tight.run(2, lambda: True)
    assert tight.outcome in (cp_model.UNKNOWN, cp_model.OPTIMAL)


def test_a_stack_of_modules_is_proved():
    """What passes in each module of Inception-v1, or each part in series, adds up to a horizon on
    which a schedule is found; nothing has to be believed.
    """
    pytest.importorskip("onnx")
    problem = po.load("onnx:inception_v1", cluster="4xA100")
    result = po.solve(problem, "portfolio", seconds=120, threads=2)
    assert (result.status, result.objective) == ("optimal", 425599)
    assert result.bound_method in ("segments", "series")  # both prove it; whichever comes first
    witness = makespan_witness(problem, result.lower_bound, "segments", 120)
    assert (witness.bound, witness.beliefs) == (425599, ())
