"""Large neighbourhood search: valid, improving, reproducible, and scaling by slices."""

from __future__ import annotations

import numpy as np
import pytest
from exact_instances import known_optima, random_layered
from random_problems import random_problem

from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations, schedule_violations
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.search.lns import WINDOWS, Bandit, Lns
from placeopt.solving.registry import make_solver

FAST = Lns(effort=0.05, first_size=10)


def check(problem, result):
    """Check validity, value and bound of a result."""
    assert not placement_violations(problem, result.solution)
    run = evaluate(problem, result.solution, result.queue)
    assert run.makespan == result.objective
    assert not schedule_violations(problem, run.schedule)
    assert result.lower_bound <= result.objective


def test_valid_on_random_problems():
    """Contention, colocation, incompatible ops and zero times give valid results, never above the
    start.
    """
    rng = np.random.default_rng(2)
    for _ in range(25):
        problem = random_problem(rng, max_ops=14, max_devices=4)
        start = make_solver("etf").solve(problem, Budget(seconds=2), seed=0)
        result = FAST.solve(problem, Budget(evaluations=4), seed=1, initial=start.solution)
        check(problem, result)
        assert result.objective <= start.objective


def test_memory_is_respected():
    """Windows never move more bytes to a device than it holds."""
    rng = np.random.default_rng(3)
    for seed in range(5):
        problem = random_layered(20, 3, seed)
        problem = problem.replace(resident=rng.integers(1, 10, 20), capacity=np.array([45, 45, 45]))
        result = FAST.solve(problem, Budget(evaluations=10), seed=0)
        check(problem, result)


def test_finds_known_optima(data):
    """Within 30 windows nearly all of a sample of published optima are reached."""
    sample = [pair for i, pair in enumerate(known_optima(data)) if i % 7 == 0]
    hits = 0
    for problem, optimum in sample:
        result = FAST.solve(problem, Budget(evaluations=30), seed=0)
        assert result.objective >= optimum
        hits += result.objective == optimum
    assert hits >= 0.9 * len(sample)


def test_improves_on_its_start():
    """On a layered graph the windows shorten the best heuristic schedule."""
    problem = random_layered(50, 4, 2)
    first = FAST.solve(problem, Budget(evaluations=1), seed=0)
    later = FAST.solve(problem, Budget(evaluations=40), seed=0)
    assert later.objective < first.trace[0].incumbent
    assert later.objective <= first.objective


def test_slices_of_a_large_problem():
    """With slices smaller than the problem, results stay valid and improve."""
    problem = random_layered(400, 4, 5)
    result = Lns(effort=0.05, slice_ops=60, first_size=12).solve(
        problem, Budget(evaluations=25), seed=0
    )
    check(problem, result)
    heuristics = [
        make_solver(name).solve(problem, Budget(evaluations=50), seed=0) for name in ("etf", "heft")
    ]
    assert result.objective <= min(run.objective for run in heuristics)


def test_same_seed_same_answer():
    """One worker and an evaluation budget are reproducible."""
    problem = random_layered(40, 3, 7)
    runs = [FAST.solve(problem, Budget(evaluations=8), seed=5) for _ in range(2)]
    assert runs[0].solution == runs[1].solution


def test_infeasible_is_explained():
    """An op that fits nowhere is named."""
    base = PlacementProblem.from_edges([[1, 1]], [], op_names=("a",))
    result = FAST.solve(
        base.replace(resident=np.array([9]), capacity=np.array([5, 5])), Budget(seconds=1), seed=0
    )
    assert result.status == "infeasible"
    assert "'a'" in result.message


def test_bandit_prefers_what_pays():
    """A kind that earns is chosen more often, and its size follows the difficulty."""
    bandit, rng = Bandit(tuple(WINDOWS), 20), np.random.default_rng(0)
    for _ in range(30):
        for kind in tuple(WINDOWS):
            bandit.learn(kind, 0.01 if kind == "time" else 0.0, kind != "connected", 100)
    drawn = [bandit.choose(rng) for _ in range(200)]
    assert drawn.count("time") > 100
    assert bandit.size["connected"] < 20 < bandit.size["time"]


@pytest.mark.slow
@pytest.mark.jit
def test_ten_thousand_ops():
    """10^4 ops on 8 devices are improved within two minutes."""
    problem = random_layered(10_000, 8, 0)
    result = Lns().solve(problem, Budget(seconds=120), seed=0)
    check(problem, result)
    assert result.objective < result.trace[0].incumbent
