"""What the learned list is worth in the default `solve`.

    python results/policy/passes.py [--again] [--only NAMES] [--minutes M]

`portfolio` for SECONDS on graphs that `graph_families.drawn` draws: of CHOICE, by which the weights
were chosen, and of TEST, whose families were not looked at; transfers between two devices wait for
one another on every second graph. The same without `learned-list` among its heuristics and without
its climb, and with the weights that they had before any training, which are HEFT's. Every run is a
row of passes.csv, kept; passes.md has the means. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from graph_families import CHOICE, TEST, drawn

import placeopt as po
from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.model.files import write_text
from placeopt.solvers import stages
from placeopt.solvers.policy import tuned_list
from placeopt.solvers.policy.list_policy import ListPolicy
from placeopt.solvers.portfolio_tactics import NAMES
from placeopt.solving.registry import make_solver

TABLE = Path(__file__).resolve().parent / "passes.csv"
SECONDS = 5.0
GRAPHS = {"CHOICE": (CHOICE, 12), "TEST": (TEST, 36)}
"""Families and the number of graphs drawn of them: of every family several, of all kinds of
devices."""

WITHOUT, BEFORE, LEARNED = "without", "before learning", "learned"
Row = dict[str, Any]


def problem_of(split: str, seed: int) -> tuple[str, po.PlacementProblem]:
    """Return the name and a graph, with a channel for each pair of devices if its number is odd."""
    name, problem = drawn(GRAPHS[split][0], seed)
    if seed % 2 == 0:
        return name, problem
    k = problem.num_devices
    channel = np.arange(k * k).reshape(k, k)
    np.fill_diagonal(channel, -1)
    return f"{name}, pair", problem.replace(channel=channel)


def solve(problem: po.PlacementProblem, variant: str) -> po.Result[Any]:
    """Run a variant."""
    names, heuristics = NAMES, stages.HEURISTICS
    with ExitStack() as patches:
        if variant == BEFORE:
            patches.enter_context(mock.patch.object(tuned_list, "trained", ListPolicy.heft))
        if variant == WITHOUT:
            names = tuple(name for name in names if name != "passes")
            heuristics = tuple(name for name in heuristics if name != "learned-list")
            patches.enter_context(mock.patch.object(stages, "HEURISTICS", heuristics))
        solver = make_solver("portfolio", tactics=",".join(names))
        return po.solve(problem, solver, seconds=SECONDS, seed=0)


def kind_of(problem: po.PlacementProblem) -> str:
    """How devices differ."""
    able = problem.compute[(problem.compute > 0).all(axis=1)].astype(float)
    if (able == able[:, :1]).all():
        return "equal"
    share = able / able[:, :1]
    return "speeds" if share.std(axis=0).max() < 1e-3 else "unrelated"


def main() -> None:
    """Run what is missing, and write the page."""
    options = row_options(__doc__)
    rows = kept_rows(TABLE, options, ("graph", "variant"), numbers=True)
    done = {(row["graph"], row["variant"]) for row in rows}
    for split, (_, count) in GRAPHS.items():
        for seed in range(count):
            name, problem = problem_of(split, seed)
            for variant in (WITHOUT, BEFORE, LEARNED):
                late = time.monotonic() > options.end
                if (name, variant) in done or late or options.only not in f"{name}, {variant}":
                    continue
                found = solve(problem, variant)
                row = {"graph": name, "variant": variant, "split": split}
                row |= {"devices": kind_of(problem), "value": found.value}
                rows.append(row | {"bound": found.lower_bound})
                write_csv(TABLE, rows)
    write_text(TABLE.with_suffix(".md"), page(rows))


def page(rows: list[Row]) -> str:
    """Say what the rows show."""
    lines = [
        "# What the learned list is worth in the default `solve`",
        "",
        f"`python results/policy/passes.py`: `portfolio`, {SECONDS:g} s a run, one run each. Ratios "
        "of makespans, with 95 % intervals over graphs; better and worse: by more than .01 %.",
        "",
    ]
    values = {(row["graph"], row["variant"]): row["value"] for row in rows}
    for split in GRAPHS:
        table = []
        for kind in ("equal", "speeds", "unrelated", "all"):
            graphs = [
                row["graph"]
                for row in rows
                if row["variant"] == LEARNED
                and row["split"] == split
                and kind in (row["devices"], "all")
                and {(row["graph"], v) for v in (WITHOUT, BEFORE)} <= set(values)
            ]
            for one, other in ((LEARNED, WITHOUT), (LEARNED, BEFORE)):
                logs = np.log([values[g, one] / values[g, other] for g in graphs])
                if len(logs) > 1:
                    spread = 1.96 * logs.std(ddof=1) / len(logs) ** 0.5
                    low, mean, high = np.exp(logs.mean() + spread * np.array([-1, 0, 1]))
                    counts = [str((logs < -1e-4).sum()), str((logs > 1e-4).sum())]
                    words = f"{mean:.4f} [{low:.4f}, {high:.4f}]"
                    table.append([kind, str(len(logs)), f"{one} / {other}", words, *counts])
        heads = ["devices", "graphs", "ratio of", "mean", "better", "worse"]
        lines += [f"## {split}", "", *markdown_table(heads, table), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
