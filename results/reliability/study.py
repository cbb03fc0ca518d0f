"""What happens when things go wrong: kills, interrupts, time limits, determinism, and the attack
with brute force.

    python results/reliability/study.py [PART ...] [--again] [--minutes M]

Parts: attack, kills, interrupts, limits, million, determinism, adversary, mutation-score,
mutation-fresh. Each writes a CSV beside this file, and goes on where that is there; `tables.md` is
drawn from them.
`--problems N` sets the size of the attack, `--derivations N` that of the adversary per family,
`--largest N` the most ops of `limits`. Malformed files have a script of their own, malformed.py.
Times are wall seconds on two cores of a shared machine.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import checker_attack
import limits
import mutation_score
from whole_tables import record_named, record_tables

from placeopt.experiments.studies import (
    kept_rows,
    read_csv,
    row_options,
    table_of,
    write_csv,
)
from placeopt.solving.options import declared_options
from placeopt.solving.registry import solver_class, specs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Row = dict[str, Any]
PLACEOPT = (sys.executable, "-m", "placeopt")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}


# --- the attack
# ----------------------------------------------------------------------------------------

CHUNK = 500


def attack(options: argparse.Namespace) -> None:
    """Small problems of every option; evaluators, judges, bounds and solvers against brute
    force.
    """
    path = HERE / "attack.csv"
    totals: dict[str, Row] = {
        row["objective"]: {key: int(x) if x.isdigit() else x for key, x in row.items()}
        for row in kept_rows(path, options, ())
    }
    done = sum(row["problems"] for row in totals.values())
    starts = range(options.first + done, options.first + options.problems, CHUNK)
    with ProcessPoolExecutor(2) as pool:
        for number, found in enumerate(pool.map(attack_chunk, starts), start=1):
            for objective, entry in found.items():
                total = totals.setdefault(
                    objective,
                    {
                        "objective": objective,
                        "problems": 0,
                        "infeasible": 0,
                        "differences": 0,
                        "first": "",
                    },
                )
                for key in ("problems", "infeasible", "differences"):
                    total[key] += entry[key]
                total["first"] = total["first"] or entry["first"]
            done = sum(total["problems"] for total in totals.values())
            if number % 10 == 0 or done == options.problems:
                print(
                    f"attack: {done} problems, {sum(t['differences'] for t in totals.values())} "
                    "differences",
                    flush=True,
                )
                write_csv(path, list(totals.values()))
                if time.monotonic() > options.end:
                    pool.shutdown(wait=True, cancel_futures=True)
                    break


def attack_chunk(start: int) -> dict[str, Row]:
    """Attack CHUNK problems; return the counts by objective."""
    sys.path.insert(0, str(ROOT / "tests" / "attack"))
    import brute_force
    from case import draw
    from compare import attack as compare

    found: dict[str, Row] = {}
    for seed in range(start, start + CHUNK):
        rng = random.Random(seed)
        case = draw(rng)
        entry = found.setdefault(
            case.objective, {"problems": 0, "infeasible": 0, "differences": 0, "first": ""}
        )
        # linear programs and exact solvers on a share of the problems: they take most of the time
        wrong = compare(case, rng, exact=0.1, bound_seconds=0.1 if seed % 20 == 0 else 0.0)
        entry["problems"] += 1
        entry["infeasible"] += brute_force.optimum(case) is None
        entry["differences"] += bool(wrong)
        if wrong and not entry["first"]:
            entry["first"] = f"seed {seed}: {wrong[0]}"
    return found


# --- kills
# ---------------------------------------------------------------------------------------------

GRID = """
name = "kills"
instances = ["gen:ffnn", "gen:chain-mm", "gen:llama-block?shards=2"]
clusters = ["uniform:4"]
seeds = {count = 40}
evaluations = 400
solvers = [{name = "annealing"}, {name = "cross-entropy"}, {name = "random"}]
"""


def kills(options: argparse.Namespace) -> None:
    """A grid killed at random moments and started again, until it ends: nothing lost, nothing
    different.
    """
    jobs = [({"back end": name}, partial(killed_grid, name)) for name in ("loky", "dask")]
    record_named(HERE / "kills.csv", jobs, options)


def killed_grid(backend: str) -> Row:
    """Kill a grid of a back end up to ten times, and compare what it ends with."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kills.toml").write_text(GRID)
        bench(folder, "whole", "loky").wait()
        expected = values(folder / "whole")
        rng, killed, alive = random.Random(7), 0, 0
        while killed < 10:
            process = bench(folder, "killed", backend)
            try:
                process.wait(timeout=rng.uniform(2, 14))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
                time.sleep(5)
                alive = max(alive, descendants_alive(folder / "killed"))
        bench(folder, "killed", backend).wait()
        after = values(folder / "killed")
    return {
        "cells": len(expected),
        "kills": killed,
        "cells lost": len(expected.keys() - after.keys()),
        "values that differ": sum(
            after.get(key, value) != value for key, value in expected.items()
        ),
        "processes alive 5 s after a kill": alive,
        "as required": values_lost(expected, after) == 0 and alive == 0,
    }


def values_lost(expected: dict[str, Any], after: dict[str, Any]) -> int:
    """Number of cells that are missing or differ."""
    return sum(after.get(key) != value for key, value in expected.items())


def bench(folder: Path, results: str, backend: str, jobs: int = 2) -> subprocess.Popen[bytes]:
    """Start a grid in a session of its own."""
    command = [
        *PLACEOPT,
        "bench",
        "kills.toml",
        "--results",
        results,
        "--jobs",
        str(jobs),
        "--backend",
        backend,
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**ENVIRONMENT, "RELIABILITY": str(folder / results)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def values(results: Path) -> dict[str, Any]:
    """Value of every finished cell by its key, the last line of a key counts."""
    found = {}
    for path in results.rglob("runs.jsonl"):
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line in flight
            if row.get("status") != "failed":
                found[row["key"]] = row["value"]
    return found


def descendants_alive(mark: Path) -> int:
    """Number of processes whose environment carries the mark."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += f"RELIABILITY={mark}".encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
    return count


# --- interrupts
# ----------------------------------------------------------------------------------------

PROBLEM = ["gen:nmt", "-c", "4xP100"]
COMMANDS = {
    "solve (default)": ["solve", *PROBLEM, "-t", "60", "--out", "out"],
    "bound": ["bound", *PROBLEM, "-t", "60"],
    "verify": ["verify", "gen:nmt", "start.json", "-c", "4xP100", "-t", "60"],
    "schedule": ["schedule", "shape:NN?devices=16&memory=6", "-t", "60", "--out", "out"],
    "shard": ["shard", "gen:llama?layers=4", "-t", "60", "--out", "out"],
    "plan": ["plan", "gen:llama?layers=8", "-c", "8xA100", "-b", "64", "--out", "out"],
    "jobs": [
        "jobs",
        "stream:ramp?models=gen:chain-mm&device=A100&jobs=400&beta=2&interval=2",
        "-p",
        "rollout",
        "--episodes",
        "50",
        "--out",
        "out",
    ],
    "bench": ["bench", "kills.toml", "--results", "results", "--jobs", "2"],
    "run": ["run", "gen:chain-mm?size=1500", "solver:heft", "--workers", "2", "--repeat", "50"],
    "info": ["info", "gen:layered?layers=2000&width=100"],
    "convert": ["convert", "gen:layered?layers=2000&width=100", "out.json"],
    "evaluate": ["evaluate", "gen:nmt", "start.json", "-c", "4xP100"],
    "plot": ["plot", "gen:nmt", "start.json", "-c", "4xP100", "--out", "plot.png"],
}
MOMENTS = (0.3, 1.5, 4, 12)
"""Processor seconds after the start: while modules load, while the model is read, in heuristics and
bounds, in the search."""

SOLVER_MOMENT = 4
IDLE = 4.0
"""A process that works so little that it takes this many times its moment is interrupted then."""

SIGNALS = {"SIGINT": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143)}
MOST_SECONDS = 3.0


def interrupts(options: argparse.Namespace) -> None:
    """Every command in every phase and every search, interrupted: how it exits, how soon, and what
    it keeps.
    """
    runs = [
        (label, arguments, moment) for label, arguments in COMMANDS.items() for moment in MOMENTS
    ]
    for objective in ("makespan", "period", "latency"):
        for name, spec in specs("placement").items():
            if objective in spec.objectives:
                arguments = [
                    "solve",
                    *PROBLEM,
                    "--objective",
                    objective,
                    "-s",
                    name,
                    "-t",
                    "60",
                    "--out",
                    "out",
                ]
                runs.append((f"solve -s {name}, {objective}", arguments, SOLVER_MOMENT))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kills.toml").write_text(GRID)
        subprocess.run(
            [*PLACEOPT, "solve", *PROBLEM, "-s", "heft", "--out", "first"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (folder / "first" / "placement.json").rename(folder / "start.json")
        jobs = [
            (
                {"command": label, "after": moment},
                partial(interrupted, folder, arguments, list(SIGNALS)[number % 2], moment),
            )
            for number, (label, arguments, moment) in enumerate(runs)
        ]
        record_named(HERE / "interrupts.csv", jobs, options)


def interrupted(folder: Path, arguments: list[str], kind: str, moment: float) -> Row:
    """Run one command, interrupt it, and say what happened."""
    number, expected = SIGNALS[kind]
    shutil.rmtree(folder / "out", ignore_errors=True)
    process = subprocess.Popen(
        [*PLACEOPT, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    began = time.monotonic()
    while (
        process.poll() is None
        and worked(process.pid) < moment
        and time.monotonic() < began + IDLE * moment
    ):
        time.sleep(0.02)
    ended = process.poll() is not None
    if not ended:
        process.send_signal(number)
    sent = time.perf_counter()
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    seconds, files = time.perf_counter() - sent, len(list((folder / "out").glob("*")))
    exits = process.returncode == 0 if ended else process.returncode in (expected, 0)
    kept = files > 0 or not out.strip() or "--out" not in arguments or "plot" in arguments
    quiet = "Traceback" not in err + out
    return {
        "signal": kind,
        "after": moment,
        "ended before": ended,
        "exit": process.returncode,
        "seconds": round(seconds, 2),
        "traceback": not quiet,
        "output": bool(out.strip()),
        "files": files,
        "as required": exits and kept and quiet and seconds <= MOST_SECONDS,
    }


def worked(pid: int) -> float:
    """Return the processor seconds that a process has used, its threads counted."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- determinism
# ---------------------------------------------------------------------------------------

REPEAT = """
import hashlib, sys
import placeopt as po
from placeopt.solving.options import declared_options
from placeopt.solving.registry import solver_class
solver, objective = sys.argv[1], sys.argv[2]
problem = po.load("gen:layered?layers=6&width=6&seed=3", cluster="uniform:3", objective=objective)
if solver == "split-local-search":
    problem = problem.replace(contiguity="none")  # it takes no other
fixed = {"num_workers": 1} if "num_workers" in declared_options(solver_class(solver)) else {}
evaluations = 20 if solver in ("lns", "portfolio") else 300  # a window of theirs takes up to a second
result = po.solve(problem, solver, evaluations=evaluations, seed=5, **fixed)
priority = result.solution.priority
text = f"{result.value} {result.solution.device.tolist()} {None if priority is None else priority.tolist()}"
print(hashlib.sha256(text.encode()).hexdigest())
"""


def determinism(options: argparse.Namespace) -> None:
    """Every search with one seed and budget, under other hash seeds and numbers of threads and on
    other back ends: one answer.
    """
    objectives = ("makespan", "period", "latency")
    jobs = [
        ({"objective": objective, "solver": name}, partial(repeated, name, objective))
        for objective in objectives
        for name, spec in specs("placement").items()
        if objective in spec.objectives
    ]
    jobs += [
        ({"objective": objective, "solver": "all, in grids"}, partial(same_on_back_ends, objective))
        for objective in objectives
    ]
    record_named(HERE / "determinism.csv", jobs, options)


def repeated(solver: str, objective: str) -> Row:
    """Run one search three times, under other hash seeds and numbers of threads."""
    answers = set()
    for hash_seed, threads in (("0", "1"), ("1", "2"), ("2", "4")):
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": hash_seed, "PLACEOPT_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", REPEAT, solver, objective],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        answers.add(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
    same = len(answers) == 1 and all(len(answer) == 64 for answer in answers)
    return {"runs": 3, "answers": len(answers), "as required": same}


def same_on_back_ends(objective: str) -> Row:
    """Run a grid of all searches of an objective in this process's threads, on loky and on Dask,
    and compare values.
    """
    takers = [name for name, spec in specs("placement").items() if objective in spec.objectives]
    takers = [
        name for name in takers if name != "split-local-search"
    ]  # which refuses contiguous stages
    fixed = {name: "num_workers" in declared_options(solver_class(name)) for name in takers}
    solvers = "".join(
        f'[[solvers]]\nname = "{name}"\n' + ("options = {num_workers = 1}\n" if fixed[name] else "")
        for name in takers
    )
    text = f"""name = "kills"
instances = ["gen:layered?layers=6&width=6&seed=3"]
clusters = ["uniform:3"]
objectives = ["{objective}"]
seeds = [5, 6]
evaluations = 20
{solvers}"""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kills.toml").write_text(text)
        for number, (backend, jobs) in enumerate(
            (("loky", 1), ("loky", 2), ("threading", 2), ("dask", 2))
        ):
            bench(folder, str(number), backend, jobs).wait()
            found.append(values(folder / str(number)))
    same = all(other == found[0] for other in found) and len(found[0]) == 2 * len(takers)
    return {
        "runs": len(found),
        "answers": 1 if same else 2,
        "as required": same,
    }


# --- tables
# --------------------------------------------------------------------------------------------

PARTS = {
    "attack": attack,
    "kills": kills,
    "interrupts": interrupts,
    "limits": limits.measure,
    "million": limits.million,
    "determinism": determinism,
    "adversary": checker_attack.adversary,
    "mutation-score": mutation_score.mutation_score,
    "mutation-fresh": mutation_score.fresh_mutants,
}


BY_ROWS = ("attack", "kills", "interrupts", "limits", "determinism")
"""Parts that go on where they ended; the others measure their table as a whole."""


def draw_tables() -> None:
    """Write tables.md from the CSV files."""
    lines = ["# Tables", "", "Drawn by `study.py` from the CSV files of this folder.", ""]
    for name, part in PARTS.items():
        rows = read_csv(HERE / f"{name}.csv")
        if not rows:
            continue
        lines += [f"## {name}", "", inspect.cleandoc(part.__doc__ or ""), ""]
        if "as required" in rows[0]:
            good = sum(row["as required"] == "True" for row in rows)
            lines += [f"{good} of {len(rows)} as required.", ""]
        lines += [*table_of(rows), ""]
    (HERE / "tables.md").write_text("\n".join(lines))


def main() -> None:
    """Run the parts that are named, all by default."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--problems", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="first seed of the attack")
    parser.add_argument(
        "--derivations", type=int, default=50_000, help="of the adversary, per family"
    )
    parser.add_argument("--largest", type=int, default=1_000_000, help="most ops of limits")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "reliability",
        help="of its graphs",
    )
    options = row_options(__doc__, tuple(PARTS), parser)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, and so would every child
    for name in options.stages:
        if name in BY_ROWS:
            PARTS[name](options)
        else:
            record_tables(HERE, {name: partial(PARTS[name], options)}, options, digits=4)
    draw_tables()


if __name__ == "__main__":
    main()
