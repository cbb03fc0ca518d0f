"""Pipeline schedules: minimum periods with proof, Tessel's search beside ours, makespans, and whole models.

    python results/pipeline/study.py            # all parts, about 40 minutes on 2 cores
    python results/pipeline/study.py periods4   # part: periods4|6|8|16|32, solvers, makespans, capped, placements,
                                                # gains|models|inference4|8|16|32, report

Each part writes a CSV file next to this one; `report` turns them into report.md and the pictures.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.experiments.studies import Clock, write_csv
from placeopt.model.errors import InputError
from placeopt.schedules import choose_pipeline, schedule, schedule_result
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.solve import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WORKERS = 2
SHAPES = ("V", "X", "K", "M", "NN")
CAPACITIES = {
    4: (1, 2, 3, 4, 5, 6),
    6: (2, 3, 4, 5, 6, 8),
    8: (3, 4, 5, 6, 8, 10, 12),
    16: (4, 6, 8, 12, 16, 24),
    32: (4, 6, 8, 12, 16, 24, 32),
}
SECONDS = {4: 20.0, 6: 60.0, 8: 60.0, 16: 60.0, 32: 60.0}
CHAINS_ONLY = 32
"""From so many devices on, only V and X: every block on one device."""

AUTHORS_FAST_CPU = {"V": 0.83, "K": 0.62, "X": 8.24, "M": 2.08, "NN": 6.82}
"""CPU seconds of Tessel's released code, run here in its fast mode without a memory cap, 4 devices."""

AUTHORS_CAPPED_CPU = {"V": (4, 0.8), "K": (4, 2.7), "X": (6, 9.4), "M": (6, 59.4), "NN": (6, 179.7)}
"""The memory that the same code was given there, in micro-batches, and its CPU seconds."""

SAME_PLACEMENT = {"V": "1f1b-plus", "X": "chimera", "K": "1f1b-plus", "M": "1f1b-plus", "NN": "1f1b-plus"}
"""The known schedule of every placement shape: 1F1B generalised, and Chimera with its units one after the other (direct)."""

BEST_MAKESPAN = {"V": 524, "X": 1033, "K": 772, "M": 780, "NN": 1036}
"""Best known makespan of 128 micro-batches, 4 devices, training."""


def main(parts: list[str]) -> None:
    """Run the named parts, or all."""
    steps: dict[str, Callable[[], list[dict[str, Any]]]] = {
        **{f"periods{devices}": partial(periods, devices) for devices in CAPACITIES},
        "solvers": solvers, "makespans": makespans, "capped": capped, "placements": placements,
        **{f"gains{devices}": partial(gains, devices) for devices in CLUSTERS},
        **{f"inference{devices}": partial(inference, devices) for devices in CLUSTERS},
        **{f"models{devices}": partial(models, devices) for devices in CLUSTERS},
    }  # fmt: skip
    for name in parts or [*steps, "report"]:
        if name in steps:
            write_csv(HERE / f"{name}.csv", steps[name]())
        else:
            from report import write_report

            write_report(HERE)


def timed(problem: Any, solver: str, **options: Any) -> tuple[Any, Clock]:
    """Solve and measure; the solver libraries are loaded before."""
    warm_up()
    with Clock() as clock:
        result = schedule_result(problem, solver, **options)
    return result, clock


# --- (a) minimum periods ----------------------------------------------------------------------------------


def periods(devices: int) -> list[dict[str, Any]]:
    """Minimum period of every shape and capacity, K = 1; on 4 devices also K up to 4 where the load bound is missed."""
    rows = []
    for name in SHAPES if devices < CHAINS_ONLY else ("V", "X"):
        for capacity in CAPACITIES[devices]:
            rows.append(period_row(name, devices, capacity))
            print(rows[-1], flush=True)
    return rows


def period_row(name: str, devices: int, capacity: int) -> dict[str, Any]:
    """Return one cell of the table."""
    row: dict[str, Any] = {"shape": name, "devices": devices, "capacity": capacity}
    empty = dict.fromkeys(("load", "period", "bound", "status", "cpu", "wall", "any_k", "any_k_bound", "any_k_size"), "")
    problem = po.load_pipeline(f"shape:{name}?devices={devices}", memory=capacity)
    result, clock = timed(problem, "repetend", seconds=SECONDS[devices], num_workers=WORKERS, latency_seconds=0)
    if result.solution is None:
        return row | empty | {"status": f"{result.status}: {result.message.rsplit(';', 1)[-1].strip()}"}
    found = result.solution
    row |= empty | {
        "load": int(problem.work.max()), "period": float(found.period), "bound": float(found.size_bound),
        "status": "proved" if found.period == found.size_bound else "not proved",
        "cpu": round(clock.cpu, 2), "wall": round(clock.wall, 2),
    }  # fmt: skip
    if devices == 4 and found.period > problem.work.max():
        more = schedule(problem, size=0, seconds=20, num_workers=WORKERS, latency_seconds=0)
        best = min(found, more, key=lambda x: x.period)
        row |= {"any_k": f"{float(best.period):.4g}", "any_k_bound": f"{float(best_bound(problem)[0]):.4g}",
                "any_k_size": best.repetend.size}  # fmt: skip
    return row


# --- (b) solvers ------------------------------------------------------------------------------------------


def solvers() -> list[dict[str, Any]]:
    """`repetend`, `tessel` and `time-optimal` for n = 1..8 on every shape, and the first two on 8 devices."""
    rows = []
    limit = 5.0
    for name in SHAPES:
        for devices in (4, 8):
            problem = po.load_pipeline(f"shape:{name}?devices={devices}")
            for solver in ("repetend", "tessel"):
                seconds = 10.0 if solver == "tessel" else SECONDS[devices]
                options = {"num_workers": 1}
                result, clock = timed(problem, solver, seconds=seconds, micro_batches=128, **options)
                rows.append(solver_row(name, devices, solver, "", result, clock))
        problem = po.load_pipeline(f"shape:{name}?devices=4")
        for n in range(1, 9):
            result, clock = timed(problem, "time-optimal", seconds=limit, micro_batches=n, num_workers=1)
            rows.append(solver_row(name, 4, "time-optimal", n, result, clock))
            if clock.wall > limit:
                break  # larger n take longer still
    return rows


def solver_row(name: str, devices: int, solver: str, n: Any, result: Any, clock: Clock) -> dict[str, Any]:
    """Return one run."""
    found = result.solution
    exact = found is not None and (
        found.makespan <= found.makespan_bound if solver == "time-optimal"
        else result.status == "optimal" or found.period == found.size_bound
    )
    row = {
        "shape": name, "devices": devices, "solver": solver, "micro_batches": n,
        "candidates": result.evaluations, "cpu": round(clock.cpu, 3), "wall": round(clock.wall, 3),
        "period": "" if found is None else round(float(found.period), 4),
        "makespan": "" if found is None else found.makespan, "proved": exact,
        "authors_fast_cpu": AUTHORS_FAST_CPU[name] if devices == 4 and solver != "time-optimal" else "",
    }  # fmt: skip
    print(row, flush=True)
    return row


# --- (c) makespans ----------------------------------------------------------------------------------------


def makespans() -> list[dict[str, Any]]:
    """Makespan of 128 micro-batches, without a memory limit and under the least that keeps the period at the load."""
    rows = []
    for name in SHAPES:
        for capacity in (None, {"V": 4, "X": 4, "K": 3, "M": 5, "NN": 6}[name]):
            problem = po.load_pipeline(f"shape:{name}?devices=4", memory=capacity, micro_batches=128)
            result, clock = timed(problem, "repetend", seconds=SECONDS[4], num_workers=WORKERS, patterns=4)
            found = result.solution
            rows.append({
                "shape": name, "capacity": capacity or "none", "makespan": found.makespan,
                "best_known": BEST_MAKESPAN[name], "bound": found.makespan_bound, "peak_memory": max(found.peak_memory),
                "cpu": round(clock.cpu, 2), "wall": round(clock.wall, 2),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


# --- (d) the same placement, and the same cap --------------------------------------------------------------


def capped() -> list[dict[str, Any]]:
    """`repetend` and `tessel` under the memory that the authors' code was given; completion to 128 micro-batches included."""
    rows = []
    for name, (capacity, authors) in AUTHORS_CAPPED_CPU.items():
        problem = po.load_pipeline(f"shape:{name}?devices=4", memory=capacity)
        for solver in ("repetend", "tessel"):
            result, clock = timed(problem, solver, seconds=20.0, micro_batches=128, num_workers=1)
            row = solver_row(name, 4, solver, "", result, clock)
            rows.append({**row, "capacity": capacity, "authors_capped_cpu": authors} | {"authors_fast_cpu": ""})
    return rows


def placements() -> list[dict[str, Any]]:
    """On every shape: 1F1B generalised (Chimera on X) with the memory it takes, and the search with that and with any memory."""
    rows = []
    for name, baseline in SAME_PLACEMENT.items():
        problem = po.load_pipeline(f"shape:{name}?devices=4", micro_batches=128)
        known = schedule(problem, baseline)
        row: dict[str, Any] = {
            "shape": name, "baseline": baseline, "memory": max(known.peak_memory), "baseline_period": float(known.period),
            "baseline_makespan": known.makespan,
        }  # fmt: skip
        for label, memory in (("same_memory", known.peak_memory), ("any_memory", None)):
            found = schedule(problem.with_capacity(memory), "repetend", seconds=SECONDS[4], num_workers=WORKERS)
            row |= {f"{label}_period": float(found.period), f"{label}_makespan": found.makespan}
        rows.append(row | {"load": int(problem.work.max())})
        print(rows[-1], flush=True)
    return rows


def gains(devices: int) -> list[dict[str, Any]]:
    """Training of whole models: 1F1B on a plain pipeline, 1F1B+ and the search on the shapes M and K."""
    rows = []
    for model in MODELS:
        cuts: dict[Any, Any] = {}
        for method, chosen in GAINS.items():
            rows.append(model_row(model, devices, method, cuts, chosen))
        write_csv(HERE / f"gains{devices}.csv", rows)
    return rows


# --- (e) models -------------------------------------------------------------------------------------------

CLUSTERS = {4: "4xV100", 8: "8xV100", 16: "2x8xV100", 32: "4x8xV100"}
"""32 GB each, half-precision peak at 50 %; NVLink inside a host of 8, Ethernet (100 Gb/s) between."""

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
BATCH = 128
SCHEDULE_SECONDS = 10.0


def source_of(model: str, devices: int) -> str:
    """Return the generator's text; the half-precision model with coarse ops and separate embedding tables."""
    extra = "" if model == "Flava" else "&tied=0"
    return f"gen:{GENERATORS[model]}?{MODELS[model][devices]}&detail=coarse&dtype_bytes=2{extra}"


def cluster_of(devices: int) -> str:
    """Return the cluster's name."""
    return f"{CLUSTERS[devices]}?precision=fp16&memory=32&efficiency=0.5"


METHODS: dict[str, dict[str, Any]] = {
    "best found": {},
    "1F1B": {"shapes": ("V",), "solvers": ("1f1b",)},
    "GPipe": {"shapes": ("V",), "solvers": ("gpipe",)},
    "Chimera": {"shapes": ("X",), "solvers": ("chimera",)},
}
"""Every method chooses its own number of stages (and replicas), micro-batch size and recomputation."""


SHARED = ("M", "K")
GAINS: dict[str, dict[str, Any]] = {
    "1F1B on V": METHODS["1F1B"],
    "1F1B+ on M, K": {"shapes": SHARED, "solvers": ("1f1b-plus",)},
    "repetend on M, K": {"shapes": SHARED, "solvers": ("repetend",)},
}
"""Methods that tell the gain of the placement from that of the schedule."""


def models(devices: int) -> list[dict[str, Any]]:
    """Throughput of a training step of every model and method."""
    rows = []
    for model in MODELS:
        cuts: dict[Any, Any] = {}
        rows += [model_row(model, devices, method, cuts) for method in METHODS]
        write_csv(HERE / f"models{devices}.csv", rows)  # large models take minutes each
    return rows


def model_row(
    model: str, devices: int, method: str, cuts: dict[Any, Any], options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the best choice of one method."""
    options = METHODS[method] if options is None else options
    row: dict[str, Any] = {"model": model, "devices": devices, "method": method}
    with Clock() as clock:
        try:
            chosen = choose_pipeline(source_of(model, devices), cluster_of(devices), batch=BATCH, cuts=cuts,
                                     micro_batches=(1, 4), seconds=SCHEDULE_SECONDS, dp_seconds=5, num_workers=WORKERS,
                                     **options)  # fmt: skip
        except InputError as error:
            chosen, reason = None, str(error)
    if chosen is None:
        row |= dict.fromkeys(("throughput", "choice", "schedule", "step_ms", "gap_of_cuts", "gap", "latency_ms", "runner_up"), "")
        row |= {"choice": "none fits", "runner_up": reason}
    else:
        best = chosen.best
        latency = ""
        if best.schedule.repetend is not None:
            latency = 1e3 * best.schedule.repetend.latency(best.problem.span) * best.problem.tick_seconds
        row |= {
            "throughput": f"{chosen.throughput:.5g}", "choice": best.title, "schedule": best.result.solver,
            "step_ms": f"{1e3 * best.step:.5g}", "gap_of_cuts": f"{chosen.gap_of_cuts:.4f}", "gap": f"{chosen.gap:.4f}",
            "latency_ms": f"{latency:.5g}" if latency else "", "runner_up": chosen.why,
        }  # fmt: skip
    row["wall"] = round(clock.wall, 1)
    print(row, flush=True)
    return row


def inference(devices: int) -> list[dict[str, Any]]:
    """Latency of one request in a stream, per shape, with one sample per micro-batch.

    At full throughput, alone, and at the fastest rate that both this shape and V can serve.
    """
    rows = []
    for model in MODELS:
        plain = None
        for shape in ("V", "M", "K"):
            row: dict[str, Any] = {"model": model, "devices": devices, "shape": shape}
            try:
                chosen = choose_pipeline(
                    source_of(model, devices), cluster_of(devices), batch=64, mode="infer", micro_batches=(1,),
                    shapes=(shape,), stages=(devices,), solvers=("repetend",), seconds=10, dp_seconds=5, num_workers=WORKERS,
                )  # fmt: skip
            except InputError as error:
                print(row, error, flush=True)
                continue
            best = chosen.best
            plain = plain or best
            tick = best.problem.tick_seconds
            both = max(float(x.schedule.period) * x.problem.tick_seconds for x in (plain, best))
            rows.append(row | {
                "throughput": f"{1 / (float(best.schedule.period) * tick):.5g}",
                "latency_ms": f"{1e3 * best.schedule.repetend.latency(best.problem.span) * tick:.5g}",
                "least_latency_ms": f"{1e3 * best.problem.critical_path * tick:.5g}",
                "period_status": best.schedule.period_status,
                "common_rate": f"{1 / both:.5g}",
                "latency_at_common_ms": latency_at(best, both), "latency_of_v_ms": latency_at(plain, both),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def latency_at(choice: Any, period: float) -> str:
    """Return the least latency in milliseconds of a pipeline that takes one micro-batch every `period` seconds."""
    problem = choice.problem
    ticks = int(-(-period // problem.tick_seconds))
    result = schedule_result(problem, "repetend", period=ticks, seconds=15, num_workers=WORKERS)
    if result.solution is None:
        return ""
    return f"{1e3 * result.solution.repetend.latency(problem.span) * problem.tick_seconds:.5g}"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main(sys.argv[1:])
