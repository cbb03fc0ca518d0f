"""An independent judge of plans under the published cost model: plain Python, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeopt.plans.plan import PlanStage, TrainingPlan
    from placeopt.plans.sample_problem import SamplePlanProblem


def judge_sample_plan(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    """Return every violation of a plan in words."""
    wrong = _layers(problem, plan)
    for i, stage in enumerate(plan.stages):
        wrong += [f"stage {i}: {words}" for words in _degrees(problem, stage)]
    if wrong:
        return wrong
    wrong = [*_totals(problem, plan), *_order(problem, plan)]
    for i in range(len(plan.stages)):
        used, flight = _memory(problem, plan, i)
        if used > problem.capacity:
            wrong.append(
                f"stage {i} needs {used / problem.units_per_byte:.0f} bytes with {flight} "
                "micro-batches in "
                f"flight, a device has {problem.capacity / problem.units_per_byte:.0f}"
            )
    return wrong


def _totals(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    wrong, groups = [], [stage.replicas[0] for stage in plan.stages]
    devices = sum(group.count * group.tensor for group in groups)
    if devices > problem.devices:
        wrong.append(f"the stages use {devices} devices, there are {problem.devices}")
    total = sum(group.count for group in groups)
    if total > problem.samples:
        wrong.append(
            f"the data degrees sum to {total}, more than the {problem.samples} samples of a step"
        )
    return wrong


def _order(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    stage_of = {layer: i for i, stage in enumerate(plan.stages) for layer in stage.layers}
    return [
        f"layer {v} in stage {stage_of[v]} needs layer {u}, which is in the later stage "
        f"{stage_of[u]}"
        for u, v in zip(problem.source.tolist(), problem.target.tolist(), strict=True)
        if stage_of[u] > stage_of[v]
    ]


def _layers(problem: SamplePlanProblem, plan: TrainingPlan) -> list[str]:
    seen: dict[int, int] = {}
    wrong = []
    for i, stage in enumerate(plan.stages):
        if not stage.layers:
            wrong.append(f"stage {i} has no layers")
        for layer in stage.layers:
            if not 0 <= layer < problem.num_layers:
                wrong.append(f"stage {i} has the layer {layer}, there are {problem.num_layers}")
            elif layer in seen:
                wrong.append(f"layer {layer} is in the stages {seen[layer]} and {i}")
            seen[layer] = i
    lacking = [layer for layer in range(problem.num_layers) if layer not in seen]
    return wrong + ([f"no stage has the layers {lacking}"] if lacking else [])


def _degrees(problem: SamplePlanProblem, stage: PlanStage) -> list[str]:
    if len(stage.replicas) != 1:
        return [f"expected one group of equal replicas, received {len(stage.replicas)}"]
    group, wrong = stage.replicas[0], []
    if problem.samples % group.count:
        wrong.append(
            f"the data degree {group.count} does not divide the {problem.samples} samples of a step"
        )
    if group.tensor not in problem.tensor_degrees:
        return [
            *wrong,
            f"the tensor degree {group.tensor} is none of {list(problem.tensor_degrees)}",
        ]
    t = problem.tensor_degrees.index(group.tensor)
    wrong += [
        f"layer {layer} is recomputed, but not in the stage"
        for layer in stage.recompute
        if layer not in stage.layers
    ]
    if stage.recompute and not problem.allow_recompute:
        wrong.append("layers are recomputed, which is not allowed")
    return wrong + [
        f"layer {layer} has no such choice at tensor degree {group.tensor}"
        for layer in stage.layers
        if 0 <= layer < problem.num_layers
        and problem.work[t, int(layer in stage.recompute), layer] < 0
    ]


def _memory(problem: SamplePlanProblem, plan: TrainingPlan, i: int) -> tuple[int, int]:
    """Return the units that a device of stage i uses, and its micro-batches in flight."""
    group = plan.stages[i].replicas[0]
    after = sum(stage.replicas[0].count for stage in plan.stages[i:])
    flight = 1
    while flight * group.count < after:
        flight += 1
    t, used = problem.tensor_degrees.index(group.tensor), 0
    for layer in plan.stages[i].layers:
        r = 1 if layer in plan.stages[i].recompute else 0
        used += int(problem.kept[t, r, layer]) * flight + int(problem.fixed[t, r, layer])
    return used, flight
