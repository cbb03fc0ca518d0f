"""Every released graph of Doppler on 4 and 8 devices: heuristics, searches and policies at equal
evaluations, and the bound.

    PLACEOPT_DATA=../shared/data python results/doppler/study.py [--again METHOD ...] [--for
    SECONDS]

Writes results/doppler/runs.csv row by row and skips rows that are there, so that it may be stopped
and continued; `--again` measures the rows of some methods anew, `--for` starts no further row after
so many seconds. Then equal_time.csv: the searches and what learns, three runs each, once more on 4
devices with as many evaluations as the processor seconds of the dual policy from the critical path
allow, by the seconds per evaluation in runs.csv. The tables of README.md are drawn from both by
`python results/draw.py`. Devices are identical, transfers have no contention; values are ticks /
1e10, as the released simulator prints them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.experiments.studies import data_folder, half_width, read_csv, write_csv
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.problem import PlacementProblem

HERE = Path(__file__).parent
DATA = data_folder("doppler")
SCALE = 1e-10
EVALUATIONS, SEEDS, FEWER = 4000, 5, 3
"""Evaluations and runs of a method that draws; fewer runs of those whose networks are torch's,
which are slow."""

TORCH = ("recurrent-placer", "visiting-placer", "graph-placer", "soft-grouper", "neural-parsing")
WARM = 64
"""Evaluations that a method has before its first row, so that nothing is loaded while it is
measured."""

GRAPHS = (
    *(
        (name, devices)
        for name in ("chain_mm", "ffnn", "llama_block", "llama_layer")
        for devices in (4, 8)
    ),
    ("llama_block_8gpu", 8),
)
"""(file, devices); the file that was released for eight GPUs is taken on eight only."""

Method = tuple[str, dict[str, Any], dict[str, Any], int]
CRITICAL: dict[str, Any] = {"teacher": "critical-path"}
EPISODES: dict[str, Any] = {"groups": 0.0, "episodes": 1.0, "windows": 0.0}
WHOLE: dict[str, Any] = {**CRITICAL, **EPISODES}
SCRATCH: dict[str, Any] = {"teacher": "", "warm_start": False}
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "recurrent-placer, scratch": ("recurrent-placer", SCRATCH),
    "visiting-placer (Placeto), scratch": ("visiting-placer", SCRATCH),
    "graph-placer (GDP), scratch": ("graph-placer", SCRATCH),
    "grouper-placer, scratch": ("grouper-placer", SCRATCH),
    "soft-grouper, scratch": ("soft-grouper", SCRATCH),
    "neural-parsing, no teacher": ("neural-parsing", {"teacher": ""}),
    "grouper-placer, edge zeroing": ("grouper-placer", {}),
    "graph-parsing, edge zeroing": ("graph-parsing", {}),
    "post, edge zeroing": ("post", {}),
    "dual-policy, scratch, whole episodes": (
        "dual-policy",
        {"teacher": "", "imitation": 0, "start": "scratch", **EPISODES},
    ),
    "dual-policy, critical path, whole episodes": ("dual-policy", WHOLE),
    "the same, only SEL learns": ("dual-policy", {**WHOLE, "learn": "sel"}),
    "the same, only PLC learns": ("dual-policy", {**WHOLE, "learn": "plc"}),
    "the same, nothing learns": ("dual-policy", {**WHOLE, "learn": "none"}),
    "dual-policy, critical path": ("dual-policy", CRITICAL),
    "dual-policy, edge zeroing": ("dual-policy", {"teacher": "edge-zeroing"}),
}
"""What learns, as its authors had it (from scratch) or from the placement of a heuristic: label,
solver and options."""

SEARCHES = ("cross-entropy", "annealing", "genetic")
METHODS: dict[str, Method] = {
    "critical path, best of 50": ("critical-path", {}, {"evaluations": 50}, SEEDS),
    "enumerative": ("enumerative", {}, {}, 1),
    **{
        name: (name, {}, {}, 1)
        for name in (
            "round-robin",
            "heft",
            "etf",
            "m-etf",
            "m-sct",
            "dsc",
            "edge-zeroing",
            "min-cut",
        )
    },
    **{name: (name, {}, {"evaluations": EVALUATIONS}, SEEDS) for name in ("random", *SEARCHES)},
    **{
        label: (*method, {"evaluations": EVALUATIONS}, FEWER if method[0] in TORCH else SEEDS)
        for label, method in LEARNERS.items()
    },
    "portfolio, 15 s": ("portfolio", {}, {"seconds": 15}, 1),
    "cp-sat, 20 s": ("cp-sat", {}, {"seconds": 20}, 1),
}
"""Method: solver, options, budget, seeds."""

CLOCK = "dual-policy, critical path"
"""The method whose processor seconds all others have in equal_time.csv."""

TIMED = (*SEARCHES, *(name for name in LEARNERS if not name.startswith("the same")))
TIMED_GRAPHS = tuple(graph for graph in GRAPHS if graph[1] == 4)
"""What is run at equal time: all but the ablations of the policy gradient, on the graphs for four
devices."""

Key = tuple[str, int, str]
warmed: set[str] = set()


def row_of(problem: PlacementProblem, method: Method) -> dict[str, Any]:
    """Return mean, best and worst value of the seeds, the best bound that a run proved, and the
    mean of the seconds.
    """
    solver, options, budget, seeds = method
    if "evaluations" in budget and solver not in warmed:
        warmed.add(solver)
        make_solver(solver, **options).solve(problem, po.Budget(evaluations=WARM))
    began = time.process_time()
    results = [
        make_solver(solver, **options).solve(problem, po.Budget(**budget), seed=seed)
        for seed in range(seeds)
    ]
    cpu = (time.process_time() - began) / seeds
    values = [result.objective * SCALE for result in results]
    return {
        "runs": seeds,
        "evaluations": budget.get("evaluations", ""),
        "mean": round(mean(values), 4),
        "interval": round(half_width(values), 4) if seeds > 1 else "",
        "best": round(min(values), 4),
        "worst": round(max(values), 4),
        "bound": round(max(result.lower_bound for result in results) * SCALE, 4),
        "seconds": round(mean(result.runtime for result in results), 2),
        "cpu": round(cpu, 3),
    }


def problem_of(graph: str, devices: int) -> PlacementProblem:
    """Load one released graph."""
    return po.load(str(DATA / f"{graph}.txt"), cluster=f"uniform:{devices}")


def at_equal_evaluations(rows: dict[Key, dict[str, Any]]) -> Iterator[tuple[Key, Method]]:
    """Yield what is missing in runs.csv."""
    for graph, devices in GRAPHS:
        for name, method in METHODS.items():
            if (graph, devices, name) not in rows:
                yield (graph, devices, name), method


def at_equal_time(
    rows: dict[Key, dict[str, Any]], runs: dict[Key, dict[str, Any]]
) -> Iterator[tuple[Key, Method]]:
    """Yield what is missing in equal_time.csv: each method with the evaluations that the processor
    seconds allow.
    """
    for graph, devices in TIMED_GRAPHS:
        seconds = float(runs[graph, devices, CLOCK]["cpu"])
        for name in TIMED:
            if (graph, devices, name) not in rows:
                solver, options, budget, _ = METHODS[name]
                share = seconds / float(runs[graph, devices, name]["cpu"])
                allowed = max(1, round(budget["evaluations"] * share))
                yield (graph, devices, name), (solver, options, {"evaluations": allowed}, FEWER)


def record(
    path: Path, rows: dict[Key, dict[str, Any]], missing: Iterator[tuple[Key, Method]], end: float
) -> bool:
    """Run what is missing, writing after each row; return whether all is there."""
    place = {
        (*graph, name): i
        for i, (graph, name) in enumerate((graph, name) for graph in GRAPHS for name in METHODS)
    }
    for key, method in missing:
        if time.monotonic() > end:
            print(f"stopped before {key}; run it again to continue")
            return False
        graph, devices, name = key
        rows[key] = {
            "graph": graph,
            "devices": devices,
            "method": name,
            **row_of(problem_of(graph, devices), method),
        }
        print(*rows[key].values(), sep="  ", flush=True)
        write_csv(path, [rows[one] for one in sorted(rows, key=place.__getitem__)])
    return True


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--again",
        nargs="*",
        default=[],
        metavar="METHOD",
        help="solvers whose rows are measured anew",
    )
    parser.add_argument(
        "--for", dest="limit", type=float, default=float("inf"), help="start no row after so long"
    )
    given = parser.parse_args()
    end = time.monotonic() + given.limit
    runs, timed = (
        {
            (row["graph"], int(row["devices"]), row["method"]): row
            for row in read_csv(HERE / file)
            if row["method"] in METHODS and METHODS[row["method"]][0] not in given.again
        }
        for file in ("runs.csv", "equal_time.csv")
    )
    if record(HERE / "runs.csv", runs, at_equal_evaluations(runs), end):
        record(HERE / "equal_time.csv", timed, at_equal_time(timed, runs), end)


if __name__ == "__main__":
    main()
