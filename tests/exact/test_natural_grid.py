"""Grids that suit the times of a problem: which unit they have, and what a search on them
proves.
"""

from __future__ import annotations

import numpy as np
import pytest
from exact_instances import doppler

import placeopt as po
from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.coarsening import natural_grid
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_tactics import search_makespan
from placeopt.solving.tracker import Tracker


def ops_of(times):
    """Return ops without edges."""
    return PlacementProblem.from_edges(np.repeat(np.array(times)[:, None], 2, axis=1), [])


def test_the_unit_of_small_multiples():
    """Times of 3, 5 and 8 thousand ticks have the unit 1000; small ones beside them change
    nothing.
    """
    assert natural_grid(ops_of([3000, 5000, 8000]), 20_000) == 1000
    assert natural_grid(ops_of([3000, 5000, 8000, 10, 7, 12]), 20_000) == 1000


def test_times_that_are_all_alike():
    """One time only is its own unit, unless that is more than a fourth of the horizon."""
    assert natural_grid(ops_of([700] * 9), 7000) == 700
    assert natural_grid(ops_of([700] * 3), 1400) == 350


def test_range_and_work_that_is_kept():
    """Whatever the times, a unit is in its range and keeps nearly all; where there is none, no part
    of a time would do.
    """
    rng, found, none = np.random.default_rng(2), 0, 0
    fewest, most, kept = 4, 256, 0.98
    for _ in range(80):
        times = rng.integers(0, int(rng.choice([5, 300, 10**9])), int(rng.integers(1, 60)))
        horizon = int(times.sum()) + 1
        unit = natural_grid(
            ops_of(times), horizon, fewest_units=fewest, most_units=most, kept_of_all=kept
        )
        shortest, longest = max(1, horizon // most), max(1, horizon // fewest)
        if unit == 0:
            none += 1
            parts = {int(t) // k for t in times for k in range(1, most + 1)}
            tried = [part for part in parts if shortest <= part <= longest]
            assert all((times // part).sum() * part < kept * times.sum() for part in tried)
            continue
        found += 1
        assert shortest <= unit <= longest
        assert (times // unit).sum() * unit >= kept * times.sum()
    assert found > 10
    assert none > 10


def test_work_without_a_unit():
    """Times that have nothing in common have no grid."""
    assert natural_grid(ops_of(np.arange(211, 400, 7)), 68_000) == 0
    assert natural_grid(ops_of([0, 0]), 1) == 0


def test_a_device_that_cannot_run_an_op_does_not_count():
    """The fastest device that can run an op says its time."""
    problem = PlacementProblem.from_edges([[-1, 3000], [5000, -1], [9000, 8000]], [])
    assert natural_grid(problem, 20_000) == 1000


@pytest.mark.slow
def test_a_sharded_layer(data):
    """On its own grid, and finer ones, Doppler's Llama layer is bounded far above all other bounds,
    and below a schedule.
    """
    problem = doppler(data, "llama_layer", 4)
    known = po.solve(problem, "annealing", seconds=5)
    tracker = Tracker("cp-sat", problem, Budget(100.0))
    tracker.offer(known.objective, known.solution)
    combinatorial = max(map(Analysis(problem, seconds=10.0).run, COMBINATORIAL))
    settings = CpSat(num_workers=2, warm_start=False, windows=False, tactics="grids")
    search_makespan(settings, problem, tracker)
    assert combinatorial < 980_000_000_000
    assert 1_151_000_000_000 <= tracker.lower_bound <= 1_157_245_512_960
    assert tracker.value <= known.objective
