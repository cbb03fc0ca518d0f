"""Post's and Liu et al.'s workloads: min-cut, the hierarchical policy and Post at equal evaluations, beside the best heuristic.

    PLACEOPT_DATA=../shared/data python results/search/baselines.py [--for SECONDS]

Writes results/search/baselines.csv row by row and skips problems that are there. Instances, clusters and the number of
evaluations are those of study.py; `grouper-placer` (a softmax grouper and placer, learned together) and Post start from
random parameters, the mean of three seeds counts; min-cut and the heuristics need no evaluations. `python results/draw.py`
draws the table.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import placeopt as po
from placeopt.experiments.studies import read_csv, write_csv
from placeopt.solving.registry import make_solver

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from study import EVALUATIONS, HEURISTICS, WORKLOADS  # noqa: E402 - results/ is no package

SEEDS = 3


def row_of(instance: str, cluster: str) -> dict[str, Any]:
    """Return the makespans over the proven bound."""
    problem = po.load(instance, cluster=cluster)
    budget = po.Budget(evaluations=EVALUATIONS)

    def average(solver: str, seeds: int, limit: po.Budget, **options: Any) -> float:
        return mean(make_solver(solver, **options).solve(problem, limit, seed=seed).objective for seed in range(seeds))

    found = {
        "best heuristic": min(average(name, 1, po.Budget()) for name in HEURISTICS),
        "min-cut": average("min-cut", 1, po.Budget()),
        "grouper-placer": average("grouper-placer", SEEDS, budget, teacher="", warm_start=False),
        "Post": average("post", SEEDS, budget, start="random"),
    }
    bound = po.bound(problem, seconds=2).value
    return {"instance": instance, "cluster": cluster, "bound": bound, **{key: round(x / bound, 4) for key, x in found.items()}}


def main() -> None:
    """Run what is missing."""
    path = HERE / "baselines.csv"
    limit = float(sys.argv[sys.argv.index("--for") + 1]) if "--for" in sys.argv else float("inf")
    rows, end = read_csv(path), time.monotonic() + limit
    for instance, clusters in WORKLOADS.items():
        for cluster in clusters:
            if any((row["instance"], row["cluster"]) == (instance, cluster) for row in rows):
                continue
            if time.monotonic() > end:
                print(f"stopped before {instance} on {cluster}; run it again to continue")
                return
            rows.append(row_of(instance, cluster))
            print(rows[-1], flush=True)
            write_csv(path, rows)


if __name__ == "__main__":
    main()
