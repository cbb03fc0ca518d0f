"""Planted instances: the planted schedule is valid and equals the lower bound, at every size."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.generators import generate
from placeopt.instances.generators.planted import planted_problem
from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import schedule_violations
from placeopt.model.cluster import contention_matrix


@pytest.mark.jit
@pytest.mark.parametrize("ops", [20, 100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("devices", [2, 4, 7])
def test_planted_makespan_is_the_load_bound(ops, devices):
    """Under both queues the planted placement takes exactly (sum of work) / devices."""
    problem, placement, optimum = planted_problem(ops=ops, devices=devices, seed=ops + devices)
    assert optimum * devices == problem.min_compute.sum()
    for queue in ("priority", "planned"):
        assert evaluate(problem, placement, queue=queue).makespan == optimum
    assert problem.num_edges >= 0.8 * ops
    assert len(np.unique(placement.device)) == devices


@pytest.mark.parametrize("seed", range(10))
def test_planted_schedule_passes_the_independent_validator(seed):
    """The validator, which shares no code with the kernel, finds nothing wrong with it."""
    problem, placement, optimum = planted_problem(
        ops=60, devices=3, degree=3, ccr=2, seed=seed, unrelated=seed % 2 == 1
    )
    schedule = evaluate(problem, placement, queue="planned").schedule
    assert schedule_violations(problem, schedule) == []
    assert schedule.makespan == optimum


def test_the_proved_bound_meets_the_planted_optimum():
    """The toolkit's own bound proves the planted makespan optimal."""
    problem, _, optimum = planted_problem(ops=50, devices=4, seed=1)
    assert po.bound(problem, seconds=5).value == optimum


def test_the_generator_lowers_to_the_planted_problem():
    """gen:planted on uniform:K is the same problem as planted_problem, arrays and all."""
    graph = generate("gen:planted?ops=200&devices=5&seed=9&ccr=1.5")
    problem, placement, optimum = planted_problem(ops=200, devices=5, seed=9, ccr=1.5)
    lowered = po.load(graph, "uniform:5")
    for key in ("compute", "producer", "consumer_ptr", "consumer", "transfer"):
        assert np.array_equal(getattr(lowered, key), getattr(problem, key)), key
    assert evaluate(lowered, placement).makespan == optimum


def test_unrelated_devices_keep_the_optimum():
    """With every op fastest where it is planted, total fastest work is still devices * optimum."""
    problem, placement, optimum = planted_problem(ops=300, devices=4, seed=2, unrelated=True)
    assert len(problem.identical_devices) == 4
    assert problem.min_compute.sum() == 4 * optimum
    assert evaluate(problem, placement).makespan == optimum


@pytest.mark.parametrize("seed", range(8))
def test_planted_with_one_sender_per_device_survives_contention(seed):
    """With contention=source the planted order is optimal where transfers queue by source, by pair,
    or not at all.
    """
    problem, placement, optimum = planted_problem(
        ops=200, devices=4, degree=3, ccr=2, contention="source", seed=seed
    )
    assert (problem.channel >= 0).all()
    assert (problem.transfer > 0).mean() > 0.5
    for contention in ("source", "pair", "none"):
        shared = problem.replace(channel=contention_matrix(4, contention))
        evaluation = evaluate(shared, placement, queue="planned")
        assert evaluation.makespan == optimum
        assert schedule_violations(shared, evaluation.schedule) == []
    free, placement, _ = planted_problem(ops=200, devices=4, degree=3, ccr=2, seed=seed)
    assert (
        evaluate(free.replace(channel=problem.channel), placement, queue="planned").makespan
        > optimum
    )


def test_planted_instances_are_not_trivial():
    """Without the planted ranks, and with random devices, the makespan is clearly worse."""
    problem, placement, optimum = planted_problem(ops=500, devices=4, seed=3)
    assert evaluate(problem, po.Placement(placement.device)).makespan > 1.05 * optimum
    rng = np.random.default_rng(0)
    assert evaluate(problem, po.Placement(rng.integers(0, 4, 500))).makespan > 1.2 * optimum
