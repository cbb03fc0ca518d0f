"""What it is worth that sets of a pipeline's stage are convex: the default `solve` of the period
under contiguity "convex", with the tactic `convex` and without.

    python results/exact/convex.py [--again] [--only NAMES] [--minutes M]

10 s a run. The tactic was developed on the first families (`chosen`) alone. Without it the bounds
are those of any split, as in earlier versions. Every run is a row of convex.csv, kept; convex.md
has the gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation

import placeopt as po
from placeopt.solvers.exact import period_tactics

FIELDS = {"objective": "period", "contiguity": "convex"}
CHOSEN = (
    "gen:inception-v3",
    "gen:moe",
    "gen:bert?layers=4",
    "gen:nasnet-cell?cells=4",
    "gen:densenet121",
    "gen:mt5?layers=4",
    "gen:flava?layers=2",
    "gen:resnet50",
)
APART = (
    "gen:squeezenet",
    "gen:vgg16",
    "gen:alexnet",
    "gen:resnet101",
    "gen:gnmt",
    "gen:gpt2?layers=6",
    "gen:rnn-lm",
    "gen:fork-join?stages=7&branches=5&ccr=1&seed=1",
    "gen:series-parallel?ops=130&ccr=1.5&seed=1",
    "gen:lu?tiles=5",
)


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the tactic or without."""
    kept = [t for t in period_tactics.TACTICS if variant == "with" or t.name != "convex"]
    with mock.patch.object(period_tactics, "TACTICS", tuple(kept)):
        return po.solve(problem, seconds=seconds, seed=0)


CONVEX = Ablation(
    part="convex",
    title="Convex sets",
    chosen=CHOSEN,
    apart=APART,
    clusters=("4xV100", "8xA100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "convex.csv",
    fields=FIELDS,
)

if __name__ == "__main__":
    CONVEX.main(__doc__)
