"""Fit the cost model to one half of the measured runs and judge it on the other: one command.

    PLACEOPT_DATA=../shared/data python results/plans/calibrate.py [final] [halves]

Halves hold whole groups of (model, devices), by a hash of both. runs.csv: errors of the step by
source and devices, fitted half and the one apart. choices.csv: groups of rows that differ in the
plan alone. memory.csv: peaks and rows out of memory. constants.csv: the constants with bootstrapped
intervals. `final` fits all rows and writes placeopt/plans/calibration.json; `halves` judges and
keeps there the spread of measured over predicted on rows that were not fitted.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import placeopt.plans
from placeopt.experiments.studies import data_folder, write_csv
from placeopt.model.errors import InputError
from placeopt.planning.fit_runs import fit, fit_memory, usable
from placeopt.planning.run_rows import read_run
from placeopt.planning.runs_table import USABLE, predict_run, read_runs
from placeopt.plans.calibration import CONSTANTS, Calibration, read_calibration, spread_key

HERE = Path(__file__).parent
Row = dict[str, Any]
BOTH = "each row by the fit that did not see it"


def half(row: Row) -> int:
    """Return the half of a row: whole models and device counts apart."""
    key = f"{row['model']} {row['n_gpus']}"
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2


def predictions(rows: list[Row], constants: Calibration) -> list[Row]:
    """Return the rows that can be priced, with predicted and measured step and memory."""
    found = []
    for row in rows:
        try:
            run = read_run(row)
        except InputError:
            continue
        parts, memory, run, _ = predict_run(run, constants)
        found.append(row | {"run": run, "step": parts.total, "memory": memory.total})
    return found


def errors(rows: list[Row], kind: str) -> list[Row]:
    """Return error statistics of the step by source and devices."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["run"].seconds and not row["flag"]:
            ratio = row["step"] / row["run"].seconds
            for key in ((row["source"], row["gpu"]), (row["source"], "all"), ("all", "all")):
                groups[key].append(ratio)
    table = []
    for (source, gpu), ratios in sorted(groups.items()):
        off = 100 * np.abs(np.array(ratios) - 1)
        table.append(
            {
                "half": kind,
                "source": source,
                "gpu": gpu,
                "rows": len(off),
                "median": round(float(np.median(off)), 2),
                "mean": round(float(off.mean()), 2),
                "worst": round(float(off.max()), 1),
                "predicted_by_measured": round(float(np.median(ratios)), 3),
            }
        )
    return table


def choices(rows: list[Row], kind: str) -> list[Row]:
    """Return, for every group of rows that differ in the plan alone, how the first choice did."""
    same = ("source", "model", "layers", "hidden", "seq_len", "gpu", "gpu_memory_gb", "n_gpus")
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["run"].seconds and not row["flag"]:
            rest = (row["global_batch"], row["precision"], row["framework"], row["kind"])
            groups[(*(row[key] for key in same), *rest)].append(row)
    plans = ("tp", "pp", "vp", "dp", "cp", "ep", "micro_batch", "sharding", "recompute")
    table = []
    for key, members in groups.items():
        if len({tuple(row[name] for name in plans) for row in members}) < 4:
            continue
        first = min(members, key=lambda row: row["step"])
        best = min(row["run"].seconds for row in members)
        table.append(
            {
                "half": kind,
                "source": key[0],
                "model": key[1],
                "gpu": key[5],
                "devices": key[7],
                "batch": key[8],
                "plans": len(members),
                "measured_by_best": round(first["run"].seconds / best, 4),
            }
        )
    return table


def memory(rows: list[Row], kind: str) -> list[Row]:
    """Return errors of peaks, and how rows that say whether they fit were called, by source."""
    table = []
    for source in sorted({row["source"] for row in rows}):
        mine = [row for row in rows if row["source"] == source]
        peaks = [
            abs(row["memory"] / 2**30 / row["run"].memory_gb - 1)
            for row in mine
            if row["run"].memory_gb
        ]
        called = [
            (row["run"].oom, row["memory"] > USABLE * row["run"].gpu.memory)
            for row in mine
            if row["run"].oom is not None
        ]
        if peaks or called:
            table.append(
                {
                    "half": kind,
                    "source": source,
                    "peaks": len(peaks),
                    "median_error": round(100 * float(np.median(peaks)), 1) if peaks else "",
                    "said": len(called),
                    "called_right": sum(a == b for a, b in called),
                    "out_of_memory": sum(a for a, _ in called),
                    "of_them_called": sum(a and b for a, b in called),
                }
            )
    return table


def spreads(rows: list[Row]) -> dict[str, list[float]]:
    """Return the tenths of measured over predicted on rows apart, by kind of run."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        run = row["run"]
        if run.seconds and not row["flag"]:
            for key in (spread_key(run.conf, run.gpu), "all"):
                groups[key].append(run.seconds / row["step"])
    return {
        key: [*np.round(np.percentile(ratios, (10, 90)), 3).tolist(), len(ratios)]
        for key, ratios in groups.items()
    }


def final(rows: list[Row]) -> None:
    """Fit all rows and write the calibration of the package; its spread stays."""
    runs = usable(rows)
    said = f"fitted to {len(runs)} measured runs by results/plans/calibrate.py"
    fitted = fit(runs, Calibration(), said)
    path = Path(placeopt.plans.__file__).parent / "calibration.json"
    spread = read_calibration(path).spread if path.is_file() else {}
    replace(fitted, spread=spread).save(path)
    table = [
        {
            "constant": name,
            "start": start,
            "value": fitted[name],
            "low": fitted.intervals[name][0],
            "high": fitted.intervals[name][1],
            "what": what,
        }
        for name, (start, what) in CONSTANTS.items()
    ]
    write_csv(HERE / "constants.csv", table)
    for row in table:
        print(*row.values())


def refit_memory(rows: list[Row]) -> None:
    """Fit the constants of memory again, the others as they are."""
    path = Path(placeopt.plans.__file__).parent / "calibration.json"
    known = read_calibration(path)
    fitted = fit_memory(usable(rows), known)
    replace(known, memory=fitted).save(path)
    table = memory(predictions(rows, read_calibration(path)), "all, as shipped")
    write_csv(HERE / "memory.csv", table)
    for row in [fitted, *table]:
        print(*row.items())


def halves(rows: list[Row]) -> None:
    """Fit each half, judge it on the other, and keep the spread that the others had."""
    path = Path(placeopt.plans.__file__).parent / "calibration.json"
    parts = [[row for row in rows if half(row) == side] for side in (0, 1)]
    tables: dict[str, list[Row]] = defaultdict(list)
    apart: list[Row] = []
    for side in (0, 1):
        constants = fit(usable(parts[side]), Calibration())
        for kind, part in (("fitted", parts[side]), ("apart", parts[1 - side])):
            found = predictions(part, constants)
            apart += found if kind == "apart" else []
            name = f"{'AB'[side]} {kind}"
            tables["runs"] += errors(found, name)
            tables["choices"] += choices(found, name)
            tables["memory"] += memory(found, name)
    tables["runs"] += errors(apart, BOTH)
    tables["memory"] += memory(predictions(rows, read_calibration(path)), "all, as shipped")
    for name, table in tables.items():
        write_csv(HERE / f"{name}.csv", table)
    replace(read_calibration(path), spread=spreads(apart)).save(path)
    for name in ("runs", "memory"):
        for row in tables[name]:
            if "apart" in row["half"] or row["half"] == BOTH:
                print(name, *row.values())
    for source in sorted({row["source"] for row in tables["choices"]}):
        ratios = [
            row["measured_by_best"]
            for row in tables["choices"]
            if "apart" in row["half"] and row["source"] == source
        ]
        near = float(np.mean(np.array(ratios) <= 1.1))
        print("choices", source, len(ratios), np.mean(ratios), near, max(ratios))


def main() -> None:
    """Fit, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", default=["final", "halves"])
    rows = read_runs(data_folder("measured") / "training_runs.csv")
    for stage in parser.parse_args().stages:
        {"final": final, "halves": halves, "memory": refit_memory}[stage](rows)


if __name__ == "__main__":
    main()
