"""The tables of results/engine: gaps of the engine beside its tactics, and beside an older version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from page_tables.source import floats, table, value

if TYPE_CHECKING:
    from page_tables.source import Line, Source

ROUNDED = 0.01
"""Points of the gap that count as none."""

SETS = {"1": "apart", "0": "chosen on"}


def counted(differences: list[float]) -> list[str]:
    """Return how many are better, equal and worse."""
    better = sum(x < -ROUNDED for x in differences)
    worse = sum(x > ROUNDED for x in differences)
    return [str(better), str(len(differences) - better - worse), str(worse)]


def regrets(rows: list[Line]) -> list[str]:
    """Return the cells that sum up the engine beside its tactics."""
    found = floats(rows, "regret")
    gaps = [f"{np.mean(floats(rows, name)):.2f} %" for name in ("engine_gap", "best_gap")]
    return [str(len(rows)), *gaps, f"{np.mean(found):.2f}", f"{max(found):.2f}", *counted(found)]


def changes(rows: list[Line]) -> list[str]:
    """Return the cells that sum up the engine beside an older version."""
    before, now = floats(rows, "old_gap"), floats(rows, "new_gap")
    lost = [b - a for a, b in zip(before, now, strict=True)]
    gaps = [f"{np.mean(gaps):.2f} %" for gaps in (before, now)]
    return [str(len(rows)), *gaps, value(round(max(lost), 2)), *counted(lost)]


def family(row: Line) -> str:
    """Return the family of a problem."""
    return row["problem"].rpartition("-")[0]


NUMBERS = ("engine_gap", "best_gap", "regret")
REGRET = ["engine's mean gap", "best tactic's", "regret, mean", "most", "better", "equal", "worse"]
CHANGE = ["mean gap before", "now", "most lost", "better", "equal", "worse"]


def engine_regret(source: Source) -> list[str]:
    """Regret by set and objective, with two cores, one, and all the time."""
    lines = []
    for path, what in (
        ("engine/regret.csv", "two cores"),
        ("engine/regret-one-core.csv", "one core"),
        ("engine/regret-whole.csv", "two cores, all the time"),
    ):
        for apart, name in SETS.items():
            rows = source.rows(path, apart=apart)
            objectives = dict.fromkeys(row["objective"] for row in rows)
            for objective in ("all", *objectives) if len(objectives) > 1 else ("all",):
                some = [row for row in rows if objective in ("all", row["objective"])]
                if some:
                    lines.append([name, what, objective, *regrets(some)])
    return table(["set", "with", "objective", "problems", *REGRET], lines)


def engine_apart(source: Source) -> list[str]:
    """Every problem of the families set apart, with all the time."""
    rows = source.rows("regret/regret-whole.csv")
    lines = [
        [row["problem"], f"`{row['best_tactic']}`", *(f"{float(row[x]):.2f}" for x in NUMBERS)]
        for row in rows
    ]
    lines.append(
        [f"mean of {len(rows)}", "", *(f"{np.mean(floats(rows, x)):.2f}" for x in NUMBERS)]
    )
    return table(["problem", "best tactic", "engine's gap, %", "its gap, %", "regret"], lines)


def engine_change(source: Source) -> list[str]:
    """Gaps before and now by set and objective."""
    lines = []
    for apart, name in SETS.items():
        rows = source.rows("engine/pairs.csv", apart=apart)
        for objective in dict.fromkeys(row["objective"] for row in rows):
            some = [row for row in rows if row["objective"] == objective]
            lines.append([name, objective, *changes(some)])
    return table(["set", "objective", "problems", *CHANGE], lines)


def engine_families(source: Source) -> list[str]:
    """Every family: regret, and the mean gap before."""
    pairs = {row["problem"]: row for row in source.rows("engine/pairs.csv")}
    lines = []
    for apart, name in SETS.items():
        rows = source.rows("engine/regret.csv", apart=apart)
        for of in dict.fromkeys(map(family, rows)):
            some = [row for row in rows if family(row) == of]
            before = [float(pairs[row["problem"]]["old_gap"]) for row in some]
            lines.append([name, of, *regrets(some), f"{np.mean(before):.2f} %"])
    return table(["set", "family", "problems", *REGRET, "before the engine"], lines)


TABLES = {
    "engine-regret": engine_regret,
    "engine-apart": engine_apart,
    "engine-change": engine_change,
    "engine-families": engine_families,
}
