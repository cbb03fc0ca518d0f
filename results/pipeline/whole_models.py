"""Whole models under the roofline cost model: training and inference, placements and schedules told
apart.

Parts of `study.py`: `models` (throughput of a training step, every method with its own best
choice), `gains` (1F1B, 1F1B+ and the search on the same placements, and each of these orders where
transfers take channels or are blocking), `inference` (latency of a request), `published` (the sizes
and vocabularies of the released launch files).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.experiments.studies import Clock, write_csv
from placeopt.instances.sources import load_graph
from placeopt.instances.training import training_graph
from placeopt.model.errors import InputError
from placeopt.schedules import choose_pipeline, schedule, schedule_result
from placeopt.schedules.cuts import PIPELINES, subgraph
from placeopt.schedules.transfers import executed, with_transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from placeopt.model.graph import OpGraph
    from placeopt.schedules.joint import Choice

HERE = Path(__file__).parent
WORKERS = 2
BATCH = 128
SCHEDULE_SECONDS = 10.0

CLUSTERS = {4: "4xV100", 8: "8xV100", 16: "2x8xV100", 32: "4x8xV100"}
"""32 GB each, half-precision peak at 50 %; NVLink inside a host of 8, Ethernet (100 Gb/s)
between."""

MODELS = {
    "GPT": {
        4: "layers=24&hidden=2560&heads=20&vocab=512000",
        8: "layers=32&hidden=3072&heads=24&vocab=512000",
        16: "layers=40&hidden=4096&heads=32&vocab=384000",
        32: "layers=48&hidden=5120&heads=40&vocab=320000",
    },
    "mT5": {
        4: "layers=12&hidden=1536&heads=16&head_dim=96&ffn=4096&vocab=512000&seq=1024&target=512",
        8: "layers=16&hidden=2048&heads=32&head_dim=64&ffn=5120&vocab=512000&seq=1024&target=512",
        16: "layers=20&hidden=3072&heads=32&head_dim=96&ffn=8192&vocab=448000&seq=1024&target=512",
        32: "layers=24&hidden=4096&heads=64&head_dim=64&ffn=10240&vocab=384000&seq=1024&target=512",
    },
    "Flava": {
        4: "image_layers=16&text_layers=16&layers=8&hidden=2048&heads=16&seq=256",
        8: "image_layers=20&text_layers=20&layers=10&hidden=2560&heads=20&seq=256",
        16: "image_layers=24&text_layers=24&layers=12&hidden=3072&heads=24&seq=256",
        32: "image_layers=32&text_layers=32&layers=16&hidden=4096&heads=32&seq=256",
    },
}
GENERATORS = {"GPT": "gpt2", "mT5": "mt5", "Flava": "flava"}

LAUNCHED = {
    "GPT": {
        4: (32, 4096, 32, 1024),
        8: (40, 6144, 48, 1024),
        16: (48, 8192, 64, 1024),
        32: (80, 8192, 64, 1536),
    },
    "mT5": {
        4: (24, 1024, 16, 1024),
        8: (24, 3072, 24, 1024),
        16: (32, 6144, 48, 1024),
        32: (40, 8192, 64, 1536),
    },
}
"""Layers, hidden size, heads and thousands of words in the launch files that Tessel's authors
released, by number of V100."""

LAUNCHED_FLAVA = "gen:flava?image_layers=24&text_layers=24&layers=24&hidden=4096&heads=32&detail=coarse&dtype_bytes=2"
"""The size of their launch file for inference on 4 devices."""

SHARED = ("M", "K")
METHODS: dict[str, dict[str, Any]] = {
    "best pipeline": {"shapes": PIPELINES},
    "1F1B": {"shapes": ("V",), "solvers": ("1f1b",)},
    "GPipe": {"shapes": ("V",), "solvers": ("gpipe",)},
    "Chimera": {"shapes": ("X",), "solvers": ("chimera",)},
    "tensor parallel": {"shapes": ("T",)},
}
"""Every method chooses its own number of stages (and replicas), micro-batch size and recomputation.
Chimera is the direct form: one unit of micro-batches after the other."""

GAINS: dict[str, dict[str, Any]] = {
    "1F1B on V": METHODS["1F1B"],
    "1F1B+ on M, K": {"shapes": SHARED, "solvers": ("1f1b-plus",)},
    "repetend on M, K": {"shapes": SHARED, "solvers": ("repetend",)},
}
"""Methods that tell the gain of the placement from that of the schedule."""

PUBLISHED: dict[str, dict[str, Any]] = {
    **{name: METHODS[name] for name in ("1F1B", "GPipe", "Chimera", "tensor parallel")},
    "1F1B+ on M": {"shapes": ("M",), "solvers": ("1f1b-plus",)},
    "repetend on M": {"shapes": ("M",), "solvers": ("repetend",)},
}
"""The baselines of the launch files, and what the paper compares with them."""


def source_of(model: str, devices: int) -> str:
    """Return the generator's text; the half-precision model with coarse ops and separate embedding
    tables.
    """
    extra = "" if model == "Flava" else "&tied=0"
    return f"gen:{GENERATORS[model]}?{MODELS[model][devices]}&detail=coarse&dtype_bytes=2{extra}"


def cluster_of(devices: int) -> str:
    """Return the cluster's name."""
    return f"{CLUSTERS[devices]}?precision=fp16&memory=32&efficiency=0.5"


# --- training
# -------------------------------------------------------------------------------------------


def models(devices: int) -> list[dict[str, Any]]:
    """Throughput of a training step of every model and method."""
    return tried(
        f"models{devices}", devices, {model: source_of(model, devices) for model in MODELS}, METHODS
    )


def gains(devices: int) -> list[dict[str, Any]]:
    """1F1B on a plain pipeline, 1F1B+ and the search on the shapes M and K; their orders under
    other transfers.
    """
    sources = {model: source_of(model, devices) for model in MODELS}
    return tried(f"gains{devices}", devices, sources, GAINS, transfers=True)


def published(devices: int) -> list[dict[str, Any]]:
    """GPT and mT5 in the sizes and with the vocabularies of the released launch files; what does
    not fit is shown as such.
    """
    sources = {model: partial(launched, model, devices) for model in LAUNCHED}
    return tried(f"published{devices}", devices, sources, PUBLISHED)


def launched(model: str, devices: int, size: int) -> OpGraph:
    """Return the training graph of a launch file: no output layer (its loss is a sum), both moments
    in half precision.
    """
    layers, hidden, heads, vocab = LAUNCHED[model][devices]
    rest = (
        "seq=2048&tied=0"
        if model == "GPT"
        else f"seq=1024&target=1024&head_dim={hidden // heads}&ffn={4 * hidden}&tied=1"
    )
    graph, _ = load_graph(
        f"gen:{GENERATORS[model]}?layers={layers}&hidden={hidden}&heads={heads}&vocab={vocab}000&{rest}"
        f"&detail=coarse&dtype_bytes=2&batch={size}"
    )
    graph, _ = subgraph(graph, np.array([name != "final/head" for name in graph.op_names]))
    training = training_graph(graph)
    update = [name.endswith("/update") for name in training.op_names]
    resident = training.resident.copy()
    resident[update] //= 3  # 4 bytes a weight, where the derivation counts 8 and a master copy of 4
    return replace(training, resident=resident)


def tried(
    part: str,
    devices: int,
    sources: dict[str, Any],
    methods: dict[str, dict[str, Any]],
    *,
    transfers: bool = False,
) -> list[dict[str, Any]]:
    """Return a row of every model and method, written after each: large models take minutes."""
    rows: list[dict[str, Any]] = []
    for model, source in sources.items():
        cuts: dict[Any, Any] = {}
        for method, options in methods.items():
            rows.append(
                model_row(model, source, devices, method, options, cuts, transfers=transfers)
            )
            print(rows[-1], flush=True)
            write_csv(HERE / f"{part}.csv", rows)
    return rows


def model_row(
    model: str,
    source: Any,
    devices: int,
    method: str,
    options: dict[str, Any],
    cuts: dict[Any, Any],
    *,
    transfers: bool,
) -> dict[str, Any]:
    """Return the best choice of one method."""
    row: dict[str, Any] = {"model": model, "devices": devices, "method": method}
    columns = [
        "throughput",
        "choice",
        "schedule",
        "step_ms",
        "gap_of_cuts",
        "gap",
        "latency_ms",
        "runner_up",
    ]
    columns += TRANSFERS if transfers else []
    with Clock() as clock:
        try:
            chosen = choose_pipeline(
                source,
                cluster_of(devices),
                batch=BATCH,
                cuts=cuts,
                micro_batches=(1, 4),
                seconds=SCHEDULE_SECONDS,
                dp_seconds=5,
                num_workers=WORKERS,
                **options,
            )
        except InputError as error:
            return (
                row
                | dict.fromkeys(columns, "")
                | {"choice": "none fits", "runner_up": str(error), "wall": ""}
            )
    best = chosen.best
    latency = ""
    if best.schedule.repetend is not None:
        latency = f"{1e3 * best.schedule.repetend.latency(best.problem.span) * best.problem.tick_seconds:.5g}"
    return row | {
        "throughput": f"{chosen.throughput:.5g}",
        "choice": best.title,
        "schedule": best.result.solver,
        "step_ms": f"{1e3 * best.step:.5g}",
        "gap_of_cuts": f"{chosen.gap_of_cuts:.4f}",
        "gap": f"{chosen.gap:.4f}",
        "latency_ms": latency,
        "runner_up": chosen.why,
        **(steps_with_transfers(best) if transfers else {}),
        "wall": round(clock.wall, 1),
    }


TRANSFERS = ["channel_step_ms", "blocking_step_ms", "blocking_searched_step_ms"]


def steps_with_transfers(choice: Choice) -> dict[str, str]:
    """Return the step of a choice's order with channels and with blocking transfers, and of a
    search that knows of the latter.
    """
    found = {mode: executed(choice.schedule, mode) for mode in ("channel", "blocking")}
    searched = schedule(
        with_transfers(choice.problem, "blocking"),
        "repetend",
        seconds=SCHEDULE_SECONDS,
        num_workers=WORKERS,
        initial=found["blocking"],
    )
    spans = (found["channel"].makespan, found["blocking"].makespan, searched.makespan)
    return {
        name: f"{1e3 * (ticks * choice.problem.tick_seconds + choice.sync):.5g}"
        for name, ticks in zip(TRANSFERS, spans, strict=True)
    }


# --- inference
# ------------------------------------------------------------------------------------------


def inference(devices: int) -> list[dict[str, Any]]:
    """Latency of one request in a stream, per shape, with one sample per micro-batch.

    At full throughput, alone, and at the fastest rate that both this shape and V can serve.
    """
    rows: list[dict[str, Any]] = []
    sources = {model: source_of(model, devices) for model in MODELS}
    if devices == 4:
        sources["Flava as launched"] = LAUNCHED_FLAVA
    for model, source in sources.items():
        plain = None
        for shape in ("V", "M", "K", "T"):
            row: dict[str, Any] = {"model": model, "devices": devices, "shape": shape}
            try:
                chosen = choose_pipeline(
                    source,
                    cluster_of(devices),
                    batch=64,
                    mode="infer",
                    micro_batches=(1,),
                    shapes=(shape,),
                    stages=(devices,),
                    solvers=("repetend",),
                    seconds=10,
                    dp_seconds=5,
                    num_workers=WORKERS,
                )
            except InputError as error:
                print(row, error, flush=True)
                continue
            best = chosen.best
            plain = plain or best
            tick = best.problem.tick_seconds
            both = max(float(x.schedule.period) * x.problem.tick_seconds for x in (plain, best))
            rows.append(
                row
                | {
                    "throughput": f"{1 / (float(best.schedule.period) * tick):.5g}",
                    "latency_ms": f"{1e3 * best.schedule.repetend.latency(best.problem.span) * tick:.5g}",
                    "least_latency_ms": f"{1e3 * best.problem.critical_path * tick:.5g}",
                    "period_status": best.schedule.period_status,
                    "common_rate": f"{1 / both:.5g}",
                    "latency_at_common_ms": latency_at(best, both),
                    "latency_of_v_ms": latency_at(plain, both),
                }
            )
            print(rows[-1], flush=True)
            write_csv(HERE / f"inference{devices}.csv", rows)
    return rows


def latency_at(choice: Any, period: float) -> str:
    """Return the least latency in milliseconds of a pipeline that takes one micro-batch every
    `period` seconds.
    """
    problem = choice.problem
    ticks = int(-(-period // problem.tick_seconds))
    result = schedule_result(problem, "repetend", period=ticks, seconds=15, num_workers=WORKERS)
    if result.solution is None:
        return ""
    return f"{1e3 * result.solution.repetend.latency(problem.span) * problem.tick_seconds:.5g}"


WHOLE_MODELS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "gains": gains,
    "inference": inference,
    "models": models,
    "published": published,
}
