"""What `few-hosts` is worth as a start: the default `solve` with it, and without.

    python results/exact/few_hosts.py [--again] [--only NAMES] [--minutes M]

Devices of several hosts, 10 s a run. The heuristic was developed on layered graphs (`chosen`)
alone. Every run is a row of few_hosts.csv, kept; few_hosts.md has the gaps. It is no grid: a
variant is a patch of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation

import placeopt as po
from placeopt.solvers import stages


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the start or without."""
    names = tuple(x for x in stages.HEURISTICS if variant == "with" or x != "few-hosts")
    with mock.patch.object(stages, "HEURISTICS", names):
        return po.solve(problem, seconds=seconds, seed=0)


FEW_HOSTS = Ablation(
    part="few-hosts",
    title="A start on few hosts",
    chosen=(
        "gen:layered?layers=30&width=10&ccr=2&seed=1",
        "gen:layered?layers=100&width=20&ccr=2&seed=2",
    ),
    apart=(
        "gen:inception-v3",
        "gen:llama-block?shards=8",
        "gen:moe",
        "gen:stencil?rows=6&columns=6&steps=10&ccr=2&seed=1",
        "gen:series-parallel?ops=1000&ccr=2&seed=1",
        "gen:cholesky?tiles=14",
        "gen:fork-join?stages=20&branches=30&ccr=2&seed=1",
        "gen:in-tree?depth=9&ccr=2&seed=1",
    ),
    clusters=("2x4xV100", "4x4xA100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "few_hosts.csv",
)

if __name__ == "__main__":
    FEW_HOSTS.main(__doc__)
