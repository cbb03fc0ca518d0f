"""What the studies in results/ share: where the instances are, tables as CSV and Markdown,
clocks.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from placeopt.experiments.cell import commit
from placeopt.model.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = dict[str, Any]
ORIGIN = "commit", "load"  # the columns that say where a row is from


def data_folder(name: str = "") -> Path:
    """Return the folder of the real instances (PLACEOPT_DATA, default ../shared/data), or one in
    it; it may be absent.
    """
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("PLACEOPT_DATA", default)) / name


def write_csv(path: Path, rows: Sequence[Row], digits: int | None = None) -> None:
    """Write rows as CSV, whole or not at all; the columns are those of all rows in order of
    appearance.

    A row without a `commit` is new: it is given the commit of this tree, with a plus sign where
    tracked files differ from it, and the load of the machine (the mean number of running processes
    of the last minute). A row that was read from a table keeps what stands there.

    Parameters
    ----------
    digits : significant digits of floats; None writes them in full.
    """
    origin = {"commit": commit(), "load": round(os.getloadavg()[0], 1)}
    for row in rows:
        if "commit" not in row:
            row.update(origin)
    measured = dict.fromkeys(key for row in rows for key in row if key not in ORIGIN)
    columns = [*measured, *ORIGIN]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        rounded = (
            {key: f"{x:.{digits}g}" if isinstance(x, float) else x for key, x in row.items()}
            if digits
            else row
        )
        writer.writerow(rounded)
    write_text(path, stream.getvalue())


def read_csv(path: Path, numbers: bool = False) -> list[Row]:
    """Return the rows of a CSV file, none if it is absent; cells are text unless `numbers` are
    asked for. A commit is text, and empty where the table names none.
    """
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows: list[Row] = [{**row, "commit": row.get("commit", "")} for row in csv.DictReader(file)]
    if not numbers:
        return rows
    return [
        {key: text if key == "commit" else _number(text) for key, text in row.items()}
        for row in rows
    ]


def table_of(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table of all that was measured: rows without their origin."""
    shown = [{key: x for key, x in row.items() if key not in ORIGIN} for row in rows]
    return markdown_table(list(shown[0]), [list(row.values()) for row in shown])


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table; floats in six digits."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        lines.append(
            "| "
            + " | ".join(f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row)
            + " |"
        )
    return lines


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Clock:
    """CPU seconds (of all threads) and wall seconds of a block."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> Clock:
        self.cpu, self.wall = -time.process_time(), -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time()
        self.wall += time.perf_counter()


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean of two or more values
    (Student's t).
    """
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def fastest(run: Callable[[], Any], rounds: int = 5) -> float:
    """Return the least processor seconds of several runs (the machine is shared)."""
    spent = []
    for _ in range(rounds):
        with Clock() as clock:
            run()
        spent.append(clock.cpu)
    return min(spent)
