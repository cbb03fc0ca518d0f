"""Every released graph of Doppler on 4 and 8 devices: heuristics, searches and policies at equal evaluations, and the bound.

    PLACEOPT_DATA=../shared/data python results/doppler/study.py [--again METHOD ...] [--for SECONDS]

Writes results/doppler/runs.csv row by row and skips rows that are there, so that it may be stopped and continued; `--again`
measures the rows of some methods anew, `--for` starts no further row after so many seconds. The tables of README.md are
drawn from it by `python results/draw.py`. Devices are identical, transfers have no contention; values are ticks / 1e10, as the
released simulator prints them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.experiments.studies import data_folder, read_csv, write_csv
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from placeopt.model.problem import PlacementProblem

HERE = Path(__file__).parent
DATA = data_folder("doppler")
SCALE = 1e-10
EVALUATIONS, SEEDS = 4000, 5
GRAPHS = (
    *((name, devices) for name in ("chain_mm", "ffnn", "llama_block", "llama_layer") for devices in (4, 8)),
    ("llama_block_8gpu", 8),
)
"""(file, devices); the file that was released for eight GPUs is taken on eight only."""

Method = tuple[str, dict[str, Any], dict[str, Any], int]
METHODS: dict[str, Method] = {
    "critical path, best of 50": ("critical-path", {}, {"evaluations": 50}, SEEDS),
    "enumerative": ("enumerative", {}, {}, 1),
    **{name: (name, {}, {}, 1) for name in ("round-robin", "heft", "etf", "m-etf", "m-sct", "dsc", "edge-zeroing", "min-cut")},
    **{name: (name, {}, {"evaluations": EVALUATIONS}, SEEDS)
       for name in ("random", "cross-entropy", "post", "annealing", "genetic", "grouper-placer", "graph-parsing")},
    "dual-policy, critical path": ("dual-policy", {"teacher": "critical-path"}, {"evaluations": EVALUATIONS}, SEEDS),
    "dual-policy, edge zeroing": ("dual-policy", {"teacher": "edge-zeroing"}, {"evaluations": EVALUATIONS}, SEEDS),
    "portfolio, 15 s": ("portfolio", {}, {"seconds": 15}, 1),
    "cp-sat, 20 s": ("cp-sat", {}, {"seconds": 20}, 1),
}  # fmt: skip
"""Method: solver, options, budget, seeds."""


def row_of(problem: PlacementProblem, method: Method) -> dict[str, Any]:
    """Return mean, best and worst value of the seeds, the best bound that a run proved, and the mean of the seconds."""
    solver, options, budget, seeds = method
    results = [make_solver(solver, **options).solve(problem, po.Budget(**budget), seed=seed) for seed in range(seeds)]
    values = [result.objective * SCALE for result in results]
    return {
        "runs": seeds, "evaluations": budget.get("evaluations", ""), "mean": round(mean(values), 4), "best": round(min(values), 4),
        "worst": round(max(values), 4), "bound": round(max(result.lower_bound for result in results) * SCALE, 4),
        "seconds": round(mean(result.runtime for result in results), 2),
    }  # fmt: skip


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="*", default=[], metavar="METHOD", help="solvers whose rows are measured anew")
    parser.add_argument("--for", dest="limit", type=float, default=float("inf"), help="start no row after so long")
    given = parser.parse_args()
    path, end = HERE / "runs.csv", time.monotonic() + given.limit
    rows = {(row["graph"], int(row["devices"]), row["method"]): row for row in read_csv(path)
            if row["method"] in METHODS and METHODS[row["method"]][0] not in given.again}  # fmt: skip
    for graph, devices in GRAPHS:
        problem = po.load(str(DATA / f"{graph}.txt"), cluster=f"uniform:{devices}")
        for name, method in METHODS.items():
            if (graph, devices, name) in rows:
                continue
            if time.monotonic() > end:
                print(f"stopped before {graph} on {devices}, {name}; run it again to continue")
                return
            rows[graph, devices, name] = {"graph": graph, "devices": devices, "method": name, **row_of(problem, method)}
            print(*rows[graph, devices, name].values(), sep="  ", flush=True)
            order = {key: i for i, key in enumerate((g, k, m) for g, k in GRAPHS for m in METHODS)}
            write_csv(path, [rows[key] for key in sorted(rows, key=order.__getitem__)])


if __name__ == "__main__":
    main()
