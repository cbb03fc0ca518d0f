"""Every released graph of Doppler on 4 and 8 devices: heuristics, searches and policies at equal
evaluations, and the bound.

    PLACEOPT_DATA=../shared/data python results/doppler/study.py [--again] [--only METHOD]

A grid whose rows are there are kept (`--help` says what else): runs.csv, then equal_time.csv: the
searches and what learns, three runs each, once more on 4 devices with as many evaluations as the
processor seconds of the dual policy from the critical path allow, by the seconds per evaluation in
runs.csv. The tables of README.md are drawn from both by `python results/draw.py`. Devices are
identical, transfers have no contention; values are ticks / 1e10, as the released simulator prints
them; processor seconds are the least of the runs, so that nothing is loaded in them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from placeopt.experiments.studies import data_folder, grid_options, half_width, record_grid
from placeopt.experiments.study import Study, expand

if TYPE_CHECKING:
    from placeopt.experiments.study import Cell

HERE = Path(__file__).parent
DATA = data_folder("doppler")
SCALE = 1e-10
EVALUATIONS, SEEDS, FEWER = 4000, 5, 3
"""Evaluations and runs of a method that draws; fewer runs of those whose networks are torch's,
which are slow."""

TORCH = ("recurrent-placer", "visiting-placer", "graph-placer", "soft-grouper", "neural-parsing")
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
EPISODES: dict[str, Any] = {"groups": 0.0, "episodes": 1.0}
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
    **{
        name: (name, {}, {"seconds": 60}, 1)
        for name in (
            "enumerative",
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


def cells_of(graph: str, devices: int, methods: dict[str, Method]) -> list[Cell]:
    """Return the runs of some methods on one released graph."""
    return expand(
        Study.model_validate(
            {
                "name": "doppler",
                "instances": [str(DATA / f"{graph}.txt")],
                "clusters": [f"uniform:{devices}"],
                "solvers": [
                    {"name": solver, "label": label, "options": options, "seeds": {"count": runs}}
                    | budget
                    for label, (solver, options, budget, runs) in methods.items()
                ],
            }
        )
    )


def named(cell: Cell) -> dict[str, Any]:
    """Return graph, devices and method of a run."""
    devices = str(cell.cluster).removeprefix("uniform:")
    return {"graph": Path(cell.instance).stem, "devices": devices, "method": cell.label}


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, best and worst value of the seeds, the best bound that a run proved, the mean of
    the seconds and the least processor seconds.
    """
    values = [row["value"] * SCALE for row in rows]
    return {
        "runs": len(rows),
        "evaluations": rows[0]["budget"]["evaluations"] or "",
        "mean": round(mean(values), 4),
        "interval": round(half_width(values), 4) if len(rows) > 1 else "",
        "best": round(min(values), 4),
        "worst": round(max(values), 4),
        "bound": round(max(row["lower_bound"] for row in rows) * SCALE, 4),
        "seconds": round(mean(row["runtime"] for row in rows), 2),
        "cpu": round(min(row["cpu"] for row in rows), 3),
    }


def at_equal_time(graph: str, devices: int, runs: list[dict[str, Any]]) -> list[Cell]:
    """Return the runs of each method with the evaluations that the processor seconds allow."""
    spent = {
        row["method"]: float(row["cpu"])
        for row in runs
        if (row["graph"], row["devices"]) == (graph, str(devices))
    }
    timed: dict[str, Method] = {}
    for name in TIMED if {CLOCK, *TIMED} <= set(spent) else ():
        solver, options, budget, _ = METHODS[name]
        allowed = max(1, round(budget["evaluations"] * spent[CLOCK] / spent[name]))
        timed[name] = solver, options, {"evaluations": allowed}, FEWER
    return cells_of(graph, devices, timed) if timed else []


def main() -> None:
    """Run what is missing."""
    given = grid_options(__doc__)
    cells = [cell for graph in GRAPHS for cell in cells_of(*graph, METHODS)]
    runs = record_grid(HERE / "runs.csv", cells, named, summed, given)
    timed = [cell for graph in TIMED_GRAPHS for cell in at_equal_time(*graph, runs)]
    if timed:
        record_grid(HERE / "equal_time.csv", timed, named, summed, given)


if __name__ == "__main__":
    main()
