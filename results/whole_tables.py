"""What studies share beside the package's: tables that are measured as a whole, or row by row where
several columns name a row, and the memory of a process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.experiments.cell import same_package
from placeopt.experiments.studies import is_there, kept_rows, read_csv, write_csv

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Row = dict[str, Any]


def say_rows(path: Path, given: argparse.Namespace) -> bool:
    """Say what is there of a table; return whether some of it is absent or to be measured again."""
    rows = read_csv(path)
    old = sum(not same_package(row["commit"]) for row in rows)
    asked = " (measured anew with --again)" if old and not given.again else ""
    what = f"{len(rows)} rows are there, {old} of another state of the package{asked}"
    print(f"{path.name}: {what if rows else 'not there'}", flush=True)
    return not is_there(path, given)


def wanted(paths: Iterable[Path], given: argparse.Namespace) -> bool:
    """Return whether tables that one run writes are to be measured, and say what is there of each.

    They are where one is absent, or to be measured `--again`, unless `--minutes` are over.
    """
    missing = [path.name for path in paths if say_rows(path, given)]
    if missing and time.monotonic() > given.end:
        print(f"stopped before {', '.join(missing)}; run it again to continue", flush=True)
        return False
    return bool(missing)


def record_tables(
    folder: Path,
    tables: Mapping[str, Callable[[], list[Row]]],
    given: argparse.Namespace,
    digits: int | None = None,
) -> None:
    """Measure and write, one after the other, the tables of a folder that are wanted."""
    for name, measured in tables.items():
        path = folder / f"{name}.csv"
        if wanted([path], given):
            write_csv(path, measured(), digits)


def record_named(
    path: Path,
    jobs: Iterable[tuple[Row, Callable[[], Row]]],
    given: argparse.Namespace,
    digits: int | None = None,
) -> None:
    """Write a table of which a job measures each row, after each.

    Parameters
    ----------
    jobs : the columns that name a row, and what measures the others.
    """
    say_rows(path, given)
    rows, kept = read_csv(path), kept_rows(path, given, ())
    for name, job in jobs:
        if any(_named(row, name) for row in kept):
            continue
        if time.monotonic() > given.end:
            print(f"{path.name}: stopped before {name}; run it again to continue", flush=True)
            return
        row = {**name, **job()}
        print(f"{path.name}:", row, flush=True)
        rows = replaced(rows, row, name)
        write_csv(path, rows, digits)


def replaced(rows: Sequence[Row], row: Row, name: Row) -> list[Row]:
    """Return rows with one in the place of that of the same name, or at the end."""
    at = next((i for i, other in enumerate(rows) if _named(other, name)), len(rows))
    return [*rows[:at], row, *rows[at + 1 :]]


def _named(row: Row, name: Row) -> bool:
    return all(str(row[head]) == str(x) for head, x in name.items())


def peak_mb() -> float:
    """Return the most memory (MiB) that this process has had since it began its program: `getrusage`
    counts what the process had that it was forked from.
    """
    words = Path("/proc/self/status").read_text(encoding="utf-8").split()
    return int(words[words.index("VmHWM:") + 1]) / 1024
