"""Exports of a plan: torch.distributed configuration, and argument lists in the styles of Megatron
and DeepSpeed.

What a framework cannot express (unequal degrees between stages, unlike replicas) is refused with
the reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count, islice
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
    groups = [group for stage in plan.stages for group in stage.replicas]
    degrees = {group.tensor for group in groups}
    if len({group.form for group in groups}) > 1:
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
    devices, data = len(plan.on_devices), plan.stages[0].data
    rounds = planned.problem.rounds(plan.micro_batch, data)
    degrees = {group.tensor for stage in plan.stages for group in stage.replicas}
    mesh = [devices, data, *degrees] if len(degrees) == 1 else None
    names, schedule = planned.device_names()[:devices], parse_schedule(plan.schedule)
    return {
        "world_size": sum(plan.devices().values()),
        "mesh": mesh,
        "mesh_dim_names": ["pp", "dp", "tp"] if mesh else None,
        "device_of_rank": [name for stage in names for replica in stage for name in replica],
        "groups": _rank_groups(plan),
        **_stage_lists(plan),
        "micro_batch": plan.micro_batch,
        "micro_batches": rounds,
        "schedule_name": TORCH_NAMES[schedule.name.partition(":")[0]],
        "schedule": _schedule_rows(plan, rounds),
        "stages_per_device": schedule.chunks,
        "sharded_states": plan.sharded,
    }


def _rank_groups(plan: TrainingPlan) -> dict[str, list[list[int]]]:
    """Return the ranks of every data, tensor and pipeline group."""
    rank = count()
    ranks = [
        [list(islice(rank, group.tensor)) for group in stage.each_replica()]
        for stage in plan.on_devices
    ]
    data = [[replica[0] for replica in held] for held in ranks]
    return {
        "data": data,
        "tensor": [replica for held in ranks for replica in held if len(replica) > 1],
        "pipeline": [list(firsts) for firsts in zip(*data, strict=True)],
    }


def _stage_lists(plan: TrainingPlan) -> dict[str, list[Any]]:
    """Return what every stage holds, and how."""
    return {
        "split_points": [stage.layers[0] for stage in plan.stages[1:]],
        "layers": [list(stage.layers) for stage in plan.stages],
        "recompute": [bool(stage.recompute) for stage in plan.stages],
        "split_by": [stage.replicas[0].form or "tensor" for stage in plan.stages],
    }


def _schedule_rows(plan: TrainingPlan, rounds: int) -> list[list[str]]:
    """Return the passes of every device, as torch's schedule file has them."""
    schedule = parse_schedule(plan.schedule)
    # torch calls the gradient of the inputs I where that of the weights is apart
    actions = {"B": "I" if schedule.splits_backward else "B"}
    return [
        [
            f"{step.stage}{actions.get(step.kind, step.kind)}{step.micro_batch}"
            for step in schedule.order(len(plan.stages), rounds, device, plan.kept)
        ]
        for device in range(len(plan.on_devices))
    ]


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
    how = plan.stages[0].replicas[0].form
    # ranks of an expert group are data-parallel ones there, with a share of the samples each
    experts = tensor if how == EXPERT else 1
    arguments = [
        f"--tensor-model-parallel-size={tensor // experts}",
        f"--pipeline-model-parallel-size={stages}",
        f"--micro-batch-size={plan.micro_batch // experts}",
        f"--global-batch-size={planned.problem.batch}",
    ]
    if how == EXPERT:
        arguments.append(f"--expert-model-parallel-size={tensor}")
    elif how == SEQUENCE:
        arguments.append("--sequence-parallel")
    arguments += _stage_sizes([len(stage.layers) for stage in plan.stages], stages)
    if plan.sharded:
        arguments.append("--use-distributed-optimizer")
    if any(stage.recompute for stage in plan.stages):
        arguments += [
            "--recompute-granularity=full",
            "--recompute-method=uniform",
            "--recompute-num-layers=1",
        ]
    return arguments


def _stage_sizes(sizes: list[int], stages: int) -> list[str]:
    """Return Megatron's arguments on the layers of each stage; see `megatron_arguments`."""
    virtual = [f"--num-layers-per-virtual-pipeline-stage={sizes[0]}"] if len(sizes) > stages else []
    if stages == 1 or len(set(sizes)) == 1:
        return virtual
    if len(set(sizes[1:-1])) > 1:
        raise Refused(
            "export to megatron: stages between the first and the last have to be alike, "
            f"received {sizes}"
        )
    if virtual:
        raise Refused(f"export to megatron: interleaved stages have to be alike, received {sizes}")
    return [
        f"--decoder-first-pipeline-num-layers={sizes[0]}",
        f"--decoder-last-pipeline-num-layers={sizes[-1]}",
    ]


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
    form = plan.stages[0].replicas[0].form
    if form:
        raise Refused(f"export to deepspeed: its argument lists know no {form} parallelism")
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
    rows = "".join(",".join(row) + "\n" for row in torch["schedule"])
    written = [
        _write_json(folder / "plan.json", planned.to_json()),
        _write_json(folder / "torch.json", torch),
        write_text(folder / "schedule.csv", rows),
        save(plan_of(planned), folder / "solution.json"),
    ]
    with suppress(Refused):  # a cost model of the user's own has no JSON form
        written.append(save(planned.problem, folder / "problem.json"))
    with suppress(Refused):
        text = "\n".join(megatron_arguments(planned)) + "\n"
        written.append(write_text(folder / "megatron.txt", text))
    with suppress(Refused):
        written.append(_write_json(folder / "deepspeed.json", deepspeed_configuration(planned)))
    return written


def _write_json(path: Path, body: dict[str, Any]) -> Path:
    return write_text(path, json.dumps(body, indent=1) + "\n")
