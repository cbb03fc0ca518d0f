"""Where the numbers of a page are from: the commits of the rows that its other tables read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.source import Source, span, table

if TYPE_CHECKING:
    from collections.abc import Callable

WRITTEN = ("references.csv",)
"""Files that nothing records."""

NOT_SAID = "not said"


def origins(source: Source) -> dict[str, dict[str, list[str]]]:
    """Return, by commit and file, the load of the machine at each row of the files that were read;
    a row that names no commit is under `NOT_SAID`.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for file in [file for file in source.files if file not in WRITTEN]:
        for row in source.rows(file):
            commit = found.setdefault(row.get("commit") or NOT_SAID, {})
            commit.setdefault(file, []).append(row.get("load") or "")
    return found


def recorded(source: Source) -> list[str]:
    """The commits of all rows that the page's tables read, and how busy the machine was."""
    lines = []
    for commit, files in origins(source).items():
        loads = [float(load) for some in files.values() for load in some if load]
        shown = ", ".join(f"{file} ({len(some)})" for file, some in files.items())
        lines.append([commit, span(loads) if loads else NOT_SAID, shown])
    return table(["rows recorded on commit", "load of the machine", "files (rows)"], lines)


TABLES: dict[str, Callable[[Source], list[str]]] = {"recorded": recorded}
