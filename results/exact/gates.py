"""What the gates between parts in series are worth: the default `solve` with transfers at gates,
and without.

    python results/exact/gates.py [--again] [--only NAMES] [--minutes M]

Networks whose blocks meet in one op, on devices of two kinds, 10 s a run. The bound was developed
on the first families (`chosen`) alone. Without gates a part is the problem of its own ops, and
transfers to and from the op before and after it are free, as in earlier versions. Every run is a
row of gates.csv, kept; gates.md has the gaps. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from ablation import Ablation

import placeopt as po
from placeopt.makespan.bounds import series

if TYPE_CHECKING:
    from placeopt.makespan.bounds.series import Place


def bare(parts: list[Any]) -> list[Place]:
    """Return the parts without gates."""
    return [series.Place(np.sort(part), np.ones(len(part), np.bool_)) for part in parts]


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with gates or without."""
    one = series._with_gates if variant == "with" else bare
    with mock.patch.object(series, "_with_gates", one):
        return po.solve(problem, seconds=seconds, seed=0)


GATES = Ablation(
    part="gates",
    title="Gates between parts in series",
    chosen=("gen:inception-v3", "gen:moe"),
    apart=(
        "gen:fork-join?stages=5&branches=7&ccr=1&seed=1",
        "gen:fork-join?stages=8&branches=4&ccr=2&seed=2",
        *("gen:flava?layers=2", "gen:squeezenet", "gen:densenet121"),
    ),
    clusters=("cpu+gpu", "2xA100+2xV100", "2xA100+4xT4"),
    solve=solve,
    table=Path(__file__).resolve().parent / "gates.csv",
)

if __name__ == "__main__":
    GATES.main(__doc__)
