"""Pipeline schedules: minimum periods with proof, Tessel's search beside ours, makespans, and whole
models.

    python results/pipeline/study.py [PART ...] [--again] [--minutes M]   # 40 minutes on 2 cores

Parts: periods4|6|8|16|32, solvers, makespans, capped, placements,
gains|models|inference|published4|8|16|32. Each writes a CSV file next to this one, and is left
alone where that is there; at the end they are turned into report.md and the pictures.
Whole models are in whole_models.py.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.experiments.studies import Clock, row_options
from placeopt.schedules import schedule, schedule_result
from placeopt.schedules.bounds import best_bound
from placeopt.schedules.solve import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from report import write_report  # noqa: E402 - results/ is no package
from whole_models import CLUSTERS, WHOLE_MODELS  # noqa: E402
from whole_tables import record_tables  # noqa: E402

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
"""CPU seconds of Tessel's released code, run here in its fast mode without a memory cap, 4
devices."""

AUTHORS_CAPPED_CPU = {"V": (4, 0.8), "K": (4, 2.7), "X": (6, 9.4), "M": (6, 59.4), "NN": (6, 179.7)}
"""The memory that the same code was given there, in micro-batches, and its CPU seconds."""

SAME_PLACEMENT = {
    "V": "1f1b-plus",
    "X": "chimera",
    "K": "1f1b-plus",
    "M": "1f1b-plus",
    "NN": "1f1b-plus",
}
"""The known schedule of every placement shape: 1F1B generalised, and Chimera with its units one
after the other (direct)."""

BEST_MAKESPAN = {"V": 524, "X": 1033, "K": 772, "M": 780, "NN": 1036}
"""Best known makespan of 128 micro-batches, 4 devices, training."""


def main() -> None:
    """Measure the named parts, or all, and write the report."""
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        **{f"periods{devices}": partial(periods, devices) for devices in CAPACITIES},
        "solvers": solvers,
        "makespans": makespans,
        "capped": capped,
        "placements": placements,
        **{
            f"{part}{devices}": partial(run, devices)
            for part, run in WHOLE_MODELS.items()
            for devices in CLUSTERS
        },
    }
    given = row_options(__doc__, tuple(parts))
    record_tables(HERE, {name: parts[name] for name in given.stages}, given)
    write_report(HERE)


def timed(problem: Any, solver: str, **options: Any) -> tuple[Any, Clock]:
    """Solve and measure; the solver libraries are loaded before."""
    warm_up()
    with Clock() as clock:
        result = schedule_result(problem, solver, **options)
    return result, clock


# --- (a) minimum periods
# ----------------------------------------------------------------------------------


def periods(devices: int) -> list[dict[str, Any]]:
    """Minimum period of every shape and capacity, K = 1; on 4 devices also K up to 4 where the load
    bound is missed, the best of up to three seeds.
    """
    rows = []
    for name in SHAPES if devices < CHAINS_ONLY else ("V", "X"):
        for capacity in CAPACITIES[devices]:
            rows.append(period_row(name, devices, capacity))
            print(rows[-1], flush=True)
    return rows


def period_row(name: str, devices: int, capacity: int) -> dict[str, Any]:
    """Return one cell of the table."""
    row: dict[str, Any] = {"shape": name, "devices": devices, "capacity": capacity}
    empty = dict.fromkeys(
        (
            "work",
            "period",
            "bound",
            "status",
            "cpu",
            "wall",
            "any_k",
            "any_k_bound",
            "any_k_size",
            "any_k_runs",
        ),
        "",
    )
    problem = po.load_pipeline(f"shape:{name}?devices={devices}", memory=capacity)
    result, clock = timed(
        problem, "repetend", seconds=SECONDS[devices], num_workers=WORKERS, latency_seconds=0
    )
    if result.solution is None:
        return (
            row
            | empty
            | {"status": f"{result.status}: {result.message.rsplit(';', 1)[-1].strip()}"}
        )
    found = result.solution
    row |= empty | {
        "work": int(problem.work.max()),
        "period": float(found.period),
        "bound": float(found.size_bound),
        "status": "proved" if found.period == found.size_bound else "not proved",
        "cpu": round(clock.cpu, 2),
        "wall": round(clock.wall, 2),
    }
    if devices == 4 and found.period > problem.work.max():
        any_bound, runs = best_bound(problem)[0], []
        for seed in range(3):  # a clock ends what is not proved, and runs differ
            more = schedule(
                problem, size=0, seconds=20, seed=seed, num_workers=WORKERS, latency_seconds=0
            )
            runs.append(min(found, more, key=lambda x: x.period))
            if runs[-1].period <= any_bound:
                break
        best = min(runs, key=lambda x: x.period)
        row |= {
            "any_k": f"{float(best.period):.4g}",
            "any_k_bound": f"{float(any_bound):.4g}",
            "any_k_size": best.repetend.size,
            "any_k_runs": " ".join(f"{float(x.period):.4g}" for x in runs),
        }
    return row


# --- (b) solvers
# ------------------------------------------------------------------------------------------


def solvers() -> list[dict[str, Any]]:
    """`repetend`, `tessel` and `time-optimal` for n = 1..8 on every shape, and the first two on 8
    devices.
    """
    rows = []
    limit = 5.0
    for name in SHAPES:
        for devices in (4, 8):
            problem = po.load_pipeline(f"shape:{name}?devices={devices}")
            for solver in ("repetend", "tessel"):
                seconds = 10.0 if solver == "tessel" else SECONDS[devices]
                options = {"num_workers": 1}
                result, clock = timed(
                    problem, solver, seconds=seconds, micro_batches=128, **options
                )
                rows.append(solver_row(name, devices, solver, "", result, clock))
        problem = po.load_pipeline(f"shape:{name}?devices=4")
        for n in range(1, 9):
            result, clock = timed(
                problem, "time-optimal", seconds=limit, micro_batches=n, num_workers=1
            )
            rows.append(solver_row(name, 4, "time-optimal", n, result, clock))
            if clock.wall > limit:
                break  # larger n take longer still
    return rows


def solver_row(
    name: str, devices: int, solver: str, n: Any, result: Any, clock: Clock
) -> dict[str, Any]:
    """Return one run."""
    found = result.solution
    exact = found is not None and (
        found.makespan <= found.makespan_bound
        if solver == "time-optimal"
        else result.status == "optimal" or found.period == found.size_bound
    )
    row = {
        "shape": name,
        "devices": devices,
        "solver": solver,
        "micro_batches": n,
        "candidates": result.evaluations,
        "cpu": round(clock.cpu, 3),
        "wall": round(clock.wall, 3),
        "period": "" if found is None else round(float(found.period), 4),
        "makespan": "" if found is None else found.makespan,
        "proved": exact,
        "authors_fast_cpu": AUTHORS_FAST_CPU[name]
        if devices == 4 and solver != "time-optimal"
        else "",
    }
    print(row, flush=True)
    return row


# --- (c) makespans
# ----------------------------------------------------------------------------------------


def makespans() -> list[dict[str, Any]]:
    """Makespan of 128 micro-batches, without a memory limit and under the least that keeps the
    period at the load.
    """
    rows = []
    for name in SHAPES:
        for capacity in (None, {"V": 4, "X": 4, "K": 3, "M": 5, "NN": 6}[name]):
            problem = po.load_pipeline(
                f"shape:{name}?devices=4", memory=capacity, micro_batches=128
            )
            result, clock = timed(
                problem, "repetend", seconds=SECONDS[4], num_workers=WORKERS, patterns=4
            )
            found = result.solution
            rows.append(
                {
                    "shape": name,
                    "capacity": capacity or "none",
                    "makespan": found.makespan,
                    "best_known": BEST_MAKESPAN[name],
                    "bound": found.makespan_bound,
                    "peak_memory": max(found.peak_memory),
                    "cpu": round(clock.cpu, 2),
                    "wall": round(clock.wall, 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


# --- (d) the same placement, and the same cap
# --------------------------------------------------------------


REPEATS = 3


def capped() -> list[dict[str, Any]]:
    """`repetend` and `tessel` under the memory that the authors' code was given and without a
    limit, three runs each by turns.

    The completion to 128 micro-batches is included.
    """
    cases = [
        (name, solver, memory)
        for name, (cap, _) in AUTHORS_CAPPED_CPU.items()
        for memory in (cap, None)
        for solver in ("repetend", "tessel")
    ]
    spent: dict[Any, list[float]] = {case: [] for case in cases}
    found = {}
    for case in cases * REPEATS:
        name, solver, memory = case
        problem = po.load_pipeline(f"shape:{name}?devices=4", memory=memory)
        found[case], clock = timed(problem, solver, seconds=40.0, micro_batches=128, num_workers=1)
        spent[case].append(clock.cpu)
    rows = []
    for case in cases:
        name, solver, memory = case
        best, (low, middle, high) = found[case].solution, sorted(spent[case])
        authors = AUTHORS_FAST_CPU[name] if memory is None else AUTHORS_CAPPED_CPU[name][1]
        rows.append(
            {
                "shape": name,
                "solver": solver,
                "capacity": "none" if memory is None else memory,
                "runs": REPEATS,
                "cpu": round(middle, 3),
                "cpu_low": round(low, 3),
                "cpu_high": round(high, 3),
                "period": float(best.period),
                "makespan": best.makespan,
                "authors_cpu": authors,
            }
        )
        print(rows[-1], flush=True)
    return rows


def placements() -> list[dict[str, Any]]:
    """On every shape: 1F1B generalised (Chimera on X) with the memory it takes, and the search with
    that and with any memory.
    """
    rows = []
    for name, baseline in SAME_PLACEMENT.items():
        problem = po.load_pipeline(f"shape:{name}?devices=4", micro_batches=128)
        known = schedule(problem, baseline)
        row: dict[str, Any] = {
            "shape": name,
            "baseline": baseline,
            "memory": max(known.peak_memory),
            "baseline_period": float(known.period),
            "baseline_makespan": known.makespan,
        }
        for label, memory in (("same_memory", known.peak_memory), ("any_memory", None)):
            found = schedule(
                problem.with_capacity(memory), "repetend", seconds=SECONDS[4], num_workers=WORKERS
            )
            row |= {f"{label}_period": float(found.period), f"{label}_makespan": found.makespan}
        rows.append(row | {"work": int(problem.work.max())})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
