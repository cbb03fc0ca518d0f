"""What it is worth to know hosts between forks and joins: the default `solve` with islands of
devices in the bound `fork-join`, and without.

    python results/exact/forks.py [--again] [--only NAMES] [--minutes M]

Devices of several hosts, 5 s a run. The bound was developed on six families (`chosen`); the others
were not looked at. Every run is a row of forks.csv, kept; forks.md has the gaps. It is no grid: a
variant is a patch of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation

import placeopt as po
from placeopt.makespan.bounds.segment_graph import SegmentGraph


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with islands between forks and joins, or as if all devices were on one."""
    known = SegmentGraph.__init__

    def blind(graph: SegmentGraph, *given: Any) -> None:
        known(graph, *given)
        graph.island_size = graph.num_devices

    patched = known if variant == "with" else blind
    with mock.patch.object(SegmentGraph, "__init__", patched):
        return po.solve(problem, seconds=seconds, seed=0)


FORKS = Ablation(
    part="hosts",
    title="Forks and joins on several hosts",
    chosen=(
        "gen:nasnet-cell",
        "gen:inception-v3",
        "gen:moe",
        "gen:nmt?source=6&target=6",
        "gen:cholesky?tiles=8",
        "gen:fork-join?stages=6&branches=16&ccr=0.5&seed=1",
    ),
    apart=(
        "gen:lu?tiles=6",
        "gen:densenet121",
        "gen:squeezenet",
        "gen:resnet50",
        "gen:gnmt",
        "gen:flava?layers=2",
        "gen:mt5",
        "gen:gpt2?layers=2",
        "gen:rnn-lm",
        "gen:llama-layer",
        "gen:ffnn",
        "gen:chain-mm",
        "gen:in-tree?depth=6&ccr=0.5&seed=1",
        "gen:stencil?rows=4&columns=5&steps=5&ccr=0.5&seed=1",
    ),
    clusters=("2x2xV100", "4x2xV100", "2x4xA100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "forks.csv",
    seconds=5.0,
)

if __name__ == "__main__":
    FORKS.main(__doc__)
