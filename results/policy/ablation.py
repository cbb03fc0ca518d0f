"""What seed, search and learning are worth, on families that nothing was trained or chosen on.

`python results/policy/ablation.py [--again] [--only VARIANT]` records what is missing of
ablation_test.csv and writes ablation.md. It is no grid: budgets follow from times that are measured
in turn. Twelve graphs of
TEST's families, one each, twenty seeds, 4000 evaluations a run; the seconds are of the processor.

At equal processor time a variant has, on each graph, the least of BUDGETS with which it takes at
least as long as `tuned-list`, both timed there one after the other. (What a start costs depends on
the budget, so no rate of evaluations would say it.)
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from graph_families import TEST, drawn

import placeopt as po
from placeopt.experiments.studies import kept_rows, markdown_table, row_options, write_csv
from placeopt.model.files import write_text
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    import argparse

HERE = Path(__file__).resolve().parent
TABLE = HERE / "ablation_test.csv"
Row = dict[str, Any]

GRAPHS, SEEDS, EVALUATIONS, LONG = 12, 20, 4000, 5
BUDGETS = tuple(250 * 2**i for i in range(10))
FEW = 2
"""Seeds of what takes longer than the rest."""

BASE, WITHOUT = "tuned-list", "tuned-list, without learned weights"
TIMES, EQUAL = f", {LONG} times as long", ", in equal processor time"
ALONE = ", episodes only"

CRITICAL: Row = {"teacher": "critical-path", "start": "critical-path"}
TIMED: dict[str, tuple[str, Row]] = {
    "annealing, from the critical path": ("annealing", {"walks": 1, "start": "critical-path"}),
    "annealing, from edge zeroing": ("annealing", {"walks": 1}),
    "cross-entropy, from edge zeroing": ("cross-entropy", {}),
}
VARIANTS: dict[str, tuple[str, Row]] = {
    BASE: ("tuned-list", {}),
    WITHOUT: ("tuned-list", {"policy": "heft"}),
    BASE + ALONE: ("tuned-list", {"samples": 1.0}),
    WITHOUT + ALONE: ("tuned-list", {"samples": 1.0, "policy": "heft"}),
    **{label + more: what for more in ("", TIMES, EQUAL) for label, what in TIMED.items()},
    "annealing, from HEFT": ("annealing", {"walks": 1, "start": "heft"}),
    "dual-policy, from the critical path": ("dual-policy", CRITICAL),
    "dual-policy, from the learned list": (
        "dual-policy",
        {**CRITICAL, "teacher": "learned-list"},
    ),
    "dual-policy, nothing learns in episodes": ("dual-policy", {**CRITICAL, "learn": "none"}),
}
"""Solver and options by label."""


def cost(rows: list[Row], label: str, graph: str) -> float:
    """Return the median of a variant's seconds on a graph; the first run may compile."""
    return float(
        np.median([r["cpu_seconds"] for r in rows if (r["variant"], r["graph"]) == (label, graph)])
    )


@cache
def seconds(label: str, index: int, evaluations: int) -> float:
    """Return the median time of the processor of three runs of a variant, after one that may
    compile.
    """
    solver, options = VARIANTS[label]
    problem, found = drawn(TEST, index)[1], []
    for seed in range(4):
        began = time.process_time()
        make_solver(solver, **options).solve(problem, po.Budget(evaluations=evaluations), seed=seed)
        found.append(time.process_time() - began)
    return float(np.median(found[1:]))


@cache
def budget(label: str, index: int) -> int:
    """Return the evaluations of a variant on a graph."""
    if label.endswith(TIMES):
        return LONG * EVALUATIONS
    if not label.endswith(EQUAL):
        return EVALUATIONS
    least = seconds(BASE, index, EVALUATIONS)
    return next((x for x in BUDGETS if seconds(label, index, x) >= least), BUDGETS[-1])


def record(given: argparse.Namespace, rows: list[Row]) -> None:
    """Run what is missing."""
    done = {(row["variant"], row["graph"], row["seed"]) for row in rows}
    problems = [drawn(TEST, index) for index in range(GRAPHS)]
    for label, (solver, options) in VARIANTS.items():
        few = solver == "dual-policy" or TIMES in label or ALONE in label
        if given.only not in label or time.monotonic() > given.end:
            continue
        for seed in range(FEW if few else SEEDS):
            for index, (name, problem) in enumerate(problems):
                if (label, name, seed) in done:
                    continue
                limit = po.Budget(evaluations=budget(label, index))
                began = time.process_time()
                found = make_solver(solver, **options).solve(problem, limit, seed=seed)
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

    def over(label: str, base: str) -> tuple[float, float, float]:
        """Return the ratio of two variants and both ends of its interval."""
        ratio = np.array([logs[label, g] - logs[base, g] for (v, g) in logs if v == label])
        half = 1.96 * ratio.std(ddof=1) / len(ratio) ** 0.5 if len(ratio) > 1 else 0.0
        mean, low, high = np.exp(ratio.mean() + np.array([0.0, -half, half])).tolist()
        return mean, low, high

    table, said = [], ""
    for label in VARIANTS:
        graphs = [g for (v, g) in logs if v == label]
        if not graphs:
            continue
        seeds = len({row["seed"] for row in rows if row["variant"] == label})
        cpu = np.mean([cost(rows, label, graph) for graph in graphs])
        ratio, low, high = over(label, BASE)
        table.append(
            [
                label,
                f"{len(graphs)} x {seeds}",
                f"{ratio:.4f} [{low:.3f}, {high:.3f}]",
                f"{cpu:.2f}",
            ]
        )
        if label == WITHOUT:
            met = "met" if ratio >= 1.03 and low > 1 else "missed"
            said = f"Asked was at least 1.03 without learned weights, its interval above 1: {met}."
        if label == WITHOUT + ALONE:
            ratio, low, high = over(label, BASE + ALONE)
            said += (
                f" Of whole episodes alone: {ratio:.4f} [{low:.3f}, {high:.3f}] without learned "
                "weights over with them."
            )
    return "\n".join(
        (
            "# Seed, search and learning on families set apart",
            "",
            f"`python results/policy/ablation.py`. One graph each of {', '.join(TEST)}, "
            f"up to {SEEDS} seeds as the column says, {EVALUATIONS} evaluations a run where nothing else is said. Ratio of "
            f"geometric means to `{BASE}` with its 95 % interval over graphs: above 1 is worse. "
            "Other work ran beside it; seconds are of the processor, medians of each graph. "
            f"A row{EQUAL[1:]} has on each graph the least of {', '.join(map(str, BUDGETS))} evaluations "
            f"that take at least as long as `{BASE}` there.",
            "",
            *markdown_table(["variant", "graphs x seeds", f"value / {BASE}", "CPU s"], table),
            "",
            said,
            "",
        )
    )


if __name__ == "__main__":
    options = row_options(__doc__)
    recorded = kept_rows(TABLE, options, ("variant",), numbers=True)
    record(options, recorded)
    write_text(HERE / "ablation.md", page(recorded))
