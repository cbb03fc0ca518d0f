"""What the learned list is worth in the default `solve` on graphs of more than 2000 ops.

    python results/policy/large_graphs.py [--again] [--only NAMES] [--minutes M]

As passes.py, on graphs that `graph_families.drawn` draws of LARGE: families of TEST, with some
thousand ops each. Every run is a row of large_graphs.csv, kept; large_graphs.md has the means.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from graph_families import LARGE, drawn
from graph_ratios import record
from passes import BEFORE, LEARNED, WITHOUT, solve

if TYPE_CHECKING:
    from collections.abc import Iterator

    import placeopt as po

SECONDS = 15.0
GRAPHS = 12
"""Of every family two."""


def graphs() -> Iterator[tuple[str, str, po.PlacementProblem]]:
    """Yield split, name and graph."""
    for seed in range(GRAPHS):
        yield ("LARGE", *drawn(LARGE, seed))


if __name__ == "__main__":
    record(
        __doc__,
        Path(__file__).resolve().parent / "large_graphs.csv",
        graphs(),
        (WITHOUT, BEFORE, LEARNED),
        partial(solve, seconds=SECONDS),
        "# What the learned list is worth in the default `solve` on large graphs\n\n"
        f"`python results/policy/large_graphs.py`: `portfolio`, {SECONDS:g} s a run, one run each.",
        ((LEARNED, WITHOUT), (LEARNED, BEFORE)),
    )
