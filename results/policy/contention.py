"""What annealing gains where transfers contend, by walking with their channels.

    python results/policy/contention.py [--again] [--only NAMES] [--minutes M]

`annealing` with EVALUATIONS on graphs that `graph_families.drawn` draws, of the families for
choosing and of those set apart, with a channel for each pair of devices, for all that a device
sends, or for everything. `rows`: half of the budget walks as if nothing contended, the rest takes
rows of placements to the batch evaluator, as earlier versions did; `default`: the compiled walk,
which executes its sequence as ranks. Values are means of SEEDS runs. Every graph and variant is a
row of contention.csv, kept; contention.md has the means. It is no grid: a variant is a patch of the
code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from graph_ratios import contended, record

import placeopt as po
from placeopt.model.objective import INFEASIBLE
from placeopt.solvers.search import annealing, batch_search
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solving.plugin import PluginTracker
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

EVALUATIONS, SEEDS = 8000, 3
GRAPHS = {"CHOICE": range(18), "TEST": range(36, 72)}
"""Seeds of the graphs. Those of TEST below 36 showed that a list of transfers in the order of the
sequence is no good substitute for executing them (nmt, 12 % longer), so they are not counted."""
SHARED = ("pair", "source", "bus")
ROWS, DEFAULT = "rows", "default"
LOCKSTEP = annealing.lockstep


def in_rows(
    evaluator: BudgetedEvaluator,
    starts: list[po.Placement],
    rng: np.random.Generator,
    settings: annealing.Annealing,
) -> None:
    """Walk in lockstep, from what half of the budget finds as if transfers did not wait for one
    another, if that is better with contention, too.
    """
    problem, tracker = evaluator.problem, evaluator.tracker
    free = problem.replace(channel=np.full_like(problem.channel, -1))
    own = tracker.beside(free, tracker.share(0.5))
    with own.within(PluginTracker.whole_of(tracker)):
        beside = BudgetedEvaluator(own, threads=evaluator.threads)
        for start in starts:
            beside.value_of(start)
        annealing.anneal(beside, starts, rng, settings)
    tracker.count(own.evaluations)
    known = INFEASIBLE if tracker.value is None else tracker.value
    found = own.solution
    better = found is not None and evaluator.value_of(found) < known
    LOCKSTEP(evaluator, [found, *starts] if better else starts, rng, settings)


class RowEvaluator(BudgetedEvaluator):
    """The evaluator of problems that the compiled walk cannot walk where transfers contend."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.walkable = self.walkable and self.problem.num_channels == 0


def graphs() -> Iterator[tuple[str, str, po.PlacementProblem]]:
    """Yield split, name and graph."""
    for split, seeds in GRAPHS.items():
        for seed in seeds:
            yield (split, *contended(split, seed, SHARED[seed % len(SHARED)]))


def solve(problem: po.PlacementProblem, variant: str) -> dict[str, Any]:
    """Run a variant."""
    solver = make_solver("annealing", start="heft")
    kind = RowEvaluator if variant == ROWS else BudgetedEvaluator
    with (
        mock.patch.object(annealing, "lockstep", in_rows if variant == ROWS else LOCKSTEP),
        mock.patch.object(batch_search, "BudgetedEvaluator", kind),
    ):
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
        (ROWS, DEFAULT),
        solve,
        "# Annealing where transfers contend\n\n"
        f"`python results/policy/contention.py`: {EVALUATIONS} evaluations from HEFT, means of "
        f"{SEEDS} seeds.",
        ((DEFAULT, ROWS),),
    )
