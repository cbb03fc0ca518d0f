"""Files that launch a plan. Of stages with prices: torch.distributed configuration, and argument
lists in the styles of Megatron and DeepSpeed. Of a launchable configuration: files for Megatron-LM,
torchtitan, DeepSpeed and nanotron, with all rank groups.

What a framework or launcher cannot express (unequal degrees between stages, unlike replicas) is
refused by name: the answer says which file was not written, and why. Names were checked against
public source, the newest stored version of it:

- Megatron-LM: the flags of megatron/training/arguments.py as of the release that has
  `--use-megatron-fsdp` and `--num-virtual-stages-per-pipeline-rank` (core 0.13 and later);
- torchtitan: torchtitan/config/job_config.py at commit 6404b93, the TOML that releases before its
  Python configuration read;
- DeepSpeed: deepspeed/runtime/zero/config.py (`stage`, `mics_shard_size`);
- nanotron: src/nanotron/config/parallelism_config.py at commit 19f88fb, and `TokensArgs` and
  `OptimizerArgs` of src/nanotron/config/config.py.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import suppress
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.io.serialize import save
from placeopt.model.errors import InputError, Refused
from placeopt.model.files import Data, write_json, write_text
from placeopt.planning.launch_search import LaunchProblem, uneven
from placeopt.plans.model_shapes import ModelShape, stage_layers
from placeopt.plans.plan import EXPERT, SEQUENCE, TrainingPlan
from placeopt.plans.step_schedules import parse_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from placeopt.planning.plan_model import Planned
    from placeopt.plans.configuration import Configuration
    from placeopt.plans.layer_tables import LayerTable
    from placeopt.plans.step_costs import StepCosts


TORCH_NAMES = {
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zb-h2": "custom",
    "repetend": "custom",
}
"""What torch calls the schedules; the rows say the order in any case."""

Argument = tuple[str, Any]
"""Name and value of an argument; a flag is True, False where it is not set."""


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
    again = {bool(stage.recompute) for stage in plan.stages}
    if len(again) > 1:
        raise Refused(f"export to {form}: it recomputes the layers of all stages or of none")
    if plan.schedule.startswith("zb") or plan.kept:
        raise Refused(f"export to {form}: it has no schedule {plan.schedule}")
    return len(plan.on_devices), plan.stages[0].data, degrees.pop()


def torch_configuration(planned: Planned) -> Data:
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
        "groups": _groups_of_plan(plan),
        "split_points": [stage.layers[0] for stage in plan.stages[1:]],
        "layers": [list(stage.layers) for stage in plan.stages],
        "recompute": [bool(stage.recompute) for stage in plan.stages],
        "split_by": [stage.replicas[0].form or "tensor" for stage in plan.stages],
        "micro_batch": plan.micro_batch,
        "micro_batches": rounds,
        "schedule_name": TORCH_NAMES[schedule.name.partition(":")[0]],
        "schedule": _schedule_rows(plan, rounds),
        "stages_per_device": schedule.chunks,
        "sharded_states": plan.sharded,
    }


def _groups_of_plan(plan: TrainingPlan) -> dict[str, list[list[int]]]:
    """Return the ranks of every data, tensor and pipeline group: those with the same number in
    replicas that are joined, as many as the narrowest has.
    """
    rank = count()
    ranks = [
        [list(islice(rank, group.tensor)) for group in stage.each_replica()]
        for stage in plan.on_devices
    ]
    chains = zip(*ranks, strict=True)
    return {
        "data": [list(group) for held in ranks for group in zip(*held, strict=False)],
        "tensor": [replica for held in ranks for replica in held if len(replica) > 1],
        "pipeline": [list(group) for held in chains for group in zip(*held, strict=False)],
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
    stages, data, tensor = uniform_degrees(plan, "megatron")
    rounds = planned.problem.rounds(plan.micro_batch, data)
    how = plan.stages[0].replicas[0].form
    # ranks of an expert group are data-parallel ones there, with a share of the samples each
    experts = tensor if how == EXPERT else 1
    arguments = [
        f"--tensor-model-parallel-size={tensor // experts}",
        f"--pipeline-model-parallel-size={stages}",
        f"--micro-batch-size={plan.micro_batch // experts}",
        f"--global-batch-size={rounds * plan.micro_batch * data}",
    ]
    if how == EXPERT:
        arguments.append(f"--expert-model-parallel-size={tensor}")
    elif how == SEQUENCE:
        arguments.append("--sequence-parallel")
    blocks = _decoder_layers(planned.problem.costs)
    sizes = [sum(blocks[layer] for layer in stage.layers) for stage in plan.stages]
    arguments += _stage_sizes(sizes, stages)
    if plan.sharded:
        arguments.append("--use-distributed-optimizer")
    if any(stage.recompute for stage in plan.stages):
        arguments += [f"--{name}={value}" for name, value in MEGATRON_RECOMPUTE["full"]]
    return arguments


def _decoder_layers(costs: StepCosts) -> list[bool]:
    """Return which layers Megatron counts: those of sizes that are there more than twice, unlike
    embedding, last norm and head; in short models the most frequent.
    """
    table: LayerTable | None = getattr(costs, "table", None)
    kinds: Sequence[float] = costs.layer_types
    if table is not None:  # blocks of one size may have been measured apart
        kinds = next(iter(table.parameters.values())).tolist()
    times = Counter(kinds)
    least = min(3, max(times.values()))
    return [times[kind] >= least for kind in kinds]


def _stage_sizes(sizes: list[int], stages: int) -> list[str]:
    """Return Megatron's arguments on the layers of each stage; see `megatron_arguments`."""
    virtual = [f"--num-layers-per-virtual-pipeline-stage={sizes[0]}"] if len(sizes) > stages else []
    if stages == 1 or len(set(sizes)) == 1:
        return virtual
    if len(set(sizes[1:-1])) > 1 or 0 in sizes:
        raise Refused(
            "export to megatron: stages between the first and the last have to be alike, and none "
            f"without a layer, received {sizes}"
        )
    if virtual:
        raise Refused(f"export to megatron: interleaved stages have to be alike, received {sizes}")
    return [
        f"--decoder-first-pipeline-num-layers={sizes[0]}",
        f"--decoder-last-pipeline-num-layers={sizes[-1]}",
    ]


def deepspeed_configuration(planned: Planned) -> Data:
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
        write_json(folder / "plan.json", planned.to_json()),
        write_json(folder / "torch.json", torch),
        write_text(folder / "schedule.csv", rows),
        save(plan_of(planned), folder / "solution.json"),
    ]
    with suppress(Refused):  # a cost model of the user's own has no JSON form
        written.append(save(planned.problem, folder / "problem.json"))
    with suppress(Refused):
        text = "\n".join(megatron_arguments(planned)) + "\n"
        written.append(write_text(folder / "megatron.txt", text))
    with suppress(Refused):
        written.append(write_json(folder / "deepspeed.json", deepspeed_configuration(planned)))
    return written


def rank_groups(conf: Configuration) -> Data:
    """Return the ranks of every group, in Megatron's order: tensor, context, data, pipeline.

    Expert groups are neighbours among the ranks of a stage: experts are not split by tensors there.
    Gradients are summed over `data_context`, those of experts over `expert_data`; `sharded` ranks
    share states out.
    """
    shape = conf.pipeline, conf.data, conf.context, conf.tensor
    ranks = np.arange(conf.devices).reshape(shape)

    def groups(*axes: int) -> list[list[int]]:
        """Return the ranks along some axes, for each choice of the others."""
        size = math.prod(shape[axis] for axis in axes)
        last = range(-len(axes), 0)
        return np.moveaxis(ranks, axes, tuple(last)).reshape(-1, size).tolist()

    summed = groups(1, 2)
    spread = ranks.reshape(conf.pipeline, -1, conf.expert)
    copies = spread.swapaxes(1, 2).reshape(-1, spread.shape[1]).tolist()
    return {
        "world_size": conf.devices,
        "order": "tp-cp-dp-pp",
        "tensor": groups(3),
        "context": groups(2),
        "data": groups(1),
        "data_context": summed,
        "sharded": np.reshape(summed, (-1, conf.shards)).tolist(),
        "pipeline": groups(0),
        "expert": ranks.reshape(-1, conf.expert).tolist(),
        "expert_data": copies if conf.expert > 1 else summed,
    }


def megatron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the arguments of Megatron-LM's pretrain_gpt.py that a plan decides."""
    shape = problem.shape
    _refuse(
        *uneven(shape, conf),
        (not shape.causal, "its pretrain_gpt.py trains decoders; the model has an encoder"),
        (
            shape.with_attention < shape.layers,
            "its pretrain_gpt.py has attention in every layer; the model has "
            f"{shape.with_attention} of {shape.layers}",
        ),
    )
    grouped = shape.kv_heads != shape.heads and not shape.latent
    said: list[Argument] = [
        ("num-layers", shape.layers),
        ("hidden-size", shape.hidden),
        ("ffn-hidden-size", shape.ffn),
        ("num-attention-heads", shape.heads),
        ("kv-channels", not shape.latent and shape.head_dim),
        ("seq-length", conf.sequence),
        ("max-position-embeddings", conf.sequence),
        ("tensor-model-parallel-size", conf.tensor),
        ("pipeline-model-parallel-size", conf.pipeline),
        ("context-parallel-size", conf.context),
        ("micro-batch-size", conf.micro_batch),
        ("global-batch-size", conf.batch),
        ("swiglu", bool(shape.gated)),
        ("group-query-attention", grouped),
        ("num-query-groups", grouped and shape.kv_heads),
        ("multi-latent-attention", shape.latent),
        *zip(LATENT_SIZES, (size or False for size in shape.latent_sizes), strict=False),
        ("untie-embeddings-and-output-weights", not shape.tied),
        ("sequence-parallel", conf.tensor > 1),
        *_megatron_stages(shape, conf),
        *_megatron_experts(shape, conf),
        *MEGATRON_RECOMPUTE.get(conf.recompute, ()),
        *_megatron_sharding(conf),
        *_megatron_precision(conf.precision),
    ]
    values = [f"--{name} {value}\n" for name, value in said if not isinstance(value, bool)]
    return "".join(values + [f"--{name}\n" for name, value in said if value is True])


LATENT_SIZES = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
"""Megatron's names of `ModelShape.latent_sizes`."""

MEGATRON_RECOMPUTE: dict[str, tuple[Argument, ...]] = {
    "selective": (("recompute-granularity", "selective"),),
    "full": (
        ("recompute-granularity", "full"),
        ("recompute-method", "uniform"),
        ("recompute-num-layers", 1),
    ),
}


def _megatron_stages(shape: ModelShape, conf: Configuration) -> list[Argument]:
    sizes = stage_layers(shape.layers, conf.pipeline * conf.chunks)
    uneven = len(set(sizes)) > 1  # embedding and head stand for a layer each
    said: list[Argument] = [
        ("account-for-embedding-in-pipeline-split", uneven),
        ("account-for-loss-in-pipeline-split", uneven),
    ]
    if conf.chunks == 1:
        return said
    if uneven:
        return [*said, ("num-virtual-stages-per-pipeline-rank", conf.chunks)]
    return [*said, ("num-layers-per-virtual-pipeline-stage", max(sizes))]


def _megatron_experts(shape: ModelShape, conf: Configuration) -> list[Argument]:
    if not shape.experts:
        return []
    plain = shape.dense_layers
    return [
        ("num-experts", shape.experts),
        ("moe-layer-freq", plain > 0 and f"([0]*{plain}+[1]*{shape.sparse_layers})"),
        ("moe-router-topk", shape.active),
        ("moe-ffn-hidden-size", shape.expert_ffn),
        ("expert-model-parallel-size", conf.expert),
        ("moe-token-dispatcher-type", conf.expert > 1 and "alltoall"),
        # ranks with experts of their own hold them whole; without, tensor ranks share them
        ("expert-tensor-parallel-size", 1 if conf.expert > 1 else conf.tensor),
        ("moe-grouped-gemm", True),
        ("moe-shared-expert-intermediate-size", shape.shared_ffn or False),
    ]


def _megatron_sharding(conf: Configuration) -> list[Argument]:
    if conf.sharding == "none":
        return []
    if conf.sharding == "zero1":
        flags = ("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather")
        return [(flag, True) for flag in flags]
    if conf.shard_group:
        raise Refused("FSDP within a host alone is not among its arguments here")
    level = {"zero2": "optim_grads", "zero3": "optim_grads_params"}[conf.sharding]
    return [
        ("use-megatron-fsdp", True),
        ("use-distributed-optimizer", True),
        ("no-gradient-accumulation-fusion", True),
        ("ckpt-format", "fsdp_dtensor"),
        ("data-parallel-sharding-strategy", level),
    ]


def _megatron_precision(precision: str) -> list[Argument]:
    if precision == "fp4":
        raise Refused("4-bit recipes differ by release; none is written")
    if precision == "fp8":
        return [("bf16", True), ("fp8-format", "hybrid")]
    return [(precision, precision in ("bf16", "fp16"))]


def _refuse(*cases: tuple[bool, str]) -> None:
    """Refuse for the first reason that applies."""
    for applies, reason in cases:
        if applies:
            raise Refused(reason)


def torchtitan(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the tables of torchtitan's TOML that a plan decides."""
    sharded = conf.sharding != "none"
    group, inner = conf.shards // conf.context, conf.context * conf.tensor
    _refuse(
        *uneven(problem.shape, conf),
        (conf.sharding == "zero1", "it shards weights or nothing, not states alone (ZeRO 1)"),
        (conf.precision in ("fp16", "fp4"), f"it trains in bf16 or fp8, not in {conf.precision}"),
        (
            conf.shards % conf.context > 0,
            f"it shares weights out among context ranks, {conf.context}; the plan among "
            f"{conf.shards}",
        ),
        (
            not sharded and conf.data > 1 and conf.devices > conf.data,
            "its replicas that share nothing out (DDP) go with no other parallelism",
        ),
        (
            conf.expert > 1 and (conf.expert % inner or group * inner % conf.expert) > 0,
            f"its expert degree is a multiple of context times tensor degree, {inner}, and divides "
            f"{group * inner}, with the ranks that share weights out; the plan's is {conf.expert}",
        ),
    )
    local = conf.micro_batch * (conf.rounds if conf.pipeline > 1 else 1)
    lines = [
        "[training]",
        f"local_batch_size = {local}",
        f"global_batch_size = {conf.batch}",
        f"seq_len = {conf.sequence}",
        *(['mixed_precision_param = "float32"'] if conf.precision == "fp32" else []),
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {conf.data // group}",
        f"data_parallel_shard_degree = {group}",
        f"tensor_parallel_degree = {conf.tensor}",
        f"pipeline_parallel_degree = {conf.pipeline}",
        f"context_parallel_degree = {conf.context}",
        f"expert_parallel_degree = {conf.expert}",
    ]
    if sharded:
        after = "never" if conf.sharding == "zero2" else "always"
        lines.append(f'fsdp_reshard_after_forward = "{after}"')
    if conf.pipeline > 1:
        schedule = "Interleaved1F1B" if conf.chunks > 1 else "1F1B"
        sizes = stage_layers(problem.shape.layers, conf.pipeline * conf.chunks)
        lines += [
            f'pipeline_parallel_schedule = "{schedule}"',
            f"pipeline_parallel_microbatch_size = {conf.micro_batch}",
            f"pipeline_parallel_layers_per_stage = {max(sizes)}",
            f"pipeline_parallel_first_stage_less_layers = {max(sizes) - sizes[0]}",
            f"pipeline_parallel_last_stage_less_layers = {max(sizes) - sizes[-1]}",
        ]
    lines += ["", "[activation_checkpoint]", f'mode = "{conf.recompute}"']
    if conf.recompute == "selective":
        lines.append('selective_ac_option = "op"')
    if conf.precision == "fp8":
        lines += ["", "[model]", 'converters = ["float8"]']
    return "\n".join(lines) + "\n"


def deepspeed(problem: LaunchProblem, conf: Configuration) -> str:
    """Return DeepSpeed's configuration."""
    layers = problem.shape.layers
    _refuse(
        *uneven(problem.shape, conf),
        (conf.chunks > 1, "its pipeline engine has no interleaved schedule"),
        (layers % conf.pipeline > 0, f"{layers} layers need a module list of your own"),
        (conf.context > 1, "its configuration has no context parallelism"),
        (
            conf.expert > 1,
            "expert parallelism is set in the model's code, not in its configuration",
        ),
        (conf.precision in ("fp8", "fp4"), f"its configuration has no {conf.precision}"),
    )
    body: Data = {
        "train_batch_size": conf.batch,
        "train_micro_batch_size_per_gpu": conf.micro_batch,
        "gradient_accumulation_steps": conf.rounds,
        "zero_optimization": {"stage": 0 if conf.sharding == "none" else int(conf.sharding[-1])},
    }
    if conf.shard_group:
        body["zero_optimization"]["mics_shard_size"] = conf.shard_group
    if conf.precision in ("bf16", "fp16"):
        body[conf.precision] = {"enabled": True}
    again = MEGATRON_RECOMPUTE.get(conf.recompute, ())
    if conf.tensor > 1 or conf.pipeline > 1 or again:
        body["beside"] = {  # arguments of Megatron-DeepSpeed; not DeepSpeed's own
            "--tensor-model-parallel-size": conf.tensor,
            "--pipeline-model-parallel-size": conf.pipeline,
            "--num-layers": layers,
            **{f"--{name}": value for name, value in again},
        }
    return json.dumps(body, indent=1) + "\n"


def nanotron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the parts of nanotron's YAML that a plan decides."""
    dtypes = {"bf16": "bfloat16", "fp32": "float32"}
    unequal = problem.shape.layers % conf.pipeline > 0
    _refuse(
        *uneven(problem.shape, conf),
        (conf.chunks > 1, "it has no interleaved schedule"),
        (unequal, "it balances unequal stages by its own costs"),
        (conf.sharding in ("zero2", "zero3"), f"it has ZeRO 1, not {conf.sharding}"),
        (conf.expert > 1, "its expert ranks are devices beside the data-parallel ones"),
        (conf.recompute == "selective", "it recomputes whole layers or nothing"),
        (conf.precision not in dtypes, f"no {conf.precision} is set by its configuration here"),
    )
    again = str(conf.recompute == "full").lower()
    return (
        f"model:\n  dtype: {dtypes[conf.precision]}\n"
        f"optimizer:\n  zero_stage: {int(conf.sharding == 'zero1')}\n"
        f"parallelism:\n  dp: {conf.data}\n  pp: {conf.pipeline}\n  tp: {conf.tensor}\n"
        f"  context_parallel_size: {conf.context}\n  expert_parallel_size: 1\n"
        f"  pp_engine: 1f1b\n  tp_mode: REDUCE_SCATTER\n"
        f"  tp_linear_async_communication: true\n  recompute_layer: {again}\n"
        f"tokens:\n  micro_batch_size: {conf.micro_batch}\n"
        f"  batch_accumulation_per_replica: {conf.rounds}\n"
        f"  sequence_length: {conf.sequence}\n"
    )


LAUNCHERS: dict[str, tuple[str, Callable[[LaunchProblem, Configuration], str]]] = {
    "Megatron-LM": ("megatron.txt", megatron),
    "torchtitan": ("torchtitan.toml", torchtitan),
    "DeepSpeed": ("deepspeed.json", deepspeed),
    "nanotron": ("nanotron.yaml", nanotron),
}


def launch_files(problem: LaunchProblem, conf: Configuration) -> dict[str, dict[str, str]]:
    """Return, by launcher, its file and text, or why it has none (`refused`)."""
    found: dict[str, dict[str, str]] = {}
    for name, (file, write) in LAUNCHERS.items():
        try:
            found[name] = {"file": file, "text": write(problem, conf)}
        except Refused as error:
            found[name] = {"refused": str(error)}
    return found


def write_launchers(problem: LaunchProblem, conf: Configuration, folder: Path) -> None:
    """Write what launchers can express, and ranks.json with all groups."""
    write_json(folder / "ranks.json", rank_groups(conf), None)
    for item in launch_files(problem, conf).values():
        if "text" in item:
            write_text(folder / item["file"], item["text"])
