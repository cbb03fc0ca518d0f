"""Price of a plan under a cost model of a step: ticks of every stage and of the step, bytes of every stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placeopt.plans.step_costs import Load

if TYPE_CHECKING:
    from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
    from placeopt.plans.step_costs import StepCosts
    from placeopt.plans.step_problem import StepPlanProblem


@dataclass(frozen=True)
class StagePrice:
    """One stage, in ticks and bytes.

    Attributes
    ----------
    compute : of one micro-batch. period : between micro-batches. fill : of the first micro-batch. sync, optimizer : at
        the end of the step. memory : of the fullest device, and `kind` its kind. flight : micro-batches kept.
    """

    compute: int
    period: int
    fill: int
    sync: int
    optimizer: int
    memory: int
    kind: str
    flight: int


@dataclass(frozen=True)
class StepPrice:
    """A whole plan.

    Attributes
    ----------
    step : ticks of a step. rounds : micro-batches per replica. bottleneck : index of the stage with the longest period.
    """

    step: int
    rounds: int
    stages: tuple[StagePrice, ...]

    @property
    def bottleneck(self) -> int:
        """Index of the stage with the longest period."""
        return max(range(len(self.stages)), key=lambda i: self.stages[i].period)

    @property
    def closing(self) -> int:
        """Ticks behind the last micro-batch, of the stage that takes longest."""
        return max(stage.sync + stage.optimizer for stage in self.stages)


def plan_load(stage: PlanStage, position: int, stages: int, micro_batch: int, rounds: int) -> Load:
    """Return what a stage holds: S - i micro-batches in flight, at most those of the step."""
    flight = min(rounds, stages - position)
    return Load(stage.layers[0], stage.layers[-1] + 1, micro_batch, flight, bool(stage.recompute))


def step_price(problem: StepPlanProblem, plan: TrainingPlan) -> StepPrice:
    """Return the price of a well-formed plan."""
    costs, count = problem.costs, len(plan.stages)
    rounds = problem.rounds(plan.micro_batch, plan.stages[0].data)
    period, fill, loads, compute = [], [], [], []
    for i, stage in enumerate(plan.stages):
        load = plan_load(stage, i, count, plan.micro_batch, rounds)
        ticks = max(_compute(costs, load, group) for group in stage.replicas)
        compute.append(ticks)
        period.append(ticks)
        fill.append(ticks)
        loads.append(load)
    for i in range(count - 1):
        forward, backward = _transfers(costs, plan, i)
        shares = costs.link_shares(forward, backward, i == 0, i == count - 2, count)
        period[i] += shares.period_before
        fill[i] += shares.fill_before
        period[i + 1] += shares.period_behind
        fill[i + 1] += shares.fill_behind
    stages = []
    for i, stage in enumerate(plan.stages):
        fullest = max(stage.replicas, key=lambda group: costs.memory_bytes(loads[i], group))
        stages.append(StagePrice(
            compute[i], period[i], fill[i], costs.sync_ticks(loads[i], stage.replicas),
            max(costs.optimizer_ticks(loads[i], group) for group in stage.replicas),
            costs.memory_bytes(loads[i], fullest), fullest.kind, loads[i].flight,
        ))  # fmt: skip
    closing = max(stage.sync + stage.optimizer for stage in stages)
    if costs.closing_apart:
        closing = max(stage.sync for stage in stages) + max(stage.optimizer for stage in stages)
    return StepPrice((rounds - 1) * max(period) + sum(fill) + closing, rounds, tuple(stages))


def _compute(costs: StepCosts, load: Load, group: ReplicaGroup) -> int:
    ticks = costs.layer_ticks(group.kind, group.tensor, load.micro_batch, load.recompute)
    if ticks is None:
        raise LookupError(f"no times of {group.kind} at degree {group.tensor} and micro-batch {load.micro_batch}")
    return int(ticks[load.first : load.last].sum())


def pairs_of(before: tuple[ReplicaGroup, ...], behind: tuple[ReplicaGroup, ...]) -> set[tuple[ReplicaGroup, ReplicaGroup]]:
    """Return the pairs of groups that have replicas with the same number."""
    ends: list[list[int]] = []
    for groups in (before, behind):
        total, found = 0, []
        for group in groups:
            total += group.count
            found.append(total)
        ends.append(found)
    pairs, i, j = set(), 0, 0
    while i < len(before) and j < len(behind):
        pairs.add((before[i], behind[j]))
        i, j = i + (ends[0][i] <= ends[1][j]), j + (ends[1][j] <= ends[0][i])
    return pairs


def _transfers(costs: StepCosts, plan: TrainingPlan, i: int) -> tuple[int, int]:
    """Return the slowest forward and backward transfer between the paired replicas of stages i and i + 1."""
    before, behind = plan.stages[i], plan.stages[i + 1]
    found = [
        costs.send_ticks(behind.layers[0], plan.micro_batch, (a.kind, a.tensor), (b.kind, b.tensor))
        for a, b in pairs_of(before.replicas, behind.replicas)
    ]
    return max(forward for forward, _ in found), max(backward for _, backward in found)
