"""Run the cells of a study in parallel; survive solvers that raise, hang or are killed.

Run one cell in a process of its own: whatever it does, it ends with the cell's limit and takes
nobody along.

`python -m placeopt.experiments.runner` is that process: it reads the cell from stdin and writes the
row to stdout.

Tell a person how a study is going: one live view on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from placeopt.experiments.cell import failure, prepare, run_cell, same_package
from placeopt.experiments.store import Row, RunStore, contradiction, latest, wrong_column
from placeopt.experiments.study import Cell, Study, expand
from placeopt.model.errors import InputError, SolverError, check_choice, needed_package
from placeopt.model.threads import num_cores, start_thread


@dataclass
class StudySummary:
    """What a run of a study did.

    Attributes
    ----------
    skipped : cells that were finished before; left : cells that the time did not allow.
    unsaved : finished cells that the disk did not take.
    contradiction : two rows of the store of which at least one is false, in words; empty where
    there are none.
    """

    total: int = 0
    skipped: int = 0
    left: int = 0
    done: int = 0
    failed: int = 0
    unsaved: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    contradiction: str = ""

    def count(self, row: Row) -> None:
        """Count a cell that has just ended."""
        if row["status"] != "failed":
            self.done += 1
            return
        self.failed += 1
        self.errors.append(
            f"{row['instance']} / {row['label']} / seed {row['seed']}: {row['error']}"
        )


class PlainReporter:
    """A line now and then: for logs."""

    def begin(self, summary: StudySummary, known: list[Row]) -> None:
        """Print what there is to do."""
        self._last = self._start = time.perf_counter()
        print(
            f"{summary.total} cells, {summary.skipped} finished before", file=sys.stderr, flush=True
        )

    def finished(self, summary: StudySummary, row: Row) -> None:
        """Print a line every few seconds, and one for every failure."""
        if row["status"] == "failed":
            print(f"failed: {summary.errors[-1]}", file=sys.stderr, flush=True)
        every, now = 10.0, time.perf_counter()
        count = summary.done + summary.failed
        left = summary.total - summary.skipped - count
        if now - self._last >= every or left == 0:
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

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, str]] = {}
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None

    def begin(self, summary: StudySummary, known: list[Row]) -> None:
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
        console = Console(stderr=True, markup=False)
        self._live = Live(self._view(), console=console, refresh_per_second=4)
        self._live.start()

    def finished(self, summary: StudySummary, row: Row) -> None:
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

    def _note(self, row: Row) -> None:
        if row.get("gap") is not None:
            where = f"{row['instance']} on {row['cluster'] or 'its devices'}"
            if where not in self.best or row["gap"] < self.best[where][0]:
                self.best[where] = (row["gap"], row["label"])

    def _view(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        table = Table("largest of the best gaps", "gap", "solver", box=None, pad_edge=False)
        largest = sorted(self.best.items(), key=lambda item: -item[1][0])
        for where, (gap, label) in largest[:8]:
            table.add_row(where, f"{100 * gap:.2f} %", label)
        return Group(self._bar, table)


BACKENDS = ("loky", "threading", "dask")
AGAIN = ("changed", "all")


@dataclass(frozen=True)
class HowToRun:
    """How cells are run, and which again.

    Attributes
    ----------
    jobs : cells at a time, by default one per core.
    backend : joblib back end: "loky", "threading" or "dask" (a LocalCluster, or the scheduler at
        `address`).
    retry_failed : run failed cells again.
    again : "changed" runs again what is of another state of the package, "all" everything.
    minutes : begin no cell later; those that wait are done by the next run.
    allow_oversubscription : let CP-SAT workers x jobs exceed the cores.
    reporter : told about every finished cell.
    """

    jobs: int | None = None
    backend: str = "loky"
    address: str | None = None
    retry_failed: bool = False
    again: str = ""
    minutes: float = math.inf
    allow_oversubscription: bool = False
    reporter: PlainReporter | LiveReporter | None = None

    def __post_init__(self) -> None:
        """Refuse what is not understood."""
        check_choice("--backend", self.backend, BACKENDS)
        check_choice("--again", self.again, ("", *AGAIN))
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"--jobs: expected at least 1, received {self.jobs}")

    def keeps(self, row: Row) -> bool:
        """Whether the cell of a row in the store is not to be run again."""
        failed_again = self.retry_failed and row.get("status") == "failed"
        return stays(row, self.again) and not failed_again


def run_study(study: Study, results: str | Path = "results", **how: Any) -> StudySummary:
    """Run the cells of a study that have no result yet.

    Parameters
    ----------
    results : folder; the study's store is results/<name>/runs.jsonl.
    how : the attributes of `HowToRun`.
    """
    settings = HowToRun(**how)
    return run_cells(expand(study), Path(results) / study.name, settings)


def run_cells(cells: Sequence[Cell], folder: Path, how: HowToRun) -> StudySummary:
    """Run the cells that have no row in a folder's store yet."""
    jobs = how.jobs or num_cores()
    _check_workers(cells, jobs, how)
    summary = StudySummary(total=len(cells))
    started = time.perf_counter()
    with RunStore(folder) as store:
        known = {key: row for key, row in latest(store.rows()).items() if how.keeps(row)}
        todo = [cell for cell in cells if cell.key not in known]
        summary.skipped = len(cells) - len(todo)
        if how.reporter is not None:
            how.reporter.begin(summary, [known[cell.key] for cell in cells if cell.key in known])
        prepare(todo)  # once, here: the workers load what is compiled
        finished = how.reporter.finished if how.reporter is not None else lambda *_: None
        end = started + 60 * how.minutes
        try:
            for row in _execute(todo, folder, jobs, how, end):
                store.append(row)
                summary.count(row)
                finished(summary, row)
        except KeyboardInterrupt:
            summary.interrupted = True
        rows = latest(store.rows()).values()
        summary.contradiction = contradiction(row for row in rows if not wrong_column(row))
    summary.left = len(todo) - summary.done - summary.failed
    summary.unsaved = len(store.unsaved)
    summary.seconds = time.perf_counter() - started
    return summary


def stays(row: Row, again: str) -> bool:
    """Return whether a row is kept where rows are to be measured `again`."""
    return not again or (again == "changed" and same_package(str(row.get("commit", ""))))


def _check_workers(cells: Sequence[Cell], jobs: int, how: HowToRun) -> None:
    """Refuse grids whose CP-SAT workers would crowd the cores of this machine, unless that is
    allowed.
    """
    from placeopt.solving.registry import make_solver

    if how.allow_oversubscription or how.address is not None:
        return
    cores = num_cores()
    for name, kind, options in {
        (c.solver, c.kind, json.dumps(c.options, sort_keys=True)) for c in cells
    }:
        try:
            workers = getattr(make_solver(name, kind, **json.loads(options)), "num_workers", 1)
        except SolverError:
            continue  # a broken plug-in: its cells say so
        if isinstance(workers, int) and workers > 1 and workers * jobs > cores:
            raise InputError(
                f"solver '{name}' uses {workers} workers, times {jobs} jobs is more than {cores} "
                f"cores: give it options = {{num_workers = {max(1, cores // jobs)}}}, use --jobs "
                f"{max(1, cores // workers)}, or allow it with --oversubscribe"
            )


def _execute(
    cells: list[Cell], folder: Path, jobs: int, how: HowToRun, end: float
) -> Iterator[Row]:
    """Yield the row of every cell that begins before `end`, in order of completion, whatever
    happens to the workers.
    """
    waiting = {cell.key: cell for cell in cells}
    running = folder / "running"
    while waiting:
        shutil.rmtree(running, ignore_errors=True)
        running.mkdir(parents=True)
        try:
            for row in _pool(list(waiting.values()), running, jobs, how, end):
                del waiting[row["key"]]
                yield row
        except (KeyboardInterrupt, GeneratorExit, InputError):
            raise
        except Exception as error:  # a worker died: joblib and dask have their own errors for it
            yield from _without_workers(waiting, running, jobs, type(error).__name__)
        else:
            break
    shutil.rmtree(running, ignore_errors=True)


def _without_workers(
    waiting: dict[str, Cell], running: Path, jobs: int, reason: str
) -> Iterator[Row]:
    """Yield the rows of the cells that were running as a worker died: overdue ones have failed;
    where there is none some cell killed its worker (out of memory?), and each is tried once more,
    alone.
    """
    suspects = _suspects(running, waiting)
    overdue = [
        (cell, age)
        for cell, age in suspects
        if cell.hard_timeout is not None and age >= 0.95 * cell.hard_timeout
    ]
    for cell, age in overdue:
        del waiting[cell.key]
        why = f"hard timeout: not finished after {cell.hard_timeout:g} s, worker ended"
        yield failure(cell, why, age)
    if not overdue:
        for cell in [cell for cell, _ in suspects] or list(waiting.values())[:jobs]:
            del waiting[cell.key]
            yield run_alone(cell, reason)


def _pool(cells: list[Cell], running: Path, jobs: int, how: HowToRun, end: float) -> Iterator[Row]:
    from joblib import Parallel, delayed, parallel_config

    backend, address = how.backend, how.address
    own_processes = backend == "loky" and jobs > 1
    note = str(running) if backend != "threading" and address is None else None
    settings: dict[str, Any] = {}
    if own_processes:
        settings |= {"initializer": _begin_worker, "initargs": (os.getpid(),)}
        threading.excepthook = _report_thread
    with ExitStack() as stack:
        if backend == "dask":
            stack.enter_context(_dask(address, jobs))
        stack.enter_context(parallel_config(backend=backend, **settings))
        parallel = Parallel(
            n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="3 * n_jobs"
        )
        # Elsewhere a worker that ends takes others along, or is started again and again.
        run = (
            delayed(run_alone)(cell)
            if cell.hard_timeout is not None and not own_processes
            else delayed(run_cell)(cell, note, own_processes)
            for cell in takewhile(lambda _: time.perf_counter() < end, cells)
        )
        yield from parallel(run)
    if backend == "loky":
        from joblib.externals.loky import get_reusable_executor

        # Another study may need another environment, and idle workers hold memory.
        get_reusable_executor(reuse=True).shutdown(wait=True)


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Report what a thread raised, but for loky's own, which stumbles over its queue when the pool
    is ended early.
    """
    if not type(failure.thread).__module__.startswith("joblib.externals.loky"):
        threading.__excepthook__(failure)


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C to the main process, which ends its workers, and end with it if it is killed:
    the next run is not to share its cores with what nobody waits for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_thread(_end_without, parent)


def _end_without(parent: int, seconds: float = 1.0) -> None:
    """End this process once `parent` is no longer its parent; look every so many seconds."""
    while os.getppid() == parent:
        time.sleep(seconds)
    os._exit(1)


def _dask(address: str | None, jobs: int) -> AbstractContextManager[Any]:
    """Connect to the Dask scheduler at an address, or start a local cluster."""
    connect = needed_package("distributed", "dask", "--backend dask").Client
    from placeopt.runtime.dask_runtime import local_cluster

    stack = ExitStack()
    for name in ("distributed", "tornado.application"):
        # A scheduler that goes away is told in one line, not in a page of tracebacks per worker.
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
    if address is None:
        cluster = stack.enter_context(local_cluster(n_workers=jobs, dashboard_address=None))
        stack.enter_context(connect(cluster))
    else:
        try:
            stack.enter_context(connect(address, timeout=10))
        except OSError as error:
            raise InputError(f"--address '{address}': no Dask scheduler answers there") from error
    return stack


def _suspects(running: Path, waiting: dict[str, Cell]) -> list[tuple[Cell, float]]:
    """Return the cells that workers had started and not finished, with the seconds since."""
    found = []
    for note in sorted(running.iterdir()):
        try:
            data = json.loads(note.read_text())
        except (OSError, ValueError):
            continue
        if data["key"] in waiting:
            age = time.time() - data["started"]  # of a process of another machine, perhaps
            found.append((waiting[data["key"]], max(0.0, age)))
    return found


START_UP = 30.0
"""Seconds that a fresh process may take before its cell begins."""


def run_alone(cell: Cell, reason: str = "") -> Row:
    """Run a cell in a process of its own; if that dies, the cell is to blame.

    Parameters
    ----------
    reason : why it runs alone, for the message.
    """
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "placeopt.experiments.runner"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    limit = None if cell.hard_timeout is None else cell.hard_timeout + START_UP
    timer, output = threading.Timer(limit or 0.0, process.kill), b""
    try:
        if limit is not None:
            timer.start()
        data = pickle.dumps(cell)
        with suppress(BrokenPipeError):
            process.stdin.write(len(data).to_bytes(8, "big") + data)
            process.stdin.flush()  # left open: the process ends when it closes
            output = process.stdout.read()
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdin.close()
        process.stdout.close()
    if output:
        return json.loads(output)  # type: ignore[no-any-return]
    age = time.monotonic() - started
    return failure(cell, _cause(cell, process.returncode, age, reason), age)


def _cause(cell: Cell, code: int, age: float, reason: str) -> str:
    """Say why a process ended without a row."""
    limit = cell.hard_timeout
    if limit is not None and (
        age >= limit + START_UP if code < 0 else code == 1 and age >= 0.95 * limit
    ):
        return f"hard timeout: not finished after {limit:g} s, worker ended"
    if code < 0:
        return f"worker killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    return f"worker ended with exit code {code}" + (f" ({reason})" if reason else "")


def _main() -> None:
    """Read a cell, run it, write its row."""
    output = os.dup(1)
    os.dup2(2, 1)  # what a solver prints is no row
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    cell = pickle.loads(sys.stdin.buffer.read(size))
    start_thread(_end_with_parent)
    row = run_cell(cell)
    with os.fdopen(output, "wb") as stream:
        stream.write(json.dumps(row).encode())
    os._exit(0)  # taking numba and CP-SAT down takes longer than many a cell


def _end_with_parent() -> None:
    """End this process when whoever started it is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    _main()
