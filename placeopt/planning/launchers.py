"""Launch files of a plan for Megatron-LM, torchtitan, DeepSpeed and nanotron, with all rank groups.

What a launcher cannot express is refused by name: the answer says which file was not written, and
why. Names were checked against public source, the newest stored version of it:

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
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError, Refused
from placeopt.model.files import write_text
from placeopt.plans.model_shapes import stage_layers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from placeopt.planning.launch_search import LaunchProblem
    from placeopt.plans.configuration import Configuration
    from placeopt.plans.model_shapes import ModelShape

Argument = tuple[str, Any]
"""Name and value of an argument; a flag is True, False where it is not set."""


def rank_groups(conf: Configuration) -> dict[str, Any]:
    """Return the ranks of every group, in Megatron's order: tensor, context, data, pipeline.

    Expert groups are neighbours among the context and data ranks of a stage.
    """
    shape = conf.pipeline, conf.data, conf.context, conf.tensor
    ranks = np.arange(conf.devices).reshape(shape)

    def groups(axis: int) -> list[list[int]]:
        """Return the ranks along an axis, for each choice of the others."""
        found: list[list[int]] = np.moveaxis(ranks, axis, -1).reshape(-1, shape[axis]).tolist()
        return found

    # the context and data ranks of each stage and tensor rank
    sharing = np.moveaxis(ranks, 3, 1).reshape(-1, conf.data * conf.context).tolist()
    return {
        "world_size": conf.devices,
        "order": "tp-cp-dp-pp",
        "tensor": groups(3),
        "context": groups(2),
        "data": groups(1),
        "pipeline": groups(0),
        "expert": [
            row[n : n + conf.expert] for row in sharing for n in range(0, len(row), conf.expert)
        ],
    }


def megatron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the arguments of Megatron-LM's pretrain_gpt.py that a plan decides."""
    shape = problem.shape
    grouped = shape.kv_heads != shape.heads
    said: list[Argument] = [
        ("num-layers", shape.layers),
        ("hidden-size", shape.hidden),
        ("ffn-hidden-size", shape.ffn),
        ("num-attention-heads", shape.heads),
        ("kv-channels", shape.head_dim),
        ("seq-length", conf.sequence),
        ("tensor-model-parallel-size", conf.tensor),
        ("pipeline-model-parallel-size", conf.pipeline),
        ("context-parallel-size", conf.context),
        ("micro-batch-size", conf.micro_batch),
        ("global-batch-size", conf.batch),
        ("swiglu", bool(shape.gated)),
        ("group-query-attention", grouped),
        ("num-query-groups", grouped and shape.kv_heads),
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
    return [
        ("num-experts", shape.experts),
        ("moe-router-topk", shape.active),
        ("moe-ffn-hidden-size", shape.expert_ffn),
        ("expert-model-parallel-size", conf.expert),
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
    group = (conf.shard_group or conf.data) if sharded else 1
    most = group * conf.context
    _refuse(
        (
            conf.sharding == "zero1",
            "it shards weights (FSDP) or nothing, not optimizer states alone (ZeRO 1)",
        ),
        (
            conf.precision in ("fp16", "fp4"),
            f"it trains in bf16 or fp8, not in {conf.precision}",
        ),
        (
            conf.expert > 1 and not conf.context <= conf.expert <= most,
            f"its expert degree lies between the context degree, {conf.context}, and the ranks "
            f"that share weights out, {most}; the plan's is {conf.expert}",
        ),
    )
    local = conf.micro_batch * (conf.rounds if conf.pipeline > 1 else 1)
    lines = [
        "[training]",
        f"local_batch_size = {local}",
        f"global_batch_size = {conf.batch}",
        f"seq_len = {conf.sequence}",
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
        (conf.chunks > 1, "its pipeline engine has no interleaved schedule"),
        (layers % conf.pipeline > 0, f"{layers} layers need a module list of your own"),
        (conf.context > 1, "its configuration has no context parallelism"),
        (
            conf.expert > 1,
            "expert parallelism is set in the model's code, not in its configuration",
        ),
        (conf.precision in ("fp8", "fp4"), f"its configuration has no {conf.precision}"),
    )
    body: dict[str, Any] = {
        "train_batch_size": conf.batch,
        "train_micro_batch_size_per_gpu": conf.micro_batch,
        "gradient_accumulation_steps": conf.rounds,
        "zero_optimization": {"stage": 0 if conf.sharding == "none" else int(conf.sharding[-1])},
    }
    if conf.shard_group:
        body["zero_optimization"]["mics_shard_size"] = conf.shard_group
    if conf.precision in ("bf16", "fp16"):
        body[conf.precision] = {"enabled": True}
    if conf.tensor > 1 or conf.pipeline > 1:
        body["beside"] = {  # arguments of Megatron-DeepSpeed; not DeepSpeed's own
            "--tensor-model-parallel-size": conf.tensor,
            "--pipeline-model-parallel-size": conf.pipeline,
            "--num-layers": layers,
        }
    return json.dumps(body, indent=1) + "\n"


def nanotron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the parts of nanotron's YAML that a plan decides."""
    dtypes = {"bf16": "bfloat16", "fp32": "float32"}
    unequal = problem.shape.layers % conf.pipeline > 0
    _refuse(
        (conf.chunks > 1, "it has no interleaved schedule"),
        (unequal, "it balances unequal stages by its own costs"),
        (conf.sharding in ("zero2", "zero3"), f"it has ZeRO 1, not {conf.sharding}"),
        (conf.recompute == "selective", "it recomputes whole layers or nothing"),
        (conf.precision not in dtypes, f"no {conf.precision} is set by its configuration here"),
    )
    again = str(conf.recompute == "full").lower()
    return (
        f"model:\n  dtype: {dtypes[conf.precision]}\n"
        f"optimizer:\n  zero_stage: {int(conf.sharding == 'zero1')}\n"
        f"parallelism:\n  dp: {conf.data}\n  pp: {conf.pipeline}\n  tp: {conf.tensor}\n"
        f"  context_parallel_size: {conf.context}\n  expert_parallel_size: {conf.expert}\n"
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


def write_launchers(problem: LaunchProblem, conf: Configuration, folder: Path) -> list[Path]:
    """Write what launchers can express, and ranks.json with all groups."""
    if not folder.is_dir():
        raise InputError(f"'{folder}': expected a folder")
    written = [write_text(folder / "ranks.json", json.dumps(rank_groups(conf)) + "\n")]
    for item in launch_files(problem, conf).values():
        if "text" in item:
            written.append(write_text(folder / item["file"], item["text"]))
    return written
