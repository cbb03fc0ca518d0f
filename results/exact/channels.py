"""What the bound `congestion` is worth on the makespan: the default `solve` with it, and without.

    python results/exact/channels.py [--again] [--only NAMES] [--minutes M]

Devices whose transfers all wait for the bridge of their host, 5 s a run. The bound was developed on
eight families (`chosen`); the others were not looked at. Where every host has a network card of its
own it was tried on the former and showed nothing. Every run is a row of channels.csv, kept;
channels.md has the gaps. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation

import placeopt as po
from placeopt.solvers.exact.makespan_tactics import MakespanFacts


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem by all tactics, or as if the bound by flows did not apply."""
    applies = MakespanFacts.contended if variant == "with" else False
    with mock.patch.object(MakespanFacts, "contended", applies):
        return po.solve(problem, seconds=seconds, seed=0)


CHANNELS = Ablation(
    part="congestion",
    title="Transfers that wait for one another",
    chosen=(
        "gen:stencil?rows=6&columns=6&steps=6&ccr=2&seed=1",
        "gen:fft?points=32&ccr=2&seed=1",
        "gen:cholesky?tiles=8",
        "gen:layered?layers=15&width=10&ccr=2&seed=1",
        "gen:fork-join?stages=6&branches=16&ccr=2&seed=1",
        "gen:moe",
        "gen:inception-v3",
        "gen:llama-block",
    ),
    apart=(
        "gen:lu?tiles=8",
        "gen:in-tree?depth=7&ccr=2&seed=1",
        "gen:out-tree?depth=7&ccr=2&seed=1",
        "gen:planted?seed=1",
        "gen:nmt?source=6&target=6",
        "gen:rnn-lm",
        "gen:ffnn",
        "gen:chain-mm",
        "gen:bert?layers=2",
        "gen:densenet121",
    ),
    clusters=("4xV100-pcie?contention=hardware", "8xA100-pcie?contention=hardware"),
    solve=solve,
    table=Path(__file__).resolve().parent / "channels.csv",
    seconds=5.0,
)

if __name__ == "__main__":
    CHANNELS.main(__doc__)
