"""Memory, compatibility and colocation: every heuristic fits them or says why nothing does."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
from random_problems import random_problem

from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations
from placeopt.model.feasibility import infeasible_reason
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.heuristics import SPECS, repair as repair_module
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.repair import pack, repair
from placeopt.solving.registry import make_solver

NAMES = [spec.name for spec in SPECS]
BUDGET = Budget(evaluations=30)


def sized(sizes, capacity, edges=(), **fields):
    """Return a problem whose ops need one tick and the given bytes each."""
    compute = np.ones((len(sizes), len(capacity)), dtype=np.int64)
    return PlacementProblem.from_edges(
        compute, list(edges), resident=sizes, capacity=capacity, **fields
    )


def fits_somehow(units):
    """Brute force: whether any assignment of units to devices fits."""
    options = [np.flatnonzero(row) for row in units.allowed]
    for home in itertools.product(*options):
        used = np.bincount(home, units.bytes, minlength=len(units.capacity))
        if (used <= units.capacity).all():
            return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_perfect_packing(name):
    """Three devices of 10 bytes hold 6+4, 5+5 and 4+3+3 exactly: there is no slack at all."""
    problem = sized([3, 4, 5, 6, 5, 4, 3], [10, 10, 10], [(0, 6, 5), (1, 5, 5), (2, 4, 5)])
    result = make_solver(name).solve(problem, BUDGET, seed=0)
    assert result.status == "feasible"
    assert not placement_violations(problem, result.solution)


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_reserved_as_a_whole(name):
    """A colocation group of 8 bytes whose members come early and late gets one device of 8
    bytes.
    """
    problem = sized(
        [2, 3, 3, 3, 2, 3],
        [8, 8],
        [(0, 1, 1), (1, 4, 1), (2, 3, 1)],
        colocation=[0, 0, -1, -1, -1, 0],
    )
    result = make_solver(name).solve(problem, BUDGET, seed=0)
    assert result.solution is not None
    assert len(set(result.solution.device[[0, 1, 5]].tolist())) == 1
    assert not placement_violations(problem, result.solution)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (sized([5, 5, 5], [7, 7]), "resident bytes|packed"),
        (sized([9, 1], [8, 8]), "needs 9 resident bytes"),
        (sized([6, 6, 6], [10, 10]), "of which at most 2 fit"),
        (sized([9, 5, 4, 2], [10, 10]), "packed"),
        (
            PlacementProblem.from_edges([[1, -1], [-1, 1]], [], colocation=[0, 0]),
            "no device is compatible with all its ops",
        ),
    ],
    ids=["total", "one-op", "count", "packing", "group"],
)
def test_impossible_instances_are_named(name, problem, words):
    """Where no placement exists the status is infeasible and the message says why."""
    result = make_solver(name).solve(problem, BUDGET, seed=0)
    assert result.status == "infeasible"
    assert result.solution is None
    assert any(word in result.message for word in words.split("|"))


@pytest.mark.parametrize("name", NAMES)
def test_random_memory_limits(name):
    """On random problems with tight memory the answer is valid, or nothing fits at all (brute
    force).
    """
    for seed in range(40):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, max_ops=8, max_devices=3)
        share = problem.resident.sum() / problem.num_devices
        problem = problem.replace(
            capacity=np.full(problem.num_devices, int(share * rng.uniform(1.0, 1.5)) + 1)
        )
        units = problem.units
        result = make_solver(name).solve(problem, BUDGET, seed=seed)
        if fits_somehow(units):
            assert result.solution is not None, seed
            assert not placement_violations(problem, result.solution)
        else:
            assert result.status == "infeasible", seed


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory(name):
    """With a limit on the dynamic peak the placement keeps it in the execution that the result
    names.
    """
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(15):
        problem = random_problem(rng, max_ops=10, max_devices=3, contention="none")
        share = (problem.resident.sum() + problem.tensor_bytes.sum()) / problem.num_devices
        problem = problem.replace(
            memory="peak", capacity=np.full(problem.num_devices, int(1.4 * share) + 12)
        )
        result = make_solver(name).solve(problem, BUDGET, seed=0)
        if result.solution is not None:
            found += 1
            peak = evaluate(problem, result.solution, result.queue).peak_memory
            assert (peak <= problem.capacity).all()
        else:
            assert result.message
    assert found >= 12


def test_repair_changes_little():
    """An overloaded device gives away the smallest unit that cures it; everything else stays."""
    units = sized([4, 3, 2, 1], [8, 8]).units
    home = repair(units, np.zeros(4, dtype=np.int64), np.ones((4, 2)))
    assert home.tolist() == [0, 0, 1, 0]


def test_pack_finds_what_best_fit_misses():
    """Best fit decreasing fails on 6, 5, 4, 3, 3, 3 in 12 + 12; the integer program packs it."""
    units = sized([6, 5, 4, 3, 3, 3], [12, 12]).units
    home, proved = pack(units)
    assert not proved
    assert np.bincount(home, units.bytes, minlength=2).tolist() == [12, 12]


def test_impossible_says_nothing_of_possible_problems():
    """No random problem that brute force can pack is called impossible."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, max_ops=6, max_devices=3)
        problem = problem.replace(capacity=rng.integers(0, 30, problem.num_devices))
        units = problem.units
        if fits_somehow(units):
            assert infeasible_reason(problem) == ""


def test_units_are_numbered_by_first_op():
    """Groups and single ops become units in op order; bytes add up, compatibility intersects."""
    problem = PlacementProblem.from_edges(
        [[1, 1], [1, -1], [1, 1], [2, 2]], [], colocation=[-1, 7, -1, 7], resident=[1, 2, 3, 4]
    )
    units = Context(problem).units
    assert units.unit.tolist() == [0, 1, 2, 1]
    assert units.bytes.tolist() == [1, 6, 3]
    assert units.allowed.tolist() == [[True, True], [True, False], [True, True]]


def test_many_ops_alike_are_placed_in_parts(monkeypatch):
    """A thousand times as many ops do not need a table of places a million times as large."""
    solve, tables = scipy.optimize.linear_sum_assignment, []
    monkeypatch.setattr(
        scipy.optimize, "linear_sum_assignment", lambda t: tables.append(t.size) or solve(t)
    )
    compute = np.ones((3000, 3), np.int64)
    compute[np.arange(3000), np.arange(3000) % 3] = -1
    problem = PlacementProblem.from_edges(compute, [])
    result = make_solver("enumerative").solve(problem, BUDGET)
    assert max(tables) <= 10_000_000
    assert result.value == 1000


def test_a_packing_is_looked_for_within_the_time(monkeypatch):
    """The integer program, which may take minutes, has a quarter of a limit of seconds, and is asked
    again where there is more.
    """
    rng, limits = np.random.default_rng(0), []
    size = rng.integers(20, 100, 40)
    problem = sized(size, [-(-int(size.sum()) // 10)] * 10)

    def in_vain(*_, **options):
        limits.append(options.get("time_limit"))
        return SimpleNamespace(x=None, status=1)

    monkeypatch.setattr(repair_module, "first_filled", lambda *_: None)
    monkeypatch.setattr(repair_module, "integer_program", in_vain)
    for budget in (Budget(seconds=8.0), Budget(evaluations=9)):
        assert make_solver("single-device").solve(problem, budget).status == "unknown"
    first, then = limits
    assert 0 < first <= 2
    assert then is None


def test_repair_looks_at_the_devices_of_a_unit_once():
    """A graph that fits on no single device moves most of its ops: not all are looked at for each
    move.
    """
    looked = 0

    class Watched(np.ndarray):
        def __getitem__(self, at):
            nonlocal looked
            found = super().__getitem__(at)
            looked += np.size(found)
            return found

    units = sized([1] * 400, [110] * 4).units
    watched = units._replace(allowed=units.allowed.view(Watched))
    home = repair(watched, np.zeros(400, np.int64), np.ones((400, 4)))
    assert np.bincount(home).tolist() == [110, 110, 110, 70]
    assert looked < 3 * 400 * 4
