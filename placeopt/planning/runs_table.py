"""Tables of training runs: what a row says, what is assumed, what it lacks; and, for `plan --runs`,
the step time and memory of every row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from placeopt.instances.clusters.hardware import Gpu, find_gpu
from placeopt.model.errors import InputError
from placeopt.model.files import TRUTH, Data, csv_columns, csv_text, read_text, write_text
from placeopt.plans.calibration import (
    RUN_WORDS,
    Calibration,
    default_calibration,
    family,
    launcher_of,
)
from placeopt.plans.configuration import RECOMPUTE, SHARDING, Configuration
from placeopt.plans.model_shapes import (
    ModelShape,
    counted_shape,
    named_shape,
    said_billions,
    shape_of,
)
from placeopt.plans.step_model import MemoryParts, StepModel, StepParts, memory_parts

MOST_COUNT = 10**9
"""A larger count is a slip: of tokens, say, in the column of sequences."""

MOST_BILLIONS = 1e5
"""No model has more parameters, in 1e9: what is larger counts single ones."""

MOST_MEMORY = 2048
"""No device has more memory, in GiB: what is larger counts MiB."""

PREDICTED = (
    "predicted_step_s",
    "predicted_low_s",
    "predicted_high_s",
    "predicted_memory_gb",
    "predicted_oom",
)
ADDED = (*PREDICTED, "note")
OFFLOADED = "offloading to the host assumed: nothing else fits"
USABLE = 0.99
"""Part of the memory as sold that drivers report, to a hundredth: 16160 MiB on V100-16, 32510 on
V100-32, 81251 on A100-80, 81559 on H100."""


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
    source: str
    offloads: bool
    launcher: str

    @property
    def shares(self) -> bool:
        """Whether optimizer states are shared out though the row does not say, as
        Megatron-DeepSpeed does, at no price of time.
        """
        return self.unsaid_sharding and self.conf.framework == "megatron-deepspeed"


def _without_unit(row: Data, key: str) -> tuple[str, float]:
    """Return what a row says without a unit, in small letters, and the unit."""
    text = str(row.get(key) or "").strip().lower()
    for unit, factor in RUN_WORDS["units"].get(key, {}).items():
        plain = re.fullmatch(r"(.*[\d.]k?)\s*" + unit, text)
        if plain:
            return plain[1], factor
    return text, 1.0


def number(row: Data, key: str) -> float | None:
    """Return a finite number of a row, None where there is none.

    One comma with other than three digits behind it stands for the point.
    """
    text, unit = _without_unit(row, key)
    if re.fullmatch(r"[\d.]*\.\d{3},\d+", text):  # 1.234,5
        text = text.replace(".", "").replace(",", ".")
    decimal = re.fullmatch(r"\d*,(\d{1,2}|\d{4,})", text)
    text = text.replace(",", "." if decimal else "")
    try:
        value = float(text) * unit
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _count(row: Data, key: str) -> int | None:
    value = number(row, key)
    thousands = re.fullmatch(r"(\d+)\s*k", _without_unit(row, key)[0])
    if thousands:
        value = 1024.0 * float(thousands[1])
    if value is None or not (1 <= value <= MOST_COUNT and value.is_integer()):
        return None
    return int(value)


def _out_of_memory(row: Data) -> bool | None:
    """Return whether a row ran out of memory, None where it does not say."""
    found = number(row, "oom")
    return TRUTH.get(_text(row, "oom").lower()) if found is None else bool(found)


def read_run(row: Data) -> Run:
    """Return the run of a row; columns as in the README of data/measured.

    Raises
    ------
    InputError
        If the row lacks something that nothing stands for; the message names it.
    """
    framework = family(_text(row, "framework"))
    notes: list[str] = []
    gpu, said = find_gpu(_text(row, "gpu"), _memory(row, "gpu_memory_gb", notes))
    notes += [said] if said else []
    shape = _shape(row, notes)
    conf = _configuration(row, framework, gpu, shape, notes)
    peak = _memory(row, "peak_mem_gb", notes)
    return Run(
        shape,
        gpu,
        conf,
        tuple(notes),
        not _text(row, "recompute"),
        not _text(row, "sharding"),
        number(row, "step_s") or None,
        peak or None,
        _out_of_memory(row),
        _text(row, "source"),
        "offload" in _text(row, "sharding").lower(),
        launcher_of(_text(row, "framework")),
    )


def _shape(row: Data, notes: list[str]) -> ModelShape:
    """Return the shape of a row's model; a public one whose parameters differ from the row's by
    more than 15 % is another model.
    """
    name, params = _text(row, "model"), _billions(row, notes)
    layers, hidden = _count(row, "layers"), _count(row, "hidden")
    named = named_shape(name)
    if layers and hidden:
        if named and (named.layers, named.hidden) == (layers, hidden):
            return named
        shape = _sized_shape(row, layers, hidden, params)
        found = shape.parameters / 1e9
        if params and abs(found / params - 1) > 0.15:
            notes.append(f"params_b {params:g}: {layers} layers of {hidden} taken as {found:.4g}e9")
        return shape
    if named and (not params or abs(named.parameters / params / 1e9 - 1) < 0.15):
        return named
    params = params or said_billions(name)
    if not 0 < params <= MOST_BILLIONS:
        raise InputError(f"lacks layers and hidden, and '{name}' is no model that is known by name")
    notes.append(f"shape of a GPT with {params:.4g}e9 parameters assumed")
    return counted_shape(params * 1e9, name)


def _memory(row: Data, key: str, notes: list[str]) -> float | None:
    """Return the GiB of a row; no device has as many as its MiB."""
    found = number(row, key)
    if found is None or found <= MOST_MEMORY:
        return found
    notes.append(f"{key} {found:g} taken as MiB")
    return found / 1024


def _billions(row: Data, notes: list[str]) -> float | None:
    """Return the parameters of a row in 1e9."""
    found = number(row, "params_b")
    if found is None or found <= MOST_BILLIONS:
        return found
    said, found = found, found / 1e9
    if found > MOST_BILLIONS:
        notes.append(f"params_b {said:g} is more than any model has: not used")
        return None
    notes.append(f"params_b counts in 1e9: {said:g} taken as {found:.4g}e9 parameters")
    return found


def _sized_shape(row: Data, layers: int, hidden: int, params: float | None) -> ModelShape:
    """Return a GPT of a size, its feed-forward part so wide that it has the row's parameters."""
    shape = shape_of(_text(row, "model"), layers, hidden, _count(row, "heads") or 0)
    shape = replace(shape, tied=True)
    inner = (params or 0) * 1e9 - shape.embedding_parameters
    ffn = (inner / layers - shape.attention_parameters) / 2 / hidden
    return replace(shape, ffn=int(ffn)) if hidden < ffn < 16 * hidden else shape


def _meaning(words: dict[str, str], text: str) -> str | None:
    """Return what the first of some patterns that a text has stands for."""
    return next((name for word, name in words.items() if re.search(word, text)), None)


def _digits(pattern: str, text: str) -> str:
    """Return the group of a pattern where a text has it first, "" where it has none."""
    found = re.search(pattern, text)
    return found[1] if found else ""


def _precision(text: str, notes: list[str]) -> str:
    found = _meaning(RUN_WORDS["precisions"], text.lower())
    if found is None and text:
        notes.append(f"precision '{text}' is not known: bf16 assumed")
    return found or "bf16"


def _sharding(text: str, framework: str, per_host: int, notes: list[str]) -> tuple[str, int]:
    """Return the level of sharding and its group, 0 for all replicas."""
    plain = re.sub(r"[^a-z0-9:]", "", text.lower())
    if not plain and framework == "megatron":
        return "zero1", 0
    size = int(_digits(r"(?:zero\d:|fsdp)(\d{1,9})$", plain) or 0)
    level = _digits(r"(?:zero|stage|^)([0-3])(?!\d)", plain)
    more = "++" if "++" in text else ""
    found = _meaning(RUN_WORDS["shardings"], f"{plain} zero-{level}{more}")
    if found == "hybrid":
        return "zero3", per_host
    if found:
        return found, {"zero1": size, "zero3": size if size > 2 else 0}.get(found, 0)
    if level != "0" and plain not in ("", "none", "no", "ddp", "false", "replicate"):
        notes.append(f"sharding '{text}' is not known: none assumed")
    return "none", 0


def _recompute(text: str) -> str:
    text = text.lower()
    if not text or re.match(r"(no?(ne|t)?|false|0|off|disabled|without)(?![a-z\d.])", text):
        return "none"
    return "selective" if "select" in text or "flash" in text or "attn" in text else "full"


COUNTS, NUMBERS, WORDS = (
    RUN_WORDS["columns"][kind].split() for kind in ("counts", "numbers", "words")
)
"""The columns that are read."""


def _text(row: Data, key: str) -> str:
    text = str(row.get(key) or "").strip()
    return "" if text.lower() in RUN_WORDS["unsaid"] else text


def _degrees(row: Data, gpu: Gpu, shape: ModelShape, notes: list[str]) -> dict[str, int]:
    """Return tp, pp, vp, cp and dp; the row may leave out one of devices, replicas and tensor
    ranks that the others tell.
    """
    pipeline, chunks = _stages(row, shape, notes)
    devices, data = _count(row, "n_gpus") or 0, _count(row, "dp")
    if not devices and data is None:
        raise InputError("lacks n_gpus and dp")
    tensor, context = _count(row, "tp"), _count(row, "cp") or 1
    if tensor is None:
        left = devices // (pipeline * context * data) if data else 1
        tensor = left if 1 < left <= gpu.per_host else 1
        notes.append(f"tp {tensor} assumed")
    inner = tensor * pipeline * context
    data = data or max(1, devices // inner)
    if devices and devices != data * inner:
        notes.append(f"{devices} devices are not tp pp dp cp = {data * inner}")
    return {"tp": tensor, "pp": pipeline, "vp": chunks, "cp": context, "dp": data}


def _stages(row: Data, shape: ModelShape, notes: list[str]) -> tuple[int, int]:
    """Return pp and vp."""
    pipeline, chunks = _count(row, "pp") or 1, _count(row, "vp") or 1
    if chunks == 1 and "interleaved" in _text(row, "schedule").lower():
        chunks = 2
        notes.append("vp 2 assumed: the schedule is interleaved")
    chunks = chunks if pipeline > 1 else 1
    if pipeline * chunks > shape.layers + 2:  # embedding and head may have their own
        raise InputError(f"pp {pipeline} x vp {chunks} are more stages than {shape.layers} layers")
    return pipeline, chunks


def _sizes(row: Data, degrees: dict[str, int], notes: list[str]) -> tuple[int, int]:
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
    if micro > max(1, batch // data):
        notes.append(f"micro-batch {micro} is more than the {batch // data} sequences of a replica")
    micro = min(micro, max(1, batch // data))
    if batch % (data * micro):
        notes.append(f"{batch} sequences are not whole micro-batches of {micro} on {data} replicas")
    return batch, micro


def _expert_degree(
    row: Data, framework: str, shape: ModelShape, degrees: dict[str, int], notes: list[str]
) -> int:
    """Return the ranks that experts are spread over, at most 64 where a row does not say it: no
    plan searched has more.

    Tensor ranks share each expert out in Megatron, whose `--expert-tensor-parallel-size` is that of
    all layers where it is not given, unless the degree is above the replicas: it spans tensor ranks
    then, which have whole experts.
    """
    degree, ranks = _count(row, "ep"), degrees["dp"] * degrees["cp"]
    if not shape.experts:
        if degree and degree > 1:
            notes.append("ep is given, but the model has no experts that are known")
        return 1
    if degree is None and degrees["tp"] == 1:
        degree = min(64, math.gcd(shape.experts, degrees["dp"]))
        notes.append(f"ep {degree} assumed: experts are spread over the replicas")
    whole = degree is None or degree > ranks or not framework.startswith("megatron")
    taken = min(degree or 1, shape.experts, ranks)
    if degree and degree > taken:
        notes.append(f"ep {degree} is more than experts or replicas: {taken} taken")
    return taken if whole else taken * degrees["tp"]


def _kernels(launcher: str, framework: str, precision: str, said: str, gpu: Gpu) -> dict[str, bool]:
    """Return how the kernels of a launcher differ; before Hopper, fp16, the Megatron of DeepSpeed
    or Paxml without Transformer Engine ("te-bf16") mean a time without fused attention.
    """
    early = "fp8" not in gpu.peaks
    deepspeed = framework == "megatron-deepspeed"
    old = early and framework == "megatron" and precision == "fp16"
    plain = early and "pax" in launcher and not said.startswith("te")
    return {
        "sequence_parallel": not (deepspeed or old),
        "flash": gpu.fuses_attention and not (old or (early and deepspeed) or plain),
        "compiled": framework == "jax" or "compile" in said + launcher,
        "triton": "composer" in launcher or "foundry" in launcher,
        "async_tensor": "asynctp" in said,
    }


def _sums_short(launcher: str, framework: str, sharding: str) -> bool:
    """Whether a launcher sums gradients in 16 bits."""
    known = framework in ("megatron-deepspeed", "fsdp", "internevo")
    return known or "pure" in sharding or "nemo" in launcher or "bridge" in launcher


def _not_used(row: Data) -> list[str]:
    """Return what is said in the columns of numbers and is none."""
    said = {key: _text(row, key) for key in (*COUNTS, *NUMBERS)}
    said = {key: text for key, text in said.items() if text.lower() not in ("", "none", "0", "1")}
    counts = [key for key in said if key in COUNTS and _count(row, key) is None]
    numbers = [key for key in said if key in NUMBERS and number(row, key) is None]
    if "oom" in numbers and _out_of_memory(row) is not None:
        numbers.remove("oom")
    return [
        *(f"{key} '{said[key]}' is no count: not used" for key in counts),
        *(f"{key} '{said[key]}' is no number: not used" for key in numbers),
    ]


def _configuration(
    row: Data, framework: str, gpu: Gpu, shape: ModelShape, notes: list[str]
) -> Configuration:
    sequence = _count(row, "seq_len")
    if sequence is None:
        said = _text(row, "seq_len")
        raise InputError("lacks seq_len" + (f": '{said}' is no count" if said else ""))
    notes += _not_used(row)
    degrees = _degrees(row, gpu, shape, notes)
    batch, micro = _sizes(row, degrees, notes)
    devices = _count(row, "n_gpus") or math.prod(degrees.values()) // degrees["vp"]
    per_host = min(_count(row, "gpus_per_node") or gpu.per_host, devices)
    said, launcher = _text(row, "precision"), _text(row, "framework").lower()
    precision, text = _precision(said, notes), _text(row, "sharding")
    sharding, group = _sharding(text, framework, per_host, notes)
    short = precision == "fp16" and sharding in ("zero2", "zero3")
    recompute = _recompute(_text(row, "recompute"))
    # nothing of PyTorch's fused attention is kept: its launchers compute every other layer, or
    # product, again
    partly = recompute == "selective" and framework == "fsdp"
    return Configuration(
        sequence,
        batch,
        degrees["tp"],
        degrees["pp"],
        degrees["vp"],
        degrees["dp"],
        degrees["cp"],
        _expert_degree(row, framework, shape, degrees, notes),
        micro,
        per_host,
        "full" if partly else recompute,
        sharding,
        group,
        precision,
        framework=framework,
        share=0.5 if partly else 1.0,
        adapters=_text(row, "kind").lower() in ("lora", "qlora", "peft"),
        main_gradients=2 if short or _sums_short(launcher, framework, text.lower()) else 4,
        # its benchmarks run PyTorch's own Adam on 16-bit parameters
        short_states="automodel" in launcher,
        **_kernels(launcher, framework, precision, said.lower(), gpu),
    )


def predict_run(run: Run, constants: Calibration) -> tuple[StepParts, MemoryParts, Run, str]:
    """Return time, memory, the run as it was priced, and what was assumed of recomputation.

    Where a row does not say what is shared out, the least that fits is taken; where it does not say
    what is recomputed, as many layers as the memory lacks.
    """
    model = StepModel(run.shape, run.gpu, constants)
    held, limit = model.held(run.conf), USABLE * run.gpu.memory

    def memory_of(conf: Configuration, offloaded: bool = False) -> MemoryParts:
        shared = run.shares and conf.sharding == "none"
        kept = replace(conf, sharding="zero1") if shared else conf
        parts = memory_parts(run.shape, kept, held, constants.memory, offloaded)
        return replace(parts, optimizer=0.0) if run.offloads else parts

    found = _leanest(run, memory_of, limit)
    conf, memory = found[-1]
    offloaded = False
    if memory.total > limit:  # nothing fits: the row was leaner than this model
        conf, memory = found[0]
        if run.unsaid_sharding and conf.pipeline == 1 and conf.recompute == "full":
            lean = memory_of(conf, offloaded=True)
            offloaded = lean.total <= limit
        if offloaded:  # no rank holds all weights, so that they are gathered layer by layer
            memory, conf = lean, replace(conf, sharding="zero3")
    elif run.unsaid_recompute and conf.recompute == "full":
        most = found[-len(RECOMPUTE)][1].total
        lacking = most - limit + 1e-6 * limit  # what is rounded must not count as too much
        conf = replace(conf, share=min(1.0, lacking / max(1.0, most - memory.total)))
        memory = memory_of(conf)
    return model.parts(conf), memory, replace(run, conf=conf), _assumed(run, conf, offloaded)


def _leanest(
    run: Run, memory_of: Callable[[Configuration], MemoryParts], limit: float
) -> list[tuple[Configuration, MemoryParts]]:
    """Return what a row may have run, in order, up to the first that fits."""
    found = []
    for sharding in (
        SHARDING[SHARDING.index(run.conf.sharding) :]
        if run.unsaid_sharding
        else (run.conf.sharding,)
    ):
        for recompute in RECOMPUTE if run.unsaid_recompute else (run.conf.recompute,):
            conf = replace(run.conf, recompute=recompute, sharding=sharding)
            found.append((conf, memory_of(conf)))
            if found[-1][1].total <= limit:
                return found
        if run.conf.pipeline > 1 and sharding == "zero1":
            return found
    return found


def _assumed(run: Run, conf: Configuration, offloaded: bool) -> str:
    """Say what a row does not."""
    part = f" of {100 * conf.share:.0f} % of the layers" if conf.share < 1 else ""
    said = [f"recompute {conf.recompute}{part} assumed"] if run.unsaid_recompute else []
    if run.unsaid_sharding and conf.ranks > 1:
        said.append(f"sharding {conf.sharding} assumed")
    if offloaded:
        said.append(OFFLOADED)
    return "; ".join(said)


def read_runs(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a table; see `_read_table`."""
    return _read_table(path)[1]


def _read_table(path: str | Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table.

    Raises
    ------
    InputError
        If the file is no table with a header.
    """
    text = read_text(path)
    separator = max(",;\t", key=next(iter(text.splitlines()), "").count)
    names, rows = csv_columns(text, f"file '{path}'", separator)
    if not {"model", "gpu", "layers"} & set(names):
        raise InputError(
            f"file '{path}': expected a CSV table with the columns model, gpu, n_gpus, seq_len, "
            f"global_batch, tp, pp, dp, ...; received {str(names)[:60]}"
        )
    for at, row in enumerate(rows, 1):
        if any(row.pop(None, ())):
            raise InputError(
                f"file '{path}': row {at} has more cells than the header; put quotes around a cell "
                f"with '{separator}' in it"
            )
    pointed = NUMBERS if separator == ";" else ()
    return names, [
        {key: _pointed(value or "", key in pointed) for key, value in row.items() if key}
        for row in rows
    ]


def _pointed(text: str, decimal: bool) -> str:
    """Return a cell of a table; the comma of a `decimal` number becomes its point."""
    return text.replace(",", ".") if decimal and text.count(",") == 1 and "." not in text else text


def not_read(rows: list[Data]) -> list[str]:
    """Return the columns of a predicted table that say nothing here."""
    known = (*COUNTS, *NUMBERS, *WORDS, *ADDED)
    return [name for name in rows[0] if name not in known] if rows else []


def predicted_row(row: Data, constants: Calibration) -> Data:
    """Return a row with its predictions, or with a note of what it lacks."""
    try:
        run = read_run(row)
        parts, memory, run, said = predict_run(run, constants)
    except InputError as error:
        return row | dict.fromkeys(PREDICTED, "") | {"note": str(error)}
    spread = constants.interval(run.conf, run.gpu, run.launcher)
    low, high = spread[:2] if spread else (None, None)
    return row | {
        "predicted_step_s": f"{parts.total:.6g}",
        "predicted_low_s": f"{low * parts.total:.6g}" if low else "",
        "predicted_high_s": f"{high * parts.total:.6g}" if high else "",
        "predicted_memory_gb": f"{memory.total / 2**30:.4g}",
        "predicted_oom": int(memory.total > USABLE * run.gpu.memory),
        "note": "; ".join(filter(None, (*run.notes, said))),
    }


def predict_table(
    path: str | Path, out: str | Path, constants: Calibration | None = None
) -> list[Data]:
    """Predict every row of a table and write it with the columns `ADDED`; notes that were there
    before are kept as `note_given`.
    """
    columns, rows = _read_table(path)
    if "note" in columns and PREDICTED[0] not in columns:
        columns = ["note_given" if name == "note" else name for name in columns]
        rows = [row | {"note_given": row["note"]} for row in rows]
    rows = [predicted_row(row, constants or default_calibration()) for row in rows]
    names = list(dict.fromkeys((*filter(None, columns), *ADDED)))
    write_text(out, csv_text([names, *([row.get(name, "") for name in names] for row in rows)]))
    return rows
