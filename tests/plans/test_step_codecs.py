"""Files of plans and of problems about steps: saved, loaded, verified; cost files of `profile`;
zones; three kinds of devices.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_plans import step_problem

import placeopt as po
from placeopt.cli import main
from placeopt.io import serialize
from placeopt.model.errors import InputError
from placeopt.planning.launch_files import write_launch_files
from placeopt.planning.plan_model import plan, plan_problem
from placeopt.plans.layer_tables import read_layer_table
from placeopt.plans.network_table import read_network
from placeopt.plans.step_problem import parse_pools

MODEL = "gen:gpt2?detail=coarse&layers=3&hidden=128&heads=2&seq=64&vocab=500"


@pytest.fixture(scope="module")
def planned():
    """A plan of a small model."""
    return plan(MODEL, "2xA100", 8, seconds=20.0, runner_ups=0)


def test_a_problem_and_its_plan_are_verified_from_files(planned, tmp_path):
    """What `--out` writes is loaded as the same problem; its plan is verified with the same value
    and bound.
    """
    write_launch_files(planned, tmp_path)
    problem = serialize.load(tmp_path / "problem.json")
    assert problem.hash == planned.problem.hash
    report = po.verify(problem, tmp_path / "solution.json", seconds=10.0)
    assert report.feasible
    assert report.value == planned.result.value
    assert report.lower_bound == planned.result.lower_bound


def test_saved_plans_are_verified_and_solved_by_the_command_line(planned, tmp_path, capsys):
    """`placeopt verify` was said to take what `plan --out` writes, and knew no such format."""
    write_launch_files(planned, tmp_path)
    problem, solution = tmp_path / "problem.json", tmp_path / "solution.json"
    for command in (("verify", problem, solution), ("solve", problem)):
        with pytest.raises(SystemExit) as stopped:
            main([*map(str, command), "--seconds", "10", "--json"])
        body = json.loads(capsys.readouterr().out)
        assert (stopped.value.code, body["value"]) == (0, planned.result.value)
    for source, words in ((problem, "leave out 'cluster'"), (solution, "holds placeopt/plan")):
        with pytest.raises(InputError, match=words):
            po.load(source, cluster="2xA100")


@pytest.mark.parametrize("formula", ["predicted", "published"])
def test_problems_from_layer_tables_survive_a_file(data, tmp_path, formula):
    """A saved problem prices every layer as before."""
    folder = data / "training_plans" / "profiles"
    given = plan_problem(
        "OPT-350", "8xA100-40+8xV100-16@us-west1-b", 64, costs=folder, formula=formula
    )
    again = serialize.load(serialize.save(given, tmp_path / "problem.json"))
    assert again.hash == given.hash
    assert again.costs.sources == given.costs.sources
    ends = ("A100-40", 2), ("V100-16@us-west1-b", 4)
    assert again.costs.send_ticks(3, 1, *ends) == given.costs.send_ticks(3, 1, *ends)


def test_a_cost_model_without_a_codec_is_named():
    """A problem whose cost model is code has no JSON form, and says so."""
    with pytest.raises(InputError, match="no JSON form"):
        serialize.to_dict(step_problem(1))


def test_a_damaged_problem_is_one_line(planned, tmp_path):
    """Wrong lengths and types are input errors."""
    for change in (
        {"times": [{"kind": "A100", "micro_batch": 1, "tensor": 1, "seconds": [1.0]}]},
        {"outputs": ["x"]},
        {"outputs": []},
        {"weight_part": [-1.0] * planned.problem.costs.num_layers},
        {"sizes": [{"tensor": 1, "parameters": [1.0], "activations": [1.0]}]},
    ):
        body = serialize.to_dict(planned.problem)
        body["costs"]["table"] |= change
        (tmp_path / "bad.json").write_text(json.dumps(body))
        with pytest.raises(InputError, match="expected"):
            serialize.load(tmp_path / "bad.json")


def test_numbers_that_nothing_can_mean_are_one_line(planned, tmp_path):
    """Rates, degrees and factors of nothing ended in a division by it."""

    def damage(body, *keys, value):
        """Put a value deep into a problem."""
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = value

    for keys, value in (
        (("data_degrees",), [0, 1]),
        (("pools", 0, "count"), 0),
        (("costs", "network", "rates", 0, "rate"), 0.0),
        (("costs", "constants", "overhead"), 0.0),
        (("costs", "constants", "exposed"), -1.0),
        (("costs", "constants", "base_bytes"), None),
        (("costs", "table", "float_bytes"), 0),
        (("tick_seconds",), 0.0),
        (("batch",), 2**62),
        (("costs", "table", "times", 0, "micro_batch"), 0),
        (("costs", "table", "times", 0, "seconds", 0), 1e10),
    ):
        body = serialize.to_dict(planned.problem)
        if keys[0] == "pools":
            body["data_degrees"] = []
        damage(body, *keys, value=value)
        (tmp_path / "bad.json").write_text(json.dumps(body))
        with pytest.raises(InputError, match="received"):
            serialize.load(tmp_path / "bad.json")


def test_a_table_without_times_is_one_line(planned):
    """The least of no keys was asked for."""
    body = serialize.to_dict(planned.problem)
    body["costs"]["table"]["times"] = []
    with pytest.raises(InputError, match="knows no times on"):
        serialize.from_dict(body)


def test_transfers_that_cannot_be_counted_are_refused(planned):
    """Their ticks passed 64 bits."""
    body = serialize.to_dict(planned.problem)
    body["costs"]["table"]["outputs"][0] = 1e300
    with pytest.raises(InputError, match="too long to count"):
        po.solve(serialize.from_dict(body), seconds=5)


def test_damaged_cost_folders_are_one_line(data, tmp_path):
    """Keys that are no numbers, rows that are too short and fits without coefficients."""
    folder = data / "training_plans" / "profiles"
    for name in ("layer_times", "layer_sizes", "network"):
        (tmp_path / f"{name}.json").write_bytes((folder / f"{name}.json").read_bytes())
    times = json.loads((folder / "layer_times.json").read_text())["OPT-350"]["A100-40"]
    for given in ({"x": times["1"]}, {"0": times["1"]}, {"1": {"1": {"0": [1.0]}}}):
        (tmp_path / "layer_times.json").write_text(json.dumps({"OPT-350": {"A100-40": given}}))
        with pytest.raises(InputError, match="received"):
            read_layer_table(tmp_path, "OPT-350")
    zone = "us-central1-a"
    for fit in ([1, 2], [[1, 2], 3], [[1, 2, "x"], 3], [[1, 2, 3], 0], []):
        network = {zone: {"A100-40": {"1": {zone: {"A100-40": {"1": fit}}}}}}
        (tmp_path / "network.json").write_text(json.dumps(network))
        with pytest.raises(InputError, match="received"):
            read_network(tmp_path / "network.json")


def test_the_hash_tells_all_that_prices_are_made_of(planned):
    """Problems that differ in links or in the memory of layers alone had one hash, so that their
    results contradicted each other.
    """
    problem = planned.problem
    costs, table = problem.costs, problem.costs.table
    slower = {kind: rate / 2 for kind, rate in costs.network.rates.items()}
    larger = {degree: 2 * kept for degree, kept in table.activations.items()}
    changed = (
        replace(costs, network=replace(costs.network, rates=slower)),
        replace(costs, table=replace(table, activations=larger)),
        replace(costs, table=replace(table, outputs=2 * table.outputs)),
        replace(costs, constants=replace(costs.constants, state_bytes=18.0)),
    )
    hashes = {problem.hash, *(problem.replace(costs=other).hash for other in changed)}
    assert len(hashes) == 5


def test_links_between_zones_are_their_own(data):
    """Between zones less passes than within one; names without a zone are in the zone that was
    read.
    """
    network = read_network(
        data / "training_plans" / "profiles" / "network.json", zones=("us-west1-b",)
    )
    here, there = ("A100-40", 4), ("A100-40@us-west1-b", 4)
    assert network.bandwidth(here, there, 1e8) < network.bandwidth(here, here, 1e8) / 2
    assert network.bandwidth(there, there, 1e8) > 2 * network.bandwidth(here, there, 1e8)
    assert "us-west1-b" in network.source


def test_three_kinds_in_two_zones_are_planned(data):
    """Three pools get a plan with a bound; more devices never make the best plan worse."""
    folder, steps = data / "training_plans" / "profiles", []
    for pools in ("8xA100-40", "8xA100-40+4xV100-16+4xA100-40@us-west1-b"):
        problem = plan_problem(
            "OPT-350", pools, 32, costs=folder, schedules=("1f1b",), recompute=False, sharded=False
        )
        found = plan(
            problem.replace(micro_batches=(1, 2), max_stages=3, data_degrees=(1, 2, 4)),
            "",
            0,
            seconds=20.0,
            runner_ups=0,
        )
        assert found.result.lower_bound <= found.result.value
        steps.append(found.step_seconds)
    assert steps[1] <= steps[0]
    assert parse_pools("4xA100-40@us-west1-b")[0].memory == 40 * 2**30


def test_measured_ops_make_the_table(tmp_path):
    """With a cost file the forward pass of one sample takes what was measured, and the sources say
    so.
    """
    from placeopt.instances.op_cost_file import OpCosts, write_costs

    graph = po.generate(f"{MODEL}&batch=1")
    names = list(graph.op_names)
    costs = OpCosts(
        graph.name,
        "A100",
        "gpu",
        None,
        dict.fromkeys(names, 2e-3),
        dict.fromkeys(names, "measured"),
    )
    path = write_costs(tmp_path / "costs.json", costs)
    problem = plan_problem(f"{MODEL}&batch=1", "2xA100", 8, costs=path)
    ticks = problem.costs.layer_ticks("A100", 1, 1, False)
    assert int(ticks.sum()) == pytest.approx(3 * len(names) * 2e-3 / problem.tick_seconds, rel=1e-6)
    assert int(problem.costs.layer_ticks("A100", 1, 4, False).sum()) > int(ticks.sum())
    words = dict(problem.costs.sources)["layer times, sizes"]
    assert f"{len(names)} measured" in words
    assert "roofline" in words
    with pytest.raises(InputError, match="folder"):
        plan_problem(MODEL, "2xA100", 8, costs=path, formula="published")
