"""What it is worth to price the sets of every type of devices: the default `solve` of the period on
devices of two types, with that and without.

    python results/exact/unlike.py [--again] [--only NAMES] [--minutes M]

Any split, 10 s a run. It was developed on the first families (`chosen`) alone. Without it the
devices of the less numerous type hold shares of ops, and pay nothing for what they cut, as in
earlier versions. Every run is a row of unlike.csv, kept; unlike.md has the gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation
from convex import APART, CHOSEN

import placeopt as po
from placeopt.period.bounds import covering


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with sets of all types or of one."""
    types = covering.paying_types
    kept = types if variant == "with" else lambda model: types(model)[:1]
    with mock.patch.object(covering, "paying_types", kept):
        return po.solve(problem, seconds=seconds, seed=0)


UNLIKE = Ablation(
    part="types",
    title="Sets of all types of devices",
    chosen=CHOSEN,
    apart=APART,
    clusters=("2xA100+2xV100", "2xA100+4xT4"),
    solve=solve,
    table=Path(__file__).resolve().parent / "unlike.csv",
    fields={"objective": "period", "contiguity": "none"},
)

if __name__ == "__main__":
    UNLIKE.main(__doc__)
