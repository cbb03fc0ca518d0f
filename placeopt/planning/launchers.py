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

from placeopt.model.errors import InputError, Refused
from placeopt.model.files import write_text
from placeopt.plans.model_shapes import stage_layers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from placeopt.planning.launch_search import LaunchProblem
    from placeopt.plans.configuration import Configuration


def rank_groups(conf: Configuration) -> dict[str, Any]:
    """Return the ranks of every group, in Megatron's order: tensor, context, data, pipeline.

    Expert groups are neighbours among the context and data ranks of a stage.
    """
    t, c, d, p = conf.tensor, conf.context, conf.data, conf.pipeline

    def rank(i: int, j: int, k: int, stage: int) -> int:
        return i + t * (j + c * (k + d * stage))

    tensor, context, data, pipeline, expert = [], [], [], [], []
    for stage in range(p):
        tensor += [[rank(i, j, k, stage) for i in range(t)] for k in range(d) for j in range(c)]
        context += [[rank(i, j, k, stage) for j in range(c)] for k in range(d) for i in range(t)]
        data += [[rank(i, j, k, stage) for k in range(d)] for j in range(c) for i in range(t)]
        for i in range(t):
            ranks = [rank(i, j, k, stage) for k in range(d) for j in range(c)]
            expert += [ranks[n : n + conf.expert] for n in range(0, c * d, conf.expert)]
    for k in range(d):
        for j in range(c):
            pipeline += [[rank(i, j, k, stage) for stage in range(p)] for i in range(t)]
    return {
        "world_size": conf.devices,
        "order": "tp-cp-dp-pp",
        "tensor": tensor,
        "context": context,
        "data": data,
        "pipeline": pipeline,
        "expert": expert,
    }


def megatron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the arguments of Megatron-LM's pretrain_gpt.py that a plan decides."""
    shape = problem.shape
    said: list[tuple[str, Any]] = [
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
    ]
    flags = ["swiglu"] if shape.gated else []
    if shape.kv_heads != shape.heads:
        flags.append("group-query-attention")
        said.append(("num-query-groups", shape.kv_heads))
    if not shape.tied:
        flags.append("untie-embeddings-and-output-weights")
    if conf.tensor > 1:
        flags.append("sequence-parallel")
    sizes = stage_layers(shape.layers, conf.pipeline * conf.chunks)
    if len(set(sizes)) > 1:  # embedding and head stand for a layer each
        flags += ["account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"]
    if conf.chunks > 1 and len(set(sizes)) > 1:
        said.append(("num-virtual-stages-per-pipeline-rank", conf.chunks))
    elif conf.chunks > 1:
        said.append(("num-layers-per-virtual-pipeline-stage", max(sizes)))
    if shape.experts:
        said += [
            ("num-experts", shape.experts),
            ("moe-router-topk", shape.active),
            ("moe-ffn-hidden-size", shape.expert_ffn),
            ("expert-model-parallel-size", conf.expert),
        ]
        flags.append("moe-grouped-gemm")
        if shape.shared_ffn:
            said.append(("moe-shared-expert-intermediate-size", shape.shared_ffn))
    if conf.recompute == "full":
        said += [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", 1),
        ]
    elif conf.recompute == "selective":
        said.append(("recompute-granularity", "selective"))
    if conf.sharding == "zero1":
        flags += ["use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"]
    elif conf.sharding in ("zero2", "zero3"):
        if conf.shard_group:
            raise Refused("FSDP within a host alone is not among its arguments here")
        flags += ["use-megatron-fsdp", "use-distributed-optimizer"]
        flags.append("no-gradient-accumulation-fusion")
        said.append(("ckpt-format", "fsdp_dtensor"))
        level = {"zero2": "optim_grads", "zero3": "optim_grads_params"}[conf.sharding]
        said.append(("data-parallel-sharding-strategy", level))
    flags += {"bf16": ["bf16"], "fp16": ["fp16"], "fp8": ["bf16"]}.get(conf.precision, [])
    if conf.precision == "fp8":
        said.append(("fp8-format", "hybrid"))
    if conf.precision == "fp4":
        raise Refused("4-bit recipes differ by release; none is written")
    return "".join([f"--{k} {v}\n" for k, v in said] + [f"--{flag}\n" for flag in flags])


def torchtitan(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the tables of torchtitan's TOML that a plan decides."""
    if conf.sharding == "zero1":
        raise Refused("it shards weights (FSDP) or nothing, not optimizer states alone (ZeRO 1)")
    if conf.precision in ("fp16", "fp4"):
        raise Refused(f"it trains in bf16 or fp8, not in {conf.precision}")
    sharded = conf.sharding != "none"
    group = (conf.shard_group or conf.data) if sharded else 1
    if conf.expert > 1 and not conf.context <= conf.expert <= group * conf.context:
        raise Refused(
            f"its expert degree lies between the context degree, {conf.context}, and the ranks "
            f"that share weights out, {group * conf.context}; the plan's is {conf.expert}"
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
    mode = f'mode = "{conf.recompute}"'
    lines += ["", "[activation_checkpoint]", mode]
    if conf.recompute == "selective":
        lines.append('selective_ac_option = "op"')
    if conf.precision == "fp8":
        lines += ["", "[model]", 'converters = ["float8"]']
    return "\n".join(lines) + "\n"


def deepspeed(problem: LaunchProblem, conf: Configuration) -> str:
    """Return DeepSpeed's configuration."""
    if conf.chunks > 1:
        raise Refused("its pipeline engine has no interleaved schedule")
    if problem.shape.layers % conf.pipeline:
        raise Refused(f"{problem.shape.layers} layers need a module list of your own")
    if conf.context > 1:
        raise Refused("its configuration has no context parallelism")
    if conf.expert > 1:
        raise Refused("expert parallelism is set in the model's code, not in its configuration")
    if conf.precision in ("fp8", "fp4"):
        raise Refused(f"its configuration has no {conf.precision}")
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
            "--num-layers": problem.shape.layers,
        }
    return json.dumps(body, indent=1) + "\n"


def nanotron(problem: LaunchProblem, conf: Configuration) -> str:
    """Return the parts of nanotron's YAML that a plan decides."""
    if conf.chunks > 1:
        raise Refused("it has no interleaved schedule")
    if problem.shape.layers % conf.pipeline:
        raise Refused("it balances unequal stages by its own costs")
    if conf.sharding in ("zero2", "zero3"):
        raise Refused(f"it has ZeRO 1, not {conf.sharding}")
    if conf.recompute == "selective":
        raise Refused("it recomputes whole layers or nothing")
    if conf.precision not in ("bf16", "fp32"):
        raise Refused(f"no {conf.precision} is set by its configuration here")
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[conf.precision]
    again = str(conf.recompute == "full").lower()
    return (
        f"model:\n  dtype: {dtype}\n"
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
