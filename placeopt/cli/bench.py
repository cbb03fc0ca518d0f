"""`placeopt bench` and `placeopt report`: run a grid, make its tables and pictures."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from placeopt.cli import common, interrupt
from placeopt.cli.common import print_json, say
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.experiments.runner import StudySummary


def bench_command(
    study: Annotated[Path, Argument(help="Study file (TOML).", show_default=False)],
    out: Annotated[
        Path,
        Option(
            "--out",
            "-o",
            "--results",
            help="Folder of results; the study gets a folder of its own inside.",
        ),
    ] = Path("results"),
    jobs: Annotated[
        int | None, Option("--jobs", "-j", help="Runs at the same time; by default one per core.")
    ] = None,
    backend: Annotated[str, Option(help="loky, threading or dask.")] = "loky",
    address: Annotated[
        str | None, Option(help="Dask scheduler, for instance tcp://host:8786.")
    ] = None,
    retry_failed: Annotated[bool, Option("--retry-failed", help="Repeat failed runs.")] = False,
    again: Annotated[
        str, Option(help="Repeat runs of another state of the code (changed), or all.")
    ] = "",
    minutes: Annotated[float, Option(help="Begin no run later.", show_default=False)] = math.inf,
    oversubscribe: Annotated[
        bool, Option("--oversubscribe", help="Allow workers x jobs beyond the cores.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Count the runs and stop.")] = False,
    json: common.Json = False,
) -> None:
    """Run a study in parallel. If you stop it and start it again, it goes on where it was.

    Exit code 1 if a cell failed or could not be saved, 2 if results contradict one another.

    Example: `placeopt bench results/benchmark/study.toml --jobs 2`
    """
    from placeopt.experiments.runner import LiveReporter, PlainReporter, run_study
    from placeopt.experiments.study import expand, load_study

    grid = load_study(study)
    if dry_run:
        cells = expand(grid)
        if json:
            print_json({"study": grid.name, "cells": len(cells)})
        else:
            say(f"{grid.name}: {len(cells)} cells")
        return
    reporter: LiveReporter | PlainReporter | None = None
    if not json:
        reporter = LiveReporter() if sys.stderr.isatty() else PlainReporter()
    try:
        summary = run_study(
            grid,
            out,
            jobs=jobs,
            backend=backend,
            address=address,
            retry_failed=retry_failed,
            again=again,
            minutes=minutes,
            allow_oversubscription=oversubscribe,
            reporter=reporter,
        )
    finally:
        if isinstance(reporter, LiveReporter):
            reporter.close()
    folder = out / grid.name
    _print_summary(summary, grid.name, folder, json=json)
    if summary.contradiction:
        raise InputError(f"'{folder}': {summary.contradiction}")
    if summary.interrupted:
        raise Exit(interrupt.exit_code())
    raise Exit(1 if summary.unsaved or summary.failed else 0)


def _print_summary(summary: StudySummary, name: str, folder: Path, *, json: bool) -> None:
    """Print what a run of a study did."""
    interrupt.claim_output()
    if json:
        print_json(
            {
                "study": name,
                "folder": str(folder),
                "cells": summary.total,
                "runtime": summary.seconds,
                **common.told(
                    summary, "skipped done failed left unsaved interrupted errors contradiction"
                ),
            }
        )
        return
    say(
        f"{name}: {summary.done} done, {summary.failed} failed, {summary.skipped} finished before "
        f"({summary.seconds:.1f} s)"
    )
    if summary.unsaved:
        say(
            f"{summary.unsaved} results could not be written (disk full?): free some space and run "
            "the command again"
        )
    if summary.left and not summary.interrupted:
        say(f"{summary.left} runs are left: run the same command to go on")
    if summary.interrupted:
        say("interrupted: run the same command to go on")
    say(f"results: {folder / 'runs.jsonl'}; next: placeopt report {folder}")


def report_command(
    folder: Annotated[Path, Argument(help="Folder with runs.jsonl.", show_default=False)],
    out: Annotated[
        Path | None, Option("--out", "-o", help="Where to write; by default into the folder.")
    ] = None,
    parquet: Annotated[
        bool, Option("--parquet", help="Also write runs.parquet (needs pyarrow).")
    ] = False,
    archive: Annotated[
        Path | None, Option(help="Best-known archive to improve, e.g. results/best-known.json.")
    ] = None,
    json: common.Json = False,
) -> None:
    """Write the report of a study: best values, gaps, wins, profiles and tests, as HTML, pictures,
    Markdown and CSV.

    Example: `placeopt report results/benchmark`
    """
    from placeopt.experiments.archive import update_archive
    from placeopt.experiments.report import write_report
    from placeopt.experiments.store import cell_rows

    path = folder if folder.is_file() else folder / "runs.jsonl"
    files, data = write_report(folder, out or path.parent, parquet=parquet)
    changes = []
    if archive is not None:
        changes = update_archive(archive, cell_rows(path))
    if json:
        print_json({**data, "files": [str(path) for path in files], "archived": changes})
        return
    say(
        f"{data['rows']} runs, {data['failed']} failed, {data['instances']} instances, "
        f"{data['solvers']} solvers"
    )
    for path in files:
        say(f"wrote {path}")
    for change in changes:
        say(f"archived {change}")
