"""What flows between all pairs of ops prove of the period: `cp-sat` with the tactic `congestion`,
and without.

    python results/exact/congestion.py [--again] [--only NAMES] [--minutes M]

Any split, on four and on eight devices, 5 s a run. The bound was developed on the families
`chosen`; the others were not looked at. Every run is a row of congestion.csv, kept; congestion.md
has the gaps. It is no grid: a variant is a list of tactics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablation import Ablation

import placeopt as po
from placeopt.solvers.exact.period_tactics import TACTICS

CHOSEN = (
    "gen:stencil?rows=6&columns=6&steps=6&ccr=1",
    "gen:fft?points=32",
    "gen:layered?layers=12&width=16&seed=1",
    "gen:cholesky?tiles=8",
    "gen:series-parallel?ops=300&ccr=1",
    "gen:lu?tiles=8",
    "gen:llama-layer",
    "gen:nasnet-cell",
    "gen:rnn-lm",
)
"""Graphs on which the bound, and annealing of chains, were developed."""

APART = (
    "gen:planted",
    "gen:in-tree?depth=6&ccr=1",
    "gen:out-tree?depth=6&ccr=1",
    "gen:fork-join?stages=6&branches=16&ccr=1",
    "gen:chain-mm",
    "gen:ffnn",
    "gen:moe",
    "gen:flava?layers=2",
    "gen:gnmt",
    "gen:squeezenet",
)
"""Graphs of other families."""


def load(source: str, *, cluster: str) -> po.PlacementProblem:
    """Return a problem of any split."""
    return po.load(source, cluster=cluster, objective="period").replace(contiguity="none")


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the tactic or without."""
    names = [x.name for x in TACTICS if variant == "with" or x.name != "congestion"]
    return po.solve(problem, "cp-sat", seconds=seconds, seed=0, tactics=", ".join(names))


CONGESTION = Ablation(
    part="congestion",
    title="Flows between all pairs",
    chosen=CHOSEN,
    apart=APART,
    clusters=("4xA100", "8xV100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "congestion.csv",
    seconds=5.0,
    load=load,
    solver="cp-sat",
)

if __name__ == "__main__":
    CONGESTION.main(__doc__)
