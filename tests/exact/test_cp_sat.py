"""The exact solver against published optima, brute force and a second model."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from exact_instances import brute_force, doppler, known_optima, random_layered
from ortools.sat.python import cp_model
from random_problems import random_problem

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations, schedule_violations
from placeopt.model.cp_sat import solve_interruptibly
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.exact.cp_sat import CpSat
from placeopt.solvers.exact.makespan_grid import add_hint, record_infeasible
from placeopt.solvers.exact.makespan_model import MakespanModel
from placeopt.solvers.exact.period_tactics import PeriodCpModel
from placeopt.solvers.exact.placement_cp_sat import configured
from placeopt.solvers.search.cp_sat_start import warm_start
from placeopt.solving.registry import make_solver
from placeopt.solving.tracker import Tracker

sys.path.insert(0, str(Path(__file__).parent))
from alternative_model import optimal_makespan

ONE = CpSat(num_workers=1)


def solve(problem, seconds=30.0, **options):
    """Solve with one worker."""
    return ONE.solve(problem, Budget(seconds=seconds), seed=0, **options)


def check(problem, result):
    """Check that the solution is valid and has the value that the result states."""
    assert not placement_violations(problem, result.solution)
    evaluation = evaluate(problem, result.solution, result.queue)
    assert evaluation.makespan == result.objective
    assert not schedule_violations(problem, evaluation.schedule)


def test_all_known_optima_are_proved(data):
    """All 139 published values are reproduced with a proof."""
    for problem, optimum in known_optima(data):
        result = solve(problem, 60)
        assert (result.objective, result.status) == (optimum, "optimal"), problem.name
        check(problem, result)


@pytest.mark.parametrize("name", ["chain_mm", "ffnn"])
def test_published_graphs_are_proved(data, name):
    """Two published sharded graphs on 4 devices are solved to proof at once."""
    assert solve(doppler(data, name)).status == "optimal"


@pytest.mark.slow
def test_llama_block_is_proved(data):
    """The published Llama block, 141.39, is solved to proof."""
    result = CpSat().solve(doppler(data, "llama_block"), Budget(seconds=120), seed=0)
    assert result.status == "optimal"
    assert result.objective / 1e10 == pytest.approx(141.39, abs=0.005)


def test_brute_force_agrees():
    """Without contention the optimum is that of all placements in all orders, n <= 6."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        problem = random_problem(rng, max_ops=5, max_devices=3, contention="none")
        optimum = brute_force(problem)
        result = solve(problem)
        assert result.objective == optimum
        assert result.status == "optimal"


def agree(seed):
    """Compare with the second model; with contention a proven bound may stay below every
    placement.
    """
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_ops=12, max_devices=3)
    n, k = problem.num_ops, problem.num_devices
    if rng.random() < 0.6:
        resident = rng.integers(0, 10, n)
        capacity = rng.integers(resident.max(), resident.sum() + 2, k)
        problem = problem.replace(resident=resident, capacity=capacity)
        if rng.random() < 0.4:
            problem = problem.replace(
                memory="peak", tensor_bytes=rng.integers(0, 6, problem.num_tensors)
            )
    answer = optimal_makespan(problem)
    result = solve(problem)
    if answer is None:
        assert result.status == "infeasible", seed
        assert result.message
        return True
    lower, upper = answer
    assert result.lower_bound <= upper, seed
    assert result.objective is None or result.objective >= lower, seed
    if lower == upper:
        assert result.lower_bound == lower, seed
        if problem.num_channels == 0 and problem.memory == "static":
            assert result.objective == lower, seed
    if result.solution is not None:
        check(problem, result)
    return lower == upper


@pytest.mark.parametrize("block", [0, 3])
def test_second_model_agrees(block):
    """An independent model with a task per edge gives the same optima, contention and memory
    included.
    """
    assert sum(agree(seed) for seed in range(15 * block, 15 * block + 15)) >= 14


@pytest.mark.slow
def test_second_model_agrees_on_many():
    """The same on 230 further problems."""
    assert sum(agree(seed) for seed in [*range(15, 45), *range(1000, 1200)]) >= 225


def test_infeasible_with_the_reason():
    """Too little memory is reported as infeasible, and says where."""
    base = PlacementProblem.from_edges([[1, 1]] * 4, [(0, 1, 1)], op_names=("a", "b", "c", "d"))
    large = base.replace(resident=np.array([5, 50, 5, 5]), capacity=np.array([20, 20]))
    result = solve(large)
    assert result.status == "infeasible"
    assert "'b' needs 50" in result.message
    packing = base.replace(
        resident=np.array([9, 5, 4, 2]), capacity=np.array([10, 10])
    )  # no simple count refutes it
    result = solve(packing)
    assert result.status == "infeasible"
    assert "memory" in result.message


def test_tiny_budget_gives_warm_start_and_bound(data):
    """A tenth of a second still yields a valid placement and a valid bound."""
    problem = doppler(data, "llama_block")
    result = solve(problem, 0.1)
    check(problem, result)
    assert result.lower_bound > 0
    assert result.status in ("feasible", "optimal")


def test_initial_placement_is_not_lost():
    """A given start is never made worse, and an optimal one is recognised."""
    problem = random_layered(12, 2, 0)
    best = solve(problem)
    again = ONE.solve(
        problem, Budget(seconds=10, target=best.objective), seed=1, initial=best.solution
    )
    assert again.objective <= best.objective


def test_invalid_start_is_refused():
    """A start that breaks a constraint is one clear error."""
    problem = PlacementProblem.from_edges([[1, -1], [1, 1]], [])
    with pytest.raises(InputError, match="cannot run"):
        solve(problem, initial=Placement(np.array([1, 0])))


def test_one_worker_is_deterministic():
    """The same seed and the same number of conflicts give the same answer."""
    problem = random_layered(25, 3, 1)
    runs = [ONE.solve(problem, Budget(evaluations=300), seed=4) for _ in range(2)]
    assert runs[0].solution == runs[1].solution
    assert runs[0].lower_bound == runs[1].lower_bound


@pytest.mark.parametrize(("solver", "evaluations"), [("cp-sat", 60), ("lns", 3)])
def test_no_clock_decides_where_evaluations_are_the_limit(solver, evaluations):
    """The answer, the bound and how far it came are those of a machine that needs an age for every
    step.
    """
    problem = random_layered(28, 3, 0)
    made = make_solver(solver, **({"num_workers": 1} if solver == "cp-sat" else {}))
    found = []
    for clock in (time.perf_counter, itertools.count(0.0, 1e6).__next__):
        with mock.patch("time.perf_counter", clock):
            found.append(made.solve(problem, Budget(evaluations=evaluations), seed=4))
    first, second = found
    assert first.solution == second.solution
    assert (first.lower_bound, first.evaluations) == (second.lower_bound, second.evaluations)


@pytest.mark.parametrize("factor", [10**9, 10**12 + 7])
def test_large_horizons(factor):
    """Horizons of 10^12 ticks and more neither overflow nor lose the optimum beyond the grid."""
    small = random_layered(10, 2, 3)
    compute, transfer = small.compute * factor, small.transfer * factor
    large = small.replace(compute=compute + np.arange(10)[:, None], transfer=transfer)
    best, result = solve(small), solve(large, 4)
    assert best.objective * factor <= result.objective <= best.objective * factor * 1.0001 + 100
    assert result.lower_bound >= 0.99 * best.objective * factor
    check(large, result)


def test_contention_costs_and_is_bounded():
    """Sharing channels never shortens the optimum, and a bus is at least as slow as pairs."""
    rng = np.random.default_rng(11)
    for _ in range(6):
        free = random_problem(rng, max_ops=8, max_devices=3, contention="none")
        k = free.num_devices
        pair = free.replace(channel=np.arange(k * k).reshape(k, k))
        bus = free.replace(channel=np.zeros((k, k), dtype=np.int64))
        bounds = [solve(problem, 20).lower_bound for problem in (free, pair, bus)]
        assert bounds[0] <= bounds[1] <= bounds[2]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_returns_the_incumbent():
    """SIGINT during the search ends it with the best placement so far."""
    script = textwrap.dedent(
        """
        import os, sys; sys.path.insert(0, sys.argv[1])
        from exact_instances import random_layered
        from placeopt.model.result import Budget
        from placeopt.solvers.exact.cp_sat import CpSat
        problem = random_layered(80, 4, 0)
        def tell(progress):
            if progress.lower_bound and progress.incumbent:
                print("running", flush=True)
        result = CpSat(num_workers=1).solve(problem, Budget(seconds=100), seed=0, on_progress=tell)
        print(result.stop_reason, result.objective is not None, result.runtime < 90, flush=True)
        os._exit(0)
        """
    )
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tests)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline().strip() == "running"
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        output = child.stdout.read()
    assert "interrupted True True" in output


def test_ends_rounded_down_are_a_coarse_schedule():
    """On a coarse grid the hint of a valid schedule is feasible, under peak memory and free
    transfers too.
    """
    rng = np.random.default_rng(11)
    tried = 0
    while tried < 25:
        n = int(rng.integers(3, 8))
        edges = [
            (u, v, int(rng.integers(0, 9)))
            for v in range(n)
            for u in range(v)
            if rng.random() < 0.4
        ]
        device = rng.integers(0, 2, n)
        loose = PlacementProblem.from_edges(
            rng.integers(0, 9, (n, 2)),
            edges,
            tensor_bytes=rng.integers(1, 9, len(edges)),
            memory="peak",
        )
        run = evaluate(loose, device)
        problem = loose.replace(capacity=np.maximum(1, run.peak_memory))
        if not edges:
            continue
        tried += 1
        model = MakespanModel(Analysis(problem), 0, run.makespan, scale=int(rng.integers(2, 7)))
        add_hint(model, run.schedule)
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.num_workers = 1
        assert solve_interruptibly(solver, model.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def test_evaluations_alone_limit_the_search():
    """Without a time limit, a limit of conflicts bounds CP-SAT's deterministic time as well."""
    problem = PlacementProblem.from_edges([[1]], [])
    solver = configured(CpSat(), Tracker("cp-sat", problem, Budget(evaluations=100)))
    assert solver.parameters.max_number_of_conflicts == 100
    assert solver.parameters.max_deterministic_time <= 10


def test_last_bits_of_a_bound_are_no_tick():
    """CP-SAT tells bounds as floats: one that is a little above a whole number proves that one."""
    problem = PlacementProblem.from_edges([[119_823_470_612]], [], objective="period")
    tracker = Tracker("cp-sat", problem, Budget(seconds=1))
    PeriodCpModel(problem, None, 0)._raise_bound(tracker, 119_823_470_612.00002)
    assert tracker.lower_bound == 119_823_470_612


def test_a_bound_above_the_incumbent_is_kept():
    """A refuted horizon above the incumbent is not cut to its value, so that the contradiction
    surfaces.
    """
    problem = PlacementProblem.from_edges([[2], [3]], [])
    tracker = Tracker("cp-sat", problem, Budget(seconds=1))
    tracker.offer(5, Placement(np.zeros(2, dtype=np.int64)))
    record_infeasible(tracker, 7, 1)
    assert tracker.lower_bound == 8


def test_starts_on_fewer_hosts_than_all():
    """Where hosts share slow links, exact solvers begin with what one or some of them do alone."""
    problem = po.load("gen:nmt?source=2&target=2", cluster="2x4xV100?contention=host")
    tracker = Tracker("start", problem, Budget(evaluations=10**6))
    warm_start(problem, tracker)
    assert tracker.value <= po.solve(problem, "few-hosts", evaluations=10).value


def test_a_bus_carries_a_tensor_to_a_device_once_from_wherever():
    """Where all transfers take one channel, the model has an interval per tensor and destination,
    not one per source, and begins with the op at which all branches meet on the first device.
    """
    branches = [(v, 6, 9) for v in range(6)]
    star = PlacementProblem.from_edges([[5] * 4] * 6 + [[1] * 4], branches)
    bus = star.replace(channel=np.where(np.eye(4, dtype=bool), -1, 0))
    model = MakespanModel(Analysis(bus), 0, 31)
    assert len(model.sent) == 6 * 4
    assert model.relabel(np.array([0, 1, 2, 3, 0, 1, 2]))[6] == 0
    assert solve(bus).value == 24
