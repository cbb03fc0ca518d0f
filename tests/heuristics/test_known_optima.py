"""Heuristics on the published instances: valid everywhere, never below a known optimum, sometimes
at it.
"""

from __future__ import annotations

import pytest
from exact_instances import doppler, known_optima

from placeopt.makespan.evaluate import evaluate
from placeopt.makespan.judge import placement_violations, schedule_violations
from placeopt.model.result import Budget
from placeopt.solvers.heuristics import SPECS
from placeopt.solving.registry import make_solver

NAMES = [spec.name for spec in SPECS]
BUDGET = Budget(evaluations=60)


@pytest.mark.jit
@pytest.mark.parametrize("name", NAMES)
def test_never_below_the_optimum(data, name):
    """On all 139 instances with published optima: a valid placement, no better than optimal."""
    solver = make_solver(name)
    for problem, optimum in known_optima(data):
        result = solver.solve(problem, BUDGET, seed=0)
        assert not placement_violations(problem, result.solution)
        assert result.objective >= optimum, problem.name


@pytest.mark.jit
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("graph", ["chain_mm", "ffnn", "llama_block"])
@pytest.mark.parametrize("contention", ["none", "pair", "source"])
def test_valid_on_doppler_graphs(data, name, graph, contention):
    """The schedule that the result claims exists: the independent validator finds nothing wrong
    with it.
    """
    problem = doppler(data, graph, contention=contention)
    result = make_solver(name).solve(problem, BUDGET, seed=0)
    evaluation = evaluate(problem, result.solution, result.queue)
    assert evaluation.makespan == result.objective
    assert not schedule_violations(problem, evaluation.schedule)


@pytest.mark.parametrize(("graph", "optimum"), [("ffnn", 56.70), ("chain_mm", 1200.07)])
def test_edge_zeroing_finds_published_optima(data, graph, optimum):
    """Edge-zeroing places ffnn and chain_mm on 4 devices optimally, where list schedulers stay 12
    to 40 % above.
    """
    problem = doppler(data, graph)
    result = make_solver("edge-zeroing").solve(problem, Budget(), seed=0)
    assert round(result.objective / 1e10, 2) == optimum


def test_critical_path_matches_the_published_baseline(data):
    """Fifty runs of critical path reach the published 226.5 on the Llama block, and not much
    less.
    """
    result = make_solver("critical-path").solve(doppler(data, "llama_block"), Budget(), seed=0)
    assert 220 < result.objective / 1e10 < 226.6
    assert result.evaluations == 50


@pytest.mark.parametrize("graph", ["chain_mm", "ffnn", "llama_block"])
def test_clustering_beats_list_scheduling(data, graph):
    """With expensive communication both clusterings are better than HEFT."""
    problem = doppler(data, graph)
    heft = make_solver("heft").solve(problem, Budget(), seed=0).objective
    for name in ("edge-zeroing", "dsc"):
        assert make_solver(name).solve(problem, Budget(), seed=0).objective < heft
