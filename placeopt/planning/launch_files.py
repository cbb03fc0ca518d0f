"""Exports of a plan: torch.distributed configuration, and argument lists in the styles of Megatron
and DeepSpeed.

What a framework cannot express (unequal degrees between stages, unlike replicas) is refused with
the reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from placeopt.io.serialize import save
from placeopt.model.errors import InputError, Refused
from placeopt.model.files import write_text
from placeopt.plans.plan import EXPERT, SEQUENCE
from placeopt.plans.step_schedules import parse_schedule

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.planning.planned import Planned
    from placeopt.plans.plan import TrainingPlan

FORMS = ("torch", "megatron", "deepspeed")
TORCH_NAMES = {
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zb-h2": "custom",
    "repetend": "custom",
}
"""What torch calls the schedules; the rows say the order in any case."""


def plan_of(planned: Planned) -> TrainingPlan:
    """Return the plan of a result.

    Raises
    ------
    InputError
        If there is none.
    """
    if planned.plan is None:
        raise InputError(
            f"'{planned.problem.name}' has no plan to export: {planned.result.message}"
        )
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
    if len({group.form for stage in plan.stages for group in stage.replicas}) > 1:
        raise Refused(f"export to {form}: it knows one way to split layers for all stages")
    if len(degrees) > 1:
        raise Refused(
            f"export to {form}: it knows one tensor degree for all stages, the plan has "
            f"{sorted(degrees)}"
        )
    if plan.schedule.startswith("zb") or plan.kept:
        raise Refused(f"export to {form}: it has no schedule {plan.schedule}")
    return len(plan.on_devices), plan.stages[0].data, degrees.pop()


def torch_configuration(planned: Planned) -> dict[str, Any]:
    """Return ranks, device mesh, split points and schedule for torch.distributed.

    Rank r = (stage, replica, shard) in this order; `mesh` is the shape of the device mesh where all
    stages are alike, `groups` lists the ranks of every pipeline, data and tensor group in any case.
    `schedule` holds the rows of torch's schedule file: `<stage><ACTION><micro-batch>`.
    """
    plan = plan_of(planned)
    price = planned.price
    rounds = 1 if price is None else price.rounds
    ranks: list[list[list[int]]] = []
    number = 0
    for stage in plan.on_devices:
        held = []
        for group in stage.each_replica():
            held.append(list(range(number, number + group.tensor)))
            number += group.tensor
        ranks.append(held)
    degrees = {group.tensor for stage in plan.stages for group in stage.replicas}
    mesh = [len(ranks), plan.stages[0].data, next(iter(degrees))] if len(degrees) == 1 else None
    names, schedule = planned.device_names()[: len(ranks)], parse_schedule(plan.schedule)
    orders = [
        schedule.order(len(plan.stages), rounds, device, plan.kept) for device in range(len(ranks))
    ]
    # torch calls the gradient of the inputs I where that of the weights is apart
    actions = {"B": "I" if schedule.splits_backward else "B"}
    rows = [
        [f"{step.stage}{actions.get(step.kind, step.kind)}{step.micro_batch}" for step in order]
        for order in orders
    ]
    return {
        "world_size": number,
        "mesh": mesh,
        "mesh_dim_names": ["pp", "dp", "tp"] if mesh else None,
        "device_of_rank": [name for stage in names for replica in stage for name in replica],
        "groups": {
            "data": [[replica[0] for replica in held] for held in ranks],
            "tensor": [replica for held in ranks for replica in held if len(replica) > 1],
            "pipeline": [[held[j][0] for held in ranks] for j in range(plan.stages[0].data)],
        },
        "split_points": [stage.layers[0] for stage in plan.stages[1:]],
        "layers": [list(stage.layers) for stage in plan.stages],
        "recompute": [bool(stage.recompute) for stage in plan.stages],
        "split_by": [stage.replicas[0].form or "tensor" for stage in plan.stages],
        "micro_batch": plan.micro_batch,
        "micro_batches": rounds,
        "schedule_name": TORCH_NAMES[schedule.name.partition(":")[0]],
        "schedule": rows,
        "stages_per_device": schedule.chunks,
        "sharded_states": plan.sharded,
    }


def megatron_arguments(planned: Planned) -> list[str]:
    """Return arguments in the style of Megatron-LM.

    Raises
    ------
    Refused
        If the tensor degrees differ between stages, or their sizes do in a way that there is no
        argument for: only the first and the last may be shorter or longer, and none where stages
        are interleaved.
    """
    plan = plan_of(planned)
    stages, _, tensor = uniform_degrees(plan, "megatron")
    sizes = [len(stage.layers) for stage in plan.stages]
    arguments = [
        f"--tensor-model-parallel-size={tensor}",
        f"--pipeline-model-parallel-size={stages}",
        f"--micro-batch-size={plan.micro_batch}",
        f"--global-batch-size={planned.problem.batch}",
    ]
    how = plan.stages[0].replicas[0].form
    if (
        how == EXPERT
    ):  # ranks of an expert group are data-parallel ones there, with a share of the samples each
        arguments[0], arguments[2] = (
            "--tensor-model-parallel-size=1",
            f"--micro-batch-size={plan.micro_batch // tensor}",
        )
        arguments.append(f"--expert-model-parallel-size={tensor}")
    elif how == SEQUENCE:
        arguments.append("--sequence-parallel")
    if stages > 1 and len(set(sizes)) > 1:
        arguments += [
            f"--decoder-first-pipeline-num-layers={sizes[0]}",
            f"--decoder-last-pipeline-num-layers={sizes[-1]}",
        ]
        if len(set(sizes[1:-1])) > 1:
            raise Refused(
                "export to megatron: stages between the first and the last have to be alike, "
                f"received {sizes}"
            )
        if len(sizes) > stages:
            raise Refused(
                f"export to megatron: interleaved stages have to be alike, received {sizes}"
            )
    if len(sizes) > stages:
        arguments.append(f"--num-layers-per-virtual-pipeline-stage={sizes[0]}")
    if plan.sharded:
        arguments.append("--use-distributed-optimizer")
    if any(stage.recompute for stage in plan.stages):
        arguments += [
            "--recompute-granularity=full",
            "--recompute-method=uniform",
            "--recompute-num-layers=1",
        ]
    return arguments


def deepspeed_configuration(planned: Planned) -> dict[str, Any]:
    """Return a configuration in the style of DeepSpeed, and the arguments that go beside it.

    Raises
    ------
    Refused
        If the tensor degrees differ between stages, layers are split in another way than by
        tensors, or a device has several stages.
    """
    plan = plan_of(planned)
    stages, data, tensor = uniform_degrees(plan, "deepspeed")
    if plan.stages[0].replicas[0].form:
        raise Refused(
            f"export to deepspeed: its argument lists know no {plan.stages[0].replicas[0].form} "
            "parallelism"
        )
    if len(plan.stages) > stages:
        raise Refused(f"export to deepspeed: it has no schedule {plan.schedule}")
    rounds = planned.problem.rounds(plan.micro_batch, data)
    return {
        "config": {
            "train_batch_size": rounds * plan.micro_batch * data,
            "train_micro_batch_size_per_gpu": plan.micro_batch,
            "gradient_accumulation_steps": rounds,
            "zero_optimization": {"stage": int(plan.sharded)},
            "activation_checkpointing": {"partition_activations": False}
            if any(s.recompute for s in plan.stages)
            else {},
        },
        "arguments": [
            f"--pipe-parallel-size={stages}",
            f"--model-parallel-size={tensor}",
            "--partition-method=parameters",
        ],
        "layers_per_stage": [len(stage.layers) for stage in plan.stages],
    }


def write_launch_files(planned: Planned, folder: Path) -> list[Path]:
    """Write plan.json, problem.json, solution.json, torch.json and schedule.csv, and what
    frameworks can express.

    That is megatron.txt and deepspeed.json. `po.verify` takes problem.json and solution.json.
    """
    torch = torch_configuration(planned)
    written = [
        write_text(folder / "plan.json", json.dumps(planned.to_json(), indent=1) + "\n"),
        write_text(folder / "torch.json", json.dumps(torch, indent=1) + "\n"),
        write_text(
            folder / "schedule.csv", "".join(",".join(row) + "\n" for row in torch["schedule"])
        ),
    ]
    written.append(save(plan_of(planned), folder / "solution.json"))
    with suppress(Refused):  # a cost model of the user's own has no JSON form
        written.append(save(planned.problem, folder / "problem.json"))
    with suppress(Refused):
        written.append(
            write_text(folder / "megatron.txt", "\n".join(megatron_arguments(planned)) + "\n")
        )
    with suppress(Refused):
        written.append(
            write_text(
                folder / "deepspeed.json",
                json.dumps(deepspeed_configuration(planned), indent=1) + "\n",
            )
        )
    return written
