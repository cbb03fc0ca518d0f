"""Where the numbers of a page are from: the commits of the rows that its other tables read."""

from __future__ import annotations

import subprocess
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from page_tables.source import RESULTS, Source, bullets, span, table
from placeopt.experiments.cell import ROOMS
from placeopt.experiments.store import latest, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable

WRITTEN = ("references.csv", "minutes.csv")
"""Files that nothing records."""

NOT_SAID = "not said"


def origins(source: Source) -> dict[str, dict[str, list[str]]]:
    """Return, by commit and file, the load of the machine at each row of the files that were read;
    a row that names no commit is under `NOT_SAID`.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for file in [file for file in source.files if file not in WRITTEN]:
        rows = source.rows(file)
        runs = source.folder / Path(file).parent / "runs.jsonl"
        if rows and "commit" not in rows[0] and runs.exists():  # the report of a grid
            rows = list(latest(read_rows(runs)).values())
        for row in rows:
            commit = found.setdefault(row.get("commit") or NOT_SAID, {})
            commit.setdefault(file, []).append(str(row["load"]) if row.get("commit") else "")
    return found


@lru_cache
def state_of(commit: str) -> str:
    """Return the hashes of the package's folders at a commit, which are equal where the package is;
    the commit itself where the tree was changed (a plus sign), nothing where the history does not
    hold it.
    """
    if commit.endswith("+"):
        return commit
    words = ["git", "rev-parse", *(f"{commit}:{room}" for room in ROOMS)]
    done = subprocess.run(words, cwd=RESULTS, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


def recorded(source: Source) -> list[str]:
    """The commits of all rows that the page's tables read, and how busy the machine was."""
    lines = []
    for commit, files in origins(source).items():
        loads = [float(load) for some in files.values() for load in some if load]
        shown = ", ".join(f"{file} ({len(some)})" for file, some in files.items())
        lines.append([commit, span(loads) if loads else NOT_SAID, shown])
    return table(["rows recorded on commit", "load of the machine", "files (rows)"], lines)


def studies(source: Source) -> list[str]:
    """Every study with its commands, how long it takes, and why it is no grid where it is none."""
    minutes = {row["study"]: row for row in source.rows("minutes.csv")}
    lines = []
    for name, study in tomllib.loads((RESULTS / "studies.toml").read_text("utf-8")).items():
        noted = minutes.get(name)
        took = f"{noted['minutes']} on {noted['commit']}" if noted else NOT_SAID
        commands = "; ".join(f"`{command}`" for command in study["commands"])
        lines.append([name, commands, took, study.get("alone", "a grid")])
    return table(["study", "commands", "minutes on commit", "a grid, or what it does"], lines)


def again(source: Source) -> list[str]:
    """Rows that were drawn and measured again, and what differs."""
    rows = source.rows("again.csv")
    different = [row for row in rows if row["differs"]]
    return bullets(
        [
            f"{len(rows) - len(different)} of {len(rows)} are the same, seconds aside.",
            *(f"{row['table']}, {row['row']}: {row['differs']}." for row in different),
        ]
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "recorded": recorded,
    "studies": studies,
    "again": again,
}
