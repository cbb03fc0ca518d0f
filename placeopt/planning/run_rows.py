"""Rows of tables of training runs: what a row says, what is assumed, what it lacks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from placeopt.model.errors import InputError
from placeopt.plans.calibration import family
from placeopt.plans.configuration import Configuration
from placeopt.plans.gpus import Gpu, find_gpu
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
    framework = family(str(row.get("framework") or ""))
    gpu, said = find_gpu(str(row.get("gpu") or ""), number(row, "gpu_memory_gb"))
    notes += [said] if said else []
    shape = _shape(row, notes)
    sequence = _count(row, "seq_len")
    if sequence is None:
        raise InputError("lacks seq_len")
    conf, unsaid = _configuration(row, framework, gpu, shape, sequence, notes)
    oom = number(row, "oom")
    return Run(
        shape,
        gpu,
        conf,
        tuple(notes),
        unsaid,
        not str(row.get("sharding") or "").strip(),
        number(row, "step_s") or None,
        number(row, "peak_mem_gb") or None,
        None if oom is None else bool(oom),
        str(row.get("source") or ""),
        "offload" in str(row.get("sharding") or "").lower(),
    )


def _shape(row: dict[str, Any], notes: list[str]) -> ModelShape:
    name, params = str(row.get("model") or "").strip(), number(row, "params_b")
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


PRECISION_WORDS = (
    *(("fp4", name) for name in ("fp4",)),
    *(("fp8", name) for name in ("fp8", "float8", "e4m3")),
    *(("bf16", name) for name in ("bf16", "bfloat16")),
    *(("fp16", name) for name in ("fp16", "float16", "half")),
    ("tf32", "tf32"),
    *(("fp32", name) for name in ("fp32", "float32", "single")),
)


def _precision(text: str, notes: list[str]) -> str:
    found = next((name for name, word in PRECISION_WORDS if word in text.lower()), None)
    if found is None and text.strip():
        notes.append(f"precision '{text}' is not known: bf16 assumed")
    return found or "bf16"


def _sharding(text: str, framework: str, per_host: int, notes: list[str]) -> tuple[str, int]:
    """Return the level of sharding and its group, 0 for all replicas."""
    plain = re.sub(r"[^a-z0-9:]", "", text.lower())
    group = re.search(r"(?:zero\d:|fsdp)(\d+)$", plain)
    size = int(group.group(1)) if group else 0
    level = re.search(r"(?:zero|stage)+([0-3])|^([0-3])$", plain)
    if "gradop" in plain:
        return "zero2", 0
    if level and (level.group(1) or level.group(2)) != "3":
        said = level.group(1) or level.group(2)
        return ("none", 0) if said == "0" else (f"zero{said}", size if said == "1" else 0)
    if "distributed" in plain:
        return "zero1", size
    if "hsdp" in plain or "hybrid" in plain:
        return "zero3", per_host
    if level or any(word in plain for word in ("fsdp", "fullshard", "fullysharded", "zeropp")):
        return "zero3", size if size > 2 else 0
    if not plain and framework == "megatron":
        return "zero1", 0
    if plain and plain not in ("none", "no", "ddp", "false", "replicate"):
        notes.append(f"sharding '{text}' is not known: none assumed")
    return "none", 0


UNSAID = ("", "n/a", "na", "nan", "-", "?", "unknown")


def _recompute(text: str) -> str:
    text = text.lower()
    if text in (*UNSAID, "none", "no", "false", "0", "off", "disabled"):
        return "none"
    return "selective" if "select" in text or "flash" in text or "attn" in text else "full"


COUNTS = ("n_gpus", "global_batch", "micro_batch", "grad_accum", "tp", "pp", "vp", "dp", "cp", "ep")


def _configuration(
    row: dict[str, Any],
    framework: str,
    gpu: Gpu,
    shape: ModelShape,
    sequence: int,
    notes: list[str],
) -> tuple[Configuration, bool]:
    for key in COUNTS:
        text = str(row.get(key) or "").strip()
        if text.lower() not in (*UNSAID, "none", "0", "1") and _count(row, key) is None:
            notes.append(f"{key} '{text}' is no count: not used")
    degrees = {key: _count(row, key) or 1 for key in ("tp", "pp", "vp", "cp", "ep")}
    if degrees["pp"] * degrees["vp"] > shape.layers + 2:  # embedding and head may have their own
        raise InputError(
            f"pp {degrees['pp']} x vp {degrees['vp']} are more stages than {shape.layers} layers"
        )
    devices, data = _count(row, "n_gpus"), _count(row, "dp")
    left = (devices or 0) / (degrees["pp"] * degrees["cp"] * (data or 1))
    if data and _count(row, "tp") is None and left > 1 and left <= gpu.per_host:
        degrees["tp"] = int(left)
    inner = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if devices is None and data is None:
        raise InputError("lacks n_gpus and dp")
    if not str(row.get("tp") or "").strip():
        notes.append(f"tp {degrees['tp']} assumed")
    data = data or max(1, (devices or 1) // inner)
    if devices and devices != data * inner:
        notes.append(f"{devices} devices are not tp pp dp cp = {data * inner}")
    micro, accumulated = _count(row, "micro_batch"), _count(row, "grad_accum")
    batch = _count(row, "global_batch")
    if batch is None and micro:
        batch = micro * (accumulated or degrees["pp"]) * data
        notes += [] if accumulated else [f"global_batch {batch} assumed"]
    if batch is None:
        raise InputError("lacks global_batch")
    plain = str(row.get("framework") or "").lower()
    if degrees["vp"] == 1 and "interleaved" in str(row.get("schedule") or "").lower():
        degrees["vp"] = 2
        notes.append("vp 2 assumed: the schedule is interleaved")
    if micro is None:
        # torchtitan cuts a replica's batch into as many micro-batches as there are stages
        parts = degrees["pp"] * degrees["vp"] if "torchtitan" in plain else batch
        micro = max(1, batch // data // (accumulated or parts))
        notes.append(f"micro-batch {micro} assumed")
    per_host = min(_count(row, "gpus_per_node") or gpu.per_host, max(devices or inner * data, 1))
    precision = _precision(str(row.get("precision") or ""), notes)
    text = str(row.get("sharding") or "").strip()
    sharding, group = _sharding(text, framework, per_host, notes)
    # before Hopper, fp16 or the Megatron of DeepSpeed mean a time without fused attention
    early = "fp8" not in gpu.peaks
    old = early and framework == "megatron" and precision == "fp16"
    unfused = old or gpu.name.startswith("V100") or (early and framework == "megatron-deepspeed")
    if degrees["ep"] > 1 and not shape.experts:
        notes.append("ep is given, but the model has no experts that are known")
        degrees["ep"] = 1
    if shape.experts and _count(row, "ep") is None and degrees["tp"] == 1:
        degrees["ep"] = min(MOST_EXPERT, math.gcd(shape.experts, data))
        notes.append(f"ep {degrees['ep']} assumed: experts are spread over the replicas")
    experts = min(degrees["ep"], max(1, shape.experts), max(1, data * degrees["cp"]))
    said = str(row.get("recompute") or "").strip()
    said = "" if said.lower() in UNSAID else said
    if batch % (data * min(micro, max(1, batch // data))):
        notes.append(f"{batch} sequences are not whole micro-batches of {micro} on {data} replicas")
    said_precision = str(row.get("precision") or "").lower()
    short = framework in ("megatron-deepspeed", "fsdp", "internevo") or "pure" in text.lower()
    short = short or "nemo" in plain or "bridge" in plain
    short = short or (precision == "fp16" and sharding in ("zero2", "zero3"))
    return (
        Configuration(
            sequence,
            batch,
            degrees["tp"],
            degrees["pp"],
            degrees["vp"] if degrees["pp"] > 1 else 1,
            data,
            degrees["cp"],
            experts,
            min(micro, max(1, batch // data)),
            per_host,
            _recompute(said),
            sharding,
            group,
            precision,
            sequence_parallel=framework != "megatron-deepspeed" and not old,
            flash=not unfused,
            framework=framework,
            adapters=str(row.get("kind") or "").lower() in ("lora", "qlora", "peft"),
            main_gradients=2 if short else 4,
            compiled=framework == "jax" or "compile" in said_precision + plain,
            triton="composer" in plain or "foundry" in plain,
            async_tensor="asynctp" in said_precision,
        ),
        not said,
    )
