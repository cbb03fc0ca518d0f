"""Sequence and expert parallelism: the search against brute force, tables against scalars, cost
files, rooflines of experts.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from small_plans import check_optimum, solve, step_problem

from placeopt.instances.clusters import make_cluster
from placeopt.instances.sources import load_graph
from placeopt.io import serialize
from placeopt.model.errors import InputError, Refused
from placeopt.planning.elastic import layer_parameters
from placeopt.planning.launch_files import (
    deepspeed_configuration,
    megatron_arguments,
    torch_configuration,
)
from placeopt.planning.plan_model import plan, plan_problem
from placeopt.plans.judge import judge_step_plan
from placeopt.plans.layer_tables import LayerTable, read_layer_table
from placeopt.plans.network_table import FlatNetwork
from placeopt.plans.plan import FORMS, PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.predicted_costs import Constants, PredictedStepCosts
from placeopt.plans.roofline_tables import roofline_costs
from placeopt.plans.step_costs import Load
from placeopt.solvers.planning.step_classes import BatchTables

MOE = "gen:moe?layers=3&hidden=64&heads=4&kv_heads=2&ffn=128&experts=4&seq=32&vocab=100&detail=coarse&batch=1"


@pytest.mark.parametrize("seed", range(8))
def test_all_ways_to_split_are_searched_exactly(seed):
    """The best plan with sequence and expert parallelism is that of brute force."""
    problem = step_problem(
        seed,
        kinds=1 + seed % 2,
        layers=3 - seed % 2,
        devices=4 - seed % 2,
        forms=FORMS if seed % 3 else FORMS[:1],
        batch=6,
        schedules=("1f1b", "repetend") if seed % 2 else ("1f1b", "zb-h1"),
        sharded=seed % 4 == 1,
        recompute=seed == 4,
        data_degrees=(1, 2),
        micro_batches=(1,),
    )
    check_optimum(problem)


def test_some_best_plans_split_otherwise():
    """Each way to split layers is part of some best plan."""
    found = [
        solve(step_problem(seed, layers=3, forms=FORMS, data_degrees=(1, 2))).solution
        for seed in range(12)
    ]
    used = {
        group.form for plan in found if plan for stage in plan.stages for group in stage.replicas
    }
    assert used >= set(FORMS)


def table_of(layers=4):
    """Return a table of two degrees whose activations are partly whole on every device."""
    rng = np.random.default_rng(1)
    whole, even = rng.integers(100, 200, layers) * 1e6, rng.integers(300, 900, layers) * 1e6
    times = {("a", b, t): rng.random((layers, 3)) * b / t for b in (1, 2) for t in (1, 2)}
    return LayerTable(
        "m",
        times,
        {t: np.full(layers, 6e6) / t for t in (1, 2)},
        {t: whole + even / t for t in (1, 2)},
        rng.integers(1, 9, layers) * 1e6,
    )


def test_sequence_parallelism_keeps_an_even_share():
    """Derived from a table, it takes as long as tensor parallelism and keeps an even share of all
    activations.
    """
    table = table_of().with_sequence()
    costs = PredictedStepCosts(table, FlatNetwork({"a": 1e9}), Constants())
    assert costs.forms("a", 2) == ("", "sequence")
    assert costs.forms("a", 1) == ("",)
    plain, split = ReplicaGroup("a", 2, 1), ReplicaGroup("a", 2, 1, "sequence")
    assert (
        costs.layer_ticks("a", 2, 1, False) == costs.layer_ticks("a", 2, 1, False, "sequence")
    ).all()
    assert np.allclose(table.form("sequence").activations[2], table.activations[1] / 2)
    for again in (False, True):
        load = Load(0, 4, 1, 3, again)
        assert costs.memory_bytes(load, split) < costs.memory_bytes(load, plain)
    assert table.with_sequence() is table


@pytest.mark.parametrize("form", ["", "sequence", "expert"])
def test_tables_of_spans_are_those_of_scalars(form):
    """What the search reads for all spans at once is, tick by tick, what the cost model says of
    each.
    """
    costs, pools = roofline_costs(load_graph(MOE)[0], make_cluster("2x4xA100"), (4, 8))
    if form == "sequence":
        costs = PredictedStepCosts(table_of().with_sequence(), FlatNetwork({"a": 1e9}), Constants())
        pools = (type(pools[0])("a", 4, 2, 10**11),)
    problem = plan_problem(MOE, "2x4xA100", 8).replace(
        costs=costs, pools=pools, micro_batches=(), data_degrees=()
    )
    room, size = pools[0].memory, problem.micro_batches[-1]
    tables, group = (
        BatchTables(problem.replace(forms=FORMS), size, {}),
        ReplicaGroup(pools[0].kind, 2, 2, form),
    )
    one = ReplicaGroup(group.kind, 2, 1, form)
    update = tables.closing("optimizer", one, False, 2)
    sync = tables.closing("sync", (group,), False, 2)
    fitting = tables.flight(1, 2)[one, False]
    for first in range(costs.num_layers):
        for last in range(first + 1, costs.num_layers + 1):
            load = Load(first, last, size, 1, False, 1, 2)
            assert update[first, last] == costs.optimizer_ticks(load, one)
            assert sync[first, last] == costs.sync_ticks(load, (group,))
            most = int(fitting[first, last])
            assert most == 0 or costs.memory_bytes(load._replace(flight=most), one) <= room
            assert most == 64 or costs.memory_bytes(load._replace(flight=most + 1), one) > room


def test_experts_are_split_by_roofline():
    """Experts are shared out, all else is whole on every device, and its gradients pass a ring of
    all devices.
    """
    costs, _ = roofline_costs(load_graph(MOE)[0], make_cluster("2x4xA100"), (4, 8))
    kind = next(iter(costs.table.times))[0]
    assert [costs.forms(kind, t) for t in (1, 2, 4)] == [("",), ("", "expert"), ("", "expert")]
    table = costs.table.form("expert")
    for tensor in (2, 4):
        experts = costs.table.parameters[1] - table.shared[tensor]
        assert np.allclose(table.parameters[tensor], table.shared[tensor] + experts / tensor)
        assert experts.sum() > 0
    assert (experts[[0, -1]] == 0).all()  # embedding and head
    once, twice = (
        costs.sync_ticks(
            Load(0, costs.num_layers, 8, 1, False), (ReplicaGroup(kind, 2, c, "expert"),)
        )
        for c in (1, 2)
    )
    assert 0 < once < twice
    assert costs.layer_ticks(kind, 4, 4, False, "expert") is not None


def test_planner_takes_and_exports_expert_parallelism(tmp_path):
    """A plan by experts is in the space and is exported; DeepSpeed's arguments cannot say it; files
    keep it.
    """
    problem = plan_problem(MOE, "4xA100", 8, schedules=("1f1b",), sharded=False, recompute=False)
    assert problem.forms == ("expert",)
    found = plan(
        problem.replace(max_stages=1, data_degrees=(1,), micro_batches=(8,)), "", 0, runner_ups=0
    )
    stage = PlanStage(
        tuple(range(problem.costs.num_layers)),
        (ReplicaGroup(problem.pools[0].kind, 4, 1, "expert"),),
    )
    given = TrainingPlan((stage,), 8)
    assert not judge_step_plan(problem, given)
    assert judge_step_plan(problem.replace(forms=()), given)
    forced = type(found)(found.problem, _with_solution(found.result, given))
    assert torch_configuration(forced)["split_by"] == ["expert"]
    assert "--expert-model-parallel-size=4" in megatron_arguments(forced)
    with pytest.raises(Refused, match="expert"):
        deepspeed_configuration(forced)
    again = serialize.load(serialize.save(problem, tmp_path / "problem.json"))
    assert again.hash == problem.hash
    assert serialize.from_dict(serialize.to_dict(given)) == given


def _with_solution(result, plan):
    return replace(result, solution=plan)


def test_cost_files_may_have_further_columns(data, tmp_path):
    """Columns as `2:expert` of a cost folder are read as ways to split layers; others are refused
    in one line.
    """
    folder = data / "training_plans" / "profiles"
    times = json.loads((folder / "layer_times.json").read_text())["OPT-350"]
    sizes = json.loads((folder / "layer_sizes.json").read_text())["OPT-350"]
    shutil.copy(folder / "network.json", tmp_path)
    column = times["A100-40"]["2"]
    column["2:expert"] = column["2"]
    sizes["2:expert"] = {
        key: {**row, "shared_floats": row["params_floats"] / 2} for key, row in sizes["2"].items()
    }
    (tmp_path / "layer_times.json").write_text(
        json.dumps({"OPT-350": {"A100-40": times["A100-40"]}})
    )
    (tmp_path / "layer_sizes.json").write_text(json.dumps({"OPT-350": sizes}))
    table = read_layer_table(tmp_path, "OPT-350")
    assert table.forms_of("A100-40", 2) == ("", "expert")
    assert np.allclose(table.form("expert").shared[2] * 2, table.parameters[2])
    problem = plan_problem("OPT-350", "8xA100-40", 64, costs=tmp_path)
    assert set(problem.forms) == set(FORMS)
    column["2:magic"] = column["2"]
    (tmp_path / "layer_times.json").write_text(
        json.dumps({"OPT-350": {"A100-40": times["A100-40"]}})
    )
    with pytest.raises(InputError, match="sequence, expert"):
        read_layer_table(tmp_path, "OPT-350")


LAB = """\
contention = "none"
devices = [
  { name = "big", kind = "A100", count = 2, memory_gib = 80 },
  { name = "small", kind = "A100", count = 6, memory_gib = 40 },
  { name = "old", kind = "V100", count = 2 },
]
links = [
  { name = "ethernet", latency = 1e-5, bandwidth = 1e9 },
  { name = "board", latency = 1e-5, bandwidth = 1e10 },
  { name = "fast", latency = 1e-5, bandwidth = 1e11 },
]
connections = [
  { between = ["*", "*"], link = "ethernet" },
  { between = ["small-[0-3]", "small-[0-3]"], link = "fast" },
  { between = ["small-[45]", "small-[45]"], link = "fast" },
  { between = ["old-*", "old-*"], link = "board" },
]
"""


def test_hosts_and_devices_may_be_unlike(tmp_path):
    """Devices of a kind had the memory of the first, the speed of the last and the host of the
    first; devices on links that are not the fastest of all had no host.
    """
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    costs, pools = roofline_costs(load_graph(MOE)[0], make_cluster(path), (4, 8))
    found = {pool.kind: (pool.count, pool.per_host, pool.memory // 2**30) for pool in pools}
    assert found == {"A100": (2, 1, 80), "A100 like small-0": (6, 2, 40), "V100": (2, 2, 16)}
    assert costs.network.inside("V100") == 1e10
    assert costs.network.inside("A100 like small-0") == 1e11
    ticks = [costs.layer_ticks(kind, 1, 4, False).sum() for kind in found]
    assert ticks[0] == ticks[1] < ticks[2]
    costs, pools = roofline_costs(load_graph(MOE)[0], make_cluster("2x2xA100+4xV100"), (4,))
    assert [(pool.kind, pool.count, pool.per_host) for pool in pools] == [
        ("A100", 4, 2),
        ("V100", 4, 4),
    ]


def test_no_replica_spreads_over_two_hosts():
    """Three replicas of four devices were planned on two hosts of six, and priced inside a host."""
    for cluster, degrees in (("2x6xA100", (1, 2)), ("6xA100", (1, 2, 4)), ("2x4xA100", (1, 2, 4))):
        problem = plan_problem(MOE, cluster, 8)
        assert problem.degrees(problem.pools[0]) == degrees


def test_what_a_loss_moves_is_counted_by_form():
    """All ways to split layers were taken for plain tensor parallelism."""
    costs, _ = roofline_costs(load_graph(MOE)[0], make_cluster("2x4xA100"), (4,))
    found = layer_parameters(costs)
    for tensor in (2, 4):
        expert = costs.table.forms["expert"].parameters[tensor].tolist()
        assert found[tensor, "expert"] == expert != found[tensor, ""]
