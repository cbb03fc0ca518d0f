"""Repetends of plans: the formula against the period search and a simulation, the search against
brute force.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_plans import (
    TableCosts,
    check_optimum,
    every_kept,
    every_plan,
    solve,
    step_problem,
)

from placeopt.io import serialize
from placeopt.model.result import Budget
from placeopt.planning.plan_model import plan
from placeopt.plans.judge import judge_step_plan, judged_step
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.step_costs import Load
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool
from placeopt.plans.step_schedules import NEVER, behind_stages, kept_at, least_pace, longest_wait
from placeopt.plans.timeline import step_timeline
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run


def chain(seed, stages):
    """Return forward and backward ticks of random stages."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 9, stages).tolist(), rng.integers(1, 9, stages).tolist()


class NoTimes(TableCosts):
    """Layers and transfers that take no time, all or some of them."""

    def layer_ticks(self, kind, tensor, micro_batch, recompute, form=""):
        """Nothing for the first layers."""
        found = super().layer_ticks(kind, tensor, micro_batch, recompute, form).copy()
        found[: self.num_layers - self.seed % 3] = 0
        return found

    def send_ticks(self, cut, micro_batch, sender, receiver):
        """Nothing."""
        return 0, 0


@pytest.mark.parametrize("seed", range(6))
def test_layers_may_take_no_time(seed):
    """Where all layers take none, periods of 0 ended in a division by zero."""
    problem = step_problem(seed, layers=3, schedules=("repetend",), data_degrees=(1, 2))
    check_optimum(problem.replace(costs=NoTimes(seed, 3)))


@pytest.mark.parametrize("seed", range(16))
def test_the_period_is_that_of_the_period_search(seed):
    """The least period over all that stages may keep is what the period search proves with the same
    memory.
    """
    stages = 2 + seed % 3
    forward, backward = chain(seed, stages)
    capacity = np.random.default_rng(seed + 100).integers(1, 4, stages).tolist()
    blocks = [
        Block(f"F{i}", "F", (i,), forward[i], (1,), ((f"F{i - 1}", 0),) if i else ())
        for i in range(stages)
    ] + [
        Block(
            f"B{i}",
            "B",
            (i,),
            backward[i],
            (-1,),
            ((f"B{i + 1}" if i + 1 < stages else f"F{i}", 0),),
        )
        for i in range(stages - 1, -1, -1)
    ]
    problem = PipelineProblem.from_blocks(
        f"chain{seed}", blocks, [f"d{i}" for i in range(stages)], capacity=capacity
    )
    proved = run(problem, make_solver("repetend", "pipeline"), Budget(30.0))
    assert proved.stop_reason in (
        "proved",
        "converged",
    )  # all smaller periods of one micro-batch are refuted
    passes = [f + b for f, b in zip(forward, backward, strict=True)]
    behind = behind_stages(passes, [0] * (stages - 1))
    fitting = [
        kept
        for kept in every_kept(stages)
        if all(k <= c for k, c in zip(kept, capacity, strict=True))
    ]
    assert min(least_pace(passes, behind, kept) for kept in fitting) == proved.value


@pytest.mark.parametrize("seed", range(10))
def test_fewest_kept_is_the_fewest(seed):
    """What stages keep at a period is possible there, and one less of any is not."""
    stages = 2 + seed % 4
    passes = np.random.default_rng(seed).integers(2, 20, stages).tolist()
    periods = [ticks + seed % 3 for ticks in passes]
    behind = behind_stages(passes, [seed % 2] * (stages - 1))
    for pace in range(max(periods), 2 * sum(passes), 3):
        kept = kept_at(periods, behind, pace)
        assert least_pace(periods, behind, kept) <= pace
        for i in range(stages):
            fewer = [*kept[:i], kept[i] - 1, *kept[i + 1 :]]
            assert kept[i] == 1 or least_pace(periods, behind, fewer) > pace


def test_equal_stages_with_as_many_as_1f1b_are_1f1b():
    """Stages of nine ticks that keep S - i follow each other every nine ticks; fewer kept take
    longer, more in front never.
    """
    passes, stages = [9] * 4, 4
    behind = behind_stages(passes, [0] * 3)
    assert least_pace(passes, behind, [4, 3, 2, 1]) == 9
    assert longest_wait(behind, [4, 3, 2, 1], 9) + 9 == 9 * stages
    assert least_pace(passes, behind, [1] * 4) == 9 * stages
    assert least_pace(passes, behind, [1, 2, 1, 1]) == NEVER


@pytest.mark.parametrize("seed", range(8))
def test_the_space_with_repetends_is_searched_exactly(seed):
    """The best plan with repetends, alone and among all schedules, is that of brute force."""
    kinds = 1 + seed % 2
    problem = step_problem(
        seed,
        kinds=kinds,
        layers=4 - (seed % 2 or seed == 2),
        devices=4 - seed % 2,
        schedules=("repetend",) if seed < 4 else ("1f1b", "zb-h1", "repetend"),
        sharded=seed == 4,
        apart=seed % 4 == 3,
        data_degrees=(1, 2) if kinds == 1 else (1,),
        batch=4 + seed % 5,
        micro_batches=(1,),
        recompute=seed == 2,
    )
    check_optimum(problem)


@pytest.mark.parametrize("layers", [2, 3])
def test_a_repetend_fits_where_1f1b_does_not(layers):
    """Devices that hold one layer and one or two micro-batches of it cannot run 1F1B; a repetend is
    the best plan.
    """
    problem = step_problem(
        layers, layers=layers, schedules=("1f1b",), data_degrees=(1,), micro_batches=(1,), batch=8
    )
    group = ReplicaGroup("a", 1, 1)
    needed = max(
        problem.costs.memory_bytes(Load(v, v + 1, 1, layers - 1, False), group)
        for v in range(layers)
    )
    problem = problem.replace(pools=(DevicePool("a", layers, 1, needed),))
    assert solve(problem).status == "infeasible"
    both = problem.replace(schedules=("1f1b", "repetend"))
    check_optimum(both)
    kept = solve(both).solution.kept
    assert len(kept) == layers
    assert max(kept) < layers


@pytest.mark.parametrize("seed", range(6))
def test_price_judge_and_simulation_agree(seed):
    """The judge's period is the formula's; a simulated step without extra occupation of devices is
    no longer than the price.
    """
    problem = step_problem(
        seed,
        layers=4,
        devices=4,
        schedules=("repetend",),
        batch=7,
        micro_batches=(1,),
        data_degrees=(1,),
    )
    free = problem.replace(costs=FreeLinks(seed, 4))
    for one in (problem, free):
        plans = list(every_plan(one))
        assert plans
        for found in plans[:: max(1, len(plans) // 60)]:
            price = step_price(one, found)
            assert judged_step(one, found) == price.step
            if one is free:
                assert step_timeline(one, found)[1] <= price.step + 1e-6
                assert [stage.flight for stage in price.stages] == [
                    min(count, price.rounds) for count in found.kept
                ]


@dataclasses.dataclass(frozen=True, eq=False)
class FreeLinks(type(step_problem(0).costs)):
    """Random costs whose transfers take no time."""

    def send_ticks(self, cut, micro_batch, sender, receiver):
        """None."""
        return 0, 0


def test_wrong_numbers_kept_are_named():
    """The judge refuses numbers that are missing, rise along the stages, or belong to another
    schedule; files keep them.
    """
    problem = step_problem(
        1,
        layers=2,
        devices=2,
        schedules=("1f1b", "repetend"),
        data_degrees=(1,),
        micro_batches=(1,),
    )
    pools = (dataclasses.replace(problem.pools[0], memory=10**6),)
    stages = tuple(PlanStage((i,), (ReplicaGroup("a", 1, 1),)) for i in range(2))
    good = TrainingPlan(stages, 1, "repetend", kept=(2, 1))
    assert not judge_step_plan(problem.replace(pools=pools), good)
    assert serialize.from_dict(serialize.to_dict(good)) == good
    for wrong in (
        {"kept": ()},
        {"kept": (1, 2)},
        {"kept": (1,)},
        {"kept": (1, 0)},
        {"schedule": "1f1b"},
    ):
        assert judge_step_plan(problem.replace(pools=pools), dataclasses.replace(good, **wrong))


def test_a_plan_with_repetends_comes_out_of_the_planner():
    """The planner's default space holds repetends for models by roofline."""
    found = plan(
        "gen:gpt2?detail=coarse&layers=3&hidden=128&heads=2&seq=64&vocab=500",
        "2xA100",
        8,
        runner_ups=0,
    )
    assert "repetend" in found.problem.schedules
    assert found.result.gap == 0


@pytest.mark.parametrize(("seed", "evaluations"), [(34, 6), (37, 12)])
def test_other_schedules_have_their_turns_beside_repetends(seed, evaluations):
    """Repetends have low bounds: all the work went to them, and the best plan of 1F1B was missed."""
    problem = step_problem(seed, layers=8, devices=8, batch=12, max_stages=8)
    both, alone = (
        run(
            problem.replace(schedules=schedules),
            make_solver("plan-stages", "plan"),
            Budget(evaluations=evaluations),
        )
        for schedules in (("1f1b", "repetend"), ("1f1b",))
    )
    assert both.value <= alone.value
