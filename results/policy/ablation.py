"""What seed, search and learning are worth, on families that nothing was trained or chosen on.

`python results/policy/ablation.py [VARIANT...]` records what is missing of ablation.csv (of all
variants, or of those whose label holds one of these words) and writes ablation.md. Twelve graphs of
TEST's families, one each, twenty seeds, 4000 evaluations a run; the seconds are of the processor.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from graph_families import TEST, drawn

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solving.registry import make_solver

HERE = Path(__file__).resolve().parent
TABLE = HERE / "ablation_test.csv"
Row = dict[str, Any]

GRAPHS, SEEDS, EVALUATIONS = 12, 20, 4000
FEW = 2
"""Seeds of what takes ten times as long as the rest: a gradient, and `dual-policy`."""

BASE = "tuned-list"

CRITICAL: Row = {"teacher": "critical-path", "start": "critical-path"}
VARIANTS: tuple[tuple[str, str, Row, int], ...] = (
    ("annealing, from the critical path", "annealing", {"walks": 1, "start": "critical-path"}, 1),
    ("annealing, from edge zeroing", "annealing", {"walks": 1}, 1),
    ("annealing, from edge zeroing, 5 times as long", "annealing", {"walks": 1}, 5),
    (
        "annealing as it was, from edge zeroing",
        "annealing",
        {"walks": 1, "hot": 0.05, "focus": 1.0, "learn": False},
        1,
    ),
    ("annealing, from HEFT", "annealing", {"walks": 1, "start": "heft"}, 1),
    ("cross-entropy, from edge zeroing", "cross-entropy", {}, 1),
    (BASE, "tuned-list", {}, 1),
    ("tuned-list, without learned weights", "tuned-list", {"policy": "heft"}, 1),
    ("tuned-list, with a gradient", "tuned-list", {"learning_rate": 0.02}, 1),
    (
        "tuned-list, with a gradient, credit to all",
        "tuned-list",
        {"learning_rate": 0.02, "credit": "all"},
        1,
    ),
    (
        "tuned-list, with a gradient, without learned weights",
        "tuned-list",
        {"policy": "heft", "learning_rate": 0.02},
        1,
    ),
    ("dual-policy, from the critical path", "dual-policy", CRITICAL, 1),
    (
        "dual-policy, groups and walk only",
        "dual-policy",
        {**CRITICAL, "episodes": 0.0, "windows": 0.0},
        1,
    ),
    (
        "dual-policy, walk only",
        "dual-policy",
        {**CRITICAL, "groups": 0.0, "episodes": 0.0, "windows": 0.0},
        1,
    ),
    (
        "dual-policy, nothing learns in episodes",
        "dual-policy",
        {**CRITICAL, "learn": "none"},
        1,
    ),
)
"""Label, solver, options, and the budget over EVALUATIONS."""


def record(words: list[str], rows: list[Row]) -> None:
    """Run what is missing."""
    done = {(row["variant"], row["graph"], row["seed"]) for row in rows}
    problems = [drawn(TEST, index) for index in range(GRAPHS)]
    for seed in range(SEEDS):
        for label, solver, options, times in VARIANTS:
            few = options.get("learning_rate", 0.0) > 0 or solver == "dual-policy"
            if (words and not any(word in label for word in words)) or (few and seed >= FEW):
                continue
            for name, problem in problems:
                if (label, name, seed) in done:
                    continue
                began = time.process_time()
                budget = po.Budget(evaluations=times * EVALUATIONS)
                found = make_solver(solver, **options).solve(problem, budget, seed=seed)
                rows.append(
                    {
                        "variant": label,
                        "graph": name,
                        "seed": seed,
                        "value": found.value,
                        "cpu_seconds": round(time.process_time() - began, 4),
                    }
                )
            write_csv(TABLE, rows)


def page(rows: list[Row]) -> str:
    """Say what the rows show."""
    logs: dict[tuple[str, str], float] = {}
    for label in dict.fromkeys(row["variant"] for row in rows):
        for graph in dict.fromkeys(row["graph"] for row in rows):
            own = [r["value"] for r in rows if (r["variant"], r["graph"]) == (label, graph)]
            if own:
                logs[label, graph] = float(np.mean(np.log(own)))
    table = []
    for label, _, _, _ in VARIANTS:
        shared = [g for (v, g) in logs if v == label and (BASE, g) in logs]
        if not shared:
            continue
        ratio = np.array([logs[label, g] - logs[BASE, g] for g in shared])
        half = 1.96 * ratio.std(ddof=1) / len(ratio) ** 0.5 if len(ratio) > 1 else 0.0
        mine = [row for row in rows if row["variant"] == label]
        seeds = len({row["seed"] for row in mine})
        cpu = np.mean([row["cpu_seconds"] for row in mine])
        low, high = np.exp(ratio.mean() - half), np.exp(ratio.mean() + half)
        table.append(
            [
                label,
                f"{len(shared)} x {seeds}",
                f"{np.exp(ratio.mean()):.4f} [{low:.3f}, {high:.3f}]",
                f"{cpu:.2f}",
            ]
        )
    return "\n".join(
        (
            "# Seed, search and learning on families set apart",
            "",
            f"`python results/policy/ablation.py`. One graph each of {', '.join(TEST)}, "
            f"up to {SEEDS} seeds as the column says, {EVALUATIONS} evaluations a run where nothing else is said. Ratio of "
            f"geometric means to `{BASE}` with its 95 % interval over graphs: above 1 is worse. "
            "Other work ran beside it; seconds are of the processor.",
            "",
            *markdown_table(["variant", "graphs x seeds", f"value / {BASE}", "CPU s"], table),
            "",
        )
    )


if __name__ == "__main__":
    recorded = read_csv(TABLE, numbers=True)
    if "page" not in sys.argv:
        record(sys.argv[1:], recorded)
    write_text(HERE / "ablation.md", page(recorded))
