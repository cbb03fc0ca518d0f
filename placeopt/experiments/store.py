"""The results store: runs.jsonl, one line per finished cell, appended, flushed and synced.

A torn last line (a kill in the middle of a write) is cut off when the store is opened. A lock keeps
a second process out. When the disk is full, rows wait in memory and are written as soon as there is
room.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.experiments.consistency import check_consistent
from placeopt.experiments.row_checks import false_column, wrong_column
from placeopt.model.errors import InputError
from placeopt.model.files import one_line, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType


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
        self.unsaved: list[dict[str, Any]] = []
        self.repaired = 0
        self._file: Any = None
        self._lock: Any = None

    def __enter__(self) -> RunStore:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "runs.lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise InputError(
                f"'{self.folder}' is in use by {holder}: wait for it, or give another --out folder"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()
        self._repair()
        self._file = self.path.open("ab", buffering=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._write_unsaved()
        self._file.close()
        self._lock.close()

    def _repair(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            keep = size
            while keep > 0:
                # Find the start of the last line; whole lines end with a newline and parse.
                start = _line_start(file, keep)
                file.seek(start)
                line = file.read(keep - start)
                if line.endswith(b"\n") and _parses(line):
                    break
                keep = start
            if keep < size:
                file.truncate(keep)
                self.repaired = size - keep

    def append(self, row: dict[str, Any]) -> bool:
        """Write a row so that it survives a kill or a crash; return False where the disk did not
        take it.
        """
        self.unsaved.append(row)
        return self._write_unsaved()

    def _write_unsaved(self) -> bool:
        while self.unsaved:
            line = (json.dumps(self.unsaved[0], ensure_ascii=False) + "\n").encode()
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

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the stored rows, oldest first."""
        yield from read_rows(self.path)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a runs.jsonl file; a torn last line is skipped."""
    path = Path(path)
    if not path.exists():
        return
    with path.open("rb") as file:
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


def cell_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the last row of every cell of a runs.jsonl file, each with every column that a report
    needs.

    Raises
    ------
    InputError
        If a line is damaged, a row lacks a column or has one that is not what it should be
        (`row_checks`), or rows contradict one another.
    """
    rows = latest(read_rows(path))
    _check_each(path, rows, wrong_column)
    check_consistent(rows.values(), f"'{path}'")
    _check_each(path, rows, false_column)
    return list(rows.values())


def _check_each(
    path: str | Path, rows: dict[str, dict[str, Any]], wrong: Callable[[dict[str, Any]], str]
) -> None:
    for key, row in rows.items():
        column = wrong(row)
        if column:
            found = one_line(repr(row.get(column)), 40)
            raise InputError(
                f"'{path}' row '{one_line(key)}' is damaged ('{column}' is {found}): remove that "
                "line, its cell will run again"
            )


def latest(rows: Iterator[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the last row of every key: a retried cell replaces its failure."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found[row["key"]] = row
    return found


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
    except ValueError:
        return False
