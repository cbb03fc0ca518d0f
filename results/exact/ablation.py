"""What one part of `solve` is worth: problems with it and without, kept as rows, and a page of
their gaps.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import placeopt as po
from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.model.files import write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from pathlib import Path

Row = dict[str, Any]


class Ablation(NamedTuple):
    """What is left out, and on which problems.

    Attributes
    ----------
    part : its name, a column with the values "with" and "without". title : of the page.
    chosen, apart : graphs that it was developed on, and others. clusters : that all are placed on.
    solve : runs a problem with the part or without, for so many seconds.
    table : CSV file of the rows; the page stands beside it.
    load : makes a problem of a graph and a cluster. fields : how it does, by default.
    solver : whose gaps the page shows.
    """

    part: str
    title: str
    chosen: tuple[str, ...]
    apart: tuple[str, ...]
    clusters: tuple[str, ...]
    solve: Callable[[Any, str, float], po.Result[Any]]
    table: Path
    seconds: float = 10.0
    fields: Mapping[str, str] = MappingProxyType({})
    load: Callable[..., Any] = po.load
    solver: str = "solve"

    def main(self, doc: str | None) -> None:
        """Run what is missing, and write the page."""
        options = row_options(doc)
        rows = kept_rows(self.table, options, ("graph", "cluster", self.part), numbers=True)
        self.record(options, rows)
        write_text(self.table.with_suffix(".md"), self.page(rows))

    def record(self, given: argparse.Namespace, rows: list[Row]) -> None:
        """Run what is missing."""
        done = {(row["graph"], row["cluster"], row[self.part]) for row in rows}
        for source in (*self.chosen, *self.apart):
            for cluster in self.clusters:
                problem = self.load(source, cluster=cluster, **self.fields)
                for variant in ("with", "without"):
                    name = source, cluster, variant
                    late = time.monotonic() > given.end
                    if name in done or given.only not in ", ".join(name) or late:
                        continue
                    found = self.solve(problem, variant, self.seconds)
                    row = dict(zip(("graph", "cluster", self.part), name, strict=True))
                    bound = found.lower_bound  # a fraction of a pipeline's
                    bound = bound if isinstance(bound, int) else round(float(bound), 3)
                    rows.append(row | {"value": found.value, "bound": bound})
                    write_csv(self.table, rows)

    def page(self, rows: list[Row]) -> str:
        """Say what the rows show."""
        gap = {
            (row["graph"], row["cluster"], row[self.part]): 100.0
            * (1.0 - row["bound"] / row["value"])
            for row in rows
        }
        script = f"results/exact/{self.table.stem}.py"
        lines = [
            f"# {self.title}",
            "",
            f"`python {script}`: gaps of `{self.solver}` after {self.seconds:g} s, in per cent.",
            "",
        ]
        for title, families in (("Developed on", self.chosen), ("Set apart", self.apart)):
            table = [
                [graph, cluster, *(f"{gap[graph, cluster, x]:.2f}" for x in ("without", "with"))]
                for graph in families
                for cluster in self.clusters
                if {(graph, cluster, x) for x in ("without", "with")} <= set(gap)
            ]
            open_ = [row for row in table if max(map(float, row[2:])) > 0.01]
            means = [np.mean([float(row[i]) for row in table]) for i in (2, 3)] if table else [0, 0]
            lines += [
                f"## {title}",
                "",
                f"{len(table)} problems, {len(table) - len(open_)} of them proved either way; the "
                f"mean gap is {means[0]:.2f} without and {means[1]:.2f} with.",
                "",
                *markdown_table(["graph", "cluster", "without", "with"], open_),
                "",
            ]
        return "\n".join(lines)
