"""What it is worth how the bound by flows makes graphs small, and where it begins: the default
`solve` of the latency with ops left out by what they hide for the ideals that they make, on levels
four times as fine, each from the flow of the one before; and with ops left out by what they hide
alone, on levels eight times as fine, each from its longest path, as in earlier versions.

    python results/exact/flow_graph.py [--again] [--only NAMES] [--minutes M]

Layer graphs in the form of the published ones (`layers` of results/engine/study.py), 30 s a run.
NASNet's and Inception's were looked at (`chosen`). Every run is a row of flow_graph.csv, kept;
flow_graph.md has the gaps.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ablation import Ablation

import placeopt as po
from placeopt.latency.bounds.flow import FlowBound, Reduction

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engine"))

from study import layers  # noqa: E402 - results/ is no package

CHOSEN = (
    "gen:nasnet-cell?cells=4",
    "gen:nasnet-cell?cells=6",
    "gen:nasnet-cell?cells=8",
    "gen:inception-v3",
)
APART = (
    "gen:mt5?layers=4",
    "gen:flava?image_layers=4&text_layers=4&layers=3",
    "gen:nmt?source=6&target=6",
    "gen:moe?layers=2&experts=4",
    "gen:llama-block?shards=4",
    "gen:gnmt",
)


def load(source: str, cluster: str) -> Any:
    """Return the latency problem of a layer graph on so many accelerators and a pool."""
    rng = np.random.default_rng(zlib.crc32(source.encode()))
    return layers(source, int(cluster.partition("x")[0]), rng)


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the graphs of today or with the earlier ones."""
    if variant == "with":
        return po.solve(problem, seconds=seconds, seed=0)
    coarse = replace(FlowBound.effort, finer=8)
    with (
        mock.patch.object(Reduction, "_worth", Reduction._loss),
        mock.patch.object(FlowBound, "effort", coarse),
        mock.patch.object(FlowBound, "begin_at"),
    ):
        return po.solve(problem, seconds=seconds, seed=0)


GRAPHS = Ablation(
    part="weighed",
    title="Graphs of the bound by flows",
    chosen=CHOSEN,
    apart=APART,
    clusters=("16xaccelerator",),
    solve=solve,
    table=HERE / "flow_graph.csv",
    seconds=30.0,
    load=load,
)

if __name__ == "__main__":
    GRAPHS.main(__doc__)
