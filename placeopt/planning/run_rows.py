"""Rows of tables of training runs: what a row says, what is assumed, what it lacks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from placeopt.instances.clusters.gpus import Gpu, find_gpu
from placeopt.model.errors import InputError
from placeopt.plans.calibration import family, launcher_of
from placeopt.plans.configuration import Configuration
from placeopt.plans.model_shapes import ModelShape, counted_shape, named_shape, shape_of

COUNT_TOLERANCE = 0.15
"""A public shape whose parameters differ from the row's by more is another model."""


MOST_COUNT = 10**9
"""A larger count is a slip: of tokens, say, in the column of sequences."""

MOST_EXPERT = 64
"""Ranks that experts are spread over at most where a row does not say it: no plan searched has
more."""


@dataclass(frozen=True)
class Run:
    """A row that can be priced.

    Attributes
    ----------
    notes : what was assumed. unsaid_recompute, unsaid_sharding : whether the row says nothing of
    them. seconds, memory_gb, oom : measured, None where the row does not say. source : whose rows
    it is among; they share a noise. offloads : whether states are said to be in the host's memory.
    launcher : its name without release.
    """

    shape: ModelShape
    gpu: Gpu
    conf: Configuration
    notes: tuple[str, ...]
    unsaid_recompute: bool
    unsaid_sharding: bool
    seconds: float | None
    memory_gb: float | None
    oom: bool | None
    source: str = ""
    offloads: bool = False
    launcher: str = ""

    @property
    def shares(self) -> bool:
        """Whether optimizer states are shared out though the row does not say, as
        Megatron-DeepSpeed does, at no price of time.
        """
        return self.unsaid_sharding and self.conf.framework == "megatron-deepspeed"


def number(row: dict[str, Any], key: str) -> float | None:
    """Return a finite number of a row, None where there is none."""
    text = str(row.get(key) or "").strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _count(row: dict[str, Any], key: str) -> int | None:
    value = number(row, key)
    thousands = re.fullmatch(r"(\d+)\s*k", str(row.get(key) or "").strip().lower())
    if thousands:
        value = 1024.0 * int(thousands.group(1))
    return int(value) if value is not None and 1 <= value <= MOST_COUNT else None


def read_run(row: dict[str, Any]) -> Run:
    """Return the run of a row; columns as in the README of data/measured.

    Raises
    ------
    InputError
        If the row lacks something that nothing stands for; the message names it.
    """
    notes: list[str] = []
    framework = family(_text(row, "framework"))
    gpu, said = find_gpu(_text(row, "gpu"), number(row, "gpu_memory_gb"))
    notes += [said] if said else []
    shape = _shape(row, notes)
    conf, oom = _configuration(row, framework, gpu, shape, notes), number(row, "oom")
    return Run(
        shape,
        gpu,
        conf,
        tuple(notes),
        not _text(row, "recompute"),
        not _text(row, "sharding"),
        number(row, "step_s") or None,
        number(row, "peak_mem_gb") or None,
        None if oom is None else bool(oom),
        _text(row, "source"),
        "offload" in _text(row, "sharding").lower(),
        launcher_of(_text(row, "framework")),
    )


def _shape(row: dict[str, Any], notes: list[str]) -> ModelShape:
    name, params = _text(row, "model"), number(row, "params_b")
    layers, hidden = _count(row, "layers"), _count(row, "hidden")
    named = named_shape(name) if name else None
    if layers and hidden:
        if named and (named.layers, named.hidden) == (layers, hidden):
            return named
        shape = shape_of(name, layers, hidden, _count(row, "heads") or 0)
        shape = replace(shape, tied=True)
        inner = (params or 0) * 1e9 - shape.embedding_parameters
        ffn = (inner / layers - shape.attention_parameters) / 2 / hidden
        return replace(shape, ffn=int(ffn)) if hidden < ffn < 16 * hidden else shape
    if named and (not params or abs(named.parameters / params / 1e9 - 1) < COUNT_TOLERANCE):
        return named
    size = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])(?![a-z])", name.lower())
    if not params and size:
        params = float(size.group(1)) * {"m": 1e-3, "b": 1.0, "t": 1e3}[size.group(2)]
    if not params:
        raise InputError(f"lacks layers and hidden, and '{name}' is no model that is known by name")
    notes.append(f"shape of a GPT with {params:.4g}e9 parameters assumed")
    return counted_shape(params * 1e9, name)


PRECISION_WORDS = {
    "fp4": "fp4",
    "fp8|float8|e4m3": "fp8",
    "bf16|bfloat16": "bf16",
    "fp16|float16|half": "fp16",
    "tf32": "tf32",
    "fp32|float32|single": "fp32",
}


def _precision(text: str, notes: list[str]) -> str:
    words = PRECISION_WORDS.items()
    found = next((name for word, name in words if re.search(word, text.lower())), None)
    if found is None and text:
        notes.append(f"precision '{text}' is not known: bf16 assumed")
    return found or "bf16"


def _sharding(text: str, framework: str, per_host: int, notes: list[str]) -> tuple[str, int]:
    """Return the level of sharding and its group, 0 for all replicas."""
    plain = re.sub(r"[^a-z0-9:]", "", text.lower())
    group = re.search(r"(?:zero\d:|fsdp)(\d+)$", plain)
    size = int(group.group(1)) if group else 0
    stage = re.search(r"(?:zero|stage|^)([0-3])(?!\d)", plain)
    level = stage.group(1) if stage else ""
    if "gradop" in plain or level == "2":
        return "zero2", 0
    if level == "1" or "distributed" in plain or (not plain and framework == "megatron"):
        return "zero1", size
    if "hsdp" in plain or "hybrid" in plain:
        return "zero3", per_host
    if level == "3" or "++" in text or re.search("fsdp|fullshard|fullysharded", plain):
        return "zero3", size if size > 2 else 0
    if level != "0" and plain not in ("", "none", "no", "ddp", "false", "replicate"):
        notes.append(f"sharding '{text}' is not known: none assumed")
    return "none", 0


UNSAID = ("", "n/a", "na", "nan", "-", "?", "unknown")


def _recompute(text: str) -> str:
    text = text.lower()
    if text in ("", "none", "no", "false", "0", "off", "disabled"):
        return "none"
    return "selective" if "select" in text or "flash" in text or "attn" in text else "full"


COUNTS = ("n_gpus", "global_batch", "micro_batch", "grad_accum", "tp", "pp", "vp", "dp", "cp", "ep")


def _text(row: dict[str, Any], key: str) -> str:
    text = str(row.get(key) or "").strip()
    return "" if text.lower() in UNSAID else text


def _degrees(row: dict[str, Any], gpu: Gpu, shape: ModelShape, notes: list[str]) -> dict[str, int]:
    """Return tp, pp, vp, cp and dp; the row may leave out one of devices, replicas and tensor
    ranks that the others tell.
    """
    found = {key: _count(row, key) or 1 for key in ("tp", "pp", "vp", "cp")}
    if found["vp"] == 1 and "interleaved" in _text(row, "schedule").lower():
        found["vp"] = 2
        notes.append("vp 2 assumed: the schedule is interleaved")
    found["vp"] = found["vp"] if found["pp"] > 1 else 1
    if found["pp"] * found["vp"] > shape.layers + 2:  # embedding and head may have their own
        raise InputError(
            f"pp {found['pp']} x vp {found['vp']} are more stages than {shape.layers} layers"
        )
    devices, data = _count(row, "n_gpus"), _count(row, "dp")
    if devices is None and data is None:
        raise InputError("lacks n_gpus and dp")
    if _count(row, "tp") is None:
        left = (devices or 0) // (found["pp"] * found["cp"] * (data or devices or 1))
        found["tp"] = left if 1 < left <= gpu.per_host else 1
        notes.append(f"tp {found['tp']} assumed")
    inner = found["tp"] * found["pp"] * found["cp"]
    found["dp"] = data or max(1, (devices or 1) // inner)
    if devices and devices != found["dp"] * inner:
        notes.append(f"{devices} devices are not tp pp dp cp = {found['dp'] * inner}")
    return found


def _sizes(row: dict[str, Any], degrees: dict[str, int], notes: list[str]) -> tuple[int, int]:
    """Return the sequences of a step and of a micro-batch."""
    micro, accumulated = _count(row, "micro_batch"), _count(row, "grad_accum")
    batch, data = _count(row, "global_batch"), degrees["dp"]
    if batch is None and micro:
        batch = micro * (accumulated or degrees["pp"]) * data
        notes += [] if accumulated else [f"global_batch {batch} assumed"]
    if batch is None:
        raise InputError("lacks global_batch")
    if micro is None:
        # torchtitan cuts a replica's batch into as many micro-batches as there are stages
        titan = "torchtitan" in _text(row, "framework").lower()
        parts = degrees["pp"] * degrees["vp"] if titan else batch
        micro = max(1, batch // data // (accumulated or parts))
        notes.append(f"micro-batch {micro} assumed")
    micro = min(micro, max(1, batch // data))
    if batch % (data * micro):
        notes.append(f"{batch} sequences are not whole micro-batches of {micro} on {data} replicas")
    return batch, micro


def _expert_degree(
    row: dict[str, Any], shape: ModelShape, degrees: dict[str, int], notes: list[str]
) -> int:
    degree, ranks = _count(row, "ep"), degrees["dp"] * degrees["cp"]
    if not shape.experts:
        if degree and degree > 1:
            notes.append("ep is given, but the model has no experts that are known")
        return 1
    if degree is None and degrees["tp"] == 1:
        degree = min(MOST_EXPERT, math.gcd(shape.experts, degrees["dp"]))
        notes.append(f"ep {degree} assumed: experts are spread over the replicas")
    return min(degree or 1, shape.experts, ranks)


def _kernels(launcher: str, framework: str, precision: str, said: str, gpu: Gpu) -> dict[str, bool]:
    """Return how the kernels of a launcher differ; before Hopper, fp16 or the Megatron of
    DeepSpeed mean a time without fused attention.
    """
    early = "fp8" not in gpu.peaks
    deepspeed = framework == "megatron-deepspeed"
    old = early and framework == "megatron" and precision == "fp16"
    return {
        "sequence_parallel": not (deepspeed or old),
        "flash": not (old or (early and deepspeed) or gpu.name.startswith("V100")),
        "compiled": framework == "jax" or "compile" in said + launcher,
        "triton": "composer" in launcher or "foundry" in launcher,
        "async_tensor": "asynctp" in said,
    }


def _configuration(
    row: dict[str, Any], framework: str, gpu: Gpu, shape: ModelShape, notes: list[str]
) -> Configuration:
    sequence = _count(row, "seq_len")
    if sequence is None:
        raise InputError("lacks seq_len")
    for key in COUNTS:
        text = _text(row, key)
        if text.lower() not in ("none", "0", "1") and text and _count(row, key) is None:
            notes.append(f"{key} '{text}' is no count: not used")
    degrees = _degrees(row, gpu, shape, notes)
    batch, micro = _sizes(row, degrees, notes)
    devices = _count(row, "n_gpus") or math.prod(degrees.values()) // degrees["vp"]
    per_host = min(_count(row, "gpus_per_node") or gpu.per_host, devices)
    said, launcher = _text(row, "precision"), _text(row, "framework").lower()
    precision, text = _precision(said, notes), _text(row, "sharding")
    sharding, group = _sharding(text, framework, per_host, notes)
    short = framework in ("megatron-deepspeed", "fsdp", "internevo") or "pure" in text.lower()
    short = short or "nemo" in launcher or "bridge" in launcher
    short = short or (precision == "fp16" and sharding in ("zero2", "zero3"))
    return Configuration(
        sequence,
        batch,
        degrees["tp"],
        degrees["pp"],
        degrees["vp"],
        degrees["dp"],
        degrees["cp"],
        _expert_degree(row, shape, degrees, notes),
        micro,
        per_host,
        _recompute(_text(row, "recompute")),
        sharding,
        group,
        precision,
        framework=framework,
        adapters=_text(row, "kind").lower() in ("lora", "qlora", "peft"),
        main_gradients=2 if short else 4,
        **_kernels(launcher, framework, precision, said.lower(), gpu),
    )
