"""What a first run costs: every kernel that is compiled, and the README's main command in a fresh
copy of the tree.

Run `python results/start/study.py [groups] [command] [--again]` (about six minutes). Writes
kernels.csv and groups.csv, command.csv, and README.md beside this file; what is there is kept.
Kernels are compiled group by group, each in a process
of its own with an empty cache; seconds are processor seconds of that process, without what is
compiled inside them, so that they add up. The command runs three times in a fresh copy of the
tracked files, which holds neither kernels nor bytecode: first, again (what the first run left is
compiled), and with all that it needs compiled, as after `placeopt warm-up`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from placeopt.experiments.studies import markdown_table, read_csv, row_options, write_csv
from placeopt.io.serialize import load
from placeopt.solving.compilation import GROUPS

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from whole_tables import wanted  # noqa: E402 - results/ is no package

SECONDS = 10
COMMAND = ["solve", "onnx:inception_v1", "--cluster", "4xA100"]
NEEDED = (
    "evaluator",
    "ranks",
    "lists",
    "lists-by-time",
    "clusterings",
    "walks",
    "populations",
    "bounds",
)
"""Groups that the command uses."""

AT_ONCE = ("evaluator", "walks", "bounds")
"""Those without which its search does not begin."""

CHILD = """
import json, sys, time
from numba.core import event
from placeopt.solving.compilation import GROUPS, run_first
rows, open_ = [], []
class Listener(event.Listener):
    def on_start(self, started):
        open_.append([time.thread_time(), 0.0])
    def on_end(self, ended):
        begun, inside = open_.pop()
        spent = time.thread_time() - begun
        if open_:
            open_[-1][1] += spent
        function = ended.data["dispatcher"].py_func
        rows.append([function.__module__, function.__qualname__, str(ended.data["args"]), spent - inside])
started = time.process_time()
event.register("numba:compile", Listener())
run_first(GROUPS[sys.argv[1]])
print(json.dumps([rows, time.process_time() - started, time.process_time()]))
"""


def main() -> None:
    """Measure, then write the tables and the page."""
    given = row_options(__doc__, ("groups", "command"))
    tables = [HERE / "kernels.csv", HERE / "groups.csv"]
    if "groups" in given.stages and wanted(tables, given):
        measure_groups()
    if "command" in given.stages and wanted([HERE / "command.csv"], given):
        measure_command()
    write_page(
        read_csv(HERE / "groups.csv", numbers=True), read_csv(HERE / "command.csv", numbers=True)
    )


def measure_command() -> None:
    """Run the command in a fresh copy, and again, and write when things happened."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        for run in ("first", "second", "compiled"):
            runs.append(run_command(run, folder))
            print(runs[-1], flush=True)
    write_csv(HERE / "command.csv", runs, digits=4)


def copy_tree(folder: Path) -> None:
    """Copy the files that git tracks, as they are now."""
    root = HERE.parent.parent
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0"):
        source, target = root / name, folder / name
        if name and source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)


def measure_groups() -> None:
    """Compile all groups, and write what each kernel and each group costs."""
    kernels: list[dict[str, Any]] = []
    groups: list[dict[str, Any]] = []
    for name in GROUPS:
        rows, spent, whole = compile_group(name)
        compiling = sum(row["seconds"] for row in rows)
        groups.append(
            {
                "group": name,
                "kernels": len(rows),
                "compiling": compiling,
                "run": spent,
                "process": whole,
            }
        )
        kernels += rows
        print(f"{name}: {len(rows)} kernels, {compiling:.1f} s", flush=True)
    write_csv(HERE / "kernels.csv", kernels, digits=3)
    write_csv(HERE / "groups.csv", groups, digits=3)


def compile_group(name: str) -> tuple[list[dict[str, Any]], float, float]:
    """Return a row per kernel and signature, the processor seconds of the first run, and those of
    its process.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, name],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NUMBA_CACHE_DIR": folder},
        )
    rows, spent, whole = json.loads(done.stdout.splitlines()[-1])
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for module, function, _, seconds in rows:
        row = found.setdefault(
            (module, function),
            {"group": name, "module": module, "kernel": function, "signatures": 0, "seconds": 0.0},
        )
        row["signatures"] += 1
        row["seconds"] += seconds
    return sorted(found.values(), key=lambda row: -row["seconds"]), spent, whole


def run_command(run: str, folder: str) -> dict[str, Any]:
    """Run the README's command and return when things happened, in seconds since its start, and
    what it used.
    """
    elsewhere = ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere} | {
        "PYTHONPATH": folder
    }
    before, busy = resource.getrusage(resource.RUSAGE_CHILDREN), os.getloadavg()[0]
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "placeopt",
            *COMMAND,
            "--seconds",
            str(SECONDS),
            "--out",
            f"{folder}/out",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert process.stderr is not None
    moments: dict[str, float] = {}
    for line in process.stderr:
        for words in ("first results", "compiled in"):
            if words in line:
                moments[words] = time.perf_counter() - started
    process.wait()
    whole = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    portfolio = load(f"{folder}/out/results/portfolio.json")
    return {
        "run": run,
        "load": busy,
        "first_table": moments.get("first results"),
        "compiled": moments.get("compiled in"),
        "whole": whole,
        "beyond_search": whole - portfolio.runtime,
        "user": after.ru_utime - before.ru_utime,
        "runtime": portfolio.runtime,
        "evaluations": portfolio.evaluations,
        "value": portfolio.value,
        "gap": portfolio.gap,
    }


def chain(groups: list[dict[str, Any]]) -> float:
    """Processor seconds of the longer of two processes that compile what the search begins with,
    one group after the other.
    """
    spent = [0.0, 0.0]
    start = min(row["process"] - row["run"] for row in groups)
    for name in (name for name in GROUPS if name in AT_ONCE):
        row = next(row for row in groups if row["group"] == name)
        spent[spent.index(min(spent))] += row["run"]
    return max(spent) + start


def write_page(groups: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Write README.md."""
    needed = [row for row in groups if row["group"] in NEEDED]
    lines = [
        "# The first run",
        "",
        *(line for line in (__doc__ or "").splitlines() if line),
        "",
        "## Groups of kernels",
        "",
    ]
    lines += markdown_table(
        ("group", "kernels", "compiling, CPU s"),
        [(row["group"], row["kernels"], round(row["compiling"], 1)) for row in groups],
    )
    lines += [
        "",
        f"The README's command uses {len(needed)} of them, {sum(row['run'] for row in needed):.1f} "
        "CPU s; its search begins with "
        f"{', '.join(AT_ONCE)}: of two processes that share these the longer one is busy for "
        f"{chain(groups):.1f} CPU s, its "
        "start included.",
        "",
        "## The command",
        "",
    ]
    columns = (
        "run",
        "load",
        "first_table",
        "compiled",
        "whole",
        "beyond_search",
        "user",
        "runtime",
        "evaluations",
    )
    lines += markdown_table(
        (*columns, "gap"),
        [[*(_cell(row[name]) for name in columns), f"{row['gap']:.2%}"] for row in runs],
    )
    lines += [
        "",
        f"Seconds of the wall clock since the command's start, `--seconds {SECONDS}`; `user` is "
        "processor seconds of all its "
        "processes, `load` the machine's load when it began, other work included; `compiled` is "
        "when the search may begin.",
    ]
    (HERE / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: Any) -> Any:
    return "-" if value in (None, "") else round(value, 1) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
