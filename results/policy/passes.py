"""What the learned list is worth in the default `solve`.

    python results/policy/passes.py [--again] [--only NAMES] [--minutes M]

`portfolio` for SECONDS on graphs that `graph_families.drawn` draws: of CHOICE, by which the weights
were chosen, and of TEST, whose families were not looked at; transfers between two devices wait for
one another on every second graph. The same without `learned-list` among its heuristics and without
its climb, and with the weights that they had before any training, which are HEFT's. Every run is a
row of passes.csv, kept; passes.md has the means. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from graph_families import drawn
from graph_ratios import SPLITS, contended, record

import placeopt as po
from placeopt.solvers.policy import tuned_list
from placeopt.solvers.policy.list_policy import ListPolicy
from placeopt.solvers.policy.tuned_list import LearnedList

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 5.0
GRAPHS = {"CHOICE": 12, "TEST": 36}
"""Graphs drawn of each split: of every family three."""

WITHOUT, BEFORE, LEARNED = "without", "before learning", "learned"


def graphs() -> Iterator[tuple[str, str, po.PlacementProblem]]:
    """Yield split, name and graph, with contention if its number is odd."""
    for split, count in GRAPHS.items():
        for seed in range(count):
            yield (
                split,
                *(contended(split, seed) if seed % 2 else drawn(SPLITS[split], seed)),
            )


def solve(problem: po.PlacementProblem, variant: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Run a variant."""
    with ExitStack() as patches:
        if variant == BEFORE:
            patches.enter_context(mock.patch.object(tuned_list, "trained", ListPolicy.heft))
        if variant == WITHOUT:
            patches.enter_context(mock.patch.object(LearnedList, "within", return_value=None))
        found = po.solve(problem, "portfolio", seconds=seconds, seed=0)
    return {"value": found.value, "bound": found.lower_bound}


if __name__ == "__main__":
    record(
        __doc__,
        Path(__file__).resolve().parent / "passes.csv",
        graphs(),
        (WITHOUT, BEFORE, LEARNED),
        solve,
        "# What the learned list is worth in the default `solve`\n\n"
        f"`python results/policy/passes.py`: `portfolio`, {SECONDS:g} s a run, one run each.",
        ((LEARNED, WITHOUT), (LEARNED, BEFORE)),
    )
