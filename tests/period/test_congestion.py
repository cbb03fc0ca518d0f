"""The bound by flows between all pairs of nodes: worked values, brute force, and what flows carry."""

from __future__ import annotations

from itertools import islice

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.model import uniform_flow
from placeopt.model.problem import PlacementProblem
from placeopt.period.bounds.congestion import congestion_bounds
from placeopt.period.contracted import contract


def bounds_of(problem, rounds=16):
    """Return the bounds of the first rounds."""
    return list(islice(congestion_bounds(contract(problem, contiguity="none")), rounds))


def path(ticks, pay, devices, **fields):
    """Return ops in a row, each with a tensor of `pay` ticks to the next."""
    edges = [(v, v + 1, pay) for v in range(len(ticks) - 1)]
    compute = np.repeat(np.array(ticks)[:, None], devices, axis=1)
    return PlacementProblem.from_edges(compute, edges, objective="period", **fields)


def test_two_ops_pay_their_tensor_or_share_a_device():
    """Of 8 and 8 ticks with a tensor of 3 between them: 11 on two devices, 16 on one; the only flow
    is along the tensor. Free tensors, and devices that pay nothing, leave the work.
    """
    assert bounds_of(path([8, 8], 3, 2))[-1] == 11
    assert bounds_of(path([8, 8], 30, 2))[-1] == 16
    assert bounds_of(path([8, 8], 0, 2)) == []
    assert bounds_of(path([8, 8], 3, 2).replace(io_class=np.array([0, -1]))) == []
    assert bounds_of(path([0, 0], 3, 2)) == bounds_of(path([2**50, 1], 3, 2)) == []


def test_a_flow_through_one_tensor_is_all_pairs_across_it():
    """Four ops of 4 ticks in a row, tensors of 2: the middle one carries 4 of 16 pairs each way, so
    a device of half of them pays 2; on four devices (an op each) it carries more than it need.
    """
    assert bounds_of(path([4, 4, 4, 4], 2, 2))[-1] == 10
    assert 4 < bounds_of(path([4, 4, 4, 4], 2, 4))[-1] <= 6


def test_the_part_with_most_work_counts():
    """Ops that nothing joins to the others add nothing."""
    joined = path([8, 8], 3, 2)
    apart = PlacementProblem.from_edges(
        np.repeat([[8], [8], [3], [2]], 2, axis=1), [(0, 1, 3), (2, 3, 9)], objective="period"
    )
    assert bounds_of(apart) == bounds_of(joined)


@pytest.mark.parametrize("contiguity", ["none", "convex", "chain"])
def test_no_round_is_above_the_best_of_all_placements(contiguity):
    """On random problems, with devices that differ, memory and training; all devices pay on half of
    them, and some bounds are above the loads'.
    """
    higher = 0
    for seed in range(30):
        problem = problems.random_problem(seed, n=5, contiguity=contiguity)
        if seed % 2:
            problem = problem.replace(io_class=np.maximum(problem.io_class, 0))
        best = problems.best_period(problem)
        found = bounds_of(problem)
        assert found == sorted(found)
        if best is not None and found:
            assert found[-1] <= best, seed
            higher += found[-1] > po.bound(problem, methods=["load"]).value
    assert higher > 0


def test_units_that_do_not_arrive_prove_nothing(monkeypatch):
    """Where floating point loses the order along a path there is no bound, not a wrong one."""
    distances = uniform_flow.dijkstra

    def confused(graph, **named):
        far, before = distances(graph, **named)
        return np.where(far > 0, far.max() + 1 - far, 0), before

    monkeypatch.setattr(uniform_flow, "dijkstra", confused)
    assert bounds_of(path([4, 4, 4, 4], 2, 2)) == []


def test_a_grid_costs_more_than_its_work():
    """However a grid is cut, tensors cross: the flow shows a fifth more than the work."""
    problem = po.load("gen:stencil?rows=4&columns=4&steps=4&ccr=1&seed=1", "uniform:4")
    problem = problem.replace(objective="period", contiguity="none")
    report = po.bound(problem, seconds=0.9)
    assert report.bounds["congestion"] > 1.2 * report.bounds["load"]
