"""Period and latency of a placement against evaluators that follow the definitions word by word."""

from __future__ import annotations

from itertools import product

import numpy as np
import period_problems as problems
import pytest

import placeopt as po
from placeopt.latency.evaluate import latency_batch, latency_value
from placeopt.latency.judge import latency_violations, placement_slots
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.period.evaluate import period_batch, period_loads, period_value
from placeopt.period.judge import period_violations, wait_forever

pytestmark = pytest.mark.interpreted


@problems.every_meaning
def test_period_agrees_with_definition(contiguity, pipeline, training):
    """Every placement of random problems has the period of the definition, feasible or not."""
    for seed in range(4):
        problem = problems.random_problem(
            seed, training=training, n=5, contiguity=contiguity, pipeline=pipeline
        )
        every = list(problems.placements(problem))
        values = period_batch(problem, np.array(every))
        for device, value in zip(every, values, strict=True):
            expected = problems.oracle_period(problem, device)
            assert value == (INFEASIBLE if expected is None else expected)
            assert bool(period_violations(problem, Placement(np.array(device)))) == (
                expected is None
            )


@pytest.mark.parametrize("contiguity", ["chain", "convex"])
def test_numbers_of_ops_mean_nothing(contiguity):
    """Renumbered ops, the first of which may be read from all others: the same is valid, at the
    same period.
    """
    refused = 0
    for seed in range(12):
        problem = problems.random_problem(seed, training=False, n=5, contiguity=contiguity)
        rng = np.random.default_rng(seed)
        new = rng.permutation(5) if seed % 2 else np.arange(5)[::-1]
        old = np.argsort(new)
        other = problem.replace(
            **{key: getattr(problem, key)[old] for key in ("compute", "resident", "colocation")},
            producer=new[problem.producer],
            consumer=new[problem.consumer],
        )
        every = list(problems.placements(problem))
        for i in rng.choice(len(every), 60):
            device = np.array(every[i])
            wrong = period_violations(problem, Placement(device))
            assert len(period_violations(other, Placement(device[old]))) == len(wrong), (seed, i)
            if not wrong:
                value = period_value(problem, Placement(device))
                assert period_value(other, Placement(device[old])) == value
            refused += bool(wrong)
    assert refused > 50


def test_tensor_is_paid_once_per_accelerator():
    """A tensor read twice on one accelerator is received once; its sender pays once; the CPU never
    pays.
    """
    problem = PlacementProblem(
        name="fan",
        compute=np.ones((4, 3), dtype=np.int64),
        producer=np.array([0]),
        consumer_ptr=np.array([0, 3]),
        consumer=np.array([1, 2, 3]),
        transfer=np.array([[10]]),
        io_class=np.array([0, 0, -1]),
        objective="period",
    )
    loads = period_loads(problem, np.array([0, 1, 1, 2])).sum(axis=0)
    assert loads.tolist() == [11, 12, 1]


def test_violations_are_named():
    """Each broken constraint is told in words that name the op or device."""
    problem = PlacementProblem(
        name="p",
        compute=np.array([[1, 1], [1, -1], [1, 1]]),
        producer=np.array([0, 1]),
        consumer_ptr=np.array([0, 1, 2]),
        consumer=np.array([1, 2]),
        transfer=np.array([[1], [1]]),
        resident=np.array([5, 5, 5]),
        capacity=np.array([9, 99]),
        colocation=np.array([0, -1, 0]),
        objective="period",
    )
    words = " ".join(period_violations(problem, Placement(np.array([0, 1, 1]))))
    assert "op 'op1' cannot run on device 'device1'" in words
    assert "'op0' and 'op2' of colocation group 0" in words
    loop = " ".join(period_violations(problem, Placement(np.array([1, 0, 1]))))
    assert "chain" in loop
    with pytest.raises(InfeasiblePlacementError, match="chain"):
        period_value(problem, Placement(np.array([1, 0, 1])))
    with pytest.raises(InputError, match="static"):
        period_value(problem.replace(memory="peak"), Placement(np.array([0, 0, 0])))


@pytest.mark.parametrize("objective", ["period", "latency"])
def test_a_limit_on_the_peak_is_refused_before_a_search(objective):
    """It was a fault of the solver: a steady state has no single peak."""
    problem = PlacementProblem.from_edges([[1, 1]], [], objective=objective, memory="peak")
    for asked in (po.solve, po.bound):
        with pytest.raises(InputError, match="expects memory='static', received 'peak'"):
            asked(problem, seconds=1)


@pytest.mark.parametrize("slots", [1, 2])
def test_latency_agrees_with_definition(slots):
    """Random placements in slots have the latency of the definition, deadlocks and memory
    included.
    """
    for seed in range(12):
        problem = problems.random_problem(seed, n=6, objective="latency", slots=slots)
        rng = np.random.default_rng(seed)
        device = rng.integers(0, 3, (60, 6))
        for group in set(problem.colocation.tolist()) - {-1}:  # keep most rows feasible
            members = np.flatnonzero(problem.colocation == group)
            device[:, members] = device[:, members[:1]]
        slot = rng.integers(0, slots, (60, 6))
        values = latency_batch(problem, device, slot)
        for row in range(60):
            expected = problems.oracle_latency(
                problem, tuple(device[row].tolist()), tuple(slot[row].tolist())
            )
            assert values[row] == (INFEASIBLE if expected is None else expected)


def test_latency_slots_come_from_priorities():
    """Ops of an accelerator with equal priority share a slot; too many slots and circles are
    named.
    """
    problem = PlacementProblem(
        name="line",
        compute=np.ones((3, 2), dtype=np.int64),
        producer=np.array([0, 1]),
        consumer_ptr=np.array([0, 1, 2]),
        consumer=np.array([1, 2]),
        transfer=np.array([[2], [2]]),
        io_class=np.array([0, -1]),
        objective="latency",
        slots=2,
    )
    split = Placement(np.array([0, 1, 0]), np.array([3, 9, 7]))
    assert placement_slots(problem, split).tolist() == [0, 0, 1]
    assert latency_value(problem, split) == 3 + 1 + 3
    together = Placement(np.array([0, 1, 0]))
    assert "circle" in latency_violations(problem, together)[0]
    assert "at most 1 slots" in latency_violations(problem.replace(slots=1), split)[0]
    feasible = [
        d
        for d in product(range(2), repeat=3)
        if latency_batch(problem, np.array([d]))[0] < INFEASIBLE
    ]
    assert (0, 1, 0) not in feasible
    assert len(feasible) == 7


def test_what_waits_forever_is_what_a_circle_holds_up():
    """Directly or not, and nothing else; a long line takes no longer than it has to."""
    assert wait_forever({0: {1}, 1: {0}, 2: {1}, 3: {4}, 4: ()}) == {0, 1, 2}
    assert wait_forever({v: {v - 1} if v else () for v in range(20_000)}) == set()
