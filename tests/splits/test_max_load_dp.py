"""The latency of the split of the least load: the period's optimum, valued as a latency."""

from __future__ import annotations

import period_problems as problems
import pytest

import placeopt as po
from placeopt.latency.evaluate import latency_value
from placeopt.model import ideals
from placeopt.model.objective import objective_of
from placeopt.model.result import Budget
from placeopt.solvers.splits.max_load_dp import MaxLoadDp
from placeopt.solving.run import run
from placeopt.splits.problem import SplitProblem

pytestmark = pytest.mark.jit


def test_its_split_has_the_least_load():
    """The split's period is the one that ideal-dp proves, its value the latency of that split."""
    taken = 0
    for seed in range(12):
        problem = problems.random_problem(seed, contiguity="chain").replace(objective="latency")
        result = run(problem, MaxLoadDp(), Budget(seconds=20))
        if result.solution is None:
            continue
        taken += 1
        period = problem.replace(objective="period", contiguity="chain", backward=None)
        best = po.solve(period, solver="ideal-dp", seconds=20)
        assert objective_of(period).value(period, result.solution)[0] == best.value
        assert result.value == latency_value(problem, result.solution)
        assert result.value >= po.solve(problem, solver="cp-sat", seconds=5).value
    assert taken >= 6


def test_on_a_published_graph(data):
    """On ResNet-50's layers it is above the optimum and takes no proof from it."""
    problem = po.load(
        data / "dnn-partitioning/latency/layer_resnet50_inference.json", objective="latency"
    )
    result = run(problem, MaxLoadDp(), Budget(seconds=60))
    assert result.value > 1_156_881_285 - 1
    assert result.status == "feasible"


@pytest.mark.parametrize("solver", ["max-load-dp", "split-ideals"])
def test_ideals_are_not_enumerated_beyond_the_time(solver, monkeypatch):
    """Of 2^24 ideals a search without time enumerates the fewest of its tries, not two millions;
    without a limit of time it goes on to all of these.
    """
    asked, enumerate_all = [], ideals.ideal_lattice

    def few(num_nodes, order_from, order_to, *, limit):
        asked.append(limit)
        return enumerate_all(num_nodes, order_from, order_to, limit=min(limit, 1000))

    monkeypatch.setattr(ideals, "ideal_lattice", few)
    problem = po.PlacementProblem.from_edges([[3, 3], *[[5, 5]] * 23], [])
    problem = problem.replace(objective="latency")
    if solver == "split-ideals":
        problem = SplitProblem(problem, overlap=True)
    po.solve(problem, solver, evaluations=10)
    assert max(asked) == 2_000_000
    asked.clear()
    po.solve(problem, solver, seconds=1e-9)
    assert max(asked, default=0) <= 2_000_000 // 64
