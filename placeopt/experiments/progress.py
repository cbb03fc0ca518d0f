"""Tell a person how a study is going: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class StudySummary:
    """What a run of a study did.

    Attributes
    ----------
    skipped : cells that were finished before; unsaved : finished cells that the disk did not take.
    contradiction : two rows of the store of which at least one is false, in words; empty where
    there are none.
    """

    total: int = 0
    skipped: int = 0
    done: int = 0
    failed: int = 0
    unsaved: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    contradiction: str = ""

    def count(self, row: dict[str, Any]) -> None:
        """Count a cell that has just ended."""
        if row["status"] != "failed":
            self.done += 1
            return
        self.failed += 1
        self.errors.append(
            f"{row['instance']} / {row['label']} / seed {row['seed']}: {row['error']}"
        )


class Reporter(Protocol):
    """Told when a study begins and about every finished cell."""

    def begin(self, summary: StudySummary, known: list[dict[str, Any]]) -> None:
        """Learn how many cells there are, and the rows that are known already."""
        ...

    def finished(self, summary: StudySummary, row: dict[str, Any]) -> None:
        """Learn about one more row."""
        ...


class PlainReporter:
    """A line now and then: for logs."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self._last = self._start = time.perf_counter()

    def begin(self, summary: StudySummary, known: list[dict[str, Any]]) -> None:
        """Print what there is to do."""
        self._last = self._start = time.perf_counter()
        print(
            f"{summary.total} cells, {summary.skipped} finished before", file=sys.stderr, flush=True
        )

    def finished(self, summary: StudySummary, row: dict[str, Any]) -> None:
        """Print a line every few seconds, and one for every failure."""
        if row["status"] == "failed":
            print(
                f"failed: {row['instance']} / {row['label']} / seed {row['seed']}: {row['error']}",
                file=sys.stderr,
                flush=True,
            )
        now = time.perf_counter()
        count = summary.done + summary.failed
        left = summary.total - summary.skipped - count
        if now - self._last >= self.every or left == 0:
            self._last = now
            rate = count / max(1e-9, now - self._start)
            print(
                f"{summary.done} done, {summary.failed} failed, {left} left, {rate:.2g} cells/s, "
                f"{left / rate:.0f} s to go",
                file=sys.stderr,
                flush=True,
            )


class LiveReporter:
    """One live view on a terminal: a bar, the throughput, the best gaps so far."""

    def __init__(self, rows: int = 8) -> None:
        self.rows = rows
        self.best: dict[str, tuple[float, str]] = {}
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None

    def begin(self, summary: StudySummary, known: list[dict[str, Any]]) -> None:
        """Start the view."""
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("cells", total=summary.total - summary.skipped)
        for row in known:
            self._note(row)
        self._live = Live(self._view(), console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def finished(self, summary: StudySummary, row: dict[str, Any]) -> None:
        """Advance the view."""
        self._note(row)
        rate = (summary.done + summary.failed) / max(1e-9, self._bar.tasks[0].elapsed or 1e-9)
        words = f"{summary.done} done, {summary.failed} failed, {rate:.3g} cells/s"
        self._bar.update(self._task, advance=1, description=words)
        self._live.update(self._view())

    def close(self) -> None:
        """End the view."""
        if self._live is not None:
            self._live.stop()

    def _note(self, row: dict[str, Any]) -> None:
        if row.get("gap") is not None:
            where = f"{row['instance']} on {row['cluster'] or 'its devices'}"
            if where not in self.best or row["gap"] < self.best[where][0]:
                self.best[where] = (row["gap"], row["label"])

    def _view(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        table = Table("largest of the best gaps", "gap", "solver", box=None, pad_edge=False)
        for where, (gap, label) in sorted(self.best.items(), key=lambda item: -item[1][0])[
            : self.rows
        ]:
            table.add_row(where, f"{100 * gap:.2f} %", label)
        return Group(self._bar, table)
