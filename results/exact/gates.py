"""What the gates between parts in series are worth: the default `solve` with transfers at gates,
and without.

    python results/exact/gates.py [--again] [--only NAMES] [--minutes M]

Networks whose blocks meet in one op, on devices of two kinds, 10 s a run. The bound was developed
on the first families (CHOSEN) alone. Without gates a part is the problem of its own ops, and
transfers to and from the op before and after it are free, as in earlier versions. Every run is a
row of gates.csv, kept; gates.md has the gaps. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import placeopt as po
from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.makespan.bounds import series
from placeopt.model.files import write_text

if TYPE_CHECKING:
    import argparse

    from placeopt.makespan.bounds.series import Place

HERE = Path(__file__).resolve().parent
TABLE = HERE / "gates.csv"
SECONDS = 10.0
CHOSEN = ("gen:inception-v3", "gen:moe")
APART = (
    "gen:fork-join?stages=5&branches=7&ccr=1&seed=1",
    "gen:fork-join?stages=8&branches=4&ccr=2&seed=2",
    *("gen:flava?layers=2", "gen:squeezenet", "gen:densenet121"),
)
CLUSTERS = ("cpu+gpu", "2xA100+2xV100", "2xA100+4xT4")
Row = dict[str, Any]


def bare(parts: list[Any]) -> list[Place]:
    """Return the parts without gates."""
    return [series.Place(np.sort(part), np.ones(len(part), np.bool_)) for part in parts]


def record(given: argparse.Namespace, rows: list[Row]) -> None:
    """Run what is missing."""
    done = {(row["graph"], row["cluster"], row["gates"]) for row in rows}
    for source in (*CHOSEN, *APART):
        for cluster in CLUSTERS:
            problem = po.load(source, cluster=cluster)
            for gates in ("with", "without"):
                name = source, cluster, gates
                if (
                    name in done
                    or given.only not in ", ".join(name)
                    or time.monotonic() > given.end
                ):
                    continue
                one = series._with_gates if gates == "with" else bare
                with mock.patch.object(series, "_with_gates", one):
                    found = po.solve(problem, seconds=SECONDS, seed=0)
                row = dict(zip(("graph", "cluster", "gates"), name, strict=True))
                rows.append(row | {"value": found.value, "bound": found.lower_bound})
                write_csv(TABLE, rows)


def page(rows: list[Row]) -> str:
    """Say what the rows show."""
    gap = {
        (row["graph"], row["cluster"], row["gates"]): 100.0 * (1.0 - row["bound"] / row["value"])
        for row in rows
    }
    lines = [
        "# Gates between parts in series",
        "",
        f"`python results/exact/gates.py`: gaps of `solve` after {SECONDS:g} s, in per cent.",
        "",
    ]
    for title, families in (("Developed on", CHOSEN), ("Set apart", APART)):
        table = [
            [graph, cluster, *(f"{gap[graph, cluster, x]:.2f}" for x in ("without", "with"))]
            for graph in families
            for cluster in CLUSTERS
            if {(graph, cluster, x) for x in ("without", "with")} <= set(gap)
        ]
        open_ = [row for row in table if max(map(float, row[2:])) > 0.01]
        means = [np.mean([float(row[i]) for row in table]) for i in (2, 3)] if table else [0, 0]
        lines += [
            f"## {title}",
            "",
            f"{len(table)} problems, {len(table) - len(open_)} of them proved either way; the mean gap is "
            f"{means[0]:.2f} without gates and {means[1]:.2f} with them.",
            "",
            *markdown_table(["graph", "cluster", "without", "with"], open_),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    options = row_options(__doc__)
    recorded = kept_rows(TABLE, options, ("graph", "cluster", "gates"), numbers=True)
    record(options, recorded)
    write_text(HERE / "gates.md", page(recorded))
