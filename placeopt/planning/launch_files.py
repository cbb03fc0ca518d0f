"""Exports of a plan: torch.distributed configuration, and argument lists in the styles of Megatron and DeepSpeed.

What a framework cannot express (unequal degrees between stages, unlike replicas) is refused with the reason.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError, Refused
from placeopt.model.files import write_text
from placeopt.plans.timeline import one_f_one_b

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.planning.planned import Planned
    from placeopt.plans.plan import TrainingPlan

FORMS = ("torch", "megatron", "deepspeed")


def plan_of(planned: Planned) -> TrainingPlan:
    """Return the plan of a result.

    Raises
    ------
    InputError
        If there is none.
    """
    if planned.plan is None:
        raise InputError(f"'{planned.problem.name}' has no plan to export: {planned.result.message}")
    return planned.plan


def uniform_degrees(plan: TrainingPlan, form: str) -> tuple[int, int, int]:
    """Return (stages, data degree, tensor degree) of a plan whose stages are alike.

    Raises
    ------
    Refused
        If they are not.
    """
    kinds = {(group.kind, group.tensor) for stage in plan.stages for group in stage.replicas}
    degrees = {tensor for _, tensor in kinds}
    if len(degrees) > 1:
        raise Refused(f"export to {form}: it knows one tensor degree for all stages, the plan has {sorted(degrees)}")
    return len(plan.stages), plan.stages[0].data, degrees.pop()


def torch_configuration(planned: Planned) -> dict[str, Any]:
    """Return ranks, device mesh, split points and schedule for torch.distributed.

    Rank r = (stage, replica, shard) in this order; `mesh` is the shape of the device mesh where all stages are alike,
    `groups` lists the ranks of every pipeline, data and tensor group in any case. `schedule` holds the rows of
    torch's schedule file: `<stage><ACTION><micro-batch>`.
    """
    plan = plan_of(planned)
    price = planned.price
    rounds = 1 if price is None else price.rounds
    ranks: list[list[list[int]]] = []
    number = 0
    for stage in plan.stages:
        held = []
        for group in stage.each_replica():
            held.append(list(range(number, number + group.tensor)))
            number += group.tensor
        ranks.append(held)
    degrees = {group.tensor for stage in plan.stages for group in stage.replicas}
    mesh = [len(plan.stages), plan.stages[0].data, next(iter(degrees))] if len(degrees) == 1 else None
    names = planned.device_names()
    rows = [
        [f"{i}{'B' if backward else 'F'}{j}" for j, backward in one_f_one_b(len(plan.stages), rounds, i)]
        for i in range(len(plan.stages))
    ]
    return {
        "world_size": number, "mesh": mesh, "mesh_dim_names": ["pp", "dp", "tp"] if mesh else None,
        "device_of_rank": [name for stage in names for replica in stage for name in replica],
        "groups": {
            "data": [[replica[0] for replica in held] for held in ranks],
            "tensor": [replica for held in ranks for replica in held if len(replica) > 1],
            "pipeline": [[held[j][0] for held in ranks] for j in range(plan.stages[0].data)],
        },
        "split_points": [stage.layers[0] for stage in plan.stages[1:]],
        "layers": [list(stage.layers) for stage in plan.stages],
        "recompute": [bool(stage.recompute) for stage in plan.stages],
        "micro_batch": plan.micro_batch, "micro_batches": rounds, "schedule_name": "1F1B", "schedule": rows,
    }  # fmt: skip


def megatron_arguments(planned: Planned) -> list[str]:
    """Return arguments in the style of Megatron-LM.

    Raises
    ------
    Refused
        If the tensor degrees differ between stages.
    """
    plan = plan_of(planned)
    stages, _, tensor = uniform_degrees(plan, "megatron")
    sizes = [len(stage.layers) for stage in plan.stages]
    arguments = [
        f"--tensor-model-parallel-size={tensor}", f"--pipeline-model-parallel-size={stages}",
        f"--micro-batch-size={plan.micro_batch}", f"--global-batch-size={planned.problem.batch}",
    ]  # fmt: skip
    if stages > 1 and len(set(sizes)) > 1:
        arguments += [f"--decoder-first-pipeline-num-layers={sizes[0]}", f"--decoder-last-pipeline-num-layers={sizes[-1]}"]
        if len(set(sizes[1:-1])) > 1:
            raise Refused(f"export to megatron: stages between the first and the last have to be alike, received {sizes}")
    if any(stage.recompute for stage in plan.stages):
        arguments += ["--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1"]
    return arguments


def deepspeed_configuration(planned: Planned) -> dict[str, Any]:
    """Return a configuration in the style of DeepSpeed, and the arguments that go beside it.

    Raises
    ------
    Refused
        If the tensor degrees differ between stages.
    """
    plan = plan_of(planned)
    stages, data, tensor = uniform_degrees(plan, "deepspeed")
    rounds = planned.problem.rounds(plan.micro_batch, data)
    return {
        "config": {
            "train_batch_size": rounds * plan.micro_batch * data, "train_micro_batch_size_per_gpu": plan.micro_batch,
            "gradient_accumulation_steps": rounds,
            "activation_checkpointing": {"partition_activations": False} if any(s.recompute for s in plan.stages) else {},
        },
        "arguments": [f"--pipe-parallel-size={stages}", f"--model-parallel-size={tensor}", "--partition-method=parameters"],
        "layers_per_stage": [len(stage.layers) for stage in plan.stages],
    }  # fmt: skip


def write_launch_files(planned: Planned, folder: Path) -> list[Path]:
    """Write plan.json, torch.json, schedule.csv and, where the plan can be expressed, megatron.txt and deepspeed.json."""
    torch = torch_configuration(planned)
    written = [
        write_text(folder / "plan.json", json.dumps(planned.to_json(), indent=1) + "\n"),
        write_text(folder / "torch.json", json.dumps(torch, indent=1) + "\n"),
        write_text(folder / "schedule.csv", "".join(",".join(row) + "\n" for row in torch["schedule"])),
    ]
    try:
        written.append(write_text(folder / "megatron.txt", "\n".join(megatron_arguments(planned)) + "\n"))
        written.append(write_text(folder / "deepspeed.json", json.dumps(deepspeed_configuration(planned), indent=1) + "\n"))
    except Refused:
        pass
    return written
