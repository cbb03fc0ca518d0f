"""Price of a plan under a cost model of a step: ticks of every stage and of the step, bytes of
every stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.step_costs import LinkShares, Load, StepCosts
from placeopt.plans.step_problem import StepPlanProblem
from placeopt.plans.step_schedules import (
    StepSchedule,
    behind_stages,
    least_pace,
    longest_wait,
    parse_schedule,
)


@dataclass(frozen=True)
class StagePrice:
    """One stage, in ticks and bytes.

    Attributes
    ----------
    compute : of one micro-batch. period : between micro-batches. fill : of the first micro-batch.
    sync, optimizer : at
        the end of the step, of all stages of the device as if they were like this one, as is memory
        : of the fullest device, and `kind` its kind. flight : micro-batches kept. transfers : what
        the first micro-batch waits for beside compute.
    """

    compute: int
    period: int
    fill: int
    sync: int
    optimizer: int
    memory: int
    kind: str
    flight: int
    transfers: int


@dataclass(frozen=True)
class StepPrice:
    """A whole plan.

    Attributes
    ----------
    step : ticks of a step. rounds : micro-batches per replica. slots : passes on a device, rounds
    times its stages.
    pace : ticks between two passes, the longest period or that of a repetend. first : ticks of the
    first micro-batch.
    links : ticks that it takes over each cut, there and back.
    """

    step: int
    rounds: int
    slots: int
    pace: int
    first: int
    links: tuple[int, ...]
    stages: tuple[StagePrice, ...]


def plan_load(plan: TrainingPlan, position: int, rounds: int) -> Load:
    """Return what a stage holds."""
    schedule, stage = parse_schedule(plan.schedule), plan.stages[position]
    flight = schedule.flight(len(plan.stages), position, rounds, plan.kept)
    shards = stage.data if plan.sharded else 1
    first, last = stage.layers[0], stage.layers[-1] + 1
    return Load(
        first, last, plan.micro_batch, flight, bool(stage.recompute), schedule.chunks, shards
    )


def step_price(problem: StepPlanProblem, plan: TrainingPlan) -> StepPrice:
    """Return the price of a well-formed plan."""
    costs, count, schedule = problem.costs, len(plan.stages), parse_schedule(plan.schedule)
    rounds = problem.rounds(plan.micro_batch, plan.stages[0].data)
    loads = [plan_load(plan, i, rounds) for i in range(count)]
    compute = [
        max(_compute(costs, load, group) for group in stage.replicas)
        for load, stage in zip(loads, plan.stages, strict=True)
    ]
    fill = [_fill(costs, plan, load, i, schedule) for i, load in enumerate(loads)]
    shares = [_link_shares(costs, plan, i) for i in range(count - 1)]
    cuts = [NO_CUT, *shares, NO_CUT]
    stages = [
        _stage_price(costs, plan.stages[i], loads[i], (compute[i], fill[i]), cuts[i : i + 2])
        for i in range(count)
    ]
    links = [cut.fill_before + cut.fill_behind for cut in shares]
    slots, pace = rounds * schedule.chunks, max(stage.period for stage in stages)
    first = sum(stage.fill for stage in stages)
    if schedule.splits_backward:
        first = max(first, pace)
    if plan.kept:
        behind = behind_stages(compute, links)
        pace = least_pace([stage.period for stage in stages], behind, plan.kept)
        first = longest_wait(behind, plan.kept, pace) + compute[0]
    step = (slots - 1) * pace + first + _closing(costs, stages)
    return StepPrice(step, rounds, slots, pace, first, tuple(links), tuple(stages))


NO_CUT = LinkShares(0, 0, 0, 0)
"""Beside the ends of the pipeline."""


def _stage_price(
    costs: StepCosts, stage: PlanStage, load: Load, passes: tuple[int, int], cuts: list[LinkShares]
) -> StagePrice:
    """Return the price of a stage from its compute and fill, and the transfers over the cuts before
    and behind it.
    """
    (compute, fill), (front, back), chunks = passes, cuts, load.chunks
    fullest = max(stage.replicas, key=lambda group: costs.memory_bytes(load, group))
    return StagePrice(
        compute,
        compute + front.period_behind + back.period_before,
        fill + part_of(front.fill_behind, chunks) + part_of(back.fill_before, chunks),
        chunks * costs.sync_ticks(load, stage.replicas),
        chunks * max(costs.optimizer_ticks(load, group) for group in stage.replicas),
        costs.memory_bytes(load, fullest),
        fullest.kind,
        load.flight,
        front.fill_behind + back.fill_before,
    )


def _closing(costs: StepCosts, stages: list[StagePrice]) -> int:
    if costs.closing_apart:
        return max(stage.sync for stage in stages) + max(stage.optimizer for stage in stages)
    return max(stage.sync + stage.optimizer for stage in stages)


def part_of(ticks: int, chunks: int) -> int:
    """Return the part of one stage of a device, rounded up."""
    return -(-ticks // chunks)


def _fill(
    costs: StepCosts, plan: TrainingPlan, load: Load, position: int, schedule: StepSchedule
) -> int:
    """Return what the first micro-batch waits for a stage's compute, less the W that fills the
    gap.
    """
    stage, most = plan.stages[position], 0
    for group in stage.replicas:
        ticks = _compute(costs, load, group)
        if schedule.splits_backward and position < len(plan.stages) - 1:
            weights = costs.weight_ticks(group.kind, group.tensor, load.micro_batch, group.form)
            if weights is None:
                raise LookupError(
                    f"no times of gradients of weights on {group.kind} at degree {group.tensor}"
                )
            ticks = max(
                0, ticks - schedule.weight_parts * int(weights[load.first : load.last].sum())
            )
        most = max(most, ticks)
    return part_of(most, schedule.chunks)


def _compute(costs: StepCosts, load: Load, group: ReplicaGroup) -> int:
    ticks = costs.layer_ticks(
        group.kind, group.tensor, load.micro_batch, load.recompute, group.form
    )
    if ticks is None:
        raise LookupError(
            f"no times of {group.kind} at degree {group.tensor} and micro-batch {load.micro_batch}"
        )
    return int(ticks[load.first : load.last].sum())


def pairs_of(
    before: tuple[ReplicaGroup, ...], behind: tuple[ReplicaGroup, ...]
) -> set[tuple[ReplicaGroup, ReplicaGroup]]:
    """Return the pairs of groups that have replicas with the same number."""
    ends = [list(accumulate(group.count for group in groups)) for groups in (before, behind)]
    pairs, i, j = set(), 0, 0
    while i < len(before) and j < len(behind):
        pairs.add((before[i], behind[j]))
        i, j = i + (ends[0][i] <= ends[1][j]), j + (ends[1][j] <= ends[0][i])
    return pairs


def _link_shares(costs: StepCosts, plan: TrainingPlan, i: int) -> LinkShares:
    """Return the shares of the slowest forward and backward transfer between the paired replicas of
    stages i and i + 1.
    """
    before, behind, count = plan.stages[i], plan.stages[i + 1], len(plan.stages)
    found = [
        costs.send_ticks(behind.layers[0], plan.micro_batch, (a.kind, a.tensor), (b.kind, b.tensor))
        for a, b in pairs_of(before.replicas, behind.replicas)
    ]
    forward, backward = map(max, zip(*found, strict=True))
    return costs.link_shares(forward, backward, i == 0, i == count - 2, count)
