"""What annealing gains where transfers contend, by walking without contention and by less heat.

    python results/policy/contention.py [--again] [--only NAMES] [--minutes M]

`annealing` with EVALUATIONS on graphs that `graph_families.drawn` draws, of the families for
choosing and of those set apart, with a channel for each pair of devices. `hot`: at the temperature
of the longest walks, as earlier versions did; `cold`: at that of a walk of its length; `default`:
cold, and for half of the budget without contention. Values are means of SEEDS runs. Every graph and
variant is a row of contention.csv, kept; contention.md has the means. It is no grid: a variant is a
patch of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from graph_ratios import contended, record

import placeopt as po
from placeopt.solvers.search import annealing
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

EVALUATIONS, SEEDS = 8000, 3
GRAPHS = {"CHOICE": 12, "TEST": 24}
HOT, COLD, DEFAULT = "hot", "cold", "default"


def graphs() -> Iterator[tuple[str, str, po.PlacementProblem]]:
    """Yield split, name and graph."""
    for split, count in GRAPHS.items():
        for seed in range(count):
            yield (split, *contended(split, seed))


def solve(problem: po.PlacementProblem, variant: str) -> dict[str, Any]:
    """Run a variant."""
    solver = make_solver("annealing", start="heft", hot=0.05 if variant == HOT else 0.0)
    whole = annealing.without_contention if variant == DEFAULT else lambda *_: []
    with mock.patch.object(annealing, "without_contention", whole):
        found = [
            po.solve(problem, solver, evaluations=EVALUATIONS, seed=seed).value
            for seed in range(SEEDS)
        ]
    return {"value": float(np.mean(found))}


if __name__ == "__main__":
    record(
        __doc__,
        Path(__file__).resolve().parent / "contention.csv",
        graphs(),
        (HOT, COLD, DEFAULT),
        solve,
        "# Annealing where transfers contend\n\n"
        f"`python results/policy/contention.py`: {EVALUATIONS} evaluations from HEFT, means of "
        f"{SEEDS} seeds.",
        ((COLD, HOT), (DEFAULT, COLD), (DEFAULT, HOT)),
    )
