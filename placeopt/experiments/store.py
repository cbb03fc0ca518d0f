"""The results store: runs.jsonl, one line per finished cell, appended, flushed and synced.

A torn last line (a kill in the middle of a write) is cut off when the store is opened. A lock keeps
a second process out. When the disk is full, rows wait in memory and are written as soon as there is
room.

What a row of a study must look like before it is compared with others: types, ranges, and what
follows from its own value and bound.

Whether the rows of a study can all be true: no proven bound above a value, no two optima, no
solution of the infeasible.

Rows speak of one problem where hash and objective are the same, and where instance, cluster and
objective are: then the hashes have to agree. A row that is "optimal" claims its
value as a bound.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from placeopt.model.arrays import by_key
from placeopt.model.errors import InputError
from placeopt.model.files import one_line, parse_json, regular_file
from placeopt.model.result import STATUSES, Number, gap_of

Row = dict[str, Any]


CLAIMS = (
    "problem_hash",
    "objective",
    "instance",
    "label",
    "seed",
    "status",
    "value",
    "lower_bound",
    "bound_method",
)
"""What a row must have to claim anything."""


def check_consistent(rows: Iterable[Row], where: str | Path = "these runs") -> None:
    """Refuse rows that contradict one another.

    Raises
    ------
    InputError
        Naming two rows of which at least one is false.
    """
    words = contradiction(rows)
    if words:
        raise InputError(f"{where}: {words}")


def contradiction(rows: Iterable[Row]) -> str:
    """Say in words which two rows contradict each other first, and what to do; empty where none do.
    Rows that lack a column say nothing.

    Rows of one instance, cluster and objective speak of one problem, too: tables put them under one
    name.
    """
    said = [row for row in rows if all(key in row for key in CLAIMS)]
    problems = by_key(((row["problem_hash"], row["objective"]), row) for row in said)
    named = by_key(
        ((row["instance"], row.get("cluster") or "", row["objective"]), row) for row in said
    )
    false = "one of them is false, remove it and its cell will run again"
    changed = "the instance or the study was changed between them, remove the rows of one"
    for groups, look, remedy in (
        (problems.values(), _false_of_one_problem, false),
        (named.values(), _other_problem, changed),
    ):
        for same in groups:
            if words := look(same):
                return f"{_contradict(same, words)}: {remedy}"
    return ""


def _false_of_one_problem(rows: list[Row]) -> str:
    """Look for rows of one problem that cannot all be true."""
    return _bound_above_value(rows) or _solution_of_infeasible(rows) or _other_units(rows)


def _contradict(rows: list[Row], words: str) -> str:
    first = rows[0]
    where = (
        f"{first['instance']} on {first['cluster']}" if first.get("cluster") else first["instance"]
    )
    return f"{one_line(where)} ({first['objective']}): results contradict each other; {words}"


def number_of(row: Row, key: str) -> Number | None:
    """Return a value or bound of a row, exactly where the row says it exactly."""
    shown: Number | None = row[key]
    exact = row.get(f"{key}_exact")
    if shown is None or not isinstance(exact, str):
        return shown
    try:
        fraction = Fraction(exact)
        return fraction if float(fraction) == shown else shown
    except (ValueError, ZeroDivisionError, OverflowError):
        return shown


def is_above(a: Number, b: Number) -> bool:
    """Whether a number is above another one, by more than rounding where one is a float; numbers
    that are none are.
    """
    # Relative error that two numbers may differ by where one of them was rounded to a float
    rounding = 1e-9
    if isinstance(a, float) or isinstance(b, float):
        return not float(a) <= float(b) + rounding * max(1.0, abs(float(a)), abs(float(b)))
    return a > b


def _bound_above_value(rows: list[Row]) -> str:
    """Compare the best value of any row with the largest bound of any row, and with the value of
    every optimal one.
    """
    values = [(value, row) for row in rows if (value := number_of(row, "value")) is not None]
    proofs = [(claimed, row) for row in rows if (claimed := _claimed(row)) is not None]
    if not values or not proofs:
        return ""
    best = min(values, key=lambda found: found[0])
    proof = max(proofs, key=lambda found: found[0])
    if not is_above(proof[0], best[0]):
        return ""
    claim = f"lower bound {proof[0]} by '{proof[1]['bound_method']}'"
    if proof[0] == number_of(proof[1], "value") and proof[1]["status"] == "optimal":
        claim = f"optimal value {proof[0]}"
    return f"value {best[0]} of {_name(best[1])} is below the {claim} of {_name(proof[1])}"


def _claimed(row: Row) -> Number | None:
    """Return what a row says no value can be below: its bound, or its value where that is
    optimal.
    """
    value, bound = number_of(row, "value"), number_of(row, "lower_bound")
    if row["status"] != "optimal" or value is None:
        return bound
    return value if bound is None or is_above(value, bound) else bound


def _solution_of_infeasible(rows: list[Row]) -> str:
    """Look for a row that says infeasible beside one with a solution."""
    without = next((row for row in rows if row["status"] == "infeasible"), None)
    solved = next((row for row in rows if row["value"] is not None), None)
    if without is None or solved is None:
        return ""
    return (
        f"value {number_of(solved, 'value')} of {_name(solved)}, but infeasible says "
        f"{_name(without)}"
    )


def _other_units(rows: list[Row]) -> str:
    """Look for rows whose ticks are not as long as those of others."""
    known = [row for row in rows if row.get("tick_seconds") is not None]
    other = next((row for row in known if row["tick_seconds"] != known[0]["tick_seconds"]), None)
    if other is None:
        return ""
    return (
        f"ticks of {known[0]['tick_seconds']} s of {_name(known[0])}, but of "
        f"{other['tick_seconds']} s of {_name(other)}"
    )


def _other_problem(rows: list[Row]) -> str:
    """Look for rows of another problem under the same name."""
    first = rows[0]
    other = next((row for row in rows if row["problem_hash"] != first["problem_hash"]), None)
    if other is None:
        return ""
    return f"{_name(first)} and {_name(other)} solved two different problems"


def _name(row: Row) -> str:
    """Name a row for people: solver, seed, cell."""
    return (
        f"solver '{one_line(str(row['label']))}', seed {row['seed']} (row "
        f"'{one_line(str(row.get('key', '?')), 60)}')"
    )


MOST = 2**63
"""Below which all numbers of a row are, as 64-bit integers are."""

_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")
_FRACTION = re.compile(r"[0-9]{1,19}/[1-9][0-9]{0,18}")


def _text(value: Any) -> bool:
    """A text of one line, without escape codes."""
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST


def _fraction(value: Any) -> bool:
    return isinstance(value, str) and _FRACTION.fullmatch(value) is not None


def _point(value: Any) -> bool:
    """Seconds, evaluations, incumbent or None, lower bound."""
    if not isinstance(value, list) or len(value) != 4:
        return False
    seconds, evaluations, incumbent, bound = value
    return (
        _number(seconds)
        and _whole(evaluations)
        and (incumbent is None or _number(incumbent))
        and _number(bound)
    )


NEEDED: dict[str, Callable[[Any], bool]] = {
    "key": _text,
    "instance": _text,
    "objective": _text,
    "problem_hash": _text,
    "label": _text,
    "seed": _whole,
    "status": lambda x: isinstance(x, str) and x in (*STATUSES, "failed"),
    "value": lambda x: x is None or _number(x),
    "lower_bound": _number,
    "bound_method": _text,
    "evaluations": _whole,
    "runtime": _number,
    "trace": lambda x: isinstance(x, list) and all(map(_point, x)),
}
"""Columns that every row has."""

OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "cluster": lambda x: x is None or _text(x),
    "version": _text,
    "queue": _text,
    "message": _text,
    "options": lambda x: isinstance(x, dict),
    "budget": lambda x: isinstance(x, dict),
    "error": lambda x: x is None or _text(x),
    "tick_seconds": lambda x: _number(x) and x > 0,
    "value_exact": _fraction,
    "lower_bound_exact": _fraction,
    "gap": lambda x: x is None or (_number(x) and x <= 1),
}
"""Columns that a row may have."""


def wrong_column(row: Row) -> str:
    """Return the first column of a row that is missing, of another type or out of range; empty
    where all are right.
    """
    rules = NEEDED | {column: right for column, right in OPTIONAL.items() if column in row}
    return next((x for x, right in rules.items() if x not in row or not right(row[x])), "")


def false_column(row: Row) -> str:
    """Return the first column of a row that does not follow from its value and bound; empty where
    all do.
    """
    if column := _false_exact(row):
        return column
    value, bound = number_of(row, "value"), number_of(row, "lower_bound")
    if value is None:
        return "" if row["status"] in ("infeasible", "unknown", "failed") else "status"
    assert bound is not None
    optimal = () if is_above(value, bound) else ("optimal",)
    if row["status"] not in ("feasible", *optimal):
        return "status"
    found = (point[2] for point in row["trace"] if point[2] is not None)
    if any(is_above(value, better) for better in found):
        return "trace"
    gap = row.get("gap")
    right = gap is None or math.isclose(gap, gap_of(value, bound), abs_tol=1e-9)
    return "" if right else "gap"


def _false_exact(row: Row) -> str:
    """Return the first column that is not exactly what the column beside it is in floats."""
    for column in ("value", "lower_bound"):
        exact = row.get(f"{column}_exact")
        if exact is not None and row[column] != float(Fraction(exact)):
            return f"{column}_exact"
    return ""


class RunStore:
    """Append-only store of one study; use it as a context manager.

    Attributes
    ----------
    unsaved : rows that could not be written yet.
    repaired : bytes of a torn last line that were cut off.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "runs.jsonl"
        self.unsaved: list[Row] = []
        self.repaired = 0
        self._file: Any = None
        self._lock: Any = None

    def __enter__(self) -> RunStore:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "runs.lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise InputError(
                f"'{self.folder}' is in use by {holder}: wait for it, or give another --out folder"
            ) from error
        except OSError as error:  # a file system without locks keeps nobody out
            words = f"'{self.folder}' cannot be locked ({error.strerror}): run one study at a time"
            warnings.warn(words, stacklevel=2)
        try:
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()}")
            self._lock.flush()
        except OSError as error:
            raise InputError(f"'{self.folder}' cannot be written to: {error.strerror}") from error
        self._repair()
        self._file = self.path.open("ab", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._write_unsaved()
        self._file.close()
        self._lock.close()

    def _repair(self) -> None:
        if not self.path.exists():
            return
        with regular_file(self.path, "runs").open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            start = _line_start(file, size)
            file.seek(start)
            line = file.read()
            if line and not (line.endswith(b"\n") and _parses(line)):
                file.truncate(start)
                self.repaired = size - start

    def append(self, row: Row) -> bool:
        """Write a row so that it survives a kill or a crash; return False where the disk did not
        take it.
        """
        self.unsaved.append(row)
        return self._write_unsaved()

    def _write_unsaved(self) -> bool:
        while self.unsaved:
            text = json.dumps(self.unsaved[0], ensure_ascii=False) + "\n"
            line = text.encode("utf-8", "backslashreplace")
            before = os.fstat(self._file.fileno()).st_size
            try:
                written = self._file.write(line)
                os.fsync(self._file.fileno())
            except OSError:
                written = 0
            if written != len(line):
                os.truncate(self.path, before)  # no half-written line stays
                return False
            self.unsaved.pop(0)
        return True

    def rows(self) -> Iterator[Row]:
        """Yield the stored rows, oldest first."""
        return read_rows(self.path)


def read_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a runs.jsonl file; a torn last line is skipped."""
    path = Path(path)
    if not path.exists():
        return
    with regular_file(path, "runs").open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = parse_json(line.decode(), "row")
            except ValueError:  # an InputError, no UTF-8, or a number of thousands of digits
                row = None
            if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                raise InputError(
                    f"'{path}' line {number} is damaged: remove that line, its cell will run again"
                )
            yield row


def cell_rows(path: str | Path) -> list[Row]:
    """Return the last row of every cell of a runs.jsonl file, each with every column that a report
    needs.

    Raises
    ------
    InputError
        If a line is damaged, a row lacks a column or has one that is not what it should be
        (`wrong_column`), or rows contradict one another.
    """
    rows = latest(read_rows(path))
    _check_each(path, rows, wrong_column)
    check_consistent(rows.values(), f"'{path}'")
    _check_each(path, rows, false_column)
    return list(rows.values())


def _check_each(path: str | Path, rows: dict[str, Row], wrong: Callable[[Row], str]) -> None:
    for key, row in rows.items():
        column = wrong(row)
        if column:
            found = one_line(repr(row.get(column)), 40)
            raise InputError(
                f"'{path}' row '{one_line(key)}' is damaged ('{column}' is {found}): remove that "
                "line, its cell will run again"
            )


def latest(rows: Iterator[Row]) -> dict[str, Row]:
    """Return the last row of every key: a retried cell replaces its failure."""
    return {row["key"]: row for row in rows}


def _line_start(file: Any, end: int) -> int:
    """Return the offset after the last newline before the last byte of the line that ends at
    `end`.
    """
    block, at = b"", end
    while at > 0:
        step = min(1 << 16, at)
        at -= step
        file.seek(at)
        block = file.read(step) + block
        cut = block.rfind(b"\n", 0, len(block) - 1)
        if cut >= 0:
            return at + cut + 1
    return 0


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
