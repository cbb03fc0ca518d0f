"""What annealing is worth in the default of pipelines: periods of chains with it, and without.

    python results/exact/chains.py [--again] [--only NAMES] [--minutes M]

Chains of stages on four and on eight devices, 5 s a run; the families are those of congestion.py.
Every run is a row of chains.csv, kept; chains.md has the gaps. It is no grid: a variant is a patch
of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation
from congestion import APART, CHOSEN

import placeopt as po
from placeopt.solvers.exact.period_tactics import PeriodFacts


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with annealing or without."""
    never = property(lambda _: False)
    patched = PeriodFacts.anneals if variant == "with" else never
    with mock.patch.object(PeriodFacts, "anneals", patched):
        return po.solve(problem, seconds=seconds, seed=0)


CHAINS = Ablation(
    part="annealing",
    title="Annealing of chains",
    chosen=CHOSEN,
    apart=APART,
    clusters=("4xA100", "8xV100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "chains.csv",
    seconds=5.0,
    fields={"objective": "period"},
)

if __name__ == "__main__":
    CHAINS.main(__doc__)
