"""What it is worth that prices go on where the frontier of a graph is wide: the default `solve` of
the period with graphs that forget, and without.

    python results/exact/frontier.py [--again] [--only NAMES] [--minutes M]

Any split, 10 s a run. It was developed on the first families (`chosen`) alone. Without it there are
no prices where the graph of all sets has more states than `Frontier` looks at, as in earlier
versions: sets are priced one by one there. Every run is a row of frontier.csv, kept; frontier.md
has the gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from ablation import Ablation

import placeopt as po
from placeopt.period.bounds.prices import PriceBound

CHOSEN = (
    "gen:densenet121",
    "gen:rnn-lm",
    "gen:lu?tiles=5",
    "gen:gnmt",
    "gen:series-parallel?ops=130&ccr=1.5&seed=1",
)
APART = (
    "gen:stencil?rows=4&columns=4&steps=6&seed=1",
    "gen:cholesky?tiles=6",
    "gen:layered?layers=12&width=16&seed=1",
    "gen:fft?points=32",
    "gen:nmt",
)


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with all graphs or with those of all sets alone."""
    raise_from = PriceBound.raise_from

    def narrow(prices: PriceBound, lower: int, upper: int | None, given: float) -> int:
        found = raise_from(prices, lower, upper, given)
        if prices.cover is None or prices.cover.exact:
            return found
        prices.cover, prices.goes_on = None, False
        return lower

    kept = raise_from if variant == "with" else narrow
    with mock.patch.object(PriceBound, "raise_from", kept):
        return po.solve(problem, seconds=seconds, seed=0)


FRONTIER = Ablation(
    part="forgets",
    title="Frontiers that forget",
    chosen=CHOSEN,
    apart=APART,
    clusters=("4xV100", "2xA100+2xV100"),
    solve=solve,
    table=Path(__file__).resolve().parent / "frontier.csv",
    fields={"objective": "period", "contiguity": "none"},
)

if __name__ == "__main__":
    FRONTIER.main(__doc__)
