"""Post's, Liu et al.'s and HSDAG's workloads: every baseline of these papers at equal evaluations,
and HSDAG's ablations.

    python results/groupings/study.py [baselines | parsing] [--again] [--for SECONDS]

Writes baselines.csv and parsing.csv beside this file row by row and skips rows that are there, so
that it may be stopped and continued; `--again` runs them all again, `--for` starts no further row
after so many seconds. What
learns as its authors had it begins at random; what begins at a heuristic's placement says so. All
values are simulated makespans in ticks on generated graphs; the tables of README.md are drawn by
`python results/draw.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import Clock, half_width, read_csv, write_csv
from placeopt.makespan.evaluate import best_queue
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
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


def row_of(problem: PlacementProblem, solver: str, options: Row, seeds: int) -> Row:
    """Return the mean makespan of some seeds, half its 95 % interval, the best and the worst, and
    the processor seconds.
    """
    with Clock() as clock:
        runs = [
            make_solver(solver, **options)
            .solve(problem, po.Budget(evaluations=EVALUATIONS), seed=seed)
            .objective
            for seed in range(seeds)
        ]
    return {
        "runs": seeds,
        "evaluations": EVALUATIONS,
        "mean": round(mean(runs), 1),
        "interval": round(half_width(runs), 1),
        "best": min(runs),
        "worst": max(runs),
        "cpu": round(clock.cpu / seeds, 2),
    }


def given_rows(problem: PlacementProblem) -> dict[str, Row]:
    """Return the values that need no samples: the bound, one device, the expert, min-cut, the seed
    and the best heuristic.
    """
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
    return {
        label: {"runs": 1, "evaluations": "", "mean": value, "solver": name}
        for label, (value, name) in values.items()
    }


def value_on(problem: PlacementProblem, device: int) -> int:
    """Return the makespan with every op on one device."""
    return best_queue(problem, po.Placement(np.full(problem.num_ops, device)))[0]


def record(part: str, end: float, again: bool) -> None:
    """Run what is missing of a part, or all of it again, writing after each row."""
    path = HERE / f"{part}.csv"
    rows = [] if again else read_csv(path)
    done = {(row["instance"], row["cluster"], row["method"]) for row in rows}
    workloads, methods, seeds = PARTS[part]
    cases = [(*workload, name) for workload in workloads for name in methods]
    missing = [case for case in cases if case not in done]
    print(f"{part}: {len(cases) - len(missing)} of {len(cases)} rows of methods are there", end="")
    print("" if missing else "; --again runs them again")
    for instance, cluster in dict.fromkeys(case[:2] for case in missing):
        problem = po.load(instance, cluster=cluster)
        found = {} if (instance, cluster, "bound") in done else given_rows(problem)
        names = [name for *workload, name in missing if workload == [instance, cluster]]
        for name in (*found, *names):
            if time.monotonic() > end:
                print(f"stopped before {instance} on {cluster}, {name}; run it again to continue")
                return
            row = found[name] if name in found else row_of(problem, *methods[name], seeds)
            rows.append(
                {
                    "instance": instance,
                    "cluster": cluster,
                    "ops": problem.num_ops,
                    "method": name,
                    **row,
                }
            )
            print(*rows[-1].values(), sep="  ", flush=True)
            if name not in found:
                write_csv(path, rows)


def main() -> None:
    """Run the parts that are named, both by default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), help="both by default")
    parser.add_argument("--again", action="store_true", help="run the rows that are there, too")
    parser.add_argument(
        "--for", dest="limit", type=float, default=float("inf"), help="start no row after so long"
    )
    given = parser.parse_args()
    end = time.monotonic() + given.limit
    for part in [given.part] if given.part else PARTS:
        record(part, end, given.again)


if __name__ == "__main__":
    main()
