"""The mutation score, a part of `study.py`: counts of `mutants.csv`, which
`python tests/attack/mutants.py` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.experiments.studies import read_csv

if TYPE_CHECKING:
    import argparse

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
NAMES = ("file", "where", "operator", "before", "after", "number")
KINDS = ("same", "tie", "weaker", "cost", "words")
"""Why no test of what is true can tell an equivalent mutant: it computes the same; a tie is broken
otherwise; a bound is weaker, and holds; the same is found with more or less work; a message says
other words."""

_SHARES = ("made", "killed at once", "killed since", "argued", "left")


def mutation_score(_options: argparse.Namespace) -> list[Row]:
    """Seeded faults in what decides truth, by group of files: killed by a test that runs the line,
    or equivalent, as `equivalent.csv` argues one by one. The score is killed / (made - equivalent).
    """
    argued = {_key(row): row for row in read_csv(HERE / "equivalent.csv")}
    groups: dict[str, Row] = {}
    total: Row = {"group": "all"}
    for row in read_csv(HERE / "mutants.csv"):
        known = argued.get(_key(row))
        if known is not None and known["kind"] not in KINDS:
            raise ValueError(f"equivalent.csv: kind '{known['kind']}', expected one of {KINDS}")
        if row["outcome"] == "killed":
            outcome = "killed"
        else:
            outcome = "survived" if known is None else "equivalent"
        entry = groups.setdefault(row["group"], {"group": row["group"]})
        for counts in (entry, total):
            for name in ("made", "killed", "equivalent", "survived"):
                counts.setdefault(name, 0)
            counts["made"] += 1
            counts[outcome] += 1
            if outcome == "equivalent" and known is not None:
                counts[known["kind"]] = counts.get(known["kind"], 0) + 1
    return [_finished(row) for row in (*groups.values(), total)]


def fresh_mutants(_options: argparse.Namespace) -> list[Row]:
    """Shares of mutants of other seeds, which no test had been written for when they were tried, nor
    any argued: how many the tests killed at once, and how many they and those written on what
    survived kill since; of the rest those that `equivalent.csv` argues, and those that are left.
    """
    argued = {_key(row) for row in read_csv(HERE / "equivalent.csv")}
    groups: dict[tuple[str, str], Row] = {}
    for row in read_csv(HERE / "mutants-fresh.csv"):
        outcome = "left"
        if "killed" in (row["outcome"], row["since"]):
            outcome = "killed since"
        elif _key(row) in argued:
            outcome = "argued"
        for name in (row["group"], "all"):
            entry = groups.setdefault(
                (row["seed"], name),
                {"seed": row["seed"], "group": name, **dict.fromkeys(_SHARES, 0)},
            )
            entry["made"] += 1
            entry["killed at once"] += row["outcome"] == "killed"
            entry[outcome] += 1
    ordered = sorted(groups.items(), key=lambda item: (int(item[0][0]), item[0][1] == "all"))
    for _, entry in ordered:
        for when in ("at once", "since"):
            entry[f"part {when}"] = f"{entry[f'killed {when}'] / entry['made']:.3f}"
    return [entry for _, entry in ordered]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in NAMES)


def _finished(row: Row) -> Row:
    kinds = ", ".join(f"{row[kind]} {kind}" for kind in KINDS if row.get(kind))
    found = {name: row[name] for name in ("group", "made", "killed", "equivalent", "survived")}
    tellable = row["made"] - row["equivalent"]
    of_all = f"{row['killed'] / row['made']:.3f}"
    score = f"{row['killed'] / max(1, tellable):.3f}"
    return {**found, "kinds": kinds, "killed of made": of_all, "score": score}


__all__ = ["fresh_mutants", "mutation_score"]
