"""Starts of the latency whose segments fall into parts that run side by side."""

from __future__ import annotations

import numpy as np
import pytest

import placeopt as po
from placeopt.latency.evaluate import latency_value
from placeopt.latency.judge import latency_violations
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.period.contracted import contract
from placeopt.solvers.exact.latency_parts import side_by_side
from placeopt.solvers.exact.latency_tactics import turns


def best_of(problem):
    """Return the best value of all that is found, each of it valid; None without any."""
    model = contract(problem.replace(objective="period", contiguity="chain"))
    turn = np.zeros(problem.num_ops, np.int64)
    found = [Placement(device, slot) for device, slot in side_by_side(problem, model, turn)]
    for placement in found:
        assert latency_violations(problem, placement) == []
    return min((latency_value(problem, placement) for placement in found), default=None)


def latency_problem(ticks, edges, devices=8, **fields):
    """Return a problem of unit transfers on equal devices."""
    compute = np.repeat(np.asarray(ticks)[:, None], devices, axis=1)
    costs = [(u, v, 1) for u, v in sorted(edges)]
    return PlacementProblem.from_edges(compute, costs, objective="latency", **fields)


TREE = [((v - 1) // 2, v) for v in range(1, 511)]
FORKS = [
    edge
    for at in (0, 161)
    for b in range(8)
    for first in [at + 1 + 20 * b]
    for edge in (
        (at, first),
        *((v, v + 1) for v in range(first, first + 19)),
        (first + 19, at + 161),
    )
]
"""Two forks of eight chains of 20, one behind the other."""


@pytest.mark.parametrize(
    ("edges", "slots", "least"),
    [
        (TREE, 1, 511 / 7),
        ([(510 - v, 510 - u) for u, v in TREE], 1, 511 / 7),
        ([(v, v + 1) for v in range(510) if v % 30 != 29], 1, 511 / 8),
        (FORKS, 1, 2 * 80),
        (FORKS, 3, 2 * 20),
    ],
)
def test_parts_run_side_by_side(edges, slots, least):
    """Trees from either end, chains and forks take not much longer than their work evenly spread,
    where everything on one device is what any single segment gives.
    """
    n = max(v for _, v in edges) + 1
    value = best_of(latency_problem(np.ones(n, np.int64), edges, slots=slots))
    assert least <= value <= 2 * least < n


def test_parts_run_in_the_pool():
    """Sixteen chains of ten ops on two accelerators and a CPU of a third of their speed: 80 ticks
    on the accelerators, 30 with the chains in the pool that cannot be on them in that time.
    """
    compute = np.tile([1, 1, 3], (160, 1))
    edges = [(v, v + 1, 1) for v in range(159) if v % 10 != 9]
    problem = PlacementProblem.from_edges(compute, edges, objective="latency", io_class=[0, 0, -1])
    assert best_of(problem) == 30


def test_the_default_begins_with_parts():
    """A tree on eight devices took as long as on one."""
    problem = latency_problem(np.ones(511, np.int64), TREE)
    value = po.solve(problem, "cp-sat", tactics="starts", evaluations=20).value
    assert value <= best_of(problem) <= 2 * 511 / 7


@pytest.mark.parametrize("seed", range(12))
def test_all_that_is_found_is_valid(seed):
    """On unlike devices, with memory, slots and ops that run on some devices only."""
    rng = np.random.default_rng(seed)
    compute = rng.integers(1, 9, (12, 4))
    compute[rng.random((12, 4)) < 0.2] = -1
    compute[:, 0] = np.abs(compute[:, 0])
    edges = [(u, v, 1 + u % 4) for u in range(12) for v in range(u + 1, 12) if rng.random() < 0.15]
    problem = PlacementProblem.from_edges(
        compute,
        edges,
        objective="latency",
        slots=1 + seed % 3,
        resident=rng.integers(0, 9, 12),
        capacity=rng.integers(10, 40, 4) if seed % 2 else np.full(4, 200),
        io_class=[0, 0, 0, -1 if seed % 4 == 0 else 0],
    )
    value = best_of(problem)
    assert value is not None or seed % 2


@pytest.mark.parametrize(("tactic", "least"), [("starts", 94), ("annealing", 92)])
def test_backward_ops_come_back_through_later_slots(tactic, least):
    """A chain of 40 ops and their backward ops on four devices that hold 11 of them each: there was
    no answer, as all of them formed one node, and moved to one slot. Three borders cost four ticks
    each, and two more where the last device has two slots.
    """
    edges = [(v, v + 1) for v in range(79)]
    problem = latency_problem(
        np.ones(80, np.int64),
        edges,
        devices=4,
        slots=2,
        colocation=np.minimum(np.arange(80), np.arange(80)[::-1]),
        resident=np.ones(80, np.int64),
        capacity=np.full(4, 22),
    )
    assert po.solve(problem, "cp-sat", tactics=tactic, evaluations=20).value == least


def test_turns_are_behind_paths_that_come_back():
    """Op 2 comes back to the device of op 0, and op 3 follows it; with one slot nothing turns."""
    edges = [(0, 1), (1, 2), (2, 3), (4, 3)]
    problem = latency_problem(np.ones(5, np.int64), edges, slots=2, colocation=[0, 1, 0, 1, 2])
    assert turns(problem).tolist() == [0, 0, 1, 1, 0]
    assert not turns(problem.replace(slots=1)).any()
