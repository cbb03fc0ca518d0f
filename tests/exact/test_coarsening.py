"""Coarse problems without the ops that have no length there: bounds, what is left out, and the way
back.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from exact_instances import brute_force, doppler
from random_problems import random_problem

from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.coarsening import coarsen, natural_grid
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.judge import placement_violations
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_tactics import _take_heads, solve_coarse
from placeopt.solving.tracker import Tracker


def drawn(rng, num_ops, num_devices=2):
    """Return a random problem in which half of the ops and transfers are short, with one or two
    link classes.
    """
    compute = np.where(
        rng.random(num_ops) < 0.5, rng.integers(0, 10, num_ops), rng.integers(10, 60, num_ops)
    )
    compute = np.repeat(compute[:, None], num_devices, axis=1)
    if rng.random() < 0.3:
        compute = np.where(rng.random(compute.shape) < 0.2, compute + 7, compute)
    names, classes = rng.permutation(num_ops), int(rng.integers(1, 3))
    edges = [
        (int(names[u]), int(names[v]))
        for v in range(num_ops)
        for u in range(v)
        if rng.random() < 0.45
    ]
    transfer = np.where(
        rng.random((len(edges), classes)) < 0.5, rng.integers(0, 10, (len(edges), classes)), 25
    )
    return PlacementProblem.from_arrays(
        compute=compute,
        producer=[u for u, _ in edges],
        consumer_ptr=np.arange(len(edges) + 1),
        consumer=[v for _, v in edges],
        transfer=transfer,
        link_class=rng.integers(0, classes, (num_devices, num_devices)),
    )


def rounded(problem, unit):
    """Return the problem with all times rounded down and every op kept."""
    compute = np.where(problem.compute >= 0, problem.compute // unit, -1)
    return problem.replace(compute=compute, transfer=problem.transfer // unit)


def test_below_brute_force_and_nothing_lost():
    """A coarse optimum bounds the fine one, and is that of the rounded problem with all its ops, by
    brute force.
    """
    rng, fewer, tight = np.random.default_rng(5), 0, 0
    for turn in range(60):
        problem = drawn(rng, 5, 2 if turn % 4 else 3)
        coarse = coarsen(problem, 10)
        least = brute_force(coarse.problem)
        assert least == brute_force(rounded(problem, 10))
        assert 10 * least <= brute_force(problem)
        fewer += coarse.problem.num_ops < problem.num_ops
        tight += least > int(coarse.problem.compute.max(initial=0))
    assert fewer > 40
    assert tight > 30


def test_the_way_back():
    """On the rounded problem an extended placement is as short as the coarse schedule, says the
    slow oracle.
    """
    rng = np.random.default_rng(6)
    for _ in range(150):
        problem = drawn(rng, int(rng.integers(4, 14)), int(rng.integers(2, 4)))
        coarse = coarsen(problem, 10)
        n = coarse.problem.num_ops
        placement = Placement(rng.integers(0, problem.num_devices, n), rng.permutation(n))
        value, queue = best_queue(coarse.problem, placement)
        back = coarse.extend(evaluate(coarse.problem, placement, queue).schedule)
        assert np.array_equal(coarse.restrict(back).device, placement.device)
        assert np.array_equal(back.device[coarse.kept], placement.device)
        found = reference.run(rounded(problem, 10), back.device, back.priority, "planned")
        assert found is not None
        assert found[0] <= value


def test_what_stays():
    """Ops in groups, with bytes, or with a device that cannot run them stay, and so does the memory
    of the devices.
    """
    rng, stayed = np.random.default_rng(7), 0
    for _ in range(60):
        problem = random_problem(rng)
        coarse = coarsen(problem, 1000)
        bound = (
            (problem.colocation >= 0) | (problem.resident > 0) | (problem.compute < 0).any(axis=1)
        )
        assert set(np.flatnonzero(bound)) <= set(coarse.kept.tolist())
        assert np.array_equal(coarse.problem.resident, problem.resident[coarse.kept])
        assert np.array_equal(coarse.problem.capacity, problem.capacity)
        stayed += int(bound.any())
    assert stayed > 30


def test_a_sum_between_two_devices_stays():
    """An op without length that two feed and two read waits for one of them, wherever it is."""
    edges = [(0, 2, 50), (1, 2, 50), (2, 3, 50), (2, 4, 50)]
    problem = PlacementProblem.from_edges(
        np.array([[100] * 2, [100] * 2, [1] * 2, [100] * 2, [100] * 2]), edges
    )
    assert coarsen(problem, 10).kept.tolist() == [0, 1, 2, 3, 4]
    chain = PlacementProblem.from_edges(
        np.array([[100] * 2, [1] * 2, [100] * 2]), [(0, 1, 50), (1, 2, 30)]
    )
    coarse = coarsen(chain, 10)
    assert coarse.kept.tolist() == [0, 2]
    assert coarse.hosts == ((1, 0),)
    assert coarse.problem.transfer.tolist() == [[3]]


def test_doppler_graphs_shrink(data):
    """Most ops of the sharded graphs are short beside a product."""
    for name, devices, most in (("llama_layer", 4, 50), ("llama_block_8gpu", 8, 130)):
        problem = doppler(data, name, devices)
        unit = natural_grid(problem, int(problem.min_compute.sum()) // devices)
        assert coarsen(problem, unit).problem.num_ops <= most < problem.num_ops / 2


@pytest.mark.parametrize("seconds", [20.0, None])
def test_a_search_with_every_kind_of_limit(seconds):
    """With and without time the coarse bound is below brute force, and what is offered keeps the
    rules of the problem.
    """
    rng, raised = np.random.default_rng(8), 0
    for turn in range(20):
        problem = (
            drawn(rng, 5)
            if turn % 2
            else random_problem(rng, max_ops=5, max_devices=2, contention="none")
        )
        least = brute_force(problem)
        if least is None:
            continue
        tracker = Tracker("cp-sat", problem, Budget(seconds, None if seconds else 1000))
        tracker.offer(*heuristic(problem))
        unit = int(rng.integers(1, 12))
        solve_coarse(CpSat(num_workers=1), tracker, Analysis(problem), unit)
        assert tracker.lower_bound <= least <= tracker.value
        assert not placement_violations(problem, tracker.solution)
        raised += tracker.lower_bound > 0
    assert raised > 5


def test_a_bound_of_the_fine_problem_is_none_of_the_coarse_one():
    """Two ops of 19 ticks in a row take 38, and 8 on a grid of 4 ticks, whose times have the common
    unit 4: that 38 is 9 on the grid says nothing about multiples of 4.
    """
    problem = PlacementProblem.from_edges([[19, 19]] * 2, [(0, 1, 0)])
    tracker = Tracker("cp-sat", problem, Budget(evaluations=100))
    tracker.raise_bound(38, "critical-path")
    solve_coarse(CpSat(num_workers=1), tracker, Analysis(problem), 4)
    assert tracker.lower_bound == 38


@pytest.mark.parametrize("times", [[19, 10], [10, 19]])
def test_devices_that_differ_only_before_rounding(times):
    """What is known of the slower of two devices, which are alike on the grid, does not hold for
    the faster one.
    """
    problem = PlacementProblem.from_edges(
        np.array([times] * 4), [(v, v + 1, 1000) for v in range(3)]
    )
    analysis, coarse = Analysis(problem), coarsen(problem, 10)
    inner = Analysis(coarse.problem)
    assert len(inner.relaxation.class_size) == 1
    _take_heads(inner, analysis, coarse.unit, coarse.kept)
    assert analysis.heads.head.max() == 57
    assert inner.heads.head[:, 0].tolist() == [0, 1, 2, 3]
    assert inner.heads.tail[:, 0].tolist() == [3, 2, 1, 0]


def heuristic(problem):
    """Return value and placement on some device that can run each op."""
    placement = Placement(
        np.argmax(problem.compute, axis=1)
        if (problem.colocation < 0).all()
        else np.zeros(problem.num_ops, int)
    )
    return best_queue(problem, placement)[0], placement


def test_transfers_far_longer_than_a_horizon():
    """A tensor that many ops read becomes one for each on a grid: together they may take more than
    2^62 ticks, which no schedule waits for.
    """
    problem = PlacementProblem.from_arrays(
        compute=[[9, 9]] * 41,
        producer=[0],
        consumer_ptr=[0, 40],
        consumer=range(1, 41),
        transfer=[[2**60]],
    )
    coarse = coarsen(problem, 4).problem
    assert coarse.num_tensors == 40
    assert Analysis(coarse).run("load") * 4 <= 41 * 9
