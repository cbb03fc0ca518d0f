"""What the studies in results/ share: where the instances are, tables as CSV and Markdown, tables
whose rows stand for runs of a grid, clocks.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import time
from itertools import chain
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from placeopt.experiments.cell import commit, same_package
from placeopt.experiments.runner import AGAIN, HowToRun, PlainReporter, run_cells, stays
from placeopt.experiments.store import latest, read_rows
from placeopt.model.arrays import by_key
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import csv_text, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from placeopt.experiments.study import Cell

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
    of the last minute), unless it says the load at its start itself. A row that was read from a
    table keeps what stands there.

    Parameters
    ----------
    digits : significant digits of floats; None writes them in full.
    """
    origin = {"commit": commit(), "load": round(os.getloadavg()[0], 1)}
    for row in rows:
        if "commit" not in row:
            row.update({**origin, **row})
    measured = dict.fromkeys(key for row in rows for key in row if key not in ORIGIN)
    columns = [*measured, *ORIGIN]
    table = [[_rounded(row.get(key), digits) for key in columns] for row in rows]
    write_text(path, csv_text([columns, *table]))


def _rounded(cell: Any, digits: int | None) -> Any:
    return f"{cell:.{digits}g}" if digits and isinstance(cell, float) else cell


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


def kept_rows(
    path: Path, given: argparse.Namespace, heads: Sequence[str], numbers: bool = False
) -> list[Row]:
    """Return the rows of a CSV file that need not be measured (`--again`, and `--only` by the
    columns that name a row).
    """
    return [
        row
        for row in read_csv(path, numbers)
        if stays(row, given.again) or given.only not in ", ".join(row[head] for head in heads)
    ]


def grid_options(about: str | None, stages: Sequence[str] = ()) -> argparse.Namespace:
    """Read the command line of a study that is a grid: `row_options`, and how many runs at a time
    on which back end.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--jobs", type=int, default=1, help="runs by evaluations at a time")
    parser.add_argument("--backend", default="loky", help="loky or dask")
    parser.add_argument("--address", help="Dask scheduler")
    return row_options(about, stages, parser)


def row_options(
    about: str | None, stages: Sequence[str] = (), *parents: argparse.ArgumentParser
) -> argparse.Namespace:
    """Read the command line of a study that keeps the rows that are there.

    Parameters
    ----------
    about : the study's docstring.
    stages : what may be named, all by default.
    parents : parsers of further options.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, parents=parents
    )
    if stages:
        parser.add_argument("stages", nargs="*", default=list(stages), metavar="STAGE")
    parser.add_argument(
        "--again",
        nargs="?",
        const="changed",
        default="",
        choices=AGAIN,
        help="measure rows anew that are of another state of the package, or `all`",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that hold this text")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing later")
    given = parser.parse_args()
    for stage in given.stages if stages else ():
        check_choice("STAGE", stage, stages)
    given.end = time.monotonic() + 60 * given.minutes
    return given


def is_there(path: Path, given: argparse.Namespace) -> bool:
    """Return whether a table that is measured as a whole is there, and need not be measured."""
    rows = read_csv(path)
    return bool(rows) and len(kept_rows(path, given, ())) == len(rows)


def record_rows(
    path: Path,
    head: str,
    jobs: Iterable[tuple[str, Callable[[], Row]]],
    given: argparse.Namespace,
    digits: int | None = None,
) -> None:
    """Write a table of which a job measures each row, after each; what is no grid.

    Parameters
    ----------
    head : the first column, which holds the name of a job.
    """
    rows = {row[head]: row for row in read_csv(path)}
    kept = {row[head] for row in kept_rows(path, given, (head,))}
    names = []
    for name, job in jobs:
        names.append(name)
        if name in kept or given.only not in name:
            continue
        if time.monotonic() > given.end:
            print(f"{path.name}: stopped before {name}; run it again to continue")
            return
        rows[name] = {head: name, **job()}
        print(f"{path.name}:", *(f"{key} {x} " for key, x in rows[name].items()), flush=True)
        write_csv(path, list(rows.values()), digits)
    if len(rows) > len(names):  # some are of jobs that are no more
        write_csv(path, [rows[name] for name in names if name in rows], digits)


def run_grid(cells: Sequence[Cell], folder: Path, given: argparse.Namespace) -> dict[str, Row]:
    """Run cells that have no row in a folder's store, and return the rows of all by key.

    Those that have seconds run one at a time, those that have evaluations `--jobs` at a time, on
    loky or Dask.
    """
    for timed in (False, True):
        some = [cell for cell in cells if (cell.seconds is not None) == timed]
        if not some:
            continue
        summary = run_cells(some, folder, _how_to_run(given, timed=timed))
        if summary.contradiction:
            raise InputError(f"'{folder}': {summary.contradiction}")
        if summary.interrupted or summary.left:
            print(f"{summary.left} runs are left; run it again to continue")
            break
    wanted = {cell.key for cell in cells}
    found = latest(read_rows(folder / "runs.jsonl"))
    return {key: row for key, row in found.items() if key in wanted and row["status"] != "failed"}


def _how_to_run(given: argparse.Namespace, *, timed: bool) -> HowToRun:
    """Return how the cells of a grid are run, those with a limit of time one after the other."""
    parallel = {"jobs": given.jobs, "backend": given.backend, "address": given.address}
    return HowToRun(
        **({"jobs": 1} if timed else parallel),
        retry_failed=True,
        again=given.again,
        minutes=(given.end - time.monotonic()) / 60,
        allow_oversubscription=not timed,  # equal evaluations are equal on any number of cores
        reporter=PlainReporter(),
    )


def record_grid(
    path: Path,
    cells: Sequence[Cell],
    named: Callable[[Cell], Row],
    summed: Callable[[list[Row]], Row],
    given: argparse.Namespace,
    beside: Sequence[Row] = (),
) -> list[Row]:
    """Write and return a table of which a row stands for the runs of one solver on one problem.

    A row that is there is kept, unless it is to be measured `--again`; the runs of the others go to
    the store beside the table, so that whatever ends this, no run is done twice.

    Parameters
    ----------
    named : the first columns of a cell's row, which tell rows apart.
    summed : its other columns, of the rows of its runs.
    beside : rows of the table that are not of the grid.
    """
    groups = by_key((tuple(map(str, named(cell).values())), cell) for cell in cells)
    heads = list(named(cells[0]))
    kept = _by_name(kept_rows(path, given, heads), heads)
    table = {**_by_name(read_csv(path), heads), **kept}
    todo = {
        name: cells
        for name, cells in groups.items()
        if name not in kept and given.only in ", ".join(name)
    }
    there = len(groups.keys() & kept.keys())
    print(f"{path.name}: {there} of {len(groups)} rows are there, {len(todo)} to be measured")
    found = run_grid(list(chain.from_iterable(todo.values())), path.parent / "runs", given)
    for name, cells in todo.items():
        rows = [found[cell.key] for cell in cells if cell.key in found]
        if len(rows) == len(cells):
            table[name] = {**named(cells[0]), **summed(rows), **origin_of(rows)}
    rows = [*beside, *(table[name] for name in groups if name in table)]
    if rows != read_csv(path):
        write_csv(path, rows)
    return rows


def _by_name(rows: Sequence[Row], heads: Sequence[str]) -> dict[tuple[str, ...], Row]:
    """Return rows by what stands in the columns that tell them apart."""
    return {tuple(row[head] for head in heads): row for row in rows}


def origin_of(rows: Sequence[Row]) -> Row:
    """Return commit and mean load of runs; the commit is the last one's, or of those that are of
    another state of the package, if there are any.
    """
    last = min(rows, key=lambda row: (same_package(row["commit"]), -row["finished"]))
    return {
        "commit": last["commit"],
        "load": round(sum(row["load"] for row in rows) / len(rows), 1),
    }


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
