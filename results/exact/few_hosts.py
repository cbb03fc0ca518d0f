"""What `few-hosts` is worth as a start: the default `solve` with it, and without.

    python results/exact/few_hosts.py [--again] [--only NAMES] [--minutes M]

Sixteen devices in hosts, 10 s a run; a transfer to another host takes 50 times as long as one
inside (tens of gigabits a second between hosts, hundreds of gigabytes inside), with links of their
own or all on one. The heuristic was developed on layered graphs (`chosen`) alone. Every run is a
row of few_hosts.csv, kept; few_hosts.md has the gaps. It is no grid: a variant is a patch of the
code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ablation import Ablation

import placeopt as po
from placeopt.solvers import stages

FAR = 50
"""What a transfer to another host takes, in transfers inside."""


def load(source: str, *, cluster: str) -> po.PlacementProblem:
    """Place a graph on hosts, `2 x 8` or `2 x 8, one link`."""
    hosts, devices = map(int, cluster.split(",")[0].split(" x "))
    problem = po.load(source, cluster=f"uniform:{hosts * devices}")
    host = np.repeat(np.arange(hosts), devices)
    far = (host[:, None] != host).astype(np.int64)
    inside = problem.transfer[:, :1]
    problem = problem.replace(transfer=np.hstack([inside, FAR * inside]), link_class=far)
    return problem.replace(channel=far - 1) if "one link" in cluster else problem


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with the start or without."""
    names = tuple(x for x in stages.HEURISTICS if variant == "with" or x != "few-hosts")
    with mock.patch.object(stages, "HEURISTICS", names):
        return po.solve(problem, seconds=seconds, seed=0)


FEW_HOSTS = Ablation(
    part="few-hosts",
    title="A start on few hosts",
    chosen=(
        "gen:layered?layers=30&width=10&ccr=0.5&seed=1",
        "gen:layered?layers=100&width=20&ccr=0.5&seed=2",
    ),
    apart=(
        "gen:fft?points=64&ccr=0.5&seed=1",
        "gen:out-tree?depth=9&ccr=0.5&seed=1",
        "gen:stencil?rows=6&columns=6&steps=10&ccr=0.5&seed=1",
        "gen:series-parallel?ops=1000&ccr=0.5&seed=1",
        "gen:cholesky?tiles=14",
        "gen:fork-join?stages=20&branches=30&ccr=0.5&seed=1",
        "gen:in-tree?depth=9&ccr=0.5&seed=1",
    ),
    clusters=("2 x 8", "4 x 4, one link"),
    solve=solve,
    table=Path(__file__).resolve().parent / "few_hosts.csv",
    load=load,
)

if __name__ == "__main__":
    FEW_HOSTS.main(__doc__)
