"""The prediction of measured plans: how far off it may be, and that the table says where its
numbers come from.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from placeopt import make_cluster, solve
from placeopt.planning.plan_model import plan_problem
from placeopt.plans.layer_tables import FORWARD, OPTIMIZER, LayerTable, read_layer_table
from placeopt.plans.network_table import read_network
from placeopt.plans.plan import read_measured_plan
from placeopt.plans.predicted_costs import PredictedStepCosts, profiled_parameters
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, StepPlanProblem


@pytest.fixture(scope="module")
def predictions(data):
    """(measured plan, predicted seconds, predicted bytes) of all plans, those with odd data too."""
    folder = data / "training_plans"
    table = read_layer_table(folder / "profiles", "OPT-350").monotone()
    costs = PredictedStepCosts(table, read_network(folder / "profiles" / "network.json"))
    found = []
    for path in sorted((folder / "plans").glob("*.json")):
        measured = read_measured_plan(path)
        pools = tuple(DevicePool(kind, 1000, 8, 96 * 2**30) for kind in measured.kinds())
        price = step_price(StepPlanProblem(costs, pools, measured.batch), measured.plan)
        found.append((measured, price.step * 1e-9, max(stage.memory for stage in price.stages)))
    return found


def test_all_plans_are_there(predictions):
    """Twenty-one plans were measured."""
    assert len(predictions) == 21


def test_step_times_are_close(predictions):
    """Median error at most 4 %, mean at most 7 %, over all plans."""
    errors = [abs(seconds / plan.seconds - 1) for plan, seconds, _ in predictions]
    assert np.median(errors) <= 0.04
    assert np.mean(errors) <= 0.07


def test_memory_is_close(predictions):
    """Median error at most 6 %, over all plans."""
    assert np.median([abs(size / plan.memory - 1) for plan, _, size in predictions]) <= 0.06


@pytest.mark.parametrize("cluster", ["clariden", "mit"])
def test_plans_are_ranked_as_measured(predictions, cluster):
    """Kendall's tau is at least 0.9 within each cluster."""
    rows = [
        (plan.seconds, seconds) for plan, seconds, _ in predictions if plan.name.startswith(cluster)
    ]
    assert kendalltau(*zip(*rows, strict=True)).statistic >= 0.9


def test_no_time_falls_with_the_micro_batch():
    """A measured time above that of a larger micro-batch is replaced by that one."""
    times = {
        ("gpu", size, 1): np.full((2, 3), value) for size, value in ((1, 5.0), (2, 3.0), (4, 8.0))
    }
    sizes = {1: np.ones(2)}
    table = LayerTable("toy", times, sizes, sizes, np.ones(2)).monotone()
    assert [table.times["gpu", size, 1][0, FORWARD] for size in (1, 2, 4)] == [3.0, 3.0, 8.0]
    assert "larger micro-batch" in table.source


def test_models_whose_outer_layers_hold_nothing_have_optimizer_steps():
    """The first two layers and the last of this mixture of experts have no parameters: plans of it
    are found, and the others take their optimizer step all the same.
    """
    problem = plan_problem("gen:moe", "8xA100", 16, recompute=False)
    sizes = problem.costs.table.parameters[1]
    assert sizes[[0, 1, -1]].tolist() == [0.0, 0.0, 0.0]
    assert profiled_parameters(sizes) == sizes.sum() > 0
    found = solve(problem, "plan-stages", seconds=2.0)
    assert found.value is not None
    times = problem.costs.table.times
    seconds = next(rows for (_, _, degree), rows in times.items() if degree == 1)[0, OPTIMIZER]
    device = make_cluster("8xA100").devices[0]
    assert seconds == pytest.approx(28 * sizes.sum() / device.memory_bandwidth)
