"""What happens when things go wrong: kills, interrupts, time limits, determinism, and the attack with brute force.

Run `python results/reliability/study.py [PART ...]`; parts: attack, kills, interrupts, limits, determinism. Each writes a CSV
beside this file; `tables.md` is drawn from them. `--problems N` sets the size of the attack, `--largest N` the most ops of
`limits`. Malformed files have a script of their own, malformed.py. Times are wall seconds on two cores of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import limits

from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.solving.registry import specs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Row = dict[str, Any]
PLACEOPT = (sys.executable, "-m", "placeopt")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


# --- the attack ----------------------------------------------------------------------------------------

CHUNK = 500


def attack(options: argparse.Namespace) -> list[Row]:
    """Small problems of every option; evaluators, judges, bounds and solvers against brute force."""
    starts = range(options.first, options.first + options.problems, CHUNK)
    totals: dict[str, Row] = {}
    with ProcessPoolExecutor(2) as pool:
        for number, found in enumerate(pool.map(attack_chunk, starts), start=1):
            for objective, entry in found.items():
                total = totals.setdefault(
                    objective, {"objective": objective, "problems": 0, "infeasible": 0, "differences": 0, "first": ""}
                )
                for key in ("problems", "infeasible", "differences"):
                    total[key] += entry[key]
                total["first"] = total["first"] or entry["first"]
            done = sum(total["problems"] for total in totals.values())
            if number % 10 == 0:
                print(f"attack: {done} problems, {sum(t['differences'] for t in totals.values())} differences", flush=True)
                write_csv(HERE / "attack.csv", list(totals.values()))
    return list(totals.values())


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
        entry = found.setdefault(case.objective, {"problems": 0, "infeasible": 0, "differences": 0, "first": ""})
        # linear programs and exact solvers on a share of the problems: they take most of the time
        wrong = compare(case, rng, exact=0.1, bound_seconds=0.1 if seed % 20 == 0 else 0.0)
        entry["problems"] += 1
        entry["infeasible"] += brute_force.optimum(case) is None
        entry["differences"] += bool(wrong)
        if wrong and not entry["first"]:
            entry["first"] = f"seed {seed}: {wrong[0]}"
    return found


# --- kills ---------------------------------------------------------------------------------------------

GRID = """
name = "kills"
instances = ["gen:ffnn", "gen:chain-mm", "gen:llama-block?shards=2"]
clusters = ["uniform:4"]
seeds = {count = 40}
evaluations = 400
solvers = [{name = "annealing"}, {name = "cross-entropy"}, {name = "random"}]
"""


def kills(options: argparse.Namespace) -> list[Row]:
    """A grid killed at random moments and started again, until it ends: nothing lost, nothing different."""
    rows = []
    for backend in ("loky", "dask"):
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
            rows.append({
                "back end": backend, "cells": len(expected), "kills": killed, "cells lost": len(expected.keys() - after.keys()),
                "values that differ": sum(after.get(key) != value for key, value in expected.items()),
                "processes alive 5 s after a kill": alive,
            })  # fmt: skip
            print("kills:", rows[-1], flush=True)
    return rows


def bench(folder: Path, results: str, backend: str) -> subprocess.Popen[bytes]:
    """Start a grid in a session of its own."""
    command = [*PLACEOPT, "bench", "kills.toml", "--results", results, "--jobs", "2", "--backend", backend]
    return subprocess.Popen(
        command, cwd=folder, env={**ENVIRONMENT, "RELIABILITY": str(folder / results)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


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


# --- interrupts ----------------------------------------------------------------------------------------

COMMANDS = {
    "solve (default)": ["solve", "gen:nmt", "-c", "4xP100", "-t", "60", "--out", "out"],
    "bound": ["bound", "gen:nmt", "-c", "4xP100", "-t", "60"],
    "verify": ["verify", "gen:nmt", "start.json", "-c", "4xP100", "-t", "60"],
    "schedule": ["schedule", "shape:NN?devices=16&memory=6", "-t", "60", "--out", "out"],
    "jobs": ["jobs", "stream:ramp?models=gen:chain-mm&device=A100&jobs=400&beta=2&interval=2", "-p", "rollout",
             "--episodes", "50"],
    "bench": ["bench", "kills.toml", "--results", "results", "--jobs", "2"],
    "run": ["run", "gen:chain-mm?size=1500", "solver:heft", "--workers", "2", "--repeat", "50"],
    **{f"solve -s {name}": ["solve", "gen:nmt", "-c", "4xP100", "-s", name, "-t", "60", "--out", "out"]
       for name in ("cp-sat", "lns", "annealing", "genetic", "cross-entropy", "post", "dual-policy", "grouper-placer",
                    "graph-parsing")},
    **{f"solve period -s {name}": ["solve", "gen:nmt", "-c", "4xP100", "--objective", "period", "-s", name, "-t", "60",
                                   "--out", "out"] for name in ("ideal-dp", "linear-dp", "cp-sat", "milp")},
    "solve latency -s cp-sat": ["solve", "gen:nmt", "-c", "4xP100", "--objective", "latency", "-t", "60", "--out", "out"],
}  # fmt: skip
MOMENTS = (0.7, 2.5, 6.0, 15.0)
SIGNALS = {"SIGINT": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143)}


def interrupts(options: argparse.Namespace) -> list[Row]:
    """Every command and search, interrupted in every phase: how it exits, how soon, and what it keeps."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kills.toml").write_text(GRID)
        subprocess.run([*PLACEOPT, "solve", "gen:nmt", "-c", "4xP100", "-s", "heft", "--out", "first"], cwd=folder,
                       env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)  # fmt: skip
        (folder / "first" / "placement.json").rename(folder / "start.json")
        for label, arguments in COMMANDS.items():
            for number, moment in enumerate(MOMENTS):
                kind = list(SIGNALS)[number % 2]
                rows.append({"command": label, **interrupted(folder, arguments, kind, moment)})
                print("interrupts:", rows[-1], flush=True)
            write_csv(HERE / "interrupts.csv", rows)
    return rows


def interrupted(folder: Path, arguments: list[str], kind: str, moment: float) -> Row:
    """Run one command, interrupt it, and say what happened."""
    number, expected = SIGNALS[kind]
    process = subprocess.Popen([*PLACEOPT, *arguments], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    try:
        process.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    sent = time.perf_counter()
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    code = process.returncode
    return {
        "signal": kind, "after": moment, "exit": code, "seconds": round(time.perf_counter() - sent, 2),
        "traceback": "Traceback" in err + out, "output": bool(out.strip()),
        "as required": code in (expected, 0) and "Traceback" not in err + out and time.perf_counter() - sent <= 3.5,
    }  # fmt: skip


# --- determinism ---------------------------------------------------------------------------------------

REPEAT = """
import hashlib, sys
import placeopt as po
from placeopt.solving.options import declared_options
from placeopt.solving.registry import solver_class
solver, objective = sys.argv[1], sys.argv[2]
problem = po.load("gen:layered?layers=6&width=6&seed=3", cluster="uniform:3", objective=objective)
fixed = {"num_workers": 1} if "num_workers" in declared_options(solver_class(solver)) else {}
result = po.solve(problem, solver, evaluations=300, seed=5, **fixed)
priority = result.solution.priority
text = f"{result.value} {result.solution.device.tolist()} {None if priority is None else priority.tolist()}"
print(hashlib.sha256(text.encode()).hexdigest())
"""


def determinism(options: argparse.Namespace) -> list[Row]:
    """Every solver with one seed and budget under other hash seeds and numbers of threads: one answer."""
    rows = []
    for objective in ("makespan", "period", "latency"):
        for name, spec in specs("placement").items():
            if objective not in spec.objectives:
                continue
            answers = set()
            for hash_seed, threads in (("0", "1"), ("1", "2"), ("2", "1"), ("3", "2")):
                environment = {**ENVIRONMENT, "PYTHONHASHSEED": hash_seed, "PLACEOPT_THREADS": threads}
                done = subprocess.run([sys.executable, "-c", REPEAT, name, objective], env=environment,
                                      capture_output=True, text=True, timeout=600)  # fmt: skip
                answers.add(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
            rows.append({"objective": objective, "solver": name, "runs": 4, "answers": len(answers)})
            print("determinism:", rows[-1], flush=True)
    return rows


# --- tables --------------------------------------------------------------------------------------------

PARTS = {"attack": attack, "kills": kills, "interrupts": interrupts, "limits": limits.measure, "determinism": determinism}


def draw_tables() -> None:
    """Write tables.md from the CSV files."""
    lines = ["# Tables", "", "Drawn by `study.py` from the CSV files of this folder.", ""]
    for name, part in PARTS.items():
        rows = read_csv(HERE / f"{name}.csv")
        if not rows:
            continue
        lines += [f"## {name}", "", (part.__doc__ or "").strip(), ""]
        if "as required" in rows[0]:
            good = sum(row["as required"] == "True" for row in rows)
            lines += [f"{good} of {len(rows)} as required.", ""]
        lines += [*markdown_table(list(rows[0]), [list(row.values()) for row in rows]), ""]
    (HERE / "tables.md").write_text("\n".join(lines))


def main() -> None:
    """Run the parts that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--problems", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="first seed of the attack")
    parser.add_argument("--largest", type=int, default=1_000_000, help="most ops of limits")
    parser.add_argument("--slice", type=float, default=1e9, help="seconds after which limits stops; run it again to go on")
    parser.add_argument("--only", default="", help="solvers that limits runs, commas between")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "reliability", help="of its graphs")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in (*PARTS, "tables")]
    if unknown:
        parser.error(f"part '{unknown[0]}' is not known; known: {', '.join(PARTS)}, tables")
    for name in options.parts or PARTS:
        if name in PARTS:
            write_csv(HERE / f"{name}.csv", PARTS[name](options), digits=4)
    draw_tables()


if __name__ == "__main__":
    main()
