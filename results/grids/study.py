"""What a grid costs beside its solvers: overhead per cell, two cores against one, and the report of
100,000 runs.

Run `python results/grids/study.py [PART ...] [--again]` (three minutes; parts: overhead, two_cores,
report). Every part writes a CSV file beside this one, and one that is there is kept unless it is to
be measured `--again`; README.md is drawn from the files. Every grid runs in a temporary folder,
through the same call as `placeopt bench`, with the results synced to disk after every cell.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.experiments.report import write_report
from placeopt.experiments.runner import run_study
from placeopt.experiments.store import read_rows
from placeopt.experiments.studies import ORIGIN, Clock, read_csv, write_csv
from placeopt.experiments.study import Study

HERE = Path(__file__).resolve().parent
SHORT, LONG, ROWS = 1000, 60, 100_000


class CellClock:
    """A reporter that notes when cells finish."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def begin(self, summary: object, finished: object) -> None:
        """Nothing to note."""

    def finished(self, summary: object, row: object) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


PARTS = ("overhead", "two_cores", "report")


def main(words: list[str]) -> None:
    """Measure the parts that are missing, then draw the page."""
    again = "--again" in words
    for part in [word for word in words if word in PARTS] or PARTS:
        if again or not (HERE / f"{part}.csv").exists():
            with tempfile.TemporaryDirectory() as folder:
                write_csv(HERE / f"{part}.csv", measured(part, Path(folder)), 3)
    if all((HERE / f"{part}.csv").exists() for part in PARTS):
        write_page(*(read_csv(HERE / f"{name}.csv") for name in (*PARTS, "faults")))


def measured(part: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a part."""
    if part == "overhead":
        return [
            overhead(folder, jobs, backend)
            for jobs, backend in ((1, "loky"), (2, "loky"), (2, "threading"))
        ]
    if part == "two_cores":
        return [grid(folder, jobs) for jobs in (1, 2)]
    return [{"rows": ROWS, **report_time(folder / "many"), "sync_ms": sync_time(folder / "sync")}]


def overhead(folder: Path, jobs: int, backend: str) -> dict[str, object]:
    """Return the milliseconds between finished cells that do next to nothing, once all workers are
    up.
    """
    study = Study(
        name=f"short-{backend}-{jobs}",
        instances=["gen:vgg16"],
        clusters=["2xA100"],
        solvers=[{"name": "round-robin"}],
        seeds={"count": SHORT},
        seconds=1,
    )
    clock = CellClock()
    started = time.perf_counter()
    summary = run_study(study, folder, jobs=jobs, backend=backend, reporter=clock)
    assert summary.done == SHORT
    rows = list(read_rows(folder / study.name / "runs.jsonl"))
    inside = float(np.median([row["runtime"] for row in rows]))
    steady = clock.times[SHORT // 10 :]
    between = (steady[-1] - steady[0]) / (len(steady) - 1)
    return {
        "backend": backend,
        "jobs": jobs,
        "cells": SHORT,
        "seconds": round(summary.seconds, 2),
        "first_cell_seconds": round(clock.times[0] - started, 2),
        "ms_per_cell": round(1e3 * between, 2),
        "solver_ms": round(1e3 * inside, 2),
        "overhead_ms": round(1e3 * (between - inside / jobs), 2),
    }


def grid(folder: Path, jobs: int) -> dict[str, float]:
    """Return the wall seconds of a grid of searches of about a second each, starting the workers
    included.
    """
    study = Study(
        name=f"long-{jobs}",
        instances=["gen:layered?layers=20&width=20&seed=1"],
        clusters=["4xA100"],
        solvers=[{"name": "cross-entropy", "options": {"threads": 1}}],
        seeds={"count": LONG},
        evaluations=30_000,
    )
    started = time.perf_counter()
    summary = run_study(study, folder, jobs=jobs)
    rows = list(read_rows(folder / study.name / "runs.jsonl"))
    assert summary.done == LONG
    return {
        "jobs": jobs,
        "wall": time.perf_counter() - started,
        "solver": sum(row["runtime"] for row in rows),
    }


def report_time(folder: Path) -> dict[str, float]:
    """Return wall and CPU seconds of the report of 10^5 runs: 50 instances, 4 solvers, 500
    seeds.
    """
    folder.mkdir()
    rng = np.random.default_rng(0)
    with (folder / "runs.jsonl").open("w") as file:
        for i in range(ROWS):
            instance, label, seed = f"i{i % 50}", f"s{i // 50 % 4}", i // 200
            value = int(rng.integers(100, 200))
            trace = [[0.1 * j, 100 * j, value + 100 - 20 * j, 10] for j in range(1, 6)]
            row = {
                "key": f"{i}",
                "instance": instance,
                "cluster": "uniform:2",
                "problem_hash": instance,
                "objective": "makespan",
                "label": label,
                "solver": label,
                "seed": seed,
                "value": value,
                "lower_bound": 90,
                "bound_method": "load",
                "gap": 1 - 90 / value,
                "status": "feasible",
                "evaluations": 500,
                "runtime": 0.5,
                "version": "0",
                "error": None,
                "trace": trace,
            }
            file.write(json.dumps(row) + "\n")
    write_report(folder, folder / "warm")  # imports and fonts
    with Clock() as clock:
        write_report(folder, folder / "out")
    return {"wall": clock.wall, "cpu": clock.cpu}


def sync_time(path: Path) -> float:
    """Return the milliseconds of one appended and synced line, which every cell costs whatever runs
    it.
    """
    line = b"x" * 700 + b"\n"
    times = []
    with path.open("ab", buffering=0) as file:
        for _ in range(200):
            started = time.perf_counter()
            file.write(line)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times))


def write_page(
    short: list[dict[str, str]],
    long: list[dict[str, str]],
    reports: list[dict[str, str]],
    failing: list[dict[str, str]],
) -> None:
    """Write README.md from the rows of the parts."""
    report, one, two = (
        {key: float(value) for key, value in row.items() if key not in ORIGIN}
        for row in (reports[0], *long)
    )
    lines = [
        f"| {r['backend']} | {r['jobs']} | {r['seconds']} | {r['first_cell_seconds']} | "
        f"{r['ms_per_cell']} | {r['solver_ms']} | "
        f"{r['overhead_ms']} |"
        for r in short
    ]
    word = "" if report["wall"] < 10 else ", missed in this run"
    text = "\n".join(
        [
            "# What a grid costs beside its solvers",
            "",
            "```bash",
            "python results/grids/study.py",
            "```",
            "",
            "Measured on two cores of a shared virtual machine.",
            "",
            "## Overhead per cell",
            "",
            f"{SHORT} cells that do next to nothing (round-robin on VGG-16). Wall time between "
            "finished cells after the",
            "first tenth, less the solver's own runtime divided by the jobs: dispatch, the guard "
            "against hanging solvers, checking the",
            f"result, and a line synced to disk ({report['sync_ms']:.2f} ms alone). Target: under "
            "5 ms on loky.",
            "",
            "| back end | jobs | all cells, s | first cell, s | ms a cell | solver, ms | overhead, "
            "ms |",
            "|---|---|---|---|---|---|---|",
            *lines,
            "",
            "## Two cores against one",
            "",
            f"{LONG} cells of cross-entropy with 30,000 evaluations on 400 ops, one thread each:",
            "",
            "| jobs | wall, s | sum of the solvers' runtimes, s |",
            "|---|---|---|",
            *(f"| {r['jobs']:.0f} | {r['wall']:.1f} | {r['solver']:.1f} |" for r in (one, two)),
            "",
            f"Two jobs finish the grid {one['wall'] / two['wall']:.2f} times as fast as one; each "
            "cell runs "
            f"{two['solver'] / one['solver']:.2f} times as long beside another.",
            "",
            f"## Report of {ROWS:,} runs",
            "",
            f"50 instances, 4 solvers, 500 seeds, 5 trace points a run: {report['wall']:.1f} s "
            f"({report['cpu']:.1f} CPU s), with",
            f"tables, three charts in two formats and the HTML page. Target: under 10 s{word}.",
            "",
            *faults(failing),
        ]
    )
    (HERE / "README.md").write_text(text)


def faults(failing: list[dict[str, str]]) -> list[str]:
    """Return the lines on failing workers, scheduler and disk, from the rows of faults.py."""
    rows = [
        f"| {r['part']} | {r['cells']} | {r['missing']} | {r['twice']} | {r['failed']} | "
        f"{r['other_value']} |"
        for r in failing
    ]
    return [
        "## When workers, scheduler or disk fail",
        "",
        "```bash",
        "python results/grids/faults.py",
        "```",
        "",
        "1000 cells on a Dask scheduler with four worker processes. `workers`: one is killed every other",
        "second, and another one started. `scheduler`: it is killed half way; the command ends with one",
        "line, and goes on with the rest when it is started again. `disk`: every sync takes 20 ms longer.",
        "Values are held against those of the same grid on loky.",
        "",
        "| what fails | cells | missing | twice | failed | other value |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
