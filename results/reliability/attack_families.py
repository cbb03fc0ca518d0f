"""The attack by families: `python results/reliability/attack_families.py run --problems 200000`; it
goes on where its CSV ends, and ends after --seconds.

A row is a chunk of seeds of one family: problems, those with a solution, differences, the first of
them, and seconds of the processor. `--table` names another CSV, so that two processes run seeds of
their own; `join` adds such tables up, a row per family, in `attack-families.csv` or --table.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "attack"))

from families import FAMILIES  # noqa: E402

from placeopt.experiments.studies import read_csv, write_csv  # noqa: E402

CHUNK = 200
TABLE = HERE / "attack-families.csv"
TURNS = {
    "makespan": 1,
    "period": 3,
    "latency": 4,
    "split": 8,
    "sharding": 8,
    "pipeline": 3,
    "proof": 3,
    "lanes": 2,
    "series": 3,
    "prices": 2,
    "slots": 2,
    "parts": 4,
}
"""Chunks of each family in a round: about as many as take each the same time."""


def attack_chunk(family: str, first: int) -> dict[str, Any]:
    """Attack CHUNK problems of a family."""
    began, feasible, wrong = time.process_time(), 0, []
    for seed in range(first, first + CHUNK):
        try:
            outcome = FAMILIES[family](seed)
        except Exception as error:  # one of the tool's own checks, or a crash: both are differences
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}"[:300])
            continue
        feasible += outcome.feasible
        wrong += [f"seed {seed}: {outcome.differences[0]}"] if outcome.differences else []
    return {
        "family": family,
        "first": first,
        "problems": CHUNK,
        "feasible": feasible,
        "differences": len(wrong),
        "example": wrong[0] if wrong else "",
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def run(options: argparse.Namespace) -> None:
    """Attack chunk after chunk, the families by turns, and write each to the CSV at once."""
    rows, end = read_csv(options.table), time.monotonic() + options.seconds
    known = {(row["family"], int(row["first"])) for row in rows}
    turns = [family for family, count in TURNS.items() for _ in range(count)]
    for number in range(-(-options.problems // CHUNK)):
        family, at = turns[number % len(turns)], number // len(turns)
        place = turns[: number % len(turns)].count(family)
        first = options.first + CHUNK * (at * TURNS[family] + place)
        if (family, first) not in known and time.monotonic() < end:
            rows.append(attack_chunk(family, first))
            write_csv(options.table, rows)


def join(options: argparse.Namespace) -> None:
    """Add tables up, by family and commit."""
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for path in options.tables:
        for row in read_csv(path):
            key = row["family"], row["commit"]
            zero = {
                "problems": 0,
                "feasible": 0,
                "differences": 0,
                "cpu_seconds": 0.0,
                "example": "",
            }
            total = totals.setdefault(key, {"family": key[0], "commit": key[1], **zero})
            for name in ("problems", "feasible", "differences"):
                total[name] += int(row[name])
            total["cpu_seconds"] = round(total["cpu_seconds"] + float(row["cpu_seconds"]), 1)
            total["example"] = total["example"] or row["example"]
    write_csv(options.table, list(totals.values()))
    print(sum(row["problems"] for row in totals.values()), "problems")


def main() -> None:
    """Run, or join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["run", "join"])
    parser.add_argument("tables", nargs="*", type=Path, help="of a join")
    parser.add_argument("--problems", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no chunk after that")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    (run if options.stage == "run" else join)(options)


if __name__ == "__main__":
    main()
