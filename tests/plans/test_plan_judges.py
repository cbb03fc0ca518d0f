"""The judges of plans against a second formulation: every rule broken alone, and every limit where
it just holds.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import ceil

import numpy as np
import pytest
from plan_samples import random_problem
from small_plans import every_plan, random_step_problem, step_problem

from placeopt.plans.judge import _memory, judge_sample_plan, judge_step_plan, judged_step
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, shared_counts


def random_plan(rng, problem):
    """Return stages in order with random degrees, some with one thing wrong."""
    n = problem.num_layers
    count = int(rng.integers(1, 4))
    cuts = np.sort(rng.integers(0, count, n)) if rng.random() < 0.8 else rng.integers(0, count, n)
    parts = [[v for v in range(n) if cuts[v] == i] for i in range(count)]
    parts = [part for part in parts if part or rng.random() < 0.1]
    if rng.random() < 0.1:
        part = parts[int(rng.integers(len(parts)))]
        part.append(int(rng.choice([-1, n, *range(n)])))
    if rng.random() < 0.1 and parts[-1]:
        parts[-1].pop()
    stages = []
    for part in parts:
        tensor = int(rng.choice([1, 2])) if rng.random() < 0.95 else 3
        groups = [ReplicaGroup("a", tensor, int(rng.choice([1, 2, 3])) + (rng.random() < 0.05))]
        again = tuple(v for v in part if rng.random() < 0.3)
        if rng.random() < 0.05:
            again = (*again, int(rng.integers(n)))
        stages.append(PlanStage(tuple(part), tuple(groups * (1 + (rng.random() < 0.03))), again))
    return TrainingPlan(tuple(stages))


def used_units(problem, plan, i):
    """Return the units of memory that a device of a stage needs."""
    counts, stage = [stage.replicas[0].count for stage in plan.stages[i:]], plan.stages[i]
    flight, t = ceil(Fraction(sum(counts), counts[0])), stage.replicas[0].tensor - 1
    again = [int(v in stage.recompute) for v in stage.layers]
    return sum(
        flight * int(problem.kept[t, r, v]) + int(problem.fixed[t, r, v])
        for v, r in zip(stage.layers, again, strict=True)
    )


def well_formed(problem, plan):
    """Whether layers, degrees and recomputation are possible at all."""
    layers = [v for stage in plan.stages for v in stage.layers]
    if sorted(layers) != list(range(problem.num_layers)):
        return False
    for stage in plan.stages:
        group, again = stage.replicas[0], set(stage.recompute)
        if not stage.layers or len(stage.replicas) != 1 or group.tensor not in (1, 2):
            return False
        if problem.samples % group.count or not again <= set(stage.layers):
            return False
        if again and not problem.allow_recompute:
            return False
        if any(problem.work[group.tensor - 1, int(v in again), v] < 0 for v in stage.layers):
            return False
    return True


def test_sample_plans_are_judged_by_all_rules():
    """Random plans, some with one thing wrong, with devices, samples and memory that just do or just
    do not: rejected exactly where a rule is broken.
    """
    rng, counts = np.random.default_rng(0), {"form": 0, "limits": 0, "good": 0}
    for seed in range(400):
        problem = random_problem(seed, layers=4)
        work = problem.work.copy()
        work[rng.integers(2), rng.integers(2), rng.integers(4)] = rng.choice([-1, 0])
        problem = problem.replace(work=work, allow_recompute=bool(rng.random() < 0.8))
        plan = random_plan(rng, problem)
        if not well_formed(problem, plan):
            assert judge_sample_plan(problem, plan), seed
            counts["form"] += 1
            continue
        groups = [stage.replicas[0] for stage in plan.stages]
        devices, total = sum(g.count * g.tensor for g in groups), sum(g.count for g in groups)
        memory = max(used_units(problem, plan, i) for i in range(len(groups)))
        short = [int(x) for x in rng.choice([0, 0, 0, 1], 2)]
        problem = problem.replace(devices=max(1, devices - short[0]), capacity=memory - short[1])
        place = {v: i for i, stage in enumerate(plan.stages) for v in stage.layers}
        edges = zip(problem.source.tolist(), problem.target.tolist(), strict=True)
        back = sum(place[u] > place[v] for u, v in edges)
        over = sum(used_units(problem, plan, i) > problem.capacity for i in range(len(groups)))
        broken = (devices > problem.devices) + (total > problem.samples) + back + over
        assert len(judge_sample_plan(problem, plan)) == broken, seed
        counts["limits" if broken else "good"] += 1
    assert min(counts.values()) > 80, counts


ONE = (ReplicaGroup("a", 1, 1),)


def layered(groups=ONE, stages=3, **fields):
    """Return a plan of one layer per stage."""
    again = fields.pop("recompute", False)
    return TrainingPlan(
        tuple(PlanStage((v,), groups, (v,) if again else ()) for v in range(stages)), **fields
    )


def wide(**changes):
    """Return a problem whose pools have room for everything."""
    fields = {
        "kinds": 2,
        "layers": 3,
        "batch": 12,
        "micro_batches": (1, 2),
        "data_degrees": (1, 2),
        "schedules": ("1f1b", "zb-h1", "zb-h2", "interleaved-1f1b:2", "repetend"),
        **changes,
    }
    problem = step_problem(1, **fields)
    return problem.replace(
        pools=tuple(DevicePool(kind, 6, 2, 10**6) for kind in "abc"[: fields["kinds"]])
    )


GOOD = layered()
TWO = (ReplicaGroup("a", 1, 1), ReplicaGroup("b", 1, 1))
FOUR = wide(layers=4)
DAMAGED = {
    "a layer twice": (wide(), replace(GOOD, stages=(*GOOD.stages, GOOD.stages[2])), "consecutive"),
    "a layer missing": (wide(), replace(GOOD, stages=GOOD.stages[:2]), "consecutive"),
    "layers in another order": (wide(), replace(GOOD, stages=GOOD.stages[::-1]), "consecutive"),
    "an empty stage": (
        wide(),
        replace(GOOD, stages=(PlanStage((), ONE), *GOOD.stages)),
        "consecutive",
    ),
    "a micro-batch that is not there": (wide(), layered(micro_batch=3), "micro-batch 3"),
    "a data degree that is not there": (
        wide(),
        layered((ReplicaGroup("a", 1, 3),)),
        "expected one of the data degrees",
    ),
    "unlike data degrees": (
        wide(),
        replace(GOOD, stages=(*GOOD.stages[:2], PlanStage((2,), (ReplicaGroup("a", 1, 2),)))),
        "expected one of the data degrees",
    ),
    "no stages": (wide(), TrainingPlan(()), "no stages"),
    "too many stages": (wide(max_stages=2), GOOD, "3 stages, at most 2"),
    "a schedule that is not there": (wide(schedules=("zb-h1",)), GOOD, "schedule 1f1b is none of"),
    "numbers kept by another schedule": (wide(), replace(GOOD, kept=(1, 1, 1)), "numbers of micro"),
    "a repetend without numbers": (wide(), layered(schedule="repetend"), "numbers of micro"),
    "numbers kept that rise": (
        wide(),
        layered(schedule="repetend", kept=(1, 2, 1)),
        "none above the one before",
    ),
    "a number below one": (wide(), layered(schedule="repetend", kept=(2, 1, 0)), "none above"),
    "too few numbers": (wide(), layered(schedule="repetend", kept=(2, 1)), "none above"),
    "sharded states": (wide(), replace(GOOD, sharded=True), "sharded, which is not allowed"),
    "too few micro-batches": (wide(batch=2), layered(schedule="zb-h1"), "too few for zb-h1"),
    "one fewer than is kept": (wide(batch=4), layered(schedule="zb-h2"), "too few for zb-h2"),
    "zero bubble on one device": (
        wide(layers=1),
        layered(stages=1, schedule="zb-h1"),
        "too few for zb-h1",
    ),
    "stages that are no multiple": (
        wide(),
        layered(schedule="interleaved-1f1b:2"),
        "expected 2 stages on each",
    ),
    "stages on one device": (
        wide(layers=2),
        layered(stages=2, schedule="interleaved-1f1b:2"),
        "at least 2 devices",
    ),
    "micro-batches that are no multiple": (
        FOUR.replace(batch=3),
        layered(stages=4, schedule="interleaved-1f1b:2"),
        "a multiple of these",
    ),
    "unlike stages interleaved": (
        FOUR,
        TrainingPlan(
            tuple(PlanStage((v,), (ReplicaGroup("ab"[v % 2], 1, 1),)) for v in range(4)),
            1,
            "interleaved-1f1b:2",
        ),
        "like replicas of all",
    ),
    "two kinds": (wide(), layered(TWO), "expected one kind"),
    "a kind twice": (wide(mixed=True), layered((ONE[0], ONE[0])), "or two unlike ones"),
    "three kinds": (
        wide(kinds=3, mixed=True, data_degrees=(3,)),
        layered((*TWO, ReplicaGroup("c", 1, 1))),
        "or two unlike ones",
    ),
    "no quarter of the replicas": (
        wide(mixed=True, data_degrees=(8,)),
        layered((ReplicaGroup("a", 1, 1), ReplicaGroup("b", 1, 7))),
        "a share of quarters",
    ),
    "recomputed": (wide(), layered(recompute=True), "recomputed, which is not allowed"),
    "recomputed in part": (
        wide(recompute=True),
        TrainingPlan((PlanStage((0, 1, 2), ONE, (1,)),)),
        "or none to be recomputed",
    ),
    "replicas of two kinds in another order": (
        wide(mixed=True),
        layered(TWO[::-1]),
        "the devices' order",
    ),
    "a kind that is not there": (
        wide(),
        layered((ReplicaGroup("z", 1, 1),)),
        "there are no devices 'z'",
    ),
    "a tensor degree that is not there": (
        wide(),
        layered((ReplicaGroup("a", 3, 1),)),
        "tensor degree 3",
    ),
    "a way to split that is not allowed": (
        wide(),
        layered((ReplicaGroup("a", 2, 1, "expert"),)),
        "do not split layers by expert",
    ),
    "a way to split that one device cannot": (
        wide(forms=("expert",)),
        layered((ReplicaGroup("a", 1, 1, "expert"),)),
        "do not split layers by expert",
    ),
    "two kinds split otherwise": (
        wide(mixed=True, forms=("expert",)),
        layered((ReplicaGroup("a", 2, 1, "expert"), TWO[1])),
        "expected tensor parallelism",
    ),
    "too many devices": (
        wide().replace(pools=(DevicePool("a", 2, 2, 10**6), DevicePool("b", 6, 2, 10**6))),
        GOOD,
        "3 devices of 'a' are used, there are 2",
    ),
}


def test_sizes_of_nothing_end_the_judge():
    """With micro-batches of no samples, or stages without replicas, it counted rounds for ever."""
    for plan in (layered(micro_batch=0, schedule="zb-h1"), layered((), schedule="zb-h1")):
        assert "too few for zb-h1" in " ".join(judge_step_plan(wide(), plan))


def test_shares_of_quarters_are_of_either_kind():
    """Five replicas were shared 2 to 3 and not 3 to 2, so that the order of the kinds counted."""
    for data in range(1, 40):
        counts = shared_counts(data)
        assert counts == sorted(data - count for count in counts)
        assert {round(data * part / 4) for part in (1, 2, 3)} <= set(counts)


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_wrong_with_a_plan_is_named(name):
    """Every rule of plans of a step, broken alone, is named once."""
    problem, plan, words = DAMAGED[name]
    wrong = judge_step_plan(problem, plan)
    assert sum(words in line for line in wrong) in {1, len(plan.stages) or 1}, wrong
    assert len(wrong) in (1, len(plan.stages)) or name == "no stages", wrong


@pytest.mark.parametrize("schedule", wide().schedules)
def test_a_plan_without_stages_is_none_under_any_schedule(schedule):
    """Nothing is asked of stages that are not there."""
    plan = TrainingPlan((), schedule=schedule, kept=(1,) if schedule == "repetend" else ())
    assert sum("no stages" in line for line in judge_step_plan(wide(), plan)) == 1


ALLOWED = {
    "plain": (wide(), GOOD),
    "all of one data degree": (wide(data_degrees=(2,)), layered((ReplicaGroup("a", 1, 2),))),
    "as many stages as allowed": (wide(max_stages=3), GOOD),
    "a repetend that keeps alike": (wide(), layered(schedule="repetend", kept=(1, 1, 1))),
    "as many micro-batches as are kept": (wide(batch=3), layered(schedule="zb-h1")),
    "twice as many, less one": (wide(batch=5), layered(schedule="zb-h2")),
    "zero bubble on two devices": (wide(layers=2), layered(stages=2, schedule="zb-h1")),
    "interleaved": (FOUR.replace(batch=4), layered(stages=4, schedule="interleaved-1f1b:2")),
    "sharded": (wide(sharded=True), replace(GOOD, sharded=True)),
    "a quarter": (
        wide(mixed=True, data_degrees=(4,)).replace(
            pools=(DevicePool("a", 3, 2, 10**6), DevicePool("b", 9, 2, 10**6))
        ),
        layered((ReplicaGroup("a", 1, 1), ReplicaGroup("b", 1, 3))),
    ),
    "three quarters": (
        wide(mixed=True, data_degrees=(4,)).replace(
            pools=(DevicePool("a", 9, 2, 10**6), DevicePool("b", 3, 2, 10**6))
        ),
        layered((ReplicaGroup("a", 1, 3), ReplicaGroup("b", 1, 1))),
    ),
    "recomputed": (wide(recompute=True), layered(recompute=True)),
    "split by experts": (wide(forms=("expert",)), layered((ReplicaGroup("a", 2, 1, "expert"),))),
    "all devices": (
        wide().replace(pools=(DevicePool("a", 6, 2, 10**6),)),
        layered((ReplicaGroup("a", 2, 1),)),
    ),
    "all devices, interleaved": (
        FOUR.replace(pools=(DevicePool("a", 2, 2, 10**6),)),
        layered(stages=4, schedule="interleaved-1f1b:2"),
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_just_holds_is_allowed(name):
    """Each limit where it just holds; a byte less of memory than a stage needs is named."""
    problem, plan = ALLOWED[name]
    assert judge_step_plan(problem, plan) == []
    kind = plan.stages[0].replicas[0].kind
    needed = max(stage.memory for stage in step_price(problem, plan).stages if stage.kind == kind)
    pools = [replace(p, memory=needed) if p.kind == kind else p for p in problem.pools]
    assert judge_step_plan(problem.replace(pools=tuple(pools)), plan) == []
    pools = [replace(p, memory=needed - 1) if p.kind == kind else p for p in problem.pools]
    wrong = judge_step_plan(problem.replace(pools=tuple(pools)), plan)
    assert wrong
    assert all(f"bytes on '{kind}' with" in line for line in wrong)


def test_times_that_are_not_there_are_named(monkeypatch):
    """A group whose times the cost model lacks has no bytes to count; the other groups have."""
    problem = wide(mixed=True).replace(
        pools=(DevicePool("a", 3, 2, 10**6), DevicePool("b", 3, 2, 0))
    )
    monkeypatch.setattr(
        type(problem.costs), "layer_ticks", lambda self, kind, *_: None if kind == "a" else 1
    )
    wrong = _memory(problem, layered(TWO), 0)
    assert ["no times of 'a'" in wrong[0], "bytes on 'b' with" in wrong[1]] == [True, True]


@pytest.mark.parametrize("part", range(3))
def test_the_judge_values_plans_as_the_price_does(part):
    """On random problems of every schedule, form and share of kinds."""
    compared = 0
    for seed in range(5 * part, 5 * part + 5):
        problem = random_step_problem(seed)
        if seed % 3 == 0:
            problem = step_problem(
                seed,
                kinds=2,
                layers=2,
                devices=3,
                mixed=True,
                apart=seed % 2 == 0,
                data_degrees=(2, 3),
                schedules=("1f1b", "zb-h1", "zb-h2"),
            )
        for plan in islice(every_plan(problem), None, 90, 3):
            assert judged_step(problem, plan) == step_price(problem, plan).step, (seed, plan)
            compared += 1
    assert compared > 30


def test_any_number_of_micro_batches_in_flight_is_counted_at_once():
    """It was counted up to, one by one."""
    nothing, one = np.zeros((2, 2, 2), np.int64), np.ones((2, 2, 2), np.int64)
    problem = random_problem(3, layers=2, edges=False).replace(
        devices=10**12, samples=10**12, work=nothing, sync=nothing[0], kept=one
    )
    groups = [(ReplicaGroup("a", 1, count),) for count in (1, 10**12)]
    plan = TrainingPlan(tuple(PlanStage((v,), groups[v]) for v in range(2)))
    assert any("stage 0 needs" in words for words in judge_sample_plan(problem, plan))
