"""Schedules of plans: what is in flight, how long they take, and that the search over all of them
is exact.
"""

from __future__ import annotations

import pytest
from small_plans import SCHEDULES, TableCosts, check_optimum, every_plan, solve, step_problem

from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.plans.judge import _flight, judge_step_plan, judged_step
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.published_costs import PublishedStepCosts
from placeopt.plans.step_costs import LinkShares
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, StepPlanProblem
from placeopt.plans.step_schedules import parse_schedule
from placeopt.plans.timeline import step_timeline


class EqualCosts(TableCosts):
    """Layers of 30 ticks, a third of each kind of pass; nothing else takes time."""

    def layer_ticks(self, kind, tensor, micro_batch, recompute, form=""):
        """Equal layers."""
        return super().layer_ticks(kind, tensor, micro_batch, recompute) * 0 + 30

    def weight_ticks(self, kind, tensor, micro_batch, form=""):
        """A third."""
        return self.layer_ticks(kind, tensor, micro_batch, False) // 3

    def link_shares(self, forward, backward, first, last, stages):
        """Transfers are free."""
        return LinkShares(0, 0, 0, 0)

    def sync_ticks(self, load, groups):
        """Free."""
        return 0

    def optimizer_ticks(self, load, group):
        """Free."""
        return 0


def equal_plan(schedule, stages, rounds):
    """Return a problem of equal layers, and a plan with one layer per stage."""
    pool = DevicePool("a", stages, 1, 10**6)
    problem = StepPlanProblem(
        EqualCosts(0, stages), (pool,), rounds, (1,), (1,), schedules=(schedule,)
    )
    groups = (ReplicaGroup("a", 1, 1),)
    return problem, TrainingPlan(tuple(PlanStage((v,), groups) for v in range(stages)), 1, schedule)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "interleaved-1f1b:3"])
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_equal_stages_take_what_the_price_says(schedule, scale):
    """The simulated step of equal stages is exactly the closed price; no stage holds more than its
    flight says.
    """
    chunks = parse_schedule(schedule).chunks
    stages = chunks * (scale + 1)
    problem, plan = equal_plan(schedule, stages, 4 * (scale + 1))
    passes, end = step_timeline(problem, plan)
    price = step_price(problem, plan)
    assert end == pytest.approx(price.step)
    last = "W" if schedule.startswith("zb") else "B"
    for i in range(stages):
        mine = [p for p in passes if p.stage == i and p.kind in ("F", last)]
        held = most = 0
        for p in sorted(mine, key=lambda p: p.start):
            held += 1 if p.kind == "F" else -1
            most = max(most, held)
        assert most == price.stages[i].flight == _flight(problem, plan, i)


@pytest.mark.parametrize("stages", [2, 4, 6, 8, 9, 12])
@pytest.mark.parametrize("rounds", [2, 3, 4, 8, 12, 24, 60])
@pytest.mark.parametrize("schedule", [*SCHEDULES, "interleaved-1f1b:3", "interleaved-1f1b:4"])
def test_the_judge_counts_the_same_in_flight(schedule, stages, rounds):
    """Price and judge agree on which numbers are possible and on what every stage keeps."""
    problem, plan = equal_plan(schedule, stages, rounds)
    found = parse_schedule(schedule)
    wrong = judge_step_plan(problem, plan)
    assert (not wrong) == found.allows(stages, rounds)
    if not wrong:
        counted = [_flight(problem, plan, i) for i in range(stages)]
        assert counted == [found.flight(stages, i, rounds) for i in range(stages)]


def test_a_billion_micro_batches_are_judged_at_once():
    """The judge went through the passes of all of them, one by one."""
    problem, plan = equal_plan("interleaved-1f1b:2", 6, 3 * 10**9)
    assert judge_step_plan(problem, plan) == []
    found = parse_schedule("interleaved-1f1b:2")
    assert [_flight(problem, plan, i) for i in range(6)] == [
        found.flight(6, i, 3 * 10**9) for i in range(6)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_alone_is_searched_exactly(seed):
    """The best plan of a single schedule, with sharded states and recomputation, is that of brute
    force.
    """
    problem = step_problem(
        seed,
        layers=4,
        devices=3 + seed % 3,
        schedules=(SCHEDULES[seed % 4],),
        sharded=seed % 3 > 0,
        recompute=seed % 2 == 0 and seed % 3 > 0,
        data_degrees=(1, 2),
        batch=4 + 2 * (seed % 3),
        micro_batches=(1,),
    )
    check_optimum(problem)


@pytest.mark.parametrize("seed", range(9))
def test_the_whole_space_is_searched_exactly(seed):
    """All schedules together, on one to three kinds of devices: the optimum, and bounds and judge
    hold for every plan.
    """
    kinds = 1 + seed % 3
    problem = step_problem(
        seed,
        kinds=kinds,
        layers=(5, 4, 3)[kinds - 1],
        devices=(4, 3, 2)[kinds - 1],
        schedules=SCHEDULES,
        sharded=True,
        data_degrees=(1, 2),
        batch=4 + seed % 3,
        micro_batches=(1,),
    )
    plans = list(every_plan(problem))
    steps = [step_price(problem, plan).step for plan in plans]
    area = objective_of(problem).bounds(problem, 0.0).value
    assert min(steps) >= area
    assert [judged_step(problem, plan) for plan in plans] == steps
    result = solve(problem)
    assert (result.value, result.lower_bound) == (min(steps), min(steps))


@pytest.mark.parametrize("seed", [3, 4, 7])
def test_no_step_is_shorter_than_the_work_of_a_device(seed):
    """Of unequal stages the zero-bubble fill was less than the last period of the longest one."""
    schedules = ("zb-h1", "zb-h2", "interleaved-1f1b:2")
    problem = step_problem(
        seed, devices=2, layers=4, schedules=schedules, batch=4, micro_batches=(1,)
    )
    for plan in every_plan(problem):
        price, devices = step_price(problem, plan), len(plan.on_devices)
        assert judged_step(problem, plan) == price.step
        for device in range(devices):
            own = price.stages[device::devices]
            work = price.rounds * sum(stage.compute for stage in own)
            assert price.step >= work + max(stage.sync + stage.optimizer for stage in own)
    check_optimum(problem)


def test_sharded_states_fit_where_whole_ones_do_not():
    """Memory that is too small for whole states of two replicas may do for sharded ones."""
    problem = step_problem(
        1, layers=3, data_degrees=(2,), max_stages=1, batch=4, micro_batches=(1,)
    )
    plans = [
        TrainingPlan((PlanStage((0, 1, 2), (ReplicaGroup("a", 2, 2),)),), 1, "1f1b", sharded)
        for sharded in (False, True)
    ]
    whole, shared = (step_price(problem, plan).stages[0].memory for plan in plans)
    assert shared < whole
    pool = DevicePool("a", 4, 2, shared)
    assert solve(problem.replace(pools=(pool,))).status == "infeasible"
    found = solve(problem.replace(pools=(pool,), sharded=True))
    assert found.status == "optimal"
    assert found.solution.sharded


@pytest.mark.parametrize(
    "name", ["gpipe", "interleaved-1f1b", "interleaved-1f1b:1", "interleaved-1f1b:x", "zb-h1:2"]
)
def test_unknown_schedules_are_refused(name):
    """A schedule that is not there is an input error."""
    with pytest.raises(InputError, match="schedule"):
        parse_schedule(name)


def test_what_a_cost_model_does_not_know_is_refused(data):
    """The published formula knows neither sharded states nor gradients of weights."""
    from placeopt.plans.layer_tables import read_layer_table
    from placeopt.plans.network_table import read_network

    folder = data / "training_plans" / "profiles"
    costs = PublishedStepCosts(
        read_layer_table(folder, "OPT-350"), read_network(folder / "network.json", raw=True)
    )
    pools = (DevicePool("A100-40", 8, 4, 2**35),)
    with pytest.raises(InputError, match="sharded"):
        StepPlanProblem(costs, pools, 64, sharded=True)
    with pytest.raises(InputError, match="gradients of"):
        StepPlanProblem(costs, pools, 64, schedules=("zb-h1",))


def test_the_space_is_said():
    """A problem says what its bound is over."""
    words = " ".join(step_problem(1, schedules=SCHEDULES, sharded=True).space)
    assert all(name in words for name in SCHEDULES)
    assert "sharded or not" in words
    assert "layers split by tensor parallelism" in words
    assert "or sequence or expert" in " ".join(step_problem(1, forms=("sequence", "expert")).space)
