"""Where the numbers of the pages come from, and how each is written.

A number on a page is a cell of a committed CSV file, or counted or divided from such cells, and is
written by one of the four functions below, so that it is rounded alike wherever it is shown.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from placeopt.experiments.studies import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = Path(__file__).resolve().parents[1]
Line = dict[str, str]


class Source:
    """The CSV files below a folder.

    Parameters
    ----------
    folder : the folder `results`, or a copy of it.

    Attributes
    ----------
    files : the files that were read, in order.
    """

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.files: dict[str, None] = {}

    def rows(self, path: str, **where: object) -> list[Line]:
        """Return the rows of a CSV file whose columns have these values (compared as text)."""
        self.files[path] = None
        with (self.folder / path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            row
            for row in rows
            if all(row[column] == str(wanted) for column, wanted in where.items())
        ]

    def streams(self, rule: str, **where: object) -> list[Line]:
        """Return rows of job streams under a split rule, with those of policies learned on the
        distribution itself.
        """
        own = self.rows("job_streams/learned.csv", rule=rule, **where)
        return [
            *self.rows(f"job_streams/{rule}.csv", **where),
            *(row for row in own if row["learned_on"] == row["beta"]),
        ]

    def row(self, path: str, **where: object) -> Line:
        """Return the only row with these values."""
        found = self.rows(path, **where)
        if len(found) != 1:
            raise LookupError(f"results/{path}: expected one row with {where}, found {len(found)}")
        return found[0]

    def numbers(self, path: str, column: str, **where: object) -> list[float]:
        """Return a column of the rows with these values, as numbers."""
        return [float(row[column]) for row in self.rows(path, **where)]

    def number(self, path: str, column: str, **where: object) -> float:
        """Return one cell as a number."""
        return float(self.row(path, **where)[column])

    def reference(self, system: str, quantity: str, case: str = "any") -> float:
        """Return a value of others from references.csv."""
        return self.number("references.csv", "value", system=system, quantity=quantity, case=case)

    def doppler_mean(self, graph: str, method: str) -> float:
        """Return the mean of a method's runs on a graph of Doppler's, on four devices."""
        return self.number("doppler/runs.csv", "mean", graph=graph, devices="4", method=method)

    def references(self, system: str, quantity: str, cases: Sequence[str]) -> list[float]:
        """Return values of others, one a case."""
        return [self.reference(system, quantity, case) for case in cases]


def floats(rows: Iterable[Line], column: str) -> list[float]:
    """Return a column as numbers."""
    return [float(row[column]) for row in rows]


def value(x: float) -> str:
    """Write a value: two decimals, four below one, none if it is whole."""
    if x == int(x):
        return f"{int(x)}"
    return f"{x:.2f}" if abs(x) >= 1 else f"{x:.4f}"


def seconds(x: float) -> str:
    """Write seconds: two decimals, one from 10 on, none from 100 on."""
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def percent(share: float) -> str:
    """Write a share in percent: one decimal, two below one percent."""
    hundred = 100 * share
    if 0 < hundred < 0.01:
        return "< 0.01 %"
    return (
        "0 %" if hundred == 0 else f"{hundred:.1f} %" if abs(hundred) >= 1 else f"{hundred:.2f} %"
    )


def times(ratio: float) -> str:
    """Write a ratio."""
    return f"{ratio:.2f}"


def listed(numbers: Sequence[float], write: object = value) -> str:
    """Write several numbers, separated by commas."""
    assert callable(write)
    return ", ".join(write(x) for x in numbers)


def span(numbers: Sequence[float], write: object = value) -> str:
    """Write the least and the largest of several numbers."""
    assert callable(write)
    low, high = write(min(numbers)), write(max(numbers))
    if low == high:
        return str(low)
    unit = " %" if high.endswith(" %") else ""
    return f"{low.removesuffix(unit) if unit else low} to {high}"


def middle(row: Line, column: str = "cpu") -> str:
    """Write the median of several runs' seconds, with the least and the largest."""
    low, high = (seconds(float(row[f"{column}_{end}"])) for end in ("low", "high"))
    found = seconds(float(row[column]))
    return found if low == high == found else f"{found} ({low} to {high})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return markdown_table(heads, rows)


def bullets(lines: Sequence[str]) -> list[str]:
    """Return the lines of a list."""
    return [f"- {line}" for line in lines]
