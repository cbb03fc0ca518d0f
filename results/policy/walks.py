"""Temperatures, shares of moves and cycles of `annealing`: fitted on development families, reported
on others.

Run `python results/policy/walks.py [PART ...] [--again]` (parts: `temperature`, `moves`, `cycles`,
`test`). Every run is a row of walks.csv, kept: an interrupted study goes on where it ended. Writes
walks.md beside this file. It is no grid: the budget follows from the ops of each drawn graph. Budgets are evaluations, and times are of the
processor: other work ran on the same cores.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from graph_families import DEVELOPMENT, TEST, drawn

import placeopt as po
from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.model.files import write_text
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
TABLE = HERE / "walks.csv"
Row = dict[str, Any]

BEFORE: Row = {"hot": 0.05, "cold": 1e-5, "focus": 1.0, "learn": False}
"""`annealing` before this study: all moves alike, one temperature for every budget."""

HOTS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
STEPS = (20, 60, 200, 600, 2000)
"""Evaluations for each op."""

STARTS = ("critical-path", "edge-zeroing")


def configurations(part: str) -> Iterator[tuple[str, int, int, int, str, Row]]:
    """Yield (split, graphs, seeds, steps per op, label, options) of a part of the study."""
    for steps in STEPS:
        graphs, seeds = (20, 2) if steps <= 60 else (20, 1) if steps <= 200 else (10, 1)
        if part == "temperature":
            for hot in HOTS:
                own = {"hot": hot, "cycles": 1}
                yield "development", graphs, seeds, steps, f"hot {hot:g}", own
        if part == "cycles" and steps >= 200:
            for cycles in (1, 3, 10):
                yield "development", graphs, seeds, steps, f"cycles {cycles}", {"cycles": cycles}
        if part == "moves":
            for focus in (1.0, 3.0, 10.0, 30.0):
                for learn in (False, True):
                    label = f"focus {focus:g}, {'learned' if learn else 'kept'}"
                    yield (
                        "development",
                        graphs,
                        seeds,
                        steps,
                        label,
                        {
                            "focus": focus,
                            "learn": learn,
                        },
                    )
        if part == "test":
            graphs = 24 if steps <= 200 else 12
            yield "test", graphs, seeds, steps, "default", {}
            yield "test", graphs, seeds, steps, "before", BEFORE
            yield "test", graphs, seeds, steps, "shares kept", {"learn": False}


def record(part: str, rows: list[Row]) -> None:
    """Run what is missing of a part."""
    done = {(row["graph"], row["steps"], row["label"], row["seed"]) for row in rows}
    problems: dict[tuple[str, int], tuple[str, po.PlacementProblem]] = {}
    for split, graphs, seeds, steps, label, options in configurations(part):
        for index in range(graphs):
            if (split, index) not in problems:
                problems[split, index] = drawn(TEST if split == "test" else DEVELOPMENT, index)
            name, problem = problems[split, index]
            for seed in range(seeds):
                if (name, steps, label, seed) in done:
                    continue
                solver = make_solver(
                    "annealing", walks=1, start=STARTS[(index + seed) % 2], **options
                )
                began = time.process_time()
                found = solver.solve(
                    problem, po.Budget(evaluations=steps * problem.num_ops), seed=seed
                )
                rows.append(
                    {
                        "split": split,
                        "part": part,
                        "graph": name,
                        "ops": problem.num_ops,
                        "steps": steps,
                        "label": label,
                        "seed": seed,
                        "value": found.value,
                        "cpu_seconds": round(time.process_time() - began, 3),
                    }
                )
        write_csv(TABLE, rows)
        print(part, steps, label, flush=True)


def ratios(rows: list[Row], part: str, base: str) -> dict[tuple[int, str], tuple[float, float]]:
    """Return mean and half width of the logarithm of each label's values over those of `base`,
    whose interval is over graphs.
    """
    values: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["part"] == part:
            values[row["steps"], row["label"], row["graph"]].append(np.log(row["value"]))
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for (steps, label, graph), logs in values.items():
        if (steps, base, graph) in values:
            found[steps, label].append(float(np.mean(logs) - np.mean(values[steps, base, graph])))
    return {
        key: (
            float(np.mean(x)),
            1.96 * float(np.std(x, ddof=1)) / len(x) ** 0.5 if len(x) > 1 else 0,
        )
        for key, x in found.items()
    }


def table(rows: list[Row], part: str, base: str) -> list[str]:
    """Return a table of ratios to `base`, a column for each number of steps per op."""
    found = ratios(rows, part, base)
    steps = sorted({key[0] for key in found})
    labels = list(dict.fromkeys(row["label"] for row in rows if row["part"] == part))
    body = []
    for label in labels:
        cells = [found.get((count, label)) for count in steps]
        body.append(
            [label] + ["" if x is None else f"{np.exp(x[0]):.4f} ± {x[1]:.4f}" for x in cells]
        )
    return markdown_table(["", *(f"{count} steps an op" for count in steps)], body)


def page(rows: list[Row]) -> str:
    """Say what was measured."""
    graphs = {
        split: len({row["graph"] for row in rows if row["split"] == split})
        for split in ("development", "test")
    }
    lines = [
        "# Walks: temperatures, shares of moves, cycles",
        "",
        "`python results/policy/walks.py`. Ratios of values "
        "(geometric means over graphs and seeds, ± half of the 95 % interval over graphs); "
        f"{graphs['development']} graphs of the families {', '.join(DEVELOPMENT)} to choose on, "
        f"{graphs['test']} of {', '.join(TEST)} to report. One walk, from the critical path and "
        "from edge zeroing in turn; the budget is evaluations.",
    ]
    for part, base, title in (
        ("temperature", "hot 0.001", "First temperature, as a share of the mean work of a device"),
        ("moves", "focus 10, learned", "Shares of moves"),
        ("cycles", "cycles 1", "Cycles"),
        ("test", "before", "On families set apart: `annealing` now and before"),
    ):
        if any(row["part"] == part for row in rows):
            lines += ["", f"## {title}", "", *table(rows, part, base)]
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    options = row_options(__doc__, ("temperature", "moves", "cycles", "test"))
    recorded = kept_rows(TABLE, options, ("part", "label"), numbers=True)
    for named in options.stages:
        if time.monotonic() < options.end:
            record(named, recorded)
    write_text(HERE / "walks.md", page(recorded))
