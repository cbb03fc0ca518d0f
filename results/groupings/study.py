"""Post's, Liu et al.'s and HSDAG's workloads: every baseline of these papers at equal evaluations,
and HSDAG's ablations.

    python results/groupings/study.py [baselines | parsing] [--again] [--only METHOD]

A grid whose rows are there are kept (`--help` says what else); writes baselines.csv and parsing.csv
beside this file. What learns as its authors had it begins at random; what begins at a heuristic's
placement says so. All values are simulated makespans in ticks on generated graphs; processor
seconds are the least of the runs; the tables of README.md are drawn by `python results/draw.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import grid_options, half_width, kept_rows, record_grid
from placeopt.experiments.study import Study, expand
from placeopt.makespan.evaluate import best_queue
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    import argparse

    from placeopt.experiments.study import Cell
    from placeopt.model.problem import PlacementProblem

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "search"))

from study import HEURISTICS, expert  # noqa: E402 - results/ is no package; the study of search

EVALUATIONS, BOUND_SECONDS = 1200, 5
HARDWARE = {"gpus": ("2xP100", "4xP100"), "mixed": ("cpu+gpu",)}
WORKLOADS = (
    *(
        (f"gen:{name}", cluster)
        for name in ("inception-v3", "resnet50")
        for cluster in (*HARDWARE["gpus"], "8xP100")
    ),
    *(("gen:rnn-lm", cluster) for cluster in (*HARDWARE["gpus"], "8xP100")),
    *(("gen:nmt", cluster) for cluster in HARDWARE["gpus"]),
    *(("gen:nmt?training=1", cluster) for cluster in HARDWARE["gpus"]),
    *((f"gen:{name}", "cpu+gpu") for name in ("inception-v3", "resnet50", "bert-base")),
)
"""(instance, cluster): CNNs, RNN-LM and NMT on several GPUs (Post, Liu et al.), three models on CPU
and GPU (HSDAG)."""

SCRATCH: dict[str, Any] = {"teacher": "", "warm_start": False}
PARSING: dict[str, Any] = {"teacher": ""}
Methods = dict[str, tuple[str, dict[str, Any]]]
LEARNED: Methods = {
    "hierarchical": ("grouper-placer", SCRATCH),
    "soft groups, PPO": ("soft-grouper", {**SCRATCH, "learning": "ppo"}),
    "soft groups, REINFORCE": ("soft-grouper", {**SCRATCH, "learning": "reinforce"}),
    "recurrent": ("recurrent-placer", SCRATCH),
    "Post": ("post", {"start": "random"}),
    "parsing": ("neural-parsing", PARSING),
    "`cross-entropy`, from edge zeroing": ("cross-entropy", {}),
    "`dual-policy`, from edge zeroing": ("dual-policy", {}),
}
"""What learns or searches: label, solver and options. Post and parsing without a teacher; ours from
a heuristic."""

ABLATED: Methods = {
    name: ("neural-parsing", {**PARSING, "without": name})
    for name in (
        "none",
        "fractal_dimension",
        "position",
        "spectral",
        "centrality",
        "structure",
        "types",
        "parsing",
        "placing",
    )
}
"""HSDAG's parts, each left out; `structure` is all features but op types, `parsing` and `placing`
are what learns."""

PARTS: dict[str, tuple[tuple[tuple[str, str], ...], Methods, int]] = {
    "baselines": (WORKLOADS, LEARNED, 3),
    "parsing": (
        (
            *(case for case in WORKLOADS if case[1] == "cpu+gpu"),
            ("gen:inception-v3", "4xP100"),
            ("gen:llama-block", "4xP100"),
        ),
        ABLATED,
        5,
    ),
}
"""Part: workloads, methods, seeds."""

Row = dict[str, Any]
NAMED = "instance", "cluster", "method"


def summed(rows: list[Row]) -> Row:
    """Return the mean makespan of some seeds, half its 95 % interval, the best and the worst, and
    the least processor seconds.
    """
    values = [row["value"] for row in rows]
    return {
        "ops": po.load(rows[0]["instance"], cluster=rows[0]["cluster"]).num_ops,
        "runs": len(rows),
        "evaluations": EVALUATIONS,
        "mean": round(mean(values), 1),
        "interval": round(half_width(values), 1),
        "best": min(values),
        "worst": max(values),
        "cpu": round(min(row["cpu"] for row in rows), 2),
    }


def named(cell: Cell) -> Row:
    """Return workload and method of a run."""
    return dict(zip(NAMED, (cell.instance, cell.cluster, cell.label), strict=True))


def given_rows(instance: str, cluster: str) -> list[Row]:
    """Return the values that need no samples: the bound, one device, the expert, min-cut, the seed
    and the best heuristic.
    """
    problem = po.load(instance, cluster=cluster)
    singles = [value_on(problem, device) for device in range(problem.num_devices)]
    found = {
        name: make_solver(name).solve(problem, po.Budget()).objective
        for name in (*HEURISTICS, "min-cut")
    }
    best = min(HEURISTICS, key=found.__getitem__)
    values = {
        "bound": (po.bound(problem, seconds=BOUND_SECONDS).value, ""),
        "one device": (min(singles), ""),
        "expert": (best_queue(problem, po.Placement(expert(problem)))[0], ""),
        "min-cut": (found["min-cut"], ""),
        "edge zeroing": (found["edge-zeroing"], ""),
        "best heuristic": (found[best], best),
    }
    head = {"instance": instance, "cluster": cluster}
    return [
        {**head, "method": label, "ops": problem.num_ops, "runs": 1, "mean": value, "solver": name}
        for label, (value, name) in values.items()
    ]


def value_on(problem: PlacementProblem, device: int) -> int:
    """Return the makespan with every op on one device."""
    return best_queue(problem, po.Placement(np.full(problem.num_ops, device)))[0]


def record(part: str, given: argparse.Namespace) -> None:
    """Run what is missing of a part."""
    workloads, methods, seeds = PARTS[part]
    path = HERE / f"{part}.csv"
    beside: list[Row] = []
    cells: list[Cell] = []
    for instance, cluster in workloads:
        there = [
            row
            for row in kept_rows(path, given, NAMED[:2])
            if (row["instance"], row["cluster"]) == (instance, cluster)
            and row["method"] not in methods
        ]
        beside += there or given_rows(instance, cluster)
        solvers = [
            {"name": name, "label": label, "options": options}
            for label, (name, options) in methods.items()
        ]
        study = Study(
            name="groupings",
            instances=[instance],
            clusters=[cluster],
            solvers=solvers,
            seeds={"count": seeds},
            evaluations=EVALUATIONS,
        )
        cells += expand(study)
    record_grid(path, cells, named, summed, given, beside)


def main() -> None:
    """Run the parts that are named, both by default."""
    given = grid_options(__doc__, tuple(PARTS))
    for part in given.stages:
        record(part, given)


if __name__ == "__main__":
    main()
