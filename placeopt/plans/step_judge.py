"""An independent judge of plans under a cost model of a step: plain Python, from the model's numbers per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.plans.step_costs import Load
from placeopt.plans.step_problem import SHARES

if TYPE_CHECKING:
    from placeopt.plans.plan import PlanStage, TrainingPlan
    from placeopt.plans.step_problem import StepPlanProblem


def judge_step_plan(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    """Return every violation of a plan in words."""
    wrong = _layers(problem, plan)
    if plan.micro_batch not in problem.micro_batches:
        wrong.append(f"micro-batch {plan.micro_batch} is none of {list(problem.micro_batches)}")
    degrees = {stage.data for stage in plan.stages}
    if len(degrees) != 1 or not degrees <= set(problem.data_degrees):
        wrong.append(f"expected one of the data degrees in every stage, received {sorted(degrees)}")
    if len(plan.stages) > problem.max_stages:
        wrong.append(f"{len(plan.stages)} stages, at most {problem.max_stages} are allowed")
    for i, stage in enumerate(plan.stages):
        wrong += [f"stage {i}: {words}" for words in _replicas(problem, stage)]
    if wrong:
        return wrong
    wrong += _devices(problem, plan)
    for i in range(len(plan.stages)):
        wrong += [f"stage {i}: {words}" for words in _memory(problem, plan, i)]
    return wrong


def _layers(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    found = [layer for stage in plan.stages for layer in stage.layers]
    if any(not stage.layers for stage in plan.stages) or found != list(range(problem.costs.num_layers)):
        return [f"expected stages of consecutive layers 0 .. {problem.costs.num_layers - 1}, received {found}"]
    return []


def _replicas(problem: StepPlanProblem, stage: PlanStage) -> list[str]:
    wrong, kinds = [], [group.kind for group in stage.replicas]
    known = {pool.kind: pool for pool in problem.pools}
    if len(set(kinds)) < len(kinds) or len(kinds) > (2 if problem.mixed else 1):
        wrong.append(f"replicas of {', '.join(kinds)}: expected one kind" + (" or two unlike ones" * problem.mixed))
    if len(kinds) == 2 and not any(
        stage.replicas[0].count == round(stage.data * part / SHARES) for part in range(1, SHARES)
    ):
        wrong.append(f"{stage.replicas[0].count} of {stage.data} replicas on '{kinds[0]}': expected a share of quarters")
    if stage.recompute and (not problem.recompute or set(stage.recompute) != set(stage.layers)):
        wrong.append("expected all layers of a stage or none to be recomputed" if problem.recompute else
                     "layers are recomputed, which is not allowed")  # fmt: skip
    for group in stage.replicas:
        if group.kind not in known:
            wrong.append(f"there are no devices '{group.kind}'")
        elif group.tensor not in problem.degrees(known[group.kind]):
            wrong.append(f"tensor degree {group.tensor} on '{group.kind}' is none of "
                         f"{list(problem.degrees(known[group.kind]))}")  # fmt: skip
    return wrong


def _devices(problem: StepPlanProblem, plan: TrainingPlan) -> list[str]:
    used: dict[str, int] = {}
    for stage in plan.stages:
        for group in stage.replicas:
            used[group.kind] = used.get(group.kind, 0) + group.tensor * group.count
    return [
        f"{used[pool.kind]} devices of '{pool.kind}' are used, there are {pool.count}"
        for pool in problem.pools if used.get(pool.kind, 0) > pool.count
    ]  # fmt: skip


def _memory(problem: StepPlanProblem, plan: TrainingPlan, i: int) -> list[str]:
    stage, wrong = plan.stages[i], []
    data, rounds = sum(group.count for group in stage.replicas), 0
    while rounds * plan.micro_batch * data < problem.batch:
        rounds += 1
    flight = min(len(plan.stages) - i, rounds)
    load = Load(min(stage.layers), max(stage.layers) + 1, plan.micro_batch, flight, len(stage.recompute) > 0)
    for group in stage.replicas:
        times = problem.costs.layer_ticks(group.kind, group.tensor, plan.micro_batch, load.recompute)
        if times is None:
            wrong.append(f"no times of '{group.kind}' at degree {group.tensor} and micro-batch {plan.micro_batch}")
            continue
        needed, there = problem.costs.memory_bytes(load, group), problem.pool(group.kind).memory
        if needed > there:
            wrong.append(f"{needed} bytes on '{group.kind}' with {flight} micro-batches in flight, a device has {there}")
    return wrong
