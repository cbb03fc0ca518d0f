"""A grid on many worker processes while workers die, the scheduler goes away and the disk is slow.

    python results/grids/faults.py             # all parts, a few minutes
    python results/grids/faults.py workers     # parts: workers, scheduler, disk

1000 cells (round-robin and critical path on ten graphs) run on a Dask scheduler with four worker
processes of this machine, as a cluster would run them:

workers    a random worker is killed (signal 9) every other second, and another one is started
scheduler  the scheduler is killed half way; the command ends in one line, and goes on afterwards
disk       every sync of the results file takes 20 ms longer

After each part the rows are held against the same grid on loky: no cell is missing, none is there
twice, and every value is the same. Writes faults.csv.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from placeopt.experiments import load_study, run_study
from placeopt.experiments.store import read_rows
from placeopt.experiments.studies import write_csv
from placeopt.model.errors import InputError

HERE = Path(__file__).resolve().parent
WORKERS = 4
STUDY = """
name = "faults"
instances = ["gen:layered?layers=6&seed={0..9}"]
clusters = ["uniform:4"]
seeds = {count = 50}
evaluations = 20
solvers = [{name = "random"}, {name = "critical-path"}]
"""


class Cluster:
    """A Dask scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.killed = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.start_scheduler()
        for _ in range(WORKERS):
            self.start_worker()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]]
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start_scheduler(self) -> None:
        """Start the scheduler at the cluster's address."""
        host, port = self.address.removeprefix("tcp://").split(":")
        self.scheduler = self._start(
            "dask_scheduler", "--host", host, "--port", port, "--no-dashboard"
        )

    def start_worker(self) -> None:
        """Start a worker of one thread."""
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60")
        self.workers.append(self._start("dask_worker", self.address, *options))

    def kill_a_worker(self, rng: random.Random) -> None:
        """Kill a worker at random, without a word, and start another one."""
        victim = self.workers.pop(rng.randrange(len(self.workers)))
        victim.kill()
        victim.wait()
        self.killed += 1
        self.start_worker()

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that a run has stored."""
    return list(read_rows(folder / "faults" / "runs.jsonl"))


def compare(part: str, folder: Path, known: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Hold the rows of a part against those of loky."""
    rows = rows_of(folder)
    values = {row["key"]: row["value"] for row in rows}
    line = {
        "part": part,
        "cells": len(known),
        "rows": len(rows),
        "missing": len(known.keys() - values.keys()),
        "twice": len(rows) - len(values),
        "failed": sum(row["status"] == "failed" for row in rows),
        "other_value": sum(values.get(key) != value for key, value in known.items()),
        **facts,
    }
    print(line, flush=True)
    return line


def part_workers(study: Any, folder: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Kill a worker every other second while the grid runs."""
    cluster, over, rng = Cluster(folder), threading.Event(), random.Random(3)

    def reap() -> None:
        while not over.wait(2.0):
            cluster.kill_a_worker(rng)

    reaper = threading.Thread(target=reap)
    try:
        reaper.start()
        run_study(study, folder / "workers", jobs=WORKERS, backend="dask", address=cluster.address)
    finally:
        over.set()
        reaper.join()
        cluster.close()
    return compare("workers", folder / "workers", known, killed=cluster.killed)


def part_scheduler(study: Any, folder: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Kill the scheduler half way; go on with another one."""
    out, message = folder / "scheduler", ""
    cluster = Cluster(folder)

    def watch() -> None:
        while len(rows_of(out)) < len(known) // 2:
            time.sleep(0.2)
        cluster.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run_study(study, out, jobs=WORKERS, backend="dask", address=cluster.address)
    except InputError as error:
        message = str(error)
    watcher.join()
    before = len(rows_of(out))
    again = Cluster(folder)
    try:
        run_study(study, out, jobs=WORKERS, backend="dask", address=again.address)
    finally:
        again.close()
    return compare("scheduler", out, known, rows_before=before, said=message)


def part_disk(study: Any, folder: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Let every sync take 20 ms longer."""
    sync = os.fsync

    def slow(file: int) -> None:
        time.sleep(0.02)
        sync(file)

    cluster = Cluster(folder)
    os.fsync = slow
    try:
        run_study(study, folder / "disk", jobs=WORKERS, backend="dask", address=cluster.address)
    finally:
        os.fsync = sync
        cluster.close()
    return compare("disk", folder / "disk", known)


PARTS = {"workers": part_workers, "scheduler": part_scheduler, "disk": part_disk}


def main() -> None:
    """Run the parts that are named, or all."""
    asked = [name for name in PARTS if name in sys.argv[1:] or len(sys.argv) == 1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = folder / "faults.toml"
        path.write_text(STUDY)
        study = load_study(path)
        run_study(study, folder / "loky", jobs=2)
        known = {row["key"]: row["value"] for row in rows_of(folder / "loky")}
        lines = [PARTS[name](study, folder, known) for name in asked]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    write_csv(HERE / "faults.csv", [{key: line.get(key, "") for key in columns} for line in lines])


if __name__ == "__main__":
    main()
