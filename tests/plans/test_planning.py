"""`plan`: from models and measured tables to plans, exports, pictures, simulation and elastic
questions.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_plans import TableCosts, best_step, step_problem

import placeopt as po
from placeopt.cli import main
from placeopt.model.errors import InputError, Refused
from placeopt.planning.elastic import (
    best_of,
    moves,
    plan_after_loss,
    plan_offers,
    shards_of_devices,
)
from placeopt.planning.launch_files import (
    deepspeed_configuration,
    megatron_arguments,
    torch_configuration,
    write_launch_files,
)
from placeopt.planning.plan_model import Planned, plan, plan_problem
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.roofline_tables import chain_of_layers
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, parse_pools
from placeopt.plans.step_schedules import parse_schedule
from placeopt.plans.timeline import step_spread, step_timeline
from placeopt.plotting.plans import plan_figure
from placeopt.plotting.style import write_figure

MODEL = "gen:gpt2?detail=coarse&layers=4&hidden=128&heads=2&seq=64&vocab=500"


@pytest.fixture(scope="module")
def planned():
    """A plan of a small problem with several stages."""
    found = plan(
        step_problem(3, layers=5, devices=4, data_degrees=(1,), batch=12), "", 0, seconds=30.0
    )
    assert len(found.plan.stages) > 1
    return found


def command(capsys, *arguments):
    """Run the command line; return its exit code and what it printed."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *map(str, arguments)])
    return stopped.value.code, capsys.readouterr()


def test_a_plan_is_optimal_with_runner_ups_behind_it(planned):
    """The plan is the best of brute force; runner-ups are no better and say why."""
    assert planned.result.value == best_step(planned.problem)
    assert planned.result.gap == 0
    assert planned.runner_ups
    for runner in planned.runner_ups:
        assert runner.reason
        assert runner.step_seconds is None or runner.step_seconds >= planned.step_seconds


def test_a_model_is_planned_by_roofline():
    """A generated model on a cluster gets a plan; every number says where it comes from."""
    found = po.plan(MODEL, "4xA100", 16, seconds=20.0, runner_ups=1)
    body = found.to_json()
    assert body["gap"] == 0
    assert [layer for stage in body["stages"] for layer in stage["layers"]] == list(
        range(found.problem.costs.num_layers)
    )
    assert all(
        "roofline" in item["source"] or item["what"] != "layer times, sizes"
        for item in body["sources"]
    )
    assert body["throughput"] == pytest.approx(16 / body["step_seconds"])


def test_layers_form_a_chain():
    """No edge runs back between the layers that a graph is cut into."""
    graph = po.generate("gen:bert-base?layers=3")
    layer = chain_of_layers(graph)
    assert (layer[graph.producer[graph.edge_tensor]] <= layer[graph.consumer]).all()
    assert len(np.unique(layer)) > 4


def test_devices_are_given_once(planned):
    """Every device of the plan has one name and one place."""
    names = [name for stage in planned.device_names() for replica in stage for name in replica]
    assert len(names) == len(set(names)) == sum(planned.plan.devices().values())


def test_simulated_steps_agree_with_the_price_of_one_stage():
    """Without transfers a step of one stage is exactly its price; noise-free passes do not overlap
    on a stage.
    """
    problem = step_problem(3, layers=3, max_stages=1)
    found = plan(problem, "", 0, runner_ups=0)
    passes, end = step_timeline(problem, found.plan)
    assert end == pytest.approx(step_price(problem, found.plan).step)
    assert len(passes) == 2 * found.price.rounds


def test_simulated_passes_keep_their_order(planned):
    """Passes of a stage follow each other, and each waits for its input."""
    passes, _ = step_timeline(planned.problem, planned.plan)
    ends = {(p.stage, p.micro_batch, p.kind): p.end for p in passes}
    for i in range(len(planned.plan.stages)):
        mine = sorted((p for p in passes if p.stage == i), key=lambda p: p.start)
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(mine))
        order = parse_schedule(planned.plan.schedule).order(
            len(planned.plan.stages), planned.price.rounds, i
        )
        assert [(p.stage, p.micro_batch, p.kind) for p in mine] == order
    for one in passes:
        if one.kind == "F" and one.stage:
            assert one.start >= ends[one.stage - 1, one.micro_batch, "F"]


def test_a_straggler_makes_steps_longer(planned):
    """Steps with a slow stage are longer than without, for the same noise."""
    calm = step_spread(planned.problem, planned.plan, samples=20, noise=0.0)
    slow = step_spread(planned.problem, planned.plan, samples=20, noise=0.0, straggler=1.5)
    assert calm.max() == pytest.approx(calm.min())
    assert slow.mean() > calm.mean()


def test_exports_name_every_rank(planned, tmp_path):
    """The torch configuration holds every rank in one place; the others are written where they can
    say it.
    """
    torch = torch_configuration(planned)
    assert (
        torch["world_size"] == len(torch["device_of_rank"]) == sum(planned.plan.devices().values())
    )
    assert len(torch["schedule"]) == len(planned.plan.stages)
    assert all(len(row) == 2 * planned.price.rounds for row in torch["schedule"])
    assert [stage[0] for stage in torch["layers"][1:]] == torch["split_points"]
    assert {path.name for path in write_launch_files(planned, tmp_path)} >= {
        "plan.json",
        "torch.json",
        "schedule.csv",
    }
    assert json.loads((tmp_path / "plan.json").read_text())["stages"]


def test_groups_hold_every_rank(planned):
    """Gradients and activations of the second device of every replica had no group."""
    kind = planned.plan.stages[0].replicas[0].kind
    stages = [PlanStage(layers, (ReplicaGroup(kind, 2, 2),)) for layers in ((0, 1), (2, 3, 4))]
    result = replace(planned.result, solution=TrainingPlan(tuple(stages)))
    groups = torch_configuration(replace(planned, result=result))["groups"]
    assert groups["data"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups["pipeline"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups["tensor"] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_argument_lists_say_the_degrees():
    """Megatron and DeepSpeed arguments hold stages, degrees and the batch of a plan of like
    stages.
    """
    found = plan(step_problem(3, layers=4, max_stages=1), "", 0, runner_ups=0)
    tensor = found.plan.stages[0].replicas[0].tensor
    assert f"--tensor-model-parallel-size={tensor}" in megatron_arguments(found)
    config = deepspeed_configuration(found)["config"]
    assert config["train_batch_size"] >= found.problem.batch
    assert config["gradient_accumulation_steps"] == found.price.rounds


class Decoder(TableCosts):
    """An embedding, four layers that are alike, and a head."""

    layer_types = (0, 1, 1, 1, 1, 2)


def test_embedding_and_head_are_no_layers_of_megatron(planned):
    """Six layers of a plan, embedding and head among them, were told as six of four."""
    kind = planned.plan.stages[0].replicas[0].kind
    problem = planned.problem.replace(costs=Decoder(3, 6))

    def told(*stages):
        plan = TrainingPlan(tuple(PlanStage(held, (ReplicaGroup(kind, 1, 1),)) for held in stages))
        found = replace(planned, problem=problem, result=replace(planned.result, solution=plan))
        return [word for word in megatron_arguments(found) if "num-layers" in word]

    first, last = "--decoder-first-pipeline-num-layers=", "--decoder-last-pipeline-num-layers="
    assert told((0, 1, 2), (3, 4, 5)) == []
    assert told((0, 1), (2, 3, 4, 5)) == [f"{first}1", f"{last}3"]
    with pytest.raises(Refused, match="without a layer"):
        told((0,), (1, 2, 3, 4, 5))


def test_blocks_that_were_measured_apart_are_blocks(data):
    """The first of 24 equal blocks has times of its own, two small layers follow 32 others."""
    for model, count in (("OPT-350", 24), ("LLAMA-3-8", 32)):
        problem = plan_problem(model, "16xA100-40", 64, costs=data / "training_plans" / "profiles")
        layers = tuple(range(problem.costs.num_layers))
        halves = layers[: len(layers) // 3], layers[len(layers) // 3 :]
        group = (ReplicaGroup("A100-40", 4, 1),)
        plan = TrainingPlan(tuple(PlanStage(held, group) for held in halves), 2)
        words = megatron_arguments(Planned(problem, SimpleNamespace(solution=plan)))
        told = [int(word.partition("=")[2]) for word in words if "pipeline-num-layers" in word]
        assert (sum(told), len(told)) == (count, 2)


def test_arguments_launch_the_plan_that_was_found():
    """A batch that does not divide was one that Megatron refuses; stages that are not recomputed
    were.
    """
    found = plan(step_problem(3, layers=4, max_stages=1, batch=7, data_degrees=(2,)), "", 0)
    rounds, micro = found.price.rounds, found.plan.micro_batch
    assert rounds * micro * 2 > 7
    assert f"--global-batch-size={rounds * micro * 2}" in megatron_arguments(found)
    one, other = found.plan.stages[0], found.plan.stages[0]
    stages = (replace(one, layers=(0, 1), recompute=(0, 1)), replace(other, layers=(2, 3)))
    result = replace(found.result, solution=replace(found.plan, stages=stages))
    for export in (megatron_arguments, deepspeed_configuration):
        with pytest.raises(Refused, match="all stages or of none"):
            export(replace(found, result=result))


def test_unequal_degrees_are_refused_by_argument_lists(planned):
    """A plan with unequal tensor degrees is refused with the reason."""
    degrees = {group.tensor for stage in planned.plan.stages for group in stage.replicas}
    if len(degrees) > 1:
        with pytest.raises(Refused, match="one tensor degree"):
            megatron_arguments(planned)
    else:
        assert megatron_arguments(planned)


class Free(TableCosts):
    """Nothing takes time."""

    def layer_ticks(self, *of, **how):
        """None."""
        return 0 * super().layer_ticks(*of, **how)

    def send_ticks(self, *of):
        """None."""
        return 0, 0

    def sync_ticks(self, load, groups):
        """None."""
        return 0

    optimizer_ticks = sync_ticks


def test_a_step_without_time_has_no_rate():
    """Its samples were divided by it."""
    problem = step_problem(3, layers=2, devices=2).replace(costs=Free(3, 2))
    body = plan(problem, "", 0, seconds=5.0).to_json()
    assert (body["step_seconds"], body["throughput"], body["status"]) == (0.0, None, "optimal")


def test_a_picture_is_drawn(planned, tmp_path):
    """The picture is a file that is not empty."""
    pytest.importorskip("matplotlib")
    assert write_figure(plan_figure(planned), tmp_path / "plan.png").stat().st_size > 5000


def test_offers_are_compared_by_price():
    """The cheapest plan per sample costs no more than the fastest one, which is no slower."""
    problem = step_problem(4, layers=3)
    offers = [DevicePool("a", 4, 2, 10**6, price=3.0), DevicePool("b", 2, 2, 10**6, price=1.0)]
    found = best_of(plan_offers(problem, offers))
    assert found["fastest"].throughput >= found["cheapest"].throughput
    assert found["cheapest"].price_per_million <= found["fastest"].price_per_million
    with pytest.raises(InputError, match="prices"):
        plan_offers(problem, [DevicePool("a", 4, 2, 10**6)])


def test_a_loss_moves_what_the_new_plan_lacks(planned):
    """After a loss a plan fits what is left; the same plan moves nothing."""
    parameters = {(1, ""): [4.0] * 5, (2, ""): [2.0] * 5}
    assert moves(planned, planned, parameters, {})[1] == 0
    after, moved = plan_after_loss(planned, {"a": 1}, parameters)
    assert sum(after.plan.devices().values()) <= 3
    assert moved >= 0
    assert set(shards_of_devices(after)) <= {f"a/{i}" for i in range(3)}
    with pytest.raises(InputError, match="no devices are left"):
        plan_after_loss(planned, {"a": 4}, parameters)


def test_hosts_are_matched_for_the_fewest_moves():
    """On one device per host: of all ways to give parts to the devices left, the one that moves
    least is found.
    """
    problem = step_problem(3, layers=5, devices=4, data_degrees=(1,), batch=12)
    pool = DevicePool("a", 4, 1, 10**6)
    before = plan(problem.replace(pools=(pool,)), "", 0, seconds=30.0, runner_ups=0)
    parameters = {(1, ""): [4.0, 1.0, 7.0, 2.0, 5.0]}
    for lost in range(4):
        after, moved = plan_after_loss(before, {"a": (lost,)}, parameters)
        old, new = shards_of_devices(before), shards_of_devices(after)
        left = [f"a/{i}" for i in range(4) if i != lost]
        ways = [
            sum(
                parameters[1, ""][v]
                for a, b in zip(sorted(new), names, strict=False)
                for v in new[a]
                if v not in old.get(b, {})
            )
            for names in itertools.permutations(left)
        ]
        assert moved == 12 * min(ways)
        if lost == 3:  # the last device, said as a number of devices
            assert plan_after_loss(before, {"a": 1}, parameters)[1] == moved
            assert "a/3" not in moves(before, after, parameters, {"a": 1})[0].values()
        assert f"a/{lost}" not in moves(before, after, parameters, {"a": (lost,)})[0].values()


def test_the_command_answers_offers_and_losses(capsys, data):
    """`--offers` compares devices by speed and price, `--lose` plans what is left; wrong words are
    one line.
    """
    costs = (
        "OPT-350",
        "--costs",
        data / "training_plans" / "profiles",
        "--batch",
        64,
        "--seconds",
        2,
        "--schedules",
        "1f1b",
    )
    offers = "4xA100-40?price=3.67,8xV100-16?price=2.86"
    code, printed = command(capsys, *costs, "--offers", offers, "--json")
    body = json.loads(printed.out)
    assert code == 0
    assert len(body["offers"]) == 3
    assert min(body["offers"], key=lambda item: item["step_seconds"])["devices"] == body["fastest"]
    assert (
        min(body["offers"], key=lambda item: item["price_per_million_samples"])["devices"]
        == body["cheapest"]
    )
    code, printed = command(
        capsys,
        *costs,
        "--cluster",
        "12xA100-40",
        "--lose",
        "A100-40/2",
        "--runner-ups",
        0,
        "--json",
    )
    body = json.loads(printed.out)
    assert code == 0
    assert body["after"]["moved_bytes"] >= 0
    assert not {"A100-40/8", "A100-40/11"} & set(body["after"]["takes_part_of"].values())
    code, printed = command(
        capsys, MODEL, "--batch", 4, "--offers", "2xA100?price=3,4xV100?price=1", "--seconds", 2
    )
    assert code == 0
    assert "cheapest" in printed.out
    for wrong in (("--offers", "4xA100-40"), ("--cluster", "4xA100-40", "--lose", "A100-40")):
        code, printed = command(capsys, *costs, *wrong)
        assert code == 2
        assert len(printed.err.strip().splitlines()) == 1


def test_the_command_prints_one_object(capsys):
    """`placeopt plan --json` prints what the contract names."""
    code, printed = command(
        capsys, MODEL, "--cluster", "2xA100", "--batch", 4, "--json", "--runner-ups", 1
    )
    body = json.loads(printed.out)
    assert code == 0
    assert {
        "step_seconds",
        "lower_bound_seconds",
        "gap",
        "stages",
        "micro_batch",
        "schedule",
        "throughput",
        "runner_ups",
    } <= set(body)
    assert {
        "layers",
        "devices",
        "data",
        "tensor",
        "recompute",
        "compute_seconds",
        "memory_bytes",
    } <= set(body["stages"][0])


def test_the_command_prices_a_measured_plan(capsys, data):
    """`placeopt plan --evaluate` predicts a plan that was measured."""
    folder = data / "training_plans"
    path = folder / "plans" / "clariden-OPT-350-N8-N8_D4.json"
    code, printed = command(
        capsys, "OPT-350", "--costs", folder / "profiles", "--evaluate", path, "--json"
    )
    body = json.loads(printed.out)
    assert code == 0
    assert body["step_seconds"] == pytest.approx(body["measured_seconds"], rel=0.05)
    assert body["peak_memory_bytes"] == pytest.approx(body["measured_memory_bytes"], rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((MODEL,), "--cluster"),
        ((MODEL, "--cluster", "2xA100", "--formula", "guessed"), "formula"),
        ((MODEL, "--evaluate", "plan.json"), "--costs"),
        ((MODEL, "--calibrate"), "--runs"),
        ((MODEL, "--offers", "2xA100?price=3", "--precision", "int8"), "--precision"),
        ((MODEL, "--offers", "2xA100?price=3", "--tp", 2), "--tp: expected none of these"),
        ((MODEL, "--offers", "2xA100?price=3", "--out", "x"), "--out: expected none"),
        ((MODEL, "--cluster", "2xA100", "--sequence", 131072), "sequence: expected a model"),
        ((MODEL, "--cluster", "2xA100", "--fabric", 1), "fabric: expected a model"),
        (("--runs", "mine.csv", "--out", "x", "--micro-batch", 2), "--micro-batch: expected none"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, words):
    """Wrong arguments end with code 2 and one line."""
    code, printed = command(capsys, *arguments)
    assert code == 2
    assert words in printed.err
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mbs", 0, "at least 1"),
        ("gbs", 0, "at least 1"),
        ("layers_per_stage", [[0, 1], [2, 3]], "consecutive layers 0..25"),
        ("layers_per_stage", [["x"], [1]], "whole numbers"),
        ("layers_per_stage", [3, 4], "whole numbers"),
    ],
)
def test_a_damaged_plan_is_one_line(capsys, data, tmp_path, key, value, words):
    """Layers that are missing were priced as nothing; sizes of nothing were divided by."""
    folder, path = data / "training_plans", tmp_path / "plan.json"
    body = json.loads((folder / "plans" / "clariden-OPT-350-N8-N8_D4.json").read_text())
    (body if key in body else body["pipeline_list"][0])[key] = value
    path.write_text(json.dumps(body))
    code, printed = command(
        capsys, "OPT-350", "--costs", folder / "profiles", "--evaluate", path, "--json"
    )
    assert (code, words in printed.err) == (2, True)
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("A100", "4xNEW", "4xA100-40?colour=red", "4xA100-40?price=cheap"),
        *("4xA100-40?memory=nan", "4xA100-40?memory=1e400", "4xA100-40?memory=1e30"),
        *("4xA100-40?price=inf", "99999999999999999999xA100-40", "4xA100-40?per_host=0.5"),
    ],
)
def test_devices_in_words_are_checked(text):
    """A malformed list of devices is refused."""
    with pytest.raises(InputError, match="devices"):
        parse_pools(text)


def test_devices_in_words_are_read():
    """Counts, kinds and options are read."""
    first, second = parse_pools("8xA100-40?price=2.5+4xNEW?memory=10&per_host=2")
    assert (first.kind, first.count, first.price) == ("A100-40", 8, 2.5)
    assert (second.memory, second.per_host) == (10 * 2**30, 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--cluster", "2x2xA100", "--lose", "A100/7"), "has the hosts 0..1, received 7"),
        (("--cluster", "2x2xA100", "--lose", "A100/0,A100/1"), "some devices to be left"),
        (("--cluster", "2x2xA100", "--lose", "V100/0"), "V100"),
        (("--offers", ""), "expected devices with prices"),
    ],
)
def test_losses_and_offers_are_checked_before_anything_is_planned(more, said, capsys, monkeypatch):
    """Hosts that are not there were refused after all the time of the search."""
    import placeopt.planning.plan_model as planning

    monkeypatch.setattr(planning, "plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "gen:gpt2?layers=2&detail=coarse", "--batch", "8", *more])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
