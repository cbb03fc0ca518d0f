"""The simple placers do exactly what their names say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.makespan.evaluate import evaluate_batch
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.heuristics import SPECS
from placeopt.solvers.heuristics.baselines import sample_units
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.enumerative import assign_groups, groups
from placeopt.solving.registry import make_solver


def chain(n, k=2, **fields):
    """Return a chain of n ops of one tick each with transfers of one tick."""
    return PlacementProblem.from_edges(
        np.ones((n, k), dtype=np.int64), [(i, i + 1, 1) for i in range(n - 1)], **fields
    )


def test_single_device_takes_the_fastest():
    """Of three devices the one with the smallest sum wins, and every op is on it."""
    problem = PlacementProblem.from_edges([[5, 3, 4], [1, 2, 2], [9, 4, 6]], [(0, 1, 0), (1, 2, 0)])
    result = make_solver("single-device").solve(problem, Budget(), seed=0)
    assert result.solution.device.tolist() == [1, 1, 1]
    assert result.objective == 9
    assert not result.message


def test_single_device_says_when_it_spills():
    """Where no device holds everything, the result is still valid and the message says so."""
    problem = chain(4, resident=[3, 3, 3, 3], capacity=[9, 9])
    result = make_solver("single-device").solve(problem, Budget(), seed=0)
    assert sorted(np.bincount(result.solution.device).tolist()) == [1, 3]
    assert "spills" in result.message


def test_round_robin_is_contiguous():
    """Chunks of a chain follow each other; two chunks per device alternate."""
    result = make_solver("round-robin").solve(chain(8), Budget(), seed=0)
    assert result.solution.device.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    result = make_solver("round-robin", chunks=4).solve(chain(8), Budget(), seed=0)
    assert result.solution.device.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_m_topo_fills_equal_shares():
    """A device is full at total / devices + the largest op: 12 / 3 + 2 = 6 bytes."""
    problem = chain(6, k=3, resident=[2] * 6, capacity=[100] * 3)
    result = make_solver("m-topo").solve(problem, Budget(), seed=0)
    assert result.solution.device.tolist() == [0, 0, 0, 1, 1, 1]


def test_random_is_the_best_of_its_samples():
    """The budget is used up, more samples of one seed are never worse, and ranks only make them
    faster.
    """
    problem = random_problem(np.random.default_rng(12), max_ops=12)
    solver = make_solver("random")
    values = [
        solver.solve(problem, Budget(evaluations=count), seed=3) for count in (1, 10, 100, 1000)
    ]
    assert [result.evaluations for result in values] == [1, 10, 100, 1000]
    sampled = [int(evaluate_batch(problem, result.solution.device[None])[0]) for result in values]
    assert sampled == sorted(sampled, reverse=True)
    assert all(result.objective <= value for result, value in zip(values, sampled, strict=True))
    assert all(result.solution.priority is not None for result in values)


def test_random_without_a_budget_ends():
    """Without a limit on seconds or evaluations the solver's own number of samples applies."""
    result = make_solver("random", samples=37).solve(chain(5), Budget(), seed=0)
    assert (result.evaluations, result.stop_reason) == (37, "converged")


def test_samples_are_uniform():
    """Each compatible device is drawn equally often (within 5 standard deviations)."""
    problem = PlacementProblem.from_edges([[1, 1, 1], [1, -1, 1]], [])
    draws = np.array(list(sample_units(Context(problem), 6000, np.random.default_rng(0))))
    assert (np.abs(np.bincount(draws[:, 0], minlength=3) - 2000) < 190).all()
    assert np.bincount(draws[:, 1], minlength=3)[1] == 0
    assert abs(int((draws[:, 1] == 0).sum()) - 3000) < 200


def shards(rng, labelled):
    """Return a producer level of 4 placed shards and a level of 4 consumers on 2 devices."""
    edges = [
        (int(u), int(v), int(rng.integers(1, 20)))
        for v in range(4, 8)
        for u in rng.permutation(4)[:2]
    ]
    meta = [0] * 4 + [1] * 4 if labelled else None
    return PlacementProblem.from_edges(np.ones((8, 2), dtype=np.int64), edges, meta=meta)


@pytest.mark.parametrize("labelled", [True, False])
def test_enumerative_equals_enumeration(labelled):
    """The assignment problem finds the cheapest balanced assignment that enumeration finds."""
    for seed in range(30):
        problem = shards(np.random.default_rng(seed), labelled)
        view = Context(problem)
        device = assign_groups(view, groups(view, labelled=labelled))

        def traffic(places, problem=problem):
            source, target = places[problem.producer[problem.edge_tensor]], places[problem.consumer]
            return int(problem.transfer[problem.edge_tensor, 0][source != target].sum())

        balanced = (p for p in itertools.product(range(2), repeat=4) if sum(p) == 2)
        assert sum(device[:4]) == sum(device[4:]) == 2
        assert traffic(device) == min(traffic(np.concatenate([device[:4], p])) for p in balanced)


def test_enumerative_reports_missing_labels():
    """Without meta-op labels the message says what stood in for them."""
    assert (
        "no meta-op labels" in make_solver("enumerative").solve(chain(4), Budget(), seed=0).message
    )
    labelled = chain(4, meta=[0, 0, 1, 1])
    assert not make_solver("enumerative").solve(labelled, Budget(), seed=0).message


def test_a_meta_op_splits_into_shards_and_reduction():
    """Ops of one label are placed level by level: the shards first, then what adds them up."""
    problem = PlacementProblem.from_edges(
        np.ones((5, 2), dtype=np.int64),
        [(0, 3, 1), (1, 3, 1), (2, 4, 1), (3, 4, 1)],
        meta=[7, 7, 7, 7, -1],
    )
    assert [ops.tolist() for ops in groups(Context(problem), labelled=True)] == [
        [0, 1, 2],
        [3],
        [4],
    ]


def test_critical_path_runs_differ():
    """Random ties reach placements that the first tie-breaking misses, and the best is kept."""
    problem = random_problem(
        np.random.default_rng(21), max_ops=40, max_devices=4, contention="none"
    )
    one = make_solver("critical-path", runs=1).solve(problem, Budget(), seed=0)
    many = make_solver("critical-path", runs=50).solve(problem, Budget(), seed=0)
    assert (one.evaluations, many.evaluations) == (1, 50)
    assert many.objective <= one.objective


def test_results_name_the_best_execution():
    """The objective is the smallest makespan over the three executions of the placement."""
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), max_ops=15)
        result = make_solver("etf").solve(problem, Budget(), seed=0)
        row, rank = result.solution.device[None], result.solution.priority
        values = [int(evaluate_batch(problem, row)[0])]
        values += [
            int(evaluate_batch(problem, row, rank, queue)[0]) for queue in ("priority", "planned")
        ]
        assert result.objective == min(values)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("round-robin", {"chunks": 0}, "chunks"),
        ("random", {"samples": 0}, "samples"),
        ("critical-path", {"runs": 0}, "runs"),
        ("m-sct", {"threshold": 0.7}, "threshold"),
        ("edge-zeroing", {"caps": ()}, "caps"),
        ("edge-zeroing", {"thresholds": 0}, "thresholds"),
        ("edge-zeroing", {"slack": (-1.0,)}, "slack"),
        ("dsc", {"slack": ()}, "slack"),
        ("dsc", {"cuts": (0.0,)}, "cuts"),
    ],
)
def test_bad_options_are_refused(name, options, words):
    """A bad option is named in one line with the value received."""
    with pytest.raises(InputError, match=words) as error:
        make_solver(name, **options)
    assert "\n" not in str(error.value)
    assert str(next(iter(options.values()))) in str(error.value)


# (the assignment problems of `enumerative` have equal optima that floating point tells apart)
@pytest.mark.parametrize("name", [spec.name for spec in SPECS if spec.name != "enumerative"])
def test_doubling_times_doubles_the_result(name):
    """Times have no scale: with every time doubled the placement stays and its makespan doubles."""
    for seed in range(6):
        problem = random_problem(np.random.default_rng(seed), max_ops=20, incompatible=False)
        double = problem.replace(compute=problem.compute * 2, transfer=problem.transfer * 2)
        once, twice = (
            make_solver(name).solve(p, Budget(evaluations=40), seed=0) for p in (problem, double)
        )
        assert twice.objective == 2 * once.objective
        assert twice.solution == once.solution
