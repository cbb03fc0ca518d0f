"""What it is worth to close a problem on the islands of devices that a better schedule needs: the
default `solve` with the tactic `islands`, and without.

    python results/exact/islands.py [--again] [--only NAMES] [--minutes M]

Devices of two hosts, unlike and alike, 10 s a run. The tactic was developed on NASNet (`chosen`)
alone. Every run is a row of islands.csv, kept; islands.md has the gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablation import Ablation

import placeopt as po
from placeopt.solvers.portfolio_tactics import NAMES


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the tactic or without."""
    names = "all" if variant == "with" else ", ".join(name for name in NAMES if name != "islands")
    return po.solve(problem, seconds=seconds, seed=0, tactics=names)


ISLANDS = Ablation(
    part="islands",
    title="Islands of devices",
    chosen=("gen:nasnet-cell?cells=2&filters=32", "gen:nasnet-cell?cells=4&filters=32"),
    apart=(
        "gen:inception-v3",
        "gen:moe",
        "gen:llama-block?shards=4",
        "gen:nmt?source=6&target=6",
        "gen:flava?layers=2",
        "gen:densenet121",
        "gen:layered?layers=12&width=9&ccr=2&seed=1",
        "gen:stencil?rows=4&columns=5&steps=5&ccr=2&seed=1",
        "gen:series-parallel?ops=130&ccr=1.5&seed=1",
        "gen:cholesky?tiles=6",
    ),
    clusters=("2xA100+2xV100", "2xA100+4xT4", "2x2xV100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "islands.csv",
)

if __name__ == "__main__":
    ISLANDS.main(__doc__)
